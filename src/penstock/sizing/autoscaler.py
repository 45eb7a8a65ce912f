"""`Autoscaler`: keeps the size of a stream by splits and merges.

::

    Autoscaler("orders", shards_min=2, shards_max=40, readers=["billing"]).run()
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from msgspec import Struct

from penstock.core.keyword_options import check_range, check_types, merge_connection
from penstock.core.leases.lease import shard_id_of, stream_id_of, stream_name_of
from penstock.core.reading.service_clock import service_bound_ms
from penstock.core.shard import Shard, StreamSummary
from penstock.core.sizing.autoscaler_lease import AUTOSCALER_PREFIX, LEASE_S, AutoscalerLease
from penstock.core.sizing.load_history import LoadHistory
from penstock.core.sizing.load_map import LoadMap
from penstock.core.sizing.resharding import Decision, Hold, Resharder, Split, StreamView, limits_for, place_of
from penstock.core.sizing.samples import load_map_of
from penstock.core.stream_identity import with_region_of_arns
from penstock.errors import (
    NotFound,
    Rejected,
    ResourceBusy,
    Throttled,
    Unavailable,
    UnknownOutcome,
    UsageError,
)
from penstock.ports.clock import Clock
from penstock.ports.kinesis import Kinesis, ShardFilter
from penstock.ports.lease_table import LeaseTable
from penstock.ports.sizing import Resharding
from penstock.runtime.home_process import random_worker_id
from penstock.runtime.shard_lags import measure_lags
from penstock.runtime.system_clock import SystemClock
from penstock.sizing.sampling import choose_window_s, sample_shards

log: logging.Logger = logging.getLogger("penstock.sizing")

_WINDOWS_S: Final = (60.0, 30.0, 15.0)
_ACTIVE_WAIT_S: Final = 600.0
_ACTIVE_CHECK_S: Final = 2.0


@dataclass(frozen=True, slots=True)
class AutoscaleOptions:
    """The bounds and the pace of an autoscaler.

    Args:
        shards_min: Never fewer shards.
        shards_max: Never more shards.
        target: A part of the write quota, 0.3 to 0.9. The stream grows if its shards use more on average.
        interval_s: Time from one measurement to the next, 20 or more.
        steps_max: At most this many splits and merges between two measurements, 1 to 20.
        closed_lag_max_s: Nothing is changed while the lag of a reader in a closed shard is larger.
        dry_run: Change nothing, and take no lease.

    Raises:
        OptionError: A value is out of its range, or two contradict each other.
    """

    shards_min: int
    shards_max: int
    target: float = 0.85
    interval_s: float = 60.0
    steps_max: int = 5
    closed_lag_max_s: float = 300.0
    dry_run: bool = False

    def __post_init__(self) -> None:
        check_types(self)
        limits_for(self.shards_min, self.shards_max, self.target)
        check_range(self, 20, None, "interval_s")
        check_range(self, 1, 20, "steps_max")
        check_range(self, 0, None, "closed_lag_max_s")


class AutoscalePorts(Struct, frozen=True):
    """The ports through which an autoscaler makes its calls.

    Args:
        kinesis: Describes the stream and reads samples.
        control: Splits and merges.
        leases: The table with the lease row that lets one autoscaler act at a time.
        readers: The lease tables of applications by name.
    """

    kinesis: Kinesis
    control: Resharding
    leases: LeaseTable
    readers: Mapping[str, LeaseTable]
    clock: Clock


@dataclass(frozen=True, slots=True)
class AutoscaleEvent:
    """One decision of an autoscaler.

    Args:
        stream: The stream's name.
        action: `split`, `merge` or `hold`.
        text: The action with its reason, or why nothing is done.
        done: Whether the service has accepted the action.
        shards: The number of open shards before the action.
    """

    stream: str
    action: str
    text: str
    done: bool
    shards: int


class Autoscaler:
    """Keeps the size of one provisioned stream: splits and merges shards by the measured load of their hash keys.

    Several autoscalers may run for one stream, in any processes: a lease lets one of them act at a time.

    Args:
        stream: Name or ARN.
        options: The bounds and the pace; their fields may be given as keywords instead.
        readers: Lease tables of the applications that must not be behind in closed shards.
        lease_table: Where the lease is: the name of a DynamoDB table, `s3://bucket/prefix` or `file:///folder`.
        connection: Fields of the connection: `region`, `endpoint_url`, `profile` and others.
        on_event: Called with each decision. Decisions are logged, too.
        ports: Used instead of the service, for tests.
        keywords: Fields of `AutoscaleOptions`.

    Raises:
        OptionError: An option is unknown or out of its range.
    """

    def __init__(
        self,
        stream: str,
        options: AutoscaleOptions | None = None,
        *,
        readers: Sequence[str] = (),
        lease_table: str = "penstock-autoscale",
        connection: Mapping[str, Any] | None = None,
        on_event: Callable[[AutoscaleEvent], object] = lambda _: None,
        ports: AutoscalePorts | None = None,
        **keywords: Any,
    ) -> None:
        if not stream or not isinstance(stream, str):
            raise UsageError(f"stream={stream!r}: expected a name or ARN")
        if options is not None and keywords:
            raise UsageError("give options or their fields as keywords, not both")
        self.options: AutoscaleOptions = AutoscaleOptions(**keywords) if options is None else options
        self.worker_id: str = random_worker_id()
        self._stream = stream
        self._on_event = on_event
        fields = with_region_of_arns(merge_connection(connection), stream)
        self._ports = _open_ports(fields, readers, lease_table) if ports is None else ports
        self._limits = limits_for(self.options.shards_min, self.options.shards_max, self.options.target)
        self._resharder = Resharder(self._limits)
        self._history = LoadHistory()
        self._lease: AutoscalerLease | None = None
        self._stop = threading.Event()
        self._has_checked_readers = False

    def run(self) -> None:
        """Keep the size until `stop` is called. After a call that was throttled or not answered, the next round tries again.

        Raises:
            UsageError: The stream is on-demand.
            ServiceError: A call was refused: the stream is gone, or a permission is missing.
        """
        try:
            while not self._stop.is_set():
                began_s = self._ports.clock.monotonic_s()
                try:
                    self.run_round()
                except (Throttled, Unavailable, UnknownOutcome) as error:
                    log.warning("%s: nothing is done in this round: %s", self._stream, error)
                self._stop.wait(max(0.0, began_s + self.options.interval_s - self._ports.clock.monotonic_s()))
        finally:
            self._release_lease()

    def run_once(self) -> list[AutoscaleEvent]:
        """Do one round and release the lease; return the decisions.

        Raises:
            UsageError: The stream is on-demand.
            ServiceError: A call failed.
        """
        try:
            return self.run_round()
        finally:
            self._release_lease()

    def stop(self) -> None:
        """End `run` after the action under way. Safe in signal handlers and from other threads."""
        self._stop.set()

    def run_round(self) -> list[AutoscaleEvent]:
        """Measure once and act; return the decisions in order.

        Raises:
            UsageError: The stream is on-demand.
            ServiceError: A call failed.
        """
        summary = self._ports.kinesis.fetch_summary(self._stream)
        if summary.on_demand:
            raise UsageError(
                f"{summary.name} is on-demand: the service sizes it; `penstock streams mode {summary.name} provisioned` changes that"
            )
        if not self._take_lease(summary):
            holder = None if self._lease is None else self._lease.holder
            return [self._report_hold(summary, f"another autoscaler has the lease ({holder})", 0)]
        if not self._has_checked_readers:
            self._find_reader_behind(summary, set())  # raises an error if a reader has no lease table
            self._has_checked_readers = True
        if summary.status != "ACTIVE":
            return [self._report_hold(summary, f"the stream is {summary.status}", summary.open_shard_count)]
        return self._rescale(summary)

    # -- one round ------------------------------------------------------------------------------------------

    def _rescale(self, summary: StreamSummary) -> list[AutoscaleEvent]:
        """Measure the load. Then split and merge at most `steps_max` times, until a step is not done."""
        shards, closed_ids, now_ms = self._list_shards()
        load = self._measure_load(summary, shards, now_ms)
        if isinstance(load, str):
            return [self._report_hold(summary, load, len(shards))]
        self._history.add(self._ports.clock.monotonic_s(), load)
        young_boundaries = self._young_boundaries(summary, shards, now_ms)
        events: list[AutoscaleEvent] = []
        while len(events) < self.options.steps_max and not self._stop.is_set():
            event, new_boundaries = self._do_step(summary, shards, closed_ids, load, young_boundaries)
            events.append(event)
            if not event.done or not self._wait_until_active(summary):
                break
            young_boundaries |= new_boundaries
            shards, closed_ids, _ = self._list_shards()
        return events

    def _do_step(
        self,
        summary: StreamSummary,
        shards: Sequence[Shard],
        closed_ids: set[str],
        load: LoadMap,
        young_boundaries: frozenset[int],
    ) -> tuple[AutoscaleEvent, frozenset[int]]:
        """Decide and act once; return the decision, and for a split the new boundary between hash keys.

        Args:
            closed_ids: Ids of the closed shards, in which no reader may be too far behind.
            young_boundaries: Boundaries that are too new to be removed by a merge.
        """
        has_peak = self._history.is_whole(self._ports.clock.monotonic_s())
        peak = self._history.peak if has_peak else None
        decision = self._resharder.decide(StreamView(shards, load, peak, young_boundaries))
        done = False
        if not isinstance(decision, Hold):
            obstacle = self._find_reader_behind(summary, closed_ids)
            if not obstacle and not self.options.dry_run:
                obstacle = self._reshard(summary, decision)
            done = not obstacle and not self.options.dry_run
            if not done:
                self._resharder.forget_goal()
            if obstacle:
                decision = Hold(f"{obstacle}; put off: {_describe(decision)}")
        new_boundaries = frozenset({decision.at}) if isinstance(decision, Split) else frozenset[int]()
        return self._report_decision(summary, decision, len(shards), done=done), new_boundaries

    def _list_shards(self) -> tuple[list[Shard], set[str], int]:
        """Return the open shards, the ids of the closed ones, and the service's time."""
        listing = self._ports.kinesis.fetch_shards(self._stream)
        now_ms = service_bound_ms(self._ports.clock.wall_ms(), listing.server_ms)
        return (
            [each for each in listing.shards if each.is_open],
            {each.shard_id for each in listing.shards if not each.is_open},
            now_ms,
        )

    def _measure_load(self, summary: StreamSummary, shards: Sequence[Shard], now_ms: int) -> LoadMap | str:
        """Return the load, or the reason why it is unknown."""
        window_s = choose_window_s(
            self._ports.kinesis,
            self._stream,
            shards,
            now_ms=now_ms,
            created_ms=summary.created_ms,
            # Not longer than the interval: after a sudden rise of the load, a mean with earlier minutes hides a part of the rise.
            windows_s=[each for each in _WINDOWS_S if each <= self.options.interval_s],
        )
        if window_s is None:
            return f"the shards are younger than {min(_WINDOWS_S):.0f} s: their load is not known yet"
        samples, problems = sample_shards(
            self._ports.kinesis, self._stream, shards, self._ports.clock, window_s=window_s, now_ms=now_ms
        )
        if problems:
            return f"the load is not known: {problems[0]}"
        return load_map_of(samples)

    def _young_boundaries(
        self, summary: StreamSummary, shards: Sequence[Shard], now_ms: int
    ) -> frozenset[int]:
        """Return the shard boundaries that are younger than `boundary_age_s`. Those of the stream's creation count as old."""
        before_ms = round(now_ms - self._limits.boundary_age_s * 1000)
        if before_ms <= summary.created_ms:
            listing = self._ports.kinesis.fetch_shards(self._stream, ShardFilter("AT_TRIM_HORIZON"))
            old_boundaries = {each.hash_range.start for each in listing.shards if not each.parents}
        else:
            listing = self._ports.kinesis.fetch_shards(
                self._stream, ShardFilter("AT_TIMESTAMP", timestamp_ms=before_ms)
            )
            old_boundaries = {each.hash_range.start for each in listing.shards}
        return frozenset(each.hash_range.start for each in shards) - old_boundaries

    def _find_reader_behind(self, summary: StreamSummary, closed_ids: set[str]) -> str:
        """Return a sentence about the first reader that is too far behind in a closed shard; empty if there is none."""
        for name, table in self._ports.readers.items():
            try:
                leases = table.scan().leases
            except NotFound as error:
                raise UsageError(f"reader {name} has no lease table: {error}") from error
            unfinished = [
                each
                for each in leases
                if not each.is_ended
                and shard_id_of(each.key) in closed_ids
                and stream_name_of(stream_id_of(each.key)) in ("", summary.name)
            ]
            streams = {stream_id_of(each.key): self._stream for each in unfinished}
            for lag in measure_lags(self._ports.kinesis, streams, unfinished, self._ports.clock):
                if lag.lag_ms is None:
                    return f"it is not known how far {name} is behind in {lag.key}: {lag.why_unknown}"
                if lag.lag_ms > self.options.closed_lag_max_s * 1000:
                    return (
                        f"{name} is {lag.lag_ms / 1000:.0f} s behind in the closed shard {lag.key}, more than "
                        f"{self.options.closed_lag_max_s:g} s"
                    )
        return ""

    def _reshard(self, summary: StreamSummary, decision: Decision) -> str:
        """Split or merge; return why the call did not succeed, or an empty text."""
        if not self._take_lease(summary):
            return "another autoscaler has taken the lease"
        try:
            if isinstance(decision, Split):
                self._ports.control.split(self._stream, decision.shard_id, decision.at)
            elif not isinstance(decision, Hold):
                self._ports.control.merge(self._stream, decision.shard_id, decision.adjacent_id)
        except (ResourceBusy, Rejected, Throttled) as error:
            return f"refused: {error}"
        except UnknownOutcome as error:  # the next listing shows the outcome
            return f"no answer, so the shards are listed again: {error}"
        return ""

    def _wait_until_active(self, summary: StreamSummary) -> bool:
        """Wait until the stream is active; return False after `_ACTIVE_WAIT_S` or a stop."""
        clock = self._ports.clock
        end_s = clock.monotonic_s() + _ACTIVE_WAIT_S
        while clock.monotonic_s() < end_s:
            if self._ports.kinesis.fetch_summary(self._stream).status == "ACTIVE":
                return True
            if self._lease is not None and not self._lease.may_act(clock.monotonic_s()):
                self._take_lease(summary)  # the wait is longer than half of the lease
            if self._stop.wait(_ACTIVE_CHECK_S):
                return False
        log.warning("%s is not ACTIVE after %.0f s", summary.name, _ACTIVE_WAIT_S)
        return False

    # -- the lease ------------------------------------------------------------------------------------------

    def _take_lease(self, summary: StreamSummary) -> bool:
        """Take the lease, or renew it if that is due; return whether this autoscaler may act now."""
        if self.options.dry_run:
            return True
        table, clock = self._ports.leases, self._ports.clock
        if self._lease is None:
            table.ensure_exists()
            self._lease = AutoscalerLease(
                f"{AUTOSCALER_PREFIX}{summary.name}",
                self.worker_id,
                max(LEASE_S, 3 * self.options.interval_s),
            )
        sent_s = clock.monotonic_s()
        write = self._lease.plan_write(table.fetch(self._lease.key), sent_s)
        if write is not None:
            self._lease.on_outcome(table.write(write), sent_s)
        return self._lease.may_act(clock.monotonic_s())

    def _release_lease(self) -> None:
        if self._lease is None:
            return
        try:
            write = self._lease.release_of(self._ports.leases.fetch(self._lease.key))
            if write is not None:
                self._ports.leases.write(write)
        except (Throttled, Unavailable, UnknownOutcome) as error:
            log.warning("the lease is not released, and ends by itself: %s", error)

    # -- events ---------------------------------------------------------------------------------------------

    def _report_decision(
        self, summary: StreamSummary, decision: Decision, shards: int, *, done: bool
    ) -> AutoscaleEvent:
        name = type(decision).__name__.lower()
        text = f"{'' if done or isinstance(decision, Hold) else 'would '}{_describe(decision)}"
        event = AutoscaleEvent(summary.name, name, text, done, shards)
        log.info("%s (%d open shards): %s", event.stream, shards, text)
        self._on_event(event)
        return event

    def _report_hold(self, summary: StreamSummary, reason: str, shards: int) -> AutoscaleEvent:
        return self._report_decision(summary, Hold(reason), shards, done=False)


def _describe(decision: Decision) -> str:
    if isinstance(decision, Hold):
        return decision.reason
    if isinstance(decision, Split):
        return f"split {decision.shard_id} at {decision.at} ({place_of(decision.at)} of the hash keys): {decision.reason}"
    return f"merge {decision.shard_id} and {decision.adjacent_id}: {decision.reason}"


def _open_ports(connection: Mapping[str, Any], readers: Sequence[str], lease_table: str) -> AutoscalePorts:
    from penstock import wiring

    options = wiring.parse_connection(connection)
    return AutoscalePorts(
        wiring.open_kinesis(options),
        wiring.open_stream_control(options),
        wiring.open_lease_table(lease_table, options),
        {name: wiring.open_lease_table(name, options) for name in readers},
        SystemClock(),
    )
