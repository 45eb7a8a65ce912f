"""The batches that a checkpoint location knows, and which run of the driver planned each.

A number alone does not name a batch. A checkpoint location may be set back to an earlier state, and a copy of it may be used
beside it: then batch 7 is one batch to one line of history and another batch to the other, and both claim under the same
worker id. So an offset keeps, for the batches up to its own, which run of the driver planned them, and a claim keeps who
planned its batch. A run is one life of a driver, with a random name. It plans in one line of history only: a location that
was set back, or copied, is read by a new run.

What nobody knows does not count: offsets and claims of earlier versions do not tell who planned, and there the number
decides alone, as it did then.
"""

from __future__ import annotations

from typing import Final

from msgspec import Struct

from penstock.core.leases.lease import BatchClaim

RUNS_MAX: Final = 32
"""Runs that an offset keeps: a claim that is older than so many starts of its query is known by its number."""


class KnownBatches(Struct, frozen=True):
    """The batches of one line of history.

    Args:
        last: The number of the last one; 0 before the first.
        runs: (number, run), with growing numbers: the run planned this batch and those after it, up to the next entry. Who
            planned the batches before the first entry is not known.
    """

    last: int = 0
    runs: tuple[tuple[int, str], ...] = ()

    def planner_of(self, batch: int) -> str | None:
        """Return the run that planned a batch; None where that is not known."""
        return next((run for first, run in reversed(self.runs) if first <= batch), None)

    def has(self, claim: BatchClaim) -> bool:
        """Whether a claim is of one of these batches, not of one that has the same number elsewhere."""
        return claim.batch <= self.last and claim.is_of(claim.batch, self.planner_of(claim.batch))

    def runs_with(self, run: str) -> tuple[tuple[int, str], ...]:
        """Return who planned which batch once a run has planned the one after the last."""
        if self.runs and self.runs[-1][1] == run:
            return self.runs
        return (*self.runs, (self.last + 1, run))[-RUNS_MAX:]
