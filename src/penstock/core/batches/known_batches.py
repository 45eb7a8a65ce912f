"""The batches that a checkpoint location has a record of, and the run of the driver that planned each.

A number alone does not name a batch. If a checkpoint location is restored to an earlier state, or if a copy of it is used
beside it, there are two different batches 7, and both are claimed under the same worker id. So an offset keeps, for the
batches up to its own, which run of the driver planned them, and a claim keeps which run planned its batch. A run is one
life of a driver process and has a random name. It plans for one state of the location only: a restored or copied one is read by a
new run.

Offsets and claims of earlier versions do not have the run. For them the number alone decides, as it did in those versions.
"""

from __future__ import annotations

from typing import Final

from msgspec import Struct

from penstock.core.leases.lease import BatchClaim

RUNS_MAX: Final = 32
"""Runs that an offset keeps. A claim from before the last 32 starts of its query is recognised by its number alone."""


class KnownBatches(Struct, frozen=True):
    """The batches that one checkpoint location has a record of.

    Args:
        last: The number of the last one; 0 before the first.
        runs: (number, run), with growing numbers: the run planned this batch and those after it, up to the next entry. The
            planner of the batches before the first entry is unknown.
    """

    last: int = 0
    runs: tuple[tuple[int, str], ...] = ()

    def planner_of(self, batch: int) -> str | None:
        """Return the run that planned a batch; None if it is not known."""
        return next((run for first, run in reversed(self.runs) if first <= batch), None)

    def has(self, claim: BatchClaim) -> bool:
        """Whether a claim is of one of these batches, not of another batch with the same number."""
        return claim.batch <= self.last and claim.is_of(claim.batch, self.planner_of(claim.batch))

    def runs_with(self, run: str) -> tuple[tuple[int, str], ...]:
        """Return `runs` after `run` has planned the next batch."""
        if self.runs and self.runs[-1][1] == run:
            return self.runs
        return (*self.runs, (self.last + 1, run))[-RUNS_MAX:]
