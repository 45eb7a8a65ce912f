"""One shard that can be polled and subscribed to, in virtual time, with quotas and faults; and the batches of a query on it."""

from __future__ import annotations

import heapq
import itertools
import random
from contextlib import closing, nullcontext
from dataclasses import dataclass, field

from penstock.core.batches.claims import Execution, parse_note
from penstock.core.batches.offsets import Share
from penstock.core.hash_key import FULL_RANGE
from penstock.core.leases.lease import Lease
from penstock.core.leases.lease_writes import Create
from penstock.core.position import TRIM_HORIZON
from penstock.core.shard import ChildShard, Shard
from penstock.core.stream_identity import StreamIdentity
from penstock.errors import ResourceBusy, Throttled
from penstock.ports.fan_out import FanOutEnded, FanOutFailed, FanOutOpened, FanOutPage
from penstock.ports.kinesis import IteratorType, RecordPage, ShardListing
from penstock.runtime.hash_ranges import HashRanges
from penstock.runtime.memory_lease_table import MemoryLeaseTable
from penstock.spark.options.spark_options import parse_source
from penstock.spark.tasks.iterator_cache import IteratorCache
from penstock.spark.tasks.kept_subscriptions import KeptSubscriptions
from penstock.spark.tasks.pushed_reading import PushedReading
from penstock.spark.tasks.shard_opening import ReadingProcess, read_shard
from penstock.spark.tasks.shard_read import BatchPart
from raw_record import Raw

SHARD = "shardId-000000000000"
CONSUMER = "arn:orders/consumer/billing:1"
APART_S = 5.0


class VirtualTime:
    """A clock whose waits let happen what is due."""

    def __init__(self) -> None:
        self.now_s = 1000.0
        self._agenda = []
        self._numbers = itertools.count()

    def monotonic_s(self):
        return self.now_s

    def wall_ms(self):
        return int(self.now_s * 1000)

    def sleep(self, duration_s):
        self.wait_for(lambda: False, duration_s)

    def at(self, delay_s, function):
        heapq.heappush(self._agenda, (self.now_s + delay_s, next(self._numbers), function))

    def wait_for(self, predicate, timeout_s):
        deadline_s = self.now_s + timeout_s
        while not predicate():
            if not self._agenda or self._agenda[0][0] > deadline_s:
                self.now_s = deadline_s
                break
            self.now_s, _, function = heapq.heappop(self._agenda)
            function()
        return predicate()

    # --- as threads ---

    def condition(self):
        return _Condition(self)


class _Condition:
    def __init__(self, time):
        self._time = time

    def __enter__(self):
        return True

    def __exit__(self, *error):
        pass

    def wait_for(self, predicate, timeout=None):
        assert timeout is not None, "a wait without a deadline"
        return self._time.wait_for(predicate, timeout)

    def notify_all(self):
        pass


@dataclass
class Subscribed:
    """One subscription, as the service has it."""

    service: Service
    tell: object
    place: int
    opened_s: float
    is_open: bool = True
    is_asked: bool = False
    is_silent: bool = False
    event_count: int = 0

    def request(self):
        assert not self.is_asked, "asked twice for one event"
        self.is_asked = True
        self.service.time.at(0.01, self.send)

    def close(self):
        self.is_open = False

    def end(self, event):
        if self.is_open:
            self.is_open = False
            self.tell(event)

    def send(self):
        service = self.service
        if not self.is_open or not self.is_asked or self.is_silent:
            return
        found = service.records[self.place : self.place + service.event_record_count]
        is_last = service.children and self.place + len(found) == len(service.records)
        if not found and not is_last and self.event_count:
            service.time.at(1.0, self.send)  # nothing to send yet
            return
        self.is_asked = False
        self.event_count += 1
        first, self.place = self.place, self.place + len(found)
        if is_last:
            self.tell(FanOutPage(RecordPage(found, None, 0, service.children)))
            self.end(FanOutEnded())
            return
        behind_ms = 0 if self.place == len(service.records) else 30_000
        self.tell(FanOutPage(RecordPage(found, service.sequence_number(self.place - 1), behind_ms)))
        if service.sends_twice and self.event_count % 2:
            self.place = first
        if service.break_after == self.event_count:
            self.end(service.break_with)


@dataclass(eq=False)
class Service:
    """The shard. Implements what a task uses of `penstock.ports.kinesis.Kinesis` and `penstock.ports.fan_out.FanOut`."""

    time: VirtualTime
    records: list = field(default_factory=list)
    children: tuple = ()
    page_record_count: int = 10
    event_record_count: int = 10
    is_throttled: bool = False
    poll_failures: list = field(default_factory=list)
    polled: list = field(default_factory=list)
    """(moment, records) of each GetRecords."""
    streams: list = field(default_factory=list)
    subscribed: list = field(default_factory=list)
    refusals: list = field(default_factory=list)
    is_silent: bool = False
    is_unanswered: bool = False
    sends_twice: bool = False
    break_after: int | None = None
    break_with: object = None

    def put(self, count):
        for _ in range(count):
            number = len(self.records)
            self.records.append(Raw(self.sequence_number(number), str(number).encode(), "k", self.time.now_s))

    @staticmethod
    def sequence_number(place):
        return str(1000 + 7 * max(place, 0))

    def _place_of(self, start):
        if start.type is IteratorType.TRIM_HORIZON:
            return 0
        assert start.type is IteratorType.AT_SEQUENCE_NUMBER
        return sum(int(each.sequence_number) < int(start.sequence_number) for each in self.records)

    def fetch_shards(self, stream, shard_filter=None):
        ending = "9999999" if self.children else None
        return ShardListing((Shard(SHARD, FULL_RANGE, (), "0", ending),))

    def fetch_iterator(self, stream, shard_id, start):
        self.time.sleep(0.01)
        return str(self._place_of(start))

    def fetch_records(self, stream, iterator, record_count_max=10_000):
        self.time.sleep(0.02)
        if self.poll_failures:
            raise self.poll_failures.pop(0)
        if self.is_throttled:
            raise Throttled(
                "others read it", operation="GetRecords", code="ProvisionedThroughputExceededException"
            )
        first = int(iterator)
        found = self.records[first : first + min(self.page_record_count, record_count_max)]
        self.polled.append((self.time.now_s, len(found)))
        end = first + len(found)
        if self.children and end == len(self.records):
            return RecordPage(found, None, 0, self.children)
        return RecordPage(found, str(end), 0 if end == len(self.records) else 30_000)

    def subscribe(self, consumer_arn, shard_id, start, tell):
        assert (consumer_arn, shard_id) == (CONSUMER, SHARD)
        self.subscribed.append((self.time.now_s, start))
        stream = Subscribed(self, tell, self._place_of(start), self.time.now_s, is_silent=self.is_silent)
        if not self.is_unanswered:
            self.time.at(0.05, lambda: self._open(stream))
        return stream

    def _open(self, stream):
        if not stream.is_open:
            return
        error = self.refusals.pop(0) if self.refusals else None
        if any(self.time.now_s < each.opened_s + APART_S for each in self.streams):
            error = ResourceBusy("another active subscription exists for this consumer")
        if error is not None:
            stream.end(FanOutFailed(error))
            return
        self.take_over()
        stream.opened_s = self.time.now_s
        self.streams.append(stream)
        stream.tell(FanOutOpened())

    def take_over(self):
        """End what is open as another subscriber does."""
        for each in self.streams:
            each.end(FanOutFailed(ResourceBusy("another active subscription exists for this consumer")))

    @property
    def open_count(self):
        return sum(each.is_open for each in self.streams)

    def end_shard(self):
        self.children = (ChildShard("shardId-000000000001", (SHARD,), FULL_RANGE),)


class Process:
    """A Python worker process: what it keeps between batches."""

    def __init__(self, query, name="p"):
        self.query = query
        time, service = query.time, query.service
        self.kept = KeptSubscriptions(time, time.at)
        self.iterators = IteratorCache()
        self.reading = ReadingProcess(
            service,
            HashRanges(service, "orders", time.monotonic_s),
            time,
            query.chance,
            name,
            iterators=self.iterators,
        )
        self.hold_page = nullcontext

    def read(self, batch=None, *, start=None, **limits):
        """Execute a batch; return the numbers that it gave out."""
        return [number for rows in self.begin(batch, start=start, **limits) for number in rows]

    def begin(self, batch=None, *, start=None, **limits):
        """Execute a batch bit by bit."""
        query = self.query
        task = query.task(batch, start, **limits)
        pushed_reading = (
            None
            if query.options.consumer_type == "polling"
            else PushedReading(
                self.kept,
                query.service,
                ("service", CONSUMER, SHARD),
                subscribes_always=query.options.consumer_type == "fan-out",
                after_s=query.subscribe_after_s,
                clock=query.time,
                chance=query.chance,
                threads=query.time,
            )
        )
        batches = read_shard(
            task,
            query.options,
            self.reading,
            table=query.table,
            hold_page=self.hold_page,
            pushed_reading=pushed_reading,
        )
        with closing(batches):
            for rows in batches:
                yield [int(data) for data in rows.column("data").to_pylist()]


class Query:
    """A query of one shard."""

    def __init__(self, consumer_type="fan-out", **options):
        self.time = VirtualTime()
        self.chance = random.Random(1)
        self.service = Service(self.time)
        self.options, _ = parse_source(
            {
                "streamName": "orders",
                "applicationName": "billing",
                "consumerType": consumer_type,
                "maxRetryInterval": "200ms",
                **options,
            }
        )
        self.table = MemoryLeaseTable()
        self.table.write(Create(Lease(SHARD, owner="w", counter=1, checkpoint=TRIM_HORIZON)))
        self.batch = 0
        self.subscribe_after_s = 0.0
        self.process = Process(self)

    @property
    def claim(self):
        return self.table.fetch(SHARD).claim_of("w")

    @property
    def note(self):
        return parse_note(self.claim.note)

    def task(self, batch, start, **limits):
        """Plan the next batch, or one again."""
        claim = self.claim
        if batch is None:
            self.batch = batch = self.batch + 1
        if start is None:
            start = TRIM_HORIZON if claim is None else claim.end
        seen = None if claim is None or claim.batch >= batch else claim.identity
        return BatchPart(
            shard_id=SHARD,
            execution=Execution("w", batch, "run", start, seen),
            share=Share(**limits),
            until_ms=None,
            planned_ms=10**15,
            tip_ms=self.note.tip_ms if claim is not None and start == claim.end else None,
            is_foreign=False,
            retention_ms=86_400_000,
            stream=StreamIdentity("arn:orders", 1),
            deaggregates=True,
            consumer_arn=CONSUMER,
        )
