"""Several streams in one lease table: each is begun, followed and cleared away by itself, and all are balanced as one."""

from msgspec.structs import replace

from core.leases.coordinator_bench import LEFT, RIGHT, WHOLE, Bench
from penstock.core.leases.coordinator_effects import (
    ListShards,
    ScanTable,
    StartReader,
    Stopped,
    TableRefused,
    Topic,
)
from penstock.core.leases.coordinator_events import (
    CallFailed,
    LeaseCall,
    ListingDone,
    ListingPurpose,
    NotDone,
    Problem,
    ScanDone,
    ShardDrained,
    StopRequested,
)
from penstock.core.leases.coordinator_options import SharedStream
from penstock.core.leases.lease import (
    Lease,
    keyed_shard,
    keyed_start,
    lease_key,
    stream_id_of,
    stream_name_of,
)
from penstock.core.leases.lease_writes import Create
from penstock.core.position import LATEST, SHARD_END, TRIM_HORIZON, at_record, at_timestamp
from penstock.core.shard import ChildShard, Shard
from penstock.core.starting import StartingPosition
from penstock.core.stream_identity import StreamIdentity

ARN = "arn:aws:kinesis:eu-west-1:123456789012:stream/"
ORDERS = StreamIdentity(f"{ARN}orders", 1_700_000_000_999)
RETURNS = StreamIdentity(f"{ARN}returns", 1_700_000_001_000)
OF_ORDERS, OF_RETURNS = "123456789012:orders:1700000000", "123456789012:returns:1700000001"

FROM_START = StartingPosition(default=TRIM_HORIZON)


class StreamsBench(Bench):
    """A coordinator of two streams; each listing is answered with its stream's shards, or fails."""

    def __init__(self, *leases, starts=None, **options):
        starts = {OF_ORDERS: FROM_START, OF_RETURNS: FROM_START, **(starts or {})}
        streams = {
            OF_ORDERS: SharedStream(ORDERS, starts[OF_ORDERS]),
            OF_RETURNS: SharedStream(RETURNS, starts[OF_RETURNS]),
        }
        super().__init__(*leases, streams=streams, **{"cold_start_jitter_s": 0.0, **options})
        self.listings = {OF_ORDERS: (Shard("a", LEFT), Shard("b", RIGHT)), OF_RETURNS: (Shard("a", WHOLE),)}

    def answer(self, effect):
        if not isinstance(effect, ListShards):
            return super().answer(effect)
        listed = self.listings[effect.stream_id]
        if listed is None:
            return CallFailed(LeaseCall.LIST, Problem.REFUSED, "denied", stream_id=effect.stream_id)
        shards = tuple(keyed_shard(effect.stream_id, shard) for shard in listed)
        return ListingDone(effect.purpose, shards, 1000, effect.stream_id)


def row(stream_id, shard_id, span=WHOLE, **more):
    identity = {OF_ORDERS: ORDERS, OF_RETURNS: RETURNS}.get(stream_id)
    return Lease(lease_key(stream_id, shard_id), hash_range=span, stream=identity, **more)


def test_the_id_of_a_stream_is_account_name_and_whole_seconds_of_its_creation():
    assert (ORDERS.stream_id, RETURNS.stream_id) == (OF_ORDERS, OF_RETURNS)


def test_a_streams_name_is_in_the_ids_of_its_leases_where_the_table_has_several():
    names = [stream_name_of(stream_id_of(key)) for key in (f"{OF_ORDERS}:a", "a")]
    assert names == ["orders", ""]


def test_every_stream_of_an_empty_table_gets_its_first_leases_at_its_own_position():
    bench = StreamsBench(starts={OF_RETURNS: StartingPosition(default=at_timestamp(5000))})
    bench.at(1.0)
    assert {key: lease.checkpoint for key, lease in bench.table.rows.items()} == {
        f"{OF_ORDERS}:a": TRIM_HORIZON,
        f"{OF_ORDERS}:b": TRIM_HORIZON,
        f"{OF_RETURNS}:a": at_timestamp(5000),
    }
    assert {key: lease.stream for key, lease in bench.table.rows.items()} == {
        f"{OF_ORDERS}:a": ORDERS,
        f"{OF_ORDERS}:b": ORDERS,
        f"{OF_RETURNS}:a": RETURNS,
    }
    bench.at(30.0)
    assert {effect.key for effect in bench.of(StartReader)} == bench.table.rows.keys()


def test_what_is_known_of_a_streams_leases_keeps_its_order():
    streams = StreamsBench().machine._streams
    known = {
        row(stream_id, name).key: row(stream_id, name)
        for name in "dbac"
        for stream_id in (OF_RETURNS, OF_ORDERS)
    }
    assert [key[-1] for key in streams[OF_ORDERS].own_leases(known)] == list("dbac")


def test_each_stream_of_an_empty_table_waits_for_a_time_of_its_own():
    bench = StreamsBench(cold_start_jitter_s=5.0)
    bench.at(1.0)
    assert {effect.stream_id for effect in bench.of(ListShards)} == {OF_ORDERS}
    bench.at(5.0)
    assert {effect.stream_id for effect in bench.of(ListShards)} == {OF_ORDERS, OF_RETURNS}
    assert bench.table.rows.keys() == {f"{OF_ORDERS}:a", f"{OF_ORDERS}:b", f"{OF_RETURNS}:a"}


def test_a_stream_that_is_added_begins_beside_those_that_are_read():
    bench = StreamsBench(
        row(OF_ORDERS, "a", LEFT, checkpoint=at_record("7")),
        row(OF_ORDERS, "b", RIGHT, checkpoint=at_record("8")),
    )
    bench.at(30.0)
    assert [write.lease.key for write in bench.writes(Create)] == [f"{OF_RETURNS}:a"]
    assert {effect.key for effect in bench.of(StartReader)} == {
        f"{OF_ORDERS}:a",
        f"{OF_ORDERS}:b",
        f"{OF_RETURNS}:a",
    }


def test_a_stream_whose_shards_cannot_be_listed_holds_up_no_other():
    bench = StreamsBench()
    bench.listings[OF_ORDERS] = None
    bench.at(30.0)
    assert bench.table.rows.keys() == {f"{OF_RETURNS}:a"}
    assert {effect.key for effect in bench.of(StartReader)} == {f"{OF_RETURNS}:a"}
    (report, *_) = bench.reports(Topic.CALL_FAILED)
    assert OF_ORDERS in report.message


def test_a_stream_without_leases_does_not_make_part_scans_more_frequent():
    others = [row(OF_ORDERS, f"s{number}", owner=f"w{number % 30}", counter=1) for number in range(60)]
    bench = StreamsBench(*others, scanned_rows_per_s_max=150.0, cold_start_jitter_s=5.0)
    bench.listings[OF_RETURNS] = None
    bench.start()
    while bench.now < 120.0:
        bench.table.rows = {
            key: replace(lease, counter=lease.counter + 1) for key, lease in bench.table.rows.items()
        }
        bench.at(bench.now + 1.0)
    at_part = [look for look in bench.of(ScanTable) if look.part is not None and not look.part.is_whole_table]
    listings = [effect for effect in bench.of(ListShards) if effect.stream_id == OF_RETURNS]
    assert 10 <= len(at_part) <= 60
    assert listings
    bench.listings[OF_RETURNS] = (Shard("a", WHOLE),)
    bench.at(240.0)
    assert f"{OF_RETURNS}:a" in bench.table.rows


def test_a_worker_that_stops_does_not_wait_for_the_first_leases_of_a_stream():
    bench = StreamsBench(row(OF_ORDERS, "a", owner="me"), cold_start_jitter_s=5.0)
    bench.listings[OF_RETURNS] = None
    bench.start()
    assert bench.machine.lease_phases()
    bench.run(StopRequested())
    before = len(bench.of(ScanTable))
    bench.at(25.0)
    assert not bench.of(Stopped)
    assert len(bench.of(ScanTable)) - before <= 10


def test_named_shards_start_where_their_stream_says():
    start = keyed_start(OF_RETURNS, StartingPosition(default=TRIM_HORIZON, by_shard={"a": at_record("9")}))
    bench = StreamsBench(starts={OF_RETURNS: start})
    bench.at(1.0)
    assert bench.table.rows[f"{OF_RETURNS}:a"].checkpoint == at_record("9")
    assert bench.table.rows[f"{OF_ORDERS}:a"].checkpoint == TRIM_HORIZON


def test_children_are_created_in_their_own_stream_despite_equal_shard_ids():
    bench = StreamsBench(
        row(OF_ORDERS, "a", owner="me"), row(OF_RETURNS, "a", owner="me", checkpoint=at_record("5"))
    )
    bench.at(1.0)
    reader = next(effect for effect in bench.of(StartReader) if effect.key == f"{OF_ORDERS}:a")
    children = tuple(
        keyed_shard(OF_ORDERS, ChildShard(name, ("a",), span)) for name, span in (("l", LEFT), ("r", RIGHT))
    )
    bench.run(ShardDrained(f"{OF_ORDERS}:a", reader.epoch, children))
    bench.at(9.0)
    rows = bench.table.rows
    assert rows[f"{OF_ORDERS}:a"].checkpoint == SHARD_END
    assert rows[f"{OF_ORDERS}:l"].parents == {f"{OF_ORDERS}:a"}
    assert rows[f"{OF_ORDERS}:l"].stream == ORDERS
    assert rows[f"{OF_RETURNS}:a"].checkpoint == at_record("5")
    assert {effect.key for effect in bench.of(StartReader)} >= {f"{OF_ORDERS}:l", f"{OF_ORDERS}:r"}


def test_a_lease_that_was_read_to_its_end_is_deleted_in_its_own_stream_only():
    of_orders = (f"{OF_ORDERS}:a",)
    bench = StreamsBench(
        row(OF_ORDERS, "a", checkpoint=SHARD_END),
        row(OF_ORDERS, "l", LEFT, parents=frozenset(of_orders), checkpoint=at_record("7")),
        row(OF_ORDERS, "r", RIGHT, parents=frozenset(of_orders), checkpoint=at_record("8")),
        row(OF_RETURNS, "a", checkpoint=at_record("5")),
    )
    bench.at(120.0)
    assert bench.table.rows.keys() == {f"{OF_ORDERS}:l", f"{OF_ORDERS}:r", f"{OF_RETURNS}:a"}
    assert [report.key for report in bench.reports(Topic.DELETED)] == [f"{OF_ORDERS}:a"]


def test_a_row_that_cannot_be_read_is_missed_in_its_own_stream_only():
    bench = StreamsBench(
        row(OF_ORDERS, "b", RIGHT, checkpoint=at_record("8")), row(OF_RETURNS, "a", checkpoint=at_record("5"))
    )
    bench.damaged = {f"{OF_ORDERS}:a": "why"}
    bench.at(200.0)
    assert [report.key for report in bench.reports(Topic.ROW_DAMAGED)] == [f"{OF_ORDERS}:a"]
    assert {effect.stream_id for effect in bench.of(ListShards)} == {OF_ORDERS}
    assert bench.writes(Create) == []
    assert bench.machine.lease_phases().keys() == {f"{OF_ORDERS}:b", f"{OF_RETURNS}:a"}


def refilled_table(problem, parents_by_stream):
    """Return a bench with a deleted table that another worker refills, and the table's own way to write.

    The worker has created the lease of one child in some streams. No lease of orders can be created.

    Args:
        problem: Of each creation of a lease of orders.
        parents_by_stream: Of the child, by stream id.
    """
    bench = StreamsBench(
        row(OF_ORDERS, "a", LEFT, owner="other", checkpoint=at_record("5")),
        row(OF_ORDERS, "b", RIGHT, owner="other", checkpoint=at_record("6")),
        row(OF_RETURNS, "a", owner="other", checkpoint=at_record("7")),
    )
    bench.start()
    bench.table.rows = {
        lease_key(stream_id, "c"): row(
            stream_id, "c", parents=frozenset(lease_key(stream_id, parent) for parent in parents)
        )
        for stream_id, parents in parents_by_stream.items()
    }
    write = bench.table.write
    bench.table.write = lambda each: (
        NotDone(problem) if isinstance(each, Create) and each.key.startswith(OF_ORDERS) else write(each)
    )
    return bench, write


def test_a_stream_of_a_deleted_table_gets_its_leases_back_although_those_of_another_one_are_not_created():
    bench, write = refilled_table(Problem.THROTTLED, {OF_ORDERS: "ab", OF_RETURNS: "a"})
    bench.at(40.0)
    assert bench.table.rows[f"{OF_RETURNS}:a"].checkpoint == at_record("7")
    bench.table.write = write
    bench.at(60.0)
    assert [bench.table.rows[f"{OF_ORDERS}:{shard}"].checkpoint for shard in "ab"] == [
        at_record("5"),
        at_record("6"),
    ]


def test_a_stream_whose_leases_cannot_be_created_again_holds_up_no_other():
    bench, write = refilled_table(Problem.REFUSED, {OF_ORDERS: "ab"})
    bench.at(60.0)
    assert bench.table.rows[f"{OF_ORDERS}:c"].owner is None
    assert [(reader.key, reader.position) for reader in bench.of(StartReader)] == [
        (f"{OF_RETURNS}:a", at_record("7"))
    ]
    bench.table.write = write
    bench.at(90.0)
    assert {reader.key: reader.position for reader in bench.of(StartReader)} == {
        f"{OF_RETURNS}:a": at_record("7"),
        f"{OF_ORDERS}:a": at_record("5"),
        f"{OF_ORDERS}:b": at_record("6"),
    }


def test_a_hole_in_one_stream_is_filled_though_another_covers_its_hash_keys():
    bench = StreamsBench(
        row(OF_ORDERS, "a", LEFT, checkpoint=at_record("7")),
        row(OF_RETURNS, "a", checkpoint=at_record("5")),
        start=FROM_START,
    )
    bench.at(120.0)
    assert {effect.stream_id for effect in bench.of(ListShards)} == {OF_ORDERS}
    assert [write.lease.key for write in bench.writes(Create)] == [f"{OF_ORDERS}:b"]


def test_leases_that_are_gone_come_back_at_the_checkpoints_that_were_seen():
    bench = StreamsBench(
        row(OF_ORDERS, "a", checkpoint=at_record("7")), row(OF_RETURNS, "a", checkpoint=at_record("5"))
    )
    bench.at(1.0)
    gone = bench.table.rows.pop(f"{OF_RETURNS}:a")
    bench.at(30.0)
    assert bench.table.rows[f"{OF_RETURNS}:a"].checkpoint == gone.checkpoint
    assert f"{OF_ORDERS}:a" in bench.table.rows


def test_leases_of_streams_that_are_not_read_here_are_left_alone():
    former = row("123456789012:former:1600000000", "a", checkpoint=LATEST)
    bench = StreamsBench(row(OF_ORDERS, "a"), row(OF_RETURNS, "a"), former)
    bench.at(60.0)
    assert bench.table.rows[former.key] == former
    assert former.key not in {effect.key for effect in bench.of(StartReader)}
    assert bench.machine.stats.total_leases == 2


def test_a_stream_that_was_made_again_under_its_name_has_leases_of_its_own():
    older = row("123456789012:returns:1600000000", "a", checkpoint=at_record("5"))
    bench = StreamsBench(row(OF_ORDERS, "a"), older)
    bench.at(30.0)
    assert bench.table.rows[f"{OF_RETURNS}:a"].checkpoint == TRIM_HORIZON
    assert bench.table.rows[older.key] == older


def test_rows_of_a_java_worker_are_compared_with_the_shards_of_their_stream():
    bench = StreamsBench(
        row(OF_ORDERS, "a", LEFT), row(OF_ORDERS, "b", RIGHT), replace(row(OF_RETURNS, "a"), stream=None)
    )
    bench.at(30.0)
    comparing = [effect for effect in bench.of(ListShards) if effect.purpose is ListingPurpose.COMPARE]
    assert {effect.stream_id for effect in comparing} == {OF_RETURNS}
    assert f"{OF_RETURNS}:a" in {effect.key for effect in bench.of(StartReader)}
    assert bench.table.rows[f"{OF_RETURNS}:a"].stream == RETURNS


def test_a_stream_that_is_gone_is_not_listed_after_every_scan():
    former = replace(row(OF_RETURNS, "a"), stream=None)
    bench = StreamsBench(row(OF_ORDERS, "a", LEFT), row(OF_ORDERS, "b", RIGHT), former)
    bench.listings[OF_RETURNS] = None
    bench.at(1.0)
    for _ in range(10):
        bench.run(ScanDone(tuple(bench.table.rows.values())))
    of_returns = [effect for effect in bench.of(ListShards) if effect.stream_id == OF_RETURNS]
    assert len(of_returns) == 1
    bench.listings[OF_RETURNS] = (Shard("a", WHOLE),)
    bench.at(1.0 + 1.2 * bench.options.interval_s)
    assert f"{OF_RETURNS}:a" in {effect.key for effect in bench.of(StartReader)}


def test_a_table_of_one_stream_is_refused():
    bench = StreamsBench(row(OF_ORDERS, "a"), row("", "shardId-000000000000"))
    bench.start()
    (refused,) = bench.of(TableRefused)
    assert refused.foreign_lease.key == "shardId-000000000000"
    assert refused.foreign_lease.is_of_other_mode
    assert bench.of(Stopped)


def test_a_worker_of_one_stream_refuses_a_table_of_several():
    bench = Bench(row(OF_ORDERS, "a"), stream=ORDERS)
    bench.start()
    (refused,) = bench.of(TableRefused)
    assert "several streams" in refused.foreign_lease.why


def test_a_stream_of_another_region_is_refused_though_the_keys_are_the_same():
    elsewhere = replace(ORDERS, arn=ORDERS.arn.replace("eu-west-1", "us-east-1"))
    bench = StreamsBench(replace(row(OF_ORDERS, "a"), stream=elsewhere), row(OF_RETURNS, "a"))
    bench.start()
    (refused,) = bench.of(TableRefused)
    assert "us-east-1" in refused.foreign_lease.why
