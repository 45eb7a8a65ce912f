"""Record a slice of a stream: all shards at once, each at the service's quota, into parts that become the batches of one file.

`penstock.core.reading.shard_reader` decides how a shard is read: pace, retries, expired iterators, losses.
"""

from __future__ import annotations

import heapq
import itertools
import logging
import random
import secrets
import threading
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from penstock._version import __version__
from penstock.core.aggregation import MAGIC, deaggregate
from penstock.core.position import Position, at_record, at_timestamp
from penstock.core.reading.reader_options import PAGE_BYTES, ErrorAdvice, ReaderOptions
from penstock.core.reading.reader_steps import (
    Failed,
    FetchIterator,
    FetchListing,
    FetchPage,
    Finished,
    Wait,
    find_listed_shard,
)
from penstock.core.reading.resume import plan_iterator
from penstock.core.reading.service_clock import ServiceClock, service_bound_ms
from penstock.core.reading.shard_reader import ShardReader
from penstock.core.recording.lineage import Arrivals, describe_shards, parents_first
from penstock.core.recording.metadata import (
    RecordedBatch,
    RecordedSlice,
    RecordedStream,
    RecordingMetadata,
)
from penstock.core.recording.redaction import hash_text, parse_redaction, redact
from penstock.core.shard import Shard
from penstock.core.sparse_reports import is_reported
from penstock.errors import OptionError, PenstockError
from penstock.ports.kinesis import Kinesis, RawRecord, RecordPage, ShardFilter
from penstock.recording.arrow import SCHEMA, pa
from penstock.recording.parts import PartFolder, RecordingProgress, create_parts, open_parts

_log: Final = logging.getLogger("penstock.recording")
_THREADS_MAX: Final = 8  # bounds memory: each thread holds a page in several forms
_BUFFERS_BYTES: Final = 64 * 1024 * 1024
_BATCH_BYTES_MIN: Final = 1024 * 1024
_BATCH_BYTES_MAX: Final = 4 * 1024 * 1024
_DEADLINE_S: Final = 300.0
_FAILURES_REPORTED: Final = 4  # warn after this many failures in a row, and then whenever they have doubled
_ROUNDS_MAX: Final = 10  # rounds of listing shards and reading the new ones; later shards are left out


@dataclass(frozen=True, slots=True, kw_only=True)
class SliceRequest:
    """The requested slice of a stream.

    Attributes:
        stream: Name or ARN.
        from_ms: Only records that arrived at this moment or later; milliseconds since the epoch.
        until_ms: Only records that arrived before this moment; None: those that exist when the recording begins.
        shards: Only these shards; None: all.
        keys: Only records with one of these partition keys, and aggregates that contain such a record; None: all.
        redactions: Expressions of `penstock.core.recording.redaction`.
    """

    stream: str
    from_ms: int
    until_ms: int | None = None
    shards: tuple[str, ...] | None = None
    keys: tuple[str, ...] | None = None
    redactions: tuple[str, ...] = ()


@dataclass(slots=True)
class RecorderState:
    """The progress of a recording; another thread reads it for display.

    Attributes:
        records: Records so far, including those of an earlier run.
        record_bytes: Bytes of the data and partition keys of these records.
        read_bytes: Bytes that this run has read, before filters.
        shard_count: Shards of the slice.
        done_count: Shards that are read to the end of the slice.
        parts_written: Parts of earlier runs that were copied to the file after the reading.
        part_count: All parts of earlier runs; 0 before the first is copied.
    """

    records: int = 0
    record_bytes: int = 0
    read_bytes: int = 0
    shard_count: int = 0
    done_count: int = 0
    parts_written: int = 0
    part_count: int = 0


class RecordingStoppedError(PenstockError):
    """`request_stop` ended a recording early; the same command continues the recording."""


@dataclass(slots=True)
class _ShardRecording:
    """The reader of one shard, and its records that are not in a part yet. At most one thread uses it at a time."""

    shard: Shard
    reader: ShardReader
    buffered_batches: list[pa.RecordBatch] = field(default_factory=list)
    buffered_bytes: int = 0


class Recorder:
    """Records one slice into one file.

    Args:
        path: The file; its folder of parts is beside it.
        options: The options as the user gave them. Only a run with the same options may continue an interrupted recording.

    Attributes:
        state: The progress of the recording.
        is_resumed: Whether this run continues an interrupted recording.

    Raises:
        OptionError: The file exists, or an interrupted recording has other options.
        ServiceError: The stream cannot be described.
    """

    def __init__(
        self, kinesis: Kinesis, request: SliceRequest, path: Path, *, options: dict[str, Any] | None = None
    ) -> None:
        self._redaction = parse_redaction(request.redactions) if request.redactions else None
        if path.exists():
            raise OptionError(f"{path} exists: remove it, or choose another file")
        self.state = RecorderState()
        self._kinesis = kinesis
        self._stream = request.stream
        self._path = path
        self._clock = ServiceClock()
        self._stopping = threading.Event()
        self._state_changed = threading.Condition()
        self._schedule: list[tuple[float, int, _ShardRecording]] = []  # heap by due time (monotonic seconds)
        # Orders shards that are due at the same moment: `_ShardRecording` cannot be compared.
        self._order = itertools.count()
        self._busy_count = 0
        self._batch_bytes = _BATCH_BYTES_MAX
        self._failure: BaseException | None = None
        summary = kinesis.fetch_summary(request.stream)
        self._retention_s = summary.retention_hours * 3600
        stream = RecordedStream(
            summary.name,
            summary.arn,
            "ON_DEMAND" if summary.on_demand else "PROVISIONED",
            summary.retention_hours,
            summary.created_ms,
        )
        parts = open_parts(path)
        self.is_resumed = parts is not None
        if parts is None:
            parts = self._begin_parts(request, stream, options or {})
        else:
            _refuse_other_options(parts, stream, options or {})
        self._parts = parts
        progress = self._parts.progress
        self._slice = progress.recorded
        self._secret = bytes.fromhex(progress.secret)
        self._keys = None if request.keys is None else frozenset(request.keys)
        self._arrivals: dict[str, Arrivals] = {}
        for batch in self._parts.batches.values():
            self._on_batch(batch)

    @property
    def recorded_slice(self) -> RecordedSlice:
        """The slice. Its end is set, even if the request had none."""
        return self._slice

    @property
    def dropped_count(self) -> int:
        """Payloads that redaction dropped, because they are not JSON."""
        return self._parts.progress.dropped_count

    def request_stop(self) -> None:
        """End `run` soon. The parts are kept, so a later run can continue."""
        self._stopping.set()
        with self._state_changed:
            self._state_changed.notify_all()

    def run(self) -> RecordingMetadata:
        """Record until the slice is whole; return the metadata of the file.

        Raises:
            RecordingStoppedError: `request_stop` was called; the parts are kept.
            PenstockError: A shard cannot be read; the parts are kept.
        """
        try:
            listed = self._record_all()
            recorded_ids = None if self._slice.shards is None else frozenset(self._slice.shards)
            shards = describe_shards(listed, self._arrivals, self._slice.from_ms, recorded_ids)
            return self._parts.finish(lambda batches: self._metadata(shards, batches), self._on_part)
        except BaseException:
            self._parts.remove_if_empty()
            raise
        finally:
            self._parts.close()

    # --- the shards ---

    def _record_all(self) -> tuple[Shard, ...]:
        """Read every shard of the slice, including shards that appear meanwhile; return the last listing."""
        finished = set(self._parts.progress.finished_shard_ids)
        for _ in range(_ROUNDS_MAX):
            listed = self._list_shards()
            wanted = self._slice.shards
            shards = [shard for shard in listed if wanted is None or shard.shard_id in wanted]
            self.state.shard_count = len(shards)
            self.state.done_count = sum(shard.shard_id in finished for shard in shards)
            unread = [shard for shard in shards if shard.shard_id not in finished]
            if not unread:
                return listed
            self._read_shards(unread)
            finished.update(shard.shard_id for shard in unread)
        return listed

    def _list_shards(self) -> tuple[Shard, ...]:
        start = ShardFilter("FROM_TIMESTAMP", timestamp_ms=self._slice.from_ms)
        listing = self._kinesis.fetch_shards(self._stream, start)
        self._clock.on_answer(_wall_ms(), listing.server_ms)
        return tuple(parents_first(listing.shards))

    def _read_shards(self, shards: list[Shard]) -> None:
        """Read shards to the end of the slice. A shard that has parts is read from its last recorded record on."""
        self._batch_bytes = min(_BATCH_BYTES_MAX, max(_BATCH_BYTES_MIN, _BUFFERS_BYTES // len(shards)))
        last = {batch.shard: batch.last_sequence_number for _, batch in sorted(self._parts.batches.items())}
        recordings = [
            _ShardRecording(shard, self._reader_of(shard, last.get(shard.shard_id))) for shard in shards
        ]
        with self._state_changed:
            for recording in recordings:
                heapq.heappush(self._schedule, (0.0, next(self._order), recording))
        threads: list[threading.Thread] = []
        for number in range(min(_THREADS_MAX, len(shards))):
            thread = threading.Thread(target=self._work, name=f"penstock-record-{number}", daemon=True)
            try:
                thread.start()
            except RuntimeError:  # a limit of the container or the user is reached
                if not threads:
                    raise
                break  # the started threads read every shard
            threads.append(thread)
        for thread in threads:
            thread.join()
        self._schedule.clear()
        for recording in recordings:
            self._write_part(recording)
        if self._failure is not None:
            raise self._failure
        if self._stopping.is_set():
            raise RecordingStoppedError(
                f"stopped; {self.state.records} records are kept. The same command goes on with {self._path}"
            )

    def _reader_of(self, shard: Shard, last_sequence_number: str | None) -> ShardReader:
        start = (
            at_timestamp(self._slice.from_ms)
            if last_sequence_number is None
            else at_record(last_sequence_number)
        )
        options = ReaderOptions(
            page_bytes_aim=PAGE_BYTES,
            deadline_s=_DEADLINE_S,
            retention_s=self._retention_s,
            error_advice=ErrorAdvice(
                of_loss=f"Remove {self._path}.part to begin again",
                of_new_stream=f"remove {self._path}.part to begin again",
            ),
        )
        return ShardReader(self._stream, shard.shard_id, start, options)

    # --- threads ---

    def _work(self) -> None:
        while (recording := self._take_due_shard()) is not None:
            due_s: float | None = None
            try:
                due_s = self._do_step(recording)
            except BaseException as error:  # noqa: BLE001 - `_read_shards` raises it
                with self._state_changed:
                    self._failure = self._failure or error
            with self._state_changed:
                self._busy_count -= 1
                if due_s is not None:
                    heapq.heappush(self._schedule, (due_s, next(self._order), recording))
                self._state_changed.notify_all()

    def _take_due_shard(self) -> _ShardRecording | None:
        """Wait for the next shard that is due; return None after a stop, a failure or the last shard."""
        with self._state_changed:
            while True:
                if (
                    self._stopping.is_set()
                    or self._failure is not None
                    or not (self._schedule or self._busy_count)
                ):
                    return None
                wait_s = self._schedule[0][0] - time.monotonic() if self._schedule else None
                if wait_s is not None and wait_s <= 0:
                    self._busy_count += 1
                    return heapq.heappop(self._schedule)[2]
                self._state_changed.wait(wait_s)

    def _do_step(self, recording: _ShardRecording) -> float | None:
        """Do the next step of a shard; return when the following one is due, or None when the shard is done."""
        reader = recording.reader
        now_s = time.monotonic()
        step = reader.plan_step(now_s)
        if isinstance(step, Wait):
            assert step.until_s is not None, "a recorder has room"
            return step.until_s
        if isinstance(step, Failed):
            raise step.error
        if isinstance(step, Finished):
            self._on_shard_done(recording)
            return None
        try:
            if isinstance(step, FetchIterator):
                iterator = self._kinesis.fetch_iterator(
                    self._stream, recording.shard.shard_id, plan_iterator(step.position)
                )
                reader.on_iterator(iterator, time.monotonic(), _wall_ms())
            elif isinstance(step, FetchPage):
                return self._fetch_page(recording, step)
            else:
                assert isinstance(step, FetchListing)
                listing = self._kinesis.fetch_shards(self._stream)
                listed = find_listed_shard(recording.shard.shard_id, listing.shards)
                loss = reader.on_listing(listed, time.monotonic(), random.random())
                if loss is not None:
                    raise loss
        except PenstockError as error:
            reader.on_failure(error, time.monotonic(), random.random(), now_s)
            failures = reader.failure_count
            if is_reported(failures, _FAILURES_REPORTED):
                _log.warning(
                    "stream %s, shard %s: reading failed %d times in a row: %s",
                    self._stream,
                    recording.shard.shard_id,
                    failures,
                    error,
                )
        return 0.0

    def _fetch_page(self, recording: _ShardRecording, step: FetchPage) -> float | None:
        """Record one page; return 0, since the shard's next step is due at once, or None when the shard is done."""
        reader, started_s = recording.reader, time.monotonic()
        requested_ms = self._clock.now_ms(_wall_ms())
        page = self._kinesis.fetch_records(self._stream, step.iterator, step.record_count_max)
        self._clock.on_answer(_wall_ms(), page.server_ms)
        result = reader.on_page(page, started_s, time.monotonic(), random.random())
        if result.loss is not None:
            raise result.loss
        self.state.read_bytes += page.read_bytes
        rows = _records_after(page.records, result.read_through) if result.is_accepted else ()
        self._keep_rows(recording, rows)
        if self._is_past_end(page, rows, requested_ms):
            self._on_shard_done(recording)
            return None
        return 0.0

    def _is_past_end(self, page: RecordPage, rows: Sequence[RawRecord], requested_ms: int) -> bool:
        """Return whether all records after this page are outside the slice.

        Args:
            requested_ms: When the page was requested, by the service's clock.
        """
        until_ms = self._slice.until_ms
        if rows and _arrival_ms(rows[-1]) >= until_ms + 1_000:  # arrivals are in order to the second
            return True
        read_to_ms = requested_ms - page.millis_behind_latest
        if read_to_ms >= until_ms + 2_000:  # the service's time may be known only in whole seconds
            return True
        is_at_tip = page.millis_behind_latest == 0 and page.next_iterator is not None
        ends_in_future = self._parts.progress.has_given_end and until_ms > self._parts.progress.began_ms
        return is_at_tip and (not ends_in_future or requested_ms >= until_ms)

    def _keep_rows(self, recording: _ShardRecording, rows: Iterable[RawRecord]) -> None:
        """Filter and redact the rows of a page, and keep them for the shard's next part."""
        from_ms, until_ms = self._slice.from_ms, self._slice.until_ms
        kept: list[tuple[str, str | None, int, bytes]] = []
        dropped_payload_count = 0
        for row in rows:
            arrival_ms = _arrival_ms(row)
            if not from_ms <= arrival_ms < until_ms:
                continue
            self._on_arrival(recording.shard.shard_id, arrival_ms)
            key, data = row.partition_key, row.data
            if self._keys is not None and not _has_key(row, self._keys):
                continue
            if self._redaction is not None:
                redacted = redact(self._redaction, self._secret, key, data)
                key, data = redacted.partition_key, redacted.data
                dropped_payload_count += redacted.dropped_count
            kept.append((row.sequence_number, key, arrival_ms * 1000, data))
            recording.buffered_bytes += len(data) + len(key or "")
        if dropped_payload_count:
            self._parts.on_payloads_dropped(dropped_payload_count)
        if kept:
            batch = _batch_of(self._parts.progress.stream.name, recording.shard.shard_id, kept)
            recording.buffered_batches.append(batch)
        if recording.buffered_bytes >= self._batch_bytes:
            self._write_part(recording)

    def _write_part(self, recording: _ShardRecording) -> None:
        if not recording.buffered_batches:
            return
        table = pa.Table.from_batches(recording.buffered_batches, SCHEMA).combine_chunks()
        recording.buffered_batches, recording.buffered_bytes = [], 0
        self._on_batch(self._parts.add(table))

    def _on_shard_done(self, recording: _ShardRecording) -> None:
        self._write_part(recording)
        self._parts.on_shard_finished(recording.shard.shard_id)
        with self._state_changed:
            self.state.done_count += 1

    def _on_batch(self, batch: RecordedBatch) -> None:
        with self._state_changed:
            self.state.records += batch.records
            self.state.record_bytes += batch.record_bytes
        for moment_ms in (batch.arrived_from_ms, batch.arrived_until_ms):
            self._on_arrival(batch.shard, moment_ms)

    def _on_arrival(self, shard_id: str, arrival_ms: int) -> None:
        """Extend the shard's period of arrivals, which the metadata of the recording has."""
        before = self._arrivals.get(shard_id)
        if before is None:
            self._arrivals[shard_id] = Arrivals(arrival_ms, arrival_ms)
        elif not before.first_ms <= arrival_ms <= before.last_ms:
            self._arrivals[shard_id] = Arrivals(
                min(before.first_ms, arrival_ms), max(before.last_ms, arrival_ms)
            )

    def _on_part(self, written_count: int, count: int) -> None:
        self.state.parts_written, self.state.part_count = written_count, count

    # --- the file ---

    def _begin_parts(
        self, request: SliceRequest, stream: RecordedStream, options: dict[str, Any]
    ) -> PartFolder:
        """Begin a recording: store the options, the end of the slice and the secret, so that a later run can continue."""
        listing = self._kinesis.fetch_shards(self._stream)
        missing = sorted(set(request.shards or ()) - {shard.shard_id for shard in listing.shards})
        if missing:
            raise OptionError(
                f"--shards {missing[0]}: stream {self._stream} has no such shard; `penstock shards {self._stream}` lists them"
            )
        now_ms = self._clock.on_answer(_wall_ms(), listing.server_ms)
        secret = secrets.token_bytes(32)
        keys = request.keys
        if keys is not None and self._redaction is not None and self._redaction.hashes_keys:
            keys = tuple(hash_text(secret, key) for key in keys)  # the file must not have the plain keys
        bound_ms = service_bound_ms(_wall_ms(), listing.server_ms) + 1
        recorded = RecordedSlice(
            from_ms=request.from_ms,
            until_ms=bound_ms if request.until_ms is None else request.until_ms,
            shards=request.shards,
            keys=keys,
            redactions=request.redactions,
        )
        progress = RecordingProgress(
            options=options,
            stream=stream,
            recorded=recorded,
            has_given_end=request.until_ms is not None,
            began_ms=now_ms,
            secret=secret.hex(),
        )
        return create_parts(self._path, progress)

    def _metadata(self, shards: Any, batches: tuple[RecordedBatch, ...]) -> RecordingMetadata:
        progress = self._parts.progress
        return RecordingMetadata(
            stream=progress.stream,
            recorded=progress.recorded,
            shards=shards,
            batches=batches,
            began_ms=progress.began_ms,
            ended_ms=self._clock.now_ms(_wall_ms()),
            written_by=f"penstock {__version__}",
        )


def _refuse_other_options(parts: PartFolder, stream: RecordedStream, options: dict[str, Any]) -> None:
    before = parts.progress
    if before.options != options or before.stream != stream:
        given = [f"{name} {value}" for name, value in before.options.items() if value is not None]
        parts.close()
        raise OptionError(
            f"{parts.path}.part is an interrupted recording of {before.stream.arn} with other options "
            f"({', '.join(given) or 'none'}): give the same ones, or remove it"
        )


def _records_after(records: Sequence[RawRecord], done_position: Position | None) -> Sequence[RawRecord]:
    """Return the Kinesis records after a position; aggregates are not taken apart."""
    if done_position is None or done_position.sequence_number is None:
        return records
    last = int(done_position.sequence_number)
    return [record for record in records if int(record.sequence_number) > last]


def _batch_of(stream: str, shard_id: str, rows: list[tuple[str, str | None, int, bytes]]) -> pa.RecordBatch:
    """Return an Arrow batch of rows, each a sequence number, partition key, arrival in microseconds, and data."""
    count = len(rows)
    numbers, keys, arrivals_us, data = zip(*rows, strict=True)
    columns: tuple[Any, ...] = (
        pa.repeat(pa.scalar(stream, pa.string()), count),
        pa.repeat(pa.scalar(shard_id, pa.string()), count),
        pa.array(numbers, pa.string()),
        pa.repeat(pa.scalar(0, pa.int64()), count),
        pa.array(keys, pa.string()),
        pa.nulls(count, pa.string()),
        pa.array(arrivals_us, pa.int64()).cast(SCHEMA.field("approximateArrivalTimestamp").type),
        pa.array(data, pa.binary()),
    )
    return pa.RecordBatch.from_arrays(list(columns), schema=SCHEMA)


def _wall_ms() -> int:
    return time.time_ns() // 1_000_000


def _arrival_ms(record: RawRecord) -> int:
    return round(record.arrival_s * 1000)


def _has_key(record: RawRecord, keys: frozenset[str]) -> bool:
    if record.partition_key in keys:
        return True
    if not record.data.startswith(MAGIC):
        return False
    return any(part.partition_key in keys for part in deaggregate(record.data) or ())
