"""Four applications on one stream that is written at its full rate, under the embedded server's quotas, in virtual time."""

from __future__ import annotations

from tiny_fan_out import TinyFanOut
from virtual_world import TinyKinesis, World

from moved_clock import MovedClock
from penstock.errors import Throttled
from penstock.ports.fan_out import StreamConsumer
from penstock_local.quotas import ShardQuota

SHARD_COUNT = 4
APPLICATIONS = ("one", "two", "three", "four")
RECORD = bytes(64 * 1024 - 4)  # with its key
WRITES_PER_S = 4
START = {"lease_duration_s": 10.0, "checkpoint_interval_s": 5.0, "max_records": 10_000}


class SharedKinesis(TinyKinesis):
    """Refuses reads as the embedded server does."""

    def __init__(self, clock: MovedClock) -> None:
        super().__init__(clock, SHARD_COUNT)
        self._quotas = {shard_id: ShardQuota() for shard_id in self.shards}

    def fetch_records(self, stream, iterator, record_count_max=10_000):
        quota, now_ms = self._quotas[iterator.partition("|")[0]], int(self.clock.now_s * 1000)
        if not quota.read_bytes.may_read(now_ms) or not quota.read_calls.may_take(1, now_ms):
            code = "ProvisionedThroughputExceededException"
            raise Throttled("rate exceeded", operation="GetRecords", code=code)
        quota.read_calls.take(1)
        page = super().fetch_records(stream, iterator, record_count_max)
        quota.read_bytes.take(sum(len(record.data) for record in page.records), now_ms)
        return page


class Fleet:
    """The applications; each has a table, a consumer and a worker of its own."""

    def __init__(self, **options) -> None:
        self.clock = MovedClock(1000.0)
        self.kinesis = SharedKinesis(self.clock)
        self.keys = self._keys()
        self.put_count = 0
        self.worlds = {}
        for place, name in enumerate(APPLICATIONS):
            world = World(SHARD_COUNT, seed=20 + place)
            world.clock, world.kinesis = self.clock, self.kinesis
            # Registered before: waiting for it would take this world's one clock seconds further.
            consumers = {"app": StreamConsumer("app", f"arn:{name}", "ACTIVE", 0)}
            world.fan_out = TinyFanOut(self.kinesis, self.clock, consumers, rates={})
            world.worker(name, **START, **options)
            self.worlds[name] = world

    def _keys(self) -> list[str]:
        """A key of each shard."""
        found = {}
        for number in range(1000):
            found.setdefault(self.kinesis.put(f"{number:04}", b""), f"{number:04}")
        for shard in self.kinesis.shards.values():
            shard.records.clear()
        return [found[shard_id] for shard_id in sorted(found)]

    def write(self, duration_s: float) -> None:
        """Put 1 MiB a second into each shard."""
        for _ in range(int(duration_s * WRITES_PER_S)):
            for key in self.keys:
                for _ in range(16 // WRITES_PER_S):
                    self.kinesis.put(key, RECORD)
                    self.put_count += 1
            self.run(1 / WRITES_PER_S)

    def run(self, duration_s: float) -> None:
        end_s = self.clock.now_s + duration_s
        while True:
            stepped = [world.step() for world in self.worlds.values()]
            if any(stepped):
                continue
            wake_s = min(world.wake_s() for world in self.worlds.values())
            self.clock.now_s = min(max(self.clock.now_s, wake_s), end_s)
            if wake_s > end_s:
                return

    def behind_s(self) -> dict[str, float]:
        """How many seconds of writing each application has not delivered."""
        per_s = SHARD_COUNT * 16
        return {
            name: round((self.put_count - len(world.workers[0].delivered)) / per_s, 2)
            for name, world in self.worlds.items()
        }

    def pushed_count(self) -> int:
        return sum(each.is_open for world in self.worlds.values() for each in world.fan_out.streams)
