"""An ARN names its region: everything that takes one in place of a name goes there, whatever the region of this machine."""

import pytest

from penstock import Consumer, DeadLetterStream, Producer
from penstock.cli import main as cli
from penstock.core.stream_identity import region_of_arns, with_region_of_arns
from penstock.spark.options.spark_options import parse_batch, parse_sink, parse_source
from penstock.testing import batch, records
from waiting import wait_until

FAR = "eu-west-1"


@pytest.fixture
def far(local_kinesis, monkeypatch, request):
    """A stream of another region than this machine's, or on a machine without one, by its ARN."""
    arn = local_kinesis.create_stream("orders", shards=1, region=FAR)
    for name in ("AWS_REGION", "AWS_DEFAULT_REGION"):
        if getattr(request, "param", None) == "no region":
            monkeypatch.delenv(name)
    return arn


@pytest.mark.parametrize("far", ["another region", "no region"], indirect=True)
def test_a_producer_and_a_consumer_go_to_the_region_of_the_arn(far, local_kinesis):
    with Producer(stream=far) as producer:
        producer.put(b"order 1", partition_key="k")
    seen = []
    with Consumer(stream=far, application="billing", handler=seen.extend, starting_position="TRIM_HORIZON"):
        wait_until(lambda: seen, "the order")
    assert [record.data for record in seen] == [b"order 1"]
    tables = local_kinesis.client("dynamodb", region_name=FAR).list_tables()["TableNames"]
    assert "billing" in tables, "its leases are there, too"


def test_dead_letters_go_to_the_region_of_the_arn(far, local_kinesis):
    DeadLetterStream(far)(batch(records("order 1")), ValueError("no"))
    kinesis = local_kinesis.client("kinesis", region_name=FAR)
    position = {"ShardId": "shardId-000000000000", "ShardIteratorType": "TRIM_HORIZON"}
    iterator = kinesis.get_shard_iterator(StreamName="orders", **position)["ShardIterator"]
    assert len(kinesis.get_records(ShardIterator=iterator)["Records"]) == 1


def test_the_commands_go_to_the_region_of_the_arn(far, tmp_path, capsys):
    line = tmp_path / "line"
    line.write_text("order 1\n", encoding="utf-8")
    for words in (
        ["put", far, str(line)],
        ["tail", far, "--from", "TRIM_HORIZON", "--until-end"],
        ["shards", far],
        ["streams", "describe", far],
    ):
        assert cli.main(words) == 0, words
    assert "order 1" in capsys.readouterr().out
    assert cli.main(["shards", far, "--region", "us-east-1"]) == 1, "a region that is given counts"


@pytest.mark.parametrize("option", ["streamName", "streamARN"])
@pytest.mark.parametrize("parse", [parse_source, parse_batch, parse_sink])
def test_both_options_of_spark_take_the_region_of_an_arn(parse, option):
    arn = f"arn:aws:kinesis:{FAR}:123456789012:stream/orders"
    assert parse({option: arn})[0].connection.region == FAR
    assert parse({option: arn, "region": "us-west-2"})[0].connection.region == "us-west-2"


def test_a_region_that_is_none_is_that_of_the_arn():
    arn = f"arn:aws:kinesis:{FAR}:123456789012:stream/orders"
    for given, region in (({}, FAR), ({"region": None}, FAR), ({"region": "us-west-2"}, "us-west-2")):
        assert with_region_of_arns({"profile": "test", **given}, arn) == {"profile": "test", "region": region}
    assert with_region_of_arns({"profile": "test"}, "orders") == {"profile": "test"}


def test_only_arns_of_one_region_name_it():
    arns = [f"arn:aws:kinesis:{region}:123456789012:stream/orders" for region in ("r1", "r2")]
    assert region_of_arns("orders", arns[0], None, arns[0]) == "r1"
    assert [region_of_arns(*names) for names in ((), ("orders",), arns, ("arn:",), ("arn:aws:s3::1:b",))] == [
        None
    ] * 5
