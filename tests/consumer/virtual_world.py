"""Workers of one application in one process, under a virtual clock: nothing waits, everything can be counted."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

from moved_clock import MovedClock
from penstock.consumer import Batch, ConsumerOptions
from penstock.consumer.processor import HandlerProcessor
from penstock.consumer.stream_argument import ConsumedStream
from penstock.consumer.worker import Worker
from penstock.core.hash_key import HASH_KEY_MAX, HASH_KEYS, HashRange, hash_partition_key
from penstock.core.shard import ChildShard, Shard, StreamSummary
from penstock.errors import ExpiredIterator, Throttled, Unavailable
from penstock.ports.kinesis import IteratorStart, IteratorType, RecordPage, ShardListing
from penstock.runtime.consumer_registration import ConsumerRegistration
from penstock.runtime.memory_lease_table import MemoryLeaseTable
from penstock.runtime.worker_ports import Pools, WorkerPorts
from raw_record import Raw


class InlinePool:
    """Runs each task where it is submitted."""

    def submit(self, task) -> None:
        task()

    def close(self) -> None:
        pass


@dataclass
class TinyShard:
    shard_id: str
    hash_range: HashRange
    parents: tuple[str, ...] = ()
    records: list[Raw] = field(default_factory=list)
    children: list[str] = field(default_factory=list)


class TinyKinesis:
    """A stream in memory: enough to be read, split, trimmed and throttled."""

    def __init__(self, clock: MovedClock, shard_count: int) -> None:
        self.clock = clock
        self.shards: dict[str, TinyShard] = {}
        self.throttled_reads = 0
        self.contended: set[str] = set()  # shards that others poll too: every second call for one is refused
        self.reads: list[tuple[float, str]] = []
        self._sequence = 100
        step = HASH_KEYS // shard_count
        for index in range(shard_count):
            end = HASH_KEY_MAX if index == shard_count - 1 else (index + 1) * step - 1
            self._add(HashRange(index * step, end), ())

    def _add(self, hash_range: HashRange, parents: tuple[str, ...]) -> TinyShard:
        shard = TinyShard(f"shardId-{len(self.shards):012d}", hash_range, parents)
        self.shards[shard.shard_id] = shard
        for parent in parents:
            self.shards[parent].children.append(shard.shard_id)
        return shard

    def put(self, key: str, data: bytes) -> str:
        place = hash_partition_key(key)
        shard = next(s for s in self.shards.values() if not s.children and place in s.hash_range)
        self._sequence += 7
        shard.records.append(Raw(str(self._sequence), data, key, self.clock.now_s))
        return shard.shard_id

    def split(self, shard_id: str) -> None:
        whole = self.shards[shard_id].hash_range
        middle = (whole.start + whole.end) // 2
        self._add(HashRange(whole.start, middle), (shard_id,))
        self._add(HashRange(middle + 1, whole.end), (shard_id,))

    @property
    def server_ms(self) -> int:
        """The service's clock, in whole seconds as its answers have it."""
        return 1000 * int(self.clock.now_s)

    def trim(self, shard_id: str, count: int) -> None:
        del self.shards[shard_id].records[:count]

    # --- the port ---

    def fetch_summary(self, stream):
        return StreamSummary(stream, f"arn:{stream}", "ACTIVE", 1, open_shard_count=len(self.shards))

    def fetch_shards(self, stream, shard_filter=None):
        shards = [
            Shard(s.shard_id, s.hash_range, s.parents, "0", "99999" if s.children else None)
            for s in self.shards.values()
        ]
        if shard_filter is not None and shard_filter.type == "AT_TRIM_HORIZON":
            shards = [s for s in shards if not s.parents]
        if shard_filter is not None and shard_filter.type == "AT_LATEST":
            shards = [s for s in shards if s.is_open]
        return ShardListing(tuple(shards), self.server_ms)

    def fetch_iterator(self, stream, shard_id, start: IteratorStart):
        shard = self.shards[shard_id]
        if start.type is IteratorType.TRIM_HORIZON:
            return f"{shard_id}|0"
        if start.type is IteratorType.LATEST:
            return f"{shard_id}|{len(shard.records)}"
        if start.type is IteratorType.AT_TIMESTAMP:
            place = sum(r.arrival_s * 1000 < start.timestamp_ms for r in shard.records)
            return f"{shard_id}|{place}"
        place = sum(int(r.sequence_number) < int(start.sequence_number) for r in shard.records)
        return f"{shard_id}|{place}"

    def fetch_records(self, stream, iterator, record_count_max=10_000):
        shard_id, _, place = iterator.partition("|")
        self.reads.append((self.clock.now_s, shard_id))
        if self.throttled_reads:
            self.throttled_reads -= 1
            raise Throttled("slow down", operation="GetRecords")
        if shard_id in self.contended and sum(of == shard_id for _, of in self.reads) % 2:
            raise Throttled(
                "rate exceeded", operation="GetRecords", code="ProvisionedThroughputExceededException"
            )
        if place == "expired":
            raise ExpiredIterator("old")
        shard = self.shards[shard_id]
        start = int(place)
        found = shard.records[start : start + record_count_max]
        end = start + len(found)
        if shard.children and end == len(shard.records):
            return RecordPage(found, None, 0, self.children_of(shard_id), self.server_ms)
        behind_ms = 0 if end == len(shard.records) else 1000
        return RecordPage(found, f"{shard_id}|{end}", behind_ms, server_ms=self.server_ms)

    def children_of(self, shard_id) -> tuple[ChildShard, ...]:
        """Return the children that the last page of a shard names; no call, so nothing throttles it."""
        return tuple(
            ChildShard(child, self.shards[child].parents, self.shards[child].hash_range)
            for child in self.shards[shard_id].children
        )

    def put_records(self, stream, entries):
        raise NotImplementedError


class HeldPool:
    """Keeps tasks until they are let go: a handler pool whose threads are all busy."""

    def __init__(self) -> None:
        self.is_open = True
        self._tasks = []

    def submit(self, task) -> None:
        if self.is_open:
            task()
        else:
            self._tasks.append(task)

    def let_go(self) -> int:
        self.is_open = True
        tasks, self._tasks = self._tasks, []
        for task in tasks:
            task()
        return len(tasks)

    def close(self) -> None:
        pass


class TableWithFaults(MemoryLeaseTable):
    """Refuses writes of workers that are cut off from it."""

    def __init__(self) -> None:
        super().__init__("app")
        self.history: list[tuple[str, str]] = []

    def of(self, clock: MovedClock) -> WorkersTable:
        return WorkersTable(self, clock)


class WorkersTable:
    """One worker's connection to the table: it can be cut."""

    def __init__(self, table: TableWithFaults, clock: MovedClock) -> None:
        self._table = table
        self._clock = clock
        self.is_cut = False
        self.name = table.name

    def _check(self) -> None:
        if self.is_cut:
            raise Unavailable("no connection", operation="UpdateItem")

    def ensure_exists(self):
        self._check()
        return False

    @property
    def row_count(self):
        return self._table.row_count

    def scan(self, part=None):
        self._check()
        return self._table.scan(part)

    def fetch(self, key):
        self._check()
        return self._table.fetch(key)

    def fetch_many(self, keys):
        self._check()
        return self._table.fetch_many(keys)

    def write(self, write):
        self._check()
        return self._table.write(write)


class VirtualWorker:
    """One worker, driven by the world."""

    def __init__(
        self,
        world: World,
        name: str,
        handler,
        lifecycle=None,
        dead_letter=None,
        handler_pool=None,
        read_pool=None,
        retention_s=86_400.0,
        clock=None,
        **options,
    ) -> None:
        self.world = world
        self.name = name
        self.table = world.table.of(world.clock)
        self.is_paused = False
        self.delivered: list[tuple[float, str, bytes]] = []
        self.measured = world.metrics
        options = {
            "starting_position": "TRIM_HORIZON",
            "cold_start_jitter_s": 0.0,
            "lease_duration_s": 9.0,
            "checkpoint_interval_s": 1.0,
            **options,
        }

        def handle(batch: Batch) -> None:
            if handler is not None:
                handler(batch)
            for record in batch:
                self.delivered.append((world.clock.now_s, record.shard_id, record.data))

        pool = InlinePool()
        registration = None
        if "retrieval" in options:
            registration = ConsumerRegistration(world.fan_out, "arn:orders", "app", world.clock, world.chance)
        factory = lifecycle if lifecycle is not None else (lambda: HandlerProcessor(handle))
        consumer_options = ConsumerOptions(worker_id=name, **options)
        self.runtime = Worker(
            streams=[
                ConsumedStream(
                    "orders", consumer_options.start, retention_s=retention_s, registration=registration
                )
            ],
            worker_id=name,
            options=consumer_options,
            ports=WorkerPorts(world.kinesis, self.table, clock or world.clock, world.chance, world.metrics),
            pools=Pools(pool, pool, read_pool or pool, handler_pool or pool),
            processor_factory=lambda _: factory(),
            dead_letter=dead_letter,
            is_lifecycle_called=lifecycle is not None,
            on_checkpoint_begun=self._wait_for,
        )

    def data(self) -> list[bytes]:
        return [data for _, _, data in self.delivered]

    def held_bytes(self) -> int:
        """Return the bytes that its budget has booked for all its shards together."""
        return self.runtime.delivery._budget.total_bytes

    def check_budget(self) -> None:
        """Check, at rest, that the booked bytes are those that the runs hold."""
        delivery = self.runtime.delivery
        if not self.is_paused and not delivery.is_finished:
            held = {run: 0 if run.is_paused else run.waiting_bytes for run in delivery._runs.values()}
            assert delivery._budget._held_bytes == held
            assert self.held_bytes() == sum(held.values())

    def loops(self):
        return [*self.runtime.subscriptions.values(), self.runtime.delivery, self.runtime.leases]

    def step(self) -> bool:
        """Run due actions; return whether there were any."""
        if self.is_paused:
            return False
        did = False
        for loop in self.loops():
            wake_s = loop.next_wake_s()
            if not loop.is_finished and (
                loop.has_events or (wake_s is not None and wake_s <= self.world.clock.now_s)
            ):
                loop.run_once(self.world.clock.now_s)
                did = True
        if self.runtime.leases.is_finished and not self.runtime.has_ended.is_set():
            self.runtime.finish()
        return did

    def wake_s(self) -> float:
        if self.is_paused or self.runtime.has_ended.is_set():
            return float("inf")
        return min(loop.next_wake_s() or float("inf") for loop in self.loops() if not loop.is_finished)

    def _wait_for(self, pending) -> None:
        """As `batch.checkpoint` waits: only this worker's lease loop moves meanwhile."""
        end_s = self.world.clock.now_s + pending.timeout_s
        leases = self.runtime.leases
        while not pending.outcome.done():
            wake_s = leases.next_wake_s()
            if leases.has_events or (wake_s is not None and wake_s <= self.world.clock.now_s):
                leases.run_once(self.world.clock.now_s)
            elif self.world.clock.now_s >= end_s:
                pending.on_timeout()
            else:
                self.world.clock.now_s = min(end_s, wake_s or end_s)


class World:
    """A stream, a table and workers under one clock."""

    def __init__(self, shard_count: int = 4, seed: int = 7) -> None:
        from penstock.runtime.metrics_tally import MetricsTally

        self.clock = MovedClock(1000.0)
        self.chance = random.Random(seed)
        self.kinesis = TinyKinesis(self.clock, shard_count)
        self.table = TableWithFaults()
        self.metrics = MetricsTally()
        self.workers: list[VirtualWorker] = []
        self.fan_out = None

    def worker(self, name: str, handler=None, **options) -> VirtualWorker:
        worker = VirtualWorker(self, name, handler, **options)
        self.workers.append(worker)
        return worker

    def put(self, count: int, prefix: str = "r") -> list[bytes]:
        sent = [f"{prefix}{index}".encode() for index in range(count)]
        for index, data in enumerate(sent):
            self.kinesis.put(f"key{index % 17}", data)
        return sent

    def run(self, duration_s: float, until=None) -> None:
        """Pass virtual time, or until a condition holds."""
        end_s = self.clock.now_s + duration_s
        for _ in range(200_000):
            if until is not None and until():
                return
            if self.step():
                continue
            wake_s = self.wake_s()
            if wake_s > end_s:
                self.clock.now_s = end_s
                assert until is None, "the condition never held"
                for worker in self.workers:
                    worker.check_budget()
                return
            self.clock.now_s = max(self.clock.now_s, wake_s)
        raise AssertionError("the world does not come to rest")

    def step(self) -> bool:
        """Run due actions; return whether there were any."""
        stepped = [worker.step() for worker in self.workers]  # every one of them, so no short cut
        if self.fan_out is not None:
            stepped.append(self.fan_out.step())
        return any(stepped)

    def wake_s(self) -> float:
        wake_s = min((worker.wake_s() for worker in self.workers), default=float("inf"))
        return wake_s if self.fan_out is None else min(wake_s, self.fan_out.wake_s())

    def owners(self) -> dict[str, str | None]:
        return {lease.key: lease.owner for lease in self.table.scan().leases if not lease.is_ended}

    def held_by(self, worker: VirtualWorker) -> list[str]:
        return sorted(key for key, owner in self.owners().items() if owner == worker.name)
