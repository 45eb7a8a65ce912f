"""Every block of docs/testing.md, as a file of its own that pytest or Python runs."""

import subprocess
import sys

import pytest

pytest.importorskip("httptools")

from docs_blocks import run_blocks

BLOCKS = run_blocks("docs/testing.md")


@pytest.mark.parametrize("text", BLOCKS, ids=range(len(BLOCKS)))
def test_a_block_runs(text, tmp_path):
    program = tmp_path / "test_block.py"
    program.write_text(text)
    runner = ["-m", "pytest", "-q", "-p", "no:cacheprovider"] if "def test_" in text else []
    done = subprocess.run(
        [sys.executable, *runner, str(program)],
        capture_output=True,
        text=True,
        timeout=120,
        cwd=tmp_path,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
