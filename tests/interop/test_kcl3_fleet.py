"""Consumers are full members of a native KCL 3 fleet: its leader gives them leases and takes some back, and may die."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable

import pytest
from counterparts import KCL_2, KCL_3_COMPATIBLE, KCL_3_NATIVE, PENSTOCK, Counterpart
from fleet import HANDED_OVER, SHARDS, Fleet, everything_wrong, reading_fleet, report_repeats

from penstock_local import Handle

PART = 600
STEP = 60


def feed_until(fleet: Fleet, what: str, condition: Callable[[Counter[str]], bool]) -> None:
    """Put records until the owners of the leases are as wanted: KCL 3 balances by throughput, so there must be some."""
    put_s = 0.0

    def is_so() -> bool:
        nonlocal put_s
        if time.monotonic() - put_s > 1:
            put_s = time.monotonic()
            fleet.put(STEP)
        return condition(Counter(fleet.owners()))

    fleet.wait_for(lambda: f"{what}: {fleet.owners()}", is_so)


@pytest.mark.parametrize(
    ("first", "second"),
    [
        pytest.param(PENSTOCK, KCL_3_NATIVE, id="a Java worker joins"),
        pytest.param(KCL_3_NATIVE, PENSTOCK, id="joins a Java worker"),
    ],
)
def test_a_worker_that_joins_gets_its_share_and_the_rest_goes_on_without_the_leader(
    first: Counterpart, second: Counterpart, tmp_path, record_property
):
    with reading_fleet(tmp_path, first, PART) as (fleet, early):
        late = fleet.start(second)
        feed_until(
            fleet,
            f"{late} has no share",
            # A worker of Java reads some seconds after it has its leases, and one of the two is killed below.
            lambda owners: (
                min(owners[early], owners[late]) >= SHARDS // 2 - 1 and bool(fleet.workers[late].records)
            ),
        )
        fleet.wait_until_all_is_read()
        leader = late if second is KCL_3_NATIVE else early
        rest = early if second is KCL_3_NATIVE else late
        fleet.kill(leader)
        feed_until(fleet, f"{rest} does not go on", lambda owners: owners[rest] == SHARDS)
        fleet.wait_until_all_is_read()
        fleet.stop(rest)
        reports = fleet.server.client("dynamodb").scan(
            TableName="shared",
            FilterExpression="entityType = :reports",
            ExpressionAttributeValues={":reports": {"S": "WORKER_METRIC_STATS"}},
        )["Items"]
        history = fleet.gather()
        fleet.assert_behaves_as_the_model()
        logs = fleet.logs()
    causes = report_repeats(history, fleet.gone, record_property)
    assert everything_wrong(history) == {}, logs
    assert all(worker.records for worker in fleet.workers.values())
    assert causes[HANDED_OVER] == 0
    assert [row["leaseKey"]["S"] for row in reports] == [
        leader
    ]  # who stops in order is not a target any more
    assert "its leader assigns every lease" in (tmp_path / f"{rest}.log").read_text()


def rows_of_kcl_3(server: Handle) -> dict[str, dict[str, dict[str, str]]]:
    """Return what is not a lease in the lease table, by its key."""
    items = server.client("dynamodb").scan(TableName="shared", ConsistentRead=True)["Items"]
    return {item["leaseKey"]["S"]: item for item in items if "checkpoint" not in item}


def set_version(server: Handle, before: str, after: str) -> None:
    """Move the fleet on, as its own monitor does after ten minutes, or the KCL's tool."""
    server.client("dynamodb").update_item(
        TableName="shared",
        Key={"leaseKey": {"S": "Migration3.0"}},
        UpdateExpression="SET cv = :after",
        ConditionExpression="cv = :before",
        ExpressionAttributeValues={":before": {"S": before}, ":after": {"S": after}},
    )


def test_a_java_fleet_goes_native_and_back_with_a_consumer_in_it(tmp_path):
    with reading_fleet(tmp_path, KCL_3_COMPATIBLE, PART) as (fleet, java):
        server = fleet.server
        consumer = fleet.start(PENSTOCK)
        # The fleet's monitor waits for these: metrics of everybody who owns a lease.
        fleet.wait_for(
            lambda: f"no reports: {rows_of_kcl_3(server)}",
            lambda: rows_of_kcl_3(server).keys() >= {java, consumer},
        )
        fleet.put(PART)
        fleet.wait_until_all_is_read()

        set_version(server, "CLIENT_VERSION_UPGRADE_FROM_2X", "CLIENT_VERSION_3X_WITH_ROLLBACK")
        fleet.wait_for(lambda: "no leader", lambda: "Leader" in rows_of_kcl_3(server))
        told = tmp_path / f"{consumer}.log"
        fleet.wait_for(
            lambda: "the consumer does not follow",
            lambda: f"its leader assigns every lease; the leader is {java}" in told.read_text(),
        )
        fleet.put(PART)
        fleet.wait_until_all_is_read()

        set_version(server, "CLIENT_VERSION_3X_WITH_ROLLBACK", "CLIENT_VERSION_2X")
        fleet.wait_for(
            lambda: "the consumer does not go back",
            lambda: "Penstock's own balance" in told.read_text(),
        )
        fleet.put(PART)
        fleet.wait_until_all_is_read()
        history = fleet.gather()
        logs = fleet.logs()
    assert everything_wrong(history) == {}, logs
    assert all(worker.records for worker in fleet.workers.values())


def test_a_worker_of_kcl_2_that_a_native_fleet_joins_is_named_and_what_it_leaves_is_read(
    tmp_path, record_property
):
    with reading_fleet(tmp_path, KCL_2, PART) as (fleet, old):
        java = fleet.start(KCL_3_NATIVE)
        fleet.wait_for(lambda: "no leader", lambda: "Leader" in rows_of_kcl_3(fleet.server))
        consumer = fleet.start(PENSTOCK)
        told = tmp_path / f"{consumer}.log"
        feed_until(fleet, f"{old} is not named", lambda _: f"workers {old} renew leases" in told.read_text())
        fleet.kill(old)
        fleet.put(PART)
        fleet.wait_until_all_is_read()
        history = fleet.gather()
        fleet.assert_behaves_as_the_model()
        logs = fleet.logs()
    report_repeats(history, fleet.gone, record_property)
    assert everything_wrong(history) == {}, logs
    assert fleet.workers[java].records or fleet.workers[consumer].records
