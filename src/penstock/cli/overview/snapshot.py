"""A snapshot of applications, their shards and workers: as values and as a JSON document. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import UTC, datetime
from enum import Enum
from typing import TYPE_CHECKING, Any, Final

from msgspec.structs import replace

from penstock.cli.overview.queue_rows import QueueOverview, queue_document
from penstock.core.leases.lease import shard_id_of, stream_id_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from penstock.core.shard import Shard


class Trouble(Enum):
    """Problems of a shard, the worst first."""

    STOPPED = "stopped"
    SILENT = "owner silent"
    UNOWNED = "no owner"
    NO_LEASE = "no lease"
    CHECKPOINT_UNMOVED = "checkpoint stands"
    THROTTLED = "reads refused"
    BEHIND = "behind"
    IDLE = "no worker runs"
    UNKNOWN = "lag unknown"
    NONE = ""

    @property
    def rank(self) -> int:
        """The place in the order of problems: 0 is the worst."""
        return _RANKS[self]


_RANKS: Final = {trouble: rank for rank, trouble in enumerate(Trouble)}
UNREADABLE: Final = "cannot be read"
UNREAD_TROUBLES: Final = frozenset({Trouble.STOPPED, Trouble.SILENT, Trouble.UNOWNED, Trouble.NO_LEASE})
"""The problems of shards that no worker reads."""


@dataclass(frozen=True, slots=True)
class ShardRow:
    """One shard of an application.

    Args:
        state: The state of its lease, in a word or two.
        owner: The worker that reads it, or None.
        next_owner: The worker that gets it, during a hand-over.
        unmoved_s: Seconds since the lease was last renewed, or since it was first watched.
        has_moved: Whether the counter was seen to change.
        checkpoint: The records up to and including this position are done.
        checkpoint_unmoved_s: Seconds since the checkpoint last moved, or since it was first watched.
        lag_ms: The age of the oldest record that is not done; None when unknown.
        lag_change: Seconds by which the lag grows in a second; None when unknown.
        why_lag_unknown: The service's error, if the lag could not be measured.
        kb_per_s: The throughput that its reader reports, in KiB a second; None without a report.
        is_throttled: Whether the service refused a read that measures the lag.
        stopped_reason: Why its owner does not read it, or None.
        waits_for_parents: Whether its parents have to be read first.
        why: The shard's `trouble` in a sentence; empty if it has none.
    """

    shard: str
    state: str
    owner: str | None = None
    next_owner: str | None = None
    counter: int = 0
    unmoved_s: float = 0.0
    has_moved: bool = False
    checkpoint: str = ""
    checkpoint_unmoved_s: float = 0.0
    lag_ms: int | None = None
    lag_change: float | None = None
    why_lag_unknown: str = ""
    kb_per_s: float | None = None
    is_throttled: bool = False
    stopped_reason: str | None = None
    waits_for_parents: bool = False
    trouble: Trouble = Trouble.NONE
    why: str = ""


@dataclass(frozen=True, slots=True)
class WorkerRow:
    """One worker: its unfinished leases, how many of these are in trouble, and its largest lag, None if no lag is known."""

    worker: str
    lease_count: int
    trouble_count: int
    lag_ms: int | None
    zone: str


@dataclass(frozen=True, slots=True)
class Event:
    """Something that changed between two snapshots.

    Args:
        at_ms: When the second snapshot was taken, milliseconds since the epoch.
        shard: The shard, or None for the application.
        text: The change, for people.
    """

    at_ms: int
    shard: str | None
    text: str


@dataclass(frozen=True, slots=True)
class ApplicationSnapshot:
    """One snapshot of an application.

    Args:
        application: The lease table's name.
        stream: Name or ARN of the stream, or the names of several; None if it is unknown.
        shards: Trouble first.
        workers: Most leases first.
        lineage: The stream's shards, parents before children; empty if the stream is unknown.
        problems: Failures to read, a sentence each.
        events: Recent changes, newest first.
        streams: Name or ARN of each stream, by the prefix of its leases' keys.
    """

    application: str
    stream: str | None
    taken_ms: int
    shards: tuple[ShardRow, ...] = ()
    workers: tuple[WorkerRow, ...] = ()
    lineage: tuple[Shard, ...] = ()
    problems: tuple[str, ...] = ()
    events: tuple[Event, ...] = ()
    streams: Mapping[str, str] = field(default_factory=dict)

    @property
    def shards_by_stream(self) -> dict[str, tuple[Shard, ...]]:
        """The listed shards by name or ARN of their stream, with the service's shard ids."""
        if not self.streams:
            return {} if self.stream is None else {self.stream: self.lineage}
        return {
            stream: tuple(
                replace(shard, shard_id=shard_id_of(shard.shard_id))
                for shard in self.lineage
                if stream_id_of(shard.shard_id) == stream_id
            )
            for stream_id, stream in self.streams.items()
        }

    @property
    def worst_trouble(self) -> Trouble:
        """The trouble of its first shard, which is the worst."""
        return self.shards[0].trouble if self.shards else Trouble.NONE

    @property
    def trouble_count(self) -> int:
        """The number of shards in trouble. Shards without a lease owner do not count if no worker runs."""
        return sum(row.trouble not in (Trouble.NONE, Trouble.IDLE) for row in self.shards)

    @property
    def is_unreadable(self) -> bool:
        """Whether its leases could not be read."""
        return bool(self.problems) and not self.shards

    @property
    def state(self) -> str:
        """Whether the application runs, as text; `finished` if every shard is read to its end."""
        if self.is_unreadable:
            return UNREADABLE
        if self.shards and not self.unfinished_count:
            return "finished"
        return Trouble.IDLE.value if self.worst_trouble is Trouble.IDLE else "running"

    @property
    def unfinished_count(self) -> int:
        """How many shards are not read to their end."""
        return sum(row.state != "ended" for row in self.shards)

    @property
    def lag_ms(self) -> int | None:
        """The largest lag that is known; None if none is."""
        return max((row.lag_ms for row in self.shards if row.lag_ms is not None), default=None)


@dataclass(frozen=True, slots=True)
class Snapshot:
    """One snapshot of all applications.

    Args:
        applications: Trouble first.
        problems: Failures to read or find applications, a sentence each.
        queues: The region's queues; empty if applications are named.
    """

    taken_ms: int
    applications: tuple[ApplicationSnapshot, ...]
    problems: tuple[str, ...] = ()
    queues: QueueOverview = field(default_factory=QueueOverview)


# --- as a document ----------------------------------------------------------------------------------------


def document_of(snapshot: Snapshot) -> dict[str, Any]:
    """Return a snapshot as a JSON document."""
    return {
        "taken_at": moment_text(snapshot.taken_ms),
        "applications": [application_document(each) for each in snapshot.applications],
        "problems": list(snapshot.problems),
        "queues": [
            queue_document(row, None if row.measured_ms is None else moment_text(row.measured_ms))
            for row in snapshot.queues.rows
        ],
        "queue_problems": list(snapshot.queues.problems),
    }


def application_document(snapshot: ApplicationSnapshot) -> dict[str, Any]:
    """Return a snapshot of one application as a JSON document."""
    trouble = snapshot.worst_trouble.value if snapshot.trouble_count else None
    return {
        "application": snapshot.application,
        "stream": snapshot.stream,
        "taken_at": moment_text(snapshot.taken_ms),
        "state": snapshot.state,
        "trouble": UNREADABLE if snapshot.is_unreadable else trouble,
        "shards_in_trouble": snapshot.trouble_count,
        "unfinished_shards": snapshot.unfinished_count,
        "millis_behind_latest": snapshot.lag_ms,
        "problems": list(snapshot.problems),
        "shards": [_shard_document(row) for row in snapshot.shards],
        "workers": [
            {
                "worker": row.worker,
                "zone": row.zone,
                "leases": row.lease_count,
                "leases_in_trouble": row.trouble_count,
                "millis_behind_latest": row.lag_ms,
            }
            for row in snapshot.workers
        ],
        "lineage": [
            {
                "shard": shard.shard_id,
                "parents": list(shard.parents),
                "is_open": shard.is_open,
                "hash_range": [str(shard.hash_range.start), str(shard.hash_range.end)],
            }
            for shard in snapshot.lineage
        ],
        "events": [
            {"at": moment_text(event.at_ms), "shard": event.shard, "text": event.text}
            for event in snapshot.events
        ],
    }


def _shard_document(row: ShardRow) -> dict[str, Any]:
    return {
        "shard": row.shard,
        "trouble": row.trouble.value or None,
        "why": row.why or None,
        "state": row.state,
        "owner": row.owner,
        "next_owner": row.next_owner,
        "counter": row.counter,
        "counter_age_s": round(row.unmoved_s, 1),
        "has_moved": row.has_moved,
        "checkpoint": row.checkpoint,
        "checkpoint_stands_s": round(row.checkpoint_unmoved_s, 1),
        "millis_behind_latest": row.lag_ms,
        "lag_change": None if row.lag_change is None else round(row.lag_change, 2),
        "why_lag_unknown": row.why_lag_unknown or None,
        "kilobytes_per_s": None if row.kb_per_s is None else round(row.kb_per_s, 1),
        "reads_refused": row.is_throttled,
        "stopped_reason": row.stopped_reason,
    }


def moment_text(at_ms: int) -> str:
    """Return a moment as ISO 8601, UTC."""
    return datetime.fromtimestamp(at_ms / 1000, UTC).isoformat(timespec="milliseconds")
