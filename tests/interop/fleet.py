"""A fleet of workers of the KCL and of Penstock on one application: what it did, and why records came twice."""

from __future__ import annotations

import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from types import TracebackType
from typing import Self

import company_checks
from company import TABLE
from company_checks import CompanyHistory, Processed, place, processed, takeovers
from counterparts import PENSTOCK, Counterpart
from harness import put_numbers
from worker_process import WAIT_S, WorkerProcess

import lease_logs
from lease_logs import create_table, lease_log
from penstock.core.position import Position
from penstock_local import Handle, LocalKinesis

SHARDS = 6
LEFT_THE_FLEET = "left by a worker that was killed or stopped"
TAKEN_BY_THE_KCL = "taken by the KCL from a live worker"
TAKEN_FROM_THE_KCL = "taken from a live KCL worker, which cannot hand over"
HANDED_OVER = "handed over between workers of Penstock"


@dataclass
class Fleet:
    """Workers on the stream `numbers`; a context manager that ends them.

    Args:
        server: What they speak to, with the stream.
        folder: Where they may write.

    Attributes:
        workers: By name, all that ever were.
        gone: Names of those that were killed or stopped.
        history: What was put; what else came of it once `gather` was called.
    """

    server: Handle
    folder: Path
    workers: dict[str, WorkerProcess] = field(default_factory=dict)
    gone: set[str] = field(default_factory=set)
    history: CompanyHistory = field(default_factory=CompanyHistory)
    sent: Counter[str] = field(default_factory=Counter)
    stack: ExitStack = field(default_factory=ExitStack)

    def __enter__(self) -> Self:
        create_table(self.server, TABLE)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stack.close()

    def start(self, counterpart: Counterpart) -> str:
        """Start one more worker; returns its name."""
        family = "penstock" if counterpart is PENSTOCK else "kcl"
        name = f"{family}-{len(self.workers) + 1}"
        self.workers[name] = self.stack.enter_context(
            WorkerProcess(counterpart, self.server, self.folder, name, "numbers", TABLE)
        )
        return name

    def kill(self, name: str) -> None:
        """End a worker by SIGKILL."""
        self.gone.add(name)
        self.workers[name].kill()

    def stop(self, name: str) -> None:
        """Let a worker stop in order."""
        self.gone.add(name)
        self.workers[name].stop()
        assert self.workers[name].last_line == "stopped", self.workers[name].log()

    def put(self, count: int) -> None:
        start = len(self.history.put)
        self.history.put += put_numbers(self.server.client("kinesis"), start, start + count, self.sent)

    def wait_for(self, what: Callable[[], str], condition: Callable[[], bool]) -> None:
        """Wait until something is true, while all workers live that should; `what` is told if it never is."""
        deadline_s = time.monotonic() + WAIT_S
        while not condition():
            for name in self.workers.keys() - self.gone:
                assert self.workers[name].is_alive, self.workers[name].log()
            assert time.monotonic() < deadline_s, f"{what()} after {WAIT_S:g} s:\n{self.logs()}"
            time.sleep(0.1)

    def wait_until_all_is_read(self) -> None:
        def unread() -> set[tuple[str, str]]:
            read = {(each.key, each.data) for one in self.workers.values() for each in one.records}
            return set(self.history.put) - read

        self.wait_for(
            lambda: f"{len(unread())} records are unread, such as {sorted(unread())[:3]};\n{self.rows()}",
            lambda: not unread(),
        )

    def wait_until_all_have_leases(self) -> None:
        names = self.workers.keys() - self.gone
        self.wait_for(
            lambda: f"{sorted(names - set(self.owners()))} have no leases",
            lambda: names <= set(self.owners()),
        )

    def rows(self) -> str:
        """Return the lease table, a line for each lease."""
        rows = self.server.client("dynamodb").scan(TableName=TABLE, ConsistentRead=True)["Items"]
        names = ("leaseKey", "leaseOwner", "checkpointOwner", "leaseCounter", "checkpoint")
        return "\n".join(
            " ".join(str(next(iter(row.get(name, {"": None}).values()))) for name in names) for row in rows
        )

    def owners(self) -> list[str]:
        """Return the owner of each lease that has one."""
        rows = self.server.client("dynamodb").scan(TableName=TABLE, ConsistentRead=True)["Items"]
        return [row["leaseOwner"]["S"] for row in rows if "checkpoint" in row and "leaseOwner" in row]

    def logs(self) -> str:
        return "\n".join(f"--- {name}\n{worker.log()}" for name, worker in self.workers.items())

    def assert_behaves_as_the_model(self) -> None:
        """Compare the log of the lease table with the model of the protocol; `gather` has been called."""
        java = {name for name in self.workers if name.startswith("kcl-")}
        lease_logs.assert_behaves_as_the_model(self.server, "numbers", self.history.log, self.folder, java)

    def gather(self) -> CompanyHistory:
        """Return what the workers did."""
        self.history.workers = {name: list(worker.did) for name, worker in self.workers.items()}
        self.history.log = lease_log(self.server, TABLE)
        return self.history


@contextmanager
def reading_fleet(folder: Path, first: Counterpart, records: int) -> Iterator[tuple[Fleet, str]]:
    """Run a server and a fleet of one worker, which has read what was put; yields the fleet and the worker's name.

    Args:
        folder: Where the workers may write.
        first: The worker.
        records: How many are put.
    """
    with LocalKinesis(limits=False, settle_s=0) as server:
        server.create_stream("numbers", shards=SHARDS)
        with Fleet(server, folder) as fleet:
            fleet.put(records)
            name = fleet.start(first)
            fleet.wait_until_all_is_read()
            yield fleet, name


def everything_wrong(history: CompanyHistory) -> dict[str, object]:
    """Return each check that found something."""
    found = company_checks.everything_wrong(history)
    back = moved_back(history)
    return {**found, "moved_back": back[:5]} if back else found


def moved_back(history: CompanyHistory) -> list[tuple[str, str, str]]:
    """Return (shard, checkpoint, next checkpoint) of each checkpoint that moved back."""
    found, before = [], {}
    for shard, row in history.log:
        if row is not None and shard in before and row.checkpoint < before[shard]:
            found.append((shard, str(before[shard]), str(row.checkpoint)))
        before.pop(shard, None)
        if row is not None:
            before[shard] = row.checkpoint
    return found


def causes_of_repeats(history: CompanyHistory, gone: set[str]) -> Counter[str]:
    """Return how many deliveries were repeats, by the change of reader that caused them.

    Args:
        history: What queries and workers did.
        gone: Those that were killed or stopped for good; what they left had to be taken.
    """
    by_record: defaultdict[tuple[str, Position], Counter[str]] = defaultdict(Counter)
    read = {name: query.rows for name, query in history.queries.items()}
    read |= {
        name: [each for each in did if isinstance(each, Processed)] for name, did in history.workers.items()
    }
    for name, records in read.items():
        for each in records:
            by_record[each.shard, place(each)][name] += 1
    readers = {
        shard: [(checkpoint, reader) for _, checkpoint, reader in takeovers(history, shard)]
        for shard in {shard for shard, _ in by_record}
    }
    causes: Counter[str] = Counter()
    for (shard, position), names in by_record.items():
        in_order = []
        for start, name in reversed(readers[shard]):
            if (
                start < position and names[name] > 0
            ):  # who had the lease more than once need not have read it each time
                names[name] -= 1
                in_order.append(name)
        causes.update(cause(one, other, gone) for other, one in pairwise(in_order))
    return causes


def cause(one: str, other: str, gone: set[str]) -> str:
    if one in gone:
        return LEFT_THE_FLEET
    if other.startswith("kcl"):
        return TAKEN_BY_THE_KCL
    return TAKEN_FROM_THE_KCL if one.startswith("kcl") else HANDED_OVER


def report_repeats(
    history: CompanyHistory, gone: set[str], record_property: Callable[[str, object], None]
) -> Counter[str]:
    """Write what was delivered, and why more than once, into the report; returns what `causes_of_repeats` does."""
    causes = causes_of_repeats(history, gone)
    record_property("records", len(history.put))
    record_property("deliveries", sum(1 for _ in processed(history)))
    for why, count in causes.items():
        record_property(f"repeats {why}", count)
    return causes
