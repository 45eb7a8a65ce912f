"""Events of Spark queries that read: their drivers, batches and tasks, and their checkpoint locations."""

from __future__ import annotations

from typing import ClassVar, Final

from penstock.core.leases.lease_writes import Take
from penstock.core.position import Position
from penstock_sim.events.base import Event, ProcessEvent, SituationFinder, name_of
from penstock_sim.events.leases import LeaseWritten
from penstock_sim.events.processes import MessageLogged, ProcessExited, ProcessStarted
from penstock_sim.events.streams import RecordsTrimmed, ShardClosed
from penstock_sim.kinds import SeedKind, situation

Results = tuple[tuple[str, tuple[int, ...]], ...]
"""The records of each shard of a batch."""

_QUERIES: Final = SeedKind.QUERIES
ROBBED: Final = situation("a lease is taken from a query during its batch", _QUERIES)
OUTLASTED: Final = situation("a task outlasts a lease", _QUERIES)
REPLACED: Final = situation("a driver comes back while others have its leases", _QUERIES)
RACING: Final = situation("a task runs twice at the same time", _QUERIES, SeedKind.SINKS)
TWO_DRIVERS: Final = situation("two drivers work from one checkpoint location", _QUERIES)
REPEATED: Final = situation("a batch is run again by another driver", _QUERIES, SeedKind.SINKS)
RESHARDED: Final = situation("a shard is closed during its batch", _QUERIES)
BEGINS_INSIDE: Final = situation("a batch begins inside an aggregate", _QUERIES)
BEGINS_AT_GONE: Final = situation("a batch begins at a record that has left the stream", _QUERIES)
PASSES_LOSS: Final = situation("a batch goes on after a loss", _QUERIES)


# --- drivers ----------------------------------------------------------------------------------------------------


class SecondDriverStarted(Event, frozen=True):
    query: str  # it is about to get a second driver


class LocationRestored(Event, frozen=True):
    query: str  # its query
    batch: int = 0  # the last batch that it has logged now
    is_committed: bool = False  # whether that batch is done
    meets: ClassVar = "fault: restores_per_min"


class LocationCopied(Event, frozen=True):
    query: str
    copy: str  # the driver that starts from the copy
    meets: ClassVar = "fault: copies_per_min"


class ApplicationRenamed(Event, frozen=True):
    application: str
    meets: ClassVar = "fault: moves_per_min"


class QueryFailed(ProcessEvent, frozen=True):
    error: str
    text: str


class TipProbed(ProcessEvent, frozen=True):
    """A driver's probe finds nothing more in a shard."""

    key: str
    server_ms: int


# --- batches ----------------------------------------------------------------------------------------------------


class BatchPlanned(ProcessEvent, frozen=True):
    """A driver has logged the offsets of a batch."""

    batch: int
    starts: tuple[tuple[str, Position], ...]  # where it begins in each shard
    keys: tuple[str, ...]  # the shards that it reads
    run: str | None = None  # the run of the driver that planned it


class BatchBounded(ProcessEvent, frozen=True):
    batch: int
    until_ms: int  # records from then on are for a later query
    keys: tuple[str, ...]


class BatchStarted(ProcessEvent, frozen=True):
    batch: int
    keys: tuple[str, ...]


class BatchUnread(Event, frozen=True):
    query: str
    batch: int
    keys: tuple[str, ...]  # the shards that no action has read to the end of the batch


class BatchCommitted(Event, frozen=True):
    """Spark has logged that a batch is done; the results are those of shards that were read to their end."""

    query: str
    batch: int
    results: Results


# --- tasks ------------------------------------------------------------------------------------------------------


class ExecutorKilled(Event, frozen=True):
    executor: str
    meets: ClassVar = "fault: executor_kills_per_min"


class ReadTaskStarted(ProcessEvent, frozen=True):
    executor: str
    batch: int
    key: str


class ReadTaskEnded(ProcessEvent, frozen=True):
    executor: str
    batch: int
    key: str


class ReadTaskFailed(ProcessEvent, frozen=True):
    executor: str
    error: str
    text: str


class BatchRead(ProcessEvent, frozen=True):
    batch: int
    key: str
    numbers: tuple[int, ...]


class BatchReadInPart(ProcessEvent, frozen=True):
    """A query's action has taken only these records of a shard of a batch."""

    batch: int
    key: str
    numbers: tuple[int, ...]


class QuerySituations(SituationFinder):
    def _begin(self) -> None:
        self._lease_s: float = self.scenario.options.lease_duration_s
        self._running: dict[str, tuple[int, tuple[str, ...]]] = {}
        self._ran: dict[tuple[str, int], str] = {}
        self._tasks: dict[tuple[str, str, int, str], float] = {}
        self._gone: dict[str, int] = {}

    def _on_process_started(self, event: ProcessStarted) -> None:
        name = name_of(event.who)
        if name not in self.scenario.queries:
            return
        self.met[TWO_DRIVERS] += any(name_of(other) == name for other in self.history.alive)
        rows = self.history.rows.values()
        self.met[REPLACED] += any(
            row.claim_of(name) is not None and row.reader not in (None, name) for row in rows
        )

    def _on_process_exited(self, event: ProcessExited) -> None:
        self._running.pop(event.who, None)

    def _on_batch_started(self, event: BatchStarted) -> None:
        self._running[event.who] = (event.batch, event.keys)
        self.met[REPEATED] += self._ran.setdefault((name_of(event.who), event.batch), event.who) != event.who

    def _on_batch_committed(self, event: BatchCommitted) -> None:
        for who, (running, _) in list(self._running.items()):
            if name_of(who) == event.query and running == event.batch:
                del self._running[who]

    def _on_batch_planned(self, event: BatchPlanned) -> None:
        for key, start in event.starts:
            if start.sequence_number is not None and key in event.keys:
                self.met[BEGINS_INSIDE] += bool(start.sub_sequence_number)
                self.met[BEGINS_AT_GONE] += int(start.sequence_number) <= self._gone.get(key, -1)

    def _on_records_trimmed(self, event: RecordsTrimmed) -> None:
        self._gone[event.key] = event.last

    def _on_message_logged(self, event: MessageLogged) -> None:
        self.met[PASSES_LOSS] += "on (failOnDataLoss=false)" in event.text

    def _on_shard_closed(self, event: ShardClosed) -> None:
        self.met[RESHARDED] += any(event.key in keys for _, keys in self._running.values())

    def _on_lease_written(self, event: LeaseWritten) -> None:
        write, before = event.write, event.before
        if isinstance(write, Take) and before is not None and before.reader != write.worker:
            for driver, (_, keys) in self._running.items():
                self.met[ROBBED] += name_of(driver) == before.reader and write.key in keys

    def _on_read_task_started(self, event: ReadTaskStarted) -> None:
        task = (event.who, event.batch, event.key)
        self.met[RACING] += any((who, batch, key) == task for who, _, batch, key in self._tasks)
        self._tasks[event.who, event.executor, event.batch, event.key] = self.history.now

    def _on_read_task_ended(self, event: ReadTaskEnded) -> None:
        now_s = self.history.now
        began_s = self._tasks.pop((event.who, event.executor, event.batch, event.key), now_s)
        self.met[OUTLASTED] += now_s - began_s > self._lease_s

    def _on_executor_killed(self, event: ExecutorKilled) -> None:
        self._tasks = {task: since for task, since in self._tasks.items() if task[1] != event.executor}
