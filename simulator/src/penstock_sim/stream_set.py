"""The streams of a world, and their events: records, reshards, trims, rows that others have left in the lease table."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from penstock.core.aggregation import MAGIC, AggregateBuilder
from penstock.core.leases.coordinator_events import Problem
from penstock.core.leases.lease import Lease, LeaseTerm
from penstock.core.leases.lease_writes import Create
from penstock.core.position import TRIM_HORIZON, Position
from penstock.core.reading.resume import IteratorStart
from penstock.core.shard import StreamSummary
from penstock.errors import AccessDenied, NotFound, PenstockError, Throttled
from penstock.ports.kinesis import ShardFilter, ShardListing
from penstock_sim.actors import Actors
from penstock_sim.events.streams import (
    RecordPut,
    RecordsTrimmed,
    ShardClosed,
    ShardCreated,
    ShardExpired,
    StreamQuiet,
    stream_id_of,
)
from penstock_sim.plan import EPOCH_MS, STREAM_NAME, PlannedStream
from penstock_sim.stream import SimShard, SimStream, position_of

if TYPE_CHECKING:
    from penstock_sim.world import World

_SHARDS_MAX: Final = 14


@dataclass(eq=False)
class StreamInPlace:
    """A stream that has been created, and may have been deleted."""

    plan: PlannedStream
    content: SimStream  # its shards and records
    is_there: bool = True  # whether it has not been deleted
    refused_until: float = 0.0  # when it answers listings again
    denied_until: float = 0.0  # when it answers anything again
    quiet_until: float = 0.0  # when records arrive again


class StreamSet(Actors):
    """The streams of a world, and what their service answers: here one stream, more in `SeveralStreams`."""

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self.places: list[StreamInPlace] = []
        self.quiet_until = 0.0
        """Until then no records are put into any stream."""

    def open(self) -> SimStream:
        """Create the streams of the beginning; return the first."""
        scenario = self.world.scenario
        start, retention_s = scenario.options.start.default, scenario.retention_s
        plan = PlannedStream(STREAM_NAME, scenario.shard_count, start, retention_s)
        stream = SimStream(
            self.world.chance, plan.shard_count, EPOCH_MS - 60_000, retention_s=plan.retention_s
        )
        self.places.append(StreamInPlace(plan, stream))
        self.record_shards(stream)
        return stream

    def record_shards(self, stream: SimStream) -> None:
        for shard in stream.shards.values():
            self.world.record(ShardCreated(stream.key_of(shard.shard_id), shard.parents))

    def there(self) -> list[StreamInPlace]:
        return [place for place in self.places if place.is_there]

    def find_place(self, name: str) -> StreamInPlace | None:
        return next((place for place in self.there() if place.plan.name == name), None)

    def read(self) -> list[SimStream]:
        """Return the streams whose records the fleet owes to its handlers."""
        return [place.content for place in self.there()]

    def iterator_life_s(self) -> float:
        """Return how long an iterator is valid: much shorter than the retention, as the service's five minutes are."""
        return 300.0 if all(place.content.retention_s is None for place in self.places) else 8.0

    # --- methods of `penstock.ports.kinesis.Kinesis`; the caller of a call advances the time ------------------

    def fetch_summary(self, name: str) -> StreamSummary:
        place = self.find_place(name)
        if place is None:
            raise no_stream(name)
        if self.world.is_denied("stream") or self.world.now < place.denied_until:
            raise AccessDenied(f"access to {name} is denied", code=self.world.denial)
        return place.content.summary(name)

    def fetch_shards(self, stream: str, shard_filter: ShardFilter | None = None) -> ShardListing:
        world, place = self.world, self.find_place(stream)
        if place is None:
            raise no_stream(stream)
        if world.now < max(place.refused_until, place.denied_until):
            answer: Any = world.chance.choice((Problem.REFUSED, Problem.THROTTLED))
        else:
            answer = world.serve_listing(shard_filter, place.content)
        if answer is Problem.REFUSED:
            raise AccessDenied("access is denied", code=world.denial)
        if isinstance(answer, Problem):
            raise Throttled("throttled")
        return ShardListing(*answer)

    def fetch_iterator(self, stream: str, shard_id: str, start: IteratorStart) -> str:
        answer = self.world.serve_iterator(self.place_of(stream, shard_id), position_of(start))
        if isinstance(answer, PenstockError):
            raise answer
        return answer

    def place_of(self, stream: str, shard_id: str) -> str:
        """Return how calls name a shard."""
        return shard_id

    def locate(self, place: str) -> tuple[SimStream, SimShard] | PenstockError:
        return self.world.stream, self.world.stream.shards[place]

    def refuse_position(self, stream: SimStream, position: Position) -> PenstockError | None:
        """Return why the service takes no such position; a reader of one stream has none but its own."""
        return None

    # --- records ------------------------------------------------------------------------------------------

    def draw(self) -> SimStream | None:
        """Return the stream of the next records; None while it is quiet."""
        return self.world.stream

    def put(self) -> None:
        world, stream = self.world, self.draw()
        if stream is None:
            return
        shard = stream.draw_open_shard()
        now_ms = world.now_ms()
        if world.luck("malformed_aggregate"):
            blob = MAGIC + world.chance.randbytes(world.chance.choice((1, 20, 40)))
            numbers = stream.put_blob(shard, blob, "key", 1, now_ms)
        elif world.luck("aggregate"):
            count = world.chance.randint(2, 9)
            builder = AggregateBuilder()
            for _ in range(count):
                builder.add(b"", "key", str(shard.hash_range.start))
            entry = builder.build()
            numbers = stream.put_blob(shard, entry.data, entry.partition_key, count, now_ms)
        else:
            numbers = [stream.put_into(shard, now_ms)]
        for number in numbers:
            world.record(RecordPut(stream.key_of(shard.shard_id), number, now_ms))

    def put_everywhere(self) -> None:
        """Put a record into every open shard: its reader must still deliver."""
        now_ms = self.world.now_ms()
        for stream in self.read():
            for shard in stream.open_shards():
                number = stream.put_into(shard, now_ms)
                self.world.record(RecordPut(stream.key_of(shard.shard_id), number, now_ms))

    def silence(self) -> None:
        self.quiet_until = self.draw_quiet_until(self.world.scenario.retention_s)
        self.world.record(StreamQuiet(round(self.quiet_until, 3)))

    def draw_quiet_until(self, retention_s: float | None) -> float:
        """Draw the end of a silence, which may be so long that all records leave the stream."""
        return self.world.now + self.world.chance.uniform(0.3, 1.5) * (retention_s or 0.0)

    def trim(self) -> None:
        """Remove the records whose retention is over, each second."""
        world = self.world
        retained = [place.content for place in self.places if place.content.retention_s is not None]
        for stream in retained:
            shortened, gone = stream.trim(world.now_ms() - int((stream.retention_s or 0.0) * 1000))
            for shard in shortened:
                key = stream.key_of(shard.shard_id)
                world.record(RecordsTrimmed(key, shard.trimmed, shard.sequences[shard.trimmed - 1]))
            for shard in gone:
                world.record(ShardExpired(stream.key_of(shard.shard_id)))
        if retained:
            world.schedule(world.now + 1.0, self.trim)

    # --- shards -------------------------------------------------------------------------------------------

    def reshard(self) -> None:
        self.reshard_in(self.world.stream, _SHARDS_MAX)

    def reshard_in(self, stream: SimStream, shards_max: int) -> None:
        """Split a shard of a stream, or merge two; a stream that has `shards_max` open shards is not split."""
        world, shards = self.world, stream.open_shards()
        if len(shards) < 2 or (len(shards) < shards_max and world.chance.random() < 0.5):
            parents = [world.chance.choice(shards)]
            children = stream.split(parents[0], world.now_ms())
        else:
            place = world.chance.randrange(len(shards) - 1)
            parents = shards[place : place + 2]
            children = stream.merge(parents[0], parents[1], world.now_ms())
        of = tuple(stream.key_of(parent.shard_id) for parent in parents)
        for child in children:
            world.record(ShardCreated(stream.key_of(child), of))
        for key in of if children else ():
            world.record(ShardClosed(key))

    # --- the lease table ----------------------------------------------------------------------------------

    def leave_rows(self) -> None:
        """Put the rows of dead workers of the KCL and of Spark into the table: without our attributes, or with old ones."""
        for place in self.places:
            self._leave_rows_of(place.content, place.plan.start)

    def _leave_rows_of(self, stream: SimStream, start: Position) -> None:
        world, rate, chance = self.world, self.world.faults.rows_of_others, self.world.chance
        if not rate or start != TRIM_HORIZON or chance.random() > rate:
            return
        world.met["fault: rows_of_others"] += 1
        world.table.exists = True
        for shard in stream.list_shards(ShardFilter("AT_TRIM_HORIZON")):
            owner = chance.choice(("java/1", "spark/q1"))
            term = chance.choice((None, LeaseTerm("spark/q1", 30_000), LeaseTerm("spark/q2", 10**9)))
            hash_range = None if owner == "java/1" and chance.random() < 0.3 else shard.hash_range
            lease = Lease(stream.key_of(shard.shard_id), 7, owner, hash_range=hash_range, term=term)
            world.table.write(f"{owner}#1", Create(lease))

    def may_delete(self, key: str) -> bool:
        """Whether a row may be deleted: it is not its stream's last."""
        stream_id = stream_id_of(key)
        return sum(stream_id_of(each) == stream_id for each in self.world.table.rows) > 1


def no_stream(name: str) -> NotFound:
    """Return the error of a stream that is not there."""
    return NotFound(f"stream {name} does not exist", code="ResourceNotFoundException")
