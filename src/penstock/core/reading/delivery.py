"""The delivery of one shard's records to user code, as a machine: the next call, and the records that it acknowledges.

The shell feeds it the records that were read, asks `take_call` for the next call of user code, runs it on a pool
and answers with `on_returned` or `on_raised`. Records get ordinals in stream order; the checkpoint is the *low
watermark*: the highest position below which everything is acknowledged. Later records may be acknowledged too.

Order: with `concurrency=1` the shard is one queue, and one call is under way at a time. With more, each partition
key has its own queue: a call holds records of one key, and a key is never in two calls at once.

A record that fails is never skipped: its call is repeated with a growing pause, and then the failure policy
decides. With `dead_letter` the failing call is first halved until only the record that fails is left in it, so that its
neighbours are not lost with it.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Hashable, Sequence
from itertools import count
from typing import Final, Literal

from msgspec import Struct, field

from penstock.core.backoff import Backoff
from penstock.core.position import Position, at_record
from penstock.core.reading.delivery_calls import (
    QUEUE_MEMORY_BYTES,
    Call,
    CallKind,
    DeliveryOptions,
    Halve,
    Phase,
    Repeat,
    SendToDeadLetter,
    StopDelivery,
    Verdict,
)
from penstock.core.reading.low_watermark import LowWatermark
from penstock.core.reading.record import Record, memory_bytes_of
from penstock.core.safe_text import describe_error
from penstock.core.shard import ChildShard
from penstock.errors import HandlerFailed, UsageError

_WHOLE_SHARD: Final = "the one queue of a shard that is delivered in order"


class _PendingCall(Struct):
    """A call of user code that is under way, or is to be made again.

    Args:
        key: Names the queue of its records; None for a call without records.
    """

    kind: CallKind
    key: Hashable
    records: Sequence[Record]
    ordinals: Sequence[int]
    attempt: int = 1
    error: BaseException | None = None


class _KeyQueue(Struct):
    """The records of one partition key, or of the shard, that wait for a call.

    Args:
        repeated_calls: Made again before any new record is taken; few, since they are the parts of one call.
        ordinals: Of `new_records`; empty in the one queue of a shard, which needs none.
        is_busy: Whether a call of the queue is under way, or is to be made again.
    """

    repeated_calls: list[_PendingCall] = field(default_factory=list)
    new_records: deque[Record] = field(default_factory=deque)
    ordinals: deque[int] = field(default_factory=deque)
    is_busy: bool = False


class ShardDelivery:
    """The machine that delivers one shard. Not thread-safe: one caller at a time.

    Args:
        shard_id: For messages.
        start: The checkpoint at which the shard was taken.
    """

    def __init__(self, shard_id: str, start: Position, options: DeliveryOptions) -> None:
        self.shard_id = shard_id
        self.options = options
        self.phase = Phase.RUNNING
        self.failure: HandlerFailed | None = None
        self.waiting_bytes = 0
        """Memory of the queues, and of the added records whose call has not ended."""
        self.millis_behind_latest = 0
        self.children: tuple[ChildShard, ...] | None = None
        self._start = start
        self._ids = count(1)  # of calls
        self._calls_under_way: dict[int, _PendingCall] = {}  # calls, by id
        self._queues: dict[Hashable, _KeyQueue] = {}
        self._queue_bytes = QUEUE_MEMORY_BYTES if options.concurrency > 1 else 0
        self._ready_keys: deque[Hashable] = deque()  # queues with a call that may begin
        # A heap: when a queue's failed call is repeated.
        self._paused_keys: list[tuple[float, int, Hashable]] = []
        # The calls at the shard's start, end, stop and loss; after a failed one also its next moment and attempt.
        self._lifecycle_states: dict[CallKind, Literal["due", "under way", "done"]] = {}
        self._lifecycle_at_s: dict[CallKind, float] = {}
        self._lifecycle_attempt: dict[CallKind, int] = {}
        self._added_count = 0  # number of records added: the next ordinal
        self._taken_count = 0  # number of records that calls have taken
        self._newest_taken = -1  # the highest ordinal of these
        self._low_watermark = LowWatermark(start)
        self.last_delivered: Position = start
        """The newest record that user code has got."""
        self._sent_checkpoint = start  # the last checkpoint sent
        self._checkpoint_sent_s = float("-inf")  # when it was sent
        self._checkpoint_due_since_s: float | None = None  # since when the low watermark differs from it

    # --- state ---

    @property
    def low_watermark(self) -> Position:
        """Everything up to and including this is done: acknowledged, or skipped after acknowledged records."""
        return self._low_watermark.done_position

    @property
    def done_count(self) -> int:
        """Number of records, from the first one on, that are acknowledged without a gap."""
        return self._low_watermark.ordinal

    @property
    def unacknowledged_count(self) -> int:
        """Records that were read and are not acknowledged."""
        return self._added_count - self._low_watermark.ordinal - self._low_watermark.ahead_count

    @property
    def call_count(self) -> int:
        """Calls of user code under way."""
        return len(self._calls_under_way)

    @property
    def is_acknowledged(self) -> bool:
        """Whether every record that was read is acknowledged."""
        return self._low_watermark.ordinal == self._added_count

    @property
    def is_idle(self) -> bool:
        """Whether no record waits for a call, is in one, or will be repeated."""
        return not self._calls_under_way and not self._has_waiting_records()

    @property
    def is_at_rest(self) -> bool:
        """Whether no call of user code is under way, paused or due."""
        return self.is_idle and self._next_lifecycle_kind() is None

    @property
    def is_finished(self) -> bool:
        """Whether the shard is read to its end, delivered and acknowledged: SHARD_END may be written."""
        return (
            self.children is not None
            and self.phase in (Phase.RUNNING, Phase.STOPPING)
            and self.is_acknowledged
            and not self._calls_under_way
            and (not self.options.is_lifecycle_called or self._lifecycle_states.get(CallKind.END) == "done")
        )

    @property
    def is_stopped(self) -> bool:
        """Whether the delivery was stopped, has failed or has lost the shard, and its last call has ended."""
        if self._calls_under_way:
            return False
        if self.phase is Phase.STOPPING:
            return not self._must_call(CallKind.STOP)
        if self.phase is Phase.LOST:
            return not self._must_call(CallKind.LOST)
        return self.phase is Phase.FAILED

    # --- feeding ---

    def add(self, records: Sequence[Record], millis_behind_latest: int) -> None:
        """Add records that were read, in their order and after those added before."""
        self.millis_behind_latest = millis_behind_latest
        if self.phase is not Phase.RUNNING or not records:
            return
        self.waiting_bytes += memory_bytes_of(records)
        if self.options.concurrency == 1:
            self._open_queue(_WHOLE_SHARD).new_records.extend(records)
            self._added_count += len(records)
            return
        for record in records:
            ordinal = self._added_count
            self._added_count += 1
            # A record without a key has no order to keep: it gets its own queue.
            queue = self._open_queue(record.partition_key if record.partition_key is not None else ordinal)
            queue.new_records.append(record)
            queue.ordinals.append(ordinal)

    def skip(self, position: Position, now_s: float) -> None:
        """Skip the records after the added ones, up to a position: they are not for user code.

        Args:
            position: Of the last skipped record.
        """
        if self.phase is Phase.RUNNING:
            self._low_watermark.skip(self._added_count, position)
            self._schedule_checkpoint(now_s)

    def _open_queue(self, key: Hashable) -> _KeyQueue:
        """Return the queue of a key, to which a record is added now."""
        queue = self._queues.get(key)
        if queue is None:
            queue = self._queues[key] = _KeyQueue()
            self.waiting_bytes += self._queue_bytes
        if not (queue.is_busy or queue.new_records or queue.repeated_calls):
            self._ready_keys.append(key)
        return queue

    def on_shard_end(self, children: tuple[ChildShard, ...]) -> None:
        """Handle the end of the shard: no record will be added."""
        self.children = children

    # --- calling ---

    def take_call(self, now_s: float) -> Call | None:
        """Return the next call of user code, which is under way from now on; None if there is none now."""
        lifecycle = self._next_lifecycle_kind()
        if lifecycle is not None:
            return self._take_lifecycle_call(lifecycle, now_s)
        if self.phase is not Phase.RUNNING or len(self._calls_under_way) >= self.options.concurrency:
            return None
        if not self._is_started:
            return None  # START returns before any record is delivered, also with keys in parallel
        while self._paused_keys and self._paused_keys[0][0] <= now_s:
            self._ready_keys.append(heapq.heappop(self._paused_keys)[2])
        if not self._ready_keys:
            return None
        if self._newest_taken + 1 - self._low_watermark.ordinal >= self.options.window_records_max:
            return self._take_lowest_call()
        return self._take_call_of(self._ready_keys.popleft())

    def next_wake_s(self, *, may_call: bool = True) -> float | None:
        """Return the next moment at which a call or a checkpoint may be due without a further event; None if there is none.

        Args:
            may_call: False while the shard is paused: then no call is due until the delivery stops.
        """
        is_calling = may_call or self.phase is not Phase.RUNNING
        times = []
        if self._paused_keys and self.phase is Phase.RUNNING and is_calling:
            times.append(self._paused_keys[0][0])
        next_kind = self._next_lifecycle_kind() if is_calling else None
        if next_kind is not None and next_kind in self._lifecycle_at_s:
            times.append(self._lifecycle_at_s[next_kind])
        if self._checkpoint_due_since_s is not None and self.phase is not Phase.LOST:
            interval_end_s = self._checkpoint_sent_s + self.options.checkpoint_interval_s
            times.append(max(self._checkpoint_due_since_s, interval_end_s))
        return min(times, default=None)

    def on_returned(self, call_id: int, now_s: float) -> Verdict | None:
        """Handle a call that returned.

        Returns:
            A `StopDelivery` if END has returned and a record is still unacknowledged; else None.
        """
        pending = self._calls_under_way.pop(call_id)
        if pending.kind in (CallKind.BATCH, CallKind.DEAD_LETTER):
            self.waiting_bytes -= memory_bytes_of(pending.records)
            if self.options.checkpointing == "auto" or pending.kind is CallKind.DEAD_LETTER:
                self.acknowledge(pending.records, pending.ordinals, now_s)
            self._free_queue(pending.key)
            return None
        self._lifecycle_states[pending.kind] = "done"
        if pending.kind is CallKind.END and not self.is_acknowledged:
            return self._fail(
                f"shard {self.shard_id}: the end of the shard was delivered and {self.unacknowledged_count} records are "
                f"not checkpointed (the checkpoint is at {self.low_watermark}); checkpoint when the shard ends, "
                "else its children can never start",
                None,
            )
        return None

    def on_not_begun(self, call_id: int) -> None:
        """Put back a call that was taken and never begun: it is next again. If the delivery has stopped, its records are dropped."""
        pending = self._calls_under_way.pop(call_id)
        if pending.key is None:
            self._lifecycle_states[pending.kind] = "due"
            return
        if self.phase is not Phase.RUNNING:
            self.waiting_bytes -= memory_bytes_of(pending.records)
            return
        self._queues[pending.key].repeated_calls.insert(0, pending)
        self._ready_keys.appendleft(pending.key)

    def on_raised(self, call_id: int, error: BaseException, now_s: float, chance: float) -> Verdict | None:
        """Handle a call that raised.

        Returns:
            The next step; None if the shard is not delivered any more, or all records of the call were acknowledged.
        """
        pending = self._calls_under_way.pop(call_id)
        if pending.records and self.phase is not Phase.RUNNING:
            # Not acknowledged, so the next reader of the shard gets the records again.
            self.waiting_bytes -= memory_bytes_of(pending.records)
            return None
        if self.phase is Phase.LOST:
            # A LOST that failed is not repeated. After a STOP or an END that failed, LOST is called; after a START, nothing.
            self._lifecycle_states[pending.kind] = "done" if pending.kind is CallKind.LOST else "due"
            return None
        pending = self._without_acknowledged_records(pending)
        if pending.kind is CallKind.BATCH and not pending.records:
            self._free_queue(pending.key)  # everything was acknowledged before the failure
            return None
        if pending.attempt <= self.options.retries_max:
            return self._plan_repeat(pending, now_s, chance)
        if pending.kind is CallKind.BATCH and self.options.on_failure == "dead_letter":
            return self._halve_or_send(pending, error)
        self.waiting_bytes -= memory_bytes_of(pending.records)
        return self._fail(self._describe_failure(pending, error), error)

    # --- acknowledging ---

    def acknowledge(self, records: Sequence[Record], ordinals: Sequence[int], now_s: float) -> None:
        """Mark records of a call as done, in any order, during the call or after it; `ordinals` are theirs from the `Call`."""
        if isinstance(ordinals, range) and ordinals.start <= self._low_watermark.ordinal < ordinals.stop:
            last = records[-1]
            self._low_watermark.acknowledge_run(ordinals, last.sequence_number, last.sub_sequence_number)
        else:
            self._low_watermark.acknowledge(
                (ordinal, record.sequence_number, record.sub_sequence_number)
                for record, ordinal in zip(records, ordinals, strict=True)
            )
        self._schedule_checkpoint(now_s)

    def acknowledge_through(self, position: Position, now_s: float, ordinal: int | None = None) -> None:
        """Mark everything up to and including a position as done. Only for shards delivered in one queue.

        Args:
            position: From the present low watermark to the newest delivered record.
            ordinal: Of the record at the position, if it is known.

        Raises:
            UsageError: The position lies before the checkpoint, or after the last delivered record. Nothing changed.
        """
        if self.options.concurrency > 1:
            raise UsageError("with concurrency > 1 acknowledge the records of each batch, not a position")
        if position > self.last_delivered:
            raise UsageError(
                f"shard {self.shard_id}: cannot checkpoint {position}: delivered is only what ends at {self.last_delivered}"
            )
        if position < self._low_watermark.position:
            raise UsageError(
                f"shard {self.shard_id}: cannot checkpoint {position}: the checkpoint is at {self.low_watermark} already"
            )
        self._low_watermark.acknowledge_through(position, ordinal)
        self._schedule_checkpoint(now_s)

    # --- checkpoints ---

    def plan_checkpoint(self, now_s: float) -> Position | None:
        """Return the position to store now, or None; for a lost shard nothing is stored."""
        if (
            self.phase is Phase.LOST
            or self.low_watermark == self._sent_checkpoint
            or not self.low_watermark.is_record
            or now_s < self._checkpoint_sent_s + self.options.checkpoint_interval_s
        ):
            return None
        return self.low_watermark

    def on_checkpoint_sent(self, position: Position, now_s: float) -> None:
        """Handle a checkpoint that was sent to the table: the next one follows after `checkpoint_interval_s` at the earliest."""
        self._checkpoint_sent_s = now_s
        self._sent_checkpoint = position
        self._checkpoint_due_since_s = None if position == self.low_watermark else now_s

    # --- ending ---

    def stop(self) -> None:
        """Stop the delivery: calls under way finish, then STOP is called. Waiting records are dropped unacknowledged."""
        if self.phase is Phase.RUNNING:
            self.phase = Phase.STOPPING
            self._drop_waiting_records()

    def on_lease_lost(self) -> None:
        """Handle the loss of the lease: after the calls under way only LOST is called."""
        self.phase = Phase.LOST
        self._drop_waiting_records()

    # --- inside: calls ---

    @property
    def _is_started(self) -> bool:
        """Whether START has returned, if it is called at all."""
        return not self.options.is_lifecycle_called or self._lifecycle_states.get(CallKind.START) == "done"

    def _must_call(self, kind: CallKind) -> bool:
        """Return whether user code that was started must still get this call; none follows END."""
        return (
            self.options.is_lifecycle_called
            and self._is_started
            and self._lifecycle_states.get(kind) != "done"
            and self._lifecycle_states.get(CallKind.END) != "done"
        )

    def _next_lifecycle_kind(self) -> CallKind | None:
        if not self.options.is_lifecycle_called or self._calls_under_way:
            return None
        next_kind: CallKind | None = None
        if self.phase is Phase.LOST:
            next_kind = CallKind.LOST
        elif self.phase is Phase.STOPPING:
            next_kind = CallKind.STOP
        elif self.phase is Phase.RUNNING and not self._is_started:
            return CallKind.START
        elif self.phase is Phase.RUNNING and self.children is not None and not self._has_waiting_records():
            next_kind = CallKind.END
        return next_kind if next_kind is not None and self._must_call(next_kind) else None

    def _has_waiting_records(self) -> bool:
        return self._taken_count < self._added_count or bool(self._paused_keys) or bool(self._ready_keys)

    def _take_lifecycle_call(self, kind: CallKind, now_s: float) -> Call | None:
        if now_s < self._lifecycle_at_s.get(kind, float("-inf")):
            return None
        self._lifecycle_at_s.pop(kind, None)
        self._lifecycle_states[kind] = "under way"
        attempt = self._lifecycle_attempt.get(kind, 1)
        return self._begin_call(_PendingCall(kind, None, (), (), attempt))

    def _take_lowest_call(self) -> Call | None:
        # The window is full. Take only a call that the low watermark may be waiting for: a repeated one, or one of the queue with
        # the record right after the low watermark. With other calls the window could stay full for ever.
        for index, key in enumerate(self._ready_keys):
            queue = self._queues[key]
            first_ordinal = queue.ordinals[0] if queue.ordinals else self._taken_count
            if queue.repeated_calls or first_ordinal == self._low_watermark.ordinal:
                del self._ready_keys[index]
                return self._take_call_of(key)
        return None

    def _take_call_of(self, key: Hashable) -> Call:
        queue = self._queues[key]
        queue.is_busy = True
        if queue.repeated_calls:
            return self._begin_call(queue.repeated_calls.pop(0))
        size = min(len(queue.new_records), self.options.batch_records_max)
        if size == len(queue.new_records):
            records = tuple(queue.new_records)
            queue.new_records.clear()
        else:
            records = tuple([queue.new_records.popleft() for _ in range(size)])
        end = at_record(records[-1].sequence_number, records[-1].sub_sequence_number)
        self.last_delivered = max(self.last_delivered, end)
        ordinals: Sequence[int]
        if self.options.concurrency == 1:
            ordinals = range(self._taken_count, self._taken_count + size)
            self._low_watermark.on_run_taken(ordinals[-1], end)
        else:
            ordinals = tuple([queue.ordinals.popleft() for _ in range(size)])
        self._taken_count += size
        self._newest_taken = max(self._newest_taken, ordinals[-1])
        return self._begin_call(_PendingCall(CallKind.BATCH, key, records, ordinals))

    def _begin_call(self, pending: _PendingCall) -> Call:
        call_id = next(self._ids)
        self._calls_under_way[call_id] = pending
        return Call(
            id=call_id,
            kind=pending.kind,
            records=pending.records,
            ordinals=pending.ordinals,
            attempt=pending.attempt,
            millis_behind_latest=self.millis_behind_latest,
            position=self._start if pending.kind is CallKind.START else self.low_watermark,
            error=pending.error,
        )

    def _free_queue(self, key: Hashable) -> None:
        if self.phase is not Phase.RUNNING:
            return  # the queues are gone
        queue = self._queues[key]
        queue.is_busy = False
        if queue.repeated_calls or queue.new_records:
            self._ready_keys.append(key)
        else:
            del self._queues[key]
            self.waiting_bytes -= self._queue_bytes

    def _drop_waiting_records(self) -> None:
        self._ready_keys.clear()
        self._paused_keys.clear()
        for queue in self._queues.values():
            self.waiting_bytes -= memory_bytes_of(queue.new_records)
            self.waiting_bytes -= sum(memory_bytes_of(pending.records) for pending in queue.repeated_calls)
        self.waiting_bytes -= self._queue_bytes * len(self._queues)
        self._queues.clear()

    # --- inside: failures ---

    def _plan_repeat(self, pending: _PendingCall, now_s: float, chance: float) -> Repeat:
        """Queue a failed call again, to be made after a back-off."""
        backoff = Backoff(self.options.backoff_min_s, self.options.backoff_max_s)
        at_s = now_s + backoff.delay_s(pending.attempt, chance)
        pending.attempt += 1
        if pending.key is None:
            self._lifecycle_states[pending.kind] = "due"
            self._lifecycle_at_s[pending.kind] = at_s
            self._lifecycle_attempt[pending.kind] = pending.attempt
        else:
            self._queues[pending.key].repeated_calls.insert(0, pending)
            heapq.heappush(self._paused_keys, (at_s, next(self._ids), pending.key))
        return Repeat(at_s, pending.attempt)

    def _halve_or_send(self, pending: _PendingCall, error: BaseException) -> Halve | SendToDeadLetter:
        """Queue the two halves of a failed call, or the dead-letter call of a single record."""
        queue = self._queues[pending.key]
        size = len(pending.records)
        self._ready_keys.append(pending.key)
        if size == 1:
            kind, key, records = CallKind.DEAD_LETTER, pending.key, pending.records
            queue.repeated_calls.insert(0, _PendingCall(kind, key, records, pending.ordinals, error=error))
            return SendToDeadLetter()
        half = size // 2
        for part in (slice(half, size), slice(0, half)):
            records = pending.records[part]
            # A part of several records gets one attempt, a single record all attempts.
            attempt = 1 if len(records) == 1 else self.options.retries_max + 1
            queue.repeated_calls.insert(
                0, _PendingCall(CallKind.BATCH, pending.key, records, pending.ordinals[part], attempt)
            )
        return Halve()

    def _fail(self, message: str, cause: BaseException | None) -> StopDelivery:
        self.phase = Phase.FAILED
        self._drop_waiting_records()
        self.failure = HandlerFailed(message)
        self.failure.__cause__ = cause
        return StopDelivery("worker" if self.options.on_failure == "stop_worker" else "shard", self.failure)

    def _describe_failure(self, pending: _PendingCall, error: BaseException) -> str:
        what = f"the notification that {pending.kind.value}"
        if pending.records:
            first, last = pending.records[0], pending.records[-1]
            what = (
                f"{len(pending.records)} records from {first.sequence_number}.{first.sub_sequence_number} "
                f"to {last.sequence_number}.{last.sub_sequence_number}"
            )
            if pending.kind is CallKind.DEAD_LETTER:
                what = f"the dead letter of {what}"
        times = "once" if pending.attempt == 1 else f"{pending.attempt} times"
        return (
            f"shard {self.shard_id}: user code failed {times} on {what}: {describe_error(error)}; "
            f"nothing after {self.low_watermark} is acknowledged"
        )

    def _without_acknowledged_records(self, pending: _PendingCall) -> _PendingCall:
        if pending.kind is not CallKind.BATCH:
            return pending
        left: list[tuple[Record, int]] = []
        for record, ordinal in zip(pending.records, pending.ordinals, strict=True):
            if self._is_done(record, ordinal):
                # The record may count as done only because its position is at or before the low watermark. No later call has it, so
                # acknowledge its ordinal here.
                self._low_watermark.acknowledge(
                    ((ordinal, record.sequence_number, record.sub_sequence_number),)
                )
                self.waiting_bytes -= record.memory_bytes
            else:
                left.append((record, ordinal))
        kept = tuple(record for record, _ in left)
        return _PendingCall(
            pending.kind, pending.key, kept, tuple(ordinal for _, ordinal in left), pending.attempt
        )

    def _is_done(self, record: Record, ordinal: int) -> bool:
        if self._low_watermark.is_done(ordinal):
            return True
        if not self.low_watermark.is_record or self.options.concurrency > 1:
            return False
        return at_record(record.sequence_number, record.sub_sequence_number) <= self.low_watermark

    # --- inside: the low watermark ---

    def _schedule_checkpoint(self, now_s: float) -> None:
        if self.low_watermark != self._sent_checkpoint and self._checkpoint_due_since_s is None:
            self._checkpoint_due_since_s = now_s
