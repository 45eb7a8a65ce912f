"""Events of Spark queries that write: their batches, tasks and rows, and the streams that they write to."""

from __future__ import annotations

from typing import ClassVar, Final

from penstock_sim.events.base import Event, ProcessEvent, SituationFinder, name_of
from penstock_sim.events.processes import ProcessExited, ProcessStarted
from penstock_sim.events.producers import RecordsStored
from penstock_sim.events.queries import RACING, REPEATED
from penstock_sim.events.streams import ShardClosed
from penstock_sim.kinds import SeedKind, situation

_SINKS: Final = SeedKind.SINKS
KILLED: Final = situation("a task is killed when a part of its rows is written", _SINKS)
FAILED: Final = situation("a task fails when a part of its rows is written", _SINKS)
ORPHAN: Final = situation("a task writes for a driver that has ended", _SINKS)
LATE: Final = situation("a task writes when its batch is done", _SINKS)
ENDED_BEFORE: Final = situation("a driver ends when the tasks of its batch are done", _SINKS)
ENDED_BETWEEN: Final = situation("a driver ends between the sink's commit and Spark's", _SINKS)
RESHARDED: Final = situation("the stream is resharded during a batch", _SINKS)
ABORTED: Final = situation("a job fails when some of its tasks are done", _SINKS)
FILED: Final = situation("rows are put aside in a file", _SINKS)
ERRORS: Final = {
    "was acknowledged by shard": situation("error: a shard acknowledges nothing", _SINKS),
    "AccessDenied": situation("error: access is denied", _SINKS),
    "ExpiredToken": situation("error: the credentials have expired", _SINKS),
    "does not exist": situation("error: the stream is deleted", _SINKS),
    "cannot be written": situation("error: dead letters cannot be written", _SINKS),
    "does not fit": situation("error: a dead letter is too large", _SINKS),
    "and the stream takes": situation("error: a row is too large", _SINKS),
    "characters": situation("error: a key is too short or too long", _SINKS),
    "is null": situation("error: a row has no key or no data", _SINKS),
    "explicit hash key": situation("error: a row has a bad hash key", _SINKS),
    "streamName is null": situation("error: a row names no stream", _SINKS),
}
"""The errors of tasks, by words of their texts."""


# --- batches ----------------------------------------------------------------------------------------------------


class BadRowAdded(Event, frozen=True):
    text: str
    why: str  # the service can never accept it


class WritePlanned(Event, frozen=True):
    """A driver has logged a batch: the rows of each partition."""

    query: str
    batch: int
    texts: tuple[tuple[str, ...], ...]


class WriteStarted(ProcessEvent, frozen=True):
    batch: int


class WriteTasksDone(ProcessEvent, frozen=True):
    batch: int  # its tasks are done, and the sink commits it next


class WriteCommitted(ProcessEvent, frozen=True):
    batch: int  # the sink has committed it, and Spark logs it next


class WriteLogged(Event, frozen=True):
    query: str
    batch: int
    attempts: tuple[str, ...]


class WriteAborted(ProcessEvent, frozen=True):
    batch: int
    finished_count: int  # tasks that were done


# --- tasks ------------------------------------------------------------------------------------------------------


class WriteTaskStarted(ProcessEvent, frozen=True):
    executor: str
    # The attempt's unique name: the driver, the batch and the partition, the number of the attempt.
    attempt: str
    keeps_letters: bool  # whether it puts bad rows aside
    texts: tuple[str, ...]  # its rows, in order
    deadline_s: float


class WriteTaskKilled(Event, frozen=True):
    attempt: str


class WriteTaskDone(Event, frozen=True):
    """An attempt reports to its driver: rows by stream, rows that may be there twice, and dead letters."""

    attempt: str
    counts: tuple[tuple[str, int], ...]
    twice_count: int
    letter_count: int


class WriteTaskFailed(Event, frozen=True):
    attempt: str
    error: str
    text: str


# --- rows -------------------------------------------------------------------------------------------------------


class RowsRefused(Event, frozen=True):
    attempt: str
    stream: str


class DeadLettersStored(Event, frozen=True):
    attempt: str
    stream: str
    texts: tuple[str, ...]
    meets: ClassVar = situation("a row is put aside in a stream", _SINKS)


class FileWritten(ProcessEvent, frozen=True):
    location: str
    name: str
    content: str


class RequestTooLarge(Event, frozen=True):
    attempt: str
    entry_count: int
    size_bytes: int


class ShardSilenced(Event, frozen=True):
    stream: str
    shard_id: str
    until_s: float  # until then it refuses every record


class StreamRemoved(Event, frozen=True):
    stream: str
    until_s: float  # until then it does not exist


class SinkSituations(SituationFinder):
    def _begin(self) -> None:
        self._running: dict[str, tuple[str, str]] = {}
        self._wrote: dict[str, set[str]] = {}
        self._alive: set[str] = set()
        self._batch: dict[str, int] = {}
        self._stage: dict[str, str] = {}
        self._ran: dict[tuple[str, int], str] = {}
        self._done: set[tuple[str, str]] = set()

    def _on_process_started(self, event: ProcessStarted) -> None:
        self._alive.add(event.who)

    def _on_process_exited(self, event: ProcessExited) -> None:
        self._alive.discard(event.who)
        stage = self._stage.pop(event.who, None)
        if stage is not None:
            self.met[stage] += 1
        self._batch.pop(event.who, None)

    def _on_shard_closed(self, event: ShardClosed) -> None:
        self.met[RESHARDED] += bool(self._batch)

    def _on_write_started(self, event: WriteStarted) -> None:
        self._batch[event.who] = event.batch
        self.met[REPEATED] += self._ran.setdefault((name_of(event.who), event.batch), event.who) != event.who

    def _on_write_tasks_done(self, event: WriteTasksDone) -> None:
        self._stage[event.who] = ENDED_BEFORE

    def _on_write_committed(self, event: WriteCommitted) -> None:
        self._stage[event.who] = ENDED_BETWEEN

    def _on_write_logged(self, event: WriteLogged) -> None:
        batch = (event.query, event.batch)
        self._done.add((event.query, str(event.batch)))
        for who in [who for who, running in self._batch.items() if (name_of(who), running) == batch]:
            del self._batch[who]
            self._stage.pop(who, None)

    def _on_write_aborted(self, event: WriteAborted) -> None:
        self.met[ABORTED] += bool(event.finished_count)

    def _on_write_task_started(self, event: WriteTaskStarted) -> None:
        task = (name_of(event.who), event.attempt.split(" ")[1])
        self.met[RACING] += task in self._running.values()
        self._running[event.attempt] = task
        self._wrote[event.attempt] = set()

    def _on_records_stored(self, event: RecordsStored) -> None:
        self._wrote[event.attempt].update(event.texts)
        driver, task = event.attempt.split(" ")[:2]
        self.met[ORPHAN] += driver not in self._alive
        self.met[LATE] += (name_of(driver), task.partition(".")[0]) in self._done

    def _on_file_written(self, event: FileWritten) -> None:
        self.met[FILED] += event.name.startswith("dead-letters")

    def _on_write_task_done(self, event: WriteTaskDone) -> None:
        self._running.pop(event.attempt, None)

    def _on_write_task_killed(self, event: WriteTaskKilled) -> None:
        self._running.pop(event.attempt, None)
        self.met[KILLED] += bool(self._wrote.get(event.attempt))

    def _on_write_task_failed(self, event: WriteTaskFailed) -> None:
        self._running.pop(event.attempt, None)
        self.met[FAILED] += bool(self._wrote[event.attempt])
        for words, error in ERRORS.items():
            self.met[error] += words in event.text
