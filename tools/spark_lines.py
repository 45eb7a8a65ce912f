"""Create a virtual environment with another version of Spark over the one of the Python that runs this.

`.venv/bin/python tools/spark_lines.py FOLDER VERSION` installs there only `pyspark==VERSION` (`4.0.2`, or `4.1.*` for the newest of a
line) and what it requires; all other packages are those of `.venv`. The environment is rebuilt when the version, the Python or
`.venv`'s place changes.
"""

from __future__ import annotations

import argparse
import platform
import subprocess
import sys
import sysconfig
import venv
from pathlib import Path


def install(folder: Path, version: str) -> None:
    """Rebuild the environment unless it is the same already."""
    below = sysconfig.get_path("purelib")
    stamp = folder / ".spark"
    wanted = f"pyspark {version}, Python {platform.python_version()}, over {below}"
    if stamp.exists() and stamp.read_text() == wanted:
        return
    venv.create(folder, clear=True)
    python = str(folder / "bin" / "python")
    pip = [
        sys.executable,
        "-m",
        "pip",
        "--python",
        python,
        "install",
        "--quiet",
        "--disable-pip-version-check",
    ]
    subprocess.run([*pip, f"pyspark=={version}"], check=True)
    # After pip, which would take .venv's own pyspark for this environment's. Editable installs are .pth files there.
    own = subprocess.check_output(
        [python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"], text=True
    )
    Path(own.strip(), "below.pth").write_text(f"import site; site.addsitedir({below!r})\n")
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
