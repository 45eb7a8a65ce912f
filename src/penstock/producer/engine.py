"""The threads of a producer: a few threads share one batcher under one lock.

Each thread takes the next step from the batcher and carries it out without the lock, through a `Sender`. The thread that got
the answer resolves the futures without the lock, so a callback may put again.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, InvalidStateError
from typing import TYPE_CHECKING, Any, Final

from msgspec import Struct

from penstock.core.safe_text import describe_error
from penstock.core.writing.batcher import Batcher
from penstock.core.writing.batcher_steps import FetchShards, NoProgress, PutRequest, PutResult, WaitUntil
from penstock.errors import DeliveryFailed, PenstockError, RecordExpired, ServiceError, UsageError
from penstock.ports.metrics import NoMetrics
from penstock.producer.placement import Placement
from penstock.producer.receipts import Acknowledgement, Receipt
from penstock.producer.sender import Sender, SenderPorts
from penstock.runtime.own_loggers import guard_loggers

if TYPE_CHECKING:
    from penstock.core.writing.packing import PackedEntry, PendingRecord

_log: Final = logging.getLogger("penstock.producer")
_EXPIRY_INTERVAL_MIN_S: Final = 0.05
_SETTLED_KEPT_MAX: Final = 1_000
_REPORTS_APART_S: Final = 60.0


class _Flush(Struct, eq=False):
    """A flush under way. It waits until `unsettled_count` more records with numbers up to `number_max` are settled."""

    number_max: int
    unsettled_count: int


class _ExpiredRecords(Struct, eq=False):
    """Records whose time to live is over."""

    records: list[PendingRecord]


class Engine:
    """Carries out a batcher's steps on its own threads.

    Args:
        stream: Name or ARN.
        batcher: Plans the steps; belongs to the engine from now on.
        fetch_placement: Fetches again how the stream places records.
        thread_count: Requests that may be in flight at once.
        buffer_bytes_max: Memory for records that are not acknowledged.
        record_ttl_s: A record that has waited this long fails; None: records do not expire.
    """

    def __init__(
        self,
        stream: str,
        batcher: Batcher,
        ports: SenderPorts,
        *,
        fetch_placement: Callable[[], Placement],
        thread_count: int,
        buffer_bytes_max: int,
        record_ttl_s: float | None = None,
    ) -> None:
        guard_loggers()
        self._record_ttl_s = record_ttl_s
        self._expiry_due_s = float("-inf")  # when to look for expired records next
        self._stream = stream
        self._batcher = batcher
        self._ports = ports
        self._now_s = ports.clock.monotonic_s
        self._request_record_count_max = batcher.settings.request_record_count_max
        self._has_metrics = type(ports.metrics) is not NoMetrics
        self._buffer_bytes_max = buffer_bytes_max
        self._lock = threading.RLock()  # not entered twice; an RLock knows its owner
        self._sender = Sender(stream, batcher, ports, fetch_placement=fetch_placement, lock=self._lock)
        self._is_locked_here: Callable[[], bool] = self._lock._is_owned  # type: ignore[attr-defined]  # noqa: SLF001
        self._work_is_due = threading.Condition(self._lock)  # notified if a request may be due
        self._records_settled = threading.Condition(self._lock)  # notified if records were settled
        self._open_count = 0
        self._open_receipts: deque[Any] = deque()
        """Receipts in the order of arrival: all that are not settled, and settled ones until they are removed.

        If the batcher has an internal error, these receipts fail.
        """
        self._requests: set[PutRequest] = set()
        """The requests that a thread is working on."""
        self._defect: BaseException | None = None
        """The internal error after which the batcher is not used any more; None if there was none."""
        self._flushes: list[_Flush] = []  # calls of `flush` under way
        self._is_closing = False
        self._failed_count = 0
        self._first_failure: BaseException | None = None
        self._all_failed_count = 0
        self._report_due_s = float("-inf")
        self._threads: list[threading.Thread] = []
        for number in range(thread_count):
            thread = threading.Thread(target=self._run, name=f"penstock-put-{number}", daemon=True)
            try:
                thread.start()
            except RuntimeError as error:  # a limit of the container or the user is reached
                if not self._threads:
                    raise
                _log.warning(
                    "stream %s: the producer goes on with %d of %d threads: %s",
                    stream,
                    number,
                    thread_count,
                    error,
                )
                break
            self._threads.append(thread)

    # --- from the caller's threads ------------------------------------------------------------------------

    def put(
        self, data: bytes, partition_key: str, explicit_hash_key: str | None, timeout_s: float
    ) -> Future[Acknowledgement] | None:
        """Add one checked record and return its future; None if there was no room for the record in time."""
        if self._is_locked_here():
            self.check_not_interrupted()
        record = Receipt(data, partition_key, explicit_hash_key)
        batcher = self._batcher
        with self._lock:
            is_full = batcher.waiting_bytes >= self._buffer_bytes_max
            if is_full and not self._records_settled.wait_for(
                lambda: batcher.waiting_bytes < self._buffer_bytes_max or not self._takes_records,
                min(timeout_s, threading.TIMEOUT_MAX),
            ):
                return None
            if self._is_closing or self._defect is not None:
                raise DeliveryFailed(
                    f"stream {self._stream}: the producer is closed; the record was not taken"
                    if self._defect is None
                    else f"{self._defect_text}; the record was not taken"
                )
            open_count = self._open_count
            try:
                self._open_count += 1
                self._open_receipts.append(record)
                needs_sender = batcher.add_record(record, self._now_s())
                if needs_sender or batcher.waiting_count % self._request_record_count_max == 0:
                    self._work_is_due.notify()
            except BaseException:
                # Ctrl-C may come at any point. The caller gets no future, so the record must not be sent. Nor may it stay
                # counted: the next flush would wait for it for ever.
                self._open_count = open_count
                if self._open_receipts and self._open_receipts[-1] is record:
                    self._open_receipts.pop()
                batcher.take_back(record, self._requests)
                raise
        return record

    @property
    def _takes_records(self) -> bool:
        return not self._is_closing and self._defect is None

    def flush(self, timeout_s: float | None) -> bool:
        """Wait until every record put before is acknowledged or has failed; return False if the timeout passes first.

        Also without a timeout the wait ends: if nothing is acknowledged for too long, the waiting records fail.
        """
        bound_s = None if timeout_s is None else min(timeout_s, threading.TIMEOUT_MAX)
        with self._lock:
            # Other threads go on putting: their later records have higher numbers, and this flush does not wait for them.
            flush = _Flush(self._batcher.last_number, self._open_count)
            self._flushes.append(flush)
            self._work_is_due.notify_all()
            try:
                return self._records_settled.wait_for(lambda: flush.unsettled_count <= 0, bound_s)
            finally:
                self._flushes.remove(flush)

    def take_failures(self) -> tuple[int, BaseException | None]:
        """Return how many records failed since the last call, and the error of the first one, or None."""
        with self._lock:
            found = (self._failed_count, self._first_failure)
            self._failed_count, self._first_failure = 0, None
            return found

    def stop(self, timeout_s: float) -> int:
        """End the threads. The futures of unacknowledged records fail; return the number of these records."""
        with self._lock:
            self._is_closing = True
            self._work_is_due.notify_all()
            self._records_settled.notify_all()
        left_count = self._drop_waiting_records()
        for thread in self._threads:
            if thread is not threading.current_thread():
                thread.join(timeout_s)
        # Requests that were in flight at the first drop may have put refused records back into the queues.
        return left_count + self._drop_waiting_records()

    def _drop_waiting_records(self) -> int:
        """Fail the futures of the records that wait while the producer is closed; return their number."""
        if self._defect is not None:
            return self._fail_lost_records()
        try:
            with self._lock:
                left = self._batcher.drop_all()
        except Exception as error:  # noqa: BLE001 - given to the futures
            self._on_defect(error)
            return self._fail_lost_records()
        self._fail(
            left,
            DeliveryFailed(
                f"stream {self._stream}: the producer was closed before {len(left)} records were acknowledged"
            ),
        )
        return len(left)

    def check_not_interrupted(self) -> None:
        """Refuse a call by a signal handler or `__del__` that has interrupted another call on this thread.

        Raises:
            UsageError: This thread holds the lock already, and would wait for itself.
        """
        if self._is_locked_here():
            raise UsageError(
                f"stream {self._stream}: a signal handler or a `__del__` has interrupted a call of the producer and calls it again: "
                "put, flush and close on a thread of the program, or catch this error and do without the record"
            )

    @property
    def is_own_thread(self) -> bool:
        """Whether the current thread is one of the engine's, which also run the callbacks of futures."""
        return threading.current_thread() in self._threads

    @property
    def waiting_count(self) -> int:
        """Records that are not acknowledged."""
        return self._batcher.waiting_count

    @property
    def waiting_bytes(self) -> int:
        """Memory of the records that are not acknowledged."""
        return self._batcher.waiting_bytes

    # --- on the threads --------------------------------------------------------------------------------------

    def _run(self) -> None:
        while self._make_step():
            pass
        # The thread that closes the producer may have returned before this thread's last request ended.
        self._drop_waiting_records()

    def _make_step(self) -> bool:
        """Plan a step and carry it out; return False when no step follows."""
        step: PutRequest | FetchShards | NoProgress | _ExpiredRecords | None = None
        try:
            step = self._next_step()
            if step is not None:
                self._do_step(step)
        except BaseException as error:  # noqa: BLE001 - whatever it is, it is logged and given to the futures
            # An internal error. All futures must be resolved nevertheless.
            _log.exception("stream %s: the sender failed", self._stream)
            self._recover(step, error)
            return True
        finally:
            if isinstance(step, PutRequest):
                with self._lock:
                    self._requests.discard(step)
            if self._defect is not None:
                self._fail_lost_records()
        return step is not None

    def _recover(
        self, step: PutRequest | FetchShards | NoProgress | _ExpiredRecords | None, error: BaseException
    ) -> None:
        """Fail the records of a step that ended with an internal error; fail all records if the batcher may be damaged."""
        # Before a request is settled, the batcher has handled nothing of its outcome, so it is intact.
        is_sound = isinstance(step, FetchShards | NoProgress) or (
            isinstance(step, PutRequest) and not step.is_ended
        )
        try:
            if is_sound:
                self._fail_waiting_records(
                    DeliveryFailed(
                        f"stream {self._stream}: the sender failed: {describe_error(error)}; see the log, and put the records again"
                    ),
                    error,
                )
                if isinstance(step, PutRequest):
                    self._fail_request(step, error)
        except Exception:  # noqa: BLE001 - the batcher is damaged, and its first error is the one to report
            _log.exception("stream %s: giving up failed", self._stream)
            is_sound = False
        if not is_sound:
            self._on_defect(error)

    def _on_defect(self, error: BaseException) -> None:
        with self._lock:
            self._defect = self._defect or error
            self._work_is_due.notify_all()
            self._records_settled.notify_all()

    @property
    def _defect_text(self) -> str:
        return (
            f"stream {self._stream}: the producer has failed inside ({self._defect!r}) and sends nothing more. Open another "
            "one, and report this defect with the log"
        )

    def _fail_lost_records(self) -> int:
        """After an internal error, fail the futures of all records outside requests in flight; return their number."""
        with self._lock:
            in_hand = {
                id(record)
                for request in self._requests
                for entry in request.entries
                for record in entry.records
            }
            lost = [each for each in self._open_receipts if id(each) not in in_hand and not each.done()]
            self._open_receipts = deque(each for each in self._open_receipts if id(each) in in_hand)
        failure = DeliveryFailed(
            f"{self._defect_text}. {len(lost)} records were not acknowledged; one that was sent without an answer may have been "
            "stored all the same"
        )
        failure.__cause__ = self._defect
        self._fail(lost, failure)
        return len(lost)

    def _next_step(self) -> PutRequest | FetchShards | NoProgress | _ExpiredRecords | None:
        """Wait for the next step of the batcher, or for expired records; None when the engine ends."""
        clock = self._ports.clock
        with self._lock:
            while self._takes_records:
                now_s = clock.monotonic_s()
                expired = self._take_expired_records(now_s)
                if expired:
                    return expired
                step = self._batcher.plan_step(now_s, flushes=bool(self._flushes))
                if not isinstance(step, WaitUntil):
                    # `put` may have woken only this thread for several records. It is busy now, so it wakes another one.
                    self._work_is_due.notify()
                    if isinstance(step, PutRequest):
                        self._requests.add(step)
                    return step
                until_s = step.until_s
                if self._record_ttl_s is not None and self._batcher.waiting_count:
                    until_s = self._expiry_due_s if until_s is None else min(until_s, self._expiry_due_s)
                self._work_is_due.wait(None if until_s is None else max(1e-4, until_s - now_s))
        return None

    def _take_expired_records(self, now_s: float) -> _ExpiredRecords | None:
        """Drop and return expired records, at most once per interval; None if it is too early or no record has expired."""
        ttl_s = self._record_ttl_s
        if ttl_s is None or now_s < self._expiry_due_s:
            return None
        self._expiry_due_s = now_s + max(_EXPIRY_INTERVAL_MIN_S, ttl_s / 20)
        records = self._batcher.drop_expired(now_s - ttl_s) if self._batcher.waiting_count else None
        return _ExpiredRecords(records) if records else None

    def _do_step(self, step: PutRequest | FetchShards | NoProgress | _ExpiredRecords) -> None:
        """Carry out one step, without the lock."""
        match step:
            case PutRequest():
                self._send(step)
            case FetchShards():
                self._fetch_shards(step)
            case NoProgress(why):
                self._fail_waiting_records(DeliveryFailed(f"stream {self._stream}: {why}"), None)
            case _ExpiredRecords():
                self._fail_expired_records(step)

    def _send(self, request: PutRequest) -> None:
        if self._has_metrics:
            self._measure_request(request, self._now_s())
        try:
            result = self._sender.send(request)
        except ServiceError as error:
            self._fail_request(request, error)
        else:
            self._settle(result)

    def _fetch_shards(self, step: FetchShards) -> None:
        try:
            result = self._sender.fetch_shards(step)
        except PenstockError as error:
            self._fail_waiting_records(
                DeliveryFailed(f"stream {self._stream}: the shards cannot be listed: {error}"), error
            )
        else:
            self._settle(result)

    # --- outcomes -----------------------------------------------------------------------------------------

    def _settle(self, result: PutResult) -> None:
        """Resolve the futures of acknowledged records, and fail those of refused ones."""
        now_s = self._ports.clock.monotonic_s()
        settled: list[Any] = []  # `put` made them: each is a receipt
        new = tuple.__new__  # a third of what Acknowledgement(...) costs, and this is done for every record
        for entry, shard_id, sequence_number in result.delivered_entries:
            receipts: list[Any] = entry.records
            settled += receipts
            is_aggregate = len(receipts) > 1
            for place, receipt in enumerate(receipts):
                acknowledgement = new(Acknowledgement, (shard_id, sequence_number, place, is_aggregate))
                try:
                    receipt.set_result(acknowledgement)
                except BaseException as error:  # noqa: BLE001 - one receipt's trouble is not the others'
                    self._log_settling_error(error)
        for refused in result.refused_entries:
            key = refused.entry.records[0].partition_key
            self._fail(
                refused.entry.records,
                DeliveryFailed(
                    f"stream {self._stream}: the service refused a record with key {key[:40]!r} for good: {refused.why}"
                ),
            )
        self._count_settled_records(settled)
        if self._has_metrics:
            self._measure_result(result, now_s)

    def _fail_expired_records(self, expired: _ExpiredRecords) -> None:
        self._ports.metrics.count("records_expired", len(expired.records))
        self._fail(
            expired.records,
            RecordExpired(
                f"stream {self._stream}: not acknowledged within record_ttl_s={self._record_ttl_s}; a record that was sent "
                f"without an answer may still have been stored. The service's last error: {self._batcher.last_error or 'none'}"
            ),
        )

    def _fail_request(self, request: PutRequest, error: BaseException) -> None:
        with self._lock:
            records = self._batcher.drop_request(request)
        failure = DeliveryFailed(
            f"stream {self._stream}: {len(records)} records were refused for good: {error}"
        )
        failure.__cause__ = error
        self._fail(records, failure)

    def _fail_waiting_records(self, failure: DeliveryFailed, cause: BaseException | None) -> None:
        failure.__cause__ = cause
        with self._lock:
            records = self._batcher.drop_all()
        self._fail(records, failure)

    def _fail(self, records: list[PendingRecord], error: BaseException) -> None:
        """Fail the futures of records with one error, and count the records as settled."""
        if not records:
            return
        now_s = self._now_s()
        with self._lock:
            self._failed_count += len(records)
            self._all_failed_count += len(records)
            self._first_failure = self._first_failure or error
            # A program may never look at its futures, so failures are logged. `close` raises an error itself.
            is_reported = now_s >= self._report_due_s and not self._is_closing
            if is_reported:
                self._report_due_s = now_s + _REPORTS_APART_S
        if is_reported:
            _log.error("%s; failed records of this producer so far: %d", error, self._all_failed_count)
        self._ports.metrics.count("user_records_failed", len(records))
        receipts: list[Any] = records
        raised: BaseException | None = None
        for receipt in receipts:
            try:
                receipt.set_exception(error)
            except BaseException as trouble:  # noqa: BLE001 - one receipt's trouble is not the others'
                self._log_settling_error(trouble)
                raised = raised or trouble
        self._count_settled_records(records)
        # Ctrl-C came while the closing thread failed the remaining records.
        if isinstance(raised, KeyboardInterrupt) and threading.current_thread() not in self._threads:
            raise raised

    def _log_settling_error(self, error: BaseException) -> None:
        """Log an error of settling a receipt: its callback has raised, or the receipt was settled elsewhere before."""
        if isinstance(error, InvalidStateError):
            _log.error("stream %s: a future of this producer was settled elsewhere: %s", self._stream, error)
        else:
            _log.error(
                "stream %s: a callback of a record's future raised %s",
                self._stream,
                describe_error(error),
                exc_info=error,
            )

    def _count_settled_records(self, records: list[PendingRecord]) -> None:
        # The futures are resolved before the records are counted, so they are all done when a flush returns.
        with self._lock:
            self._open_count -= len(records)
            assert self._open_count >= 0 or self._defect is not None
            self._forget_settled_receipts()
            for flush in self._flushes:
                flush.unsettled_count -= sum(record.number <= flush.number_max for record in records)
            self._records_settled.notify_all()

    def _forget_settled_receipts(self) -> None:
        receipts = self._open_receipts
        while receipts and receipts[0].done():
            receipts.popleft()
        if len(receipts) > 2 * self._open_count + _SETTLED_KEPT_MAX:  # an old unsettled one is first
            self._open_receipts = deque([each for each in receipts if not each.done()])

    # --- metrics ------------------------------------------------------------------------------------------

    def _measure_request(self, request: PutRequest, now_s: float) -> None:
        metrics = self._ports.metrics
        metrics.observe("kinesis_records_per_request", len(request.entries))
        for entry in request.entries:
            if entry.attempt_count == 1:
                metrics.observe("buffering_time_s", now_s - entry.records[0].put_s)

    def _measure_result(self, result: PutResult, now_s: float) -> None:
        metrics = self._ports.metrics
        entries: list[PackedEntry] = [each.entry for each in result.delivered_entries]
        if entries:
            metrics.count("user_records_put", sum(len(entry.records) for entry in entries))
            metrics.count("kinesis_records_put", len(entries))
            metrics.count("bytes_put", sum(len(entry.data) for entry in entries))
            for entry in entries:
                metrics.observe("user_records_per_kinesis_record", len(entry.records))
                metrics.observe("put_delay_s", now_s - entry.records[0].put_s)
        for reason, count in result.retry_counts.items():
            metrics.count("put_retries", count, {"reason": reason})
        for shard_id, pause_s in result.pauses.items():
            metrics.count("throttle_pause_s", pause_s, {"shard": shard_id or "any"})
        if result.possible_duplicate_count:
            metrics.count("possible_duplicates", result.possible_duplicate_count)
        metrics.gauge("records_waiting", self._batcher.waiting_count)
        metrics.gauge("bytes_waiting", self._batcher.waiting_bytes)
