"""Find an installed Python by its version.

`python tools/find_python.py 3.12` prints the path of a Python 3.12: from PATH, or one that pyenv or uv has installed. Without one
it says so and ends with status 1.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path


def candidates(version: str) -> Iterator[Path]:
    """Yield the places of such a Python; the one on PATH may be a shim that only ends with an error."""
    found = shutil.which(f"python{version}")
    if found is not None:
        yield Path(found)
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv"))
    uv = Path(os.environ.get("UV_PYTHON_INSTALL_DIR", Path.home() / ".local" / "share" / "uv" / "python"))
    for pattern in (f"{pyenv}/versions/{version}.*", f"{uv}/cpython-{version}.*"):
        folder = Path(pattern)
        yield from sorted(folder.parent.glob(f"{folder.name}/bin/python{version}"))


def main() -> int:
    version = sys.argv[1]
    for python in candidates(version):
        answer = subprocess.run([python, "--version"], capture_output=True, text=True, check=False)
        if answer.returncode == 0 and answer.stdout.startswith(f"Python {version}."):
            print(python)
            return 0
    print(f"Python {version} is not on this machine: nothing is tested with it", file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main())
