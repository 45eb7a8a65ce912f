"""The loop of a queue's consumer. It owns the machine `QueueDelivery`; calls that block run on pools of threads."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final, TypeAlias, TypeVar

from msgspec import Struct
from msgspec.structs import replace

from penstock.core.aggregation import DecodeCounts
from penstock.core.backoff import Backoff
from penstock.core.queueing.queue_delivery import QueueDelivery
from penstock.core.queueing.queue_events import (
    Acknowledge,
    Arrival,
    DeliveryEnd,
    EndedDelivery,
    EntryOutcome,
    HandlerCall,
    QueueCall,
    RecordResult,
)
from penstock.core.queueing.queue_limits import IN_FLIGHT_COUNT_MAX, WAIT_S_MIN
from penstock.core.queueing.receive_pace import ReceivePace
from penstock.core.safe_text import describe_error, text_of
from penstock.errors import (
    AccessDenied,
    NotFound,
    PenstockError,
    Reject,
    Rejected,
    ServiceError,
    UnknownOutcome,
    UsageError,
)
from penstock.ports.clock import Chance, Clock
from penstock.ports.metrics import Metrics
from penstock.ports.queues import FinishedRecords, QueueDescription, Queues, ReceivedRecord
from penstock.queues.handler_calls import HandlerCalls, HandlerWork
from penstock.queues.queue_health import QueueHealth
from penstock.queues.queue_options import QueueConsumerOptions
from penstock.queues.queue_records import RECORD_MEMORY_BYTES, QueueBatch, QueueRecord, records_of
from penstock.runtime.loop import Condition, Loop, Pool
from penstock.runtime.thread_pull import IterationEnded
from penstock.runtime.user_code import UnusableHandlerError

log: logging.Logger = logging.getLogger("penstock.queues")

QueueEvent: TypeAlias = Callable[[float], None]
_Answer = TypeVar("_Answer")
_RECEIVE_BACKOFF: Final = Backoff(0.2, 20.0)
_LAST_CALLS_S: Final = 5.0
"""Time to return the remaining records after `shutdown_timeout_s` has passed."""
_IN_FLIGHT_HIGH: Final = IN_FLIGHT_COUNT_MAX * 8 // 10
_FAILING_AFTER: Final = 3
_FAILED_LATELY_S: Final = 60.0
"""Older failures do not count. A failed call is repeated within 5 s, but only while its record is in hand."""
_NAMES_OF_CALLS: Final = {"acknowledge": "acknowledgements", "visibility": "changes of visibility"}
_SLOW_MEMORY_S: Final = 1.0
_MEMORY_PAUSE_S: Final = 10.0
"""Pause after a call of `finished` that failed slowly: such calls delay acknowledgements while the visibility timeouts run."""


class QueuePools(Struct, frozen=True):
    """The thread pools for calls that block."""

    receive: Pool
    call: Pool
    handler: Pool

    def close(self) -> None:
        """Accept no further work."""
        for pool in (self.receive, self.call, self.handler):
            pool.close()


class QueueLoop(Loop[QueueEvent]):
    """Receives records, calls the handler, acknowledges and renews.

    An event is a function of the time; the loop's thread calls it.

    Args:
        queue: The service's description of the queue.
        worker_id: Shown in health and log.
        pools: The threads for receives, other calls to the service, and handlers.
        finished: A durable memory of records that are done, or None.
        condition: The condition on which the loop's thread waits; None makes one.
    """

    def __init__(
        self,
        *,
        queue: QueueDescription,
        queues: Queues,
        options: QueueConsumerOptions,
        worker_id: str,
        calls: HandlerCalls,
        pools: QueuePools,
        clock: Clock,
        chance: Chance,
        metrics: Metrics,
        finished: FinishedRecords | None = None,
        condition: Condition | None = None,
    ) -> None:
        super().__init__(condition)
        self._queue = queue
        self._queues = queues
        self._options = options
        self._worker_id = worker_id
        self._calls = calls
        self._pools = pools
        self._clock = clock
        self._chance = chance
        self._metrics = metrics
        self._finished = finished
        self._memory_paused_until_s = float("-inf")  # set by several threads: the last one counts
        machine = options.queueing_options(queue)
        self._visibility_s = machine.visibility_s
        self._delivery = QueueDelivery(machine)
        self._pace = ReceivePace(options.receives_max, _RECEIVE_BACKOFF)
        self._records: dict[int, list[QueueRecord]] = {}  # user records of deliveries in hand, by number
        self._stop_s: float | None = None
        self._is_abandoned = False  # the stop took too long: calls of the handler are not waited for
        self._gauges_set_s = clock.monotonic_s()  # when the gauges were set
        self._answered_s: float | None = None  # when a receive was last answered
        self._receive_failure: str | None = None  # of the last receive
        # Failed calls of other kinds, by kind: the number in a row, and the time and text of the last failure.
        self._failed_calls: dict[str, tuple[int, float, str]] = {}
        self._has_warned_of_in_flight = False  # whether it has warned of too many records in flight
        self._has_warned_of_rejects = False
        self.failure: PenstockError | None = None
        self.has_ended: threading.Event = threading.Event()
        self.consumer: object = None  # set by the consumer: the threads keep it alive
        self._health = self._make_health(self._gauges_set_s)

    # --- from any thread ------------------------------------------------------------------------------

    @property
    def is_in_user_code(self) -> bool:
        return self._calls.is_inside

    def request_stop(self) -> None:
        self.post(self._on_stop)

    def health(self) -> QueueHealth:
        """Return the health at the loop's last turn."""
        return self._health

    # --- the loop -------------------------------------------------------------------------------------

    def handle_events(self, events: list[QueueEvent], now_s: float) -> None:
        """Handle events, then begin all work that is due."""
        for event in events:
            event(now_s)
        self._begin_due_work(now_s)
        for end in self._delivery.take_ends():
            self._on_end(end)
        if now_s - self._gauges_set_s >= self._options.metrics_interval_s:
            self._set_gauges(now_s)
        self._health = self._make_health(now_s)
        if self._stop_s is not None:
            self._continue_stop(now_s)

    def _begin_due_work(self, now_s: float) -> None:
        """Begin the handler's calls that have room, the acknowledgements and renewals that are due, and receives."""
        while (call := self._delivery.take_handler_call(now_s)) is not None:
            self._begin_call(call)
        # During a stop, an open receive would get a returned record again, and this receive would count towards the dead letters.
        self._delivery.holds_returns = (
            self._stop_s is not None
            and self._pace.open_count > 0
            and now_s - self._stop_s < self._options.shutdown_timeout_s
        )
        for due in self._delivery.take_due_calls(now_s):
            self._send(due)
        if self._stop_s is None:
            begun = self._pace.plan(
                self._delivery.fetch_room,
                is_starving=self._delivery.is_starving,
                target_count=self._delivery.target_count,
                now_s=now_s,
            )
            for number, limit in begun:
                self._pools.receive.submit(partial(self._receive, number, limit))

    def next_wake_s(self) -> float | None:
        times = [self._gauges_set_s + self._options.metrics_interval_s]
        machine_s = self._delivery.next_wake_s()
        if machine_s is not None:
            times.append(machine_s)
        if self._stop_s is not None:
            # Check often: several conditions end the loop, and they have no timers.
            times.append(self._clock.monotonic_s() + 0.1)
        elif self._pace.resumes_s > float("-inf") and self._pace.open_count < self._pace.open_target:
            times.append(max(self._pace.resumes_s, self._clock.monotonic_s() + 0.01))
        return min(times)

    # --- receives -------------------------------------------------------------------------------------

    def _receive(self, number: int, limit: int) -> None:
        """Receive once, on a thread of the pool."""
        if self._stop_s is not None:  # no receive begins during a stop; this one was waiting for a thread
            self.post(lambda _: self._pace.on_not_begun(number))
            return
        began_s = self._clock.monotonic_s()
        arn, wait_s = self._queue.arn, self._options.wait_time_s
        if self._answered_s is None:
            wait_s = WAIT_S_MIN  # the first answer makes the consumer ready, on an idle queue too
        try:
            received = self._queues.receive(arn, limit, wait_s, self._visibility_s)
            arrivals = [self._arrival_of(each) for each in received]
            finished = self._fetch_finished([each.record_id for each in received])
        except Exception as error:  # noqa: BLE001 - judged on the loop's thread
            self.post(partial(self._on_receive_failed, number, error))
            return
        if finished:
            arrivals = [
                (replace(each, is_finished=each.record_id in finished), records) for each, records in arrivals
            ]
        duration_s = self._clock.monotonic_s() - began_s
        self.post(partial(self._on_received, number, arrivals, duration_s))
        if self.is_finished and received:  # a long poll that ended after the stop
            self._return_records([each.handle for each in received])

    def _arrival_of(self, received: ReceivedRecord) -> tuple[Arrival, list[QueueRecord]]:
        """Return a received record as an event of `QueueDelivery`, and the user records in it."""
        counts = DecodeCounts()
        records = records_of(received, self._queue.name, counts)
        if counts.aggregates:
            self._metrics.count("queue_aggregates", counts.aggregates)
        if counts.undecodable:
            for reason, count in counts.undecodable.items():
                self._metrics.count("queue_undecodable_aggregates", count, {"reason": reason.name.lower()})
        memory_bytes = len(received.data) + len(records) * RECORD_MEMORY_BYTES
        return Arrival(
            received.handle, received.record_id, received.receive_count, len(records), memory_bytes
        ), records

    def _fetch_finished(self, record_ids: list[str]) -> frozenset[str]:
        memory = self._finished
        if memory is None or not record_ids:
            return frozenset()
        return self._call_memory(lambda: frozenset(memory.fetch_finished(record_ids))) or frozenset()

    def _call_memory(self, ask: Callable[[], _Answer]) -> _Answer | None:
        """Call the durable memory; return None if that fails, or if it failed slowly a short time ago."""
        began_s = self._clock.monotonic_s()
        if began_s < self._memory_paused_until_s:
            self._metrics.count("queue_memory_failures")
            return None
        try:
            return ask()
        except BaseException as error:  # noqa: BLE001 - without the memory records may be handled twice, and are not lost
            ended_s = self._clock.monotonic_s()
            self._metrics.count("queue_memory_failures")
            is_slow = ended_s - began_s >= _SLOW_MEMORY_S
            if is_slow:
                self._memory_paused_until_s = ended_s + _MEMORY_PAUSE_S
            log.warning(
                "queue %s: the memory of finished records failed%s: %s",
                self._queue.name,
                f", and is not used for {_MEMORY_PAUSE_S:.0f} s" if is_slow else "",
                describe_error(error),
            )
            return None

    def _return_records(self, handles: Sequence[str]) -> None:
        try:
            self._queues.set_visibility(self._queue.arn, handles, [0] * len(handles))
        except PenstockError as error:
            log.info(
                "queue %s: records of a late answer are visible again after %d s: %s",
                self._queue.name,
                self._visibility_s,
                error,
            )

    def _on_received(
        self, number: int, arrivals: list[tuple[Arrival, list[QueueRecord]]], duration_s: float, now_s: float
    ) -> None:
        """Handle the answer of the receive with this number: records, or none."""
        self._pace.on_answered(number, len(arrivals), duration_s, now_s)
        self._answered_s = now_s
        if self._receive_failure is not None:
            log.info("queue %s: receives are answered again", self._queue.name)
            self._receive_failure = None
        self._metrics.count("queue_receives", 1, {"result": "records" if arrivals else "empty"})
        if not arrivals:
            return
        again = sum(arrival.receive_count > 1 for arrival, _ in arrivals)
        self._metrics.count("queue_records_received", len(arrivals))
        if again:
            self._metrics.count("queue_records_redelivered", again)
        numbers = self._delivery.on_received([arrival for arrival, _ in arrivals], now_s)
        self._records.update(zip(numbers, (records for _, records in arrivals), strict=True))

    def _on_receive_failed(self, number: int, error: Exception, now_s: float) -> None:
        """Handle a failed receive. A lasting refusal stops the consumer. After any other failure, the pace begins a new receive."""
        self._pace.on_failed(number, now_s, self._chance.random())
        text = describe_error(error)
        self._metrics.count("queue_receives", 1, {"result": type(error).__name__})
        if isinstance(error, AccessDenied | NotFound | Rejected | UsageError):
            self.fail(error)
        elif not isinstance(error, ServiceError):
            log.error("queue %s: a receive failed in an unexpected way", self._queue.name, exc_info=error)
        elif self._pace.failure_count == _FAILING_AFTER:
            log.warning("queue %s: receives keep failing: %s", self._queue.name, text)
        self._receive_failure = text

    # --- user code ------------------------------------------------------------------------------------

    def _begin_call(self, call: HandlerCall) -> None:
        records = [self._records[part.delivery][part.place] for part in call.parts]
        is_single = self._options.batch_records_max is None
        batch = QueueBatch(records, partial(self._post_result, call))
        began_s = self._clock.monotonic_s()

        def end(error: BaseException | None) -> None:
            self.post(partial(self._on_handled, call, began_s, error))

        self._calls.begin(HandlerWork(batch, is_single, end))

    def _post_result(self, call: HandlerCall, place: int, result: RecordResult) -> None:
        part = call.parts[place]
        self.post(
            lambda now_s: self._delivery.on_result(call.number, part, result, now_s, self._chance.random())
        )

    def _on_handled(
        self, call: HandlerCall, began_s: float, error: BaseException | None, now_s: float
    ) -> None:
        self._metrics.observe("queue_handler_s", now_s - began_s)
        rest = RecordResult.DONE if error is None else self._result_of(error)
        # Draw a random number only for a back-off: the system's source costs more than the rest of this function.
        chance = 0.0 if rest is RecordResult.DONE else self._chance.random()
        self._delivery.on_call_ended(call.number, rest, now_s, chance)

    def _result_of(self, error: BaseException) -> RecordResult:
        """Return the result of records whose handler raised; log and count it."""
        kind = type(error)  # isinstance would read the object's `__class__`, which is user code
        if issubclass(kind, IterationEnded):
            return RecordResult.UNHANDLED
        if issubclass(kind, Reject):
            self._metrics.count("queue_handler_failures", 1, {"result": "rejected"})
            log.warning("queue %s: a record was rejected: %s", self._queue.name, text_of(error))
            if self._queue.dead_letters.receive_count_max is None and not self._has_warned_of_rejects:
                self._has_warned_of_rejects = True
                log.warning(
                    "queue %s has no dead letters, so a rejected record is delivered again every %.0f s until retention ends: penstock "
                    "queues update %s --max-receive-count 6",
                    self._queue.name,
                    self._options.backoff_max_s,
                    self._queue.name,
                )
            return RecordResult.REJECTED
        if issubclass(kind, UnusableHandlerError):
            assert isinstance(error, UnusableHandlerError)
            self.fail(error)
            return RecordResult.UNHANDLED
        self._metrics.count("queue_handler_failures", 1, {"result": "failed"})
        log.warning(
            "queue %s: the handler failed, and its records are delivered again",
            self._queue.name,
            exc_info=error,
        )
        return RecordResult.FAILED

    # --- calls to the service -------------------------------------------------------------------------

    def _send(self, call: QueueCall) -> None:
        if not isinstance(call, Acknowledge):
            # A shorter timeout is no renewal: it returns the record.
            renewals = sum(seconds == self._visibility_s for seconds in call.seconds)
            if renewals:
                self._metrics.count("queue_visibility_renewals", renewals)
        self._pools.call.submit(partial(self._run_call, call))

    def _run_call(self, call: QueueCall) -> None:
        """Make one call, on a thread of the pool."""
        arn = self._queue.arn
        failure: Exception | None = None
        try:
            if isinstance(call, Acknowledge):
                memory, record_ids = self._finished, call.record_ids
                if memory is not None:
                    self._call_memory(lambda: memory.put_finished(record_ids))
                results = self._queues.acknowledge(arn, call.handles)
            else:
                results = self._queues.set_visibility(arn, call.handles, call.seconds)
            outcomes = [each.outcome for each in results]
            refused = next((each for each in results if each.outcome is EntryOutcome.REFUSED), None)
            text = None if refused is None else f"{refused.code}: {refused.message}"
        except Exception as error:  # noqa: BLE001 - judged below and on the loop's thread
            failure, text = error, describe_error(error)
            outcomes = [_outcome_of(error)] * len(call.handles)
        self.post(partial(self._on_call_ended, call, outcomes, failure, text))

    def _on_call_ended(
        self,
        call: QueueCall,
        outcomes: list[EntryOutcome],
        failure: Exception | None,
        text: str | None,
        now_s: float,
    ) -> None:
        """Handle the end of a call; `text` describes why it failed in whole or in part."""
        kind = "acknowledge" if isinstance(call, Acknowledge) else "visibility"
        for outcome in (EntryOutcome.REFUSED, EntryOutcome.UNKNOWN, EntryOutcome.VOID):
            count = outcomes.count(outcome)
            if count:
                self._metrics.count("queue_entries_failed", count, {"call": kind, "result": outcome.value})
        failed_count, _, last_text = self._failed_calls.pop(kind, (0, now_s, None))
        if text is not None:
            if text != last_text:
                log.warning("queue %s: a call (%s) failed: %s", self._queue.name, kind, text)
            self._failed_calls[kind] = (failed_count + 1, now_s, text)
        self._delivery.on_answered(call.number, outcomes, now_s, self._chance.random())
        # If acknowledgements are denied, every record would be handled repeatedly.
        if isinstance(failure, AccessDenied | NotFound):
            self.fail(failure)

    # --- ends -----------------------------------------------------------------------------------------

    def _on_end(self, end: EndedDelivery) -> None:
        self._records.pop(end.delivery, None)
        self._metrics.count("queue_records_ended", 1, {"end": end.end.value})
        if end.may_be_acknowledged:
            self._metrics.count("queue_unknown_outcomes")
            log.warning(
                "queue %s: the acknowledgement of record %s was sent and not answered; it ended as %s and may be delivered again",
                self._queue.name,
                end.record_id,
                end.end.value,
            )
        if end.end is DeliveryEnd.VOID and end.is_in_handler:
            log.warning(
                "queue %s: the visibility of record %s ended after %.0f s while the handler had it; it is delivered again",
                self._queue.name,
                end.record_id,
                end.held_s,
            )
        elif end.end is DeliveryEnd.ACKNOWLEDGED:
            self._metrics.observe("queue_held_s", end.held_s)

    def fail(self, error: PenstockError) -> None:
        """Stop because of a lasting failure; `run` raises it."""
        if self.failure is None:
            self.failure = error
            log.error("queue %s: the consumer stops: %s", self._queue.name, text_of(error))
        if self._stop_s is None:
            self._on_stop(self._clock.monotonic_s())

    def _on_stop(self, now_s: float) -> None:
        if self._stop_s is None:
            self._stop_s = now_s
            self._delivery.on_stop(now_s)
            if self._pace.open_count:
                log.info(
                    "queue %s: the consumer stops when its open receives are answered, within %d s",
                    self._queue.name,
                    self._options.wait_time_s,
                )

    def _continue_stop(self, now_s: float) -> None:
        """Return the handler's records after the timeout; end the loop when nothing is left to wait for."""
        assert self._stop_s is not None
        passed_s = now_s - self._stop_s
        timeout_s = self._options.shutdown_timeout_s
        is_late = passed_s >= timeout_s
        if is_late and not self._is_abandoned:
            self._is_abandoned = True
            if self._delivery.running_calls:
                log.warning(
                    "queue %s: %d calls of the handler took longer than %g s to end; their records are returned",
                    self._queue.name,
                    self._delivery.running_calls,
                    timeout_s,
                )
            self._delivery.on_abandon(now_s)
            self._begin_due_work(now_s)
            for end in self._delivery.take_ends():
                self._on_end(end)
        # A long poll cannot be cancelled: the service may still answer it with a record, which then is invisible for a whole timeout.
        awaits_receives = self._pace.open_count > 0 and not is_late
        awaits_handler = self._delivery.running_calls > 0 and not self._is_abandoned
        is_done = self._delivery.is_idle and not awaits_receives and not awaits_handler
        if is_done or passed_s >= timeout_s + _LAST_CALLS_S:
            self._set_gauges(now_s)
            self._health = self._make_health(now_s, has_ended=True)
            self.finish()
            self._pools.close()
            self.has_ended.set()

    def crash(self, error: BaseException) -> None:
        """End because the loop itself failed."""
        if self.failure is None:
            self.failure = PenstockError(
                f"queue {self._queue.name}: the consumer failed: {describe_error(error)}"
            )
        self.finish()
        self._pools.close()
        self.has_ended.set()

    # --- measuring ------------------------------------------------------------------------------------

    def _set_gauges(self, now_s: float) -> None:
        """Set the gauges; warn once when the records in flight approach the service's bound."""
        self._gauges_set_s = now_s
        in_flight = self._delivery.in_flight_count(now_s)
        self._metrics.gauge("queue_in_hand_records", self._delivery.in_hand_count)
        self._metrics.gauge("queue_in_hand_bytes", self._delivery.in_hand_bytes)
        self._metrics.gauge("queue_in_flight_records", in_flight)
        self._metrics.gauge("queue_oldest_unacknowledged_s", self._delivery.oldest_age_s(now_s) or 0.0)
        self._metrics.gauge("queue_receives_open", self._pace.open_count)
        self._metrics.gauge("queue_handler_calls", self._delivery.running_calls)
        is_high = in_flight >= _IN_FLIGHT_HIGH
        if is_high and not self._has_warned_of_in_flight:
            log.warning(self._in_flight_problem(in_flight))
        self._has_warned_of_in_flight = is_high

    def _in_flight_problem(self, in_flight: int) -> str:
        return (
            f"queue {self._queue.name}: {in_flight:,} records are in flight by this consumer alone, and the service delivers nothing above "
            f"{IN_FLIGHT_COUNT_MAX:,} of the whole queue; shorten backoff_max_s, or find out why the handler fails"
        )

    def _make_health(self, now_s: float, *, has_ended: bool = False) -> QueueHealth:
        in_flight = self._delivery.in_flight_count(now_s)
        problems: list[str] = []
        if self.failure is not None:
            problems.append(f"the consumer failed: {text_of(self.failure)}")
        elif has_ended:
            problems.append("the consumer has stopped")
        if self._pace.failure_count >= _FAILING_AFTER and self._receive_failure is not None:
            problems.append(f"receives keep failing: {self._receive_failure}")
        # Without a record in hand there are no calls that could show a recovery.
        if self._delivery.in_hand_count:
            problems += [
                f"{_NAMES_OF_CALLS[kind]} keep failing: {text}"
                for kind, (count, failed_s, text) in self._failed_calls.items()
                if count >= _FAILING_AFTER and now_s - failed_s < _FAILED_LATELY_S
            ]
        if in_flight >= _IN_FLIGHT_HIGH:
            problems.append(self._in_flight_problem(in_flight))
        call_s, call_max_s = self._delivery.longest_call_s(now_s), self._options.handling_time_max_s
        if call_s >= call_max_s:
            problems.append(
                f"a call of the handler has not returned for {call_s:.0f} s: after handling_time_max_s={call_max_s:g} its records "
                "are delivered again"
            )
        oldest_s = self._delivery.oldest_age_s(now_s)
        is_running = self._stop_s is None and self.failure is None
        is_answered = self._answered_s is not None and not self._pace.failure_count
        return QueueHealth(
            is_healthy=not problems,
            is_ready=is_running and is_answered,
            problems=tuple(problems),
            queue=self._queue.name,
            queue_arn=self._queue.arn,
            worker_id=self._worker_id,
            in_hand=self._delivery.in_hand_count,
            in_handler=self._delivery.running_calls,
            in_flight=in_flight,
            oldest_unacknowledged_s=None if oldest_s is None else round(oldest_s, 3),
            receives_open=self._pace.open_count,
            last_answer_age_s=None if self._answered_s is None else round(now_s - self._answered_s, 3),
        )


def _outcome_of(error: Exception) -> EntryOutcome:
    if isinstance(error, UnknownOutcome):
        return EntryOutcome.UNKNOWN
    return EntryOutcome.VOID if isinstance(error, NotFound | Rejected) else EntryOutcome.REFUSED
