"""Tables of every shape that UpdateTable and its like can give them, kept over a crash and over an orderly stop."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from typing import Any

import pytest
from botocore.exceptions import ClientError
from tests.local.conftest import ONE_ATTEMPT

from penstock_local import LocalKinesis
from penstock_local.moto_account import MotoAccount

Change = Callable[[Any, str], object]

CASES: dict[str, Change] = {}
UNITS = {"ReadCapacityUnits": 3, "WriteCapacityUnits": 4}
TEXT, NUMBER = "S", "N"


def case(change: Change) -> Change:
    CASES[change.__name__] = change
    return change


def define(**types: str) -> list[dict[str, str]]:
    return [{"AttributeName": name, "AttributeType": kind} for name, kind in types.items()]


def key(hash_key: str, range_key: str | None = None) -> list[dict[str, str]]:
    found = [{"AttributeName": hash_key, "KeyType": "HASH"}]
    return found if range_key is None else [*found, {"AttributeName": range_key, "KeyType": "RANGE"}]


def index(name: str, *keys: str, projection: str = "ALL", **more: Any) -> dict[str, Any]:
    return {"IndexName": name, "KeySchema": key(*keys), "Projection": {"ProjectionType": projection}, **more}


def make(client: Any, name: str, **options: Any) -> None:
    """Make a table with one global index by default, and put an item in it."""
    described = {
        "AttributeDefinitions": define(id=TEXT, owner=TEXT),
        "KeySchema": key("id"),
        "BillingMode": "PAY_PER_REQUEST",
        "GlobalSecondaryIndexes": [index("ByOwner", "owner", projection="KEYS_ONLY")],
        **options,
    }
    client.create_table(
        TableName=name, **{name: value for name, value in described.items() if value is not None}
    )
    client.put_item(
        TableName=name, Item={"id": {"S": "1"}, "owner": {"S": "me"}, "zone": {"S": "a"}, "n": {"N": "5"}}
    )


def update_indexes(client: Any, name: str, *updates: dict[str, Any], **options: Any) -> None:
    client.update_table(TableName=name, GlobalSecondaryIndexUpdates=list(updates), **options)


# -- indexes ------------------------------------------------------------------------------------------------


@case
def a_global_index_was_deleted(client, name):
    make(client, name)
    update_indexes(client, name, {"Delete": {"IndexName": "ByOwner"}})


@case
def a_second_index_was_added_with_all_attributes(client, name):
    make(client, name)
    both = define(id=TEXT, owner=TEXT, zone=TEXT)
    update_indexes(client, name, {"Create": index("ByZone", "zone", "id")}, AttributeDefinitions=both)


@case
def a_second_index_was_added_with_its_own_attribute_only(client, name):
    make(client, name)
    update_indexes(client, name, {"Create": index("ByZone", "zone")}, AttributeDefinitions=define(zone=TEXT))
    client.put_item(TableName=name, Item={"id": {"S": "2"}, "zone": {"S": "b"}})


@case
def an_index_was_added_without_definitions(client, name):
    make(client, name)
    update_indexes(client, name, {"Create": index("ByZone", "zone")})


@case
def an_index_was_deleted_and_another_one_took_its_name(client, name):
    make(client, name)
    update_indexes(client, name, {"Delete": {"IndexName": "ByOwner"}})
    update_indexes(
        client, name, {"Create": index("ByOwner", "n")}, AttributeDefinitions=define(id=TEXT, n=NUMBER)
    )


@case
def the_throughput_of_an_index_was_changed(client, name):
    made = index("ByOwner", "owner", ProvisionedThroughput=UNITS)
    make(client, name, BillingMode="PROVISIONED", ProvisionedThroughput=UNITS, GlobalSecondaryIndexes=[made])
    more = {"ReadCapacityUnits": 7, "WriteCapacityUnits": 8}
    update_indexes(client, name, {"Update": {"IndexName": "ByOwner", "ProvisionedThroughput": more}})


@case
def local_indexes_and_projections(client, name):
    include = index("LocalByN", "id", "n")
    include["Projection"] = {"ProjectionType": "INCLUDE", "NonKeyAttributes": ["zone"]}
    make(
        client,
        name,
        AttributeDefinitions=define(id=TEXT, owner=TEXT, n=NUMBER),
        KeySchema=key("id", "owner"),
        LocalSecondaryIndexes=[include],
        GlobalSecondaryIndexes=None,
    )


# -- the table's own settings -------------------------------------------------------------------------------


@case
def its_billing_became_provisioned(client, name):
    make(client, name, GlobalSecondaryIndexes=None, AttributeDefinitions=define(id=TEXT))
    client.update_table(TableName=name, BillingMode="PROVISIONED", ProvisionedThroughput=UNITS)


@case
def its_billing_became_on_demand(client, name):
    options = {"BillingMode": "PROVISIONED", "ProvisionedThroughput": UNITS}
    make(client, name, GlobalSecondaryIndexes=None, AttributeDefinitions=define(id=TEXT), **options)
    client.update_table(TableName=name, BillingMode="PAY_PER_REQUEST")


@case
def a_stream_was_turned_on(client, name):
    make(client, name)
    client.update_table(
        TableName=name, StreamSpecification={"StreamEnabled": True, "StreamViewType": "KEYS_ONLY"}
    )


@case
def a_stream_was_turned_off(client, name):
    make(client, name, StreamSpecification={"StreamEnabled": True, "StreamViewType": "NEW_IMAGE"})
    client.update_table(TableName=name, StreamSpecification={"StreamEnabled": False})


@case
def it_is_protected_encrypted_and_warm(client, name):
    warm = {"ReadUnitsPerSecond": 13000, "WriteUnitsPerSecond": 5000}
    make(
        client, name, SSESpecification={"Enabled": True}, DeletionProtectionEnabled=True, WarmThroughput=warm
    )


@case
def its_protection_was_lifted(client, name):
    make(client, name, DeletionProtectionEnabled=True)
    client.update_table(TableName=name, DeletionProtectionEnabled=False)


@case
def its_time_to_live_is_on(client, name):
    make(client, name)
    expire(client, name, enabled=True)


@case
def its_time_to_live_was_turned_off(client, name):
    make(client, name)
    expire(client, name, enabled=True)
    expire(client, name, enabled=False)


def expire(client: Any, name: str, *, enabled: bool) -> None:
    how = {"Enabled": enabled, "AttributeName": "expires"}
    client.update_time_to_live(TableName=name, TimeToLiveSpecification=how)


@case
def it_can_be_recovered_for_nine_days(client, name):
    make(client, name)
    how = {"PointInTimeRecoveryEnabled": True, "RecoveryPeriodInDays": 9}
    client.update_continuous_backups(TableName=name, PointInTimeRecoverySpecification=how)


@case
def its_tags_were_changed(client, name):
    make(client, name, Tags=[{"Key": "a", "Value": "1"}, {"Key": "b", "Value": "2"}])
    arn = client.describe_table(TableName=name)["Table"]["TableArn"]
    client.tag_resource(ResourceArn=arn, Tags=[{"Key": "c", "Value": "3"}])
    client.untag_resource(ResourceArn=arn, TagKeys=["a"])


@case
def it_has_a_policy(client, name):
    make(client, name)
    arn = client.describe_table(TableName=name)["Table"]["TableArn"]
    client.put_resource_policy(ResourceArn=arn, Policy='{"Version": "2012-10-17"}')


@case
def it_has_backups_and_came_from_one(client, name):
    make(client, f"{name}.source")
    details = client.create_backup(TableName=f"{name}.source", BackupName="kept")["BackupDetails"]
    gone = client.create_backup(TableName=f"{name}.source", BackupName="gone")["BackupDetails"]
    client.delete_backup(BackupArn=gone["BackupArn"])
    client.restore_table_from_backup(TargetTableName=name, BackupArn=details["BackupArn"])
    client.delete_table(TableName=f"{name}.source")


@case
def it_was_restored_to_a_point_in_time(client, name):
    make(client, f"{name}.source")
    client.restore_table_to_point_in_time(
        SourceTableName=f"{name}.source", TargetTableName=name, UseLatestRestorableTime=True
    )
    client.delete_item(TableName=f"{name}.source", Key={"id": {"S": "1"}})


@case
def it_was_deleted_and_made_again(client, name):
    make(client, name)
    client.delete_table(TableName=name)
    make(client, name, Tags=[{"Key": "second", "Value": "1"}])


# -- items --------------------------------------------------------------------------------------------------


@case
def items_of_every_type(client, name):
    client.create_table(
        TableName=name,
        KeySchema=key("k", "r"),
        AttributeDefinitions=define(k="B", r=NUMBER),
        BillingMode="PAY_PER_REQUEST",
    )
    nested = {"L": [{"M": {"b": {"B": b"\x00\xff"}, "n": {"N": "1.50"}}}, {"NULL": True}, {"L": []}]}
    item = {
        "k": {"B": b"\x01\x02"},
        "r": {"N": "-1.5"},
        "text": {"S": "ß\u2028\x00"},
        "nothing": {"S": ""},
        "yes": {"BOOL": True},
        "none": {"NULL": True},
        "nested": nested,
        "map": {"M": {}},
        "texts": {"SS": ["b", "a"]},
        "numbers": {"NS": ["2", "1"]},
        "bytes": {"BS": [b"\x02", b"\x01"]},
        "large": {"N": "1" * 38},
    }
    client.put_item(TableName=name, Item=item)
    client.put_item(TableName=name, Item={"k": {"B": b"\x01\x02"}, "r": {"N": "7"}})
    client.put_item(TableName=name, Item={"k": {"B": b"\x01\x02"}, "r": {"N": "7.0"}, "same": {"S": "key"}})
    client.update_item(
        TableName=name,
        Key={"k": {"B": b"\x01\x02"}, "r": {"N": "-1.5"}},
        UpdateExpression="SET nested[0].n = :n ADD texts :t REMOVE nothing",
        ExpressionAttributeValues={":n": {"N": "2"}, ":t": {"SS": ["c"]}},
    )


@case
def items_that_came_in_every_way(client, name):
    make(client, name)
    ids = ("put", "updated", "batch", "transact", "statement", "legacy", "gone 1", "gone 2", "gone 3")
    for each in ids:
        client.put_item(TableName=name, Item={"id": {"S": each}, "n": {"N": "0"}})
    client.update_item(
        TableName=name, Key={"id": {"S": "new"}}, AttributeUpdates={"n": {"Value": {"N": "1"}}}
    )
    client.update_item(
        TableName=name,
        Key={"id": {"S": "legacy"}},
        AttributeUpdates={"n": {"Value": {"N": "4"}, "Action": "ADD"}},
    )
    increase = {"UpdateExpression": "SET n = n + :one", "ExpressionAttributeValues": {":one": {"N": "1"}}}
    client.update_item(TableName=name, Key={"id": {"S": "updated"}}, **increase)
    client.delete_item(TableName=name, Key={"id": {"S": "gone 1"}})
    client.batch_write_item(
        RequestItems={
            name: [
                {"PutRequest": {"Item": {"id": {"S": "batch"}, "n": {"N": "2"}}}},
                {"DeleteRequest": {"Key": {"id": {"S": "gone 2"}}}},
            ]
        }
    )
    client.transact_write_items(
        TransactItems=[
            {"Update": {"TableName": name, "Key": {"id": {"S": "transact"}}, **increase}},
            {"Delete": {"TableName": name, "Key": {"id": {"S": "gone 3"}}}},
            {"Put": {"TableName": name, "Item": {"id": {"S": "transact 2"}}}},
        ]
    )
    client.execute_statement(Statement=f"DELETE FROM \"{name}\" WHERE id = 'statement'")
    client.execute_statement(Statement=f"INSERT INTO \"{name}\" VALUE {{'id': 'inserted'}}")
    arn = client.describe_table(TableName=name)["Table"]["TableArn"]
    client.put_item(TableName=arn, Item={"id": {"S": "by arn"}})


@case
def what_was_refused_is_not_there(client, name):
    make(client, name)
    wrong = {"UpdateExpression": "SET n = n + :t", "ExpressionAttributeValues": {":t": {"S": "no number"}}}
    condition = {"ConditionExpression": "attribute_exists(nothing)"}
    for call, arguments in (
        (client.update_item, {"Key": {"id": {"S": "new"}}, **wrong}),
        (client.update_item, {"Key": {"id": {"S": "1"}}, **wrong}),
        (client.put_item, {"Item": {"id": {"S": "1"}, "x": {"S": "no"}}, **condition}),
        (client.delete_item, {"Key": {"id": {"S": "1"}}, **condition}),
    ):
        with pytest.raises(ClientError):
            call(TableName=name, **arguments)
    with pytest.raises(ClientError):
        client.transact_write_items(
            TransactItems=[
                {"Put": {"TableName": name, "Item": {"id": {"S": "half"}}}},
                {"Delete": {"TableName": name, "Key": {"id": {"S": "1"}}, **condition}},
            ]
        )
    assert [item["id"]["S"] for item in client.scan(TableName=name)["Items"]] == ["1"]


# -- the test -----------------------------------------------------------------------------------------------


def shown(client: Any, name: str) -> dict[str, Any]:
    """All that DynamoDB returns about a table."""
    table = client.describe_table(TableName=name)["Table"]
    arn = table["TableArn"]
    found = {
        "table": table,
        "items": client.scan(TableName=name)["Items"],
        "time to live": client.describe_time_to_live(TableName=name)["TimeToLiveDescription"],
        "recovery": client.describe_continuous_backups(TableName=name)["ContinuousBackupsDescription"],
        "tags": client.list_tags_of_resource(ResourceArn=arn)["Tags"],
        "backups": [
            client.describe_backup(BackupArn=backup["BackupArn"])["BackupDescription"]
            for backup in client.list_backups()["BackupSummaries"]
        ],
        "indexes": {
            each["IndexName"]: client.scan(TableName=name, IndexName=each["IndexName"])["Items"]
            for each in table.get("GlobalSecondaryIndexes", [])
        },
    }
    if name == it_has_a_policy.__name__:
        policy = client.get_resource_policy(ResourceArn=arn)
        found["policy"] = policy["Policy"], policy["RevisionId"]
    return found


def everything(kinesis: LocalKinesis) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for region in ("us-east-1", "eu-central-1"):
        client = kinesis.client("dynamodb", config=ONE_ATTEMPT, region_name=region)
        names = client.list_tables()["TableNames"]
        found[f"tables in {region}"] = names
        found.update({f"{name} {region}": shown(client, name) for name in names})
    found["streams"] = kinesis.client("kinesis").list_streams()["StreamNames"]
    return found


@pytest.fixture(scope="module")
def over_crash_and_stop(tmp_path_factory) -> tuple[dict[str, Any], dict[str, Any], dict[str, Any]]:
    """The tables before, after a crash, and after an orderly stop that followed it."""
    folder = tmp_path_factory.mktemp("kept")
    with LocalKinesis(limits=False, state_dir=folder / "state") as kinesis:
        kinesis.create_stream("a-stream-beside-the-tables")
        client = kinesis.client("dynamodb", config=ONE_ATTEMPT)
        for name, change in CASES.items():
            change(client, name)
        make(kinesis.client("dynamodb", config=ONE_ATTEMPT, region_name="eu-central-1"), "elsewhere")
        before = everything(kinesis)
        shutil.copytree(folder / "state", folder / "crashed")
    with LocalKinesis(limits=False, state_dir=folder / "crashed") as kinesis:
        after_crash = everything(kinesis)
    with LocalKinesis(limits=False, state_dir=folder / "crashed") as kinesis:
        return before, after_crash, everything(kinesis)


@pytest.mark.parametrize("name", CASES)
def test_a_table_is_shown_as_it_was(over_crash_and_stop, name):
    before, after_crash, after_stop = (shown[f"{name} us-east-1"] for shown in over_crash_and_stop)
    assert after_crash == before
    assert after_stop == before


def test_nothing_else_is_there(over_crash_and_stop):
    before, after_crash, after_stop = over_crash_and_stop
    assert {name for name in before if name.endswith("us-east-1")} > {f"{name} us-east-1" for name in CASES}
    assert after_crash == before
    assert after_stop == before


def test_tables_go_on_after_a_restart(tmp_path):
    for number in range(3):
        with LocalKinesis(limits=False, state_dir=tmp_path) as kinesis:
            client = kinesis.client("dynamodb", config=ONE_ATTEMPT)
            if number == 0:
                a_second_index_was_added_with_its_own_attribute_only(client, "table")
            client.put_item(TableName="table", Item={"id": {"S": f"later {number}"}, "zone": {"S": "z"}})
            ask = {"KeyConditionExpression": "#z = :z", "ExpressionAttributeNames": {"#z": "zone"}}
            found = client.query(
                TableName="table", IndexName="ByZone", ExpressionAttributeValues={":z": {"S": "z"}}, **ask
            )
            assert found["Count"] == number + 1
            update_indexes(
                client,
                "table",
                {"Create": index(f"Index{number}", "n")},
                AttributeDefinitions=define(id=TEXT, n=NUMBER),
            )
            assert (
                len(client.describe_table(TableName="table")["Table"]["GlobalSecondaryIndexes"]) == number + 3
            )


def test_records_of_a_table_stream_do_not_take_old_numbers_after_a_restart(tmp_path):
    numbers: list[int] = []
    for _ in range(2):
        with LocalKinesis(limits=False, state_dir=tmp_path) as kinesis:
            client = kinesis.client("dynamodb", config=ONE_ATTEMPT)
            if not numbers:
                how = {"StreamEnabled": True, "StreamViewType": "NEW_IMAGE"}
                make(client, "table", StreamSpecification=how)
            client.put_item(TableName="table", Item={"id": {"S": str(len(numbers))}})
            streams = kinesis.client("dynamodbstreams", config=ONE_ATTEMPT)
            arn = client.describe_table(TableName="table")["Table"]["LatestStreamArn"]
            (shard,) = streams.describe_stream(StreamArn=arn)["StreamDescription"]["Shards"]
            iterator = streams.get_shard_iterator(
                StreamArn=arn, ShardId=shard["ShardId"], ShardIteratorType="TRIM_HORIZON"
            )
            records = streams.get_records(ShardIterator=iterator["ShardIterator"])["Records"]
            numbers += [int(record["dynamodb"]["SequenceNumber"]) for record in records]
    assert len(numbers) == 3
    assert numbers == sorted(set(numbers))


def test_what_cannot_be_kept_is_refused_and_does_not_stand(tmp_path, monkeypatch):
    accounts, tables_of = [], MotoAccount.tables

    def tables(account, region):
        accounts.append(account)
        return tables_of(account, region)

    monkeypatch.setattr(MotoAccount, "tables", tables)
    with LocalKinesis(limits=False, state_dir=tmp_path) as kinesis:
        client = kinesis.client("dynamodb", config=ONE_ATTEMPT)
        make(client, "table")
        before = shown(client, "table")
        tables_of(accounts[0], "us-east-1").tables["table"].odd = object()
        with pytest.raises(ClientError, match="penstock-local cannot keep this") as caught:
            client.update_table(TableName="table", BillingMode="PROVISIONED", ProvisionedThroughput=UNITS)
        assert caught.value.response["ResponseMetadata"]["HTTPStatusCode"] == 500
        assert shown(client, "table") == before
    with LocalKinesis(limits=False, state_dir=tmp_path) as kinesis:
        assert shown(kinesis.client("dynamodb", config=ONE_ATTEMPT), "table") == before
