"""What KCL 3 keeps beside the leases, in each of its layouts, as KCL 3 itself writes it."""

from __future__ import annotations

import time

import pytest
from msgspec.structs import replace

from penstock.aws.aws_options import AwsOptions
from penstock.aws.kcl3_tables import INDEX, DynamoKcl3Tables
from penstock.core.leases.kcl3_fleet import Kcl3Rows, LeaderLock, WorkerStats
from penstock.errors import AccessDenied
from penstock.wiring import begin_opening, open_kcl3_tables, open_lease_table
from penstock_local import LocalKinesis

LOCK = {
    "ownerName": {"S": "java-1"},
    "leaseDuration": {"S": "120000"},
    "recordVersionNumber": {"S": "6f9619ff"},
}
STATE = {"cv": {"S": "CLIENT_VERSION_3X"}, "mb": {"S": "java-1"}, "mts": {"N": "1800000000000"}}
METRICS = {
    "lut": {"N": "1800000000"},
    "sts": {"M": {"C": {"L": [{"N": "3.25"}, {"N": "-1"}]}}},
    "opr": {"M": {"C": {"L": [{"N": "90"}]}}},
    "sup": {"N": "1"},
}
JAVA = WorkerStats("java-1", 1_800_000_000, {"C": [3.25, -1.0]}, {"C": 90.0})
OURS = WorkerStats("py", 1_800_000_030, {"C": [12.5, 0.123457, -1.0]}, {"C": 100.0}, is_penstock=True)


@pytest.fixture(scope="module")
def server():
    with LocalKinesis() as server:
        yield server


class Tables:
    """The tables of one application, written as a KCL 3 worker does."""

    def __init__(self, server, name):
        self.client = server.client("dynamodb")
        self.name = name
        self.port = DynamoKcl3Tables(
            name,
            AwsOptions(**server.connection()),
        )
        self.make(name, "leaseKey")

    def make(self, name, key):
        self.client.create_table(
            TableName=name,
            KeySchema=[{"AttributeName": key, "KeyType": "HASH"}],
            AttributeDefinitions=[{"AttributeName": key, "AttributeType": "S"}],
            BillingMode="PAY_PER_REQUEST",
        )

    def add_index(self):
        self.client.update_table(
            TableName=self.name,
            AttributeDefinitions=[
                {"AttributeName": "leaseKey", "AttributeType": "S"},
                {"AttributeName": "leaseOwner", "AttributeType": "S"},
            ],
            GlobalSecondaryIndexUpdates=[
                {
                    "Create": {
                        "IndexName": INDEX,
                        "KeySchema": [
                            {"AttributeName": "leaseOwner", "KeyType": "HASH"},
                            {"AttributeName": "leaseKey", "KeyType": "RANGE"},
                        ],
                        "Projection": {"ProjectionType": "KEYS_ONLY"},
                    }
                }
            ],
        )

    def put(self, table, key, name, row, entity=None):
        item = {key: {"S": name}, **row}
        if entity is not None:
            item["entityType"] = {"S": entity}
        self.client.put_item(TableName=table, Item=item)

    def fetch(self, workers=()):
        """The rows, without the time of the answer."""
        return replace(self.port.fetch(workers), server_ms=None)

    def rows(self, table, key):
        return {item[key]["S"]: item for item in self.client.scan(TableName=table)["Items"]}


def single(server, name):
    tables = Tables(server, name)
    tables.add_index()
    tables.put(name, "leaseKey", "Leader", LOCK, "LEADER")
    tables.put(name, "leaseKey", "Migration3.0", STATE, "CLIENT_VERSION_MIGRATION")
    tables.put(name, "leaseKey", "java-1", METRICS, "WORKER_METRIC_STATS")
    tables.put(name, "leaseKey", "shard-1", {"leaseCounter": {"N": "1"}, "leaseOwner": {"S": "py"}}, "LEASE")
    return tables


def three(server, name):
    tables = Tables(server, name)
    tables.add_index()
    state, metrics = f"{name}-CoordinatorState", f"{name}-WorkerMetricStats"
    tables.make(state, "key")
    tables.make(metrics, "wid")
    tables.put(state, "key", "Leader", LOCK)
    tables.put(state, "key", "Migration3.0", STATE)
    tables.put(metrics, "wid", "java-1", METRICS)
    tables.put(name, "leaseKey", "shard-1", {"leaseCounter": {"N": "1"}, "leaseOwner": {"S": "py"}})
    return tables


EXPECTED = Kcl3Rows("CLIENT_VERSION_3X", LeaderLock("java-1", "6f9619ff", 120.0), (JAVA,), has_index=True)


def test_the_rows_have_the_time_of_the_service(server):
    now_ms = 1000 * time.time()
    assert abs(single(server, "timed").port.fetch().server_ms - now_ms) < 60_000


def test_without_the_index_no_kcl_3_worker_ever_stood_here(server):
    assert Tables(server, "plain").fetch() == Kcl3Rows()


def test_an_index_alone_tells_no_state(server):
    tables = Tables(server, "index-alone")
    tables.add_index()
    assert tables.fetch(None) == Kcl3Rows(has_index=True)


@pytest.mark.parametrize("layout", [single, three])
def test_a_report_stands_where_those_of_the_java_workers_do(server, layout):
    tables = layout(server, f"fleet-{layout.__name__}")
    table, key = {
        single: (tables.name, "leaseKey"),
        three: (f"{tables.name}-WorkerMetricStats", "wid"),
    }[layout]
    assert tables.fetch() == EXPECTED
    tables.port.report(OURS)
    assert tables.rows(table, key)["py"] == {
        key: {"S": "py"},
        "lut": {"N": "1800000030"},
        "sts": {"M": {"C": {"L": [{"N": "12.500000"}, {"N": "0.123457"}, {"N": "-1"}]}}},
        "opr": {"M": {"C": {"L": [{"N": "100"}]}}},
        "properties": {"M": {"library": {"S": "penstock"}}},
        "entityType": {"S": "WORKER_METRIC_STATS"},
    }
    assert tables.fetch() == EXPECTED
    assert tables.port.fetch(["py", "nobody"]).workers == (JAVA, OURS)
    assert sorted(tables.port.fetch(None).workers, key=lambda stats: stats.worker) == [JAVA, OURS]
    tables.port.withdraw("py")
    tables.port.withdraw("py")
    assert "py" not in tables.rows(table, key)
    assert tables.port.find_keys_of("py") == {"shard-1"}
    assert tables.port.find_keys_of("nobody") == frozenset()


def test_what_is_no_report_is_not_withdrawn(server):
    tables = single(server, "kept")
    tables.port.fetch()
    tables.port.withdraw("shard-1")
    assert "shard-1" in tables.rows("kept", "leaseKey")


@pytest.mark.parametrize(
    ("moved", "place"),
    [("DEPLOYED", "moving-DEPLOYED-WorkerMetricStats"), ("PENDING", "moving-PENDING")],
)
def test_a_fleet_that_moves_into_one_table_is_followed(server, moved, place):
    tables = three(server, f"moving-{moved}")
    status = {"tm": {"S": f"TABLE_MIGRATION_STATUS_{moved}"}}
    tables.put(f"{tables.name}-CoordinatorState", "key", "TableMigration3.5", status)
    if moved == "PENDING":  # the state has moved, the lock has not
        tables.put(tables.name, "leaseKey", "Migration3.0", STATE, "CLIENT_VERSION_MIGRATION")
        tables.client.delete_item(
            TableName=f"{tables.name}-CoordinatorState", Key={"key": {"S": "Migration3.0"}}
        )
    rows = tables.port.fetch()
    assert (rows.version, rows.leader) == (EXPECTED.version, EXPECTED.leader)
    tables.port.report(OURS)
    assert "py" in tables.rows(place, "leaseKey" if moved == "PENDING" else "wid")


def test_a_worker_that_starts_describes_its_lease_table_once(server):
    options = AwsOptions(**server.connection())
    Tables(server, "described-once")
    server.reset_calls()
    table = open_lease_table("described-once", options)
    begin_opening(table)
    kcl3 = open_kcl3_tables("described-once", options, table)
    assert table.ensure_exists() is False
    assert kcl3.fetch() == Kcl3Rows()
    assert server.calls().count("DescribeTable") == 1
    assert kcl3.fetch() == Kcl3Rows()  # the index of a KCL 3 worker may have been added since
    assert server.calls().count("DescribeTable") == 2


def test_an_early_description_that_fails_fails_the_opening(server):
    table = open_lease_table("described-in-vain", AwsOptions(**server.connection()))
    server.faults.error("DescribeTable", code="AccessDeniedException", status=400)
    begin_opening(table)
    with pytest.raises(AccessDenied):
        table.ensure_exists()
    assert table.ensure_exists() is True
