"""Print rows of figures with the machine's load, for the benches outside `make bench`."""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Sequence
from typing import Any


def parser_of(description: str | None) -> argparse.ArgumentParser:
    """Return a command line with the option `--json`, described by the first line of a text."""
    parser = argparse.ArgumentParser(description=(description or "").partition("\n")[0])
    parser.add_argument("--json", action="store_true", help="print JSON")
    return parser


def print_rows(rows: Sequence[dict[str, Any]], *, as_json: bool) -> None:
    """Print rows, each with a `name` and figures."""
    load = f"{os.getloadavg()[0]:.1f} on {os.cpu_count()} cores"
    if as_json:
        print(json.dumps({"load": load, "rows": rows}, indent=2))
        return
    print(f"  load of the machine: {load}")
    width = max(len(row["name"]) for row in rows)
    for row in rows:
        figures = [f"{key} {value}" for key, value in row.items() if key != "name"]
        print(", ".join([f"  {row['name']:{width}}", *figures]))
