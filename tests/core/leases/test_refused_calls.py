"""What the lease table refuses for good is told, by a worker that holds nothing too."""

import pytest
from tests.core.leases.coordinator_bench import LEFT, RIGHT, WHOLE, Bench

from penstock.core.leases.coordinator_effects import FetchLease, Level, Topic, WriteLease
from penstock.core.leases.coordinator_events import FetchFailed, NotDone, Problem, WriteDone
from penstock.core.leases.lease import Lease
from penstock.core.shard import Shard

DENIED = "AccessDenied: UpdateItem on lease table app"


class ReadOnly(Bench):
    """A table that this worker may read and not write."""

    problem = Problem.REFUSED

    def answer(self, effect):
        if isinstance(effect, WriteLease):
            return WriteDone(effect.write_id, effect.write, NotDone(self.problem, DENIED))
        return super().answer(effect)


def test_a_worker_that_may_not_take_a_lease_says_so_once_a_minute():
    bench = ReadOnly(Lease("a", hash_range=LEFT), Lease("b", hash_range=RIGHT))
    bench.start()
    (report,) = bench.reports(Topic.CALL_FAILED)
    assert report.level is Level.ERROR
    assert DENIED in report.message
    assert "lease a" in report.message
    bench.at(59.0)
    assert len(bench.reports(Topic.CALL_FAILED)) == 1
    bench.at(90.0)
    assert len(bench.reports(Topic.CALL_FAILED)) == 2


def test_a_worker_that_may_not_create_the_first_lease_says_so():
    bench = ReadOnly()
    bench.listing = (Shard("s", WHOLE),)
    bench.start()
    bench.at(10.0)
    (report,) = bench.reports(Topic.CALL_FAILED)
    assert DENIED in report.message


@pytest.mark.parametrize("problem", [Problem.THROTTLED, Problem.UNAVAILABLE])
def test_what_passes_by_itself_is_not_told(problem):
    bench = ReadOnly(Lease("a", hash_range=WHOLE))
    bench.problem = problem
    bench.start()
    assert bench.reports(Topic.CALL_FAILED) == []


def test_a_worker_that_may_not_read_a_row_says_so():
    class Unreadable(Bench):
        def answer(self, effect):
            if isinstance(effect, FetchLease):
                return FetchFailed(effect.key, Problem.REFUSED, "AccessDenied: GetItem")
            return super().answer(effect)

    bench = Unreadable(Lease("child", parents=frozenset({"gone"}), hash_range=WHOLE))
    bench.start()
    bench.feed(FetchFailed("child", Problem.REFUSED, "AccessDenied: GetItem"))
    (report,) = bench.reports(Topic.CALL_FAILED)
    assert "GetItem" in report.message
