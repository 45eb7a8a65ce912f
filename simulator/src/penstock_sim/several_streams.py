"""Several streams under one lease table: they enter lists, are deleted, created again and refused, each by itself."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from penstock.consumer.stream_argument import parse_streams
from penstock.core.position import TRIM_HORIZON, Position
from penstock.core.stream_identity import StreamIdentity
from penstock.errors import AccessDenied, PenstockError, Rejected
from penstock_sim.actors import CannotStart
from penstock_sim.events.base import name_of
from penstock_sim.events.processes import ProcessExited, ProcessStopping
from penstock_sim.events.streams import (
    ACCESS_DENIED,
    ADDED_REFUSED,
    LISTING_REFUSED,
    ListChanged,
    StartFailed,
    StreamCreated,
    StreamDeleted,
    StreamQuiet,
    StreamRecreated,
    StreamRefused,
    StreamsChosen,
    StreamUnlisted,
)
from penstock_sim.plan import ACCOUNT, EPOCH_MS, PlannedStream, Rollout, StreamsPlan
from penstock_sim.process import SimProcess
from penstock_sim.stream import SimShard, SimStream
from penstock_sim.stream_set import StreamInPlace, StreamSet, no_stream
from penstock_sim.worker import SimWorker
from penstock_sim.world import World

_DAY_S: Final = 86_400.0
_SHARDS_MAX: Final = 6
"""Of each stream."""


class SeveralStreams(StreamSet):
    """The streams of a world that has several, and the workers that read them."""

    def __init__(self, world: World, plan: StreamsPlan) -> None:
        super().__init__(world)
        self.plan = plan
        self._lists: dict[str, tuple[str, ...]] = {}
        """The streams that each worker reads from its next start on, if it is not the list of the beginning."""
        self._due: set[str] = set()  # workers that are stopped to start again with another list

    # --- the streams ----------------------------------------------------------------------------------

    def open(self) -> SimStream:
        for place, planned in enumerate(self.plan.streams):
            self._create(planned, EPOCH_MS - 60_000 - 1_700 * place)
        return self.places[0].content

    def _create(self, planned: PlannedStream, now_ms: int) -> None:
        identity = StreamIdentity(f"arn:aws:kinesis:eu-west-1:{ACCOUNT}:stream/{planned.name}", now_ms)
        epoch = now_ms // 1000 if planned.epoch is None else planned.epoch
        former = [place.content.last_number for place in self.places if place.plan.name == planned.name]
        content = SimStream(
            self.world.chance,
            planned.shard_count,
            now_ms,
            identity=identity,
            retention_s=planned.retention_s,
            stream_id=f"{ACCOUNT}:{planned.name}:{epoch}",
            number_min=max(former, default=0),
        )
        self.places.append(StreamInPlace(planned, content))
        retention_ms = int((planned.retention_s or _DAY_S) * 1000)
        self.world.record(
            StreamCreated(content.stream_id, planned.name, str(identity), planned.start, retention_ms)
        )
        self.record_shards(content)

    def read(self) -> list[SimStream]:
        names = self.plan.last_listed
        return [place.content for place in self.there() if place.plan.name in names]

    def draw(self) -> SimStream | None:
        places = self.there()
        (drawn,) = self.world.chance.choices(places, [place.plan.record_share for place in places])
        return None if self.world.now < drawn.quiet_until and not self.world.is_healed else drawn.content

    def silence(self) -> None:
        places = [place for place in self.there() if place.plan.retention_s is not None]
        if places:
            place = self.world.chance.choice(places)
            place.quiet_until = self.draw_quiet_until(place.plan.retention_s)
            self.world.record(StreamQuiet(round(place.quiet_until, 3), place.content.stream_id))

    def reshard(self) -> None:
        places = self.there()
        shares = [place.plan.reshard_share for place in places]
        if any(shares):
            (drawn,) = self.world.chance.choices(places, shares)
            self.reshard_in(drawn.content, _SHARDS_MAX)

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
            self.world.record(StreamDeleted(place.content.stream_id))

    def _recreate(self, name: str) -> None:
        planned = next(each for each in self.plan.streams if each.name == name)
        self._create(planned, self.world.now_ms())
        self.world.record(StreamRecreated(self.places[-1].content.stream_id, name))

    def _roll_out(self, name: str, rollout: Rollout) -> None:
        if self.world.is_healed:
            return
        self._lists[name] = rollout.names
        self.world.record(ListChanged(name, rollout.names))
        worker = self.world.workers.get(name)
        if worker is not None and self.world.now >= worker.paused_until:
            self.world.record(ProcessStopping(worker.who))
            self._due.add(name)
            worker.request_stop()

    def _on_process_exited(self, event: ProcessExited) -> None:
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
            self.world.met[LISTING_REFUSED] += 1
        else:
            place.denied_until = until_s
            self.world.met[ACCESS_DENIED] += 1
        self.world.record(StreamRefused(place.content.stream_id, round(until_s, 3)))

    def _refuse_listing(self, name: str) -> None:
        place = self.find_place(name)
        if place is not None and not self.world.is_healed:
            place.refused_until = self.world.now + self.plan.added_refused_s
            self.world.met[ADDED_REFUSED] += 1
            self.world.record(StreamRefused(place.content.stream_id, round(place.refused_until, 3)))

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
                self.world.record(StreamUnlisted(place.content.stream_id))

    def wants_restart(self, process: SimProcess) -> bool:
        """Whether a worker reads other streams than those of its list."""
        ids = {stream.stream_id for stream in self.read()}
        return isinstance(process, SimWorker) and process.streams.keys() != ids

    # --- workers --------------------------------------------------------------------------------------

    def make(self, name: str) -> SimWorker:
        """Return a new worker, not begun yet.

        Raises:
            CannotStart: It cannot describe a stream of its list; it tries again later.
        """
        world, names = self.world, self._lists.get(name, self.plan.listed)
        starts = {each.listed_as: each.start for each in self.plan.streams if each.name in names}
        try:
            streams = parse_streams(starts, TRIM_HORIZON).fetch_descriptions(
                self.fetch_summary, lambda _: None
            )
        except PenstockError as error:
            world.record(StartFailed(name, type(error).__name__))
            self._start_later(name, 1.0, 5.0)
            raise CannotStart(name) from error
        worker = SimWorker(world, name, streams)
        world.record(StreamsChosen(worker.who, tuple(stream.stream_id for stream in streams)))
        return worker

    # --- the service ----------------------------------------------------------------------------------

    def place_of(self, stream: str, shard_id: str) -> str:
        return f"{stream}:{shard_id}"

    def locate(self, place: str) -> tuple[SimStream, SimShard] | PenstockError:
        owner, _, shard_id = place.rpartition(":")
        name = owner.split(":")[1] if ":" in owner else owner
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
        if position.sequence_number is None or stream.has_given(int(position.sequence_number)):
            return None
        return Rejected(f"{position} did not come from this stream", code="InvalidArgumentException")
