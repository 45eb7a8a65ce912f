"""The model of a query's batches: its promises hold, and each of its rules is needed."""

from __future__ import annotations

import re
import shutil
from pathlib import Path
from typing import Final, NamedTuple

import pytest

from model.test_leases import RULES as LEASE_RULES
from model_checking import MODEL, checked
from sim.query_mutants import QUERY_MUTANTS


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
        bounds: Constants that are not those of configuration `batches`.
        config: Another configuration, which is taken as it is.
    """

    sentence: str
    text: str
    without: str
    broken: str
    kinds: tuple[str, ...] = ()
    count: int = 1
    bounds: tuple[tuple[str, str], ...] = ()
    config: str = "batches"


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
        '[] plan = "nothing" /\\ t.end = t.start ->',
        '[] plan = "nothing" /\\ t.end # t.start -> tasks\' = rest /\\ Finish(t, t.end)\n'
        '       [] plan = "nothing" /\\ t.end = t.start ->',
        "SameRecords",
        ("attempt", "force"),
        2,
    ),
    Rule(
        "an empty range of a batch is claimed too",
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
        "     ELSE /\\ Unclaimed(d) \\subseteq v.got\n",
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
    Rule(
        "a promotion applies to one claim alone",
        "r.claim.batch = m.batch /\\ r.claim.end = m.end /\\ r.at < m.end\n"
        "              THEN [row EXCEPT ![m.shard].at = m.end]",
        "r.at < r.claim.end\n              THEN [row EXCEPT ![m.shard].at = r.claim.end]",
        "NothingLost",
        ("late",),
        bounds=(("Records", "2"),),
    ),
    Rule(
        "a claim needs the checkpoint that the task read",
        "  /\\ t.forfeits \\/ r.at = t.rowAt\n",
        "",
        "ReadersClaim",
        ("force",),
        bounds=(("Records", "2"),),
    ),
    Rule(
        "a task reads nothing that another worker has passed",
        '[] t.start < r.at -> "nothing"',
        '[] FALSE -> "nothing"',
        "ReadersClaim",
        ("force",),
        bounds=(("Records", "2"),),
    ),
    Rule(
        "a task fails at the claim of another driver",
        "tasks' = rest /\\ Dies(t) /\\ UNCHANGED log\n       [] plan = \"nothing\" -> ",
        "tasks' = rest /\\ Finish(t, t.start)\n       [] plan = \"nothing\" -> ",
        "SameRecords",
        ("start", "attempt"),
        2,
        (("Kept", "0"),),
    ),
    Rule(
        "a claim keeps the ranges of the batches before it",
        "!.claim = [batch |-> t.batch, run |-> t.run, planner |-> t.planner, start |-> t.start, end |-> t.end,\n"
        "               earlier |-> IF r.claim = NoClaim THEN <<>> ELSE Shortened(Past(r.claim), Kept)],",
        "!.claim = [batch |-> t.batch, run |-> t.run, planner |-> t.planner, start |-> t.start, end |-> t.end, earlier |-> <<>>],",
        "SameRecords",
        ("crash", "restore"),
        2,
    ),
    Rule(
        "claims of which the location has no record are found",
        "IsUnknown(entries, claim) == claim # NoClaim /\\ ~Knows(entries, claim)",
        "IsUnknown(entries, claim) == FALSE",
        "NothingSkipped",
        ("crash", "restore"),
        2,
        (("Records", "2"), ("Batches", "3")),
    ),
    Rule(
        "a late checkpoint needs the claim that the driver saw",
        " /\\ Identity(row[s].claim) = v.seen[s]\n",
        "\n",
        "NothingSkipped",
        ("copy", "pause"),
        2,
    ),
    Rule(
        "a driver ends if a lease that it gets was reset after the driver saw the lease's claim",
        " \\/ (settled /\\ IsReset(d, s))",
        "",
        "NothingSkipped",
        ("copy", "release"),
        3,
    ),
    Rule(
        "a driver ends if another claim has replaced the one that its tasks must find",
        "  /\\ s \\in Entry(d).reads /\\ claim # NoClaim\n",
        "  /\\ FALSE\n",
        "SameRecords",
        ("copy", "pause"),
        2,
    ),
    Rule(
        "a shard that was released and comes back goes on where it was released",
        "place == IF wasReleased /\\ ~(v.pos[s] < r.at) THEN v.pos[s]\n               ELSE IF",
        "place == IF",
        "NothingRepeated",
        ("old row", "release"),
        2,
    ),
    Rule(
        "a claim from before the query began is no sign of another driver",
        "  /\\ row[s].claim.batch > drv[d].unknown\n  /\\ Identity(row[s].claim) # drv[d].seen[s]\n",
        "",
        "NoFalseAlarm",
        ("crash", "restore", "force"),
        3,
    ),
    Rule(
        "the end of a batch becomes the checkpoint when no batch follows",
        '  /\\ v.mode = "settled" /\\ s \\in v.held\n  /\\ Knows(',
        "  /\\ FALSE\n  /\\ Knows(",
        "CheckpointsFollow",
        config="batches-promoted",
    ),
)  # fmt: skip


def write_module(folder: Path, rule: Rule) -> None:
    """Write the module without a rule, and the configuration that shows that it is needed."""
    shutil.copy(MODEL / "MCBatches.tla", folder)
    text = (MODEL / "Batches.tla").read_text()
    assert text.count(rule.text) == 1
    (folder / "Batches.tla").write_text(text.replace(rule.text, rule.without))
    if rule.config != "batches":
        shutil.copy(MODEL / f"{rule.config}.cfg", folder)
        return
    kinds = ", ".join(f'"{kind}"' for kind in rule.kinds)
    constants = {"Kinds": f"{{{kinds}}}", "Disturbances": str(rule.count), **dict(rule.bounds)}
    config = (MODEL / "batches.cfg").read_text()
    for name, value in constants.items():
        config, changes = re.subn(rf"^  {name} = .*$", f"  {name} = {value}", config, flags=re.MULTILINE)
        assert changes == 1
    (folder / "batches.cfg").write_text(config)


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.sentence)
def test_a_promise_breaks_without_the_rule(rule: Rule, tmp_path: Path) -> None:
    write_module(tmp_path, rule)
    assert checked(tmp_path, rule.config)["broken"] == rule.broken


PLANTED_BUGS: Final[dict[str, str]] = {
    "the last claim stands": "the first claim of a batch is final",
    "a take clears the claims": "a claim survives every change of owner",
    "a promotion is not fenced by its batch": "a promotion applies to one claim alone",
    "a claim without being the reader": "only the shard's reader claims records",
    "a claim does not look at the checkpoint": "a claim needs the checkpoint that the task read",
    "a replay reads on to the tip": "a repeated task reads to the claimed end",
    "a refused claim is taken for one's own": "a task whose claim was refused takes the end that is claimed",
    "rows of a lost lease count": "rows that were read before the lease was lost do not count",
    "the next batch starts at the checkpoint": "the next batch starts at the claimed end",
    "tasks do not know the claim that stands": "tasks get the claim that the driver saw",
    "a restored location is not noticed": "claims of which the location has no record are found",
    "a second driver finds its batch empty": "a task fails at the claim of another driver",
    "rows that were left unread are offered again": "an end that no action has reached is claimed before the next batch",
    "that there is nothing is not claimed": "an empty range of a batch is claimed too",
    "who comes back looks at no checkpoint": "a task reads nothing that another worker has passed",
    "what was given back is forgotten": "a shard that was released and comes back goes on where it was released",
    "what was claimed before a restore is another driver's": "a claim from before the query began is no sign of another driver",
    "the promotion of a quiet shard is dropped": "the end of a batch becomes the checkpoint when no batch follows",
    "a shard ends without its children": "the children have leases before the end of their parent is written",
}
"""Each planted bug of the simulator's queries that breaks a rule of the model, and the rule. The last one is of `Leases.tla`."""

BEYOND: Final[dict[str, str]] = {
    "a claim of another history counts as one's own": "two shards, three batches and three disturbances: beyond the bounds",
}
"""The planted bugs that concern claims or batches, and that no configuration shows."""

OUTSIDE: Final[dict[str, str]] = {
    "the iterator behind a cut page is kept": "the model has no iterators",
    "the iterator at the last record is kept": "the model has no iterators",
    "one answer at the tip is believed": "the model has no answers of the stream: a read may end anywhere",
    "what was read is read again": "the model has no iterators",
    "every end is believed": "the model has no answers of the stream: a read that ends the shard has all records",
    "one listing without a shard ends it": "the model has no listings",
    "what came later is skipped with an unread batch": "the model has no arrival times",
    "a probe that failed is the last one": "the model has no probes",
    "a batch ends at the first record of an aggregate": "the model has no aggregates",
    "an aggregate that was begun is given again": "the model has no aggregates",
    "a whole aggregate counts as its first record": "the model has no aggregates",
    "a gone record is never a loss": "no record leaves the model's stream",
    "a gone record is always a loss": "no record leaves the model's stream",
    "a task does not know the tip": "no record leaves the model's stream",
    "a vanished shard ends the query": "no shard leaves the model's stream",
    "an older moment on the lease counts": "no record leaves the model's stream",
    "leases of another stream are taken": "the model has one stream",
    "two loads of one query share the shards": "the model has one source in the query",
    "default names are shared in silence": "the model has one application",
    "a run ends where nobody reads on": "the model has no query that ends by itself",
    "the table of the earlier name is forgotten": "the model has one lease table",
}
"""The other planted bugs, and why the model does not have them."""


def test_each_planted_bug_of_a_query_breaks_a_rule_or_lies_outside_the_model() -> None:
    names = [*PLANTED_BUGS, *BEYOND, *OUTSIDE]
    assert len(names) == len(set(names))
    assert set(names) == {mutant.name for mutant in QUERY_MUTANTS}
    assert set(PLANTED_BUGS.values()) <= {rule.sentence for rule in (*RULES, *LEASE_RULES)}


def test_at_least_nineteen_of_twenty_bugs_of_claims_and_batches_break_a_rule() -> None:
    assert len(PLANTED_BUGS) / (len(PLANTED_BUGS) + len(BEYOND)) >= 0.95


def test_the_page_has_every_rule() -> None:
    page = (MODEL.parent / "docs" / "protocol.md").read_text()
    rules = [f"- {rule.sentence[0].upper()}{rule.sentence[1:]} (`{rule.broken}`)." for rule in RULES]
    assert "\n".join(rules) + "\n" in page
