"""What a simulated process sees: time, chance, the stream, the lease table, and what goes wrong on the way to them.

Everything that happens is noted in the history, in order; the checkers read nothing else.
"""

from __future__ import annotations

import hashlib
import heapq
import math
import random
from collections import Counter
from collections.abc import Callable, Collection
from typing import Any, Final

from penstock.core.leases.coordinator_events import UNKNOWN, NotDone, Problem, WriteOutcome
from penstock.core.leases.lease import Lease
from penstock.core.leases.lease_writes import Applied, LeaseWrite
from penstock.core.leases.table_part import TablePart
from penstock.core.position import Position, at_record
from penstock.core.reading.reader_steps import ListedShard, ListPage, find_listed
from penstock.core.shard import Shard
from penstock.errors import ExpiredIterator, NotFound, PenstockError, Throttled, UnknownOutcome
from penstock.sim.faults import EPOCH_MS, FaultPlan, Scenario
from penstock.sim.fibers import Fibers
from penstock.sim.history import HistoryEntry
from penstock.sim.stream import SimRecord, SimStream
from penstock.sim.table import SimTable

_RECORD_BYTES: Final = 200
_MISTAKES_APART_S: Final = 10.0


class Environment:
    """The services and the time of one run.

    Args:
        scenario: What the seed decides.
        listener: Called with every history entry: (seconds, kind, ...).
    """

    def __init__(self, scenario: Scenario, listener: Callable[[HistoryEntry], None]) -> None:
        self.scenario = scenario
        self.faults: FaultPlan = scenario.faults
        self.chance = random.Random(scenario.seed * 2_654_435_761 + 1)
        self.now = 0.0
        self.history: list[HistoryEntry] = []
        self.is_healed = False
        self.throttled_until = 0.0
        self.wall_offset_ms = 0
        self._listener = listener
        self._mistaken_s: dict[str, float] = {}
        self._heap: list[tuple[float, int, Callable[..., None], tuple[Any, ...]]] = []
        self._count = 0
        self.fibers = Fibers()
        self.met: Counter[str] = Counter()
        """How often each fault, refusal and decision came up."""
        self.stream = SimStream(self.chance, scenario.shard_count, EPOCH_MS - 60_000)
        for shard in self.stream.shards.values():
            self.note("shard", shard.shard_id, shard.parents)
        self.table = SimTable(
            lambda who, write, before, after: self.note("write", who, write, before, after), self.met
        )

    # --- time and history -----------------------------------------------------------------------------

    def now_ms(self) -> int:
        """Return the service's clock."""
        return EPOCH_MS + int(self.now * 1000)

    def wall_ms(self) -> int:
        """Return a worker's wall clock, which may be an hour off."""
        return self.now_ms() + self.wall_offset_ms

    def schedule(self, at_s: float, action: Callable[..., None], *args: Any) -> None:
        """Let something happen at a moment."""
        self._count += 1
        heapq.heappush(self._heap, (at_s, self._count, action, args))

    def note(self, kind: str, *what: Any) -> None:
        """Write one line of history and let the checkers see it."""
        entry = (round(self.now, 6), kind, *what)
        self.history.append(entry)
        self._listener(entry)

    def run_until(self, until_s: float) -> None:
        """Let time pass."""
        heap = self._heap

        def step() -> bool:
            if not heap or heap[0][0] > until_s:
                return False
            at_s, _, action, args = heapq.heappop(heap)
            self.now = max(self.now, at_s)
            action(*args)
            return True

        self.fibers.run(step)
        self.now = until_s

    def digest(self) -> str:
        """Return a hash of the whole history: the same for the same seed."""
        hasher = hashlib.blake2b(digest_size=8)
        for entry in self.history:
            hasher.update(show_entry(entry).encode())
        return hasher.hexdigest()

    def latency_s(self) -> float:
        """Draw the time that one way to a server takes."""
        return 0.002 + self.faults.latency_max_s * self.chance.random() ** 3

    def handling_s(self) -> float:
        """Draw the time that the handler takes for a batch."""
        if not self.is_healed and self.chance.random() < self.faults.slow_handler:
            self.met["fault: slow_handler"] += 1
            return self.chance.uniform(1.0, 25.0)
        return 0.01 + 0.2 * self.chance.random()

    def has_fault(self, name: str) -> bool:
        """Draw whether something happens to a query now, by the name of its likelihood in the seed's plan of queries."""
        likelihood: float = getattr(self.scenario.query_plan, name)
        happens = not self.is_healed and self.chance.random() < likelihood
        if happens:
            self.met[f"fault: {name}"] += 1
        return happens

    # --- servers --------------------------------------------------------------------------------------

    def luck(self, fault: str) -> bool:
        """Draw whether a fault of the plan happens now, by the name of its rate."""
        rate: float = getattr(self.faults, fault)
        happens = rate > 0 and self.chance.random() < rate
        if happens:
            self.met[f"fault: {fault}"] += 1
        return happens

    def table_problem(self) -> Problem | None:
        """Draw what keeps a call to the lease table from being served, or None."""
        if self.now < self.throttled_until and self.chance.random() < 0.8:
            self.met["fault: throttle_bursts_per_min"] += 1
            return Problem.THROTTLED
        if self.luck("table_error"):
            return Problem.UNAVAILABLE
        return None if self.table.exists else Problem.TABLE_MISSING

    def serve_write(self, who: str, write: LeaseWrite) -> WriteOutcome:
        """Do a write, or fail on the way there or back."""
        problem = self.table_problem()
        if problem is not None:
            return NotDone(problem)
        if self.luck("unknown_late"):
            self.schedule(self.now + self.chance.uniform(0.1, 6.0), self._write_late, who, write)
            return UNKNOWN
        if self.luck("unknown_lost"):
            return UNKNOWN
        return self._write(who, write)

    def _write(self, who: str, write: LeaseWrite) -> WriteOutcome:
        if self.luck("spurious_refusal") and write.key in self.table.rows:
            return self.table.refuse(write)
        if self.faults.stale_scan:
            self.table.remember(self.now)
        outcome = self.table.write(who, write)
        if self.luck("unknown_applied"):
            return UNKNOWN
        if isinstance(outcome, Applied) and self.luck("answer_replaced"):
            return self.table.write(who, write)  # the SDK's own retry meets what its first try did
        return outcome

    def _write_late(self, who: str, write: LeaseWrite) -> None:
        if self.table.exists:
            self.table.write(who, write)

    def serve_scan(
        self, part: TablePart | None
    ) -> Problem | tuple[tuple[Lease, ...], tuple[tuple[str, str], ...]]:
        """Return every row, or those of a part; now and then as they were a moment ago."""
        problem = self.table_problem()
        if problem is not None:
            return problem
        if self.luck("stale_scan"):
            rows = self.table.stale_rows(self.now, self.chance.random())
        else:
            rows = tuple(self.table.rows.values())
            self.table.remember(self.now)
        if part is not None:
            rows = tuple(row for row in rows if part.holds(row.key))
        skipped = self.skipped_rows()
        return rows, skipped

    def skipped_rows(self) -> tuple[tuple[str, str], ...]:
        """Return the rows of a scan that are no leases."""
        if not self.faults.foreign_rows:
            return ()
        self.met["fault: foreign_rows"] += 1
        return (("leader", "entityType LEADER"),)

    def serve_rows(self, low: str, high: str) -> Problem | list[Lease]:
        """Return the rows whose keys are at least `low` and below `high`."""
        problem = self.table_problem()
        if problem is not None:
            return problem
        return [row for key, row in self.table.rows.items() if low <= key < high]

    def serve_rows_of(self, keys: Collection[str]) -> Problem | list[Lease]:
        """Return the rows of these keys."""
        problem = self.table_problem()
        if problem is not None:
            return problem
        return [row for key, row in self.table.rows.items() if key in keys]

    def serve_fetch(self, key: str) -> Problem | tuple[Lease | None]:
        """Return one row."""
        problem = self.table_problem()
        return problem if problem is not None else (self.table.rows.get(key),)

    def serve_ensure(self) -> None:
        """Create the table."""
        self.table.exists = True

    def serve_listing(
        self, filter_type: str | None, timestamp_ms: int | None, stream: SimStream | None = None
    ) -> Problem | tuple[tuple[Shard, ...], int]:
        """Answer ListShards: in any order, now and then incomplete."""
        if self.luck("stream_throttle"):
            return Problem.THROTTLED
        shards = (stream or self.stream).list_shards(filter_type, timestamp_ms)
        self.chance.shuffle(shards)
        if self.luck("bad_listing") and len(shards) > 1:
            shards = shards[: -self.chance.randint(1, max(1, len(shards) // 3))]
        return tuple(shards), self.now_ms()

    def serve_summary(self) -> PenstockError | None:
        """Answer DescribeStreamSummary, as far as it can fail."""
        return self._stream_error()

    def _stream_error(self) -> PenstockError | None:
        if self.luck("stream_throttle"):
            return Throttled("throttled")
        if self.luck("broken_connection"):
            return UnknownOutcome("connection reset")
        return None

    def _is_mistaken(self, fault: str, key: str) -> bool:
        """Whether an answer about a shard is wrong; never twice in a short time, or nobody could tell."""
        if self.now - self._mistaken_s.get(key, -math.inf) < _MISTAKES_APART_S or not self.luck(fault):
            return False
        self._mistaken_s[key] = self.now
        return True

    def _mistaken_denial(self, key: str) -> PenstockError | None:
        if self._is_mistaken("unknown_shard", key):
            return NotFound(f"shard {key} under stream does not exist", code="ResourceNotFoundException")
        return None

    def serve_listing_of(self, key: str) -> ListedShard | PenstockError:
        """Answer a reader's question about its own shard: a whole listing, perhaps incomplete."""
        answer = self.serve_listing(None, None)
        return Throttled("throttled") if isinstance(answer, Problem) else find_listed(key, answer[0])

    def serve_iterator(self, key: str, position: Position) -> str | PenstockError:
        """Answer GetShardIterator."""
        error = self._stream_error() or self._mistaken_denial(key)
        if error is not None:
            return error
        return f"{key}:{self.stream.seek(self.stream.shards[key], position)}:{self.now:.3f}"

    def serve_page(self, iterator: str, record_count_max: int) -> ListPage[SimRecord] | PenstockError:
        """Answer GetRecords."""
        error = self._stream_error()
        if error is not None:
            return error
        key, index_text, born_text = iterator.split(":")
        if self.now - float(born_text) > 300 or self.luck("expired_iterator"):
            return ExpiredIterator("expired")
        error = self._mistaken_denial(key)
        if error is not None:
            return error
        shard = self.stream.shards[key]
        index = int(index_text)
        count = 0 if self.luck("empty_page") else record_count_max
        sequences = shard.sequences[index : index + count]
        records = [SimRecord(str(sequence)) for sequence in sequences]
        after = index + len(records)
        is_end = shard.closed_ms is not None and after >= len(shard.sequences)
        behind_ms = 0
        if after < len(shard.sequences) and not self._is_mistaken("early_tip", key):
            behind_ms = max(1, self.now_ms() - shard.arrivals_ms[after])
        is_cut_off = self._is_mistaken("lost_iterator", key)
        return ListPage(
            records=records,
            first_sequence_number=records[0].sequence_number if records else None,
            last=at_record(records[-1].sequence_number) if records else None,
            read_bytes=len(records) * _RECORD_BYTES,
            next_iterator=None if is_end or is_cut_off else f"{key}:{after}:{self.now:.3f}",
            millis_behind_latest=behind_ms,
            children=self.stream.children_of(shard) if is_end and not is_cut_off else (),
            service_ms=self.now_ms(),
        )


def show_entry(entry: HistoryEntry) -> str:
    """Show one line of history."""
    if entry[1] != "write":
        return "|".join(map(str, entry))
    _, _, who, write, _, after = entry
    state = (
        "" if after is None else f"{after.owner} {after.checkpoint_owner} {after.counter} {after.checkpoint}"
    )
    return f"{entry[0]}|write|{who}|{type(write).__name__}|{write.key}|{state}"
