"""The ports as a simulated process sees them from blocking code: every call takes virtual time, and can go wrong on its way.

The server also acts for a caller that has ended since, because the request is on the way. A write whose answer was lost is
settled by the code that settles it over DynamoDB (`penstock.runtime.settled_writes`).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from functools import partial
from itertools import count, pairwise
from typing import Any, Final, NamedTuple

from penstock.core.backoff import Backoff, RetryPlan
from penstock.core.leases.coordinator_events import UNKNOWN, NotDone, Problem
from penstock.core.leases.kcl3_fleet import Kcl3Rows, WorkerStats
from penstock.core.leases.lease import Lease, TablePart
from penstock.core.leases.lease_writes import LeaseWrite, Outcome
from penstock.core.position import Position, at_record
from penstock.core.put_entry import EntryAnswer, PutEntry
from penstock.core.reading.resume import IteratorStart, IteratorType
from penstock.core.shard import StreamSummary
from penstock.errors import NotFound, PenstockError, Throttled, Unavailable, UnknownOutcome
from penstock.ports.kinesis import RecordPage, ShardFilter, ShardListing
from penstock.ports.lease_table import LeaseScan, SkippedRow
from penstock.runtime.settled_writes import write_settled
from penstock_sim.events import processes, queries
from penstock_sim.process import SimProcess, scan_name
from penstock_sim.stream import SimStream, position_of

RETRIES: Final = RetryPlan(Backoff(0.1, 2.0), attempts_max=20, deadline_s=15.0)
_LOST_ANSWER_MAX_S: Final = 3.0
_PROBE: Final = "probe "


class SimClock:
    """One process's clock."""

    def __init__(self, process: SimProcess) -> None:
        self._process = process

    def monotonic_s(self) -> float:
        return self._process.local_s()

    def wall_ms(self) -> int:
        """Return the wall clock, which may be an hour off."""
        return self._process.world.wall_ms()

    def sleep(self, duration_s: float) -> None:
        fiber = self._process.world.fibers.current
        assert fiber is not None
        end_s = self._process.world_s_in(duration_s)
        while self._process.world.now < end_s and fiber.wait(end_s):
            pass


class LongPoll(NamedTuple):
    """An answer of a server that is sent later."""

    begin: Callable[[Callable[[Any], None]], None]  # begins to wait; calls its argument with the answer


class Caller:
    """Makes the calls of one process, and retries them as the adapters do."""

    def __init__(self, process: SimProcess, prefix: str, retries: RetryPlan | None) -> None:
        self.process = process
        self.world = process.world
        self.clock = SimClock(process)
        self.prefix = prefix
        self.retries = retries

    def _ask(self, name: str, server: Callable[[], Any], key: str, attempt: int) -> Any:
        world, process = self.world, self.process
        fiber = world.fibers.current
        assert fiber is not None
        assert fiber.process is process
        kind = processes.CallMade if attempt == 1 else processes.CallRetried
        world.record(kind(process.who, self.prefix + name, key))
        answers: list[Any] = []
        awaited = True

        def serve() -> None:
            answer = server()
            if isinstance(answer, LongPoll):
                answer.begin(reply)
            else:
                reply(answer)

        def reply(answer: Any) -> None:
            is_lost = answer is UNKNOWN or isinstance(answer, UnknownOutcome)
            late_s = world.chance.uniform(0.0, _LOST_ANSWER_MAX_S) if is_lost else 0.0
            process.later(world.latency_s() + late_s, arrive, answer)

        def arrive(answer: Any) -> None:
            if awaited:
                answers.append(answer)
                fiber.go_on()

        world.schedule(world.now + world.latency_s(), serve)
        try:
            while not answers:
                fiber.wait()
        finally:
            awaited = False
        return answers[0]

    def call(self, name: str, server: Callable[[], Any], key: str = "", *, retried: bool = True) -> Any:
        """Make a call, and make it again while it fails and that can help.

        Raises:
            PenstockError: The last failure.
        """
        began_s = self.clock.monotonic_s()
        for attempt in count(1):
            answer = self._ask(name, server, key, attempt)
            error = _error_of(answer, name)
            if error is None:
                return answer
            if not retried or self.retries is None or not isinstance(error, Throttled | Unavailable):
                raise error
            delay_s = self.retries.delay_s(
                attempt, self.clock.monotonic_s() - began_s, self.world.chance.random()
            )
            if delay_s is None:
                raise error
            self.clock.sleep(delay_s)
        raise AssertionError("counting has no end")


def _error_of(answer: Any, name: str) -> PenstockError | None:
    if isinstance(answer, NotDone):
        answer = answer.problem
    if answer is UNKNOWN:
        return UnknownOutcome(f"{name}: no answer came", operation=name)
    if isinstance(answer, UnknownOutcome):
        return Unavailable(f"{name}: {answer}", operation=name)  # of a read: nothing can have happened
    if isinstance(answer, PenstockError):
        return answer
    if answer is Problem.THROTTLED:
        return Throttled(f"{name}: throttled", operation=name)
    if answer is Problem.TABLE_MISSING:
        return NotFound(f"{name}: no such table", operation=name, code="ResourceNotFoundException")
    return Unavailable(f"{name}: unavailable", operation=name) if isinstance(answer, Problem) else None


class SimLeaseTable:
    """Implements `penstock.ports.lease_table.LeaseTable` for one process.

    Args:
        prefix: Names the calls of this port in the history.
    """

    def __init__(self, process: SimProcess, prefix: str = "") -> None:
        self.caller = Caller(process, prefix, RETRIES)
        self._world = process.world
        self._who = process.who

    @property
    def name(self) -> str:
        return "leases"

    def ensure_exists(self) -> bool:
        is_new = not self._world.table.exists
        self.caller.call("ensure", self._world.serve_ensure)
        return is_new

    @property
    def row_count(self) -> int:
        return 0

    def scan(self, part: TablePart | None = None) -> LeaseScan:
        """Read every row, or those of a part: now and then in two pages, between which others write."""
        return self.scan_as(scan_name(part), part)

    def scan_as(self, name: str, part: TablePart | None) -> LeaseScan:
        """Scan under a separate name in the history."""
        cuts = ["", "\uffff"]
        if self._world.table.rows and self._world.luck("stale_scan"):
            cuts.insert(1, self._world.chance.choice(sorted(self._world.table.rows)))
        rows: list[Lease] = []
        for low, high in pairwise(cuts):
            rows += self.caller.call(name, partial(self._world.serve_rows, low, high))
        if part is not None:
            rows = [row for row in rows if part.holds(row.key)]
        return LeaseScan(tuple(rows), tuple(SkippedRow(*row) for row in self._world.skipped_rows()))

    def fetch(self, key: str) -> Lease | None:
        lease: Lease | None = self.caller.call("fetch", lambda: self._world.serve_fetch(key), key)[0]
        return lease

    def fetch_many(self, keys: Collection[str]) -> LeaseScan:
        return LeaseScan(tuple(self.caller.call("fetch many", lambda: self._world.serve_rows_of(keys))))

    def write(self, write: LeaseWrite) -> Outcome:
        return write_settled(
            write,
            fetch=self.fetch,
            send=self._send,
            retry_plan=RETRIES,
            clock=self.caller.clock,
            chance=self._world.chance,
            table=self.name,
        )

    def _send(self, write: LeaseWrite, _previous_owner: str | None) -> Outcome:
        outcome: Outcome = self.caller.call(
            f"write {type(write).__name__}", lambda: self._world.serve_write(self._who, write), write.key
        )
        return outcome


class SimEarlierTable(SimLeaseTable):
    """A lease table that the application had before: it is only read."""

    def __init__(self, process: SimProcess, name: str) -> None:
        super().__init__(process)
        self._name = name

    def scan(self, part: TablePart | None = None) -> LeaseScan:
        return LeaseScan(self.caller.call("scan earlier", lambda: self._world.serve_earlier_rows(self._name)))


class SimKcl3Tables:
    """Implements `penstock.ports.kcl3_tables.Kcl3Tables` for one process."""

    def __init__(self, process: SimProcess) -> None:
        self._caller = Caller(process, "", RETRIES)
        self._rows = process.world.kcl3

    def fetch(self, workers: Collection[str] | None = ()) -> Kcl3Rows:
        rows: Kcl3Rows = self._caller.call("fetch fleet", lambda: self._rows.serve_fetch(workers))
        return rows

    def report(self, stats: WorkerStats) -> None:
        self._caller.call("report", lambda: self._rows.serve_report(stats))

    def withdraw(self, worker: str) -> None:
        self._caller.call("leave fleet", lambda: self._rows.serve_withdrawal(worker))

    def find_keys_of(self, worker: str) -> frozenset[str]:
        leases = self._caller.call("find own", lambda: self._rows.serve_leases_of(worker, ()))
        return frozenset(lease.key for lease in leases)


class SimKinesis:
    """Implements `penstock.ports.kinesis.Kinesis` for one process.

    Args:
        prefix: Names the calls of this port in the history.
        put: Answers PutRecords, if the process writes.
    """

    def __init__(
        self,
        process: SimProcess,
        prefix: str,
        stream: SimStream,
        retries: RetryPlan | None = RETRIES,
        put: Callable[[Sequence[PutEntry]], Any] | None = None,
    ) -> None:
        self.process = process
        self._put = put
        self._caller = Caller(process, prefix, retries)
        self._world = process.world
        self.stream = stream

    def without_retries(self) -> SimKinesis:
        return SimKinesis(self.process, _PROBE, self.stream, None)

    def fetch_summary(self, stream: str) -> StreamSummary:
        self._caller.call("describe", self._world.stream_error)
        return self.stream.summary(stream)

    def fetch_shards(self, stream: str, shard_filter: ShardFilter | None = None) -> ShardListing:
        serve = partial(self._world.serve_listing, shard_filter, self.stream)
        return ShardListing(*self._caller.call("list shards", serve))

    def fetch_iterator(self, stream: str, shard_id: str, start: IteratorStart) -> str:
        iterator: str = self._caller.call(
            "iterator",
            lambda: self._world.serve_iterator(shard_id, self.position_of(shard_id, start)),
            shard_id,
        )
        return iterator

    def fetch_records(self, stream: str, iterator: str, record_count_max: int = 10_000) -> RecordPage:
        key = iterator.partition(":")[0]
        page: RecordPage = self._caller.call(
            "read", lambda: self._world.serve_page(iterator, record_count_max), key, retried=False
        )
        if (
            self._caller.prefix == _PROBE
            and page.next_iterator
            and not (page.records or page.millis_behind_latest)
            and page.server_ms is not None
        ):
            self._world.record(queries.TipProbed(self.process.who, key, page.server_ms))
        return page

    def position_of(self, key: str, start: IteratorStart) -> Position:
        """Return the position at which an iterator begins, as `SimStream.seek` has it."""
        if start.type is IteratorType.AFTER_SEQUENCE_NUMBER and start.sequence_number is not None:
            number = int(start.sequence_number)
            return at_record(str(number + self.stream.count_in(key, number)))
        return position_of(start)

    def put_records(self, stream: str, entries: Sequence[PutEntry]) -> Sequence[EntryAnswer]:
        """Send entries once; a retry is the batcher's to plan."""
        put = self._put
        assert put is not None, "this process does not write"
        answers: Sequence[EntryAnswer] = self._caller.call("put", lambda: put(entries), retried=False)
        return answers
