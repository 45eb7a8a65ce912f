"""Measure speed, CPU and memory beside peers: `make bench`, or `make bench-quick` for a few rows with one turn each.

    python bench/run.py                    all rows; writes docs/performance.{json,md,png} and README's section
    python bench/run.py --quick            a few rows; writes build/bench/quick.{json,md,png}
    python bench/run.py ROW [ROW ...]      these rows; writes build/bench/some.{json,md,png}
    python bench/run.py --update ROW [...] measure these rows again; the others stay in docs/performance.{json,md,png} as they are
    python bench/run.py --list

Each row runs its contenders in turn (A B A B ...), each time in a fresh process, against one embedded server in a process of
its own. Wall and CPU seconds are those of the whole tree of processes in the measured part; the peak of memory is that of
the tree in its whole life, and shared pages count once.
"""

from __future__ import annotations

import argparse
import compileall
import datetime as dt
import json
import os
import platform
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import report
from environments import BUILD, Unavailable, python_of
from harness import RowRun
from rows import ROWS
from table import Row

PROJECT = Path(__file__).resolve().parent.parent
DOCS = PROJECT / "docs"
TOTAL_S_MAX = 20.0 * 60.0
GUEST_S = 90.0  # of a contender that is on no registry, if an option names it, in a row


def machine() -> dict[str, Any]:
    """Return the machine and versions of the measurement."""
    facts = dict(line.split(":", 1) for line in Path("/proc/cpuinfo").read_text().splitlines() if ":" in line)
    memory_kb = int(Path("/proc/meminfo").read_text().split()[1])
    java = subprocess.run(["java", "-version"], capture_output=True, text=True, check=False).stderr
    return {
        "date": dt.datetime.now(dt.UTC).date().isoformat(),
        "processor": next((v.strip() for k, v in facts.items() if k.startswith("model name")), "unknown"),
        "cores": len(os.sched_getaffinity(0)),
        "memory_gb": round(memory_kb / 2**20),
        "system": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
        "java": (java.splitlines() or ["none"])[0],
        "load_before": round(os.getloadavg()[0], 1),
    }


def count_guests(rows: list[Row]) -> int:
    """Count the contenders that take part because an environment variable names them."""
    needs = [contender.needs for row in rows for contender in row.contenders if contender.needs is not None]
    return sum(variable in os.environ for variable, _ in needs)


def measure(rows: list[Row], *, is_quick: bool, patience: float) -> dict[str, Any]:
    """Run rows one after the other, each at least once; how many turns they have depends on the time that is left.

    Rows without Spark run first: they are short, and a slow session of Spark does not take their time.
    """
    measured, found = machine(), []
    began_s = time.monotonic()
    end_s = began_s + patience * (TOTAL_S_MAX + GUEST_S * count_guests(rows))
    rows = sorted(rows, key=lambda row: row.starts_spark)
    for place, row in enumerate(rows):
        left_s = end_s - time.monotonic()
        if left_s <= 0:
            print(f"{row.key}: left out, the time is over", flush=True)
            continue
        share = row.budget_s / sum(each.budget_s for each in rows[place:])
        print(f"{row.key}: {row.title}", flush=True)
        row_began_s = time.monotonic()
        budget_s = min(patience * row.budget_s, share * left_s)
        run = RowRun(row, 1 if is_quick else row.turns, budget_s, patience)
        try:
            run.run()
        except Exception as error:  # noqa: BLE001 - whatever one row does, the others have their figures
            print(f"    {error!r}", flush=True)
        found.append(run.results())
        print(f"    {time.monotonic() - row_began_s:.0f} s", flush=True)
    measured["minutes"] = round((time.monotonic() - began_s) / 60, 1)
    measured["load_after"] = round(os.getloadavg()[0], 1)
    return {"measured": measured, "rows": found}


def draw(results: Path, picture: Path) -> None:
    """Draw the rows with matplotlib, in an environment of its own."""
    try:
        python = python_of("plots")
    except Unavailable as error:
        print(f"no picture: {error}", file=sys.stderr)
        return
    subprocess.run(
        [python, str(Path(__file__).with_name("plots.py")), str(results), str(picture)], check=False
    )


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("rows", nargs="*", metavar="ROW", help="names of rows")
    parser.add_argument("--quick", action="store_true", help="a few rows, one turn each")
    parser.add_argument(
        "--patience",
        type=float,
        default=1.0,
        help="multiply all time limits, for a machine that is busy or slow",
    )
    parser.add_argument(
        "--update", action="store_true", help="put these rows into docs/performance.json, beside the others"
    )
    parser.add_argument("--list", action="store_true", help="list the rows")
    args = parser.parse_args()
    if args.list:
        for row in ROWS:
            print(f"{row.key:<20} {row.title}")
        return 0
    if unknown := set(args.rows) - {row.key for row in ROWS}:
        parser.error(f"unknown rows: {', '.join(sorted(unknown))}")
    if args.update and not args.rows:
        parser.error("--update needs the names of rows")
    BUILD.mkdir(parents=True, exist_ok=True)
    # Packages from a registry are compiled at installation; without write access Python would compile them in each new process.
    compileall.compile_dir(PROJECT / "src", quiet=1)
    if args.rows:
        name, rows = "some", [row for row in ROWS if row.key in args.rows]
    elif args.quick:
        name, rows = "quick", [row for row in ROWS if row.is_quick]
    else:
        name, rows = "", list(ROWS)
    results = measure(rows, is_quick=args.quick, patience=args.patience)
    if args.update:
        name, known = "", json.loads((DOCS / "performance.json").read_text())
        results = report.updated(known, results)
    base = BUILD / name if name else DOCS / "performance"
    base.with_suffix(".json").write_text(json.dumps(results, indent=1) + "\n")
    draw(base.with_suffix(".json"), base.with_suffix(".png"))
    if name:
        base.with_suffix(".md").write_text(report.page(results))
    else:
        for path, text in report.documents(DOCS.parent).items():
            path.write_text(text)
    print(report.summary(results))
    print(f"in {base}.json, .md and .png")
    return 0


if __name__ == "__main__":
    sys.exit(main())
