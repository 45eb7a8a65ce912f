"""docs/conformance.md: its table has the kit's promises, and its test runs as it is printed."""

from __future__ import annotations

import subprocess
import sys

from docs_blocks import ROOT, run_blocks
from penstock.testing.stream_source.promises import PROMISES

PAGE = "docs/conformance.md"


def test_the_table_has_every_promise_in_order():
    text = (ROOT / PAGE).read_text(encoding="utf-8")
    rows = [line for line in text.splitlines() if line.startswith("| **")]
    assert rows == [
        f"| **{each.name}**: {each.text} | {each.consequence} | {each.how} |" for each in PROMISES
    ]


def test_the_test_of_the_page_passes(tmp_path):
    program, *_ = run_blocks(PAGE)
    (tmp_path / "test_lines.py").write_text(program)
    (tmp_path / "my_source.py").write_text((ROOT / "tests" / "lines_source.py").read_text())
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-W", "error", "."],
        capture_output=True,
        text=True,
        timeout=240,
        cwd=tmp_path,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"{len(PROMISES)} passed" in done.stdout
