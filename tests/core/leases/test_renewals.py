"""How often leases are renewed by who holds many, and what becomes of those that are renewed too late."""

import pytest

from core.leases.coordinator_bench import Bench
from penstock.core.hash_key import HASH_KEY_MAX, HashRange
from penstock.core.leases.coordinator_effects import ScanTable, StopReader, StopWhy, Topic, WriteLease
from penstock.core.leases.coordinator_events import (
    CallFailed,
    LeaseCall,
    NotDone,
    Problem,
    Tick,
    WriteDone,
)
from penstock.core.leases.coordinator_options import RENEWALS_PER_S_MAX, TERM_MAX_S
from penstock.core.leases.lease import Lease, LeaseTerm
from penstock.core.leases.lease_writes import Renew


def holding(count, **options):
    edges = [(HASH_KEY_MAX + 1) * number // count for number in range(count + 1)]
    leases = [
        Lease(f"s{number}", hash_range=HashRange(edges[number], edges[number + 1] - 1))
        for number in range(count)
    ]
    bench = Bench(*leases, **options)
    bench.start()
    assert len(bench.machine.lease_phases()) == count
    return bench


def let_writes_fail_until(bench, until_s):
    """Advance the time with a table that refuses every call for now."""
    while bench.machine.next_wake_s <= until_s:
        bench.now = max(bench.now, bench.machine.next_wake_s)
        for effect in bench.feed(Tick()):
            if isinstance(effect, WriteLease):
                bench.feed(WriteDone(effect.write_id, effect.write, NotDone(Problem.THROTTLED)))
            elif isinstance(effect, ScanTable):
                bench.feed(CallFailed(LeaseCall.SCAN, Problem.THROTTLED))


@pytest.mark.parametrize(
    ("count", "term_ms"),
    [(100, None), (400, 24_000), (3000, round(TERM_MAX_S * 1000))],
)
def test_a_query_renews_many_leases_less_often_and_says_so_on_them(count, term_ms):
    bench = holding(count, keeps_claims=True)
    bench.at(15.0)
    terms = {row.term for row in bench.table.rows.values()}
    assert terms == {None if term_ms is None else LeaseTerm("me", term_ms)}
    begun = len(bench.writes(Renew))
    bench.at(15.0 + 2 * TERM_MAX_S)
    rate = (len(bench.writes(Renew)) - begun) / (2 * TERM_MAX_S)
    longest_s = (term_ms or 10_000) / 3000
    assert count / longest_s <= rate <= 1.3 * count / longest_s
    assert bench.reports(Topic.LATE_RENEWALS) == []
    assert count > TERM_MAX_S * RENEWALS_PER_S_MAX / 3 or rate <= 1.3 * RENEWALS_PER_S_MAX


def test_a_consumer_renews_any_number_of_leases_within_the_lease_duration():
    bench = holding(400)
    bench.at(30.0)
    assert {row.term for row in bench.table.rows.values()} == {None}
    assert len(bench.writes(Renew)) >= 400 * 8


def test_a_query_keeps_late_leases_and_warns_once_per_lease_duration():
    bench = holding(50, keeps_claims=True)
    let_writes_fail_until(bench, 29.0)
    assert len(bench.machine.lease_phases()) == 50
    assert bench.of(StopReader) == []
    bench.at(45.0)  # the table answers again
    late = [report.message for report in bench.reports(Topic.LATE_RENEWALS)]
    assert 1 <= len(late) <= 2  # one in a lease duration
    assert late[-1].startswith("50 of 50 leases have not been renewed within their duration")
    bench.at(90.0)
    assert len(bench.reports(Topic.LATE_RENEWALS)) == len(late)


def test_a_query_loses_a_late_lease_once_another_worker_has_taken_it():
    bench = holding(2, keeps_claims=True)
    let_writes_fail_until(bench, 29.0)
    taken = bench.table.rows["s1"]
    bench.table.rows["s1"] = Lease("s1", taken.counter + 1, "other", hash_range=taken.hash_range)
    bench.at(35.0)
    assert [effect.key for effect in bench.of(StopReader) if effect.why is StopWhy.LOST] == ["s1"]


def test_leases_that_expire_together_are_reported_together():
    bench = holding(300)
    let_writes_fail_until(bench, 40.0)
    assert len(bench.of(StopReader)) == 300
    lines = [report.message for report in bench.reports(Topic.LOST)]
    assert len(lines) <= 6
    assert any("leases (" in line and "could not be renewed in time" in line for line in lines)
