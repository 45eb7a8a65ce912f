"""The model and the code have the same writes, under names that docs/protocol.md pairs."""

from __future__ import annotations

import re
from pathlib import Path
from typing import get_args

from penstock.core.leases import lease_writes

ROOT = Path(__file__).parents[2]
MODULE = (ROOT / "model" / "Leases.tla").read_text()
PAGE = (ROOT / "docs" / "protocol.md").read_text()


def section(title: str) -> str:
    return PAGE.partition(f"\n## {title}\n")[2].partition("\n## ")[0]


def actions_of(text: str) -> set[str]:
    """Names in code spans that begin a row of a table."""
    rows = re.findall(r"^\| (`[^|]+) \|", text, re.MULTILINE)
    return {name for row in rows for name in re.findall(r"`(\w+)`", row)}


def test_each_write_of_the_code_names_its_action() -> None:
    classes = {each for union in get_args(lease_writes.LeaseWrite) for each in get_args(union) or (union,)}
    named = {}
    for each in classes:
        found = re.search(r"^Model: (.+)\.$", str(each.__doc__).replace("\n    ", "\n"), re.MULTILINE)
        assert found, f"{each.__name__} does not name its action in the model"
        named[each.__name__] = found[1]
    for write, text in named.items():
        actions = actions_of(section("The actions"))
        if "Batches.tla" in text:
            actions |= actions_of(section("Batches"))
        for action in re.findall(r"`(\w+)`", text):
            assert action in actions, f"{write}: {action}"


def test_each_action_of_the_model_is_on_the_page() -> None:
    blocks = ("JavaStep(w, s)", "WorkerStep(w, s)", "Next")
    steps = "\n".join(MODULE.partition(f"\n{name} ==\n")[2].partition("\n\n")[0] for name in blocks)
    actions = set(re.findall(r"\b([A-Z]\w+)\(w(?:, s)?(?:, c)?\)", steps)) | {"Arrive"}
    actions -= {"WorkerStep", "JavaStep"}
    assert len(actions) > 20
    assert actions <= actions_of(section("The actions"))
