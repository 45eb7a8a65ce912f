"""DynamoDB and CloudWatch requests that the service refuses and moto accepts or fails on."""

from __future__ import annotations

import gzip
import http.client
import json
from urllib.parse import urlencode, urlsplit

import cbor2
import pytest
from botocore.exceptions import ClientError

from penstock_local import LocalKinesis
from penstock_local.moto_rules import service_model

KEYED = {
    "KeySchema": [{"AttributeName": "k", "KeyType": "HASH"}],
    "AttributeDefinitions": [{"AttributeName": "k", "AttributeType": "S"}],
    "BillingMode": "PAY_PER_REQUEST",
}
FORM = "application/x-www-form-urlencoded; charset=utf-8"


def send(rig, path: str, body: bytes, headers: dict[str, str]) -> tuple[int, dict[str, str], bytes]:
    connection = http.client.HTTPConnection(urlsplit(rig.server.endpoint_url).netloc, timeout=60)
    connection.request("POST", path, body, headers)
    response = connection.getresponse()
    answer = (
        response.status,
        {name.lower(): value for name, value in response.headers.items()},
        response.read(),
    )
    connection.close()
    return answer


def dynamodb(rig, operation: str, body: bytes) -> tuple[int, str]:
    status, _, answer = send(rig, "/", body, {"X-Amz-Target": f"DynamoDB_20120810.{operation}"})
    return status, json.loads(answer)["__type"].rpartition("#")[2]


@pytest.fixture
def tables(rig):
    client = rig.client("dynamodb")
    client.create_table(TableName="ttt", **KEYED)
    return client


def message(call, **arguments) -> str:
    with pytest.raises(ClientError) as caught:
        call(**arguments)
    error = caught.value.response["Error"]
    return f"{error['Code']}: {error['Message']}"


# --- DynamoDB ---


@pytest.mark.parametrize("body", [b"[]", b"null", b"5", b'"x"', b"{", b"", b"[" * 100_000, b"[]," * 500_001])
@pytest.mark.parametrize("operation", ["GetItem", "TransactWriteItems", "CreateTable"])
def test_a_body_that_is_no_structure_is_a_serialization_error(rig, operation, body):
    assert dynamodb(rig, operation, body) == (400, "SerializationException")


@pytest.mark.parametrize(
    ("operation", "document", "code"),
    [
        ("GetItem", {"TableName": 5, "Key": {}}, "SerializationException"),
        ("GetItem", {"TableName": "ttt", "Key": 5}, "SerializationException"),
        ("GetItem", {"TableName": "ttt"}, "ValidationException"),
        ("PutItem", {"TableName": "ttt", "Item": {"k": 5}}, "SerializationException"),
        ("Scan", {"TableName": ["ttt"]}, "SerializationException"),
        ("TransactWriteItems", {"TransactItems": [5]}, "SerializationException"),
        ("TransactWriteItems", {"TransactItems": [{"Put": {"TableName": []}}]}, "SerializationException"),
        ("BatchWriteItem", {"RequestItems": {}}, "ValidationException"),
        ("Nonsense", {}, "UnknownOperationException"),
    ],
)
def test_a_member_of_another_type_or_none_is_refused(rig, tables, operation, document, code):
    assert dynamodb(rig, operation, json.dumps(document).encode()) == (400, code)


def test_a_member_that_the_service_does_not_know_or_that_is_null_is_ignored(rig, tables):
    document = {"TableName": "ttt", "Limit": None, "Colour": "red"}
    status, _, answer = send(
        rig, "/", json.dumps(document).encode(), {"X-Amz-Target": "DynamoDB_20120810.Scan"}
    )
    assert (status, json.loads(answer)["Count"]) == (200, 0)


@pytest.mark.parametrize("name", ["bad name", "ab", "a" * 256, "täble"])
def test_a_table_is_named_as_the_service_allows(rig, name):
    document = json.dumps({"TableName": name, **KEYED}).encode()
    assert dynamodb(rig, "CreateTable", document) == (400, "ValidationException")


def test_a_batch_has_at_most_25_writes(rig, tables):
    def puts(count: int, first: int = 0) -> list[dict]:
        return [{"PutRequest": {"Item": {"k": {"S": str(i)}}}} for i in range(first, first + count)]

    tables.create_table(TableName="uuu", **KEYED)
    assert "less than or equal to 25" in message(tables.batch_write_item, RequestItems={"ttt": puts(26)})
    both = {"ttt": puts(13), "uuu": puts(13)}
    assert "Too many items requested" in message(tables.batch_write_item, RequestItems=both)
    assert tables.scan(TableName="ttt")["Count"] == 0
    tables.batch_write_item(RequestItems={"ttt": puts(25)})
    assert tables.scan(TableName="ttt")["Count"] == 25


def test_a_batch_writes_each_item_once(rig, tables):
    def put(key: str) -> dict:
        return {"PutRequest": {"Item": {"k": {"S": key}, "n": {"N": "1"}}}}

    twice = "ValidationException: Provided list of item keys contains duplicates"
    changed = {"PutRequest": {"Item": {"k": {"S": "a"}, "n": {"N": "2"}}}}
    for other in (changed, {"DeleteRequest": {"Key": {"k": {"S": "a"}}}}):
        assert message(tables.batch_write_item, RequestItems={"ttt": [put("a"), other]}) == twice
    assert tables.scan(TableName="ttt")["Count"] == 0
    tables.create_table(TableName="uuu", **KEYED)
    tables.batch_write_item(RequestItems={"ttt": [put("a"), put("b")], "uuu": [put("a")]})
    delete = {"DeleteRequest": {"Key": {"k": {"S": "a"}}}}
    tables.batch_write_item(RequestItems={"ttt": [delete], "uuu": [delete, put("b")]})
    assert [tables.scan(TableName=name)["Items"][0]["k"]["S"] for name in ("ttt", "uuu")] == ["b", "b"]
    reads = {"ttt": {"Keys": [{"k": {"S": "a"}}] * 2}}
    assert message(tables.batch_get_item, RequestItems=reads) == twice
    unkeyed = [{"PutRequest": {"Item": {"n": {"N": n}}}} for n in "12"]
    assert "Missing the key k" in message(tables.batch_write_item, RequestItems={"ttt": unkeyed})


def test_legacy_parameters_and_expressions_are_not_mixed(rig, tables):
    change = {"n": {"Action": "PUT", "Value": {"N": "1"}}}
    arguments = {"TableName": "ttt", "Key": {"k": {"S": "a"}}, "AttributeUpdates": change}
    refusal = message(tables.update_item, **arguments, ConditionExpression="attribute_exists(k)")
    assert refusal == (
        "ValidationException: Can not use both expression and non-expression parameters in the same request: "
        "Non-expression parameters: {AttributeUpdates} Expression parameters: {ConditionExpression}"
    )
    assert tables.scan(TableName="ttt")["Count"] == 0
    tables.update_item(**arguments)


@pytest.mark.parametrize(
    ("condition", "found"),
    [
        ("n < :high", ["number"]),
        ("n <= :high", ["number"]),
        (":low < n", ["number"]),
        ("n BETWEEN :low AND :high", ["number"]),
        ("NOT n > :low", ["none", "text"]),
        ("n > :low OR attribute_exists(k)", ["none", "number", "text"]),
        ("size(n) >= :low", ["text"]),
        ("size(n) >= :low OR attribute_exists(k)", ["none", "number", "text"]),
    ],
)
def test_values_of_different_types_are_compared_as_false(rig, tables, condition, found):
    rows = {"number": {"n": {"N": "5"}}, "text": {"n": {"S": "5"}}, "none": {}}
    for key, row in rows.items():
        tables.put_item(TableName="ttt", Item={"k": {"S": key}, **row})
    bounds = {name: value for name, value in ((":low", "1"), (":high", "9")) if name in condition}
    values = {name: {"N": value} for name, value in bounds.items()}
    scanned = tables.scan(TableName="ttt", FilterExpression=condition, ExpressionAttributeValues=values)
    assert sorted(item["k"]["S"] for item in scanned["Items"]) == found


@pytest.mark.parametrize(
    ("condition", "found"),
    [
        ("v = :true", ["true"]),
        ("v = :one", ["one"]),
        ("v = :null", ["null"]),
        ("v <> :one", ["none", "null", "true"]),
    ],
)
def test_equal_values_of_different_types_differ(rig, tables, condition, found):
    values = {"true": {"BOOL": True}, "one": {"N": "1"}, "null": {"NULL": True}}
    for key, row in {**{key: {"v": value} for key, value in values.items()}, "none": {}}.items():
        tables.put_item(TableName="ttt", Item={"k": {"S": key}, **row})
    name = condition.partition(":")[2]
    given = {f":{name}": values[name]}
    scanned = tables.scan(TableName="ttt", FilterExpression=condition, ExpressionAttributeValues=given)
    assert sorted(item["k"]["S"] for item in scanned["Items"]) == found


@pytest.mark.parametrize("operator", ["LT", "GE", "BEGINS_WITH", "CONTAINS"])
def test_a_legacy_condition_on_a_value_of_another_type_fails(rig, tables, operator):
    tables.put_item(TableName="ttt", Item={"k": {"S": "a"}, "n": {"N": "5"}})
    condition = {"ComparisonOperator": operator, "AttributeValueList": [{"S": "5"}]}
    change = {"n": {"Action": "PUT", "Value": {"N": "6"}}}
    arguments = {"TableName": "ttt", "Key": {"k": {"S": "a"}}, "AttributeUpdates": change}
    refusal = message(tables.update_item, **arguments, Expected={"n": condition})
    assert refusal.startswith("ConditionalCheckFailedException: ")


def test_time_to_live_is_not_set_to_its_present_state(rig, tables):
    def set_to(is_enabled: bool) -> dict:
        specification = {"Enabled": is_enabled, "AttributeName": "expires"}
        return {"TableName": "ttt", "TimeToLiveSpecification": specification}

    already = "ValidationException: TimeToLive is already"
    assert message(tables.update_time_to_live, **set_to(False)) == f"{already} disabled"
    tables.update_time_to_live(**set_to(True))
    assert message(tables.update_time_to_live, **set_to(True)) == f"{already} enabled"
    tables.update_time_to_live(**set_to(False))


def test_attributes_are_nested_32_levels_at_most(rig, tables):
    def nested(levels: int) -> dict:
        value: dict = {"S": "x"}
        for _ in range(levels):
            value = {"M": {"a": value}}
        return value

    tables.put_item(TableName="ttt", Item={"k": {"S": "flat"}, "v": nested(31)})
    assert "Nesting Levels" in message(
        tables.put_item, TableName="ttt", Item={"k": {"S": "deep"}, "v": nested(60)}
    )


def test_an_expression_has_at_most_four_kilobytes(rig, tables):
    change = {"TableName": "ttt", "Key": {"k": {"S": "x"}}, "ExpressionAttributeValues": {":v": {"S": "x"}}}
    many = ",".join(f"a{i} = :v" for i in range(20_000))
    assert "Expression size has exceeded" in message(
        tables.update_item, **change, UpdateExpression=f"SET {many}"
    )


def test_a_region_that_moto_does_not_know_is_refused(rig):
    client = rig.server.client("dynamodb", region_name="nowhere-1")
    assert "no region 'nowhere-1'" in message(client.list_tables)


# --- repeated transactions ---


def add(token: str, by: str = "1") -> dict:
    update = {
        "TableName": "ttt",
        "Key": {"k": {"S": "counter"}},
        "UpdateExpression": "ADD n :by",
        "ExpressionAttributeValues": {":by": {"N": by}},
    }
    return {"ClientRequestToken": token, "TransactItems": [{"Update": update}]}


def counted(tables) -> str:
    item = tables.get_item(TableName="ttt", Key={"k": {"S": "counter"}}, ConsistentRead=True)["Item"]
    return str(item["n"]["N"])


def test_a_transaction_that_comes_again_with_its_token_is_carried_out_once(rig, tables):
    for _ in range(3):
        tables.transact_write_items(**add("token-1"))
    assert counted(tables) == "1"
    tables.transact_write_items(**add("token-2"))
    assert counted(tables) == "2"
    rig.clock.advance(601)
    tables.transact_write_items(**add("token-1"))
    assert counted(tables) == "3"


def test_another_transaction_with_the_same_token_is_refused(rig, tables):
    tables.transact_write_items(**add("token-1"))
    assert message(tables.transact_write_items, **add("token-1", by="2")).startswith(
        "IdempotentParameterMismatchException"
    )
    assert counted(tables) == "1"


@pytest.mark.parametrize("condition", ["((((", "k = ", "k BETWEEN :x AND"])
def test_a_transaction_with_a_malformed_condition_is_refused_and_not_worth_a_retry(rig, tables, condition):
    check = {
        "ConditionCheck": {"TableName": "ttt", "Key": {"k": {"S": "a"}}, "ConditionExpression": condition}
    }
    put = {"Put": {"TableName": "ttt", "Item": {"k": {"S": "b"}}}}
    assert message(tables.transact_write_items, TransactItems=[put, check]).startswith(
        "ValidationException: "
    )
    assert tables.scan(TableName="ttt")["Count"] == 0


def test_a_transaction_that_was_refused_may_come_again_with_its_token(rig, tables):
    wrong = {"TableName": "ttt", "Item": {"k": {"S": "x"}}, "ConditionExpression": "attribute_exists(k)"}
    again = {"ClientRequestToken": "token-1", "TransactItems": [{"Put": wrong}]}
    for _ in range(2):
        assert message(tables.transact_write_items, **again).startswith("TransactionCanceledException")
    tables.put_item(TableName="ttt", Item={"k": {"S": "x"}})
    tables.transact_write_items(**again)


# --- CloudWatch ---

takes_json = pytest.mark.skipif(
    "json" not in service_model("cloudwatch").metadata["protocols"],
    reason="moto takes CloudWatch's JSON with botocore 1.43 or later, which the extra `local` asks for",
)


def form(metrics: list[dict[str, str]]) -> bytes:
    fields = {"Action": "PutMetricData", "Version": "2010-08-01", "Namespace": "n"}
    for i, metric in enumerate(metrics, 1):
        fields |= {f"MetricData.member.{i}.{name}": value for name, value in metric.items()}
    return urlencode(fields).encode()


def metrics_of(rig) -> list[tuple]:
    found = rig.client("cloudwatch").list_metrics(Namespace="n")["Metrics"]
    return [(m["MetricName"], [(d["Name"], d["Value"]) for d in m["Dimensions"]]) for m in found]


METRIC = {
    "MetricName": "m",
    "Value": "1.5",
    "Dimensions.member.1.Name": "d",
    "Dimensions.member.1.Value": "x y",
}


@takes_json
@pytest.mark.parametrize("packed", [False, True], ids=["plain", "gzip"])
def test_a_form_of_metrics_is_taken_plain_or_packed(rig, packed):
    body = form([METRIC, {"MetricName": "now", "Value": "1", "Timestamp": "2026-01-02T03:04:05Z"}])
    headers = {"Content-Type": FORM}
    if packed:
        body, headers = gzip.compress(body), {**headers, "Content-Encoding": "gzip"}
    status, answered, answer = send(rig, "/", body, headers)
    assert (status, answered["content-type"]) == (200, "text/xml")
    assert b"<PutMetricDataResponse" in answer
    assert metrics_of(rig) == [("m", [("d", "x y")]), ("now", [])]


@pytest.mark.parametrize(
    ("body", "code"),
    [
        (form([{"MetricName": "m", "Value": "much"}]), b"MalformedInput"),
        (form([{"MetricName": "m", "Value": "1"}] * 1001), b"ValidationError"),
        (b"Action=PutMetricData&Version=2010-08-01", b"ValidationException"),
        (form([]) + b"&MetricData.member.x.MetricName=m", b"ValidationException"),
        (form([]) + b"&MetricData=5", b"ValidationException"),
        (form([]) + b"&MetricData.member=5", b"ValidationException"),
        (form([]) + b"&" + b"a." * 50 + b"a=5", b"ValidationException"),
        (form([]) + b"&\xff=%ff", b"SerializationException"),
        (form([]) + b"&a=b" * 60_000, b"SerializationException"),
        (form([]) + b"&a=" + b"%" * 300_000, b"SerializationException"),
        (b"Action=ListMetrics&Version=2010-08-01" + b"&a=b" * 6_000, b"SerializationException"),
        (b"Action=Nonsense&Version=2010-08-01", b"InvalidAction"),
        (b"Action=Nonsense&Version=2011-06-15", b"InvalidAction"),
        (b"Action=GetMetricData&Version=2010-08-01&StartTime=soon&EndTime=later", b"MalformedInput"),
    ],
)
def test_a_form_that_the_service_refuses_is_refused_in_xml(rig, body, code):
    status, headers, answer = send(rig, "/", body, {"Content-Type": FORM})
    assert (status, headers["content-type"]) == (400, "text/xml")
    assert b"<Code>" + code in answer


def test_packed_bodies_are_bounded_and_whole(rig):
    headers = {"Content-Type": FORM, "Content-Encoding": "gzip"}
    assert send(rig, "/", gzip.compress(bytes(64 * 1024 * 1024)), headers)[0] == 413
    assert send(rig, "/", gzip.compress(form([METRIC]) + b"&" * 3_000_000), headers)[0] == 413
    assert send(rig, "/", b"no gzip", headers)[0] == 400
    assert send(rig, "/", gzip.compress(form([METRIC]))[:-4], headers)[0] == 400
    assert send(rig, "/", form([METRIC]), {**headers, "Content-Encoding": "br"})[0] == 415


def in_cbor(
    rig, operation: str, document: object, *, packed: bool = False
) -> tuple[int, dict[str, str], dict]:
    body = document if isinstance(document, bytes) else cbor2.dumps(document)
    headers = {"Content-Type": "application/cbor", "smithy-protocol": "rpc-v2-cbor"}
    if packed:
        body, headers = gzip.compress(body), {**headers, "Content-Encoding": "gzip"}
    path = f"/service/GraniteServiceVersion20100801/operation/{operation}"
    status, answered, answer = send(rig, path, body, headers)
    assert (answered["content-type"], answered["smithy-protocol"]) == ("application/cbor", "rpc-v2-cbor")
    return status, answered, cbor2.loads(answer)


@takes_json
def test_metrics_go_in_and_come_out_in_cbor(rig):
    at_s = 1_767_323_045
    for i, moment in enumerate((cbor2.CBORTag(1, at_s), cbor2.CBORTag(1, at_s + 0.5))):
        metric = {"MetricName": "m", "Value": float(i + 1), "Timestamp": moment}
        assert (
            in_cbor(rig, "PutMetricData", {"Namespace": "n", "MetricData": [metric]}, packed=i == 1)[0] == 200
        )
    query = {
        "Namespace": "n",
        "MetricName": "m",
        "StartTime": cbor2.CBORTag(1, at_s - 60),
        "EndTime": cbor2.CBORTag(1, at_s + 60),
        "Period": 60,
        "Statistics": ["Sum"],
    }
    status, _, answer = in_cbor(rig, "GetMetricStatistics", query)
    assert status == 200
    [point] = answer["Datapoints"]
    assert (point["Sum"], abs(point["Timestamp"].timestamp() - at_s) <= 60) == (3.0, True)


@pytest.mark.parametrize(
    ("operation", "document", "code"),
    [
        ("PutMetricData", [], "SerializationException"),
        ("PutMetricData", None, "SerializationException"),
        ("PutMetricData", b"\xff", "SerializationException"),
        ("PutMetricData", b"\x81" * 100_000, "SerializationException"),
        ("PutMetricData", {"Namespace": 5}, "SerializationException"),
        ("PutMetricData", {"Namespace": "n", "MetricData": [5]}, "SerializationException"),
        ("PutMetricData", {}, "ValidationException"),
        ("PutMetricData", {"Namespace": "n", "MetricData": [{"MetricName": "m"}] * 1001}, "ValidationError"),
        ("Nonsense", {}, "UnknownOperationException"),
    ],
)
def test_what_the_service_refuses_is_refused_in_cbor(rig, operation, document, code):
    status, headers, answer = in_cbor(rig, operation, document)
    assert (status, answer["__type"]) == (400, code)
    assert headers["x-amzn-query-error"] == f"{code};Sender"


@takes_json
def test_json_metrics_are_limited_too(rig):
    client = rig.client("cloudwatch")
    metrics = [{"MetricName": "m", "Value": 1.0}] * 1001
    assert "size greater than 1000" in message(client.put_metric_data, Namespace="n", MetricData=metrics)
    client.put_metric_data(Namespace="n", MetricData=metrics[:1000])


def test_a_scripted_fault_is_answered_in_cbor_too(rig):
    rig.faults.throttle("cloudwatch.PutMetricData")
    status, _, answer = in_cbor(rig, "PutMetricData", {"Namespace": "n"})
    assert (status, answer["__type"]) == (400, "Throttling")


def test_a_token_of_a_transaction_holds_with_a_state_folder_too(tmp_path):
    with LocalKinesis(limits=False, time_factor=0, state_dir=tmp_path) as kinesis:
        client = kinesis.client("dynamodb")
        client.create_table(TableName="ttt", **KEYED)
        for _ in range(2):
            client.transact_write_items(**add("token-1"))
        assert counted(client) == "1"


def test_an_item_of_thousands_of_attributes_is_stored_and_the_size_limit_kept(rig, tables):
    wide = {f"a{i}": {"N": "1"} for i in range(5000)}
    tables.put_item(TableName="ttt", Item={"k": {"S": "wide"}, **wide})
    assert len(tables.get_item(TableName="ttt", Key={"k": {"S": "wide"}})["Item"]) == 5001
    heavy = {f"a{i}": {"S": "x" * 100} for i in range(5000)}
    assert "Item size has exceeded" in message(
        tables.put_item, TableName="ttt", Item={"k": {"S": "x"}, **heavy}
    )


def test_an_unknown_member_of_every_kind_is_no_fault(rig, tables):
    document = {"TableName": "ttt", **{f"Unknown{i}": [] for i in range(50_000)}}
    status, _, answer = send(
        rig, "/", json.dumps(document).encode(), {"X-Amz-Target": "DynamoDB_20120810.Scan"}
    )
    assert (status, json.loads(answer)["Count"]) == (200, 0)
