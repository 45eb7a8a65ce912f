"""The problem of each shard, and the order of rows."""

import pytest

from penstock.cli.overview.cells import application_cells
from penstock.cli.overview.snapshot import ApplicationSnapshot, ShardRow, Trouble, application_document
from penstock.cli.overview.trouble import TroubleLimits, sort_applications, trouble_of, with_troubles

LIMITS = TroubleLimits(lag_s=60, checkpoint_unmoved_s=120)


@pytest.mark.parametrize(
    ("facts", "trouble"),
    [
        ({}, Trouble.NONE),
        ({"state": "stopped", "lag_ms": 90_000}, Trouble.STOPPED),
        ({"state": "owner silent"}, Trouble.SILENT),
        ({"state": "unowned"}, Trouble.UNOWNED),
        ({"state": "no lease"}, Trouble.NO_LEASE),
        ({"state": "ended", "lag_ms": 90_000, "is_throttled": True}, Trouble.NONE),
        ({"state": "handing over"}, Trouble.NONE),
        ({"lag_ms": 60_000}, Trouble.NONE),
        ({"lag_ms": 60_001}, Trouble.BEHIND),
        ({"lag_ms": 60_001, "checkpoint_unmoved_s": 119.9}, Trouble.BEHIND),
        ({"lag_ms": 60_001, "checkpoint_unmoved_s": 120}, Trouble.CHECKPOINT_UNMOVED),
        ({"lag_ms": 0, "checkpoint_unmoved_s": 9999}, Trouble.NONE),
        ({"lag_ms": 60_001, "is_throttled": True}, Trouble.THROTTLED),
        ({"state": "waits for parents", "waits_for_parents": True, "lag_ms": 90_000}, Trouble.NONE),
        (
            {
                "state": "owned, waits",
                "waits_for_parents": True,
                "lag_ms": 90_000,
                "checkpoint_unmoved_s": 999,
            },
            Trouble.NONE,
        ),
        ({"why_lag_unknown": "AccessDenied"}, Trouble.UNKNOWN),
    ],
)
def test_the_worst_that_is_wrong_with_a_shard(facts, trouble):
    assert trouble_of(ShardRow("s", **{"state": "read", "owner": "w", **facts}), LIMITS) is trouble


def test_what_is_wrong_is_said_with_names_and_numbers():
    rows = [
        ShardRow("a", "stopped", "w1", stopped_reason="handler_failed: ValueError"),
        ShardRow("b", "owner silent", "w2", unmoved_s=31.4),
        ShardRow("c", "read", "w3", lag_ms=75_000, lag_change=1.0),
        ShardRow("d", "read", "w3", lag_ms=74_000, lag_change=-0.5),
        ShardRow("e", "read", "w3", lag_ms=73_000, lag_change=0.01),
        ShardRow("f", "read", "w3", lag_ms=500_000, checkpoint_unmoved_s=300),
        ShardRow("g", "read", "w3"),
    ]
    why = {row.shard: row.why for row in with_troubles(rows, LIMITS)}
    assert why["a"] == "handler_failed: ValueError (more in the log of w1)"
    assert why["b"].startswith("w2 has not renewed the lease for 31 s")
    assert why["c"] == "its oldest unread record is 75 s old, and the lag grows"
    assert why["d"] == "its oldest unread record is 74 s old, and the lag shrinks"
    assert why["e"] == "its oldest unread record is 73 s old"
    assert why["f"].startswith("w3 renews the lease, and the checkpoint has not moved for 300 s")
    assert not why["g"]


def test_trouble_comes_first_then_the_lag_and_what_is_ended_last():
    rows = [
        ShardRow("ended", "ended"),
        ShardRow("fine", "read", "w", lag_ms=10),
        ShardRow("later", "read", lag_ms=20),
        ShardRow("behind", "read", lag_ms=70_000),
        ShardRow("further behind", "read", lag_ms=80_000),
        ShardRow("without", "unowned"),
        ShardRow("stopped", "stopped", stopped_reason="x"),
    ]
    assert [row.shard for row in with_troubles(rows, LIMITS)] == [
        "stopped",
        "without",
        "further behind",
        "behind",
        "later",
        "fine",
        "ended",
    ]


def test_an_application_that_cannot_be_read_comes_before_one_with_a_stopped_shard():
    stopped = ApplicationSnapshot("b", None, 0, with_troubles([ShardRow("s", "stopped")], LIMITS))
    unread = ApplicationSnapshot("z", None, 0, problems=("no permission",))
    fine = ApplicationSnapshot("a", None, 0, with_troubles([ShardRow("s", "read", lag_ms=1)], LIMITS))
    later = ApplicationSnapshot("c", None, 0, with_troubles([ShardRow("s", "read", lag_ms=2)], LIMITS))
    found = sort_applications([fine, stopped, later, unread])
    assert [snapshot.application for snapshot in found] == ["z", "b", "c", "a"]


GIVEN_BACK = [ShardRow("a", "ended"), ShardRow("b", "unowned", lag_ms=90_000), ShardRow("c", "no lease")]


def snapshot_of(*rows):
    return ApplicationSnapshot("app", "s", 0, with_troubles(rows, LIMITS))


def test_an_application_whose_workers_have_ended_on_purpose_is_in_no_trouble():
    snapshot = snapshot_of(*GIVEN_BACK)
    assert [row.trouble for row in snapshot.shards] == [Trouble.IDLE, Trouble.IDLE, Trouble.NONE]
    assert (snapshot.trouble_count, snapshot.state) == (0, "no worker runs")
    assert snapshot.shards[0].why == "the workers have ended and given their leases back"
    assert application_cells(snapshot)[2] == "no worker runs"
    document = application_document(snapshot)
    assert (document["state"], document["trouble"]) == ("no worker runs", None)


@pytest.mark.parametrize("other", [ShardRow("d", "read", "w"), ShardRow("d", "owner silent", "w")])
def test_an_application_of_which_a_worker_runs_or_died_is_in_trouble(other):
    snapshot = snapshot_of(*GIVEN_BACK, other)
    assert {"b": Trouble.UNOWNED, "c": Trouble.NO_LEASE}.items() <= {
        r.shard: r.trouble for r in snapshot.shards
    }.items()
    assert snapshot.state == "running"


def test_an_application_that_has_read_every_shard_to_its_end_is_finished():
    snapshot = snapshot_of(ShardRow("a", "ended"), ShardRow("b", "ended", "w"))
    assert (snapshot.trouble_count, snapshot.state, application_cells(snapshot)[2]) == (
        0,
        "finished",
        "finished",
    )
    assert snapshot_of(ShardRow("a", "read", "w")).state == "running"
