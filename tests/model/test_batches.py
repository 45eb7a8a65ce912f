"""The model of a query's batches: its promises hold, and each of its rules is needed."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest

MODEL = Path(__file__).parents[2] / "model"


def checked(folder: Path, config: str) -> dict[str, object]:
    command = [sys.executable, MODEL / "check.py", "--json", "--deadline", "500", "--folder", folder, "--config", config]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode in (0, 1), done.stdout + done.stderr
    result: dict[str, object] = json.loads(done.stdout)
    return result


def test_every_promise_holds_on_small_bounds() -> None:
    result = checked(MODEL, "batches")
    assert result["broken"] is None
    states = result["states"]
    assert isinstance(states, int)
    assert states > 5_000


class Rule(NamedTuple):
    """A rule of the protocol.

    Args:
        sentence: The rule.
        text: Where the module has it.
        without: The module without it.
        broken: The promise that breaks.
        kinds: The disturbances of the history that breaks it.
        count: How many of them.
    """

    sentence: str
    text: str
    without: str
    broken: str
    kinds: tuple[str, ...]
    count: int = 1


RULES = (
    Rule(
        "the first claim of a batch is final",
        "  /\\ Identity(r.claim) = t.before\n",
        "",
        "SameRecords",
        ("attempt",),
    ),
    Rule(
        "a claim survives every change of owner",
        "row' = [row EXCEPT ![s].holder = Other]",
        "row' = [row EXCEPT ![s].holder = Other, ![s].claim = NoClaim]",
        "SameRecords",
        ("attempt", "force"),
        2,
    ),
    Rule(
        "only the shard's reader claims records",
        "  /\\ t.forfeits \\/ IsOfQuery(r)\n",
        "",
        "ReadersClaim",
        ("force",),
    ),
    Rule(
        "a repeated task reads to the claimed end",
        'CASE end # Absent -> "to"',
        'CASE end # Absent /\\ IsOfQuery(r) -> "free"\n    [] end # Absent -> "to"',
        "SameRecords",
        ("attempt",),
    ),
    Rule(
        "a task whose claim was refused takes the end that is claimed",
        "tasks' = rest /\\ Finish(t, end)\n       [] plan = \"another\"",
        "tasks' = rest /\\ Finish(t, t.end)\n       [] plan = \"another\"",
        "SameRecords",
        ("attempt",),
    ),
    Rule(
        "rows that were read before the lease was lost do not count",
        '[] plan = "nothing" /\\ ~recreated /\\ t.end = t.start ->',
        '[] plan = "nothing" /\\ t.end # t.start -> tasks\' = rest /\\ Finish(t, t.end)\n'
        '       [] plan = "nothing" /\\ ~recreated /\\ t.end = t.start ->',
        "SameRecords",
        ("attempt", "force"),
        2,
    ),
    Rule(
        "that a batch holds nothing of a shard is claimed too",
        "tasks' = rest \\cup {Ready(t, r, t.start, TRUE)} /\\ UNCHANGED <<log, drv>>",
        "tasks' = rest /\\ Finish(t, t.start)",
        "SameRecords",
        ("attempt", "force"),
        2,
    ),
    Rule(
        "the next batch starts at the claimed end",
        "IF own /\\ ~(r.claim.end < r.at) THEN r.claim.end",
        "IF FALSE THEN r.claim.end",
        "NothingRepeated",
        (),
    ),
    Rule(
        "tasks get the claim that the driver saw",
        "seen |-> drv[d].seen[s], fixes",
        "seen |-> <<0, 0>>, fixes",
        "NoFalseAlarm",
        ("attempt",),
    ),
    Rule(
        "an end that no action has reached is claimed before the next batch",
        "     ELSE /\\ Unclaimed(d) = {}\n",
        "     ELSE /\\ TRUE\n",
        "EndsAreFixed",
        ("unread",),
    ),
    Rule(
        "a claim moves the checkpoint to its batch's start, not to its end",
        "!.at = IF t.forfeits THEN @ ELSE Max(@, t.start)]",
        "!.at = IF t.forfeits THEN @ ELSE Max(@, t.end)]",
        "NothingLost",
        (),
    ),
)  # fmt: skip


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.sentence)
def test_a_promise_breaks_without_the_rule(rule: Rule, tmp_path: Path) -> None:
    for path in MODEL.glob("*Batches.tla"):
        shutil.copy(path, tmp_path)
    kinds = ", ".join(f'"{kind}"' for kind in rule.kinds)
    config = re.sub(r"Kinds = \{.*\}", f"Kinds = {{{kinds}}}", (MODEL / "batches.cfg").read_text())
    config = re.sub(r"Disturbances = \d+", f"Disturbances = {rule.count}", config)
    (tmp_path / "batches.cfg").write_text(config)
    module = tmp_path / "Batches.tla"
    text = module.read_text()
    assert text.count(rule.text) == 1
    module.write_text(text.replace(rule.text, rule.without))
    result = checked(tmp_path, "batches")
    assert result["broken"] == rule.broken


def test_the_page_has_every_rule() -> None:
    page = (MODEL.parent / "docs" / "protocol.md").read_text()
    rules = [f"- {rule.sentence[0].upper()}{rule.sentence[1:]} (`{rule.broken}`)." for rule in RULES]
    assert "\n".join(rules) + "\n" in page
