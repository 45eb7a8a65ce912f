"""The durable memory of a queue's consumer in DynamoDB: against the embedded server, and with answers that leave rows out."""

import time
from fractions import Fraction
from types import SimpleNamespace

import pytest

pytest.importorskip("httptools")
pytest.importorskip("moto")

from penstock import FinishedRecordsTable, QueueConsumer
from penstock.aws import service_calls
from penstock.aws.aws_options import AwsOptions
from penstock.aws.keyed_table import KeyedTable
from penstock.errors import NotFound, OptionError, Rejected, Throttled, Unavailable
from penstock.runtime.metrics_tally import MetricsTally
from penstock_local import Fault, LocalKinesis
from queue_rig import knows_queues
from queue_world import QueueWorld
from waiting import wait_until


@pytest.fixture(scope="module")
def server():
    with LocalKinesis() as server:
        yield server


def memory_of(server, table="finished", queue="invoices", **options):
    return FinishedRecordsTable(table, queue, connection=server.connection(), **options)


def test_finished_records_are_remembered_for_their_queue_until_they_expire(server):
    done = memory_of(server, keep_s=100)
    assert (done.create_table(), done.create_table()) == (True, False)
    assert list(done.fetch_finished(["a", "b"])) == []
    done.put_finished(["a", "c", "a"])
    done.put_finished(["a"])
    done.put_finished([])
    assert sorted(done.fetch_finished(["a", "b", "c"])) == ["a", "c"]
    assert list(done.fetch_finished([])) == []
    assert list(memory_of(server, queue="audit").fetch_finished(["a"])) == []
    client = server.client("dynamodb")
    (row, _) = client.scan(TableName="finished")["Items"]
    assert time.time() < int(row["expires"]["N"]) <= time.time() + 100
    expiry = client.describe_time_to_live(TableName="finished")["TimeToLiveDescription"]
    assert (expiry["TimeToLiveStatus"], expiry["AttributeName"]) == ("ENABLED", "expires")


def test_another_table_of_the_name_is_refused_and_a_missing_one_is_named(server):
    server.client("dynamodb").create_table(
        TableName="leases",
        KeySchema=[{"AttributeName": "leaseKey", "KeyType": "HASH"}],
        AttributeDefinitions=[{"AttributeName": "leaseKey", "AttributeType": "S"}],
        BillingMode="PAY_PER_REQUEST",
    )
    with pytest.raises(Rejected, match="its key is leaseKey, not record"):
        memory_of(server, "leases").create_table()
    for act in (memory_of(server, "none").fetch_finished, memory_of(server, "none").put_finished):
        with pytest.raises(NotFound, match="table none"):
            act(["a"])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"table": "", "queue": "q"}, "both must be named"),
        ({"table": "t", "queue": ""}, "both must be named"),
        ({"table": "t", "queue": "q", "keep_s": 0}, "keep_s=0: expected more than 0"),
        ({"table": "t", "queue": "q", "connection": {"regoin": "x"}}, "regoin"),
    ],
)
def test_arguments_that_cannot_be_are_refused(arguments, message):
    with pytest.raises(OptionError, match=message):
        FinishedRecordsTable(**arguments)


def test_seconds_of_any_kind_are_accepted(server):
    done = memory_of(server, "seconds", keep_s=Fraction(86_400))
    done.create_table()
    done.put_finished(["a"])
    (row,) = server.client("dynamodb").scan(TableName="seconds")["Items"]
    assert 0 <= time.time() + 86_400 - int(row["expires"]["N"]) < 3_600


class LeavingOut:
    """A client whose batches handle one row each, or none."""

    def __init__(self, handled):
        self.handled, self.calls, self.written = handled, 0, []

    def batch_write_item(self, **request):
        self.calls += 1
        puts = request["RequestItems"]["t"]
        self.written += puts[: self.handled]
        left = puts[self.handled :]
        return {"UnprocessedItems": {"t": left} if left else {}}

    def batch_get_item(self, **request):
        self.calls += 1
        keys = request["RequestItems"]["t"]["Keys"]
        left = keys[self.handled :]
        rest = {"t": {**request["RequestItems"]["t"], "Keys": left}} if left else {}
        return {"Responses": {"t": keys[: self.handled]}, "UnprocessedKeys": rest}


def with_client(monkeypatch, client, **connection):
    monkeypatch.setattr(service_calls, "client_for", lambda *_: client)
    fields = {"region": "eu-west-1", "retry_base_s": 0.001, "retry_cap_s": 0.001, **connection}
    return FinishedRecordsTable("t", "q", connection=fields)


def test_rows_that_dynamodb_leaves_out_are_sent_again(monkeypatch):
    client = LeavingOut(1)
    done = with_client(monkeypatch, client)
    done.put_finished(["a", "b", "c"])
    assert [each["PutRequest"]["Item"]["record"]["S"] for each in client.written] == ["q#a", "q#b", "q#c"]
    assert sorted(done.fetch_finished(["a", "b"])) == ["a", "b"]
    assert client.calls == 5


def test_a_throttled_table_is_given_up_within_its_bound(monkeypatch):
    client = LeavingOut(0)
    done = with_client(monkeypatch, client, attempts_max=4)
    for act in (done.fetch_finished, done.put_finished):
        with pytest.raises(Throttled, match="rows out"):
            act(["a"])
    assert client.calls == 8


def test_the_calls_of_the_memory_are_bounded_whatever_the_connection_has(monkeypatch):
    seen = []
    done = with_client(monkeypatch, LeavingOut(9))
    monkeypatch.setattr(service_calls, "client_for", lambda _, options: seen.append(options) or LeavingOut(9))
    done.put_finished(["a"])
    (options,) = seen
    assert (options.deadline_s, options.read_timeout_s, options.connect_timeout_s) == (3.0, 3.0, 3.0)


def test_a_memory_that_is_away_loses_no_record_and_is_counted():
    world, tally, handled = QueueWorld(), MetricsTally(), []
    world.put("a")
    away = SimpleNamespace(
        fetch_finished=lambda _: (_ for _ in ()).throw(NotFound("no table")),
        put_finished=lambda _: (_ for _ in ()).throw(NotFound("no table")),
    )
    with QueueConsumer(
        "invoices", handled.append, ports=world.ports, finished=away, metrics=tally, wait_time_s=1
    ):
        wait_until(lambda: not world.left)
    assert len(handled) == 1
    assert {name: value for (name, _), value in tally.snapshot().counters.items()}[
        "queue_memory_failures"
    ] == 2


def test_a_table_that_is_not_usable_in_time_is_reported_with_its_status(monkeypatch):
    table = KeyedTable("billing", "leaseKey", AwsOptions(), kind="lease table", remedy="choose another")
    monkeypatch.setattr(table, "describe", lambda: {"TableStatus": "CREATING"})
    with pytest.raises(
        Unavailable, match=r"lease table billing is not usable after 0 s \(its status is CREATING\)"
    ):
        table.wait_until_usable(0.0)


@knows_queues
def test_a_record_that_comes_again_to_another_consumer_is_not_handled_again(server):
    kinesis = server.client("kinesis")
    kinesis.create_stream(StreamName="orders", StreamModeDetails={"StreamMode": "ON_DEMAND"})
    kinesis.get_waiter("stream_exists").wait(StreamName="orders", WaiterConfig={"Delay": 1})
    done = memory_of(server, queue="again")
    done.create_table()
    handled = []

    def consumer():
        create = {"stream": "orders", "starting_position": "TRIM_HORIZON", "visibility_timeout_s": 1}
        return QueueConsumer(
            "again",
            lambda record: handled.append(record.data),
            create=create,
            finished=done,
            wait_time_s=1,
            connection=server.connection(),
        )

    def calls():
        return server.calls().count("AcknowledgeQueueRecords")

    server.faults.add(Fault("redeliver", "AcknowledgeQueueRecords", queue="again", count=1))
    kinesis.put_record(StreamName="orders", Data=b"invoice", PartitionKey="k")
    with consumer():
        wait_until(lambda: calls() >= 1, "the acknowledgement that has no effect")
    with consumer():
        wait_until(lambda: calls() >= 2, "the acknowledgement by the memory")
    assert handled == [b"invoice"]
