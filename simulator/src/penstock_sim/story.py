"""A failing seed's history in plain words: the events of the shards and workers that its violation names."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any, Final

from penstock.core.leases.lease import Lease
from penstock.core.leases.lease_writes import (
    Checkpoint,
    Claim,
    Create,
    Delete,
    End,
    LateCheckpoint,
    Promote,
    Release,
    RequestHandover,
    Reset,
    Take,
)
from penstock_sim.checker import Violation
from penstock_sim.faults import EPOCH_MS
from penstock_sim.history import HistoryEntry

_SHARD: Final = re.compile(r"(?:\d+:[a-z]+:\d+:)?shardId-\d+")
_OF_EVERYBODY: Final = frozenset(
    {
        "healed",
        "table_dropped",
        "up",
        "down",
        "pause",
        "stopping",
        "restored",
        "copied",
        "leads",
        "leads_no_more",
        "version",
        "stream_deleted",
        "stream_anew",
        "stream_refused",
        "left_out",
        "list",
        "cannot_start",
        "standstill",
    }
)
"""What concerns every shard."""


def tell_story(history: Sequence[HistoryEntry], violation: Violation, line_count: int) -> list[str]:
    """Return the last lines of the story of the shards that a violation names; of all shards if it names none."""
    shards = set(_SHARD.findall(violation.what))
    lines: list[str] = []
    for entry in history:
        if not shards or entry[1] in _OF_EVERYBODY or shards & _shards_of(entry):
            words = _words_of(entry)
            if words is not None:
                lines.append(f"{entry[0]:8.2f} s  {words}")
    return lines[max(0, len(lines) - line_count) :]


def _shards_of(entry: HistoryEntry) -> set[str]:
    if entry[1] == "write":
        return {entry[3].key}
    return set(_SHARD.findall(str(entry[2:])))


def _words_of(entry: HistoryEntry) -> str | None:
    describe = _DESCRIPTIONS.get(entry[1])
    return None if describe is None else describe(*entry[2:])


def _span(numbers: Sequence[int]) -> str:
    if not numbers:
        return "nothing"
    return str(numbers[0]) if len(numbers) == 1 else f"{numbers[0]} to {numbers[-1]} ({len(numbers)} records)"


def _take(who: str, write: Any, before: Lease, after: Lease) -> str:
    return f"{who} takes {write.key} from {before.reader or 'nobody'} at {after.checkpoint}"


def _claim(who: str, write: Any, _before: Lease, _after: Lease) -> str:
    claim = write.claim
    return f"{who} claims {write.key} for batch {claim.batch}, from {claim.start} to {claim.end}"


_WRITES: Final[dict[type, Callable[[str, Any, Any, Any], str]]] = {
    Take: _take,
    RequestHandover: lambda who, write, before, _: f"{who} asks {before.reader} for {write.key}",
    Checkpoint: lambda who, write, *_: f"{who} moves the checkpoint of {write.key} to {write.position}",
    LateCheckpoint: lambda who, write, *_: (
        f"{who} moves the checkpoint of {write.key} late to {write.position}"
    ),
    Release: lambda who, write, _, after: f"{who} gives {write.key} up at {after.checkpoint}",
    Create: lambda who, write, _, after: f"{who} creates the lease of {write.key} at {after.checkpoint}",
    End: lambda who, write, *_: f"{who} ends {write.key}",
    Delete: lambda who, write, *_: f"{who} deletes the finished lease of {write.key}",
    Reset: lambda who, write, *_: f"{who} sets {write.key} back to {write.position}",
    Claim: _claim,
    Promote: lambda who, write, *_: (
        f"{who} makes the claim of batch {write.batch} the checkpoint of {write.key}, {write.position}"
    ),
}
"""The description of each write; renewals have none."""


def _write(who: str, write: Any, before: Lease | None, after: Lease | None) -> str | None:
    describe = _WRITES.get(type(write))
    return None if describe is None else describe(who, write, before, after)


_DESCRIPTIONS: Final[dict[str, Callable[..., str | None]]] = {
    "write": _write,
    "up": lambda who: f"{who} starts",
    "down": lambda who, how: f"{who} is gone: {how}",
    "stopping": lambda who: f"{who} is asked to stop",
    "pause": lambda who, until_s: f"{who} stands still until {until_s:.2f} s",
    "healed": lambda: "the faults end",
    "stored": lambda key, number, texts, is_read: (
        f"{key} takes {', '.join(texts)} as {number}" + ("" if is_read else ", which its readers drop")
    ),
    "acknowledged": lambda who, key, number, texts: (
        f"{who} is told that {', '.join(texts)} is {number} of {key}"
    ),
    "unanswered": lambda texts: f"nobody answers for {', '.join(texts)}",
    "sent": lambda who, texts: f"{who} sends {', '.join(texts)}",
    "handed": lambda who, key, _epoch, records: (
        f"the handler of {who} gets {', '.join(text for text, _ in records)} of {key}"
    ),
    "given_up": lambda who, texts, why: f"{who} gives {', '.join(texts)} up: {why}",
    "version": lambda version: f"the row Migration3.0 says {version}",
    "unready": lambda version: f"the fleet is not ready for {version}",
    "leads": lambda who: f"{who} becomes the leader",
    "leads_no_more": lambda who, why: f"{who} leads no more: {why}",
    "led": lambda who, what, key, reader, to: (
        f"{what} {key}, which {reader or 'nobody'} reads, for {to} ({who})"
    ),
    "wall_jump": lambda offset_ms: f"the time of day is {offset_ms / 1000:.0f} s off from now on",
    "shard": lambda key, parents: f"{key} is born" + (f" of {' and '.join(parents)}" if parents else ""),
    "closed": lambda key: f"{key} is closed",
    "put": lambda key, number, _ms: f"record {number} is put into {key}",
    "trimmed": lambda key, count, _last: f"the first {count} records of {key} have left the stream",
    "expired": lambda key: f"{key} has left the stream",
    "row_deleted": lambda key, reader: (
        f"somebody deletes the lease of {key}, which {reader or 'nobody'} reads"
    ),
    "table_dropped": lambda: "somebody deletes the lease table",
    "moved": lambda application: (
        f"the application is called {application} from now on, and its lease table is empty"
    ),
    "start": lambda who, key, epoch, position: f"{who} begins to read {key} at {position} (reader {epoch})",
    "deliver": lambda who, key, _epoch, numbers: f"{who} is given {_span(numbers)} of {key}",
    "redeliver": lambda who, key, _epoch, numbers: f"{who} is given {_span(numbers)} of {key} again",
    "done": lambda who, key, _epoch, numbers: f"{who} has done {_span(numbers)} of {key}",
    "dead": lambda who, key, _epoch, numbers: f"{who} sends {_span(numbers)} of {key} to the dead letters",
    "raised": lambda who, key, _epoch, numbers: f"{who} fails on {_span(numbers)} of {key}",
    "loss": lambda who, key, _epoch: f"{who} tells that records of {key} may be lost",
    "failed": lambda who, key, _epoch, reason: f"{who} cannot read {key} on: {reason}",
    "gone": lambda who, key, epoch: f"{who} has stopped to read {key} (reader {epoch})",
    "report": lambda who, topic, reason, key: f"{who} reports {topic} {reason} {key or ''}".rstrip(),
    "log": lambda who, level, text, _error: f"{who} logs ({level}): {text}",
    "second_process": lambda name: f"a second process of {name} is about to start",
    "second_driver": lambda name: f"a second driver of {name} is about to start",
    "restored": lambda name: f"the checkpoint location of {name} is set back to an earlier state",
    "copied": lambda name, copy: f"{copy} starts from a copy of the checkpoint location of {name}",
    "logged": lambda who, batch, _starts, keys: (
        f"{who} plans batch {batch} of {', '.join(keys) or 'nothing'}"
    ),
    "bounded": lambda who, batch, until_ms, keys: (
        f"{who} leaves what comes to {', '.join(keys)} from {(until_ms - EPOCH_MS) / 1000:.2f} s on to a later query than batch {batch}'s"
    ),
    "batch": lambda who, batch, keys: f"{who} runs batch {batch} of {', '.join(keys) or 'nothing'}",
    "attempt": lambda _who, executor, batch, key: f"{executor} begins a task of batch {batch} on {key}",
    "executed": lambda who, batch, key, rows: (
        f"a task of {who} has read {_span(rows)} of {key} for batch {batch}"
    ),
    "early_tip": lambda key: f"an answer says too early that nothing is left in {key}",
    "empty_page": lambda key: f"an answer holds nothing of {key}",
    "unread": lambda name, batch, keys: f"no action of {name} reads batch {batch} of {', '.join(keys)}",
    "committed": lambda name, batch, _results: f"{name} commits batch {batch}",
    "executor_down": lambda who: f"{who} is killed",
    "sink_planned": lambda name, batch, texts: (
        f"{name} plans batch {batch}, of {sum(map(len, texts))} rows in {len(texts)} partitions"
    ),
    "sink_bad": lambda text, why: f"the service can never accept {text}: {why}",
    "sink_batch": lambda who, batch: f"{who} runs batch {batch}",
    "sink_attempt": lambda _who, executor, name, _keeps, texts, _deadline: (
        f"{executor} begins {name} with {', '.join(texts) or 'no rows'}"
    ),
    "sink_attempt_killed": lambda name: f"{name} is killed",
    "sink_unanswered": lambda name, texts: f"nobody answers {name} for {', '.join(texts)}",
    "sink_refused": lambda name, stream: f"{stream} refuses something of {name}",
    "sink_misrouted": lambda name, texts, is_read: (
        f"another shard takes {', '.join(texts)} of {name}" + ("" if is_read else ", and its readers drop it")
    ),
    "sink_letter": lambda name, stream, texts, _is_read: f"{name} puts {', '.join(texts)} aside in {stream}",
    "sink_file": lambda who, location, name, _content: f"{who} writes {name} into {location}",
    "sink_task_done": lambda name, *_: f"{name} is done",
    "sink_task_failed": lambda name, error, text: f"{name} fails with {error}: {text}",
    "sink_tasks_done": lambda who, batch, _names: f"the tasks of {who} are done with batch {batch}",
    "sink_committed": lambda who, batch: f"the sink of {who} commits batch {batch}",
    "sink_logged": lambda name, batch, _names: f"Spark notes that batch {batch} of {name} is done",
    "sink_aborted": lambda who, batch, count: (
        f"{who} gives batch {batch} up, of which {count} tasks are done"
    ),
    "sink_query_failed": lambda who, error, text: f"{who} fails with {error}: {text}",
    "sink_silent": lambda stream, key, until_s: f"{key} of {stream} refuses everything until {until_s:.2f} s",
    "sink_deleted": lambda stream, until_s: f"{stream} is deleted, and comes back at {until_s:.2f} s",
    "stream": lambda stream_id, *_: f"stream {stream_id} is created",
    "stream_deleted": lambda stream_id, _name: f"stream {stream_id} is deleted",
    "stream_anew": lambda stream_id, name: f"{name} is created anew, as {stream_id}",
    "stream_refused": lambda stream_id, until_s: f"{stream_id} refuses calls until {until_s:.2f} s",
    "left_out": lambda stream_id: f"{stream_id} is in no list any more",
    "list": lambda name, names: f"{name} is to read {', '.join(names)} from its next start on",
    "reads": lambda who, stream_ids: f"{who} reads {', '.join(stream_ids)}",
    "cannot_start": lambda name, error: f"{name} cannot start: {error}",
    "standstill": lambda who: f"{who} has nothing left that it can read",
    "query_failed": lambda who, error, text: f"{who} fails with {error}: {text}",
}
"""The description of each kind of line; calls and renewals are left out."""
