"""The simulated world: workers and queries that start and end, a stream that is resharded, and faults.

A run has two phases: in the safety phase faults happen as the seed's plan says; then they end, every worker starts
again, and in the liveness phase the fleet must settle, read everything and stay still.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final

from penstock.core.aggregation import MAGIC, AggregateBuilder
from penstock.core.leases.coordinator_options import BalancePolicy
from penstock.core.leases.lease import Lease, LeaseTerm
from penstock.core.leases.lease_writes import Create, RequestHandover
from penstock.core.position import TRIM_HORIZON, Position
from penstock_sim.environment import Environment
from penstock_sim.events.base import Event, HistoryEntry
from penstock_sim.events.kcl3 import FleetUnready, VersionChanged
from penstock_sim.events.leases import LeaseDeleted, LeaseWritten, TableDropped
from penstock_sim.events.processes import (
    FaultsEnded,
    ProcessExited,
    ProcessPaused,
    ProcessStarted,
    ProcessStopping,
    SecondProcessStarted,
    WallClockJumped,
)
from penstock_sim.events.streams import (
    RecordPut,
    RecordsTrimmed,
    ShardClosed,
    ShardCreated,
    ShardExpired,
    StreamQuiet,
)
from penstock_sim.faults import FaultPlan, Scenario
from penstock_sim.kcl3_plan import UPGRADING, WITH_LEADER
from penstock_sim.kcl3_worker import Kcl3Worker
from penstock_sim.names import name_of
from penstock_sim.process import SimProcess
from penstock_sim.stream import SimStream
from penstock_sim.worker import SimWorker

_SHARDS_MAX: Final = 14
_MIGRATION_LOOK_S: Final = 5.0
_UNDER_WAY_S: Final = 2.0
"""The KCL looks every minute whether its fleet is ready, and waits until it has been so for ten."""


class World(Environment):
    """One run of one scenario."""

    def __init__(self, scenario: Scenario, listener: Callable[[HistoryEntry], None]) -> None:
        super().__init__(scenario, listener)
        self.workers: dict[str, SimProcess] = {}
        self._incarnations: dict[str, int] = {}
        self._earlier: list[SimProcess] = []  # processes whose name a second process got while they ran
        self._quiet_until = 0.0
        self._left: set[str] = set()
        self._versions = [] if scenario.kcl3 is None else list(scenario.kcl3.changes)
        self.table.foreign = set(scenario.foreign)
        if scenario.kcl3 is not None:
            self.table.foreign |= scenario.kcl3.workers
        if scenario.options.policy is not BalancePolicy.KCL2:
            self.table.deaf = set(scenario.foreign)

    # --- the course of things -------------------------------------------------------------------------

    def begin(self) -> None:
        """Schedule the recurring events and faults."""
        chance = self.chance
        for _ in range(chance.randint(0, 3)):
            self.reshard()
        self.leave_rows_of_others()
        for name in self.scenario.workers:
            # After the moment of AT_TIMESTAMP scenarios, which a worker would refuse while it is in the future.
            start_s = 4.0 + chance.uniform(0.0, self.scenario.start_spread_s)
            if self.table.deaf and name in self.scenario.leavers:
                start_s = self.scenario.safety_s - chance.uniform(1.0, 30.0)
            self.schedule(start_s, self.start_worker, name)
        for rate, action in self.recurring():
            self._recur(rate, action)
        if self.scenario.records_per_s:
            self._recur_puts()
        if self.scenario.kcl3 is not None and self.scenario.kcl3.migrates:
            self.record(VersionChanged(self.scenario.kcl3.begins))
            self._migrate()
        self._trim()

    def recurring(self) -> list[tuple[float, Callable[[], None]]]:
        """Return the repeated events, and how often a minute each happens."""
        faults, kcl3 = self.faults, self.scenario.kcl3
        return [
            (faults.crashes_per_min, self._crash),
            (faults.stops_per_min, self._stop),
            (faults.pauses_per_min, self._pause),
            (faults.throttle_bursts_per_min, self._throttle),
            (faults.reshards_per_min, self.reshard),
            (faults.row_deletions_per_min, self._delete_row),
            (faults.table_drops_per_min, self._drop_table),
            (6.0 if faults.wall_jumps else 0.0, self._jump_wall),
            (faults.quiet_streams_per_min, self.fall_silent),
            (faults.denials_per_min, self._deny),
            (faults.second_processes_per_min, self._start_second_process),
            (0.0 if kcl3 is None else kcl3.leader_deaths_per_min, self._kill_leader),
            (0.0 if kcl3 is None else kcl3.leader_moves_per_min, self._depose_leader),
        ]

    def _recur(self, per_min: float, action: Callable[[], None]) -> None:
        if per_min <= 0:
            return

        def again() -> None:
            if not self.is_healed:
                action()
                self.schedule(self.now + self.chance.expovariate(per_min / 60), again)

        self.schedule(self.chance.expovariate(per_min / 60), again)

    def _recur_puts(self) -> None:
        if self.now >= self._quiet_until or self.is_healed:
            for _ in range(self.chance.randint(1, 5)):
                self._put()
        if not self.is_healed:
            self.schedule(
                self.now + self.chance.expovariate(self.scenario.records_per_s / 3), self._recur_puts
            )

    def record(self, event: Event) -> None:
        """Write an event to the history. A leaver leaves soon after it requests a lease from a worker that ignores requests."""
        super().record(event)
        if not isinstance(event, LeaseWritten) or not isinstance(event.write, RequestHandover):
            return
        name = name_of(event.who)
        if event.write.owner in self.table.deaf and name in self.scenario.leavers:
            self.schedule(self.now + self.chance.uniform(0.1, 2.0), self._leave, name)

    def _leave(self, name: str) -> None:
        self._left.add(name)
        worker = self.workers.get(name)
        if worker is not None:
            self.on_worker_gone(worker, "crashed")

    def draw_stream(self) -> SimStream | None:
        """Return the stream of the next records; None while it is quiet."""
        return self.stream

    def _put(self) -> None:
        stream = self.draw_stream()
        if stream is None:
            return
        shard = stream.draw_open_shard()
        now_ms = self.now_ms()
        if self.luck("malformed_aggregate"):
            blob = MAGIC + self.chance.randbytes(self.chance.choice((1, 20, 40)))
            numbers = stream.put_blob(shard, blob, "key", 1, now_ms)
        elif self.luck("aggregate"):
            count = self.chance.randint(2, 9)
            builder = AggregateBuilder()
            for _ in range(count):
                builder.add(b"", "key", str(shard.hash_range.start))
            entry = builder.build()
            numbers = stream.put_blob(shard, entry.data, entry.partition_key, count, now_ms)
        else:
            numbers = [stream.put_into(shard, now_ms)[1]]
        for number in numbers:
            self.record(RecordPut(stream.key_of(shard.shard_id), number, now_ms))

    def fall_silent(self) -> None:
        """Keep the stream quiet for a while."""
        retention_s = self.scenario.retention_s or 0.0
        self._quiet_until = self.now + self.chance.uniform(0.3, 1.5) * retention_s
        self.record(StreamQuiet(round(self._quiet_until, 3)))

    def _deny(self) -> None:
        self.denial = self.chance.choice(("AccessDeniedException", "ExpiredTokenException"))
        for service in self.chance.choice((("table",), ("stream",), ("table", "stream"))):
            self.denied_until[service] = self.now + self.chance.uniform(1.0, 25.0)

    def leave_rows_of_others(self) -> None:
        """Put the rows of dead workers of the KCL and of Spark into the table: without our attributes, or with old ones."""
        self.leave_rows_of(self.stream, self.scenario.options.start.default)

    def leave_rows_of(self, stream: SimStream, start: Position) -> None:
        """Put rows that dead workers left for one stream into the table, or put none."""
        rate, chance = self.faults.rows_of_others, self.chance
        if not rate or start != TRIM_HORIZON or chance.random() > rate:
            return
        self.met["fault: rows_of_others"] += 1
        self.table.exists = True
        for shard in stream.list_shards("AT_TRIM_HORIZON", None):
            owner = chance.choice(("java/1", "spark/q1"))
            term = chance.choice((None, LeaseTerm("spark/q1", 30_000), LeaseTerm("spark/q2", 10**9)))
            hash_range = None if owner == "java/1" and chance.random() < 0.3 else shard.hash_range
            lease = Lease(stream.key_of(shard.shard_id), 7, owner, hash_range=hash_range, term=term)
            self.table.write(f"{owner}#1", Create(lease))

    def _trim(self) -> None:
        retained = [
            (stream, retention_s) for stream, retention_s in self.retained() if retention_s is not None
        ]
        for stream, retention_s in retained:
            shortened, gone = stream.trim(self.now_ms() - int(retention_s * 1000))
            for shard in shortened:
                key = stream.key_of(shard.shard_id)
                self.record(RecordsTrimmed(key, shard.trimmed, shard.sequences[shard.trimmed - 1]))
            for shard in gone:
                self.record(ShardExpired(stream.key_of(shard.shard_id)))
        if retained:
            self.schedule(self.now + 1.0, self._trim)

    def retained(self) -> list[tuple[SimStream, float | None]]:
        """Return how long each stream keeps its records."""
        return [(self.stream, self.scenario.retention_s)]

    def streams_read(self) -> list[SimStream]:
        """Return the streams whose records the fleet owes to its handlers."""
        return [self.stream]

    def put_everywhere(self) -> None:
        """Put a record into every open shard: its reader must still deliver."""
        for stream in self.streams_read():
            for shard in stream.open_shards():
                _, number = stream.put_into(shard, self.now_ms())
                self.record(RecordPut(stream.key_of(shard.shard_id), number, self.now_ms()))

    def heal(self) -> None:
        """End all faults, bring every worker back, and write a last few records."""
        self.faults = FaultPlan(latency_max_s=0.05)
        self.throttled_until = 0.0
        self.denied_until = dict.fromkeys(self.denied_until, 0.0)
        for earlier in self._earlier:  # a user who gave two processes one name corrects that, too
            if earlier.is_alive:
                self.on_worker_gone(earlier, "crashed")
        for worker in self.workers.values():
            worker.paused_until = min(worker.paused_until, self.now)
            worker.resume()
        for name in self.scenario.leavers:
            self._leave(name)
        for name in self.scenario.workers:
            if name not in self.workers:
                self.start_worker(name)
        if self.scenario.records_per_s:
            self._recur_puts()
        self.is_healed = True
        self.record(FaultsEnded())
        self._restart(worker for worker in self.workers.values() if self.wants_restart(worker))
        # A call that was under way may still bring a fault's answer.
        self.schedule(self.now + _UNDER_WAY_S, self._restart_stopped)

    def wants_restart(self, worker: SimProcess) -> bool:
        """Whether people restart a worker once the faults have ended."""
        return worker.has_stopped_shard or self.scenario.on_data_loss == "fail"

    def _restart_stopped(self) -> None:
        self._restart(worker for worker in self.workers.values() if worker.has_stopped_shard)

    def _restart(self, workers: Iterable[SimProcess]) -> None:
        """Restart workers: a stopped shard waits for people, who mend the handler and restart."""
        for worker in list(workers):
            self.record(ProcessStopping(worker.who))
            worker.request_stop()

    def has_left(self, name: str) -> bool:
        """Whether a worker has left for ever."""
        return name in self._left

    def start_worker(self, name: str) -> None:
        """Start a process of this name, unless one runs or it has left for ever."""
        if name in self.workers or name in self._left:
            return
        worker = self.workers[name] = self.make_worker(name)
        self.record(ProcessStarted(worker.who))
        worker.start()

    def make_worker(self, name: str) -> SimProcess:
        """Return a new process of this name, not begun yet."""
        incarnation, plan = self.next_incarnation(name), self.scenario.kcl3
        if plan is not None and name in plan.workers:
            return Kcl3Worker(self, name, incarnation, self.on_worker_gone, plan)
        return SimWorker(self, name, incarnation, self.on_worker_gone)

    def next_incarnation(self, name: str) -> int:
        """Return the number of the next life under a name."""
        self._incarnations[name] = self._incarnations.get(name, 0) + 1
        return self._incarnations[name]

    def is_done(self) -> bool:
        """Whether nothing of the plan is left to happen."""
        return not self._versions

    def close(self) -> None:
        """Leave nothing behind."""
        self.fibers.close()

    def on_worker_gone(self, worker: SimProcess, how: str) -> None:
        """Record that a process has ended; another of the same name may start."""
        worker.end()
        if self.workers.get(worker.name) is worker:
            del self.workers[worker.name]
        self.record(ProcessExited(worker.who, how))
        if self.is_healed:
            self.schedule(self.now + 0.1, self.start_worker, worker.name)
        elif self.chance.random() < 0.85:
            self.schedule(
                self.now + self.chance.choice((0.05, 1.0, 5.0, 30.0)), self.start_worker, worker.name
            )

    def _some_worker(self) -> SimProcess | None:
        return self.chance.choice(list(self.workers.values())) if self.workers else None

    def _crash(self) -> None:
        worker = self._some_worker()
        if worker is not None:
            self.on_worker_gone(worker, "crashed")

    def _start_second_process(self) -> None:
        """Start a second process under the name of a running one, which goes on."""
        worker = self._some_worker()
        if isinstance(worker, SimWorker) and worker.notes_its_run:
            self.met["fault: second_processes_per_min"] += 1
            self.record(SecondProcessStarted(worker.name))
            self._earlier.append(self.workers.pop(worker.name))
            self.start_worker(worker.name)

    def _stop(self) -> None:
        worker = self._some_worker()
        if worker is not None and self.now >= worker.paused_until:
            self.record(ProcessStopping(worker.who))
            worker.request_stop()

    def _pause(self) -> None:
        worker = self._some_worker()
        if worker is not None:
            worker.paused_until = self.now + self.chance.uniform(0.5, self.faults.pause_max_s)
            self.schedule(worker.paused_until, worker.resume)
            self.record(ProcessPaused(worker.who, round(worker.paused_until, 3)))

    def _throttle(self) -> None:
        self.throttled_until = self.now + self.chance.uniform(1.0, 12.0)

    def _leader(self) -> Kcl3Worker | None:
        kcl3 = [worker for worker in self.workers.values() if isinstance(worker, Kcl3Worker)]
        return next((worker for worker in kcl3 if worker.leadership.is_leader), None)

    def _kill_leader(self) -> None:
        leader = self._leader()
        if leader is not None:
            self.met["fault: leader_deaths_per_min"] += 1
            self.on_worker_gone(leader, "crashed")

    def _depose_leader(self) -> None:
        leader = self._leader()
        if leader is not None:
            self.met["fault: leader_moves_per_min"] += 1
            leader.leadership.resign()

    def _migrate(self) -> None:
        """Move the row `Migration3.0` to its next state, once it is due and the fleet is ready for it."""
        if not self._versions:
            return
        at_s, version = self._versions[0]
        is_upgrade = version in WITH_LEADER and self.kcl3.version == UPGRADING
        is_ready = not is_upgrade or self.kcl3.is_ready(self.wall_ms() / 1000)
        if self.now >= at_s and is_ready:
            self.kcl3.version = version
            self.record(VersionChanged(version))
            del self._versions[0]
        elif self.now >= at_s:
            self.record(FleetUnready(version))
        self.schedule(self.now + _MIGRATION_LOOK_S, self._migrate)

    def _jump_wall(self) -> None:
        self.wall_offset_ms = self.chance.randint(-3_600_000, 3_600_000)
        self.record(WallClockJumped(self.wall_offset_ms))

    def reshard(self) -> None:
        """Split a shard, or merge two."""
        self.reshard_in(self.stream, _SHARDS_MAX)

    def reshard_in(self, stream: SimStream, shards_max: int) -> None:
        """Split a shard of a stream, or merge two; a stream that has `shards_max` open shards is not split."""
        shards = stream.open_shards()
        if len(shards) < 2 or (len(shards) < shards_max and self.chance.random() < 0.5):
            parents = [self.chance.choice(shards)]
            children = stream.split(parents[0], self.now_ms())
        else:
            place = self.chance.randrange(len(shards) - 1)
            parents = shards[place : place + 2]
            children = stream.merge(parents[0], parents[1], self.now_ms())
        of = tuple(stream.key_of(parent.shard_id) for parent in parents)
        for child in children:
            self.record(ShardCreated(stream.key_of(child), of))
        for key in of if children else ():
            self.record(ShardClosed(key))

    def _delete_row(self) -> None:
        # An application that started at LATEST and loses its last row is a new one to later workers.
        # Finished rows are kept: without the rows of both parents, a merged shard looks like one that the application
        # began with.
        unfinished = [
            key for key, row in self.table.rows.items() if not row.is_ended and self.may_delete(key)
        ]
        if unfinished:
            key = self.chance.choice(unfinished)
            row = self.table.rows.pop(key)
            self.record(LeaseDeleted(key, row.reader))

    def may_delete(self, key: str) -> bool:
        """Whether a row may be deleted: it is not its application's last."""
        del key
        return len(self.table.rows) > 1

    def _drop_table(self) -> None:
        if self.table.exists:
            self.table.drop()
            self.record(TableDropped())
