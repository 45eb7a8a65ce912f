"""Environments of their own for contenders of others: pinned packages, installed once under `build/bench`."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

BUILD = Path(__file__).resolve().parent.parent / "build" / "bench"
INSTALL_S_MAX = 300.0
PROJECT = "project"

PACKAGES = {
    "boto3": ("boto3==1.44.5", "pyarrow==26.0.1", "cbor2==6.2.1", "aws-kinesis-agg==1.2.3"),
    "async-kinesis": ("async-kinesis==3.0.1",),
    "aiokpl": ("aiokpl==0.2.0",),
    "native-aws-kcl-py": ("native-aws-kcl-py==0.1.1",),
    "plots": ("matplotlib==3.11.2",),
}
"""What each environment has. The project's own has Penstock, and boto3, pyspark and moto as it uses them."""

_VERSIONS = (
    "import importlib.metadata as m, json, sys; print(json.dumps([m.version(n) for n in sys.argv[1:]]))"
)


class Unavailable(Exception):  # noqa: N818 - named for what happened
    """A contender cannot run here; the text says why."""


def python_of(name: str) -> str:
    """Return the interpreter of an environment, which is made if it is not there.

    Raises:
        Unavailable: It cannot be installed.
    """
    if name == PROJECT:
        return sys.executable
    folder = BUILD / "environments" / name
    python, ready = folder / "bin" / "python", folder / "installed.json"
    if not ready.exists() or json.loads(ready.read_text()) != list(PACKAGES[name]):
        print(f"  installing {', '.join(PACKAGES[name])}", flush=True)
        install = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        try:
            for command in (
                [sys.executable, "-m", "venv", "--clear", str(folder)],
                [*install, *PACKAGES[name]],
            ):
                subprocess.run(command, check=True, capture_output=True, timeout=INSTALL_S_MAX)
        except (subprocess.SubprocessError, OSError) as error:
            raise Unavailable(f"{', '.join(PACKAGES[name])} could not be installed: {error}") from error
        ready.write_text(json.dumps(PACKAGES[name]))
    return str(python)


def versions(name: str, packages: tuple[str, ...]) -> str:
    """Return packages with their versions, as an environment has them."""
    command = [python_of(name), "-c", _VERSIONS, *packages]
    found = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    return ", ".join(f"{package} {version}" for package, version in zip(packages, found, strict=True))
