"""The README's blocks for a terminal, in their order, against an embedded server, and what the text says that they print.

The two that are parts of a Spark program run in a session: tests/spark/session/test_documented_blocks.py.
"""

from __future__ import annotations

import pytest

from docs_blocks import run_blocks
from readme_terminal import Terminal, run_readme


@pytest.fixture
def terminal(tmp_path):
    made = Terminal(tmp_path)
    yield made
    for program in made.running:
        program.kill()


@pytest.mark.timeout(900)  # longer than the deadlines of its steps: a busy machine gets a second start
def test_the_blocks_show_what_they_say(terminal):
    run_readme(terminal, run_blocks("README.md"))
