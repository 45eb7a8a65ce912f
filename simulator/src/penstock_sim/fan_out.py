"""Enhanced fan-out as a simulated process sees it: the service's rules, and the faults of a subscription.

Events hold one to five Kinesis records. A subscription may be refused, fall silent, break, end, be taken over, and bring an
event twice; events under way when its process ends are lost.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, NoReturn

from penstock.core.limits import SUBSCRIPTIONS_APART_S
from penstock.core.reading.resume import IteratorStart
from penstock.errors import NotFound, ResourceBusy, ServiceError, Unavailable
from penstock.ports.fan_out import (
    EventStream,
    FanOutEnded,
    FanOutEvent,
    FanOutFailed,
    FanOutOpened,
    FanOutPage,
    StreamConsumer,
)
from penstock.ports.kinesis import RecordPage
from penstock_sim.blocking_ports import SimKinesis

_HEARTBEAT_S: Final = 4.0
_LOOK_S: Final = 0.2
_REFUSED: Final = 0.1
_SILENT: Final = 0.02
_BROKEN: Final = 0.03
_ENDED: Final = 0.02
_REPEATED: Final = 0.05
_EVENT_RECORDS_MAX: Final = 5


class SimFanOut:
    """Implements `penstock.ports.fan_out.FanOut` for one process; the consumer is registered already.

    Args:
        kinesis: The process's other calls to the service.
    """

    def __init__(self, kinesis: SimKinesis) -> None:
        self._kinesis = kinesis

    def fetch_consumer(self, stream_arn: str, name: str) -> StreamConsumer:
        return StreamConsumer(name, f"{stream_arn}/consumer/{name}:1", "ACTIVE", 0)

    def refuse(self, *_: object) -> NoReturn:
        """Refuse: the consumer is there, and no process may remove it."""
        raise NotImplementedError

    fetch_consumers = register_consumer = deregister_consumer = refuse

    def subscribe(
        self, consumer_arn: str, shard_id: str, start: IteratorStart, report: Callable[[FanOutEvent], None]
    ) -> EventStream:
        subscription = SimSubscription(self._kinesis, (consumer_arn, shard_id), start, report)
        world = self._kinesis.process.world
        world.schedule(world.now + world.latency_s(), subscription.begin)
        return subscription


class SimSubscription:
    """Implements `penstock.ports.fan_out.EventStream`: one subscription, as the service has it.

    Args:
        kinesis: The subscriber's other calls to the service.
        key: The registered consumer and the shard: there is one subscription for each.
        report: Gets the outcomes, in the process.
    """

    def __init__(
        self,
        kinesis: SimKinesis,
        key: tuple[str, str],
        start: IteratorStart,
        report: Callable[[FanOutEvent], None],
    ) -> None:
        self._kinesis = kinesis
        self._process = kinesis.process
        self._world = kinesis.process.world
        self._stream = kinesis.stream
        self._key = key
        self._start = start
        self._report = report
        self._shard = self._stream.shards[key[1]]
        self._index = 0
        self._sent_s = self.opened_s = 0.0
        self._is_over = self._is_requested = self._is_silent = False

    def request(self) -> None:
        self._is_requested = True
        self._world.schedule(self._world.now + self._world.latency_s(), self._send)

    def close(self) -> None:
        self._is_over = True

    # --- the service's side ---

    def begin(self) -> None:
        """Accept the subscription, or refuse it."""
        world = self._world
        if self._is_over:
            return
        error = self._refusal()
        if error is not None:
            world.met[f"fan-out: refused, {type(error).__name__}"] += 1
            self._end(FanOutFailed(error))
            return
        before: SimSubscription | None = world.subscriptions.get(self._key)
        if before is not None:
            before.take_over()
        world.subscriptions[self._key], self.opened_s = self, world.now
        self._sent_s = world.now - _HEARTBEAT_S  # the first event is sent at once
        self._index = self._stream.seek(self._shard, self._kinesis.position_of(self._key[1], self._start))
        world.met["fan-out: accepted"] += 1
        self._later(FanOutOpened())
        world.schedule(world.now + world.streams.iterator_life_s(), self._end, FanOutEnded())

    def _refusal(self) -> ServiceError | None:
        world = self._world
        before: SimSubscription | None = world.subscriptions.get(self._key)
        if before is not None and world.now < before.opened_s + SUBSCRIPTIONS_APART_S:
            return _busy()
        if self._shard.is_expired:
            return NotFound("no such shard", code="ResourceNotFoundException")
        if not world.is_healed and world.chance.random() < _REFUSED:
            return world.chance.choice((_busy(), Unavailable("500"), NotFound("no such consumer")))
        return None

    def take_over(self) -> None:
        """End in favour of a later subscription, unless it has ended already."""
        if not self._is_over:
            self._world.met["fan-out: taken over"] += 1
            self._end(FanOutFailed(_busy()))

    def _later(self, event: FanOutEvent) -> None:
        self._process.later(self._world.latency_s(), self._deliver, event)

    def _deliver(self, event: FanOutEvent) -> None:
        if not self._is_over or not isinstance(event, FanOutOpened | FanOutPage):
            self._report(event)

    def _end(self, event: FanOutEvent) -> None:
        if not self._is_over:
            self._is_over = True
            self._later(event)

    def _send(self) -> None:
        world = self._world
        if self._is_over or self._is_silent or not self._is_requested or not self._process.is_alive:
            return
        luck = 1.0 if world.is_healed else world.chance.random()
        if luck < _SILENT + _BROKEN + _ENDED:
            self._disturb(luck)
            return
        if self._shard.is_expired:
            self._end(FanOutFailed(Unavailable("the shard has left the stream")))
            return
        index = max(self._index, self._shard.trimmed)
        records, after = self._stream.read(self._shard, index, world.chance.randint(1, _EVENT_RECORDS_MAX))
        is_last = self._shard.closed_ms is not None and after >= len(self._shard.sequences)
        if not records and not is_last and world.now < self._sent_s + _HEARTBEAT_S:
            world.schedule(world.now + _LOOK_S, self._send)
            return
        self._is_requested, self._sent_s = False, world.now
        behind_ms = 0
        if after < len(self._shard.sequences):
            behind_ms = max(1, world.now_ms() - self._shard.arrivals_ms[after])
        page = RecordPage(
            records,
            None if is_last else "continuation",
            behind_ms,
            self._stream.children_of(self._shard) if is_last else (),
            world.now_ms() // 1000 * 1000,
        )
        world.met["fan-out: events"] += 1
        self._index = index if not is_last and luck > 1.0 - _REPEATED and not world.is_healed else after
        self._later(FanOutPage(page))

    def _disturb(self, luck: float) -> None:
        met = self._world.met
        if luck < _SILENT:
            self._is_silent = True
            met["fan-out: silent"] += 1
        elif luck < _SILENT + _BROKEN:
            self._end(FanOutFailed(Unavailable("the connection was lost")))
            met["fan-out: broken"] += 1
        else:
            self._end(FanOutEnded())
            met["fan-out: ended"] += 1


def _busy() -> ResourceBusy:
    return ResourceBusy("another active subscription exists for this consumer", code="ResourceInUseException")
