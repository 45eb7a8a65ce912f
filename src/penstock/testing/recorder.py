"""Records each call of user code in a run, and plays the test's script around it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

from penstock.consumer.processor import (
    DeadLetterHandler,
    ShardProcessor,
    StreamProcessorFactory,
    failure_of,
)
from penstock.consumer.records import Batch, ShardCheckpointer
from penstock.core.position import Position
from penstock.core.reading.record import Record
from penstock.ports.clock import Clock

CallKind: TypeAlias = Literal["start", "records", "dead_letter", "end", "stop", "lost"]


@dataclass
class Call:
    """One call of user code.

    Attributes:
        kind: `records` and `dead_letter`; of processors also `start` (`initialize`), `end` (`shard_ended`), `stop`
            (`shutdown_requested`) and `lost` (`lease_lost`).
        records: Its records.
        attempt: 1, or more when a call with these records failed before.
        wait_s: Pause since that call failed; 0 for a first attempt.
        reason: Why the records became dead letters: the error of the last attempt.
        error: The error that the call raised; None if it returned.
    """

    kind: CallKind
    records: list[Record] = field(default_factory=list)
    attempt: int = 1
    wait_s: float = 0.0
    reason: BaseException | None = None
    error: BaseException | None = None


class Recorder:
    """Watches user code.

    Args:
        before_call: Called before each call with records, with the call's number, from 1.
        after_call: Called after it, with the same number.
    """

    def __init__(
        self, clock: Clock, before_call: Callable[[int], None], after_call: Callable[[int], None]
    ) -> None:
        self.calls: list[Call] = []
        self.running_calls: set[Future[object]] = set()
        """Futures that calls returned; such a call lasts until its future is done."""
        self.interruption: BaseException | None = None
        """An error that is not the handler's, but ends the test: Ctrl-C, or `pytest.fail`."""
        self._clock = clock
        self._before = before_call
        self._after = after_call
        self._number = 0
        self._failed_s: dict[Position | CallKind, float] = {}

    def wrap_user_code(
        self, factory: StreamProcessorFactory, dead_letter: DeadLetterHandler | None
    ) -> tuple[StreamProcessorFactory, DeadLetterHandler | None]:
        """Return the given user code, wrapped so that each call is recorded."""

        def put_aside(batch: Batch, reason: BaseException) -> object:
            assert dead_letter is not None
            call = Call("dead_letter", list(batch), batch.attempt, reason=reason)
            return self.run(call, lambda: dead_letter(batch, reason))

        return lambda stream: WatchedProcessor(factory(stream), self), (
            None if dead_letter is None else put_aside
        )

    def run(self, call: Call, user_code: Callable[[], object]) -> object:
        """Call user code."""
        places: Sequence[Position | CallKind] = [record.position for record in call.records] or [call.kind]
        if not call.records:
            call.attempt += sum(each.kind == call.kind for each in self.calls)
        if call.attempt > 1:
            failed_s = max(self._failed_s[place] for place in places if place in self._failed_s)
            call.wait_s = round(self._clock.monotonic_s() - failed_s, 3)
        self.calls.append(call)
        number = 0
        if call.kind == "records":
            number = self._number = self._number + 1
            self._before(number)
        try:
            result = user_code()
        except BaseException as error:
            self._end(call, places, number, error)
            raise
        if isinstance(result, Future):
            self.running_calls.add(result)
            result.add_done_callback(lambda ended: self._end_later(call, places, number, ended))
        else:
            self._end(call, places, number, None)
        return result

    def _end_later(
        self, call: Call, places: Sequence[Position | CallKind], number: int, future: Future[object]
    ) -> None:
        self.running_calls.discard(future)
        self._end(call, places, number, failure_of(future))

    def _end(
        self, call: Call, places: Sequence[Position | CallKind], number: int, error: BaseException | None
    ) -> None:
        """Store the result of a call, and run the script that follows it."""
        call.error = error
        if error is not None:
            now_s = self._clock.monotonic_s()
            self._failed_s |= dict.fromkeys(places, now_s)
            if not issubclass(type(error), Exception | SystemExit):
                self.interruption = error
        if number:
            self._after(number)


class WatchedProcessor:
    """A processor of one shard that records each call."""

    def __init__(self, processor: ShardProcessor, recorder: Recorder) -> None:
        self._processor = processor
        self._run = recorder.run

    def on_start(self, shard_id: str, position: Position) -> object:
        return self._run(Call("start"), lambda: self._processor.on_start(shard_id, position))

    def on_batch(self, batch: Batch) -> object:
        call = Call("records", list(batch), batch.attempt)
        return self._run(call, lambda: self._processor.on_batch(batch))

    def on_end(self, shard: ShardCheckpointer) -> object:
        return self._run(Call("end"), lambda: self._processor.on_end(shard))

    def on_stop(self, shard: ShardCheckpointer) -> object:
        return self._run(Call("stop"), lambda: self._processor.on_stop(shard))

    def on_lost(self) -> object:
        return self._run(Call("lost"), self._processor.on_lost)
