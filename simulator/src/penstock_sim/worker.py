"""One simulated worker: the real coordinator, real shard readers, and calls that can go wrong.

A worker is a process: it can crash, be paused, be asked to stop, and start again under the same name. Its clock runs
at its own rate. Every call reaches its server a moment after it was begun and is answered a moment later;
the fault plan decides whether it fails on the way.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from msgspec.structs import replace

from penstock.core.leases.coordinator import Coordinator
from penstock.core.leases.coordinator_effects import (
    AuditReaders,
    Effect,
    EnsureTable,
    ExtendDelivery,
    FetchFleet,
    FetchLease,
    FindOwnLeases,
    FleetRefused,
    LeaveFleet,
    ListShards,
    Report,
    ReportWorker,
    ScanTable,
    StartReader,
    Stopped,
    StopReader,
    WorkerIdTaken,
    WriteLease,
)
from penstock.core.leases.coordinator_events import (
    Event,
    FetchFailed,
    FleetFetched,
    FleetFetchFailed,
    FleetLeft,
    LeaseFetched,
    ListingDone,
    ListingFailed,
    OwnLeasesFound,
    OwnLeasesNotFound,
    Problem,
    ReadersFound,
    ScanDone,
    ScanFailed,
    StopRequested,
    TableReady,
    Tick,
    WorkerReported,
    WriteDone,
    WriteOutcome,
)
from penstock.core.leases.coordinator_options import BalancePolicy, CoordinatorOptions
from penstock.core.leases.kcl3_fleet import stats_to_report
from penstock.core.leases.lease import Lease, name_run
from penstock.core.leases.lease_writes import Applied, Refused
from penstock.core.starting import with_moment
from penstock_sim.events.processes import CoordinatorReported
from penstock_sim.events.reading import ReaderStarted
from penstock_sim.process import scan_name
from penstock_sim.reader import ReadingProcess, SimReader
from penstock_sim.table import without_request

if TYPE_CHECKING:
    from penstock_sim.world import World

UTILISATION: Final = 40.0
"""Of the CPU, as every worker reports it, in percent."""


class SimWorker(ReadingProcess):
    """One process."""

    def __init__(self, world: World, name: str) -> None:
        super().__init__(world, name)
        run_name = name_run(name, f"{self.life:08x}") if self.writes_its_run else ""
        self.coordinator = Coordinator(name, self.coordinator_options(), run_name)
        self.readers: dict[tuple[str, int], SimReader] = {}
        self._current: dict[str, SimReader] = {}
        self._waiting: dict[str, list[SimReader]] = {}
        self._wake = math.inf
        self._supports_handover = name not in world.table.without_handover
        self._handlers: dict[type, Callable[[Any], None]] = {
            WriteLease: self._write,
            ScanTable: self._scan,
            FetchLease: self._fetch,
            ListShards: self.list_shards,
            EnsureTable: self._ensure,
            StartReader: self._start_reader,
            StopReader: self._stop_reader,
            ExtendDelivery: self._extend,
            AuditReaders: self._audit,
            FetchFleet: self.fetch_fleet,
            ReportWorker: self.report_worker,
            FindOwnLeases: self.find_own_leases,
            LeaveFleet: self.leave_fleet,
            FleetRefused: self._fleet_refused,
            WorkerIdTaken: self._worker_id_taken,
            Report: self._report,
            Stopped: self._stopped,
        }

    def coordinator_options(self) -> CoordinatorOptions:
        """Return the coordinator's options; a KCL worker does not check the stream that rows name."""
        scenario = self.world.scenario
        limit = dict(scenario.limits).get(self.name)
        if self.name in scenario.foreign:
            return replace(scenario.options, stream=None, policy=BalancePolicy.KCL2, leases_to_acquire=None)
        return scenario.options if limit is None else replace(scenario.options, max_leases=limit)

    @property
    def writes_its_run(self) -> bool:
        """Whether this worker is Penstock's: those of the KCL write no run to leases."""
        return self.name not in self.world.scenario.foreign

    # --- the coordinator ------------------------------------------------------------------------------

    def start(self) -> None:
        """Begin."""
        self.feed(Tick())
        self.later(self.coordinator_options().renew_interval_s / self.clock_rate, self._beat)

    def feed(self, event: Event) -> None:
        """Feed the coordinator an event and begin the effects that it returns."""
        effects = self.coordinator.handle(event, self.local_s(), self.world.chance.random())
        for effect in effects:
            self._do(effect)
        if not self.is_alive:
            return
        wake = self.at_local(self.coordinator.next_wake_s)
        if wake < self._wake - 1e-9 and wake != math.inf:
            self._wake = wake
            # Slightly later: converting the moment to the world's time and back may give slightly less.
            self.world.schedule(max(wake, self.world.now) + 1e-6, self._do_unless_ended, self._tick, (wake,))

    def _tick(self, wake: float) -> None:
        if wake == self._wake:
            self._wake = math.inf
            self.feed(Tick())

    def _do(self, effect: Effect) -> None:
        handler = self._handlers.get(type(effect))
        if handler is not None:
            handler(effect)

    # --- calls ----------------------------------------------------------------------------------------

    def _write(self, effect: WriteLease) -> None:
        self.call(
            f"write {type(effect.write).__name__}",
            lambda: self.as_seen(self.world.serve_write(self.who, effect.write)),
            lambda outcome: self.feed(WriteDone(effect.write_id, effect.write, outcome)),
            effect.write.key,
        )

    def as_seen(self, outcome: WriteOutcome) -> WriteOutcome:
        """Return the answer to a write as this worker reads it: without hand-over requests, if it ignores them."""
        if self._supports_handover:
            return outcome
        if isinstance(outcome, Applied) and outcome.lease is not None:
            return Applied(without_request(outcome.lease))
        if isinstance(outcome, Refused) and outcome.row is not None:
            return replace(outcome, row=without_request(outcome.row))
        return outcome

    def _scan(self, effect: ScanTable) -> None:
        began_s, part = self.local_s(), effect.part

        def answer(result: Any) -> None:
            if isinstance(result, Problem):
                self.feed(ScanFailed(result))
            else:
                rows = result[0] if self._supports_handover else tuple(map(without_request, result[0]))
                self.feed(ScanDone(rows, result[1], began_s, part))

        name = scan_name(part)
        self.call(name, lambda: self.world.serve_scan(part), answer)

    def _fetch(self, effect: FetchLease) -> None:
        def answer(result: Any) -> None:
            if isinstance(result, Problem):
                self.feed(FetchFailed(effect.key, result))
            else:
                lease: Lease | None = result[0]
                self.feed(
                    LeaseFetched(
                        effect.key,
                        lease if lease is None or self._supports_handover else without_request(lease),
                    )
                )

        self.call("fetch", lambda: self.world.serve_fetch(effect.key), answer, effect.key)

    def list_shards(self, effect: ListShards) -> None:
        """List the stream's shards."""

        def answer(result: Any) -> None:
            if isinstance(result, Problem):
                self.feed(ListingFailed(effect.purpose, result))
            else:
                self.feed(ListingDone(effect.purpose, result[0], result[1]))

        self.call(
            "list shards", lambda: self.world.serve_listing(effect.filter_type, effect.timestamp_ms), answer
        )

    def _ensure(self, _: EnsureTable) -> None:
        self.call("ensure", self.world.serve_ensure, lambda _result: self.feed(TableReady()))

    # --- KCL 3 workers --------------------------------------------------------------------------------

    def fetch_fleet(self, effect: FetchFleet) -> None:
        """Read the rows of KCL 3 beside the leases."""

        def answer(result: Any) -> None:
            if isinstance(result, Problem):
                self.feed(FleetFetchFailed(result))
            else:
                self.feed(FleetFetched(result, self.world.wall_ms() / 1000))

        self.call("fetch fleet", lambda: self.world.kcl3.serve_fetch(effect.workers), answer)

    def report_worker(self, effect: ReportWorker) -> None:
        """Write this worker's report."""
        cpu = (UTILISATION,) if effect.measures_cpu else None
        stats = stats_to_report(self.name, self.world.wall_ms() / 1000, cpu, is_full=effect.is_full)
        self.call(
            "report",
            lambda: self.world.kcl3.serve_report(stats),
            lambda problem: self.feed(WorkerReported(problem)),
        )

    def leave_fleet(self, effect: LeaveFleet) -> None:
        """Take this worker's report back."""
        del effect
        withdraw = self.world.kcl3.serve_withdrawal
        self.call("leave fleet", lambda: withdraw(self.name), lambda _result: self.feed(FleetLeft()))

    def find_own_leases(self, effect: FindOwnLeases) -> None:
        """Find this worker's leases by the index."""

        def answer(result: Any) -> None:
            is_found = not isinstance(result, Problem)
            self.feed(OwnLeasesFound(result) if is_found else OwnLeasesNotFound(result))

        self.call("find own", lambda: self.world.kcl3.serve_leases_of(self.name, effect.known), answer)

    def _fleet_refused(self, effect: FleetRefused) -> None:
        self.world.record(CoordinatorReported(self.who, "FLEET_REFUSED", effect.why.value, None))

    def _worker_id_taken(self, effect: WorkerIdTaken) -> None:
        self.world.record(
            CoordinatorReported(self.who, "WORKER_ID_TAKEN", str(effect.twin.run), effect.twin.key)
        )

    # --- readers --------------------------------------------------------------------------------------

    def _start_reader(self, effect: StartReader) -> None:
        position = with_moment(effect.position, self.start_of(effect.key))
        reader = SimReader(self, replace(effect, position=position))
        self.readers[effect.key, effect.epoch] = reader
        self.world.record(ReaderStarted(*reader.place, position))
        if self.world.scenario.with_readers:
            self.later(0.0, reader.step)

    def read_keys(self) -> set[str]:
        """Return the shards that this process reads."""
        return {key for key, _ in self.readers}

    def is_current(self, reader: SimReader) -> bool:
        """Return whether a reader may go on: it waits for an earlier one of its shard, so that their calls never overlap."""
        place = (reader.key, reader.epoch)
        if self.readers.get(place) is not reader:
            return False
        current = self._current.setdefault(reader.key, reader)
        if current is reader:
            return True
        queue = self._waiting.setdefault(reader.key, [])
        if reader.run.is_stopping:  # before its first step: no call is under way
            del self.readers[place]
            reader.report_stopped()
            if reader in queue:
                queue.remove(reader)
        elif reader not in queue:
            queue.append(reader)
        return False

    def forget(self, reader: SimReader) -> None:
        """Remove a reader, and begin the next one of its shard."""
        self.readers.pop((reader.key, reader.epoch), None)
        self._current.pop(reader.key, None)
        for follower in self._waiting.pop(reader.key, []):
            self.later(0.0, follower.step)

    def _beat(self) -> None:
        for reader in list(self.readers.values()):
            news = reader.run.beat(self.local_s())
            if news is not None:
                self.feed(news)
        self.later(self.coordinator_options().renew_interval_s / self.clock_rate, self._beat)

    def _stop_reader(self, effect: StopReader) -> None:
        reader = self.readers.get((effect.key, effect.epoch))
        if reader is not None:
            reader.stop(effect.why)

    def _extend(self, effect: ExtendDelivery) -> None:
        reader = self.readers.get((effect.key, effect.epoch))
        if reader is not None:
            reader.extend(effect.deliver_until_s)

    def _audit(self, _: AuditReaders) -> None:
        alive = frozenset(place for place, reader in self.readers.items() if not reader.is_reported)
        self.later(0.0, self.feed, ReadersFound(alive))

    def _report(self, effect: Report) -> None:
        self.world.record(CoordinatorReported(self.who, effect.topic.name, effect.reason, effect.key))

    def _stopped(self, _: Stopped) -> None:
        self.on_gone(self, "stopped")

    def request_stop(self) -> None:
        """Begin a graceful stop of the process."""
        self.feed(StopRequested())
