"""`penstock init`: write a project to start from."""

from __future__ import annotations

import argparse
import json
import re
from pathlib import Path
from string import Template
from typing import TYPE_CHECKING, Final

from penstock.errors import OptionError, UsageError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from importlib.resources.abc import Traversable

DESCRIPTION = "Write a project to start from: a pipeline for Spark Declarative Pipelines."
_PIPELINE: Final = (
    "Write a project for `spark-pipelines run`: a stream, quality rules, tables, a sink and a test."
)
_SUFFIX: Final = ".template"
_NAME: Final = re.compile(r"[A-Za-z][A-Za-z0-9_]{2,99}")
_STREAM: Final = re.compile(r"[a-zA-Z0-9_.-]{1,122}")
_UNSAFE_IN_PATHS: Final = re.compile(r"[\x00-\x1f;\\#%?*\[\]{}]")
"""Characters with a special meaning in Derby's addresses, properties files or Hadoop's paths."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    kinds = parser.add_subparsers(dest="kind", metavar="KIND", required=True)
    pipeline = kinds.add_parser("pipeline", help=_PIPELINE, description=_PIPELINE)
    pipeline.add_argument(
        "name",
        metavar="NAME",
        help="name of the pipeline, of its leases and of the folder that is made: 3 to 100 letters, digits and underscores",
    )
    pipeline.add_argument(
        "--stream", metavar="NAME", default="orders", help="name of the stream that is read (default orders)"
    )


def run(args: argparse.Namespace) -> int:
    """Write the project; return 0.

    Raises:
        OptionError: A name cannot be used.
        UsageError: The folder exists and is not empty.
        OSError: A file cannot be written.
    """
    if not _NAME.fullmatch(args.name):
        raise OptionError(
            f"NAME {args.name!r} is not an identifier: write a letter, then letters, digits and underscores, 3 to 100 in all"
        )
    if not _STREAM.fullmatch(args.stream):
        raise OptionError(
            f"--stream {args.stream!r} is not a name of a stream: write up to 122 letters, digits, dots, hyphens and underscores"
        )
    folder = Path.cwd() / args.name
    if unsafe := _UNSAFE_IN_PATHS.search(str(folder)):
        raise UsageError(
            f"{folder} holds {unsafe[0]!r}, which Spark's paths cannot hold: choose another folder"
        )
    if folder.is_symlink() or folder.exists():
        if not folder.is_dir():
            raise UsageError(f"{folder} exists and is not a folder: choose another name")
        if any(folder.iterdir()):
            raise UsageError(f"the folder {folder} is not empty: choose another name, or remove the folder")
    written = write_pipeline(folder, args.name, args.stream)
    print(f"{len(written)} files in {args.name}:")
    for each in written:
        print(f"  {each}")
    print(
        "\nNext:\n"
        f"  cd {args.name}\n"
        "  pip install 'penstock[spark,local]' 'pyspark[pipelines]' pytest\n"
        "  python -m pytest    # two runs against an embedded Kinesis\n"
        "  PYSPARK_PYTHON=$(which python) SPARK_CONF_DIR=$PWD/conf spark-pipelines run"
    )
    return 0


def write_pipeline(folder: Path, name: str, stream: str) -> list[str]:
    """Write the files of a pipeline project and return their names.

    Args:
        folder: Absolute; created if it does not exist.
        name: Name of the pipeline and of its leases.
        stream: Name of the stream that the pipeline reads.
    """
    state = folder / "state"
    words = {
        "name": name,
        "stream": stream,
        "sink": f"{stream}-large",
        "state": str(state),
        # Hadoop does not decode percent signs in a path, so none are written. A JSON string is valid YAML, too.
        "storage": json.dumps(f"file://{state}/checkpoints", ensure_ascii=False),
    }
    from importlib.resources import files  # five modules that no other command needs

    written = []
    for relative, text in _read_templates(files("penstock.cli") / "pipeline_project"):
        path = folder / (".gitignore" if relative == "gitignore" else relative)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(Template(text).substitute(words), encoding="utf-8")
        written.append(str(path.relative_to(folder)))
    return written


def _read_templates(folder: Traversable, parent: str = "") -> Iterator[tuple[str, str]]:
    """Yield path and text of each template below a folder of the package, which may be in an archive."""
    for each in sorted(folder.iterdir(), key=lambda entry: entry.name):
        if each.is_dir():
            yield from _read_templates(each, f"{parent}{each.name}/")
        elif each.name.endswith(_SUFFIX):
            yield parent + each.name.removesuffix(_SUFFIX), each.read_text(encoding="utf-8")
