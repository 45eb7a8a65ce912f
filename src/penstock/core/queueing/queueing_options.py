"""Options of `QueueDelivery`."""

from __future__ import annotations

from msgspec import Struct

from penstock.core.backoff import Backoff


class QueueingOptions(Struct, frozen=True):
    """How received records are passed to the handler, renewed and acknowledged. The values were checked as options.

    Args:
        visibility_s: Visibility of every receive and renewal, whole seconds, at least 1.
        concurrency: Calls of the handler at once.
        batch_records_max: User records per call of the handler.
        records_max: Kinesis records in hand.
        bytes_max: Bytes in hand; one answer may exceed it.
        linger_s: An acknowledgement waits at most this long for nine others.
        handling_s_max: The visibility of a record is renewed for at most this long.
        receive_count_max: The queue's `MaxReceiveCount`; None if it has no dead letters.
        return_backoff: How long a record that failed stays invisible, by its receive count.
        remember_max: Records whose results are remembered; 0 remembers none.
    """

    visibility_s: int = 30
    concurrency: int = 10
    batch_records_max: int = 1
    records_max: int = 1_000
    bytes_max: int = 64 * 1024 * 1024
    linger_s: float = 0.02
    handling_s_max: float = 3_600.0
    receive_count_max: int | None = 6
    return_backoff: Backoff = Backoff(2.0, 300.0)
    remember_max: int = 0
