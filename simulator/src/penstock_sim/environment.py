"""The surroundings of a simulated process: time, chance, the stream, the lease table, and the faults on the way to them.

Everything that happens is recorded in the history, in order; the checkers read nothing else.
"""

from __future__ import annotations

import hashlib
import heapq
import math
import random
from abc import abstractmethod
from collections import Counter
from collections.abc import Callable, Collection
from typing import Any, Final, Protocol, TypeVar

from msgspec.structs import replace

from penstock.core.leases.coordinator_events import UNKNOWN, NotDone, Problem, WriteOutcome
from penstock.core.leases.lease import Lease, TablePart
from penstock.core.leases.lease_writes import Applied, LeaseWrite
from penstock.core.position import Position
from penstock.core.reading.reader_options import ReaderOptions
from penstock.core.shard import Shard
from penstock.errors import AccessDenied, ExpiredIterator, NotFound, PenstockError, Throttled, UnknownOutcome
from penstock.ports.kinesis import RecordPage, ShardFilter
from penstock_sim.events import leases, processes, streams
from penstock_sim.events.base import Event, HistoryEntry
from penstock_sim.fibers import Fibers
from penstock_sim.kcl3_rows import SimKcl3Rows
from penstock_sim.plan import EPOCH_MS, FaultPlan, Scenario
from penstock_sim.stream import SimShard, SimStream
from penstock_sim.table import Fate, SimTable, TableCall

_MISTAKES_APART_S: Final = 10.0
_LISTINGS_APART_S: Final = 30.0
"""A worker that lists again because a listing lacked a shard does so within this time."""
_SMALL_PAGE_MAX: Final = 5
EVENTS_PER_S_MAX: Final = 5_000
"""So many events in a second are a loop that does not rest. A seed's busiest second has a few hundred."""
READER_OPTIONS: Final = ReaderOptions(
    idle_time_between_reads_s=4.0, backoff_min_s=0.5, backoff_max_s=4.0, on_data_loss="warn"
)


_Answer = TypeVar("_Answer")


class _Streams(Protocol):
    """The part of `StreamSet` that answers calls."""

    def open(self) -> SimStream: ...
    def iterator_life_s(self) -> float: ...
    def locate(self, place: str) -> tuple[SimStream, SimShard] | PenstockError: ...
    def refuse_position(self, stream: SimStream, position: Position) -> PenstockError | None: ...


class Environment:
    """The services and the time of one run."""

    streams: _Streams
    """Set before the environment is made."""

    def __init__(self, scenario: Scenario, listener: Callable[[HistoryEntry], None]) -> None:
        self.scenario = scenario
        self.faults: FaultPlan = scenario.faults
        self.chance = random.Random(scenario.seed * 2_654_435_761 + 1)
        self.now = 0.0
        self.history: list[HistoryEntry] = []
        self.is_healed = False
        self.throttled_until = 0.0
        self.denied_until = {"table": 0.0, "stream": 0.0}
        self.denial = "AccessDeniedException"
        self.wall_offset_ms = 0
        self._listener = listener
        self._mistaken_s: dict[str, float] = {}
        self._heap: list[tuple[float, int, Callable[..., object], tuple[Any, ...]]] = []
        self._count = 0
        self.fibers = Fibers()
        self.kcl3 = SimKcl3Rows(self, None if scenario.kcl3 is None else scenario.kcl3.begins)
        self.subscriptions: dict[tuple[str, str], Any] = {}
        """The `SimSubscription` that was accepted last, by registered consumer and shard."""
        self._lives: Counter[str] = Counter()
        self.met: Counter[str] = Counter()
        """Counts of each fault, refusal and decision."""
        self.stream = self.streams.open()
        self.table: SimTable = self._new_table()
        self.calls: list[TableCall] = []
        """Every write that was sent to the lease table, in the order in which the table decided it."""
        self.application = "application"
        """Its name in the queries now; its lease table has the same name."""
        self.earlier_tables: dict[str, tuple[Lease, ...]] = {}
        """The rows of the tables under its earlier names."""

    def _new_table(self) -> SimTable:
        return SimTable(lambda *change: self.record(leases.LeaseWritten(*change)), self.met)

    def rename_application(self) -> None:
        """Give the application another name, and so an empty lease table; nothing is written to the old one any more."""
        self.earlier_tables[self.application] = tuple(self.table.rows.values())
        self.table.exists = False
        self.application = f"application-{len(self.earlier_tables)}"
        self.table = self._new_table()

    def next_life(self, name: str) -> int:
        self._lives[name] += 1
        return self._lives[name]

    @abstractmethod
    def on_worker_gone(self, worker: Any, how: str) -> None:
        """Record that a process has ended; another of the same name may start."""

    # --- time and history -----------------------------------------------------------------------------

    def now_ms(self) -> int:
        return EPOCH_MS + int(self.now * 1000)

    def wall_ms(self) -> int:
        """Return a worker's wall clock, which may be an hour off."""
        return self.now_ms() + self.wall_offset_ms

    def schedule(self, at_s: float, action: Callable[..., object], *args: Any) -> None:
        self._count += 1
        heapq.heappush(self._heap, (at_s, self._count, action, args))

    def record(self, event: Event) -> None:
        """Write an event to the history; the checkers judge it."""
        entry = HistoryEntry(round(self.now, 6), event)
        situation = event.situation()
        if situation:
            self.met[situation] += 1
        self.history.append(entry)
        self._listener(entry)

    def run_until(self, until_s: float, is_over: Callable[[], bool] = lambda: False) -> None:
        """Advance time, unless so many events are due at once that it cannot move.

        Args:
            is_over: Asked before each event; the world stops where it answers that the run is over.
        """
        heap = self._heap
        counted_from_s, count = self.now, 0

        def step() -> bool:
            nonlocal counted_from_s, count
            if not heap or heap[0][0] > until_s or count > EVENTS_PER_S_MAX or is_over():
                return False
            at_s, _, action, args = heapq.heappop(heap)
            self.now = max(self.now, at_s)
            if self.now >= counted_from_s + 1.0:
                counted_from_s, count = self.now, 0
            count += 1
            action(*args)
            return True

        self.fibers.run(step)
        if count > EVENTS_PER_S_MAX:
            self.record(processes.TimeStoodStill(count))
        if not is_over():
            self.now = until_s

    def digest(self) -> str:
        """Return a hash of the whole history: the same for the same seed."""
        hasher = hashlib.blake2b(digest_size=8)
        for entry in self.history:
            hasher.update(str(entry).encode())
        return hasher.hexdigest()

    def latency_s(self) -> float:
        return 0.002 + self.faults.latency_max_s * self.chance.random() ** 3

    def handling_s(self) -> float:
        """Draw the time that the handler takes for a batch."""
        if not self.is_healed and self.chance.random() < self.faults.slow_handler:
            self.met["fault: slow_handler"] += 1
            return self.chance.uniform(1.0, 25.0)
        return 0.01 + 0.2 * self.chance.random()

    def has_fault(self, name: str) -> bool:
        """Draw whether a fault of the plan happens now, as `luck` does, but also for a rate of zero: queries draw so."""
        likelihood: float = getattr(self.scenario.faults, name)
        happens = not self.is_healed and self.chance.random() < likelihood
        if happens:
            self.met[f"fault: {name}"] += 1
        return happens

    def reader_options(self, retention_s: float | None) -> ReaderOptions:
        """Return how shards are read. Once faults have ended, losses of the past are accepted."""
        on_data_loss = "warn" if self.is_healed else self.scenario.on_data_loss
        return replace(READER_OPTIONS, on_data_loss=on_data_loss, retention_s=retention_s)

    def handler_fails(self, numbers: tuple[int, ...]) -> bool:
        """Draw whether the handler raises: always on a poison record, and now and then by chance."""
        rate = self.faults.poison_record
        if rate and any(self.is_poison(number) for number in numbers):
            self.met["fault: poison_record"] += 1
            return True
        return self.luck("handler_failure")

    def is_poison(self, number: int) -> bool:
        """Whether the handler always fails on a record, as the seed decides."""
        draw = (number * 2_654_435_761 + self.scenario.seed) % 10_007
        return draw < self.scenario.faults.poison_record * 10_007

    # --- servers --------------------------------------------------------------------------------------

    def luck(self, fault: str) -> bool:
        """Draw whether a fault of the plan happens now, by the name of its rate."""
        rate: float = getattr(self.faults, fault)
        happens = rate > 0 and self.chance.random() < rate
        if happens:
            self.met[f"fault: {fault}"] += 1
        return happens

    def is_denied(self, service: str) -> bool:
        """Whether the credentials are refused now, by the table or the stream."""
        is_denied = self.now < self.denied_until[service]
        if is_denied:
            self.met[f"fault: denials_per_min ({service}, {self.denial})"] += 1
        return is_denied

    def answer(self, serve: Callable[[], _Answer]) -> _Answer | Problem:
        """Answer a call to the lease table, or draw its problem."""
        return self.table_problem() or serve()

    def table_problem(self) -> Problem | None:
        if self.now < self.throttled_until and self.chance.random() < 0.8:
            self.met["fault: throttle_bursts_per_min"] += 1
            return Problem.THROTTLED
        if self.is_denied("table"):
            return Problem.REFUSED
        if self.luck("table_error"):
            return Problem.UNAVAILABLE
        return None if self.table.exists else Problem.TABLE_MISSING

    def serve_write(self, who: str, write: LeaseWrite) -> WriteOutcome:
        """Do a write, or fail on the way there or back."""
        problem = self.table_problem()
        if problem is not None:
            return NotDone(problem)
        place = len(self.history)
        if self.luck("unknown_late"):
            self.calls.append(TableCall(place, self.now, who, write, Fate.SENT))
            self.schedule(self.now + self.chance.uniform(0.1, 6.0), self._write_late, self.table, who, write)
            return UNKNOWN
        if self.luck("unknown_lost"):
            self.calls.append(TableCall(place, self.now, who, write, Fate.SENT))
            return UNKNOWN
        return self._write(who, write)

    def _write(self, who: str, write: LeaseWrite) -> WriteOutcome:
        if self.luck("spurious_refusal") and write.key in self.table.rows:
            return self.table.refuse(write)
        if self.faults.stale_scan:
            self.table.remember(self.now)
        place, before = len(self.history), self.table.rows.get(write.key)
        outcome = self.table.write(who, write)
        answer: WriteOutcome = outcome
        if self.luck("unknown_applied"):
            answer = UNKNOWN
        elif isinstance(outcome, Applied) and self.luck("answer_replaced"):
            answer = self.table.write(who, write)  # the SDK's own retry finds the effect of its first try
        if isinstance(outcome, Applied):
            fate = Fate.ANSWERED if answer is outcome else Fate.SILENT
            self.calls.append(TableCall(place, self.now, who, write, fate, before, outcome.lease))
        return answer

    def _write_late(self, table: SimTable, who: str, write: LeaseWrite) -> None:
        if not table.exists:
            return
        place, before = len(self.history), table.rows.get(write.key)
        outcome = table.write(who, write)
        if isinstance(outcome, Applied):
            self.calls.append(TableCall(place, self.now, who, write, Fate.ARRIVED, before, outcome.lease))

    def serve_scan(
        self, part: TablePart | None
    ) -> Problem | tuple[tuple[Lease, ...], tuple[tuple[str, str], ...]]:
        """Return every row, or those of a part; now and then as they were a moment ago."""
        return self.answer(lambda: self._scan(part))

    def _scan(self, part: TablePart | None) -> tuple[tuple[Lease, ...], tuple[tuple[str, str], ...]]:
        if self.luck("stale_scan"):
            rows = self.table.stale_rows(self.now, self.chance.random())
        else:
            rows = tuple(self.table.rows.values())
            self.table.remember(self.now)
        if part is not None:
            rows = tuple(row for row in rows if part.holds(row.key))
        return rows, self.skipped_rows()

    def skipped_rows(self) -> tuple[tuple[str, str], ...]:
        """Return the rows of a scan that are not leases."""
        if not self.faults.foreign_rows:
            return ()
        self.met["fault: foreign_rows"] += 1
        return (("leader", "entityType LEADER"),)

    def serve_rows(self, low: str, high: str) -> Problem | list[Lease]:
        return self.answer(lambda: [row for key, row in self.table.rows.items() if low <= key < high])

    def serve_earlier_rows(self, name: str) -> Problem | tuple[Lease, ...]:
        """Return the rows of a table that the application had before."""
        problem = self.table_problem()
        if problem in (None, Problem.TABLE_MISSING):  # the new table may not exist yet; the earlier one does
            return self.earlier_tables.get(name, Problem.TABLE_MISSING)
        return problem

    def serve_rows_of(self, keys: Collection[str]) -> Problem | list[Lease]:
        return self.answer(lambda: [row for key, row in self.table.rows.items() if key in keys])

    def serve_fetch(self, key: str) -> Problem | tuple[Lease | None]:
        return self.answer(lambda: (self.table.rows.get(key),))

    def serve_ensure(self) -> None:
        self.table.exists = True

    def serve_listing(
        self, shard_filter: ShardFilter | None, stream: SimStream
    ) -> Problem | tuple[tuple[Shard, ...], int]:
        """Answer ListShards: in any order, now and then incomplete."""
        if self.is_denied("stream"):
            return Problem.REFUSED
        if self.luck("stream_throttle"):
            return Problem.THROTTLED
        shards = stream.list_shards(shard_filter)
        self.chance.shuffle(shards)
        if self.luck("bad_listing") and len(shards) > 1:
            count = self.chance.randint(1, max(1, len(shards) // 3))
            shards = shards[:-count] + [
                shard
                for shard in shards[-count:]
                if not self._is_mistaken(f"listing of {shard.shard_id}", _LISTINGS_APART_S)
            ]
        return tuple(shards), self.now_ms()

    def stream_error(self) -> PenstockError | None:
        if self.is_denied("stream"):
            return AccessDenied("access is denied", code=self.denial)
        if self.luck("stream_throttle"):
            return Throttled("throttled", code="ProvisionedThroughputExceededException")
        if self.luck("broken_connection"):
            return UnknownOutcome("connection reset")
        return None

    def _is_mistaken(self, key: str, apart_s: float, fault: str = "") -> bool:
        """Decide whether an answer about a shard is wrong: not twice in a short time, or it could not be detected."""
        if self.now - self._mistaken_s.get(key, -math.inf) < apart_s or (fault and not self.luck(fault)):
            return False
        self._mistaken_s[key] = self.now
        return True

    def _find(self, place: str) -> tuple[SimStream, SimShard] | PenstockError:
        """Find the shard that a call names, unless it has left the stream or the service is mistaken."""
        if self._is_mistaken(place, _MISTAKES_APART_S, "unknown_shard"):
            return self.unknown_shard(place)
        found = self.streams.locate(place)
        is_gone = not isinstance(found, PenstockError) and found[1].is_expired
        return self.unknown_shard(place) if is_gone else found

    def unknown_shard(self, key: str) -> NotFound:
        return NotFound(f"shard {key} under stream does not exist", code="ResourceNotFoundException")

    def serve_iterator(self, place: str, position: Position) -> str | PenstockError:
        """Answer GetShardIterator."""
        found = self.stream_error() or self._find(place)
        if isinstance(found, PenstockError):
            return found
        stream, shard = found
        refused = self.streams.refuse_position(stream, position)
        key = stream.key_of(shard.shard_id)
        return refused or f"{key}:{stream.seek(shard, position)}:{self.now:.3f}"

    def serve_page(self, iterator: str, record_count_max: int) -> RecordPage | PenstockError:
        """Answer GetRecords."""
        error = self.stream_error()
        if error is not None:
            return error
        key, index_text, born_text = iterator.rsplit(":", 2)
        if self.now - float(born_text) > self.streams.iterator_life_s() or self.luck("expired_iterator"):
            return ExpiredIterator("expired")
        found = self._find(key)
        if isinstance(found, PenstockError):
            return found
        stream, shard = found
        index = max(int(index_text), shard.trimmed)
        count = 0 if self.luck("empty_page") else record_count_max
        if self.luck("small_page"):
            count = min(count, self.chance.randint(1, _SMALL_PAGE_MAX))
        if count == 0 and "maxBatchDuration" in self.scenario.query_plan.options:
            self.record(streams.EmptyPageReturned(key))  # a batch whose time is over ends with it
        records, after = stream.read(shard, index, count)
        is_end = shard.closed_ms is not None and after >= len(shard.sequences)
        behind_ms = 0
        if after < len(shard.sequences):
            behind_ms = max(1, self.now_ms() - shard.arrivals_ms[after])
            if self._is_mistaken(key, _MISTAKES_APART_S, "early_tip"):
                behind_ms = 0
                self.record(streams.TipReportedEarly(key))
        is_cut_off = self._is_mistaken(key, _MISTAKES_APART_S, "lost_iterator")
        return RecordPage(
            records,
            None if is_end or is_cut_off else f"{key}:{after}:{self.now:.3f}",
            behind_ms,
            stream.children_of(shard) if is_end and not is_cut_off else (),
            self.now_ms(),
        )
