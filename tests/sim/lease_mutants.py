"""Planted bugs for the model of the lease protocol: which it cannot see, and why."""

from __future__ import annotations

from typing import Final

_RECORDS: Final = "the model has no single records between two checkpoints, no aggregates and no dead letters"
_LOSSES: Final = "the model has no retention, and reports nothing"
_POLICY: Final = "it concerns which worker takes a lease and when, which the model leaves free"
_PACE: Final = "it concerns how often a worker calls"
_STARTS: Final = "the model has no starting positions"
_LIVENESS: Final = "each event is allowed; the fault is an event that never comes"

UNSEEN: Final = {
    "the tip is not noted": _LOSSES,
    "the tip is noted while records wait": _LOSSES,
    "a missing record is never a loss": _LOSSES,
    "a missing record is always a loss": _LOSSES,
    "neighbours go to the dead letters": _RECORDS,
    "the place inside an aggregate is forgotten": _RECORDS,
    "the rest of an aggregate is skipped": _RECORDS,
    "the first record again": _RECORDS,
    "numbers compared as text": _RECORDS,
    "anybody's term is honoured": _POLICY,
    "free leases are left to full watchers": _POLICY,
    "who has gone counts as long as a lease names it": _POLICY,
    "the table is watched without a pause": _PACE,
    "a watch that failed is repeated at once": _PACE,
    "retries without a pause": _PACE,
    "renewal as rare as expiry": _PACE,
    "a lost lease wakes its reader for ever": _PACE,
    "a refused renewal is a loss": "a worker may give up a lease at any time; nothing is unsafe about it",
    "children at LATEST": _STARTS,
    "missing shards at LATEST": _STARTS,
    "end never written": _LIVENESS,
    "held but not read": _LIVENESS,
    "holes are not looked for": _LIVENESS,
    "wall clock for ages": _LIVENESS,
    "silence": _LIVENESS,
}
"""The reason by the name of the bug."""

LONGER: Final = {"checkpoint before the work": 5}
"""Other seeds than the bugs' own: those have a second process under the name of a living one before the bug shows."""
