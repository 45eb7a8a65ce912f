"""The settings of a stream (encryption, monitoring, policy, warm throughput), and dry runs."""

from __future__ import annotations

import json
from urllib import request

import pytest
from botocore.exceptions import ClientError

from local.error_codes import code
from penstock_local import LocalKinesis, cbor, request_model

FIRST = "shardId-000000000000"
KEY = {"EncryptionType": "KMS", "KeyId": "alias/aws/kinesis"}
asks_in_new_words = pytest.mark.skipif(
    "ListQueues" not in request_model.operations(),
    reason="this boto3 has no words for what is asked: the newest one has",
)


# --- encryption ---


def test_encryption_is_shown_by_the_stream_and_by_what_was_put_meanwhile(rig):
    rig.server.create_stream("s")
    rig.put_at("s", 0, b"plain")
    rig.kinesis.start_stream_encryption(StreamName="s", **KEY)
    assert rig.summary("s")["StreamStatus"] == "UPDATING"
    assert code(rig.kinesis.stop_stream_encryption, StreamName="s", **KEY) == "ResourceInUseException"
    rig.settle()
    assert {n: rig.summary("s")[n] for n in KEY} == KEY
    described = rig.kinesis.describe_stream(StreamName="s")["StreamDescription"]
    assert {n: described[n] for n in KEY} == KEY
    entry = {"Data": b"sealed", "PartitionKey": 'k","EncryptionType":"KMS'}
    assert rig.kinesis.put_record(StreamName="s", **entry)["EncryptionType"] == "KMS"
    assert rig.kinesis.put_records(StreamName="s", Records=[entry])["EncryptionType"] == "KMS"
    rig.kinesis.stop_stream_encryption(StreamName="s", **KEY)
    rig.settle()
    assert (rig.summary("s")["EncryptionType"], "KeyId" in rig.summary("s")) == ("NONE", False)
    assert "EncryptionType" not in rig.kinesis.put_record(StreamName="s", **entry)
    records = rig.kinesis.get_records(ShardIterator=rig.iterator("s"))["Records"]
    assert [(r["Data"], r["PartitionKey"], r.get("EncryptionType")) for r in records] == [
        (b"plain", "k", None),
        (b"sealed", entry["PartitionKey"], "KMS"),
        (b"sealed", entry["PartitionKey"], "KMS"),
        (b"sealed", entry["PartitionKey"], None),
    ]


def test_encryption_is_started_25_times_a_day_at_most(limited):
    limited.server.create_stream("s")
    for _ in range(25):
        limited.kinesis.start_stream_encryption(StreamName="s", **KEY)
        limited.settle()
    assert code(limited.kinesis.start_stream_encryption, StreamName="s", **KEY) == "LimitExceededException"
    limited.clock.advance(24 * 3600)
    limited.kinesis.start_stream_encryption(StreamName="s", **KEY)


def test_encryption_without_a_key_service_is_refused(rig):
    rig.server.create_stream("s")
    bad = {"EncryptionType": "NONE", "KeyId": "x"}
    assert code(rig.kinesis.start_stream_encryption, StreamName="s", **bad) == "InvalidArgumentException"


# --- monitoring, policy ---


def test_shard_metrics_are_added_and_taken_away(rig):
    rig.server.create_stream("s")
    enable, disable = rig.kinesis.enable_enhanced_monitoring, rig.kinesis.disable_enhanced_monitoring
    answer = enable(StreamName="s", ShardLevelMetrics=["OutgoingBytes", "IncomingBytes"])
    assert (answer["CurrentShardLevelMetrics"], answer["DesiredShardLevelMetrics"]) == (
        [],
        ["IncomingBytes", "OutgoingBytes"],
    )
    assert len(enable(StreamName="s", ShardLevelMetrics=["ALL"])["DesiredShardLevelMetrics"]) == 7
    disable(StreamName="s", ShardLevelMetrics=["IncomingBytes"])
    shown = rig.summary("s")["EnhancedMonitoring"][0]["ShardLevelMetrics"]
    assert (len(shown), "IncomingBytes" in shown) == (6, False)
    disable(StreamName="s", ShardLevelMetrics=["ALL"])
    assert rig.summary("s")["EnhancedMonitoring"] == [{"ShardLevelMetrics": []}]
    assert code(enable, StreamName="s", ShardLevelMetrics=["Nonsense"]) == "ValidationException"


def a_stream(rig) -> str:
    return rig.server.create_stream("s")


def a_consumer(rig) -> str:
    arn = rig.server.create_stream("s")
    return rig.kinesis.register_stream_consumer(StreamARN=arn, ConsumerName="c")["Consumer"]["ConsumerARN"]


def a_queue(rig) -> str:
    rig.kinesis.create_stream(StreamName="s", StreamModeDetails={"StreamMode": "ON_DEMAND"})
    rig.clock.advance(1)
    arn = rig.summary("s")["StreamARN"]
    created = rig.kinesis.create_queue(QueueName="q", StreamConfigurationList=[{"StreamARN": arn}])
    return created["QueueDescription"]["QueueARN"]


@pytest.mark.parametrize("create", [a_stream, a_consumer, a_queue])
def test_a_policy_is_kept_given_back_and_forgotten(rig, create):
    arn = create(rig)
    policy = json.dumps({"Version": "2012-10-17", "Statement": []})
    rig.kinesis.put_resource_policy(ResourceARN=arn, Policy=policy)
    assert rig.kinesis.get_resource_policy(ResourceARN=arn)["Policy"] == policy
    rig.kinesis.delete_resource_policy(ResourceARN=arn)
    assert rig.kinesis.get_resource_policy(ResourceARN=arn)["Policy"] == "{}"
    assert code(rig.kinesis.delete_resource_policy, ResourceARN=arn) == "ResourceNotFoundException"
    for bad in ("no JSON", "[]", "[" * 10_000, "{}"):
        assert (
            code(rig.kinesis.put_resource_policy, ResourceARN=arn, Policy=bad) == "InvalidArgumentException"
        )


# --- account, capacity ---


@asks_in_new_words
def test_a_commitment_lasts_for_a_day_at_least(rig):
    describe, update = rig.kinesis.describe_account_settings, rig.kinesis.update_account_settings
    assert describe()["MinimumThroughputBillingCommitment"] == {"Status": "DISABLED"}
    update(MinimumThroughputBillingCommitment={"Status": "ENABLED"})
    assert describe()["MinimumThroughputBillingCommitment"]["Status"] == "ENABLED"
    rig.clock.advance(3600)
    answer = update(MinimumThroughputBillingCommitment={"Status": "DISABLED"})
    assert answer["MinimumThroughputBillingCommitment"]["Status"] == "ENABLED_UNTIL_EARLIEST_ALLOWED_END"
    rig.clock.advance(23 * 3600)
    ended = describe()["MinimumThroughputBillingCommitment"]
    assert ended["Status"] == "DISABLED"
    assert (ended["EndedAt"] - ended["StartedAt"]).total_seconds() == 24 * 3600


def on_demand(rig, name: str, **options) -> str:
    rig.kinesis.create_stream(StreamName=name, StreamModeDetails={"StreamMode": "ON_DEMAND"}, **options)
    rig.settle()
    return str(rig.summary(name)["StreamARN"])


@asks_in_new_words
def test_warm_throughput_is_for_committed_accounts_and_brings_shards(rig):
    arn = on_demand(rig, "s")
    warm = rig.kinesis.update_stream_warm_throughput
    assert code(warm, StreamARN=arn, WarmThroughputMiBps=10) == "ValidationException"
    rig.kinesis.update_account_settings(MinimumThroughputBillingCommitment={"Status": "ENABLED"})
    answer = warm(StreamARN=arn, WarmThroughputMiBps=10)
    assert answer["WarmThroughput"] == {"TargetMiBps": 10, "CurrentMiBps": 4}
    assert rig.summary("s")["StreamStatus"] == "UPDATING"
    rig.settle()
    assert rig.summary("s")["WarmThroughput"] == {"TargetMiBps": 10, "CurrentMiBps": 10}
    assert len(rig.open_shards("s")) == 10
    assert code(warm, StreamARN=arn, WarmThroughputMiBps=20_000) == "LimitExceededException"
    on_demand(rig, "t", WarmThroughputMiBps=8)
    assert len(rig.open_shards("t")) == 8
    provisioned = rig.server.create_stream("p")
    assert code(warm, StreamARN=provisioned, WarmThroughputMiBps=10) == "ValidationException"


def test_an_on_demand_stream_is_not_split_or_merged_by_hand(rig):
    arn = on_demand(rig, "s")
    split = {"StreamName": "s", "ShardToSplit": FIRST, "NewStartingHashKey": "1000"}
    merge = {"StreamName": "s", "ShardToMerge": FIRST, "AdjacentShardToMerge": FIRST[:-1] + "1"}
    assert code(rig.kinesis.split_shard, **split) == "ValidationException"
    assert code(rig.kinesis.merge_shards, **merge) == "ValidationException"
    rig.kinesis.update_stream_mode(StreamARN=arn, StreamModeDetails={"StreamMode": "PROVISIONED"})
    rig.settle()
    rig.kinesis.split_shard(**split)


def test_an_account_has_at_most_50_on_demand_streams_in_a_region(limited):
    def create(name: str, client=limited.kinesis) -> None:
        client.create_stream(StreamName=name, StreamModeDetails={"StreamMode": "ON_DEMAND"})
        limited.settle()

    for i in range(50):
        create(f"s{i}")
    assert code(create, name="one-more") == "LimitExceededException"
    arn = limited.server.create_stream("p")
    switch = {"StreamARN": arn, "StreamModeDetails": {"StreamMode": "ON_DEMAND"}}
    assert code(limited.kinesis.update_stream_mode, **switch) == "LimitExceededException"
    create("elsewhere", limited.server.client("kinesis", region_name="eu-west-1"))


@asks_in_new_words
def test_records_of_an_auto_stream_go_to_the_shards_in_turn_with_or_without_a_key(rig):
    rig.kinesis.create_stream(
        StreamName="s", StreamModeDetails={"StreamMode": "ON_DEMAND"}, RecordDistributionStrategy="AUTO"
    )
    rig.settle()
    assert rig.summary("s")["RecordDistributionStrategy"] == "AUTO"
    put = rig.kinesis.put_record
    shards = [put(StreamName="s", Data=b"a", PartitionKey="k", ExplicitHashKey="0")["ShardId"]]
    shards += [put(StreamName="s", Data=b"b")["ShardId"]]
    answer = rig.kinesis.put_records(StreamName="s", Records=[{"Data": b"c"}, {"Data": b"d"}])
    shards += [entry["ShardId"] for entry in answer["Records"]]
    assert sorted(shards) == rig.open_shards("s")
    records = {}
    for shard in shards:
        for record in rig.kinesis.get_records(ShardIterator=rig.iterator("s", shard))["Records"]:
            records[record["Data"]] = record.get("PartitionKey", "none")
    assert records == {b"a": "k", b"b": "none", b"c": "none", b"d": "none"}


@asks_in_new_words
def test_a_record_without_a_key_is_the_same_in_cbor(rig):
    rig.kinesis.create_stream(
        StreamName="s", StreamModeDetails={"StreamMode": "ON_DEMAND"}, RecordDistributionStrategy="AUTO"
    )
    rig.settle()
    rig.kinesis.start_stream_encryption(StreamName="s", **KEY)
    rig.settle()
    shard = rig.kinesis.put_record(StreamName="s", Data=b"a")["ShardId"]
    raw = request.Request(
        rig.server.endpoint_url,
        cbor.encode({"ShardIterator": rig.iterator("s", shard)}),
        {"X-Amz-Target": "Kinesis_20131202.GetRecords", "Content-Type": "application/x-amz-cbor-1.1"},
    )
    with request.urlopen(raw, timeout=60) as answer:
        (record,) = cbor.decode(answer.read())["Records"]
    assert record.keys() == {"SequenceNumber", "ApproximateArrivalTimestamp", "Data", "EncryptionType"}
    assert record["Data"] == b"a"


@asks_in_new_words
def test_the_distribution_changes_at_once_and_is_for_on_demand_streams(rig):
    arn = on_demand(rig, "s")
    update, put = rig.kinesis.update_stream_record_distribution_strategy, rig.kinesis.put_record
    assert rig.summary("s")["RecordDistributionStrategy"] == "USER_PARTITION_KEY"
    assert code(put, StreamName="s", Data=b"a") == "ValidationException"
    update(StreamARN=arn, RecordDistributionStrategy="AUTO")
    assert code(put, StreamName="s", Data=b"a") == "ok"
    update(StreamARN=arn, RecordDistributionStrategy="USER_PARTITION_KEY")
    assert code(put, StreamName="s", Data=b"a") == "ValidationException"
    provisioned = rig.server.create_stream("p")
    assert (
        code(update, StreamARN=provisioned, RecordDistributionStrategy="AUTO") == "InvalidArgumentException"
    )
    assert "RecordDistributionStrategy" not in rig.summary("p")


def test_settings_survive_a_restart(tmp_path):
    options = {"limits": False, "time_factor": 0, "state_dir": tmp_path}
    policy = json.dumps({"Statement": []})
    with LocalKinesis(**options) as kinesis:
        arn = kinesis.create_stream("s")
        client = kinesis.client("kinesis")
        client.put_resource_policy(ResourceARN=arn, Policy=policy)
        registered = client.register_stream_consumer(StreamARN=arn, ConsumerName="c")["Consumer"]
        client.put_resource_policy(ResourceARN=registered["ConsumerARN"], Policy=policy)
        client.start_stream_encryption(StreamName="s", **KEY)
        kinesis.client("kinesis", region_name="eu-west-1").create_stream(StreamName="s", ShardCount=2)
        kinesis.clock.advance(1)
        client.put_record(StreamName="s", Data=b"x", PartitionKey="k")
    with LocalKinesis(**options) as kinesis:
        client = kinesis.client("kinesis")
        for resource in (arn, registered["ConsumerARN"]):
            assert client.get_resource_policy(ResourceARN=resource)["Policy"] == policy
        assert (
            client.describe_stream_summary(StreamName="s")["StreamDescriptionSummary"]["KeyId"]
            == KEY["KeyId"]
        )
        there = kinesis.client("kinesis", region_name="eu-west-1")
        assert len(there.list_shards(StreamName="s")["Shards"]) == 2
        assert len(client.list_shards(StreamName="s")["Shards"]) == 1


# --- dry runs ---


@asks_in_new_words
def test_a_dry_run_answers_that_it_would_have_succeeded_and_does_nothing(rig):
    rig.server.create_stream("s")
    entry = {"Data": b"x", "PartitionKey": "k"}
    iterator = rig.iterator("s")
    for call, arguments in (
        (rig.kinesis.put_record, {"StreamName": "s", **entry}),
        (rig.kinesis.put_records, {"StreamName": "s", "Records": [entry]}),
        (rig.kinesis.get_records, {"ShardIterator": iterator}),
        (
            rig.kinesis.get_shard_iterator,
            {"StreamName": "s", "ShardId": FIRST, "ShardIteratorType": "LATEST"},
        ),
    ):
        assert rig.refused(call, **arguments, DryRun=True) == ("DryRunOperationException", 400)
    assert rig.read("s") == []
    missing = {"StreamName": "none", **entry}
    assert code(rig.kinesis.put_record, **missing, DryRun=True) == "ResourceNotFoundException"
    rig.kinesis.put_record(StreamName="s", **entry, DryRun=False)
    assert rig.read("s") == [b"x"]


# --- regions, listings, tags ---


def test_a_name_is_another_stream_in_every_region(rig):
    rig.server.create_stream("s")
    there = rig.server.client("kinesis", region_name="eu-west-1")
    with pytest.raises(
        ClientError, match=r"not found\. The call is for region eu-west-1; there is one in us-east-1"
    ):
        there.describe_stream_summary(StreamName="s")
    there.create_stream(StreamName="s", ShardCount=2)
    rig.settle()
    assert [s["StreamARN"].split(":")[3] for s in there.list_streams()["StreamSummaries"]] == ["eu-west-1"]
    assert len(there.list_shards(StreamName="s")["Shards"]) == 2
    assert len(rig.shards("s")) == 1
    there.put_record(StreamName="s", Data=b"there", PartitionKey="k")
    assert rig.read("s") == []
    assert code(there.get_records, ShardIterator=rig.iterator("s")) == "InvalidArgumentException"
    assert there.describe_limits()["OpenShardCount"] == 2
    assert rig.server.state()["streams"].keys() == {"s", "eu-west-1/s"}
    there.delete_stream(StreamName="s")
    rig.settle()
    assert rig.kinesis.list_streams()["StreamNames"] == ["s"]


def test_the_arns_of_other_partitions_name_them(rig):
    china = rig.server.client("kinesis", region_name="cn-north-1")
    china.create_stream(StreamName="s", ShardCount=1)
    rig.settle()
    arn = china.describe_stream_summary(StreamName="s")["StreamDescriptionSummary"]["StreamARN"]
    assert arn == "arn:aws-cn:kinesis:cn-north-1:123456789012:stream/s"
    assert china.describe_stream_summary(StreamARN=arn)


def test_a_page_of_streams_has_at_most_100(rig):
    for i in range(101):
        rig.server.create_stream(f"s{i:03}")
    page = rig.kinesis.list_streams(Limit=1000)
    assert (len(page["StreamNames"]), page["HasMoreStreams"]) == (100, True)
    rest = rig.kinesis.list_streams(NextToken=page["NextToken"])
    assert (rest["StreamNames"], rest["HasMoreStreams"]) == (["s100"], False)


def test_tag_keys_of_the_service_are_reserved(rig):
    rig.server.create_stream("s")
    tags = {"StreamName": "s", "Tags": {"aws:mine": "1"}}
    assert code(rig.kinesis.add_tags_to_stream, **tags) == "InvalidArgumentException"


@pytest.mark.parametrize(
    ("key", "value", "answer"),
    [
        ("a_./=+-%@:é9 ", "日本", "ok"),
        ("a*", "1", "InvalidArgumentException"),
        ("a", "\N{GRINNING FACE}", "InvalidArgumentException"),
    ],
)
def test_a_tag_has_letters_digits_white_space_and_few_symbols(rig, key, value, answer):
    rig.server.create_stream("s")
    assert code(rig.kinesis.add_tags_to_stream, StreamName="s", Tags={key: value}) == answer
