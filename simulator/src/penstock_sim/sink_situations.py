"""How often each fault and each awkward situation of sinks happened."""

from __future__ import annotations

from collections import Counter
from typing import Any, Final

from msgspec.structs import fields

from penstock_sim.history import HistoryEntry, name_of
from penstock_sim.sink_plan import SinkPlan

_FAULTS: Final = (
    "crashes_per_min",
    "stops_per_min",
    "pauses_per_min",
    "reshards_per_min",
    "stream_throttle",
    "bad_listing",
    "denials_per_min",
)
_NO_FAULTS: Final = frozenset({"keys_stay", "executor_pause_max_s", "large_row", "bad_row"})
_SENT_AGAIN: Final = (
    "throttled",
    "unavailable",
    "unknown",
    "ProvisionedThroughputExceededException",
    "InternalFailure",
    "NoAnswer",
    "misplaced",
)
_RACING: Final = "situation: a task runs twice at the same time"
_KILLED: Final = "situation: a task is killed when a part of its rows is written"
_FAILED: Final = "situation: a task fails when a part of its rows is written"
_ORPHAN: Final = "situation: a task writes for a driver that has ended"
_LATE: Final = "situation: a task writes when its batch is done"
_ENDED_BEFORE: Final = "situation: a driver ends when the tasks of its batch are done"
_ENDED_BETWEEN: Final = "situation: a driver ends between the sink's commit and Spark's"
_REPEATED: Final = "situation: a batch is run again by another driver"
_RESHARDED: Final = "situation: the stream is resharded during a batch"
_TWICE: Final = "situation: a row is stored twice"
_ASTRAY: Final = "situation: another shard takes an aggregate, and its readers see it"
_DROPPED: Final = "situation: another shard takes an aggregate, and its readers drop it"
_ABORTED: Final = "situation: a job fails when some of its tasks are done"
_FILED: Final = "situation: rows are put aside in a file"
_SENT_ASIDE: Final = "situation: a row is put aside in a stream"
_ERRORS: Final = {
    "was acknowledged by shard": "error: a shard acknowledges nothing",
    "AccessDenied": "error: access is denied",
    "ExpiredToken": "error: the credentials have expired",
    "does not exist": "error: the stream is deleted",
    "cannot be written": "error: dead letters find no place",
    "does not fit": "error: a dead letter is too large",
    "and the stream takes": "error: a row is too large",
    "characters": "error: a key is too short or too long",
    "is null": "error: a row has no key or no data",
    "explicit hash key": "error: a row has a bad hash key",
    "streamName is null": "error: a row names no stream",
}
_SITUATIONS: Final = (
    _RACING,
    _KILLED,
    _FAILED,
    _ORPHAN,
    _LATE,
    _ENDED_BEFORE,
    _ENDED_BETWEEN,
    _REPEATED,
    _RESHARDED,
    _TWICE,
    _ASTRAY,
    _DROPPED,
    _ABORTED,
    _FILED,
    _SENT_ASIDE,
)


def expected_of_sinks() -> tuple[str, ...]:
    """Return the situations that a run of many seeds of sinks must meet."""
    plan = [each.name for each in fields(SinkPlan) if each.type in (float, bool)]
    faults = [*_FAULTS, *(name for name in plan if name not in _NO_FAULTS)]
    left_out = ("in_foreach_batch", "routes", "hash_keys")
    return (
        *(f"fault: {name}" for name in faults if name not in left_out),
        *(f"sent again: {reason}" for reason in _SENT_AGAIN),
        *_ERRORS.values(),
        *_SITUATIONS,
    )


class SinkSituations:
    """Finds situations in one seed's history.

    Args:
        met: Counted in.
    """

    def __init__(self, met: Counter[str]) -> None:
        self._met = met
        self._running: dict[str, tuple[str, str]] = {}
        self._wrote: dict[str, set[str]] = {}
        self._seen: set[str] = set()
        self._alive: set[str] = set()
        self._batch: dict[str, int] = {}
        self._stage: dict[str, str] = {}
        self._ran: dict[tuple[str, int], str] = {}
        self._done: set[tuple[str, str]] = set()

    def see(self, entry: HistoryEntry) -> None:
        """Handle one line."""
        handler = getattr(self, f"_on_{entry[1]}", None)
        if handler is not None:
            handler(*entry[2:])

    def _on_up(self, who: str) -> None:
        self._alive.add(who)

    def _on_down(self, who: str, _how: str) -> None:
        self._alive.discard(who)
        stage = self._stage.pop(who, "")
        if stage:
            self._met[stage] += 1
        self._batch.pop(who, None)

    def _on_closed(self, _key: str) -> None:
        self._met[_RESHARDED] += bool(self._batch)

    def _on_sink_batch(self, who: str, batch: int) -> None:
        self._batch[who] = batch
        self._met[_REPEATED] += self._ran.setdefault((name_of(who), batch), who) != who

    def _on_sink_tasks_done(self, who: str, *_: Any) -> None:
        self._stage[who] = _ENDED_BEFORE

    def _on_sink_committed(self, who: str, _batch: int) -> None:
        self._stage[who] = _ENDED_BETWEEN

    def _on_sink_logged(self, name: str, batch: int, _attempts: Any) -> None:
        self._done.add((name, str(batch)))
        for who in [who for who, running in self._batch.items() if (name_of(who), running) == (name, batch)]:
            del self._batch[who]
            self._stage.pop(who, None)

    def _on_sink_aborted(self, _who: str, _batch: int, finished_count: int) -> None:
        self._met[_ABORTED] += bool(finished_count)

    def _on_sink_attempt(self, driver: str, _executor: str, name: str, *_: Any) -> None:
        task = (name_of(driver), name.split(" ")[1])
        self._met[_RACING] += task in self._running.values()
        self._running[name] = task
        self._wrote[name] = set()

    def _on_sink_stored(self, name: str, _stream: str, texts: tuple[str, ...], is_read: bool) -> None:
        self._wrote[name].update(texts)
        if is_read:
            self._met[_TWICE] += len(self._seen.intersection(texts))
            self._seen.update(texts)
        driver, task = name.split(" ")[:2]
        self._met[_ORPHAN] += driver not in self._alive
        self._met[_LATE] += (name_of(driver), task.partition(".")[0]) in self._done

    def _on_sink_letter(self, *_: Any) -> None:
        self._met[_SENT_ASIDE] += 1

    def _on_sink_file(self, _who: str, _location: str, name: str, _content: str) -> None:
        self._met[_FILED] += name.startswith("dead-letters")

    def _on_sink_misrouted(self, _name: str, _texts: tuple[str, ...], is_read: bool) -> None:
        self._met[_ASTRAY if is_read else _DROPPED] += 1

    def _on_sink_task_done(self, name: str, *_: Any) -> None:
        self._running.pop(name, None)

    def _on_sink_attempt_killed(self, name: str) -> None:
        self._running.pop(name, None)
        self._met[_KILLED] += bool(self._wrote.get(name))

    def _on_sink_task_failed(self, name: str, _kind: str, text: str) -> None:
        self._running.pop(name, None)
        self._met[_FAILED] += bool(self._wrote[name])
        for words, error in _ERRORS.items():
            self._met[error] += words in text
