"""Probes idle shards for news: at most one small read per shard and interval.

A shard whose last batch ended before the tip has more to read and is never probed. The others are asked with a `GetRecords`
of one record, with an iterator that is kept from probe to probe.

A probe is sent once. A failed probe postpones its shard and no other. A shard without an answer for longer than the
deadline ends the query, with an error that names it. Some answers can only be judged by a task: a shard that is gone, a
position that the service refuses, a record that has left the stream and may have taken others along. They count as news, so
that a task is planned for the shard and raises the error or logs the loss.
"""

from __future__ import annotations

import math
import random
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import Final, TypeAlias

from msgspec import Struct

from penstock.core.aggregation import deaggregate
from penstock.core.backoff import Backoff
from penstock.core.batches.probe_pace import READ_COST_S, ProbePace
from penstock.core.batches.shard_state import ShardState
from penstock.core.limits import RETENTION_DEFAULT_MS
from penstock.core.reading.lag import age_ms
from penstock.core.reading.reader_steps import FailureMeaning, judge_failure
from penstock.core.reading.resume import (
    MissingRecord,
    are_unread_records_kept,
    judge_missing_record,
    plan_iterator,
)
from penstock.core.reading.service_clock import ServiceClock, SteadyServiceClock
from penstock.core.shard import ChildShard
from penstock.core.shard_graph import find_children
from penstock.errors import PenstockError, ServiceError, Throttled, Unavailable
from penstock.ports.clock import Chance, Clock
from penstock.ports.kinesis import IteratorStart, IteratorType, Kinesis, RawRecord, RecordPage
from penstock.runtime.threads import SYSTEM_THREADS, Threads
from penstock.spark.options.spark_options import SourceOptions

_THREADS_MAX: Final = 16
_CHANCE: Final = random.SystemRandom()
_BACKOFF: Final = Backoff(0.1, 5.0)
_DEADLINE_S: Final = 60.0
_WAIT_MAX_S: Final = 1.0  # for answers, before a plan goes on without them
_WAIT_WITH_NEWS_S: Final = 0.2  # a batch need not wait for a thousand shards of which ten have news
_MANY_SHARDS: Final = 64  # for up to this many probes, wait for all answers: one batch instead of two
_NAMED_MAX: Final = 5
_JUDGED_BY_A_TASK: Final = (
    FailureMeaning.UNKNOWN_SHARD,
    FailureMeaning.POSITION_REFUSED,
    FailureMeaning.REQUEST_REFUSED,
)
_ITERATOR_FAILURES: Final = (FailureMeaning.ITERATOR_EXPIRED, FailureMeaning.ITERATOR_REFUSED)


class _Answer(Struct, frozen=True):
    """Result of one probe: a page or an error, and its moment, since a batch may run before it is handled."""

    shard_id: str
    state: ShardState
    iterator: str | None
    received_s: float
    received_ms: int
    page: RecordPage | None = None
    error: Exception | None = None


class _FailureSeries(Struct):
    """Failed probes of one shard in a row; `error` is the last one of the service."""

    since_s: float
    error: ServiceError | None = None
    count: int = 0


_States: TypeAlias = dict[str, ShardState]


class NewsPoller:
    """Probes shards for news. Used by one thread; probes several shards at once.

    Args:
        stream: Name or ARN.
        interval_s: Between two probes of one quiet shard.
        backoff: Delays after failed probes of a shard.
        deadline_s: A shard without an answer for longer ends the query.
        check_stream: Called if the service does not know a shard; raises an error if the stream itself is gone.
        read_cost_s: Seconds from one read of a shard to the next in the long run; 0 if there is no quota.
    """

    def __init__(
        self,
        kinesis: Kinesis,
        stream: str,
        interval_s: float,
        clock: Clock,
        *,
        backoff: Backoff = _BACKOFF,
        deadline_s: float = _DEADLINE_S,
        check_stream: Callable[[], None] = lambda: None,
        threads: Threads = SYSTEM_THREADS,
        chance: Chance = _CHANCE,
        read_cost_s: float = READ_COST_S,
    ) -> None:
        self._kinesis = kinesis
        self._probing_kinesis = kinesis.without_retries()
        self._stream = stream
        self._interval_s = interval_s
        self._clock = clock
        self._backoff = backoff
        self._deadline_s = deadline_s
        self._check_stream = check_stream
        self._chance = chance
        self._pool = threads.pool("penstock-probe", _THREADS_MAX)
        self._answer_arrived = threads.condition()
        self._answers: deque[_Answer] = deque()
        # Probes under way, by shard: when the call began; infinity while it waits for a thread.
        self._probes: dict[str, float] = {}
        self._failing: dict[str, _FailureSeries] = {}
        self._read_cost_s = read_cost_s
        self._paces: dict[str, ProbePace] = {}
        self._children_due_s = -math.inf  # when the children of ended shards are listed next
        self._counted_states: _States = {}  # by shard: the last state whose batch its pace has counted
        self._service_clock = ServiceClock()
        self._steady_clock = SteadyServiceClock()
        self._retention_ms = RETENTION_DEFAULT_MS

    def probe_due_shards(
        self, states: Iterable[tuple[str, ShardState]], *, retention_ms: int = RETENTION_DEFAULT_MS
    ) -> None:
        """Probe every shard whose probe is due, and mark in its state whether it has news.

        Return when all have answered; after a fifth of a second if more than 64 were probed and any shard has news; or
        after an interval (at most a second). An answer that takes longer counts at the next call.

        Args:
            states: Shard id and state of each of the query's shards. One that has news is not probed.
            retention_ms: How long the stream keeps a record.

        Raises:
            Unavailable: A shard gave no answer for longer than the deadline.
            ServiceError: A probe failed permanently.
        """
        self._retention_ms = retention_ms
        current: _States = dict(states)
        now_s = self._clock.monotonic_s()
        due = [
            (key, state)
            for key, state in current.items()
            if not state.has_news
            and not state.is_finished
            and key not in self._probes
            and state.due_s <= now_s
            and not self._postpone_for_quota(key, state, now_s)
        ]
        for key, state in due:
            state.due_s = self._paces[key].on_probe(now_s, self._interval_s)
            self._probes[key] = math.inf
            self._submit(key, state)
        for key in self._paces.keys() - current.keys():
            del self._paces[key], self._counted_states[key]
        self._await_answers(current, {key for key, _ in due})
        self._raise_overdue(current)

    def _postpone_for_quota(self, key: str, state: ShardState, now_s: float) -> bool:
        """Postpone a probe until the shard's read quota has room for it; return False if it has room now."""
        pace = self._paces.get(key)
        if pace is None:
            pace = self._paces[key] = ProbePace(self._read_cost_s)
        if self._counted_states.get(key) is not state:  # a batch has run since
            self._counted_states[key] = state
            if state.bytes_count:
                pace.on_batch(now_s)
        state.due_s = max(state.due_s, pace.ready_s)
        return state.due_s > now_s

    def next_probe_s(self, states: Iterable[ShardState]) -> float:
        """Return the moment of the next probe of these shards, on the monotonic clock; without shards, an interval from now."""
        return min((state.due_s for state in states), default=self._clock.monotonic_s() + self._interval_s)

    @property
    def has_service_clock(self) -> bool:
        """Whether an answer has shown the service's time."""
        return self._steady_clock.has_answer

    def fetch_now_ms(self) -> int:
        """Return the present moment by the service's clock; list the shards if no probe has shown it."""
        # No shard is probed if each has more to read. This machine's clock may be wrong by hours.
        if not self.has_service_clock:
            server_ms = self._kinesis.fetch_shards(self._stream).server_ms
            self._on_answer_time(*self._moment(), server_ms)
        return self.steady_now_ms()

    def steady_now_ms(self) -> int:
        """Return the present moment by the service's clock, even if this machine's clock was set since the last answer."""
        return self._steady_clock.now_ms(self._clock.monotonic_s(), self._service_now_ms())

    def _service_now_ms(self) -> int:
        """Return the present moment by the service's clock, if this machine's clock was not set since the last answer."""
        return self._service_clock.now_ms(self._clock.wall_ms())

    def list_children(self, ended_shards: Sequence[str]) -> dict[str, tuple[ChildShard, ...]]:
        """List the shards, at most once per interval, and return the children by ended shard. Unlisted children: no entry."""
        now_s = self._clock.monotonic_s()
        if not ended_shards or now_s < self._children_due_s:
            return {}
        self._children_due_s = now_s + self._interval_s
        return find_children(ended_shards, self._kinesis.fetch_shards(self._stream).shards)

    def close(self) -> None:
        """End the threads after their calls."""
        self._pool.close()

    # --- probing, on the pool's threads --------------------------------------------------------------------

    def _submit(self, key: str, state: ShardState) -> None:
        iterator, start = state.iterator, self._probe_start(state)
        if iterator is None:
            state.unread_since_ms = None  # of an earlier iterator, if any
        self._pool.submit(lambda: self._put_answer(self._probe(key, state, iterator, start)))

    def _probe(self, key: str, state: ShardState, iterator: str | None, start: IteratorStart) -> _Answer:
        # Time in the pool's queue does not count as a missing answer.
        self._probes[key] = self._clock.monotonic_s()
        try:
            if iterator is None:
                iterator = self._probing_kinesis.fetch_iterator(self._stream, key, start)
            page = self._probing_kinesis.fetch_records(self._stream, iterator, 1)
        except Exception as error:  # noqa: BLE001 - raised again, or judged, by the thread that sent the probe
            return _Answer(key, state, iterator, *self._moment(), error=error)
        return _Answer(key, state, iterator, *self._moment(), page=page)

    def _moment(self) -> tuple[float, int]:
        return self._clock.monotonic_s(), self._clock.wall_ms()

    def _probe_start(self, state: ShardState) -> IteratorStart:
        """Return the start of a probe: after the position's record if that is safe, else at it.

        It is safe if all user records of that Kinesis record are done, and no later record can have left the stream: an
        iterator after a record silently skips records that have left.
        """
        number = state.position.sequence_number
        if state.is_whole_record and number is not None and self._was_at_tip(state, self._service_now_ms()):
            return IteratorStart(IteratorType.AFTER_SEQUENCE_NUMBER, sequence_number=number)
        return plan_iterator(state.position)

    def _was_at_tip(self, state: ShardState, now_ms: int) -> bool:
        """Return whether nothing followed the position at a moment within the retention: later records are then still there."""
        meaning = judge_missing_record(
            state.position,
            unread_since_ms=state.tip_seen_ms,
            is_foreign=False,
            now_ms=now_ms,
            retention_ms=self._retention_ms,
            is_open_and_empty=True,
        )
        return meaning is MissingRecord.HARMLESS

    def _are_unread_records_kept(self, state: ShardState, now_ms: int) -> bool:
        """Return whether the stream certainly still has every unread record."""
        since_ms = state.unread_since_ms
        is_kept = since_ms is not None and are_unread_records_kept(
            since_ms, now_ms=now_ms, retention_ms=self._retention_ms
        )
        return is_kept or self._was_at_tip(state, now_ms)

    def _put_answer(self, answer: _Answer) -> None:
        with self._answer_arrived:
            self._answers.append(answer)
            self._answer_arrived.notify_all()

    # --- answers ----------------------------------------------------------------------------------

    def _await_answers(self, current: _States, probed: set[str]) -> None:
        """Handle answers until all probed shards have answered, or the time for them is over.

        Args:
            current: State by shard. An answer counts only if it was asked for with this state: a batch gives its shards new ones.
            probed: The shards whose probes this call has begun.
        """
        began_s = self._clock.monotonic_s()
        end_s = began_s + min(max(self._interval_s, 0.2), _WAIT_MAX_S)
        # Once a shard has news, wait only until this moment.
        end_with_news_s = min(end_s, began_s + _WAIT_WITH_NEWS_S) if len(probed) > _MANY_SHARDS else end_s
        if any(state.has_news for state in current.values()):
            end_s = end_with_news_s
        while True:
            left_s = end_s - self._clock.monotonic_s() if probed & self._probes.keys() else 0.0
            answer = self._next_answer(left_s)
            if answer is None:
                break
            self._probes.pop(answer.shard_id, None)
            self._on_answer(answer, current)
            if answer.state.has_news:
                end_s = end_with_news_s
        for key in self._probes.keys() & current.keys():
            current[key].due_s = self._clock.monotonic_s() + self._interval_s

    def _next_answer(self, timeout_s: float) -> _Answer | None:
        with self._answer_arrived:
            self._answer_arrived.wait_for(lambda: bool(self._answers), max(0.0, timeout_s))
            return self._answers.popleft() if self._answers else None

    def _on_answer(self, answer: _Answer, current: _States) -> None:
        """Handle the answer of a probe. If a batch has read the shard since, the answer only ends a series of failures."""
        key, state = answer.shard_id, answer.state
        if answer.error is None:
            self._failing.pop(key, None)
        if current.get(key) is not state:
            return
        if answer.page is not None:
            now_ms = self._on_answer_time(answer.received_s, answer.received_ms, answer.page.server_ms)
            self._on_page(state, answer.page, now_ms)
        elif answer.error is not None:
            self._on_failure(answer, answer.error)

    def _on_failure(self, answer: _Answer, error: Exception) -> None:
        """Handle a failed probe: leave the shard to a task, raise the error, or probe again after a pause."""
        key, state = answer.shard_id, answer.state
        if not isinstance(error, PenstockError):
            raise error
        meaning = judge_failure(error, requested_iterator=answer.iterator is None)
        if meaning in _JUDGED_BY_A_TASK:
            # The task that reads the shard finds out whether the shard or the position is gone.
            self._check_stream()
            state.iterator, state.has_news = None, True
            self._failing.pop(key, None)
            return
        if meaning is not FailureMeaning.TRANSIENT and meaning not in _ITERATOR_FAILURES:
            raise error
        if isinstance(error, Throttled):
            self._paces[key].on_refusal(self._clock.monotonic_s())
        failing = self._failing.setdefault(key, _FailureSeries(self._clock.monotonic_s()))
        failing.count += 1
        if isinstance(error, ServiceError):
            failing.error = error
        delay_s = max(self._interval_s, self._backoff.delay_s(failing.count, self._chance.random()))
        if meaning in _ITERATOR_FAILURES:
            state.iterator = None
            if failing.count == 1:
                delay_s = 0.0
        state.due_s = self._clock.monotonic_s() + delay_s

    def _raise_overdue(self, current: _States) -> None:
        """Raise an error if a shard's probe is under way, or its probes have failed, for longer than the deadline."""
        now_s = self._clock.monotonic_s()
        for key in self._failing.keys() - current.keys():
            del self._failing[key]
        # A shard with news is not probed again: its task finds out whether it can be read.
        unanswered_since_s = {
            key: failing.since_s for key, failing in self._failing.items() if not current[key].has_news
        }
        for key in self._probes.keys() & current.keys():
            unanswered_since_s[key] = min(unanswered_since_s.get(key, math.inf), self._probes[key])
        overdue = sorted(
            key for key, since_s in unanswered_since_s.items() if now_s - since_s > self._deadline_s
        )
        if not overdue:
            return
        named = ", ".join(overdue[:_NAMED_MAX]) + (" ..." if len(overdue) > _NAMED_MAX else "")
        longest_s = now_s - min(unanswered_since_s[key] for key in overdue)
        last = next((self._failing[key].error for key in overdue if key in self._failing), None)
        raise Unavailable(
            f"stream {self._stream}: {named} gave no answer for {longest_s:.0f} s, longer than option retryDeadline allows; "
            f"last: {'a call that is still under way' if last is None else last}. All batches so far are done: start the query "
            "again when the service answers",
            operation="GetRecords",
            code="" if last is None else last.code,
            resource=self._stream,
        ) from last

    def _on_answer_time(self, received_s: float, received_ms: int, server_ms: int | None) -> int:
        """Set the service's clock by an answer, and return the answer's moment."""
        service_ms = self._service_clock.on_answer(received_ms, server_ms)
        self._steady_clock.on_answer(received_s, service_ms)
        return service_ms

    def _on_page(self, state: ShardState, page: RecordPage, now_ms: int) -> None:
        """Handle the page of a probe: it shows whether unread records follow the position."""
        state.millis_behind_latest = page.millis_behind_latest
        is_last = page.next_iterator is None
        first = page.records[0] if page.records else None
        if first is not None and first.sequence_number == state.position.sequence_number:
            state.unread_since_ms = now_ms - (page.millis_behind_latest or 0)
            if _is_record_done(state, first):
                # It shows nothing about later records, so the next probe begins after it.
                state.is_whole_record = True
                state.iterator = page.next_iterator
                state.due_s = self._clock.monotonic_s()
                if is_last:
                    state.is_probed = True
                    _on_last_page(state, page)
                return
        state.is_probed = True
        if first is not None:
            state.has_news = True
            state.arrival_ms = round(first.arrival_s * 1000)
            state.millis_behind_latest = age_ms(first.arrival_s, now_ms)
            return
        state.iterator = page.next_iterator
        if (is_last or not page.millis_behind_latest) and not self._are_unread_records_kept(state, now_ms):
            # The record of the position has left the stream, and unread records may have left too: a task judges that.
            state.iterator, state.has_news = None, True
        elif is_last:
            _on_last_page(state, page)
        elif page.millis_behind_latest > 0:
            # Empty pages on the way to records: a task goes through them at full speed.
            state.has_news = True
        else:
            state.tip_seen_ms = now_ms


def _is_record_done(state: ShardState, record: RawRecord) -> bool:
    """Return whether the state's position is at or after the last user record of this Kinesis record."""
    user_records = None if state.is_whole_record else deaggregate(record.data)
    return user_records is None or state.position.sub_sequence_number >= len(user_records) - 1


def _on_last_page(state: ShardState, page: RecordPage) -> None:
    """Handle a shard's last page. If it does not name the children, a task finds out whether the shard has ended."""
    state.is_finished = bool(page.child_shards)
    state.has_news = not state.is_finished
    state.children = page.child_shards


def read_cost_s(options: SourceOptions) -> float:
    """Return the seconds from one read of a shard to the next that its quota allows. With fan-out only probes use the quota."""
    share = 0.5 if options.consumer_type == "fan-out" else 1.0
    return share * min(options.fetch_interval_s, READ_COST_S)
