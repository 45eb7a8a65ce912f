"""Batches made by hand, for a handler that a test calls by itself."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future
from typing import Final, TypeVar

from penstock.consumer.async_batch import AsyncBatch
from penstock.consumer.consumer import Consumer
from penstock.consumer.records import Batch, ShardRecords
from penstock.core.reading.record import Record
from penstock.errors import UsageError
from penstock.testing.memory_stream import MemoryStream
from penstock.testing.virtual_worker import Faults, VirtualDriver

_RECORDS_MAX: Final = 10_000
_STORED_WITHIN_S: Final = 30.0


class MadeShardRecords(ShardRecords):
    """Additional methods of batches made by hand."""

    _driver: VirtualDriver

    @property
    def stored(self) -> Record | None:
        """The record up to which everything is done and stored; None if nothing is. Acknowledgements are stored first."""
        self._driver.let_pass(_STORED_WITHIN_S)
        checkpoints = self._driver.table.checkpoints
        if not checkpoints:
            return None
        return next(record for record in self.records if record.position == checkpoints[-1])

    def lose_lease(self) -> None:
        """Take the lease as another worker: the batch is not owned any more, and cannot be checkpointed."""
        self._driver.lose_lease()


class MadeBatch(MadeShardRecords, Batch):
    """A `Batch` made by hand."""


class MadeAsyncBatch(MadeShardRecords, AsyncBatch):
    """An `AsyncBatch` made by hand."""


B = TypeVar("B", bound=MadeShardRecords)


def batch(records: Sequence[Record], *, attempt: int = 1, millis_behind_latest: int = 0) -> MadeBatch:
    """Make the batch that a handler of `Consumer` would get. Checkpoints and acknowledgements run the consumer's own code.

    Args:
        records: 1 to 10,000, from `penstock.testing.records` and `aggregate`.
        attempt: 1, or more when the handler failed on these records before.
        millis_behind_latest: How far reading is behind the tip of the shard.

    Raises:
        UsageError: There are no records, or too many.
    """
    return _make(MadeBatch, records, attempt, millis_behind_latest)


def async_batch(
    records: Sequence[Record], *, attempt: int = 1, millis_behind_latest: int = 0
) -> MadeAsyncBatch:
    """Make the batch that a handler of `AsyncConsumer` would get; otherwise like `batch`.

    Args:
        records: As for `batch`.
        attempt: As for `batch`.
        millis_behind_latest: As for `batch`.

    Raises:
        UsageError: As for `batch`.
    """
    return _make(MadeAsyncBatch, records, attempt, millis_behind_latest)


def _make(kind: type[B], records: Sequence[Record], attempt: int, millis_behind_latest: int) -> B:
    if not 1 <= len(records) <= _RECORDS_MAX:
        raise UsageError(f"a batch of {len(records)} records: a handler is given 1 to {_RECORDS_MAX}")
    driver = VirtualDriver(MemoryStream(records, is_closed=False), Faults())
    held: list[Batch] = []

    def hold(batch: Batch) -> Future[None]:
        held.append(batch)
        return Future()  # the call lasts as long as the batch is used

    Consumer(
        driver.stream.name, "testing", hold, starting_position="TRIM_HORIZON", ports=driver.ports
    ).start()
    driver.drive_until_called()
    made = kind.of(held[0])
    made.attempt = attempt
    made.millis_behind_latest = millis_behind_latest
    made._driver = driver  # noqa: SLF001 - of a class of this file
    return made
