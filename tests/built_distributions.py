"""The distributions as a release builds them, and empty environments to install them into."""

from __future__ import annotations

import os
import shutil
import subprocess
import venv
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[1]
FOLDERS = {"penstock": ROOT, "penstock_local": ROOT / "local"}
BUILT_AT = "1764547200"
"""SOURCE_DATE_EPOCH of the builds; a release takes the time of its commit."""


class Built(NamedTuple):
    """The two files of a distribution."""

    wheel: Path
    sdist: Path


def run(*command: object, **settings: object) -> str:
    environ = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("AWS_", "PIP_USER", "PYTHON"))
    }
    settings = {"env": environ, "timeout": 280, **settings}
    done = subprocess.run(
        [str(word) for word in command], capture_output=True, text=True, check=False, **settings
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def new_environment(folder: Path, *packages: object) -> Path:
    """Return the Python of a new environment that has the packages."""
    venv.create(folder, with_pip=True)
    python = folder / "bin" / "python"
    run(python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *packages)
    return python


def build(builder: Path, name: str, folder: Path) -> Built:
    source = folder / "source"
    shutil.copytree(FOLDERS[name], source, ignore=left_out)
    environ = {**os.environ, "SOURCE_DATE_EPOCH": BUILT_AT}
    run(builder, "-m", "hatchling", "build", "-d", folder / "dist", cwd=source, env=environ)
    (wheel,) = (folder / "dist").glob("*.whl")
    (sdist,) = (folder / "dist").glob("*.tar.gz")
    return Built(wheel, sdist)


def left_out(_folder: str, names: list[str]) -> list[str]:
    """Name what a fresh clone does not have, and what no distribution takes."""
    return [
        name
        for name in names
        if name.startswith((".venv", ".git", "."))
        or name in ("build", "dist", "artifacts", "tests", "docs", "bench", "node_modules", "__pycache__")
    ]
