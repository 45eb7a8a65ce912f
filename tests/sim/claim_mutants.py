"""Planted bugs of queries for the traces of `model/TraceBatches.tla`: those that concern claims or batches, each with a seed."""

from __future__ import annotations

from typing import Final

CLAIM_MUTANTS: Final = {
    "the last claim stands": 9,
    "a take clears the claims": 10,
    "a promotion is not fenced by its batch": 222,
    "a claim without being the reader": 50,
    "a claim does not look at the checkpoint": 18,
    "a replay reads on to the tip": 2,
    "a refused claim is taken for one's own": 50,
    "rows of a lost lease count": 50,
    "the next batch starts at the checkpoint": 0,
    "tasks do not know the claim that stands": 0,
    "a restored location is not noticed": 76,
    "a second driver finds its batch empty": 384,
    "rows that were left unread are offered again": 30,
    "that there is nothing is not claimed": 3937,
    "who comes back looks at no checkpoint": 2,
    "what was given back is forgotten": 171,
}
"""Seeds by the name of the bug: of histories that have nothing that the model leaves out before the bug shows."""

UNSEEN: Final = {
    "the promotion of a quiet shard is dropped": "a checkpoint that is never written breaks liveness, and a history ends anyway",
    "what was claimed before a restore is another driver's": "the query ends with an error, and its history is a beginning of a right one",
    "a shard ends without its children": "TraceBatches.tla has no End: it is a rule of Leases.tla",
}
"""Planted bugs that break a rule of the model and whose histories are right all the same, each with the reason."""
