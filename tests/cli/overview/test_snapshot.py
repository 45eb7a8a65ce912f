"""From leases to rows, events and a document."""

import json

from penstock.cli.lease_report import WatchedLease
from penstock.cli.overview.changes import changes_between
from penstock.cli.overview.shard_rows import LagWithChange, shard_rows, worker_rows
from penstock.cli.overview.snapshot import (
    ApplicationSnapshot,
    ShardRow,
    Snapshot,
    Trouble,
    WorkerRow,
    document_of,
)
from penstock.cli.overview.trouble import TroubleLimits
from penstock.core.hash_key import HASH_KEY_MAX, HashRange
from penstock.core.leases.lease import Lease, StopNote
from penstock.core.leases.lease_view import OwnerState
from penstock.core.position import SHARD_END
from penstock.core.shard import Shard
from penstock.core.shard_graph import ShardGraph
from penstock.runtime.shard_lags import ShardLag

HALF = 2**127
STREAM = (
    Shard("s0", HashRange(0, HALF - 1), ending_sequence_number="9"),
    Shard("s1", HashRange(HALF, HASH_KEY_MAX)),
    Shard("s2", HashRange(0, HALF // 2 - 1), ("s0",)),
    Shard("s3", HashRange(HALF // 2, HALF - 1), ("s0",)),
)


def rows_of(*leases, lags=None, state=OwnerState.ALIVE, graph=None):
    def state_of(lease):
        if lease.is_ended:
            return OwnerState.ENDED
        return OwnerState.UNOWNED if lease.reader is None else state

    watched_leases = [WatchedLease(lease, state_of(lease), 1.0) for lease in leases]
    rows = shard_rows(watched_leases, lags or {}, {}, graph or ShardGraph(), TroubleLimits())
    return {row.shard: row for row in rows}


def test_a_hand_over_names_who_reads_and_who_is_next():
    rows = rows_of(Lease("s0", owner="new", checkpoint_owner="old"))
    assert (rows["s0"].state, rows["s0"].owner, rows["s0"].next_owner) == ("handing over", "old", "new")


def test_a_hand_over_by_a_worker_that_does_not_live_is_a_silent_owner():
    rows = rows_of(Lease("s0", owner="new", checkpoint_owner="old"), state=OwnerState.EXPIRED)
    assert rows["s0"].trouble is Trouble.SILENT


def test_a_stopped_shard_is_told_with_the_reason_of_its_reader_only():
    rows = rows_of(
        Lease("s0", owner="w", stop_note=StopNote("w", "handler_failed")),
        Lease("s1", owner="java", stop_note=StopNote("w", "handler_failed")),
    )
    assert (rows["s0"].trouble, rows["s0"].stopped_reason) == (Trouble.STOPPED, "handler_failed")
    assert rows["s1"].trouble is Trouble.NONE


def test_a_rate_is_that_of_whoever_reads_now():
    rows = rows_of(
        Lease("s0", owner="w", throughput_kbps=5.0),
        Lease("s1", owner="w", throughput_kbps=5.0, stop_note=StopNote("w", "handler_failed")),
        Lease("s2", throughput_kbps=5.0),
        Lease("s3", owner="w", throughput_kbps=5.0, checkpoint=SHARD_END),
    )
    assert {key: row.kb_per_s for key, row in rows.items()} == {"s0": 5.0, "s1": None, "s2": None, "s3": None}


def test_a_shard_without_a_lease_is_trouble_only_if_the_lease_could_be_made():
    graph = ShardGraph(STREAM)
    waiting = rows_of(Lease("s0", owner="w"), Lease("s1", owner="w"), graph=graph)
    assert waiting.keys() == {"s0", "s1"}
    lacking = rows_of(Lease("s0", checkpoint=SHARD_END), Lease("s1", owner="w"), graph=graph)
    assert {key for key, row in lacking.items() if row.trouble is Trouble.NO_LEASE} == {"s2", "s3"}
    assert rows_of(graph=graph) == {}


def test_a_refused_read_of_ours_is_told_beside_the_lag():
    rows = rows_of(
        Lease("s0", owner="w"), lags={"s0": LagWithChange(ShardLag("s0", 5, refused_count=1), 0.5)}
    )
    assert (rows["s0"].lag_ms, rows["s0"].lag_change, rows["s0"].trouble) == (5, 0.5, Trouble.THROTTLED)


def test_workers_are_counted_by_whom_reads_and_not_for_what_is_ended():
    rows = [
        ShardRow("a", "read", "eu-1a/w1", lag_ms=5),
        ShardRow("b", "stopped", "eu-1a/w1", lag_ms=9, trouble=Trouble.STOPPED),
        ShardRow("c", "read", "w2"),
        ShardRow("d", "ended", "w2"),
        ShardRow("e", "unowned"),
    ]
    assert worker_rows(rows) == (WorkerRow("eu-1a/w1", 2, 1, 9, "eu-1a"), WorkerRow("w2", 1, 0, None, "-"))


# --- events -----------------------------------------------------------------------------------------------


def snapshot(*rows, at_ms=0, lineage=()):
    return ApplicationSnapshot("a", "s", at_ms, rows, worker_rows(rows), lineage)


def told(before, after):
    return [(event.shard, event.text) for event in changes_between(before, after)]


def test_two_equal_looks_tell_of_nothing():
    rows = [ShardRow("s0", "read", "w"), ShardRow("s1", "ended")]
    assert told(snapshot(*rows), snapshot(*rows, at_ms=1)) == []


def test_what_happens_to_a_shard_is_told_once():
    before = snapshot(
        ShardRow("s0", "read", "w1"),
        ShardRow("s1", "read", "w1"),
        ShardRow("s2", "read", "w1"),
        ShardRow("s3", "unowned"),
        ShardRow("s4", "stopped", "w1", stopped_reason="x"),
        ShardRow("s5", "no lease"),
        ShardRow("s6", "ended"),
        ShardRow("s7", "read", "w1"),
        ShardRow("s8", "read", "w1"),
    )
    after = snapshot(
        ShardRow("s0", "ended"),
        ShardRow("s1", "handing over", "w1", "w2"),
        ShardRow("s2", "stopped", "w1", stopped_reason="handler_failed"),
        ShardRow("s3", "read", "w2"),
        ShardRow("s4", "read", "w1"),
        ShardRow("s5", "read", "w1"),
        ShardRow("s7", "read", "w2"),
        ShardRow("s8", "unowned"),
        ShardRow("s9", "owner silent", "w1"),
        at_ms=7,
    )
    assert told(before, after) == [
        ("s0", "read to its end"),
        ("s1", "w1 hands it over to w2"),
        ("s2", "w1 has stopped reading it: handler_failed"),
        ("s3", "w2 reads it"),
        ("s4", "it is read again"),
        ("s5", "its lease was made; w1 reads it"),
        ("s6", "its finished lease was removed"),
        ("s7", "went from w1 to w2"),
        ("s8", "w1 gave it back"),
        ("s9", "its lease was made; w1 reads it"),
        (None, "worker w2 has leases"),
    ]
    assert {event.at_ms for event in changes_between(before, after)} == {7}


def test_new_shards_of_the_stream_and_workers_that_go_are_told():
    row = ShardRow("s0", "read", "w1")
    after = snapshot(ShardRow("s0", "owner silent", "w1"), lineage=STREAM)
    assert told(snapshot(row, lineage=STREAM[:2]), after) == [
        ("s0", "w1 does not renew its lease"),
        ("s2", "the stream has a new shard, from s0"),
        ("s3", "the stream has a new shard, from s0"),
    ]
    assert told(snapshot(row), snapshot(ShardRow("s0", "unowned")))[-1] == (
        None,
        "worker w1 has no lease any more",
    )


def test_a_lease_that_is_deleted_before_its_time_is_told():
    assert told(
        snapshot(ShardRow("s0", "read", "w"), ShardRow("s1", "unowned")),
        snapshot(ShardRow("s0", "read", "w")),
    ) == [("s1", "its lease was deleted")]


def test_a_look_that_could_not_read_the_table_tells_of_no_deletion():
    assert told(snapshot(ShardRow("s0", "read", "w")), snapshot()) == []


def test_a_document_holds_what_was_seen():
    rows = (
        ShardRow("s0", "stopped", "w", lag_ms=5, trouble=Trouble.STOPPED, why="x (more)", stopped_reason="x"),
    )
    seen = Snapshot(1_000, (snapshot(*rows, at_ms=1_000, lineage=STREAM),), ("p",))
    document = json.loads(json.dumps(document_of(seen)))
    assert document["taken_at"] == "1970-01-01T00:00:01.000+00:00"
    assert document["problems"] == ["p"]
    (application,) = document["applications"]
    assert (application["trouble"], application["shards_in_trouble"]) == ("stopped", 1)
    assert application["shards"][0]["stopped_reason"] == "x"
    assert application["workers"][0]["leases"] == 1
    assert application["lineage"][2]["parents"] == ["s0"]
