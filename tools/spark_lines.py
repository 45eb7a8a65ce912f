"""Create a virtual environment with one version of Spark.

`python tools/spark_lines.py FOLDER VERSION` installs Penstock there with everything that its tests need, at the newest versions, and
`pyspark==VERSION` (`4.0.2`, or `4.1.*` for the newest of a line). The environment has the Python that runs this; it is rebuilt
when the versions or the Python change.
"""

from __future__ import annotations

import argparse
import platform
import subprocess
import sys
import venv
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
DISTRIBUTIONS = ("local", "simulator", "examples/demonstration")
"""Folders of the distributions that are installed beside Penstock's own."""


def install(folder: Path, version: str) -> None:
    """Rebuild the environment unless it is the same already."""
    stamp = folder / ".spark"
    projects = [(ROOT / folder / "pyproject.toml").read_text() for folder in (".", *DISTRIBUTIONS)]
    wanted = "\n".join([f"pyspark {version}, Python {platform.python_version()}", *projects])
    if stamp.exists() and stamp.read_text() == wanted:
        return
    venv.create(folder, with_pip=True, clear=True)
    pip = [str(folder / "bin" / "python"), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    # The library first: pip of Python 3.11 looks for the other distributions' requirements on PyPI before it reads the rest.
    folders = [f"{ROOT}[dev]", *(str(ROOT / folder) for folder in DISTRIBUTIONS)]
    editable = [word for folder in folders for word in ("--editable", folder)]
    subprocess.run([*pip, f"pyspark=={version}", *editable], check=True)
    stamp.write_text(wanted)


def main() -> int:
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("folder", type=Path)
    arguments.add_argument("version")
    given = arguments.parse_args()
    print(f"Spark {given.version}, Python {platform.python_version()} in {given.folder}", flush=True)
    install(given.folder, given.version)
    return 0


if __name__ == "__main__":
    sys.exit(main())
