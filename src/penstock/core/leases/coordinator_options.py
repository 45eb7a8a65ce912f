"""How one worker coordinates with the others of its application."""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import Final, Self

from msgspec import Struct, field
from msgspec.structs import replace

from penstock.core.leases.lease import Lease
from penstock.core.leases.lease_keys import stream_id_of
from penstock.core.position import LATEST
from penstock.core.starting import StartingPosition
from penstock.core.stream_identity import StreamIdentity
from penstock.errors import OptionError

RENEWALS_PER_S_MAX: Final = 50.0
"""A query that holds more leases than it can renew at this rate within the lease duration renews them less often."""
TERM_MAX_S: Final = 120.0
"""A lease lasts at most so long, unless the application's lease duration is longer."""

_COLD_START_PER_SHARD_S: Final = 0.01


def cold_start_jitter_s(jitter_max_s: float, open_shard_count: int) -> float:
    """Return how long a worker waits at most on an empty table.

    Fifty workers that start together and find no lease all want to make them. What the wait saves are creations that are
    refused, fifty for each shard: a stream of a few shards is not worth waiting for.
    """
    return min(jitter_max_s, _COLD_START_PER_SHARD_S * open_shard_count)


class BalancePolicy(Enum):
    """How leases are shared between workers."""

    EVEN = "even"
    """The same number of leases for every worker."""
    BY_THROUGHPUT = "by_throughput"
    """The same kilobytes per second, as far as whole shards allow."""
    BY_ZONE = "by_zone"
    """First the same number for every zone (`zone/name` worker ids), then even within each zone."""
    KCL2 = "kcl2"
    """The rule of the Java KCL 2.x lease taker, exactly."""


class SharedStream(Struct, frozen=True):
    """One of several streams whose leases are in one table.

    Args:
        identity: Leases of its keys that name another one are refused.
        start: Where its shards start when they are read for the first time; shards are named by their lease keys.
    """

    identity: StreamIdentity
    start: StartingPosition


class CoordinatorOptions(Struct, frozen=True):
    """How one worker coordinates.

    Args:
        lease_duration_s: A lease whose counter stands still for so long is free for anybody. The same for all
            workers of an application.
        delivery_margin_s: Delivery stops this long before others could see the lease as expired; it pays for
            clocks that run at different speeds. None: a tenth of the lease duration.
        round_interval_s: Mean time between two looks at the lease table. None: 0.8 of the lease duration.
        scanned_rows_per_s_max: Rows that all workers together may read per second by scanning. In a large fleet each
            worker watches a part of the table, and looks at the whole table as rarely as this needs.
        part_watchers_min: So many workers watch each part of the table, or more; fewer, but at least two, where that
            would cost more.
        policy: Who gets how many leases.
        max_leases: This worker holds at most so many unfinished leases. None: no limit.
        leases_to_acquire: At most so many takes and hand-overs are begun per round. None: the whole share.
        handover: Ask live owners to finish before their leases move; False takes them as KCL 2.x does.
        handover_timeout_s: How long a hand-over may last before the lease is taken.
        handover_poll_s: Mean time between two looks at a lease that is being handed over.
        keeps_claims: This worker's batches claim their ends on the leases, as a Spark query's do. A heartbeat then never
            writes a checkpoint, which would end a claim; and leases that were being handed over when the worker ended are
            taken up again, since the batch that was under way is repeated first. Claims are refused once another worker
            reads the shard, so a lease that is renewed late is not lost, and many leases are renewed less often.
        stream: The stream whose shards are shared: leases of another one are refused. None compares nothing.
        streams: Several streams whose shards are shared in one table, by their ids; then neither `stream` nor `start` says
            anything. Leases of further streams in the table are left alone.
        kcl3: Whether KCL 3 workers may stand at the table: before anything else it is looked whether their leader assigns
            the leases.
        start: Where shards start when the application starts for the first time.
        cold_start_jitter_s: On an empty table each worker waits up to so long before it lists the shards.
        hole_confidence_rounds: A hole in the hash range must be seen in so many rounds in a row before it is
            filled.
        cleanup: Delete leases of finished shards whose children are all under way.
        garbage_interval_s: Time between two listings that look for leases of vanished shards.
        shutdown_timeout_s: How long a graceful stop may last.
        stall_after_s: A shard that is behind and makes no progress for so long is reported.
        writes_in_flight_max: Lease writes that may be under way at once, renewals not counted.

    Raises:
        OptionError: A value is out of its range; the message names it and the range.
    """

    lease_duration_s: float = 10.0
    delivery_margin_s: float | None = None
    round_interval_s: float | None = None
    scanned_rows_per_s_max: float = 20_000.0
    part_watchers_min: int = 6
    policy: BalancePolicy = BalancePolicy.EVEN
    max_leases: int | None = None
    leases_to_acquire: int | None = None
    handover: bool = True
    handover_timeout_s: float = 30.0
    handover_poll_s: float = 1.5
    keeps_claims: bool = False
    stream: StreamIdentity | None = None
    streams: Mapping[str, SharedStream] = field(default_factory=dict)
    kcl3: bool = False
    start: StartingPosition = field(default_factory=lambda: StartingPosition(default=LATEST))
    cold_start_jitter_s: float = 5.0
    hole_confidence_rounds: int = 3
    cleanup: bool = True
    garbage_interval_s: float = 1800.0
    shutdown_timeout_s: float = 30.0
    stall_after_s: float = 300.0
    writes_in_flight_max: int = 50

    def __post_init__(self) -> None:
        if not 1 <= self.lease_duration_s <= 3600:
            raise OptionError(f"lease_duration_s={self.lease_duration_s}: expected 1 to 3600")
        if not 0 < self.margin_s <= self.lease_duration_s / 3:
            raise OptionError(
                f"delivery_margin_s={self.delivery_margin_s}: expected more than 0 and at most a third of "
                f"lease_duration_s={self.lease_duration_s}"
            )
        if not 0 < self.interval_s <= 100 * self.lease_duration_s:
            raise OptionError(
                f"round_interval_s={self.round_interval_s}: expected more than 0 and at most 100 times "
                f"lease_duration_s={self.lease_duration_s}"
            )
        self._check_signs()

    def own(self, lease: Lease) -> Lease:
        """Return a lease that is to be created, marked as one of its stream's."""
        stream = self.stream_of(lease.key)
        return lease if stream is None else replace(lease, stream=stream)

    @property
    def names_streams(self) -> bool:
        """Whether leases are marked with their streams."""
        return self.stream is not None or bool(self.streams)

    @property
    def stream_ids(self) -> tuple[str, ...]:
        """The ids of the streams: one that is empty where the table has one stream."""
        return tuple(self.streams) or ("",)

    def stream_id_of(self, key: str) -> str:
        """Return the id of the stream that a lease is of; empty where the table has one stream."""
        return stream_id_of(key) if self.streams else ""

    def stream_of(self, key: str) -> StreamIdentity | None:
        """Return the stream that a lease is of; None where that is not known, or the stream is not read here."""
        if not self.streams:
            return self.stream
        shared = self.streams.get(stream_id_of(key))
        return None if shared is None else shared.identity

    def of_stream(self, stream_id: str) -> Self:
        """Return the options as they are for one of the streams."""
        return replace(self, start=self.streams[stream_id].start) if self.streams else self

    def _check_signs(self) -> None:
        for name in (
            "scanned_rows_per_s_max",
            "handover_timeout_s",
            "handover_poll_s",
            "garbage_interval_s",
            "shutdown_timeout_s",
            "stall_after_s",
        ):
            if not getattr(self, name) > 0:
                raise OptionError(f"{name}={getattr(self, name)}: expected more than 0")
        if self.cold_start_jitter_s < 0:
            raise OptionError(f"cold_start_jitter_s={self.cold_start_jitter_s}: expected 0 or more")
        for name in ("max_leases", "leases_to_acquire"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise OptionError(f"{name}={value}: expected at least 1, or None for no limit")
        for name in ("hole_confidence_rounds", "part_watchers_min", "writes_in_flight_max"):
            if getattr(self, name) < 1:
                raise OptionError(f"{name}={getattr(self, name)}: expected at least 1")

    @property
    def margin_s(self) -> float:
        """Seconds between the end of delivery and the earliest moment another worker may take."""
        return self.lease_duration_s / 10 if self.delivery_margin_s is None else self.delivery_margin_s

    @property
    def renew_interval_s(self) -> float:
        """Seconds between two renewals."""
        return self.lease_duration_s / 3

    def renew_interval_of(self, held_count: int) -> float:
        """Return the seconds between two renewals of each of so many leases.

        A worker whose batches claim their ends is not fenced by time, so it may hold leases for longer and say so on them.
        """
        usual_s = self.renew_interval_s
        if not self.keeps_claims:
            return usual_s
        return max(usual_s, min(held_count / RENEWALS_PER_S_MAX, TERM_MAX_S / 3))

    @property
    def interval_s(self) -> float:
        """Mean seconds between two rounds in a fleet of ordinary size."""
        return 0.8 * self.lease_duration_s if self.round_interval_s is None else self.round_interval_s
