"""Leases of another stream under this application's name, and rows that do not name their stream."""

from msgspec.structs import replace

from core.leases.coordinator_bench import LEFT, RIGHT, WHOLE, Bench
from penstock.core.leases.coordinator_effects import (
    ListShards,
    StartReader,
    Stopped,
    StopReader,
    StopWhy,
    TableRefused,
    Topic,
    WriteLease,
)
from penstock.core.leases.coordinator_events import (
    ListingPurpose,
    NotDone,
    Problem,
    ScanDone,
    ShardDrained,
    TableReady,
    Tick,
    WriteDone,
)
from penstock.core.leases.held_lease_phases import LeasePhase
from penstock.core.leases.lease import Lease
from penstock.core.leases.lease_writes import Create, Renew, Take
from penstock.core.position import LATEST, SHARD_END, TRIM_HORIZON, Position, Sentinel, at_record
from penstock.core.shard import ChildShard, Shard
from penstock.core.starting import StartingPosition
from penstock.core.stream_identity import StreamIdentity

ORDERS = StreamIdentity("arn:orders", 1000)
RETURNS = StreamIdentity("arn:returns", 1000)


TWO = (Shard("a", LEFT), Shard("b", RIGHT))


def bench_of(*leases, listing=TWO, **options):
    bench = Bench(*leases, stream=ORDERS, **options)
    bench.listing = listing
    return bench


def lease(key, span, stream=None, **more):
    return Lease(key, hash_range=span, stream=stream, **more)


def test_a_lease_of_another_stream_is_refused_before_anything_is_taken():
    bench = bench_of(lease("a", LEFT, RETURNS), lease("b", RIGHT, ORDERS))
    bench.start()
    (refused,) = bench.of(TableRefused)
    assert refused.foreign_lease.key == "a"
    assert "arn:returns" in refused.foreign_lease.why
    assert [effect for effect in bench.seen if isinstance(effect, WriteLease)] == []
    assert bench.of(Stopped) == [Stopped()]


def test_a_stream_that_was_deleted_and_made_again_is_another_one():
    bench = bench_of(lease("a", LEFT, StreamIdentity("arn:orders", 999)))
    bench.start()
    assert "deleted and created again" in bench.of(TableRefused)[0].foreign_lease.why


def test_a_foreign_lease_that_appears_later_ends_a_running_worker_gracefully():
    bench = bench_of(lease("a", WHOLE))
    bench.listing = (Shard("a", WHOLE),)
    bench.start()
    assert bench.machine.lease_phases() == {"a": LeasePhase.READING}
    bench.table.rows["b"] = lease("b", RIGHT, RETURNS)
    bench.at(10.0)
    assert len(bench.of(TableRefused)) == 1
    assert bench.of(StopReader) == [StopReader("a", 1, StopWhy.SHUTDOWN)]


def test_rows_without_a_stream_are_compared_with_one_listing_and_then_taken():
    bench = bench_of(lease("a", LEFT), lease("b", RIGHT))
    bench.start()
    assert [effect.purpose for effect in bench.of(ListShards)] == [ListingPurpose.COMPARE]
    assert bench.machine.lease_phases() == {"a": LeasePhase.READING, "b": LeasePhase.READING}
    assert {row.stream for row in bench.table.rows.values()} == {ORDERS}
    bench.at(60.0)
    assert len(bench.of(ListShards)) == 1


def test_nothing_of_unknown_origin_is_taken_or_renewed_while_no_listing_has_come():
    bench = bench_of(lease("a", LEFT), lease("b", RIGHT, ORDERS), lease("c", RIGHT, owner="me"))
    bench.feed(Tick())
    bench.feed(TableReady())
    effects = bench.feed(ScanDone(tuple(bench.table.rows.values())))
    writes = [effect.write for effect in effects if isinstance(effect, WriteLease)]
    assert [write.key for write in writes] == ["b"]


def test_a_shard_of_the_same_name_with_another_hash_range_shows_another_stream():
    bench = bench_of(lease("a", RIGHT, owner="java", counter=5))
    bench.start()
    (refused,) = bench.of(TableRefused)
    assert "hash keys" in refused.foreign_lease.why


def test_a_row_that_a_java_worker_makes_later_is_compared_too():
    bench = bench_of(lease("a", LEFT, ORDERS), listing=(Shard("a", LEFT), Shard("b", RIGHT)))
    bench.start()
    bench.table.rows["b"] = lease("b", LEFT, owner="java", counter=1)
    bench.at(10.0)
    assert bench.of(TableRefused)[0].foreign_lease.key == "b"


def test_a_lease_that_is_held_counts_also_where_a_look_shows_its_row_as_it_was_before():
    bench = bench_of(lease("a", WHOLE, ORDERS), listing=(Shard("a", WHOLE),))
    bench.start()
    epoch = next(effect.epoch for effect in bench.of(StartReader))
    made_by_java = bench.table.rows["c"] = lease("c", WHOLE, parents=frozenset({"a"}))
    bench.run(ShardDrained("a", epoch, (ChildShard("c", ("a",), WHOLE),)))
    assert bench.machine.lease_phases() == {"c": LeasePhase.READING}
    bench.feed(ScanDone((bench.table.rows["a"], made_by_java), began_s=-1.0))  # it began before the take
    assert bench.machine.view.rows_set_aside == frozenset()
    assert bench.machine.stats.total_leases == 1
    assert bench.of(ListShards) == []


def test_every_lease_that_is_created_names_its_stream():
    bench = bench_of()
    bench.start()
    bench.at(bench.options.cold_start_jitter_s)
    children = (ChildShard("c", ("a",), LEFT),)
    epoch = next(effect.epoch for effect in bench.of(StartReader) if effect.key == "a")
    bench.run(ShardDrained("a", epoch, children))
    assert [write.lease.key for write in bench.writes(Create)] == ["a", "b", "c"]
    assert {row.stream for row in bench.table.rows.values()} == {ORDERS}


def test_two_workers_of_two_streams_that_start_together_do_not_fill_one_table():
    bench = bench_of()
    bench.start()
    bench.slow = (Create,)
    bench.at(bench.options.cold_start_jitter_s)
    (create,) = [effect for effect in bench.seen if isinstance(effect, WriteLease)]
    bench.table.rows["a"] = replace(create.write.lease, stream=RETURNS)
    bench.run(WriteDone(create.write_id, create.write, bench.table.write(create.write)))
    bench.at(20.0)
    assert set(bench.table.rows) == {"a"}
    assert len(bench.of(TableRefused)) == 1


def test_a_held_row_gets_its_stream_with_the_next_renewal():
    bench = bench_of(lease("a", WHOLE, owner="me", counter=4), listing=(Shard("a", WHOLE),))
    bench.start()
    assert bench.writes(Renew) == [Renew("a", 4, "me", stream=ORDERS)]
    bench.at(9.0)
    assert {write.stream for write in bench.writes(Renew)[1:]} == {None}


# --- a LATEST of a Java worker ----------------------------------------------------------------------------


def test_a_latest_without_a_moment_gets_the_moment_at_which_it_is_first_taken():
    bench = bench_of(lease("a", WHOLE, checkpoint=LATEST), listing=(Shard("a", WHOLE),))
    bench.start()
    assert bench.writes(Take) == [Take("a", 0, "me", 1000, ORDERS)]
    assert bench.table.rows["a"].checkpoint == Position(sentinel=Sentinel.LATEST, timestamp_ms=1000)
    assert bench.of(StartReader)[0].position.timestamp_ms == 1000


def test_the_moment_of_a_lease_that_is_taken_later_is_that_of_the_take():
    bench = bench_of(
        lease("a", WHOLE, checkpoint=LATEST, owner="java", counter=1), listing=(Shard("a", WHOLE),)
    )
    bench.start()
    bench.at(12.0)
    (take,) = bench.writes(Take)
    assert 10_000 <= take.pin_ms - 1000 <= 12_000


def test_a_latest_in_this_workers_own_name_gets_its_moment_too():
    bench = bench_of(
        lease("a", WHOLE, checkpoint=LATEST, owner="me", counter=1), listing=(Shard("a", WHOLE),)
    )
    bench.start()
    assert bench.table.rows["a"].checkpoint.timestamp_ms == 1000


# --- an emptied table -------------------------------------------------------------------------------------


def test_an_application_whose_leases_cannot_be_made_again_at_once_is_no_new_one():
    bench = Bench(
        Lease("s", counter=3, owner="other", checkpoint=at_record("7"), hash_range=WHOLE),
        start=StartingPosition(default=LATEST),
    )
    bench.listing = (Shard("s", WHOLE),)
    bench.start()
    bench.table.rows.clear()
    bench.slow = (Create,)
    for _ in range(12):
        bench.at(bench.now + 4.0)
        pending = [
            effect
            for effect in bench.seen
            if isinstance(effect, WriteLease) and isinstance(effect.write, Create)
        ]
        bench.seen.clear()
        for effect in pending:
            bench.run(WriteDone(effect.write_id, effect.write, NotDone(Problem.THROTTLED)))
    bench.slow = ()
    bench.at(bench.now + 30.0)
    assert bench.table.rows["s"].checkpoint == at_record("7")
    assert bench.machine.lease_phases() == {"s": LeasePhase.READING}


def test_when_the_last_rows_vanish_what_the_stream_lists_is_read_from_its_beginning():
    bench = Bench(
        Lease("old", counter=3, checkpoint=SHARD_END, hash_range=WHOLE),
        start=StartingPosition(default=LATEST),
    )
    bench.listing = (Shard("new", WHOLE, ("old",), "5"),)
    bench.start()
    bench.table.rows.clear()
    bench.at(90.0)
    assert bench.table.rows["new"].checkpoint == TRIM_HORIZON
    assert bench.machine.lease_phases()["new"] is LeasePhase.READING
    assert bench.reports(Topic.TABLE_GONE)
