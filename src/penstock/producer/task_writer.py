"""Writes a bounded set of records and returns when all are acknowledged, as a Spark task needs it.

The calling thread carries out the batcher's steps, one after the other. So one request is in flight, and memory is bounded.
"""

from __future__ import annotations

import contextlib
import math
import random
from dataclasses import dataclass
from typing import Final

from penstock.core.writing.batcher import Batcher
from penstock.core.writing.batcher_steps import FetchShards, NoProgress, PutRequest, PutResult, WaitUntil
from penstock.core.writing.packing import check_record
from penstock.errors import DeliveryFailed, RecordError, ServiceError
from penstock.ports.clock import Chance, Clock
from penstock.ports.kinesis import Kinesis
from penstock.ports.metrics import NoMetrics
from penstock.producer.placement import PLACED_BY_KEY, PLACEMENTS, Placement, PlacementCache
from penstock.producer.sender import Sender, SenderPorts
from penstock.producer.write_report import WriteReport
from penstock.producer.writer_options import (
    AGGREGATE_BYTES_DEFAULT,
    AGGREGATE_COUNT_DEFAULT,
    batcher_settings_of,
    check_shared_options,
)
from penstock.runtime.system_clock import SystemClock

_SEND_BYTES: Final = 2**20
_NO_COMPANY_S: Final = 1e9
"""The linger time of a task's records, which is practically endless: a full request, scarce memory or the task's end sends them."""

_GATHER_S: Final = 0.2
"""How long a request that is not full waits for paused shards. Without it each shard would get a request to itself."""


@dataclass(frozen=True, slots=True)
class TaskWriterOptions:
    """How a task writes.

    Args:
        aggregation: Pack user records into KPL aggregates, per predicted shard.
        ordering: `key` keeps the order of each partition key; `none` does not.
        rate_limit_percent: Percent of each shard's capacity that this writer may use, or None for no limit before the
            service refuses.
        request_record_count_max: Kinesis records in one request, 1 to 500.
        buffer_bytes_max: Bytes of memory for records that are not acknowledged; each takes about 300 beside data and key.
            Without effect for a writer with a shared `TaskMemory`.
        no_progress_deadline_s: If a shard acknowledges nothing for this long, writing fails.
        aggregate_bytes_max: Size of one aggregate.
        aggregate_count_max: User records in one aggregate.
        force_aggregation: Aggregate also if it is unknown how the stream places records.
    """

    aggregation: bool = False
    ordering: str = "key"
    rate_limit_percent: int | None = None
    request_record_count_max: int = 500
    buffer_bytes_max: int = 32 * 2**20
    no_progress_deadline_s: float = 600.0
    aggregate_bytes_max: int = AGGREGATE_BYTES_DEFAULT
    aggregate_count_max: int = AGGREGATE_COUNT_DEFAULT
    force_aggregation: bool = False

    def __post_init__(self) -> None:
        check_shared_options(self)


class TaskMemory:
    """Bounds the bytes that all writers of one task hold together. Not thread-safe: a task has one thread.

    Args:
        bytes_max: Bytes of memory for records that are not acknowledged; the last record may exceed it.
    """

    def __init__(self, bytes_max: int) -> None:
        self.bytes_max = bytes_max
        self.used_bytes = 0
        self._writers: list[TaskWriter] = []

    def add(self, writer: TaskWriter) -> None:
        """Add a writer; `make_room` may make it send. The writer counts its records in `used_bytes`."""
        self._writers.append(writer)

    def make_room(self) -> None:
        """Send until the bound is kept. The writer that uses most memory sends first.

        Raises:
            DeliveryFailed: As `TaskWriter.write`.
        """
        while self.used_bytes > self.bytes_max:
            waits: list[tuple[float, TaskWriter]] = []
            for writer in sorted(self._writers, key=lambda each: each.waiting_bytes, reverse=True):
                if not writer.waiting_bytes:
                    break
                wait_s = writer.send_some()
                if wait_s <= 0:
                    waits.clear()
                    break
                waits.append((wait_s, writer))
            if waits:  # every stream is paused
                wait_s, writer = min(waits, key=lambda pair: pair[0])
                writer.pause(wait_s)


class TaskWriter:
    """Writes records of one task to one stream. Not thread-safe.

    Args:
        kinesis: The service.
        stream: Name or ARN.
        options: How to write.
        clock: Time; None for the system's.
        chance: Jitter; None for the system's.
        memory: Shared with the task's other writers; None for a separate bound.
        placements: The process's cache of placements.
    """

    def __init__(
        self,
        kinesis: Kinesis,
        stream: str,
        options: TaskWriterOptions | None = None,
        *,
        clock: Clock | None = None,
        chance: Chance | None = None,
        memory: TaskMemory | None = None,
        placements: PlacementCache = PLACEMENTS,
    ) -> None:
        self._placements = placements
        self._ports = SenderPorts(
            kinesis, clock or SystemClock(), chance or random.SystemRandom(), NoMetrics()
        )
        self._stream = stream
        self._options = TaskWriterOptions() if options is None else options
        self._memory = TaskMemory(self._options.buffer_bytes_max) if memory is None else memory
        self._memory.add(self)
        self._send_bytes = min(_SEND_BYTES, self._memory.bytes_max)
        self._sender: Sender | None = None
        self._record_bytes_max = 0
        self._has_fetched_limit = False
        self._is_limit_assumed = False
        self._due_s = -math.inf  # nothing can be sent before this moment
        self.report = WriteReport()

    def write(self, data: bytes, partition_key: str, explicit_hash_key: str | None = None) -> None:
        """Add one record; send when a request is full or memory runs short.

        Args:
            data: The payload.
            partition_key: 1 to 256 characters.
            explicit_hash_key: Decimal text from 0 to 2^128-1 that places the record, or None.

        Raises:
            RecordError: The service can never accept the record.
            DeliveryFailed: The service refused for good, or acknowledged nothing for too long.
            ServiceError: Only for the first record: the stream cannot be described.
        """
        sender = self._sender or self._open()
        batcher = sender.batcher
        if len(data) + 4 * len(partition_key) > self._record_bytes_max:
            self._fetch_record_limit()
        try:
            check_record(self._stream, data, partition_key, explicit_hash_key, self._record_bytes_max)
        except RecordError as error:
            raise self._explain_error(error) from None
        before_bytes = batcher.waiting_bytes
        now_s = self._ports.clock.monotonic_s()
        batcher.add(data, partition_key, explicit_hash_key, now_s)
        self._memory.used_bytes += batcher.waiting_bytes - before_bytes
        while now_s >= self._due_s and self._is_request_full(batcher):
            wait_s = self._do_step(sender, flushes=False)
            if wait_s > 0:  # nothing can be sent now, but memory may have room for more records
                if wait_s < _NO_COMPANY_S:
                    self._due_s = now_s + min(wait_s, _GATHER_S)
                break
        self._memory.make_room()

    def finish(self) -> WriteReport:
        """Send the rest and wait until every record is acknowledged.

        Raises:
            DeliveryFailed: The service refused for good, or acknowledged nothing for too long.
        """
        sender = self._sender
        while sender is not None and sender.batcher.waiting_count:
            wait_s = self._do_step(sender, flushes=True)
            if wait_s > 0:
                self.pause(wait_s)
        return self.report

    @property
    def waiting_count(self) -> int:
        """Records that are not acknowledged."""
        return 0 if self._sender is None else self._sender.batcher.waiting_count

    @property
    def waiting_bytes(self) -> int:
        """Memory of the records that are not acknowledged."""
        return 0 if self._sender is None else self._sender.batcher.waiting_bytes

    def send_some(self) -> float:
        """Carry out one step towards sending the waiting records; return 0, or the seconds to wait if no step is due.

        Raises:
            DeliveryFailed: As `write`.
        """
        return 0.0 if self._sender is None else self._do_step(self._sender, flushes=True)

    def pause(self, duration_s: float) -> None:
        """Wait, because the stream accepts nothing."""
        self.report.pause_s += duration_s
        self._ports.clock.sleep(duration_s)

    # --- opening -------------------------------------------------------------------------------------------

    def _open(self) -> Sender:
        """Create the batcher and its sender. With aggregation, the stream is described first."""
        options = self._options
        # Thousands of tasks share 20 calls of DescribeStreamSummary per second. Without aggregation no call is needed.
        placement = self._fetch_placement() if options.aggregation else PLACED_BY_KEY
        self._record_bytes_max = placement.record_bytes_max
        batcher = Batcher(
            batcher_settings_of(
                options,
                aggregates=options.aggregation and placement.may_aggregate,
                linger_s=_NO_COMPANY_S,
                gather_s=_GATHER_S,
                is_brief=True,
            ),
            predicts=placement.predicts,
            record_bytes_max=placement.record_bytes_max,
            shard_count=placement.shard_count,
        )
        self._sender = Sender(
            self._stream,
            batcher,
            self._ports,
            fetch_placement=self._fetch_placement_again,
            lock=contextlib.nullcontext(),
        )
        return self._sender

    def _fetch_record_limit(self) -> None:
        """Fetch the stream's limit on a record, once. Called when a record is larger than the default limit."""
        if not self._has_fetched_limit:
            placement = self._fetch_placement()
            self._has_fetched_limit = True
            self._record_bytes_max = placement.record_bytes_max
            self._is_limit_assumed = placement.is_assumed

    def _explain_error(self, error: RecordError) -> RecordError:
        if not self._is_limit_assumed:
            return error
        return RecordError(
            f"{error}. DescribeStreamSummary is not permitted, so the limit is assumed: permit it if the stream takes more"
        )

    def _fetch_placement(self) -> Placement:
        options = self._options
        return self._placements.fetch(
            self._ports.kinesis,
            self._stream,
            wants_aggregation=options.aggregation,
            is_forced=options.force_aggregation,
            now_s=self._ports.clock.monotonic_s(),
        )

    def _fetch_placement_again(self) -> Placement:
        self._placements.forget(self._ports.kinesis, self._stream)
        return self._fetch_placement()

    def _is_request_full(self, batcher: Batcher) -> bool:
        if batcher.aggregates:
            return batcher.full_bytes >= self._send_bytes
        return batcher.waiting_count >= self._options.request_record_count_max

    # --- sending ------------------------------------------------------------------------------------------

    def _do_step(self, sender: Sender, *, flushes: bool) -> float:
        """Carry out the batcher's next step and count its memory; return the seconds to wait before the following step.

        With `flushes`, a request that is not full is due too.
        """
        before_bytes = sender.batcher.waiting_bytes
        try:
            return self._carry_out(sender, flushes=flushes)
        finally:
            self._memory.used_bytes += sender.batcher.waiting_bytes - before_bytes
            assert self._memory.used_bytes >= 0

    def _carry_out(self, sender: Sender, *, flushes: bool) -> float:
        """Carry out the batcher's next step; return the seconds to wait before the following step."""
        now_s = self._ports.clock.monotonic_s()
        step = sender.batcher.plan_step(now_s, flushes=flushes)
        match step:
            case PutRequest():
                self.report.request_count += 1
                try:
                    self._on_result(sender.send(step))
                except ServiceError as error:
                    raise self._delivery_failed(
                        f"the service refused the request for good: {error}"
                    ) from error
            case FetchShards():
                try:
                    self._on_result(sender.fetch_shards(step))
                except ServiceError as error:
                    raise self._delivery_failed(f"the shards cannot be listed: {error}") from error
            case NoProgress(why):
                raise self._delivery_failed(why)
            case WaitUntil(until_s, why):
                if until_s is not None:
                    return max(1e-4, until_s - now_s)
                # No other thread has a request in flight, so with `flushes` every wait has an end.
                assert not flushes, f"{sender.batcher.waiting_count} records wait for nothing: {why}"
                return _NO_COMPANY_S
        return 0.0

    def _on_result(self, result: PutResult) -> None:
        """Count the outcomes. If a record was refused for good, raise DeliveryFailed."""
        report = self.report
        for each in result.delivered_entries:
            report.on_acknowledged(each.shard_id, len(each.entry.records), len(each.entry.data))
        for reason, count in result.retry_counts.items():
            report.refused_count += count
            report.refused_by_reason[reason] = report.refused_by_reason.get(reason, 0) + count
        report.possible_duplicate_count += result.possible_duplicate_count
        if result.refused_entries:
            refused = result.refused_entries[0]
            raise self._delivery_failed(
                f"the service refused a record with key {refused.entry.partition_key[:40]!r} for good: {refused.why}"
            )

    def _delivery_failed(self, why: str) -> DeliveryFailed:
        return DeliveryFailed(
            f"stream {self._stream}: {why.removesuffix('.')}. Acknowledged so far: {self.report.user_record_count} records; "
            f"not acknowledged: {self.waiting_count}"
        )
