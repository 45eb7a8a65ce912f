"""Every quota of the service, with a clock that moves only when the test moves it."""

from __future__ import annotations

import pytest
from botocore.config import Config
from botocore.exceptions import ClientError

from local.error_codes import code
from penstock_local import LocalKinesis
from penstock_local.quotas import Bucket, ReadBucket

MIB = 1024 * 1024
FIRST = "shardId-000000000000"
SECOND = "shardId-000000000001"
TOP = str(2**128 - 1)


def entries(count: int, size: int = 1, hash_key: str = "0") -> list[dict[str, object]]:
    return [{"Data": bytes(size), "PartitionKey": "k", "ExplicitHashKey": hash_key}] * count


def test_a_shard_takes_1000_records_a_second_and_refuses_the_rest_one_by_one(limited):
    limited.server.create_stream("s", shards=2)
    put = limited.kinesis.put_records
    assert put(StreamName="s", Records=entries(500))["FailedRecordCount"] == 0
    assert put(StreamName="s", Records=entries(499))["FailedRecordCount"] == 0
    mixed = put(StreamName="s", Records=entries(3) + entries(2, hash_key=TOP))
    assert mixed["FailedRecordCount"] == 2
    assert [r.get("ErrorCode") for r in mixed["Records"]] == [
        None,
        "ProvisionedThroughputExceededException",
        "ProvisionedThroughputExceededException",
        None,
        None,
    ]
    assert mixed["Records"][1]["ErrorMessage"] == (
        f"Rate exceeded for shard {FIRST} in stream s under account 123456789012."
    )
    assert "SequenceNumber" not in mixed["Records"][1]
    one = {"StreamName": "s", "Data": b"", "PartitionKey": "k", "ExplicitHashKey": "0"}
    assert code(limited.kinesis.put_record, **one) == "ProvisionedThroughputExceededException"
    limited.clock.advance(0.5)
    answer = put(StreamName="s", Records=entries(500))
    assert answer["FailedRecordCount"] == 0
    assert put(StreamName="s", Records=entries(1))["FailedRecordCount"] == 1


def test_a_shard_takes_one_mib_a_second_keys_included(limited):
    limited.server.create_stream("s")
    put = limited.kinesis.put_records
    assert put(StreamName="s", Records=entries(4, MIB // 4 - 1))["FailedRecordCount"] == 0
    assert put(StreamName="s", Records=entries(1, 0))["FailedRecordCount"] == 1
    limited.clock.advance(0.25)
    assert put(StreamName="s", Records=entries(2, MIB // 4 - 1))["FailedRecordCount"] == 1


def test_a_refused_record_uses_up_nothing(limited):
    limited.server.create_stream("s")
    put = limited.kinesis.put_records
    answer = put(StreamName="s", Records=entries(1, MIB // 2) + entries(1, MIB - 1) + entries(1, MIB // 4))
    assert [r.get("ErrorCode") is None for r in answer["Records"]] == [True, False, True]


def test_a_large_record_goes_through_a_full_bucket_and_is_paid_off(limited):
    arn = limited.server.create_stream("s")
    limited.kinesis.update_max_record_size(StreamARN=arn, MaxRecordSizeInKiB=10240)
    large = {"StreamName": "s", "Data": bytes(4 * MIB - 1), "PartitionKey": "k"}
    small = {"StreamName": "s", "Data": b"", "PartitionKey": "k"}
    assert code(limited.kinesis.put_record, **large) == "ok"
    limited.clock.advance(3)
    assert code(limited.kinesis.put_record, **small) == "ProvisionedThroughputExceededException"
    limited.clock.advance(0.001)
    assert code(limited.kinesis.put_record, **small) == "ok"
    assert code(limited.kinesis.put_record, **large) == "ProvisionedThroughputExceededException"


def test_a_shard_answers_five_reads_a_second(limited):
    limited.server.create_stream("s", shards=2)
    iterator = limited.iterator("s")
    read = limited.kinesis.get_records
    assert [code(read, ShardIterator=iterator) for _ in range(6)] == ["ok"] * 5 + [
        "ProvisionedThroughputExceededException"
    ]
    assert code(read, ShardIterator=limited.iterator("s", SECOND)) == "ok"
    limited.clock.advance(0.2)
    assert [code(read, ShardIterator=iterator) for _ in range(2)] == [
        "ok",
        "ProvisionedThroughputExceededException",
    ]


def fill(limited, mib: int) -> None:
    for _ in range(mib):
        assert (
            limited.kinesis.put_records(StreamName="s", Records=entries(4, MIB // 4 - 1))["FailedRecordCount"]
            == 0
        )
        limited.clock.advance(1)


def test_a_ten_mib_answer_is_followed_by_five_seconds_of_refusals(limited):
    limited.server.create_stream("s")
    fill(limited, 11)
    answer = limited.kinesis.get_records(ShardIterator=limited.iterator("s"))
    assert sum(len(r["Data"]) + 1 for r in answer["Records"]) == 10 * MIB
    going_on = {"ShardIterator": answer["NextShardIterator"]}
    for _ in range(5):
        assert code(limited.kinesis.get_records, **going_on) == "ProvisionedThroughputExceededException"
        limited.clock.advance(0.999)
    limited.clock.advance(0.005)
    assert code(limited.kinesis.get_records, **going_on) == "ok"


def test_smaller_answers_share_two_mib_a_second(limited):
    limited.server.create_stream("s")
    fill(limited, 6)
    iterator = limited.iterator("s")
    read = limited.kinesis.get_records
    outcomes = [code(read, ShardIterator=iterator, Limit=4) for _ in range(3)]
    assert outcomes == ["ok", "ok", "ProvisionedThroughputExceededException"]
    limited.clock.advance(0.5)
    assert code(limited.kinesis.get_records, ShardIterator=iterator, Limit=4) == "ok"


def test_a_shard_gives_five_iterators_a_second(limited):
    limited.server.create_stream("s", shards=2)
    ask = {"StreamName": "s", "ShardId": FIRST, "ShardIteratorType": "LATEST"}
    take = limited.kinesis.get_shard_iterator
    assert [code(take, **ask) for _ in range(6)] == ["ok"] * 5 + ["ProvisionedThroughputExceededException"]
    assert code(take, **{**ask, "ShardId": SECOND}) == "ok"


@pytest.mark.parametrize(
    ("operation", "arguments", "per_s"),
    [
        ("describe_stream", {"StreamName": "s"}, 10),
        ("describe_stream_summary", {"StreamName": "s"}, 20),
        ("list_streams", {}, 5),
        ("describe_limits", {}, 1),
        ("list_tags_for_stream", {"StreamName": "s"}, 5),
    ],
)
def test_control_operations_have_a_rate_per_account(limited, operation, arguments, per_s):
    limited.server.create_stream("s")
    call = getattr(limited.kinesis, operation)
    assert [code(call, **arguments) for _ in range(per_s + 1)] == ["ok"] * per_s + ["LimitExceededException"]
    limited.clock.advance(1 / per_s)
    assert code(call, **arguments) == "ok"


def test_list_shards_has_a_rate_per_stream(limited):
    limited.server.create_stream("s")
    limited.server.create_stream("t")
    outcomes = {code(limited.kinesis.list_shards, StreamName="s") for _ in range(1000)}
    assert outcomes == {"ok"}
    assert code(limited.kinesis.list_shards, StreamName="s") == "LimitExceededException"
    assert code(limited.kinesis.list_shards, StreamName="t") == "ok"


def test_five_streams_may_be_creating_at_once(limited):
    for i in range(5):
        limited.kinesis.create_stream(StreamName=f"s{i}", ShardCount=1)
    assert code(limited.kinesis.create_stream, StreamName="s5", ShardCount=1) == "LimitExceededException"
    limited.clock.advance(1)
    assert code(limited.kinesis.create_stream, StreamName="s5", ShardCount=1) == "ok"


def test_open_shards_are_limited_per_account(limited):
    too_many = {"StreamName": "s", "ShardCount": 20_001}
    assert code(limited.kinesis.create_stream, **too_many) == "LimitExceededException"


def test_a_stream_is_rescaled_at_most_to_double_or_half_and_ten_times_a_day(limited):
    limited.server.create_stream("s", shards=4)
    scale = limited.kinesis.update_shard_count
    how = {"StreamName": "s", "ScalingType": "UNIFORM_SCALING"}
    assert code(scale, TargetShardCount=9, **how) == "InvalidArgumentException"
    assert code(scale, TargetShardCount=1, **how) == "InvalidArgumentException"
    for i in range(10):
        assert code(scale, TargetShardCount=3 + i % 2, **how) == "ok"
        limited.clock.advance(1)
    assert code(scale, TargetShardCount=4, **how) == "LimitExceededException"
    limited.clock.advance(86_400)
    assert code(scale, TargetShardCount=3, **how) == "ok"


def test_the_mode_changes_at_most_twice_a_day(limited):
    arn = limited.server.create_stream("s")
    outcomes = []
    for mode in ("ON_DEMAND", "PROVISIONED", "ON_DEMAND"):
        change = {"StreamARN": arn, "StreamModeDetails": {"StreamMode": mode}}
        outcomes.append(code(limited.kinesis.update_stream_mode, **change))
        limited.clock.advance(1)
    assert outcomes == ["ok", "ok", "LimitExceededException"]


def test_a_quota_that_is_used_up_under_a_stopped_clock_is_reported_once(caplog):
    with LocalKinesis(time_factor=0) as server:
        server.create_stream("s")
        kinesis = server.client("kinesis", config=Config(retries={"total_max_attempts": 1}))
        codes = [code(kinesis.describe_limits) for _ in range(3)]
        with pytest.raises(ClientError, match=r"Rate exceeded under account 123456789012\.$"):
            kinesis.describe_limits()
    assert codes == ["ok", "LimitExceededException", "LimitExceededException"]
    assert caplog.text.count("DescribeLimits is refused for its rate while the clock is stopped") == 1


def test_without_limits_nothing_is_refused(rig):
    rig.server.create_stream("s")
    for _ in range(8):
        assert rig.kinesis.put_records(StreamName="s", Records=entries(500))["FailedRecordCount"] == 0
        rig.kinesis.list_streams()
    iterator = rig.iterator("s")
    assert {code(rig.kinesis.get_records, ShardIterator=iterator) for _ in range(20)} == {"ok"}


def test_a_bucket_fills_at_its_rate_up_to_one_second_s_worth():
    bucket = Bucket(10)
    assert bucket.may_take(10, 1000)
    bucket.take(10)
    assert [bucket.may_take(1, at) for at in (1000, 1099, 1100)] == [False, False, True]
    assert bucket.level(99_000) == 10


def test_a_read_bucket_lets_one_read_overdraw_it():
    bucket = ReadBucket()
    assert bucket.may_read(0)
    bucket.take(2 * MIB, 0)
    assert [bucket.may_read(at) for at in (0, 1)] == [False, True]
