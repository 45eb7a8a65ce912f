"""The checks of a mixed fleet find what they are for."""

from __future__ import annotations

import pytest
from company import TABLE
from company_checks import Began, CompanyHistory, Processed
from counterparts import Counterpart
from fleet import (
    HANDED_OVER,
    LEFT_THE_FLEET,
    TAKEN_BY_THE_KCL,
    TAKEN_FROM_THE_KCL,
    causes_of_repeats,
    everything_wrong,
    moved_back,
)
from worker_process import WorkerProcess

from lease_logs import create_table, lease_log
from penstock.core.leases.lease import Lease
from penstock.core.position import TRIM_HORIZON, at_record
from penstock_local import LocalKinesis

PUT = [("k", f"k/{number}") for number in range(4)]


def taken(one, other, *, start=1, told=1):
    """`one` reads 0 to 2 and checkpoints 1; `other` takes the lease and reads 2 and 3."""

    def records(*numbers):
        return [Processed("shard", number, 0, *PUT[number]) for number in numbers]

    rows = [
        Lease("shard"),
        Lease("shard", counter=1, owner=one),
        Lease("shard", counter=2, owner=one, checkpoint=at_record("1")),
        Lease("shard", counter=3, owner=other, checkpoint=at_record(str(start))),
    ]
    return CompanyHistory(
        put=list(PUT),
        workers={
            one: [Began("shard", TRIM_HORIZON), *records(0, 1, 2)],
            other: [Began("shard", at_record(str(told))), *records(2, 3)],
        },
        log=[("shard", row) for row in rows],
    )


@pytest.mark.parametrize(
    ("one", "other", "gone", "cause"),
    [
        ("penstock-1", "penstock-2", {"penstock-1"}, LEFT_THE_FLEET),
        ("penstock-1", "penstock-2", set(), HANDED_OVER),
        ("kcl-1", "penstock-2", set(), TAKEN_FROM_THE_KCL),
        ("penstock-1", "kcl-2", set(), TAKEN_BY_THE_KCL),
        ("kcl-1", "kcl-2", set(), TAKEN_BY_THE_KCL),
    ],
)
def test_a_repeat_has_the_cause_of_its_change_of_reader(one, other, gone, cause):
    history = taken(one, other)
    assert everything_wrong(history) == {}
    assert causes_of_repeats(history, gone) == {cause: 1}


def test_a_record_that_came_once_is_no_repeat_though_its_reader_had_the_lease_before():
    history = taken("penstock-1", "kcl-2")
    back = Lease("shard", counter=4, owner="penstock-1", checkpoint=at_record("2"))
    history.log.append(("shard", back))
    three = history.workers["kcl-2"].pop()
    history.workers["penstock-1"] += [Began("shard", at_record("2")), three]
    assert everything_wrong(history) == {}
    assert causes_of_repeats(history, set()) == {TAKEN_BY_THE_KCL: 1}


def test_a_repeat_without_a_begin_before_it_is_found():
    history = taken("kcl-1", "penstock-2", told=2)
    assert list(everything_wrong(history)) == ["too_often"]


def test_a_checkpoint_that_moved_back_is_found_unless_the_lease_was_created_again():
    history = taken("kcl-1", "penstock-2", start=0)
    assert moved_back(history) == [("shard", "1.0", "0.0")]
    assert list(everything_wrong(history)) == ["moved_back"]
    history.log[3:3] = [("shard", None)]
    assert moved_back(history) == []


def test_the_log_of_a_table_holds_the_leases_of_kcl_3_and_leaves_out_its_other_rows():
    lease = {"entityType": {"S": "LEASE"}, "checkpoint": {"S": "TRIM_HORIZON"}, "leaseCounter": {"N": "4"}}
    leader = {"entityType": {"S": "LEADER"}, "ownerName": {"S": "kcl-1"}}
    with LocalKinesis() as server:
        create_table(server, TABLE)
        for key, row in (("shardId-000000000000", lease), ("Leader", leader)):
            server.client("dynamodb").put_item(TableName=TABLE, Item={"leaseKey": {"S": key}, **row})
        server.client("dynamodb").delete_item(
            TableName=TABLE, Key={"leaseKey": {"S": "shardId-000000000000"}}
        )
        log = lease_log(server, TABLE)
    assert [(key, row and (row.counter, row.checkpoint)) for key, row in log] == [
        ("shardId-000000000000", (4, TRIM_HORIZON)),
        ("shardId-000000000000", None),
    ]


def test_a_worker_that_does_not_end_fails_with_its_log(tmp_path, monkeypatch):
    script = "echo reason >&2; echo stopped; exec sleep 60"
    sleeper = Counterpart("sleeper", "penstock_worker", (), lambda _: [], lambda _: ["sh", "-c", script])
    with (
        LocalKinesis() as server,
        WorkerProcess(sleeper, server, tmp_path, "kcl-1", "numbers", TABLE) as worker,
    ):
        worker.wait_for(lambda: worker.last_line == "stopped")
        monkeypatch.setattr("worker_process.WAIT_S", 0.01)
        with pytest.raises(pytest.fail.Exception, match=r"kcl-1 runs after 0.01 s.*\n.*reason"):
            worker.wait()
