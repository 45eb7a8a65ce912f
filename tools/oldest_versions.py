"""Create a virtual environment with the oldest versions that pyproject.toml allows.

`python tools/oldest_versions.py FOLDER` installs Penstock there with every dependency at its lower bound, also those of the extras
`spark` (without pyspark) and `cli` and of the embedded server, and the newest versions of the test tools. If one of them requires more
than Penstock itself, Penstock's own bound counts. Tests that need the extra's version are skipped, with the reason.
`python tools/oldest_versions.py --list` prints the versions. The ordinary `.venv` is the other end: `make setup` installs
the newest versions.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import tomllib
import venv
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
EXTRAS = ("spark", "cli")
DISTRIBUTIONS = (".", "local", "simulator")
WITHOUT = frozenset({"pyspark"})
"""The tests that run here start no Spark; pyspark alone is 400 MB."""
TEST_TOOLS = ("coverage", "hypothesis", "pytest", "pytest-cov", "pytest-timeout", "pytest-xdist")
REQUIREMENT = re.compile(r"(?P<name>[A-Za-z0-9._-]+)(?P<extras>\[[^]]*\])?(?P<rest>.*)")
LOWER_BOUND = re.compile(r">=\s*([0-9][0-9.]*)")


def oldest(requirement: str) -> str:
    """Return a requirement with its lower bound as the only version: `boto3>=1.40` becomes `boto3==1.40`, which is 1.40.0."""
    parts = REQUIREMENT.fullmatch(requirement.strip())
    bound = LOWER_BOUND.search(parts["rest"]) if parts else None
    if parts is None or bound is None:
        raise SystemExit(f"pyproject.toml: '{requirement}' has no lower bound")
    return f"{parts['name']}{parts['extras'] or ''}=={bound[1]}"


def oldest_versions(root: Path = ROOT) -> list[str]:
    """Return the requirements to install: every dependency of Penstock, its extras and the server at the lower bound."""
    wanted: list[str] = []
    for folder in DISTRIBUTIONS:
        project = tomllib.loads((root / folder / "pyproject.toml").read_text())["project"]
        wanted += [each for each in project["dependencies"] if not each.startswith("penstock")]
        for extra in EXTRAS:
            wanted += project.get("optional-dependencies", {}).get(extra, [])
    found: dict[str, str] = {}
    for each in wanted:
        pinned = oldest(each)
        found.setdefault(REQUIREMENT.fullmatch(pinned)["name"], pinned)
    return [pinned for name, pinned in found.items() if name not in WITHOUT]


def install(folder: Path, versions: list[str]) -> None:
    """Rebuild the environment unless it has the same versions already."""
    stamp = folder / ".oldest"
    expected = "\n".join([*versions, *TEST_TOOLS, ""])
    if stamp.exists() and stamp.read_text() == expected:
        return
    venv.create(folder, with_pip=True, clear=True)
    pip = [str(folder / "bin" / "python"), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    subprocess.run([*pip, *versions, *TEST_TOOLS], check=True)
    editable = [word for each in DISTRIBUTIONS for word in ("--editable", str(ROOT / each))]
    subprocess.run([*pip, "--no-deps", *editable], check=True)
    stamp.write_text(expected)


def main() -> int:
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("folder", nargs="?", type=Path)
    arguments.add_argument("--list", action="store_true", help="print the versions only")
    given = arguments.parse_args()
    versions = oldest_versions()
    if given.list:
        print("\n".join(versions))
        return 0
    if given.folder is None:
        arguments.error("name the folder of the environment")
    install(given.folder, versions)
    return 0


if __name__ == "__main__":
    sys.exit(main())
