"""Measure how much of the public interface has types that every type checker reads the same way.

    python tools/public_types.py             the share, and the names without a clear type; exit 1 if there is one
    python tools/public_types.py --all       every exported symbol of the package, private modules included

`basedpyright --verifytypes` looks at all modules without an underscore. Public are the names in `__all__` of the modules that
docs/stability.md lists, with the members of their classes; only these count here. Without basedpyright nothing is checked.
"""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = {"penstock": ROOT / "src", "penstock_local": ROOT / "local" / "src"}
_MODULE = re.compile(r"^\| `(penstock[\w.]*)` \|", re.MULTILINE)


def public_modules() -> list[str]:
    """Return the modules that docs/stability.md lists."""
    return _MODULE.findall((ROOT / "docs" / "stability.md").read_text(encoding="utf-8"))


def homes() -> set[str]:
    """Return the public names as they are called where they are defined."""
    found = set()
    for module_name in public_modules():
        module = importlib.import_module(module_name)
        names = getattr(module, "__all__", [name for name in vars(module) if not name.startswith("_")])
        for name in names:
            value = getattr(module, name)
            home = f"{getattr(value, '__module__', module_name)}.{getattr(value, '__qualname__', name)}"
            found.add(home if home.startswith("penstock") else f"{module_name}.{name}")
    return found


def checker() -> str | None:
    """Return the path of basedpyright, in this environment or on the path; None if it is not installed."""
    return shutil.which(
        "basedpyright", path=f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}"
    )


def symbols_of(package: str) -> list[dict[str, Any]]:
    """Return what the type checker says about each exported symbol of a package."""
    msgspec = importlib.util.find_spec("msgspec")
    assert msgspec is not None
    assert msgspec.origin is not None
    paths = [*(str(path) for path in PACKAGES.values()), str(Path(msgspec.origin).parent.parent)]
    done = subprocess.run(
        [
            str(checker()),
            "--pythonpath",
            sys.executable,
            "--verifytypes",
            package,
            "--ignoreexternal",
            "--outputjson",
        ],
        capture_output=True,
        text=True,
        check=False,
        timeout=600,
        env={
            **os.environ,
            "PYTHONPATH": os.pathsep.join(paths),
        },
    )
    symbols = json.loads(done.stdout)["typeCompleteness"]["symbols"]
    if not symbols:
        raise SystemExit(f"basedpyright finds nothing in {package}: {done.stdout[:2000]}")
    return [each for each in symbols if each["isExported"]]


def unclear(symbol: dict[str, Any]) -> bool:
    """Return whether a symbol has no type, or one that is only inferred."""
    return not symbol["isTypeKnown"] or bool(symbol["isTypeAmbiguous"])


def main() -> int:
    """Print the share; return 1 if a name has no clear type."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--all", action="store_true", help="count every exported symbol")
    is_all = parser.parse_args().all
    if checker() is None:
        print("public types: not checked, basedpyright is not installed (make setup)")
        return 0
    public = homes()
    status = 0
    for package in PACKAGES:
        counted = [
            each
            for each in symbols_of(package)
            if is_all or each["name"] in public or any(each["name"].startswith(f"{home}.") for home in public)
        ]
        bad = [each for each in counted if unclear(each)]
        print(f"{package}: {len(counted) - len(bad)} of {len(counted)} symbols have clear types")
        for each in bad:
            reasons = "; ".join(" ".join(said["message"].split()) for said in each["diagnostics"])
            print(f"  {each['name']}: {reasons or 'through the type of a member'}", file=sys.stderr)
        status |= bool(bad)
    return status


if __name__ == "__main__":
    sys.exit(main())
