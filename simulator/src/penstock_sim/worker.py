"""One simulated worker: the real coordinator, real shard readers, and calls that can go wrong.

A worker is a process: it can crash, be paused, be asked to stop, and start again under the same name. Its clock runs
at its own rate. Every call reaches its server a moment after it was begun and is answered a moment later;
the fault plan decides whether it fails on the way.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, Final, cast

from msgspec.structs import replace

from penstock.consumer.delivery_loop import STANDSTILL_ROUNDS
from penstock.consumer.fetching import ShardFetcher
from penstock.consumer.stream_argument import ConsumedStream
from penstock.consumer.stream_reading import name_check_of
from penstock.consumer.worker import options_for_streams
from penstock.core.leases import coordinator_effects as effects
from penstock.core.leases import coordinator_events as events
from penstock.core.leases.coordinator import Coordinator
from penstock.core.leases.coordinator_options import BalancePolicy, CoordinatorOptions
from penstock.core.leases.held_lease import statuses_of
from penstock.core.leases.held_lease_phases import is_standstill
from penstock.core.leases.kcl3_fleet import stats_to_report
from penstock.core.leases.lease import Lease, TablePart, name_run, stream_id_of
from penstock.core.leases.lease_writes import Applied, Refused
from penstock.core.starting import with_moment
from penstock.ports.kinesis import Kinesis
from penstock.ports.metrics import NoMetrics
from penstock.runtime.lease_calls import list_shards
from penstock_sim.blocking_ports import SimClock
from penstock_sim.environment import Environment
from penstock_sim.events import processes, reading, streams
from penstock_sim.plan import STREAM_NAME
from penstock_sim.process import scan_name
from penstock_sim.reader import ProcessWithReaders, SimReader
from penstock_sim.table import without_request

_FIRST_CHECK_S: Final = 1.0
UTILISATION: Final = 40.0
"""Of the CPU, as every worker reports it, in percent."""


class SimWorker(ProcessWithReaders):
    """One process.

    Args:
        streams: The streams to read, as the service described them when the process started; by default the world's only one.
    """

    def __init__(self, world: Environment, name: str, streams: Sequence[ConsumedStream] = ()) -> None:
        super().__init__(world, name)
        scenario, clock = world.scenario, SimClock(self)
        only = ConsumedStream(STREAM_NAME, scenario.options.start, retention_s=scenario.retention_s)
        self.streams = {stream.stream_id: stream for stream in streams or (only,)}
        self._kinesis = cast("Kinesis", world.streams)  # calls that are begun and answered at one moment
        self._name_checks = {
            key: name_check_of(each, self._kinesis, clock) for key, each in self.streams.items()
        }
        self._fetchers = {
            stream_id: ShardFetcher(
                self.streams[stream_id].name,
                self._kinesis,
                drops_unmarked=False,
                has_room=lambda: True,
                clock=clock,
                metrics=NoMetrics(),
                name_check=name_check,
            )
            for stream_id, name_check in self._name_checks.items()
        }
        run_name = name_run(name, f"{self.life:08x}") if self.writes_its_run else ""
        self.coordinator = Coordinator(name, self.coordinator_options(), run_name)
        self._wake = math.inf
        self._supports_handover = name not in world.table.without_handover

    def coordinator_options(self) -> CoordinatorOptions:
        """Return the coordinator's options; a KCL worker does not check the stream that rows name."""
        scenario = self.world.scenario
        options, limit = scenario.options, dict(scenario.limits).get(self.name)
        if self.name in scenario.foreign:
            options = replace(options, stream=None, policy=BalancePolicy.KCL2, leases_to_acquire=None)
        elif limit is not None:
            options = replace(options, max_leases=limit)
        if scenario.streams is None:
            return options
        options = options_for_streams(options, list(self.streams.values()))
        cold_start_s = scenario.streams.cold_start_s
        return options if cold_start_s is None else replace(options, cold_start_jitter_s=cold_start_s)

    @property
    def writes_its_run(self) -> bool:
        """Whether this worker is Penstock's: those of the KCL write no run to leases."""
        return self.name not in self.world.table.foreign

    # --- the coordinator ------------------------------------------------------------------------------

    def start(self) -> None:
        self.feed(events.Tick())
        self.later(self.coordinator_options().renew_interval_s / self.clock_rate, self._report_progress)

    def feed(self, event: events.Event) -> None:
        for effect in self.coordinator.handle(event, self.local_s(), self.world.chance.random()):
            self._begin(effect)
        if not self.is_alive:
            return
        wake = self.at_local(self.coordinator.next_wake_s)
        if wake < self._wake - 1e-9 and wake != math.inf:
            self._wake = wake
            # Slightly later: converting the moment to the world's time and back may give slightly less.
            self.at(max(wake, self.world.now) + 1e-6, self._tick, wake)

    def _begin(self, effect: effects.Effect) -> None:  # noqa: C901, PLR0912 - one case per effect
        match effect:
            case effects.WriteLease():
                self._write(effect)
            case effects.ScanTable(part):
                self._scan(part)
            case effects.FetchLease(key):
                self._fetch(key)
            case effects.ListShards():
                self._list_shards(effect)
            case effects.EnsureTable():
                self.call("ensure", self.world.serve_ensure, lambda _result: self.feed(events.TableReady()))
            case effects.StartReader():
                self._start_reader(effect)
            case effects.StopReader(key, epoch, why) if (key, epoch) in self.readers:
                self.readers[key, epoch].stop(why)
            case effects.ExtendDelivery(key, epoch, deliver_until_s) if (key, epoch) in self.readers:
                self.readers[key, epoch].extend(deliver_until_s)
            case effects.AuditReaders():
                alive = frozenset(place for place, reader in self.readers.items() if not reader.is_reported)
                self.later(0.0, self.feed, events.ReadersFound(alive))
            case effects.FetchFleet():
                self.fetch_fleet(effect)
            case effects.ReportWorker():
                self.report_worker(effect)
            case effects.FindOwnLeases():
                self.find_own_leases(effect)
            case effects.LeaveFleet():
                self.leave_fleet(effect)
            case effects.FleetRefused(why):
                self._report("FLEET_REFUSED", why.value, None)
            case effects.WorkerIdTaken(later_run):
                self._report("WORKER_ID_TAKEN", str(later_run.run), later_run.key)
            case effects.Report():
                self._report(effect.topic.name, effect.reason, effect.key)
            case effects.Stopped():
                self.on_gone(self, "stopped")
            case _:
                pass

    def _report(self, topic: str, reason: str, key: str | None) -> None:
        self.world.record(processes.CoordinatorReported(self.who, topic, reason, key))

    def _tick(self, wake: float) -> None:
        if wake == self._wake:
            self._wake = math.inf
            self.feed(events.Tick())

    # --- calls ----------------------------------------------------------------------------------------

    def _write(self, effect: effects.WriteLease) -> None:
        self.call(
            f"write {type(effect.write).__name__}",
            lambda: self.as_seen(self.world.serve_write(self.who, effect.write)),
            lambda outcome: self.feed(events.WriteDone(effect.write_id, effect.write, outcome)),
            effect.write.key,
        )

    def as_seen(self, outcome: events.WriteOutcome) -> events.WriteOutcome:
        """Return the answer to a write as this worker reads it: without hand-over requests, if it ignores them."""
        if self._supports_handover:
            return outcome
        if isinstance(outcome, Applied) and outcome.lease is not None:
            return Applied(without_request(outcome.lease))
        if isinstance(outcome, Refused) and outcome.row is not None:
            return replace(outcome, row=without_request(outcome.row))
        return outcome

    def _as_read(self, lease: Lease) -> Lease:
        return lease if self._supports_handover else without_request(lease)

    def _ask(
        self,
        name: str,
        server: Callable[[], Any],
        done: Callable[[Any], events.Event],
        kind: events.LeaseCall,
        key: str = "",
    ) -> None:
        """Make a call, and feed the coordinator the event of its answer or of its problem."""

        def answer(found: Any) -> None:
            is_failed = isinstance(found, events.Problem)
            self.feed(events.CallFailed(kind, found, key=key or None) if is_failed else done(found))

        self.call(name, server, answer, key)

    def _scan(self, part: TablePart | None) -> None:
        began_s = self.local_s()

        def done(seen: Any) -> events.ScanDone:
            return events.ScanDone(tuple(map(self._as_read, seen[0])), seen[1], began_s, part)

        self._ask(scan_name(part), lambda: self.world.serve_scan(part), done, events.LeaseCall.SCAN)

    def _fetch(self, key: str) -> None:
        def done(found: tuple[Lease | None]) -> events.LeaseFetched:
            return events.LeaseFetched(key, None if found[0] is None else self._as_read(found[0]))

        self._ask("fetch", lambda: self.world.serve_fetch(key), done, events.LeaseCall.FETCH, key)

    def _list_shards(self, effect: effects.ListShards) -> None:
        stream_id = effect.stream_id
        name, name_check = self.streams[stream_id].name, self._name_checks[stream_id]
        self.call(
            "list shards",
            lambda: list_shards(effect, name, self._kinesis, name_check, self.world.now_ms),
            self.feed,
            stream_id,
        )

    # --- KCL 3 workers --------------------------------------------------------------------------------

    def fetch_fleet(self, effect: effects.FetchFleet) -> None:
        self._ask(
            "fetch fleet",
            lambda: self.world.kcl3.serve_fetch(effect.workers),
            lambda rows: events.FleetFetched(rows, self.world.wall_ms() / 1000),
            events.LeaseCall.FETCH_FLEET,
        )

    def report_worker(self, effect: effects.ReportWorker) -> None:
        cpu = (UTILISATION,) if effect.measures_cpu else None
        stats = stats_to_report(self.name, self.world.wall_ms() / 1000, cpu, is_full=effect.is_full)
        self._ask(
            "report",
            lambda: self.world.kcl3.serve_report(stats),
            lambda _stored: events.WorkerReported(),
            events.LeaseCall.REPORT,
        )

    def leave_fleet(self, effect: effects.LeaveFleet) -> None:
        withdraw = self.world.kcl3.serve_withdrawal
        self.call("leave fleet", lambda: withdraw(self.name), lambda _result: self.feed(events.FleetLeft()))

    def find_own_leases(self, effect: effects.FindOwnLeases) -> None:
        serve = self.world.kcl3.serve_leases_of
        self._ask(
            "find own",
            lambda: serve(self.name, effect.known_keys),
            events.OwnLeasesFound,
            events.LeaseCall.FIND_OWN,
        )

    # --- shards ---------------------------------------------------------------------------------------

    def on_reader_failed(self, reason: str) -> None:
        self.has_stopped_shard = True
        if self.world.is_healed and reason.startswith("access is denied"):
            # It was refused before the faults ended, and has delivered the records that it had: people restart it, too.
            self.later(0.0, self.request_stop)
        streams = self.world.scenario.streams
        if streams is not None and streams.stops_at_standstill:
            self.later(_FIRST_CHECK_S, self._check_standstill, None)

    def _check_standstill(self, before: frozenset[tuple[str, int]] | None) -> None:
        held = statuses_of(self.coordinator.held_leases)
        standing = frozenset((lease.key, lease.epoch) for lease in held) if is_standstill(held) else None
        if standing is None:
            return
        if standing == before:
            self.world.record(streams.WorkerStoodStill(self.who))
            self.request_stop()
        else:
            wait_s = STANDSTILL_ROUNDS * self.coordinator_options().interval_s
            self.later(wait_s, self._check_standstill, standing)

    # --- readers --------------------------------------------------------------------------------------

    def _start_reader(self, effect: effects.StartReader) -> None:
        stream = self.streams[stream_id_of(effect.key)]
        position = with_moment(effect.position, stream.start.position_of(effect.key))
        reader = SimReader(self, replace(effect, position=position), stream, self._fetchers[stream.stream_id])
        self.readers[effect.key, effect.epoch] = reader
        self.world.record(reading.ReaderStarted(*reader.place, position))
        if self.world.scenario.with_readers:
            self.later(0.0, reader.step)

    def _report_progress(self) -> None:
        for reader in list(self.readers.values()):
            news = reader.run.take_progress(self.local_s())
            if news is not None:
                self.feed(news)
        self.later(self.coordinator_options().renew_interval_s / self.clock_rate, self._report_progress)

    def request_stop(self) -> None:
        self.feed(events.StopRequested())
