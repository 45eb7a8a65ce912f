"""The code blocks of a page, in order, without those that say that no test runs them."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parent.parent
_BLOCK = re.compile(r"^```\w*\n(?P<text>.*?)^```$", re.MULTILINE | re.DOTALL)
_MARK = re.compile(r"^<!-- no test runs this block: .+ -->$")


def run_blocks(page: str) -> list[str]:
    """Return the blocks of a page that a test has to run.

    The others are marked: a comment before such a block says that no test runs it, and why.
    """
    text = (ROOT / page).read_text(encoding="utf-8")
    return [
        match["text"]
        for match in _BLOCK.finditer(text)
        if _MARK.match(text[: match.start()].rstrip().rpartition("\n")[2]) is None
    ]


def shows(said: str, expected: str) -> bool:
    """Return whether what was printed has the lines of a text block in this order; `...` stands for anything."""
    pattern = re.escape(expected.strip()).replace(re.escape("..."), "(?s:.*?)")
    return re.search(pattern, said) is not None
