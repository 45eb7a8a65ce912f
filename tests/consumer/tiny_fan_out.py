"""Enhanced fan-out over the stream in memory, under its virtual clock: the service's rules, and faults on request."""

from __future__ import annotations

from dataclasses import dataclass, field

from virtual_world import TinyKinesis

from moved_clock import MovedClock
from penstock.errors import NotFound, ResourceBusy, Throttled, Unavailable
from penstock.ports.fan_out import FanOutEnded, FanOutFailed, FanOutOpened, FanOutPage, StreamConsumer
from penstock.ports.kinesis import IteratorStart, RecordPage
from penstock_local.quotas import FAN_OUT_BYTES_PER_S, Bucket

LIFE_S = 300.0
APART_S = 5.0
HEARTBEAT_S = 4.0


@dataclass
class TinyStream:
    """One connection."""

    home: TinyFanOut
    shard_id: str
    place: int
    tell: object
    opened_s: float
    sent_s: float
    is_asked: bool = False
    is_open: bool = True
    is_silent: bool = False
    held_until_s: float = 0.0

    def request(self) -> None:
        assert not self.is_asked, "asked twice for one event"
        self.is_asked = True

    def close(self) -> None:
        self.is_open = False

    def end(self, event) -> None:
        if self.is_open:
            self.is_open = False
            self.tell(event)


@dataclass
class TinyFanOut:
    """Implements `penstock.ports.fan_out.FanOut`; `step` runs the due actions."""

    kinesis: TinyKinesis
    clock: MovedClock
    consumers: dict[str, StreamConsumer] = field(default_factory=dict)
    streams: list[TinyStream] = field(default_factory=list)
    subscribed: list[tuple[float, str, IteratorStart]] = field(default_factory=list)
    register_errors: list[Exception] = field(default_factory=list)
    subscribe_errors: list[Exception] = field(default_factory=list)
    events_per_connection: int | None = None
    is_each_event_sent_twice: bool = False
    rates: dict[str, Bucket] | None = None  # the bytes of each shard, where they are limited
    registrations: int = 0
    sent: int = 0

    def fetch_consumer(self, stream_arn, name):
        consumer = self.consumers.get(name)
        if consumer is None:
            raise NotFound(f"consumer {name} is not registered", code="ResourceNotFoundException")
        status = "ACTIVE" if self.clock.now_s * 1000 >= consumer.created_ms + 2_000 else "CREATING"
        return StreamConsumer(name, consumer.arn, status, consumer.created_ms)

    def fetch_consumers(self, stream_arn):
        return list(self.consumers.values())

    def register_consumer(self, stream_arn, name):
        if self.register_errors:
            raise self.register_errors.pop(0)
        if len(self.consumers) >= 20:
            raise Throttled("20 consumers", code="LimitExceededException")
        self.registrations += 1
        arn = f"{stream_arn}/consumer/{name}:{self.registrations}"
        self.consumers[name] = StreamConsumer(name, arn, "CREATING", int(self.clock.now_s * 1000))
        return self.consumers[name]

    def deregister_consumer(self, stream_arn, name):
        del self.consumers[name]

    def subscribe(self, consumer_arn, shard_id, start, tell):
        now_s = self.clock.now_s
        error = self.subscribe_errors.pop(0) if self.subscribe_errors else None
        if error is None and consumer_arn not in {each.arn for each in self.consumers.values()}:
            error = NotFound("no such consumer", code="ResourceNotFoundException")
        mine = [each for each in self.streams if each.shard_id == shard_id]
        if error is None and any(now_s < each.opened_s + APART_S for each in mine):
            error = ResourceBusy("another active subscription exists for this consumer")
        stream = TinyStream(self, shard_id, 0, tell, now_s, now_s)
        if error is not None:
            stream.end(FanOutFailed(error))
            return stream
        for other in mine:
            other.end(FanOutFailed(ResourceBusy("another active subscription exists for this consumer")))
        stream.place = self._place(shard_id, start)
        self.streams.append(stream)
        self.subscribed.append((now_s, shard_id, start))
        tell(FanOutOpened())
        return stream

    def _place(self, shard_id: str, start: IteratorStart) -> int:
        if start.type.value != "AFTER_SEQUENCE_NUMBER":
            return int(self.kinesis.fetch_iterator("orders", shard_id, start).rpartition("|")[2])
        records = self.kinesis.shards[shard_id].records
        return sum(int(each.sequence_number) <= int(start.sequence_number) for each in records)

    # --- moving ---

    def step(self) -> bool:
        """Send due events; return whether there were any."""
        stepped = [self._step(each) for each in self.streams if each.is_open]  # every one, so no short cut
        return any(stepped)

    def wake_s(self) -> float:
        return min((self._due_s(each) for each in self.streams if each.is_open), default=float("inf"))

    def _due_s(self, stream: TinyStream) -> float:
        end_s = stream.opened_s + LIFE_S
        if stream.held_until_s > self.clock.now_s:
            return stream.held_until_s
        return min(end_s, stream.sent_s + HEARTBEAT_S) if stream.is_asked and not stream.is_silent else end_s

    def _step(self, stream: TinyStream) -> bool:
        now_s = self.clock.now_s
        if now_s >= stream.opened_s + LIFE_S and not stream.is_silent:
            stream.end(FanOutEnded())
            return True
        if not stream.is_asked or stream.is_silent:
            return False
        shard = self.kinesis.shards[stream.shard_id]
        found = shard.records[stream.place : stream.place + 3]
        is_last = bool(shard.children) and stream.place + len(found) == len(shard.records)
        size_bytes = sum(len(record.data) for record in found)
        if self.rates is not None and size_bytes:
            rate = self.rates.setdefault(stream.shard_id, Bucket(FAN_OUT_BYTES_PER_S))
            due_ms = rate.due_ms(size_bytes, int(now_s * 1000))
            if due_ms > now_s * 1000:
                stream.held_until_s = due_ms / 1000
                return False
            rate.take(size_bytes)
        if not found and not is_last and now_s < stream.sent_s + HEARTBEAT_S:
            return False
        self._send(stream, found, is_last)
        return True

    def _send(self, stream: TinyStream, found, is_last: bool) -> None:
        self.sent += 1
        first = stream.place
        stream.place += len(found)
        stream.is_asked, stream.sent_s = False, self.clock.now_s
        records = self.kinesis.shards[stream.shard_id].records
        through = records[stream.place - 1].sequence_number if stream.place else "1"
        behind = 0 if stream.place == len(records) else 1000
        if is_last:
            stream.tell(FanOutPage(RecordPage(found, None, 0, self.kinesis.children_of(stream.shard_id))))
            stream.end(FanOutEnded())
            return
        if self.is_each_event_sent_twice and found and self.sent % 2:
            stream.place = first
        stream.tell(FanOutPage(RecordPage(found, through, behind)))
        if self.events_per_connection is not None and self.sent % self.events_per_connection == 0:
            stream.end(FanOutEnded())

    # --- faults ---

    def break_all(self) -> None:
        for each in self.streams:
            each.end(FanOutFailed(Unavailable("the connection was lost")))

    def silence_all(self) -> None:
        for each in self.streams:
            each.is_silent = True
