"""The model of the lease protocol: its promises hold, and each of its rules is needed."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import NamedTuple

import pytest

from model_checking import MODEL, checked


def test_every_promise_holds_on_small_bounds() -> None:
    result = checked(MODEL, "small")
    assert result["broken"] is None
    states = result["states"]
    assert isinstance(states, int)
    assert states > 2_000  # a few more or less: which of several equal states is met first differs


class Rule(NamedTuple):
    sentence: str
    text: str
    without: str
    broken: str
    config: str = "small"


class Defect(NamedTuple):
    """A rule of others, in a module of its own that changes the model."""

    config: str
    broken: str
    steps: int
    """States of the shortest history that breaks the promise; one or two more may be found first."""


DEFECTS = (
    Defect("deposed-leader", "OneReader", 6),
    Defect("hung-handover", "NothingStuck", 5),
    Defect("unanswered-request", "NothingStuck", 4),
    Defect("closed-parents", "ChildrenAfterParents", 6),
)

RULES = (
    Rule(
        "a live lease is not taken without a request",
        "Expired(s) == Reader(row[s]) # None => ~held[Reader(row[s])][s].may",
        "Expired(s) == TRUE",
        "OneReader",
    ),
    Rule(
        "a take needs the counter that was read: one that arrives late does not take the lease from its reader",
        '[] m.kind = "Take" -> r.exists /\\ r.counter = m.counter',
        '[] m.kind = "Take" -> r.exists',
        "OneReader",
        config="plain",  # `small` takes counters that differ for the same, which needs this rule
    ),
    Rule(
        "a take whose answer is lost is not a lease",
        "after \\in AfterSilence(w, h, m.kind)",
        'after \\in IF m.kind = "Take" THEN {success} ELSE AfterSilence(w, h, m.kind)',
        "OneReader",
    ),
    Rule(
        "the reader stops before the lease is released",
        '!.may = @ /\\ kind # "Release"]',
        "!.may = @]",
        "OneReader",
        config="three",  # a request and a lost answer
    ),
    Rule(
        "the children have leases before the end of their parent is written",
        '  /\\ \\A c \\in Children(s) : row[c].exists\n  /\\ Send(Write("End"',
        '  /\\ Send(Write("End"',
        "NothingStuck",
    ),
    Rule(
        "the end of a shard is written when all of it is delivered",
        '  /\\ Reading(w, s) /\\ h.done = Records\n  /\\ \\A c \\in Children(s) : row[c].exists\n  /\\ Send(Write("End"',
        '  /\\ Reading(w, s)\n  /\\ \\A c \\in Children(s) : row[c].exists\n  /\\ Send(Write("End"',
        "NothingSkipped",
    ),
    Rule(
        "a child waits for its parents",
        "  /\\ ~WaitsForParents(s)\n  /\\ held' = [held EXCEPT ![w][s].done = @ + 1]\n",
        "  /\\ held' = [held EXCEPT ![w][s].done = @ + 1]\n",
        "ChildrenAfterParents",
    ),
    Rule(
        "a late checkpoint only moves forwards",
        "r.exists /\\ r.at < m.at /\\ m.at < ShardEnd",
        "r.exists /\\ m.at < ShardEnd",
        "NeverBack",
    ),
    Rule(
        "children are created only while the parent's lease is surely held",
        "  /\\ h.may \\/ w \\in Java\n",
        "",
        "NeverAgain",
    ),
    Rule(
        "a live lease is not taken without a request, or two workers take it from each other for ever",
        "Expired(s) == Reader(row[s]) # None => ~held[Reader(row[s])][s].may",
        "Expired(s) == TRUE",
        "EveryShardIsRead",
        config="live",
    ),
    Rule(
        "a worker reads the row after a lost answer",
        "Release(w, s) \\/ Resolve(w, s) \\/",
        "Release(w, s) \\/",
        "EveryShardIsRead",
        config="live",
    ),
)  # fmt: skip


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.sentence)
def test_a_promise_breaks_without_the_rule(rule: Rule, tmp_path: Path) -> None:
    for path in (*MODEL.glob("*.tla"), MODEL / f"{rule.config}.cfg"):
        shutil.copy(path, tmp_path)
    if rule.config == "live":  # one shard is enough, and much faster
        config = tmp_path / "live.cfg"
        config.write_text(config.read_text().replace("Shards = {p, q, r, m}", "Shards = {p}"))
    module = tmp_path / "Leases.tla"
    text = module.read_text()
    assert rule.text in text
    module.write_text(text.replace(rule.text, rule.without, 1))
    result = checked(tmp_path, rule.config)
    assert result["broken"] == rule.broken


@pytest.mark.parametrize("defect", DEFECTS, ids=lambda defect: defect.config)
def test_a_rule_of_others_breaks_a_promise(defect: Defect) -> None:
    result = checked(MODEL, defect.config)
    assert result["broken"] == defect.broken
    history = str(result["output"])
    steps = history.count("\nState ")
    assert defect.steps <= steps <= defect.steps + 2, history


PAGE = (MODEL.parent / "docs" / "protocol.md").read_text()


def test_the_page_has_every_rule() -> None:
    rules = [f"- {rule.sentence[0].upper()}{rule.sentence[1:]} (`{rule.broken}`)." for rule in RULES]
    assert "\n".join(rules) + "\n" in PAGE


def test_the_page_has_every_rule_of_others() -> None:
    for defect in DEFECTS:
        assert f"`{defect.config}`" in PAGE
        assert f"`{defect.broken}`" in PAGE
