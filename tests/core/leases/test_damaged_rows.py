"""Rows of the lease table that are not leases, cannot be read, or cannot be right."""

import pytest
from msgspec.structs import replace

from core.leases.coordinator_bench import LEFT, RIGHT, WHOLE, Bench
from penstock.core.leases.coordinator_effects import Level, StartReader, StopReader, StopWhy, Topic
from penstock.core.leases.coordinator_events import ReaderStopped
from penstock.core.leases.held_lease_phases import LeasePhase
from penstock.core.leases.lease import Lease
from penstock.core.leases.lease_writes import Create, Delete, Take
from penstock.core.position import at_record
from penstock.core.shard import Shard
from penstock.core.shard_graph import find_cycles


def lease(key, *parents, owner=None, span=WHOLE, counter=1):
    return Lease(key, counter=counter, owner=owner, parents=frozenset(parents), hash_range=span)


# --- lineage that cannot be -------------------------------------------------------------------------------


def test_a_lease_that_names_itself_as_its_parent_is_read_and_reported_once():
    bench = Bench(lease("s", "s"))
    bench.start()
    assert bench.machine.lease_phases() == {"s": LeasePhase.READING}
    bench.at(60.0)
    (report,) = bench.reports(Topic.ROW_DAMAGED)
    assert (report.level, report.key) == (Level.ERROR, "s")
    assert "descends from itself by its parentShardId (s)" in report.message


def test_leases_that_name_each_other_as_parents_are_read_and_what_follows_them_waits():
    bench = Bench(
        lease("a", "b", span=LEFT), lease("b", "a", span=RIGHT), lease("after", "a", span=LEFT, owner="me")
    )
    bench.start()
    assert bench.machine.lease_phases() == {
        "a": LeasePhase.READING,
        "b": LeasePhase.READING,
        "after": LeasePhase.WAITING,
    }
    assert [report.key for report in bench.reports(Topic.ROW_DAMAGED)] == ["a", "b"]


@pytest.mark.parametrize(
    ("parents_of", "expected"),
    [
        ({}, set()),
        ({"b": {"a"}, "c": {"a"}, "d": {"b", "c"}}, set()),
        ({"a": {"a"}}, {"a"}),
        ({"a": {"c"}, "b": {"a"}, "c": {"b"}, "before": {"old"}, "after": {"c", "before"}}, {"a", "b", "c"}),
    ],
)
def test_cycles_are_found(parents_of, expected):
    assert find_cycles(parents_of) == expected


# --- rows that cannot be read -----------------------------------------------------------------------------


def test_a_row_that_is_damaged_while_held_is_not_reported_as_deleted():
    bench = Bench(lease("s"))
    bench.start()
    bench.at(4.0)
    bench.damaged = {"s": "'somewhere' is not a sequence number"}
    bench.at(120.0)
    (report,) = bench.reports(Topic.ROW_DAMAGED)
    assert (report.level, report.key) == (Level.ERROR, "s")
    assert "cannot be read as a lease: 'somewhere' is not a sequence number" in report.message
    assert StopReader("s", 1, StopWhy.EXPIRED) in bench.seen
    assert bench.reports(Topic.ROW_GONE) == bench.reports(Topic.HOLE) == bench.reports(Topic.TABLE_GONE) == []
    assert bench.writes(Create) == []
    bench.damaged = {**bench.damaged, "notes.txt": "is not a lease"}
    bench.at(150.0)
    assert bench.machine.describe_damaged_leases() == (
        "the row of lease s cannot be read: 'somewhere' is not a sequence number",
    )


def test_a_row_that_was_put_right_is_read_again():
    bench = Bench(lease("s"))
    bench.start()
    bench.damaged = {"s": "why"}
    bench.at(60.0)
    assert bench.machine.lease_phases() == {}
    bench.run(ReaderStopped("s", 1, None))
    bench.damaged = {}
    bench.table.rows["s"] = replace(bench.table.rows["s"], checkpoint=at_record("7"))
    bench.at(90.0)
    assert bench.machine.lease_phases() == {"s": LeasePhase.READING}
    assert bench.machine.describe_damaged_leases() == ()
    assert bench.of(StartReader)[-1].position == at_record("7")


def test_another_workers_row_that_is_damaged_is_neither_taken_nor_made_again():
    bench = Bench(lease("s", owner="other", span=LEFT), lease("t", span=RIGHT))
    bench.start()
    bench.damaged = {"s": "why"}
    bench.listing = (Shard("s", LEFT), Shard("t", RIGHT))
    bench.at(120.0)
    assert {write.key for write in bench.writes(Take)} == {"t"}
    assert bench.writes(Create) == []
    assert [report.key for report in bench.reports(Topic.ROW_DAMAGED)] == ["s"]


def test_a_row_that_was_always_damaged_is_reported_when_its_shard_is_listed():
    bench = Bench(lease("t", span=RIGHT))
    bench.damaged = {"s": "why", "Leader": "its entityType is LEADER"}
    bench.listing = (Shard("s", LEFT), Shard("t", RIGHT))
    bench.start()
    bench.at(200.0)
    assert [report.key for report in bench.reports(Topic.ROW_DAMAGED)] == ["s"]
    assert "Leader" in {report.key for report in bench.reports(Topic.ROW_SKIPPED)}
    assert len(bench.reports(Topic.HOLE)) == 1
    assert bench.writes(Create) == bench.writes(Delete) == []
    assert bench.machine.lease_phases() == {"t": LeasePhase.READING}


def test_of_many_rows_that_are_no_leases_some_are_reported_and_each_damaged_lease():
    bench = Bench(lease("t", span=RIGHT))
    bench.damaged = {f"foreign-{number:04}": "it is not a lease" for number in range(5000)} | {"s": "why"}
    bench.listing = (Shard("s", LEFT), Shard("t", RIGHT))
    bench.start()
    bench.at(200.0)
    reports = bench.reports(Topic.ROW_SKIPPED)
    named, last = reports[:-1], reports[-1]
    assert len({report.key for report in named}) == len(named) == 20
    assert last.message == (
        "more than 20 rows of the lease table are not leases. Further ones are left alone without a report"
    )
    assert [report.key for report in bench.reports(Topic.ROW_DAMAGED)] == ["s"]


def test_a_table_whose_only_lease_is_damaged_is_no_new_application():
    bench = Bench()
    bench.damaged = {"s": "why"}
    bench.listing = (Shard("s", WHOLE),)
    bench.start()
    bench.at(60.0)
    assert bench.writes(Create) == []
    assert [report.key for report in bench.reports(Topic.ROW_DAMAGED)] == ["s"]


def test_rows_of_another_kind_do_not_keep_an_application_from_starting():
    bench = Bench()
    bench.damaged = {"Leader": "its entityType is LEADER"}
    bench.listing = (Shard("s", WHOLE),)
    bench.start()
    bench.at(30.0)
    assert bench.machine.lease_phases() == {"s": LeasePhase.READING}
