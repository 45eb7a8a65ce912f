"""Events of streams: their shards and records, and the lists of workers that read several."""

from __future__ import annotations

from typing import ClassVar, Final

from penstock.core.position import Position
from penstock_sim.events.base import Event, ProcessEvent, SituationFinder, name_of
from penstock_sim.events.leases import LeaseWritten
from penstock_sim.events.processes import ProcessStarted
from penstock_sim.events.reading import ReaderStarted, ShardStopped
from penstock_sim.kinds import SeedKind, situation
from penstock_sim.plan import STREAM_NAME

STREAMS: Final = SeedKind.STREAMS
ADDED: Final = situation("a stream is added to the lists", STREAMS)
BESIDE: Final = situation("workers with an old list run beside workers with a new one", STREAMS)
LEFT_OUT: Final = situation("a stream is left out of the lists", STREAMS)
BACK: Final = situation("a stream comes back into the lists, and its leases stand", STREAMS)
DELETED: Final = situation("a stream is deleted while it is read", STREAMS)
RECREATED: Final = situation("a stream is created again under its name", STREAMS)
RECREATED_READ: Final = situation(
    "a stream that was created again is read beside leases of the old one", STREAMS
)
RECREATED_UNDER_READERS: Final = situation(
    "a stream is created again under workers that read the old one", STREAMS
)
STOPPED: Final = situation("a shard of a deleted stream stops", STREAMS)
CANNOT_START: Final = situation("a worker cannot start: a stream of its list is gone or denied", STREAMS)
QUIET: Final = situation("a stream is resharded while another one gets no records", STREAMS)
MIXED: Final = situation("a worker reads shards of several streams at once", STREAMS)
FIRST: Final = situation("the first leases of a stream are created beside those of others", STREAMS)
STANDSTILL: Final = situation("a worker ends: every shard that it held has stopped", STREAMS)
ADDED_REFUSED: Final = situation("fault: listing of a stream that is added", STREAMS)
LISTING_REFUSED: Final = situation("fault: listing of one stream", STREAMS)
ACCESS_DENIED: Final = situation("fault: access to one stream", STREAMS)


# --- shards and records -----------------------------------------------------------------------------------------


class ShardCreated(Event, frozen=True):
    key: str
    parents: tuple[str, ...]


class ShardClosed(Event, frozen=True):
    key: str
    meets: ClassVar = "fault: reshards_per_min"


class ShardExpired(Event, frozen=True):
    key: str
    meets: ClassVar = situation(
        "a shard leaves the stream", SeedKind.CONSUMERS, SeedKind.STREAMS, SeedKind.QUERIES
    )


class RecordPut(Event, frozen=True):
    key: str
    number: int
    arrival_ms: int


class RecordsTrimmed(Event, frozen=True):
    key: str
    count: int  # records that have left, from the first of the shard
    last: int  # the last one that has left
    meets: ClassVar = situation(
        "records leave the stream", SeedKind.CONSUMERS, SeedKind.STREAMS, SeedKind.QUERIES
    )


class StreamQuiet(Event, frozen=True):
    until_s: float
    stream_id: str = STREAM_NAME
    meets: ClassVar = "fault: quiet_streams_per_min"


class TipReportedEarly(Event, frozen=True):
    key: str  # an answer says too early that nothing is left in it


class EmptyPageReturned(Event, frozen=True):
    key: str


# --- several streams --------------------------------------------------------------------------------------------


class StreamCreated(Event, frozen=True):
    stream_id: str
    name: str
    identity: str
    start: Position
    retention_ms: int | None


class StreamDeleted(Event, frozen=True):
    stream_id: str


class StreamRecreated(Event, frozen=True):
    stream_id: str
    name: str
    meets: ClassVar = RECREATED


class StreamRefused(Event, frozen=True):
    """A stream refuses its listing, or every call, until a moment."""

    stream_id: str
    until_s: float


class StreamUnlisted(Event, frozen=True):
    stream_id: str


class ListChanged(Event, frozen=True):
    worker: str
    names: tuple[str, ...]  # the streams that the worker reads from its next start on


class StreamsChosen(ProcessEvent, frozen=True):
    stream_ids: tuple[str, ...]


class StartFailed(Event, frozen=True):
    worker: str
    error: str
    meets: ClassVar = CANNOT_START


class WorkerStoodStill(ProcessEvent, frozen=True):
    meets: ClassVar = STANDSTILL


def stream_id_of(key: str) -> str:
    """Return the stream of a lease, by its key."""
    return key.rpartition(":")[0]


class StreamsSituations(SituationFinder):
    def _begin(self) -> None:
        plan = self.scenario.streams
        assert plan is not None
        self._quiet = {stream.name for stream in plan.streams if not stream.record_share}
        self._listed: tuple[str, ...] = plan.listed
        self._ids: dict[str, tuple[str, ...]] = {}

    def _streams_with_leases(self) -> set[str]:
        return set(map(stream_id_of, self.history.rows))

    def _name_of(self, stream_id: str) -> str:
        return self.history.streams[stream_id].name

    def _former(self, name: str, stream_id: str) -> set[str]:
        """Return the other streams that have, or had, a stream's name."""
        return {each for each in self.history.streams if self._name_of(each) == name} - {stream_id}

    def _on_list_changed(self, event: ListChanged) -> None:
        added, left = set(event.names) - set(self._listed), set(self._listed) - set(event.names)
        self._listed = event.names
        known = set(map(self._name_of, self._streams_with_leases()))
        self.met[ADDED] += len(added - known)
        self.met[BACK] += len(added & known)
        self.met[LEFT_OUT] += bool(left)

    def _on_streams_chosen(self, event: StreamsChosen) -> None:
        self._ids[event.who] = event.stream_ids

    def _on_process_started(self, event: ProcessStarted) -> None:
        alive = {*self.history.alive, event.who}
        self.met[BESIDE] += len({frozenset(self._ids[each]) for each in alive}) > 1

    def _on_stream_deleted(self, event: StreamDeleted) -> None:
        self.met[DELETED] += event.stream_id in {stream_id_of(key) for _, key, _ in self.history.readers}

    def _on_stream_recreated(self, event: StreamRecreated) -> None:
        former = self._former(event.name, event.stream_id)
        self.met[RECREATED_UNDER_READERS] += any(former & set(self._ids[who]) for who in self.history.alive)

    def _on_reader_started(self, event: ReaderStarted) -> None:
        stream_id = stream_id_of(event.key)
        read = {stream_id_of(key) for who, key, _ in self.history.readers if who == event.who}
        self.met[MIXED] += len({*read, stream_id}) > 1
        former = self._former(self._name_of(stream_id), stream_id)
        gone = {each for each in former if self.history.streams[each].is_deleted}
        self.met[RECREATED_READ] += not gone.isdisjoint(self._streams_with_leases())

    def _on_shard_stopped(self, event: ShardStopped) -> None:
        self.met[STOPPED] += self.history.streams[stream_id_of(event.key)].is_deleted

    def _on_shard_closed(self, event: ShardClosed) -> None:
        self.met[QUIET] += bool(self._quiet - {self._name_of(stream_id_of(event.key))})

    def _on_lease_written(self, event: LeaseWritten) -> None:
        key, known = event.write.key, self._streams_with_leases()
        if key not in self.history.rows and name_of(event.who) in set(map(name_of, self.history.alive)):
            self.met[FIRST] += stream_id_of(key) not in known and bool(known)
