"""The producers of one seed's world, and the faults of their PutRecords."""

from __future__ import annotations

from msgspec import Struct, field

from penstock.core.writing.batcher_steps import BatcherSettings


class PutFaults(Struct, frozen=True):
    """The faults of PutRecords calls; likelihoods in [0, 1] per call, or per entry if the name says so.

    Args:
        put_throttled: The whole call is refused for its rate.
        put_unavailable: The whole call is not taken.
        put_lost: The call does not arrive, and there is no answer.
        put_late: The call arrives seconds later, and there is no answer.
        put_unanswered: The call is done, and its answer is lost.
        entry_throttled: The entry is refused for the shard's rate.
        entry_failed: The entry is refused by an internal failure.
        entry_unanswered: The entry is stored, and the answer does not speak of it.
    """

    put_throttled: float = 0.0
    put_unavailable: float = 0.0
    put_lost: float = 0.0
    put_late: float = 0.0
    put_unanswered: float = 0.0
    entry_throttled: float = 0.0
    entry_failed: float = 0.0
    entry_unanswered: float = 0.0


class ProducerPlan(PutFaults, frozen=True):
    """The records of producers, and the faults of their calls.

    Args:
        workers: The workers that are producers. Any others are consumers of their records.
        settings: How the producers' batchers work.
        sender_count: Requests of one producer that may be in flight at once.
        key_count: Partition keys of one producer.
        records_per_s: Records that one producer is given.
    """

    workers: frozenset[str] = frozenset()
    settings: BatcherSettings = field(default_factory=BatcherSettings)
    sender_count: int = 2
    key_count: int = 5
    records_per_s: float = 3.0
