"""Write a bounded set of records and come back when every one is acknowledged: what a Spark task needs.

One thread, one request in flight, memory bounded. Records are checked when they are given, packed per predicted shard
when aggregation is on, and sent through `penstock.core.put_queue`, which keeps the order of each key. Only what was
refused is sent again, after a pause with full jitter that grows while the service goes on refusing; a request without
an answer is sent again as a whole and counted as possibly duplicated.
"""

from __future__ import annotations

import logging
import random
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from penstock.core.aggregation import AggregateBuilder, Packed
from penstock.core.hash_key import effective_hash_key, parse_hash_key
from penstock.core.put_queue import PutQueue, Waiting
from penstock.core.shard_graph import HashRouter, ShardGraph
from penstock.errors import (
    DeliveryFailed,
    OptionError,
    RecordError,
    ResourceBusy,
    ServiceError,
    Throttled,
    Unavailable,
    UnknownOutcome,
)
from penstock.ports.kinesis import Kinesis, PutAnswer, PutEntry, ShardFilter

_log: Final = logging.getLogger("penstock.producer")
KEY_LENGTH_MAX: Final = 256
CALL_BYTES_MAX: Final = 10 * 2**20
_RECORD_BYTES_DEFAULT: Final = 2**20
_RETRIED_CODES: Final = frozenset({"ProvisionedThroughputExceededException", "InternalFailure"})
_PAUSE_BASE_S: Final = 0.05
_PAUSE_CAP_S: Final = 5.0
_REFRESHES_S: Final = 1.0


@dataclass(frozen=True, slots=True)
class TaskWriterOptions:
    """How a task writes.

    Args:
        aggregation: Pack user records into KPL aggregates, per predicted shard.
        ordering: `key` keeps the order of each partition key; `none` does not.
        rate_limit_percent: Percent of a shard's byte capacity times the number of open shards that this writer may
            use, or None for no limit before the service refuses.
        request_record_count_max: Kinesis records in one request, 1 to 500.
        buffer_bytes_max: Bytes that may wait unacknowledged.
        no_progress_deadline_s: Time without any acknowledgement after which writing fails.
        aggregate_bytes_max: Size of one aggregate.
    """

    aggregation: bool = False
    ordering: str = "key"
    rate_limit_percent: int | None = None
    request_record_count_max: int = 500
    buffer_bytes_max: int = 32 * 2**20
    no_progress_deadline_s: float = 600.0
    aggregate_bytes_max: int = 51_200

    def __post_init__(self) -> None:
        if self.ordering not in ("key", "none"):
            raise OptionError(f"ordering is {self.ordering!r}; use 'key' or 'none'")
        if not 1 <= self.request_record_count_max <= 500:
            raise OptionError(
                f"request_record_count_max is {self.request_record_count_max}; the service takes 1 to 500"
            )
        for name in ("buffer_bytes_max", "aggregate_bytes_max", "no_progress_deadline_s"):
            if not getattr(self, name) > 0:
                raise OptionError(f"{name} is {getattr(self, name)}; it must be above 0")
        if self.rate_limit_percent is not None and self.rate_limit_percent < 1:
            raise OptionError(f"rate_limit_percent is {self.rate_limit_percent}; it must be at least 1")


@dataclass(slots=True)
class WriteReport:
    """What a writer did.

    Args:
        user_record_count: Acknowledged user records.
        kinesis_record_count: Acknowledged Kinesis records.
        bytes_count: Their bytes of data.
        request_count: PutRecords calls.
        refused_count: Entries that were refused and sent again.
        possible_duplicate_count: User records that were sent again after a request without an answer, or to another
            shard after a reshard.
        pause_s: Time spent waiting after refusals.
        by_shard: Acknowledged Kinesis records of each shard.
    """

    user_record_count: int = 0
    kinesis_record_count: int = 0
    bytes_count: int = 0
    request_count: int = 0
    refused_count: int = 0
    possible_duplicate_count: int = 0
    pause_s: float = 0.0
    by_shard: dict[str, int] = field(default_factory=dict)

    def __str__(self) -> str:
        """Say it in a line."""
        text = (
            f"{self.user_record_count} records in {self.kinesis_record_count} Kinesis records, {self.bytes_count} bytes, "
            f"{self.request_count} requests, {len(self.by_shard)} shards"
        )
        if self.refused_count:
            text += f", {self.refused_count} refused and sent again, {self.pause_s:.1f} s of pauses"
        if self.possible_duplicate_count:
            text += f", {self.possible_duplicate_count} possibly twice"
        return text


class TaskWriter:
    """Writes records to one stream. Not thread-safe: one task, one writer.

    Args:
        kinesis: The service.
        stream: Name or ARN.
        options: How to write.
        monotonic_s: Clock.
        sleep: Waiting.
        chance: Jitter: a number in [0, 1).
    """

    def __init__(
        self,
        kinesis: Kinesis,
        stream: str,
        options: TaskWriterOptions | None = None,
        *,
        monotonic_s: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
        chance: Callable[[], float] = random.random,
    ) -> None:
        self._kinesis = kinesis
        self._stream = stream
        self._options = TaskWriterOptions() if options is None else options
        self._monotonic_s = monotonic_s
        self._sleep = sleep
        self._chance = chance
        self._queue = PutQueue(self._options.request_record_count_max, CALL_BYTES_MAX)
        self._builders: dict[str, AggregateBuilder] = {}
        self._builder_bytes = 0
        self._graph: ShardGraph | None = None
        self._router: HashRouter | None = None
        self._refreshed_s = float("-inf")
        self._aggregates: bool | None = None if self._options.aggregation else False
        self._record_bytes_max: int | None = None
        self._lane_number = 0
        self._refusals = 0
        self._progress_s = monotonic_s()
        self._next_send_s = float("-inf")
        self.report = WriteReport()

    def write(self, data: bytes, partition_key: str, explicit_hash_key: str | None = None) -> None:
        """Take one record; sends when a request is full or memory asks for it.

        Raises:
            RecordError: The service can never accept it.
            DeliveryFailed: The service refused for good, or acknowledged nothing for too long.
        """
        self._check(data, partition_key, explicit_hash_key)
        self._place(data, partition_key, explicit_hash_key)
        while self._is_full():
            self._send()

    def finish(self) -> WriteReport:
        """Send what is left and wait until every record is acknowledged.

        Raises:
            DeliveryFailed: The service refused for good, or acknowledged nothing for too long.
        """
        while self._builders or len(self._queue):
            for shard in list(self._builders):
                self._close_builder(shard)
            self._send()
        return self.report

    # --- taking -------------------------------------------------------------------------------------------

    def _check(self, data: bytes, partition_key: str, explicit_hash_key: str | None) -> None:
        if not 1 <= len(partition_key) <= KEY_LENGTH_MAX:
            raise RecordError(
                f"stream {self._stream}: the partition key has {len(partition_key)} characters; 1 to {KEY_LENGTH_MAX} are allowed"
            )
        if explicit_hash_key is not None:
            parse_hash_key(explicit_hash_key)
        size = len(data) + len(partition_key.encode())
        if size > _RECORD_BYTES_DEFAULT and size > self._largest_record():
            raise RecordError(
                f"stream {self._stream}: data and partition key ({partition_key[:40]!r}) have {size} bytes, and the stream takes "
                f"{self._largest_record()}; split the record, or raise the stream's MaxRecordSize (up to 10 MiB)"
            )

    def _largest_record(self) -> int:
        if self._record_bytes_max is None:
            self._record_bytes_max = self._kinesis.fetch_summary(self._stream).record_bytes_max
        return self._record_bytes_max

    def _place(self, data: bytes, partition_key: str, explicit_hash_key: str | None) -> None:
        shard = self._predict(partition_key, explicit_hash_key) if self._may_aggregate() else None
        if shard is None:
            # In aggregation mode a record without a shard waits in its key's lane like any plain record.
            packed = Packed(data, partition_key, explicit_hash_key, 1)
            self._queue.add(Waiting(packed, self._lane(partition_key)))
            return
        builder = self._builders.get(shard)
        if builder is None:
            builder = self._builders[shard] = AggregateBuilder()
        elif builder.size_with(data, partition_key, explicit_hash_key) > self._options.aggregate_bytes_max:
            self._close_builder(shard)
            builder = self._builders[shard] = AggregateBuilder()
        builder.add(data, partition_key, explicit_hash_key)
        self._builder_bytes += len(data) + len(partition_key)

    def _lane(self, key: str) -> str:
        if self._options.ordering == "key":
            return f"key {key}"
        self._lane_number += 1
        return f"free {self._lane_number}"

    def _close_builder(self, shard: str) -> None:
        builder = self._builders.pop(shard)
        records = tuple(builder.records())
        self._builder_bytes -= sum(len(data) + len(key) for key, _, data in records)
        lane = f"shard {shard}" if self._options.ordering == "key" else self._lane("")
        self._queue.add(Waiting(builder.build(), lane, shard, records))

    def _is_full(self) -> bool:
        waiting = self._queue.size_bytes + self._builder_bytes
        if waiting > self._options.buffer_bytes_max:
            for shard in list(self._builders):
                self._close_builder(shard)
            return True
        if self._options.aggregation:
            return self._queue.size_bytes >= 2**20
        return self._queue.ready_count >= self._queue.batch_max or self._queue.size_bytes >= CALL_BYTES_MAX

    # --- the shard map ------------------------------------------------------------------------------------

    def _may_aggregate(self) -> bool:
        if self._aggregates is None:
            summary = self._kinesis.fetch_summary(self._stream)
            self._record_bytes_max = summary.record_bytes_max
            self._aggregates = not summary.service_managed_keys
            if not self._aggregates:
                _log.warning(
                    "stream %s places records by itself (record distribution AUTO): records are not aggregated, since "
                    "aggregates would be dropped by their readers",
                    self._stream,
                )
        return self._aggregates

    def _predict(self, partition_key: str, explicit_hash_key: str | None) -> str | None:
        if self._router is None:
            self._refresh()
        return None if self._router is None else self._router.predict_shard(partition_key, explicit_hash_key)

    def _refresh(self) -> None:
        self._refreshed_s = self._monotonic_s()
        listing = self._kinesis.fetch_shards(self._stream, ShardFilter("AT_LATEST"))
        self._graph = ShardGraph(listing.shards)
        self._router = self._graph.router()

    # --- sending ------------------------------------------------------------------------------------------

    def _send(self) -> None:
        request = self._queue.next_request()
        if not request:
            return
        self._wait_for_rate(request)
        entries = [
            PutEntry(each.packed.data, each.packed.partition_key, each.packed.explicit_hash_key)
            for each in request
        ]
        self.report.request_count += 1
        try:
            answers = self._kinesis.put_records(self._stream, entries)
        except (Throttled, Unavailable, ResourceBusy, UnknownOutcome) as error:
            self._after_failed_call(request, error)
            return
        except ServiceError as error:
            raise self._failed(f"the service refused the request for good: {error}") from error
        self._after_answers(request, answers)

    def _after_failed_call(self, request: list[Waiting], error: ServiceError) -> None:
        if isinstance(error, UnknownOutcome):
            self.report.possible_duplicate_count += sum(each.packed.user_record_count for each in request)
        self.report.refused_count += len(request)
        self._queue.return_refused(request)
        self._pause(str(error))

    def _after_answers(self, request: list[Waiting], answers: object) -> None:
        refused: list[Waiting] = []
        reason = ""
        moved: list[Waiting] = []
        for waiting, answer in zip(request, answers, strict=True):  # type: ignore[call-overload]  # a sequence of answers
            if answer.error_code is not None:
                if answer.error_code not in _RETRIED_CODES:
                    raise self._failed(
                        f"the service refused a record for good: {answer.error_code} {answer.error_message}"
                    )
                refused.append(waiting)
                reason = f"{answer.error_code} {answer.error_message}"
                continue
            self._queue.acknowledge(waiting)
            self._progress_s = self._monotonic_s()
            if self._landed_elsewhere(waiting, answer):
                moved.append(waiting)
            else:
                self._count(waiting, answer)
        for waiting in moved:
            self._send_again(waiting)
        self._queue.note_answer(refused=bool(refused))
        if refused:
            self.report.refused_count += len(refused)
            self._queue.return_refused(refused)
            self._pause(reason)
        else:
            self._refusals = 0

    def _count(self, waiting: Waiting, answer: PutAnswer) -> None:
        report = self.report
        report.user_record_count += waiting.packed.user_record_count
        report.kinesis_record_count += 1
        report.bytes_count += len(waiting.packed.data)
        shard = answer.shard_id or "?"
        report.by_shard[shard] = report.by_shard.get(shard, 0) + 1

    def _landed_elsewhere(self, waiting: Waiting, answer: PutAnswer) -> bool:
        """Whether a reader by KCL's rule would drop the aggregate: a user record outside the shard's range."""
        if not waiting.user_records or answer.shard_id in (None, waiting.predicted_shard):
            return False
        if self._graph is None or answer.shard_id not in self._graph:
            self._refresh()
        shard = None if self._graph is None or answer.shard_id is None else self._graph.get(answer.shard_id)
        if shard is None:
            return True
        return any(
            effective_hash_key(key, own) not in shard.hash_range for key, own, _ in waiting.user_records
        )

    def _send_again(self, waiting: Waiting) -> None:
        """Pack the records of an aggregate anew, for the shards that there are now."""
        if self._monotonic_s() - self._refreshed_s > _REFRESHES_S:
            self._refresh()
        self.report.possible_duplicate_count += len(waiting.user_records)
        for key, own, data in waiting.user_records:
            self._place(data, key, own)

    def _wait_for_rate(self, request: list[Waiting]) -> None:
        percent = self._options.rate_limit_percent
        if percent is None:
            return
        if self._graph is None:
            self._refresh()
        shard_count = max(1, 0 if self._graph is None else len(self._graph.open_shards))
        wait_s = self._next_send_s - self._monotonic_s()
        if wait_s > 0:
            self._sleep(wait_s)
        per_s = 2**20 * shard_count * percent / 100
        self._next_send_s = self._monotonic_s() + sum(each.size_bytes for each in request) / per_s

    def _pause(self, reason: str) -> None:
        waited_s = self._monotonic_s() - self._progress_s
        if waited_s > self._options.no_progress_deadline_s:
            raise self._failed(f"nothing was acknowledged for {waited_s:.0f} s; last: {reason}")
        self._refusals += 1
        pause_s = self._chance() * min(_PAUSE_CAP_S, _PAUSE_BASE_S * 2 ** min(self._refusals, 20))
        self.report.pause_s += pause_s
        self._sleep(pause_s)

    def _failed(self, why: str) -> DeliveryFailed:
        left = sum(len(builder) for builder in self._builders.values())
        return DeliveryFailed(
            f"stream {self._stream}: {why}. Acknowledged so far: {self.report.user_record_count} records; not acknowledged: "
            f"{len(self._queue)} Kinesis records and {left} records that were not sent"
        )
