"""The options of the lease coordinator."""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import Final, Self

from msgspec import Struct, field
from msgspec.structs import replace

from penstock.core.keyword_options import check_above_zero, check_range
from penstock.core.leases.lease import Lease, stream_id_of
from penstock.core.position import LATEST
from penstock.core.starting import StartingPosition
from penstock.core.stream_identity import StreamIdentity
from penstock.errors import OptionError

RENEWALS_PER_S_MAX: Final = 50.0
"""A query renews at most this many leases per second: with many leases it renews each one less often."""
TERM_MAX_S: Final = 120.0
"""The longest duration that a query with many leases gives them, unless the application's lease duration is longer."""

_COLD_START_PER_SHARD_S: Final = 0.01


def cold_start_jitter_s(jitter_max_s: float, open_shard_count: int) -> float:
    """Return the longest time that a worker waits when it finds an empty table.

    Without a wait, workers that start together would all list the shards and try to create every lease. A stream with few
    shards has few leases, so its workers wait less.
    """
    return min(jitter_max_s, _COLD_START_PER_SHARD_S * open_shard_count)


class BalancePolicy(Enum):
    """The rule by which workers share leases."""

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
        identity: The stream; its leases that name another stream are refused.
        start: The starting position of its shards, by lease key.
    """

    identity: StreamIdentity
    start: StartingPosition


class CoordinatorOptions(Struct, frozen=True):
    """The options of one worker's coordinator.

    Args:
        lease_duration_s: A lease whose counter has not changed for this long has expired, and any worker may take it. The
            same for all workers of an application.
        round_interval_s: Mean time between two scans of the lease table. None: 0.8 of the lease duration.
        scanned_rows_per_s_max: Rows that all workers together may read per second by scanning. In a large fleet each
            worker scans a part of the table each round, and the whole table as rarely as this limit requires.
        part_watchers_min: At least this many workers watch each part of the table; fewer, but at least two, if so many would
            read more rows than `scanned_rows_per_s_max`.
        max_leases: The most unfinished leases that this worker holds. None: no limit.
        leases_to_acquire: The most takes and hand-overs begun per round. None: the whole share.
        handover: Whether a live owner is asked to finish before a lease moves; False takes the lease as KCL 2.x does.
        handover_timeout_s: Longest duration of a hand-over before the lease is taken.
        keeps_claims: This worker's batches claim their ends on the leases, as a Spark query's do. A renewal then never
            writes a checkpoint, which would end a claim. After a restart the worker resumes leases that it was handing over,
            since the interrupted batch is repeated first. The table refuses claims once another worker reads the shard, so
            a lease that is renewed late is not lost, and many leases are renewed less often.
        stream: The stream whose shards are shared: leases of another one are refused. None: no check.
        streams: Several streams whose shards are shared in one table, by their ids; then `stream` and `start` are ignored.
            The worker ignores leases of further streams in the table.
        kcl3: Whether the table may have KCL 3 workers: the worker first reads whether their leader assigns the leases.
        start: The starting position when the application starts for the first time.
        cold_start_jitter_s: Longest wait on an empty table before a worker lists the shards.
        garbage_interval_s: Time between two listings that search for leases of vanished shards.
        shutdown_timeout_s: Longest time for which a graceful stop waits for readers.
        stall_after_s: A shard that is behind and makes no progress for this long is reported.
        scans_for_free_leases: Also scan a small table every 0.06 lease durations while other workers hold leases, and take free ones at
            once. Such a scan is eventually consistent. No effect with `leases_to_acquire` and policy `kcl2`.

    Raises:
        OptionError: A value is out of its range; the message names it and the range.
    """

    lease_duration_s: float = 10.0
    round_interval_s: float | None = None
    scanned_rows_per_s_max: float = 20_000.0
    part_watchers_min: int = 6
    policy: BalancePolicy = BalancePolicy.EVEN
    max_leases: int | None = None
    leases_to_acquire: int | None = None
    handover: bool = True
    handover_timeout_s: float = 30.0
    keeps_claims: bool = False
    stream: StreamIdentity | None = None
    streams: Mapping[str, SharedStream] = field(default_factory=dict)
    kcl3: bool = False
    start: StartingPosition = field(default_factory=lambda: StartingPosition(default=LATEST))
    cold_start_jitter_s: float = 5.0
    garbage_interval_s: float = 1800.0
    shutdown_timeout_s: float = 30.0
    stall_after_s: float = 300.0
    scans_for_free_leases: bool = False

    def __post_init__(self) -> None:
        if not 1 <= self.lease_duration_s <= 3600:
            raise OptionError(f"lease_duration_s={self.lease_duration_s}: expected 1 to 3600")
        if not 0 < self.interval_s <= 100 * self.lease_duration_s:
            raise OptionError(
                f"round_interval_s={self.round_interval_s}: expected more than 0 and at most 100 times "
                f"lease_duration_s={self.lease_duration_s}"
            )
        check_above_zero(
            self,
            "scanned_rows_per_s_max",
            "handover_timeout_s",
            "garbage_interval_s",
            "shutdown_timeout_s",
            "stall_after_s",
        )
        check_range(self, 0, None, "cold_start_jitter_s")
        check_range(self, 1, None, "max_leases", "leases_to_acquire", "part_watchers_min")

    def with_stream(self, lease: Lease) -> Lease:
        """Return a lease with its stream's identity, if that is known."""
        stream = self.stream_of(lease.key)
        return lease if stream is None else replace(lease, stream=stream)

    def has_room(self, held_count: int) -> bool:
        """Return whether a worker that holds this many leases may take another one."""
        return self.max_leases is None or held_count < self.max_leases

    @property
    def names_streams(self) -> bool:
        """Whether leases carry the identity of their streams."""
        return self.stream is not None or bool(self.streams)

    @property
    def stream_ids(self) -> tuple[str, ...]:
        """The ids of the streams; one empty id if the table has one stream."""
        return tuple(self.streams) or ("",)

    def stream_id_of(self, key: str) -> str:
        """Return the id of a lease's stream; empty if the table has one stream."""
        return stream_id_of(key) if self.streams else ""

    def stream_of(self, key: str) -> StreamIdentity | None:
        """Return the stream of a lease; None if the stream is unknown, or not read by this worker."""
        if not self.streams:
            return self.stream
        shared = self.streams.get(stream_id_of(key))
        return None if shared is None else shared.identity

    def of_stream(self, stream_id: str) -> Self:
        """Return the options for one of the streams."""
        return replace(self, start=self.streams[stream_id].start) if self.streams else self

    @property
    def margin_s(self) -> float:
        """Seconds between the end of delivery and the earliest take by another worker: clocks run at different speeds."""
        return self.lease_duration_s / 10

    @property
    def renew_interval_s(self) -> float:
        """Seconds between two renewals of a lease; `renew_interval_of` has the exception."""
        return self.lease_duration_s / 3

    def renew_interval_of(self, held_count: int) -> float:
        """Return the seconds between two renewals of each lease of a worker that holds this many.

        Claims, not time, fence a worker with `keeps_claims`. So it may give its leases a longer duration (`LeaseTerm`) and renew
        them less often.
        """
        usual_s = self.renew_interval_s
        if not self.keeps_claims:
            return usual_s
        return max(usual_s, min(held_count / RENEWALS_PER_S_MAX, TERM_MAX_S / 3))

    @property
    def interval_s(self) -> float:
        """Mean seconds between two scans of the lease table, unless the table or the fleet is large."""
        return 0.8 * self.lease_duration_s if self.round_interval_s is None else self.round_interval_s
