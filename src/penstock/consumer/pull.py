"""The failures of batches that a loop over the consumer does not finish."""

from __future__ import annotations

from penstock.consumer.records import ShardRecords
from penstock.runtime.thread_pull import IterationEnded


def not_done() -> IterationEnded:
    """Return the failure of batches that are taken or waiting when the loop ends."""
    return IterationEnded("the iteration ended before this batch was done")


def not_taken() -> IterationEnded:
    """Return the failure of a batch whose lease was lost while it waited."""
    return IterationEnded("the lease was lost before this batch was taken")


def refuse_lost(batch: ShardRecords) -> IterationEnded | None:
    """Return the failure of a batch whose lease was lost, None for another one."""
    return None if batch.is_owned else not_taken()
