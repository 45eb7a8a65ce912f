"""A world of several streams under one lease table: they enter lists, are deleted, created again and refused, each by itself."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from penstock.consumer.stream_argument import parse_streams
from penstock.consumer.stream_reading import ConsumedStream
from penstock.core.leases.coordinator_events import Problem
from penstock.core.position import TRIM_HORIZON, Position
from penstock.core.shard import Shard, StreamSummary
from penstock.core.stream_identity import StreamIdentity
from penstock.errors import AccessDenied, NotFound, PenstockError, Rejected
from penstock_sim.events.base import HistoryEntry
from penstock_sim.events.processes import ProcessStopping
from penstock_sim.events.streams import (
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
from penstock_sim.faults import EPOCH_MS, Scenario
from penstock_sim.process import SimProcess
from penstock_sim.stream import SimShard, SimStream
from penstock_sim.streams_plan import ACCOUNT, PlannedStream, Rollout, StreamsPlan
from penstock_sim.streams_service import StreamsService
from penstock_sim.streams_worker import StreamsWorker
from penstock_sim.world import World

_SHARDS_MAX: Final = 6
"""Of each stream."""


@dataclass(eq=False)
class StreamInPlace:
    """A stream that has been created, and may have been deleted.

    Args:
        plan: Drawn from the seed.
        identity: Distinguishes it from another one of its name.
        content: Its shards and records.
        is_there: Whether it has not been deleted.
        refused_until: When it answers listings again.
        denied_until: When it answers anything again.
        quiet_until: When records arrive again.
    """

    plan: PlannedStream
    identity: StreamIdentity
    content: SimStream
    is_there: bool = True
    refused_until: float = 0.0
    denied_until: float = 0.0
    quiet_until: float = 0.0


class StreamsWorld(World):
    """One run of one scenario with several streams.

    Args:
        scenario: Drawn from the seed.
        plan: What happens to the streams.
        listener: Called with every history entry.
    """

    def __init__(
        self, scenario: Scenario, plan: StreamsPlan, listener: Callable[[HistoryEntry], None]
    ) -> None:
        self.plan = plan
        self.places: list[StreamInPlace] = []
        super().__init__(scenario, listener)
        self.iterator_life_s = 300.0 if all(each.retention_s is None for each in plan.streams) else 8.0
        self.lists = dict.fromkeys(scenario.workers, plan.listed)
        """The streams that each worker reads from its next start on."""
        self._consumed: dict[str, list[ConsumedStream]] = {}
        self._due: set[str] = set()  # workers that are stopped to start again with another list

    # --- the streams ----------------------------------------------------------------------------------

    def open_stream(self) -> SimStream:
        """Create the streams of the beginning; return the first."""
        for place, planned in enumerate(self.plan.streams):
            self._create(planned, EPOCH_MS - 60_000 - 1_700 * place)
        return self.places[0].content

    def _create(self, planned: PlannedStream, now_ms: int) -> None:
        identity = StreamIdentity(f"arn:aws:kinesis:eu-west-1:{ACCOUNT}:stream/{planned.name}", now_ms)
        epoch = now_ms // 1000 if planned.epoch is None else planned.epoch
        former = [place.content.last_number for place in self.places if place.plan.name == planned.name]
        content = SimStream(
            self.chance,
            planned.shard_count,
            now_ms,
            f"{ACCOUNT}:{planned.name}:{epoch}",
            max(former, default=0),
        )
        self.places.append(StreamInPlace(planned, identity, content))
        retention_ms = int(_retention_s(planned) * 1000)
        self.record(
            StreamCreated(content.stream_id, planned.name, str(identity), planned.start, retention_ms)
        )
        self.record_shards(content)

    def _there(self) -> list[StreamInPlace]:
        return [place for place in self.places if place.is_there]

    def find_place(self, name: str) -> StreamInPlace | None:
        """Return the stream that has a name now."""
        return next((place for place in self.places if place.is_there and place.plan.name == name), None)

    def streams_read(self) -> list[SimStream]:
        """Return the streams that are there, and in the lists of the end."""
        names = self.plan.last_listed
        return [place.content for place in self._there() if place.plan.name in names]

    def retained(self) -> list[tuple[SimStream, float | None]]:
        """Return how long each stream keeps its records."""
        return [(place.content, place.plan.retention_s) for place in self.places]

    def draw_stream(self) -> SimStream | None:
        """Draw the stream of the next records; None while it is quiet."""
        places = self._there()
        (drawn,) = self.chance.choices(places, [place.plan.record_share for place in places])
        return None if self.now < drawn.quiet_until and not self.is_healed else drawn.content

    def fall_silent(self) -> None:
        """Keep one stream quiet for a while, perhaps for so long that all of its records leave."""
        places = [place for place in self._there() if place.plan.retention_s is not None]
        if places:
            place = self.chance.choice(places)
            place.quiet_until = self.now + self.chance.uniform(0.3, 1.5) * (place.plan.retention_s or 0.0)
            self.record(StreamQuiet(round(place.quiet_until, 3), place.content.stream_id))

    def reshard(self) -> None:
        """Split a shard of one stream, or merge two."""
        places = self._there()
        shares = [place.plan.reshard_share for place in places]
        if any(shares):
            (drawn,) = self.chance.choices(places, shares)
            self.reshard_in(drawn.content, _SHARDS_MAX)

    def leave_rows_of_others(self) -> None:
        """Put the rows into the table that dead workers of the KCL left of some streams."""
        for place in self.places:
            self.leave_rows_of(place.content, place.plan.start)

    def may_delete(self, key: str) -> bool:
        """Whether a row may be deleted: it is not its stream's last."""
        stream_id = key.rpartition(":")[0]
        return sum(each.rpartition(":")[0] == stream_id for each in self.table.rows) > 1

    # --- what happens to them -------------------------------------------------------------------------

    def begin(self) -> None:
        """Schedule the recurring events and faults."""
        super().begin()
        for deletion in self.plan.deletions:
            self.schedule(deletion.at_s, self._delete, deletion.name)
            if deletion.anew_after_s is not None:
                self.schedule(deletion.at_s + deletion.anew_after_s, self._create_anew, deletion.name)
        added = set(self.plan.rollouts[0].names) - set(self.plan.listed) if self.plan.rollouts else set[str]()
        for name in sorted(added) if self.plan.shy_s else ():
            self.schedule(self.plan.rollouts[0].begins_s, self._refuse_listing, name)
        for rollout in self.plan.rollouts:
            for place, name in enumerate(self.scenario.workers):
                self.schedule(rollout.begins_s + place * rollout.apart_s, self._give_list, name, rollout)

    def recurring(self) -> list[tuple[float, Callable[[], None]]]:
        """Return the repeated events, and how often a minute each happens."""
        return [*super().recurring(), (self.plan.refusals_per_min, self._refuse)]

    def _delete(self, name: str) -> None:
        place = self.find_place(name)
        if place is not None:
            place.is_there = False
            self.record(StreamDeleted(place.content.stream_id, name))

    def _create_anew(self, name: str) -> None:
        planned = next(each for each in self.plan.streams if each.name == name)
        self._create(planned, self.now_ms())
        self.record(StreamRecreated(self.places[-1].content.stream_id, name))

    def _give_list(self, name: str, rollout: Rollout) -> None:
        if self.is_healed:
            return
        self.lists[name] = rollout.names
        self.record(ListChanged(name, rollout.names))
        worker = self.workers.get(name)
        if worker is not None and self.now >= worker.paused_until:
            self.record(ProcessStopping(worker.who))
            self._due.add(name)
            worker.request_stop()

    def on_worker_gone(self, worker: SimProcess, how: str) -> None:
        """Record that a process has ended; another of the same name starts soon if only its list had to change."""
        super().on_worker_gone(worker, how)
        if worker.name in self._due:
            self._due.discard(worker.name)
            self.schedule(self.now + self.chance.uniform(0.05, 1.0), self.start_worker, worker.name)

    def _refuse(self) -> None:
        place = self.chance.choice(self._there()[1:] or self._there())
        until_s = self.now + self.chance.uniform(5.0, 40.0)
        if self.chance.random() < 0.6:
            place.refused_until = max(until_s, place.refused_until)
            self.met["fault: listing of one stream"] += 1
        else:
            place.denied_until = until_s
            self.met["fault: access to one stream"] += 1
        self.record(StreamRefused(place.content.stream_id, round(until_s, 3)))

    def _refuse_listing(self, name: str) -> None:
        place = self.find_place(name)
        if place is not None and not self.is_healed:
            place.refused_until = self.now + self.plan.shy_s
            self.met["fault: listing of a stream that is added"] += 1
            self.record(StreamRefused(place.content.stream_id, round(place.refused_until, 3)))

    def heal(self) -> None:
        """End all faults, and let every worker read the same list."""
        for deletion in self.plan.deletions:
            is_gone = self.find_place(deletion.name) is None
            if deletion.anew_after_s is not None and is_gone:
                self._create_anew(deletion.name)
        for place in self.places:
            place.refused_until = place.denied_until = 0.0
        for name in self.scenario.workers:
            self.lists[name] = self.plan.last_listed
        for place in self._there():
            if place.plan.name not in self.plan.last_listed:
                self.record(StreamUnlisted(place.content.stream_id))
        super().heal()

    def wants_restart(self, worker: SimProcess) -> bool:
        """Whether a worker reads something else than its list says."""
        ids = {stream.stream_id for stream in self.streams_read()}
        is_old = isinstance(worker, StreamsWorker) and worker.streams.keys() != ids
        return is_old or super().wants_restart(worker)

    # --- workers --------------------------------------------------------------------------------------

    def start_worker(self, name: str) -> None:
        """Start a process of this name, unless it cannot describe a stream of its list: it tries again later then."""
        if name in self.workers or self.has_left(name):
            return
        starts = {each.listed_as: each.start for each in self.plan.streams if each.name in self.lists[name]}
        try:
            streams = parse_streams(starts, TRIM_HORIZON).describe(self.fetch_summary, lambda _: None)
        except PenstockError as error:
            self.record(StartFailed(name, type(error).__name__))
            self.schedule(self.now + self.chance.uniform(1.0, 5.0), self.start_worker, name)
            return
        self._consumed[name] = streams
        super().start_worker(name)

    def make_worker(self, name: str) -> SimProcess:
        """Return a new process of this name, not begun yet."""
        streams = self._consumed[name]
        worker = StreamsWorker(
            self,
            name,
            self.next_incarnation(name),
            self.on_worker_gone,
            streams,
            service=StreamsService(self),
            plan=self.plan,
        )
        self.record(StreamsChosen(worker.who, tuple(stream.stream_id for stream in streams)))
        return worker

    def fetch_summary(self, name: str) -> StreamSummary:
        """Answer DescribeStreamSummary.

        Raises:
            NotFound, AccessDenied: The stream is gone, or refuses.
        """
        place = self.find_place(name)
        if place is None:
            raise _no_stream(name)
        if self.is_denied("stream") or self.now < place.denied_until:
            raise AccessDenied(f"access to {name} is denied", code=self.denial)
        return StreamSummary(
            name,
            place.identity.arn,
            "ACTIVE",
            place.identity.created_ms,
            retention_hours=_retention_s(place.plan) / 3600,
            open_shard_count=len(place.content.open_shards()),
        )

    # --- the service ----------------------------------------------------------------------------------

    def list_stream(
        self, name: str, filter_type: str | None, timestamp_ms: int | None
    ) -> PenstockError | Problem | tuple[tuple[Shard, ...], int]:
        """Answer ListShards of one stream."""
        place = self.find_place(name)
        if place is None:
            return _no_stream(name)
        if self.now < max(place.refused_until, place.denied_until):
            return self.chance.choice((Problem.REFUSED, Problem.THROTTLED))
        return self.serve_listing(filter_type, timestamp_ms, place.content)

    def locate(self, place: str) -> tuple[SimStream, SimShard] | PenstockError:
        """Find the shard that a call names by its stream's name, or an iterator by the stream itself."""
        owner, _, shard_id = place.rpartition(":")
        name = owner.split(":")[1] if ":" in owner else owner
        found = self.find_place(name)
        if found is None:
            return _no_stream(name)
        if self.now < found.denied_until:
            return AccessDenied(f"access to {name} is denied", code=self.denial)
        if ":" in owner and found.content.stream_id != owner:
            return Rejected("Invalid ShardIterator.", code="InvalidArgumentException")
        shard = found.content.shards.get(shard_id)
        return self._unknown_shard(shard_id) if shard is None else (found.content, shard)

    def refuse_position(self, stream: SimStream, position: Position) -> PenstockError | None:
        """Return why the service takes no such position: it is of a stream that had this one's name."""
        if position.sequence_number is None or stream.has_given(int(position.sequence_number)):
            return None
        return Rejected(f"{position} did not come from this stream", code="InvalidArgumentException")


def _retention_s(planned: PlannedStream) -> float:
    return 86_400.0 if planned.retention_s is None else planned.retention_s


def _no_stream(name: str) -> NotFound:
    return NotFound(f"stream {name} does not exist", code="ResourceNotFoundException")
