"""The streams of a world, and their events: records, reshards, trims, rows that others have left in the lease table.

A world has one stream, or several under one lease table: these enter lists, are deleted, created again and refused, each by
itself.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from penstock.consumer.stream_argument import parse_streams
from penstock.core.aggregation import MAGIC, AggregateBuilder
from penstock.core.leases.coordinator_events import Problem
from penstock.core.leases.lease import Lease, LeaseTerm
from penstock.core.leases.lease_writes import Create
from penstock.core.position import TRIM_HORIZON, Position
from penstock.core.reading.resume import IteratorStart
from penstock.core.shard import StreamSummary
from penstock.core.stream_identity import StreamIdentity
from penstock.errors import AccessDenied, NotFound, PenstockError, Rejected, Throttled
from penstock.ports.kinesis import ShardFilter, ShardListing
from penstock_sim.actors import Actors, CannotStart, ProcessEnvironment
from penstock_sim.events import processes, streams
from penstock_sim.events.base import name_of
from penstock_sim.plan import ACCOUNT, EPOCH_MS, STREAM_NAME, PlannedStream, Rollout, Scenario, StreamsPlan
from penstock_sim.process import SimProcess
from penstock_sim.stream import SimShard, SimStream, position_of
from penstock_sim.worker import SimWorker

_DAY_S: Final = 86_400.0
_SHARDS_MAX: Final = 14
_SHARDS_OF_EACH_MAX: Final = 6
"""Of each stream, if there are several."""


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
    """The streams of a world, what their service answers, and the lists of the workers that read several."""

    def __init__(self, world: ProcessEnvironment, scenario: Scenario) -> None:
        super().__init__(world)
        start, retention_s = scenario.options.start.default, scenario.retention_s
        only = PlannedStream(STREAM_NAME, scenario.shard_count, start, retention_s)
        self.plan = scenario.streams or StreamsPlan(streams=(only,), listed=(STREAM_NAME,))
        self.is_one = scenario.streams is None
        self.places: list[StreamInPlace] = []
        self._lists: dict[str, tuple[str, ...]] = {}
        """The streams that each worker reads from its next start on, if it is not the list of the beginning."""
        self._due: set[str] = set()  # workers that are stopped to start again with another list

    def open(self) -> SimStream:
        """Create the streams of the beginning; return the first."""
        for place, planned in enumerate(self.plan.streams):
            self._create(planned, EPOCH_MS - 60_000 - 1_700 * place)
        return self.places[0].content

    def _create(self, planned: PlannedStream, now_ms: int) -> None:
        retention_s = planned.retention_s
        if self.is_one:
            content = SimStream(self.world.chance, planned.shard_count, now_ms, retention_s=retention_s)
        else:
            identity = StreamIdentity(f"arn:aws:kinesis:eu-west-1:{ACCOUNT}:stream/{planned.name}", now_ms)
            epoch = now_ms // 1000 if planned.epoch is None else planned.epoch
            former = [place.content.last_number for place in self.places if place.plan.name == planned.name]
            content = SimStream(
                self.world.chance,
                planned.shard_count,
                now_ms,
                identity=identity,
                retention_s=retention_s,
                stream_id=f"{ACCOUNT}:{planned.name}:{epoch}",
                number_min=max(former, default=0),
            )
            retention_ms = int((retention_s or _DAY_S) * 1000)
            self.world.record(
                streams.StreamCreated(
                    content.stream_id, planned.name, str(identity), planned.start, retention_ms
                )
            )
        self.places.append(StreamInPlace(planned, content))
        for shard in content.shards.values():
            self.world.record(streams.ShardCreated(content.key_of(shard.shard_id), shard.parents))

    def there(self) -> list[StreamInPlace]:
        return [place for place in self.places if place.is_there]

    def find_place(self, name: str) -> StreamInPlace | None:
        return next((place for place in self.there() if place.plan.name == name), None)

    def read(self) -> list[SimStream]:
        """Return the streams whose records the fleet owes to its handlers."""
        names = self.plan.last_listed
        return [place.content for place in self.there() if place.plan.name in names]

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
        return shard_id if self.is_one else f"{stream}:{shard_id}"

    def locate(self, place: str) -> tuple[SimStream, SimShard] | PenstockError:
        owner, _, shard_id = place.rpartition(":")
        name = owner.split(":")[1] if ":" in owner else owner or STREAM_NAME
        found = self.find_place(name)
        if found is None:
            return no_stream(name)
        if self.world.now < found.denied_until:
            return AccessDenied(f"access to {name} is denied", code=self.world.denial)
        if ":" in owner and found.content.stream_id != owner:
            return Rejected("Invalid ShardIterator.", code="InvalidArgumentException")
        shard = found.content.shards.get(shard_id)
        return self.world.unknown_shard(shard_id) if shard is None else (found.content, shard)

    def refuse_position(self, stream: SimStream, position: Position) -> PenstockError | None:
        """Return why the service takes no such position: it is of a stream that had this one's name."""
        number = position.sequence_number
        if self.is_one or number is None or stream.has_given(int(number)):
            return None
        return Rejected(f"{position} did not come from this stream", code="InvalidArgumentException")

    # --- records ------------------------------------------------------------------------------------------

    @property
    def is_quiet(self) -> bool:
        """Whether no records are put into the only stream."""
        return self.is_one and self.world.now < self.places[0].quiet_until and not self.world.is_healed

    def _draw(self, shares: list[float]) -> StreamInPlace:
        """Draw a stream that is there, each with its share."""
        return self.there()[0] if self.is_one else self.world.chance.choices(self.there(), shares)[0]

    def put(self) -> None:
        world = self.world
        drawn = self._draw([place.plan.record_share for place in self.there()])
        stream = drawn.content
        if world.now < drawn.quiet_until and not world.is_healed:
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
            world.record(streams.RecordPut(stream.key_of(shard.shard_id), number, now_ms))

    def put_everywhere(self) -> None:
        """Put a record into every open shard: its reader must still deliver."""
        now_ms = self.world.now_ms()
        for stream in self.read():
            for shard in stream.open_shards():
                number = stream.put_into(shard, now_ms)
                self.world.record(streams.RecordPut(stream.key_of(shard.shard_id), number, now_ms))

    def silence(self) -> None:
        """Put no records into a stream for a while, perhaps for so long that all records leave it."""
        world = self.world
        places = [place for place in self.there() if place.plan.retention_s is not None]
        if places:
            place = places[0] if self.is_one else world.chance.choice(places)
            place.quiet_until = world.now + world.chance.uniform(0.3, 1.5) * (place.plan.retention_s or 0.0)
            name = place.content.stream_id or STREAM_NAME
            world.record(streams.StreamQuiet(round(place.quiet_until, 3), name))

    def trim(self) -> None:
        """Remove the records whose retention is over, each second."""
        world = self.world
        retained = [place.content for place in self.places if place.content.retention_s is not None]
        for stream in retained:
            shortened, gone = stream.trim(world.now_ms() - int((stream.retention_s or 0.0) * 1000))
            for shard in shortened:
                key = stream.key_of(shard.shard_id)
                world.record(streams.RecordsTrimmed(key, shard.trimmed, shard.sequences[shard.trimmed - 1]))
            for shard in gone:
                world.record(streams.ShardExpired(stream.key_of(shard.shard_id)))
        if retained:
            world.schedule(world.now + 1.0, self.trim)

    # --- shards -------------------------------------------------------------------------------------------

    def reshard(self) -> None:
        """Split a shard of a stream, or merge two; a stream that has enough open shards is not split."""
        shares = [place.plan.reshard_share for place in self.there()]
        if not any(shares):
            return
        stream = self._draw(shares).content
        shards_max = _SHARDS_MAX if self.is_one else _SHARDS_OF_EACH_MAX
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
            world.record(streams.ShardCreated(stream.key_of(child), of))
        for key in of if children else ():
            world.record(streams.ShardClosed(key))

    # --- events of streams ----------------------------------------------------------------------------

    def begin(self) -> None:
        for deletion in self.plan.deletions:
            self.world.schedule(deletion.at_s, self._delete, deletion.name)
            if deletion.recreated_after_s is not None:
                self.world.schedule(deletion.at_s + deletion.recreated_after_s, self._recreate, deletion.name)
        added = set(self.plan.rollouts[0].names) - set(self.plan.listed) if self.plan.rollouts else set[str]()
        for name in sorted(added) if self.plan.added_refused_s else ():
            self.world.schedule(self.plan.rollouts[0].begins_s, self._refuse_listing, name)
        for rollout in self.plan.rollouts:
            for place, name in enumerate(self.world.scenario.workers):
                self.world.schedule(rollout.begins_s + place * rollout.apart_s, self._roll_out, name, rollout)

    def recurring(self) -> list[tuple[float, Callable[[], None]]]:
        return [(self.world.faults.refusals_per_min, self._refuse)]

    def _delete(self, name: str) -> None:
        place = self.find_place(name)
        if place is not None:
            place.is_there = False
            self.world.record(streams.StreamDeleted(place.content.stream_id))

    def _recreate(self, name: str) -> None:
        planned = next(each for each in self.plan.streams if each.name == name)
        self._create(planned, self.world.now_ms())
        self.world.record(streams.StreamRecreated(self.places[-1].content.stream_id, name))

    def _roll_out(self, name: str, rollout: Rollout) -> None:
        if self.world.is_healed:
            return
        self._lists[name] = rollout.names
        self.world.record(streams.ListChanged(name, rollout.names))
        worker = self.world.workers.get(name)
        if worker is not None and self.world.now >= worker.paused_until:
            self.world.record(processes.ProcessStopping(worker.who))
            self._due.add(name)
            worker.request_stop()

    def _on_process_exited(self, event: processes.ProcessExited) -> None:
        name = name_of(event.who)
        if name in self._due:
            self._due.discard(name)
            self._start_later(name, 0.05, 1.0)

    def _start_later(self, name: str, least_s: float, most_s: float) -> None:
        world = self.world
        world.schedule(world.now + world.chance.uniform(least_s, most_s), world.start_worker, name)

    def _refuse(self) -> None:
        self.world.met["fault: refusals_per_min"] += 1
        place = self.world.chance.choice(self.there()[1:] or self.there())
        until_s = self.world.now + self.world.chance.uniform(5.0, 40.0)
        if self.world.chance.random() < 0.6:
            place.refused_until = max(until_s, place.refused_until)
            self.world.met[streams.LISTING_REFUSED] += 1
        else:
            place.denied_until = until_s
            self.world.met[streams.ACCESS_DENIED] += 1
        self.world.record(streams.StreamRefused(place.content.stream_id, round(until_s, 3)))

    def _refuse_listing(self, name: str) -> None:
        place = self.find_place(name)
        if place is not None and not self.world.is_healed:
            place.refused_until = self.world.now + self.plan.added_refused_s
            self.world.met[streams.ADDED_REFUSED] += 1
            self.world.record(streams.StreamRefused(place.content.stream_id, round(place.refused_until, 3)))

    def heal(self) -> None:
        for deletion in self.plan.deletions:
            is_gone = self.find_place(deletion.name) is None
            if deletion.recreated_after_s is not None and is_gone:
                self._recreate(deletion.name)
        for place in self.places:
            place.refused_until = place.denied_until = 0.0
        self._lists = dict.fromkeys(self.world.scenario.workers, self.plan.last_listed)
        for place in self.there():
            if place.plan.name not in self.plan.last_listed:
                self.world.record(streams.StreamUnlisted(place.content.stream_id))

    def wants_restart(self, process: SimProcess) -> bool:
        """Whether a worker reads other streams than those of its list."""
        ids = {stream.stream_id for stream in self.read()}
        return isinstance(process, SimWorker) and process.streams.keys() != ids

    # --- workers --------------------------------------------------------------------------------------

    def make(self, name: str) -> SimWorker:
        """Return a new worker of no other actors, not begun yet.

        Raises:
            CannotStart: It cannot describe a stream of its list; it tries again later.
        """
        if self.is_one:
            return SimWorker(self.world, name)
        world, names = self.world, self._lists.get(name, self.plan.listed)
        starts = {each.listed_as: each.start for each in self.plan.streams if each.name in names}
        try:
            consumed = parse_streams(starts, TRIM_HORIZON).fetch_descriptions(
                self.fetch_summary, lambda _: None
            )
        except PenstockError as error:
            world.record(streams.StartFailed(name, type(error).__name__))
            self._start_later(name, 1.0, 5.0)
            raise CannotStart(name) from error
        worker = SimWorker(world, name, consumed)
        world.record(streams.StreamsChosen(worker.who, tuple(stream.stream_id for stream in consumed)))
        return worker

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
        stream_id = streams.stream_id_of(key)
        return sum(streams.stream_id_of(each) == stream_id for each in self.world.table.rows) > 1


def no_stream(name: str) -> NotFound:
    """Return the error of a stream that is not there."""
    return NotFound(f"stream {name} does not exist", code="ResourceNotFoundException")
