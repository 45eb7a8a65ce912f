"""DynamoDB, CloudWatch and STS on the same endpoint."""

from __future__ import annotations

import os
import socket
import sys
import threading

import boto3
import moto
import pytest
from botocore.exceptions import ClientError, ConnectionClosedError

from local.error_codes import code
from penstock_local import LocalKinesis
from penstock_local.moto_bridge import tables_of
from penstock_local.moto_fixes import install_fixes
from penstock_local.moto_repairs import repair_body

ROW = {"leaseKey": {"S": "shard"}}


@pytest.fixture
def table(rig):
    """A client and an empty lease table."""
    client = rig.client("dynamodb")
    make_table(client, "leases")
    return client


def make_table(client, name: str) -> None:
    client.create_table(
        TableName=name,
        KeySchema=[{"AttributeName": "leaseKey", "KeyType": "HASH"}],
        AttributeDefinitions=[{"AttributeName": "leaseKey", "AttributeType": "S"}],
        BillingMode="PAY_PER_REQUEST",
    )


@pytest.fixture
def impatient_interpreter():
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    yield
    sys.setswitchinterval(before)


def test_a_conditional_write_has_one_winner(rig, table, impatient_interpreter):
    table.put_item(TableName="leases", Item={**ROW, "counter": {"N": "0"}})
    clients = [rig.client("dynamodb") for _ in range(8)]
    for round_ in range(12):
        start = threading.Barrier(len(clients))
        outcomes: list[str] = []

        def take(client, owner: int, round_=round_, start=start, outcomes=outcomes) -> None:
            start.wait(60)
            outcomes.append(
                code(
                    client.update_item,
                    TableName="leases",
                    Key=ROW,
                    UpdateExpression="SET leaseOwner = :me, #c = :next",
                    ConditionExpression="#c = :seen",
                    ExpressionAttributeNames={"#c": "counter"},
                    ExpressionAttributeValues={
                        ":me": {"S": str(owner)},
                        ":next": {"N": str(round_ + 1)},
                        ":seen": {"N": str(round_)},
                    },
                )
            )

        threads = [threading.Thread(target=take, args=(c, n)) for n, c in enumerate(clients)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert sorted(outcomes) == ["ConditionalCheckFailedException"] * 7 + ["ok"]


def test_kinesis_loses_and_repeats_nothing_with_an_impatient_interpreter(rig, impatient_interpreter):
    rig.server.create_stream("s")
    acknowledged: list[str] = []

    def put(thread: int) -> None:
        client = rig.client("kinesis")
        for i in range(20):
            answer = client.put_record(StreamName="s", Data=b"%d.%d" % (thread, i), PartitionKey="k")
            acknowledged.append(answer["SequenceNumber"])

    threads = [threading.Thread(target=put, args=(n,)) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    records = rig.kinesis.get_records(ShardIterator=rig.iterator("s"))["Records"]
    assert [r["SequenceNumber"] for r in records] == sorted(acknowledged, key=int)
    assert len({r["Data"] for r in records}) == 160


def test_a_legacy_expected_on_delete_item_is_respected(table):
    table.put_item(TableName="leases", Item={**ROW, "owner": {"S": "me"}})
    other = {"owner": {"Value": {"S": "you"}, "Exists": True}}
    assert (
        code(table.delete_item, TableName="leases", Key=ROW, Expected=other)
        == "ConditionalCheckFailedException"
    )
    mine = {"owner": {"ComparisonOperator": "EQ", "AttributeValueList": [{"S": "me"}]}}
    assert code(table.delete_item, TableName="leases", Key=ROW, Expected=mine) == "ok"
    assert table.scan(TableName="leases")["Items"] == []


@pytest.mark.parametrize(
    ("expected", "condition"),
    [
        ('{"a":{"Exists":false}}', "attribute_not_exists(#expected0)"),
        ('{"a":{"ComparisonOperator":"NOT_NULL"}}', "attribute_exists(#expected0)"),
        (
            '{"a":{"ComparisonOperator":"BETWEEN","AttributeValueList":[{"N":"1"},{"N":"2"}]}}',
            "#expected0 BETWEEN :expected0_0 AND :expected0_1",
        ),
        (
            '{"a":{"ComparisonOperator":"IN","AttributeValueList":[{"N":"1"},{"N":"2"}]}}',
            "#expected0 IN (:expected0_0, :expected0_1)",
        ),
        (
            '{"a":{"Value":{"N":"1"}},"b":{"Exists":false}}',
            "#expected0 = :expected0_0 AND attribute_not_exists(#expected1)",
        ),
    ],
)
def test_legacy_conditions_become_expressions(expected, condition):
    body = repair_body("DeleteItem", f'{{"TableName":"t","Expected":{expected}}}'.encode())
    assert f'"ConditionExpression":"{condition}"'.encode() in body
    assert b'"Expected"' not in body


@pytest.mark.parametrize(
    "expression", ["SET (((", "SET", "SET #n", "SET a = :nothing", "BOGUS a", "SET a = a +", "SET a ="]
)
def test_a_malformed_update_expression_is_a_validation_error(table, expression):
    arguments = {"TableName": "leases", "Key": ROW, "UpdateExpression": expression}
    assert code(table.update_item, **arguments) == "ValidationException"


@pytest.mark.parametrize(
    "condition", ["a =", "(a", "a = :nothing", "#n = a", "size(", "AND", "a IN (", "a b c"]
)
def test_a_malformed_condition_is_a_validation_error(table, condition):
    arguments = {"TableName": "leases", "Item": ROW, "ConditionExpression": condition}
    assert code(table.put_item, **arguments) == "ValidationException"


def test_faults_reach_dynamodb(rig, table):
    put = {"TableName": "leases", "Item": ROW}
    rig.faults.throttle("UpdateItem")
    rig.faults.throttle("dynamodb.PutItem", table="other")
    rig.faults.throttle("dynamodb.PutItem", table="leases")
    assert code(table.put_item, **put) == "ProvisionedThroughputExceededException"
    rig.faults.error("PutItem")
    assert code(table.put_item, **put) == "InternalServerError"
    rig.faults.drop_before("PutItem")
    with pytest.raises(ConnectionClosedError):
        table.put_item(**put)
    assert table.scan(TableName="leases")["Items"] == []
    rig.faults.drop_after("PutItem")
    with pytest.raises(ConnectionClosedError):
        table.put_item(**put)
    assert table.scan(TableName="leases")["Items"] == [ROW]
    rig.faults.delay("Scan", 0.05)
    assert table.scan(TableName="leases")["Count"] == 1
    calls = rig.server.calls()
    assert calls.count("dynamodb.PutItem") == 4
    assert calls.failed("dynamodb.PutItem", "drop_after") == 1


def test_a_lost_answer_that_is_retried_meets_its_own_write(rig, table):
    rig.faults.drop_after("PutItem")
    retrying = rig.server.client("dynamodb")
    condition = "attribute_not_exists(leaseKey)"
    assert (
        code(retrying.put_item, TableName="leases", Item=ROW, ConditionExpression=condition)
        == "ConditionalCheckFailedException"
    )
    assert table.scan(TableName="leases")["Items"] == [ROW]


def test_the_tables_of_a_request_are_known_for_faults():
    assert tables_of(b'{"TableName":"a"}') == ("a",)
    assert tables_of(b'{"RequestItems":{"b":[],"a":[]}}') == ("a", "b")
    assert tables_of(b'{"TransactItems":[{"Put":{"TableName":"c"}}]}') == ("c",)
    assert tables_of(b"[]") == tables_of(b"nonsense") == ()


def test_two_servers_of_one_process_share_no_tables():
    with LocalKinesis() as one, LocalKinesis() as other:
        make_table(one.client("dynamodb"), "leases")
        assert other.client("dynamodb").list_tables()["TableNames"] == []
        assert one.client("dynamodb").list_tables()["TableNames"] == ["leases"]
    with LocalKinesis() as next_one:
        assert next_one.client("dynamodb").list_tables()["TableNames"] == []


def test_moto_beside_it_neither_sees_nor_empties_its_tables():
    with LocalKinesis() as kinesis:
        dynamodb = kinesis.client("dynamodb")
        make_table(dynamodb, "leases")
        with moto.mock_aws():
            beside = boto3.client("dynamodb", region_name="us-east-1")
            make_table(beside, "mine")
            assert dynamodb.list_tables()["TableNames"] == ["leases"]
            assert beside.list_tables()["TableNames"] == ["mine"]
        dynamodb.put_item(TableName="leases", Item=ROW)


def test_a_call_of_a_service_that_is_not_served_is_named_in_its_own_form(rig):
    for service, call in (("s3", "list_buckets"), ("sqs", "list_queues")):
        with pytest.raises(ClientError, match=r"no call of Kinesis, .*AWS_ENDPOINT_URL_S3"):
            getattr(rig.client(service), call)()


def test_every_server_of_a_process_has_the_account_of_its_streams():
    with LocalKinesis() as one, LocalKinesis() as other:
        for server in (one, other):
            assert server.client("sts").get_caller_identity()["Account"] == "123456789012"


def test_cloudwatch_takes_metrics_and_sts_gives_roles(rig):
    metrics = rig.client("cloudwatch")
    metrics.put_metric_data(Namespace="penstock", MetricData=[{"MetricName": "lag", "Value": 3.0}])
    assert [m["MetricName"] for m in metrics.list_metrics()["Metrics"]] == ["lag"]
    tokens = rig.client("sts")
    assert tokens.get_caller_identity()["Account"] == "123456789012"
    role = tokens.assume_role(RoleArn="arn:aws:iam::123456789012:role/reader", RoleSessionName="me")
    assert role["Credentials"]["AccessKeyId"]
    rig.faults.throttle("PutMetricData")
    rig.faults.throttle("GetCallerIdentity")
    assert (
        code(metrics.put_metric_data, Namespace="n", MetricData=[{"MetricName": "m", "Value": 1}])
        == "Throttling"
    )
    assert code(tokens.get_caller_identity) == "Throttling"


def test_nothing_is_sent_anywhere_else(rig, table, monkeypatch):
    allowed = rig.server.endpoint_url.rpartition(":")[2]
    real = socket.socket.connect

    def connect(self, address):
        assert address[0] == "127.0.0.1"
        assert str(address[1]) == allowed
        return real(self, address)

    monkeypatch.setattr(socket.socket, "connect", connect)
    monkeypatch.setitem(os.environ, "AWS_EC2_METADATA_DISABLED", "true")
    table.put_item(TableName="leases", Item=ROW)
    rig.client("cloudwatch").list_metrics()
    rig.client("sts").get_caller_identity()


def test_kinesis_is_prompt_while_dynamodb_is_busy(rig, table):
    rig.server.create_stream("s")
    items = [{"PutRequest": {"Item": {"leaseKey": {"S": str(i)}}}} for i in range(25)]
    done = threading.Event()

    def keep_busy() -> None:
        client = rig.client("dynamodb")
        while not done.is_set():
            client.batch_write_item(RequestItems={"leases": items})

    busy = [threading.Thread(target=keep_busy) for _ in range(3)]
    for thread in busy:
        thread.start()
    try:
        for _ in range(20):
            rig.kinesis.put_record(StreamName="s", Data=b"", PartitionKey="k")
    finally:
        done.set()
        for thread in busy:
            thread.join()
    assert len(rig.read("s")) == 20


EVERY_KIND = {
    "text": {"S": "ü\u0000"},
    "empty": {"S": ""},
    "number": {"N": "-1.5"},
    "bytes": {"B": b"\x00\xff"},
    "no bytes": {"B": b""},
    "flag": {"BOOL": False},
    "nothing": {"NULL": True},
    "texts": {"SS": ["a", "b"]},
    "numbers": {"NS": ["1", "2"]},
    "blobs": {"BS": [b"\x00", b"\x01"]},
    "list": {"L": [{"S": "x"}, {"B": b"\xfe"}, {"L": [{"N": "3"}]}, {"M": {}}]},
    "map": {"M": {"S": {"N": "1"}, "inner": {"M": {"B": {"B": b"\x07"}}}}},
}


def test_every_kind_of_value_comes_back_as_it_was_put(table):
    item = {**ROW, **EVERY_KIND}
    table.put_item(TableName="leases", Item=item)
    answers = [
        table.get_item(TableName="leases", Key=ROW)["Item"],
        table.scan(TableName="leases")["Items"][0],
        table.update_item(
            TableName="leases",
            Key=ROW,
            UpdateExpression="SET n = :n",
            ExpressionAttributeValues={":n": {"N": "1"}},
            ReturnValues="ALL_OLD",
        )["Attributes"],
    ]
    for answer in answers:
        for kind in answer["texts"], answer["numbers"], answer["blobs"]:
            for members in kind.values():
                members.sort()
        assert answer == item


def test_values_are_written_in_one_step_and_as_moto_writes_them(rig, table, monkeypatch):
    from moto.core import serialize

    table.put_item(TableName="leases", Item={**ROW, **EVERY_KIND})
    ours = serialize.get_serializer_class("dynamodb", "json")
    assert ours is not serialize.JSONSerializer
    quick = table.get_item(TableName="leases", Key=ROW)["Item"]
    monkeypatch.delitem(serialize.SERVICE_SPECIFIC_SERIALIZERS, "dynamodb")
    assert serialize.get_serializer_class("dynamodb", "json") is serialize.JSONSerializer
    assert table.get_item(TableName="leases", Key=ROW)["Item"] == quick


def test_rows_of_plain_values_are_written_by_our_serializer_in_this_moto(table, monkeypatch):
    from moto.core.serialize import SERVICE_SPECIFIC_SERIALIZERS, JSONSerializer

    assert install_fixes() == []
    ours = SERVICE_SPECIFIC_SERIALIZERS["dynamodb"]["json"]
    shown = []
    before = JSONSerializer._default_serialize

    def note(self, serialized, value, shape, key):
        shown.append((type(self), shape.name))
        return before(self, serialized, value, shape, key)

    monkeypatch.setattr(JSONSerializer, "_default_serialize", note)
    table.put_item(TableName="leases", Item={**ROW, "leaseCounter": {"N": "1"}})
    assert table.scan(TableName="leases")["Items"] == [{**ROW, "leaseCounter": {"N": "1"}}]
    assert (ours, "AttributeValue") in shown


def test_a_moto_without_a_place_for_serializers_does_the_work_itself(monkeypatch):
    monkeypatch.setitem(sys.modules, "moto.core.serialize", None)
    assert install_fixes() == ["large scans are slow"]
