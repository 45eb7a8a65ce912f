"""The code blocks of a page, in order: those that a test runs, and those that say that no test runs them."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parent.parent
_BLOCK = re.compile(r"^```(?P<language>\w*)\n(?P<text>.*?)^```$", re.MULTILINE | re.DOTALL)
_MARK = re.compile(r"^<!-- no test runs this block: .+ -->$")
_PAGE_MARK = re.compile(r"^<!-- no test runs the programs of this page: .+ -->$", re.MULTILINE)
_PROGRAMS = ("", "python", "sql", "console")
"""Languages of what a reader runs. A block without a language is for a shell, or shows what a program prints."""


@dataclass(frozen=True)
class Block:
    """One block of a page.

    Args:
        language: As the page names it.
        text: Without the fences.
        is_run: No mark says that no test runs it. The mark is a comment before the block, or one for the page, and says why.
    """

    language: str
    text: str
    is_run: bool

    @property
    def is_program(self) -> bool:
        """Whether a reader runs it."""
        return self.language in _PROGRAMS


def blocks(page: str) -> list[Block]:
    """Return all blocks of a page."""
    text = (ROOT / page).read_text(encoding="utf-8")
    is_page_run = _PAGE_MARK.search(text) is None
    return [
        Block(
            match["language"],
            match["text"],
            is_page_run and _MARK.match(text[: match.start()].rstrip().rpartition("\n")[2]) is None,
        )
        for match in _BLOCK.finditer(text)
    ]


def run_blocks(page: str) -> list[str]:
    """Return the blocks of a page that a test has to run."""
    return [block.text for block in blocks(page) if block.is_run]


def shows(said: str, expected: str) -> bool:
    """Return whether what was printed has the lines of a text block in this order; `...` stands for anything."""
    pattern = re.escape(expected.strip()).replace(re.escape("..."), "(?s:.*?)")
    return re.search(pattern, said) is not None
