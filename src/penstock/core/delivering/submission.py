"""The lines that run a file of deliveries on a cluster, as docs/cluster.md has them."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from typing import Final

from penstock.errors import OptionError

_PROGRAM: Final = '\'import runpy; runpy.run_module("penstock", run_name="__main__")\''


_WITH_SCHEMAS: Final = "'penstock[schemas]'"
_PACKAGES: Final = "spark.jars.packages"


def submit_lines(
    file: str,
    arguments: tuple[str, ...],
    master: str | None,
    settings: Mapping[str, str],
    spark: str = "",
    *,
    has_schemas: bool = False,
    schema_files: Sequence[str] = (),
) -> str:
    """Return the lines of a shell that build an environment and submit the deliveries to Spark.

    Args:
        file: The file of deliveries.
        arguments: Further arguments of the command.
        master: Spark's master; None leaves it to the cluster's configuration.
        settings: Spark's settings by name.
        spark: Line of Spark to which the packages in the settings belong; empty if there are no packages.
        has_schemas: Whether records are read by a registry or a JSON Schema, which needs further packages.
        schema_files: Files of schemas that the deliveries name. The driver finds them by their base names.

    Raises:
        OptionError: Two of the files have the same base name.
    """
    files = tuple(dict.fromkeys((file, *schema_files)))
    name = file.rpartition("/")[2]
    seen: dict[str, str] = {}
    for each in files:
        other = seen.setdefault(each.rpartition("/")[2], each)
        if other != each:
            raise OptionError(
                f"{other} and {each} have the same name, under which spark-submit ships them; rename one"
            )
    words = ["deliver", "-f", name, *arguments]
    options = ["--archives", "environment.tar.gz#environment", "--files", ",".join(files)]
    if master is not None:
        options = ["--master", master, *options]
    if _PACKAGES in settings:
        options += ["--packages", settings[_PACKAGES]]
    for name_of, value in settings.items():
        if name_of != _PACKAGES:
            options += ["--conf", f"{name_of}={value}"]
    note = f"# the packages are for Spark {spark}" if spark else ""
    return "\n".join(
        (
            *([note] if note else []),
            "python3 -m venv environment && . environment/bin/activate",
            f"pip install {_WITH_SCHEMAS if has_schemas else 'penstock'} 'pyarrow>=18' 'pandas>=2.2,<3' pyyaml venv-pack",
            "venv-pack -o environment.tar.gz",
            f"echo {_PROGRAM} > deliver.py",
            f"PYSPARK_PYTHON=./environment/bin/python spark-submit {shlex.join(options)} \\",
            f"  deliver.py {shlex.join(words)}",
        )
    )
