"""The search of the built site, asked as a browser asks it."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Iterable
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
SITE = ROOT / "build" / "site"


def search(queries: Iterable[str]) -> dict[str, list[list[str]]]:
    """Return for each query the articles that are found, best first; each is a list of its sections' locations."""
    if not (SITE / "search").is_dir():
        pytest.fail("the site is not built: run `make site`")
    if shutil.which("node") is None:
        pytest.skip("the theme's search runs in node, which is not here")
    said = subprocess.run(
        ["node", str(ROOT / "tools" / "site_search.cjs"), str(SITE), *queries],
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    return json.loads(said.stdout)
