"""The blocks of docs/recipes.md that need no Spark, each against an embedded Kinesis with fitting records."""

import base64
import gzip
import json
import logging

import boto3
import pytest
import zstandard

pytest.importorskip("httptools")

import penstock
from docs_blocks import blocks
from penstock import Consumer
from waiting import wait_until

BLOCKS = [
    block.text
    for block in blocks("docs/recipes.md")
    if block.language == "python" and block.is_run and "Consumer" in block.text
]
LOGS, PACKED, FILTER, DEAD, PUT_BACK = BLOCKS
[LOG_HANDLER] = (block.text for block in blocks("docs/recipes.md") if "logging.Handler" in block.text)
MESSAGE = {
    "messageType": "DATA_MESSAGE",
    "logGroup": "/aws/lambda/orders",
    "logStream": "1",
    "logEvents": [
        {"id": "1", "timestamp": 1769860800000, "message": "first"},
        {"id": "2", "timestamp": 1769860800001, "message": "second"},
    ],
}


@pytest.fixture
def run(local_kinesis, monkeypatch, capsys):
    """Return a function that runs a block until its condition holds, with records in a stream."""

    def run_block(text, stream, records, is_done):
        kinesis = boto3.client("kinesis")
        local_kinesis.create_stream(stream)
        for key, data in records:
            kinesis.put_record(StreamName=stream, Data=data, PartitionKey=key)
        printed = []

        class Until(Consumer):
            def run(self):
                self.start()
                wait_until(lambda: is_done(collect()), "the block to have done its work")
                self.stop()

        def collect():
            printed.extend(capsys.readouterr().out.splitlines())
            return printed

        monkeypatch.setattr(penstock, "Consumer", Until, raising=False)
        exec(text, {})
        return collect()

    return run_block


def data_of(stream):
    kinesis = boto3.client("kinesis")
    [shard] = kinesis.list_shards(StreamName=stream)["Shards"]
    start = {"ShardId": shard["ShardId"], "ShardIteratorType": "TRIM_HORIZON"}
    iterator = kinesis.get_shard_iterator(StreamName=stream, **start)["ShardIterator"]
    return [record["Data"] for record in kinesis.get_records(ShardIterator=iterator)["Records"]]


def test_log_events_are_taken_out_of_their_messages(run):
    check = {**MESSAGE, "messageType": "CONTROL_MESSAGE"}
    records = [("a", gzip.compress(json.dumps(each).encode())) for each in (check, MESSAGE)]
    printed = run(LOGS, "logs", records, lambda lines: len(lines) >= 2)
    assert printed == ["/aws/lambda/orders first", "/aws/lambda/orders second"]


def test_packed_and_plain_payloads_are_read(run):
    packed = [gzip.compress(b"gzip"), zstandard.compress(b"zstd"), b"plain"]
    printed = run(PACKED, "packed", [("a", each) for each in packed], lambda lines: len(lines) >= 3)
    assert printed == ["b'gzip'", "b'zstd'", "b'plain'"]


def test_the_filter_passes_the_wanted_records(run):
    records = [("eu-1", b"1"), ("us-1", b"2"), ("eu-2", b"3")]
    printed = run(FILTER, "mixed", records, lambda lines: len(lines) >= 2)
    assert printed == ["eu-1 b'1'", "eu-2 b'3'"]


def test_lines_of_the_log_are_put_and_none_of_the_producer(local_kinesis, monkeypatch, caplog):
    local_kinesis.create_stream("app-log")
    root = logging.getLogger()
    monkeypatch.setattr(root, "handlers", [])
    caplog.set_level(logging.DEBUG)
    exec(LOG_HANDLER, {})
    root.handlers[0].close()
    assert [data.splitlines()[-1] for data in data_of("app-log")] == [b"out of milk"]


def test_a_failing_record_goes_to_the_dead_letters_and_back(run, local_kinesis):
    local_kinesis.create_stream("orders-dead")
    orders = [("anna", b'{"cents": 3}'), ("bob", b"no JSON"), ("anna", b'{"cents": 4}')]
    printed = run(DEAD, "orders", orders, lambda lines: {"3", "4"} <= set(lines) and data_of("orders-dead"))
    assert {"3", "4"} <= set(printed)
    [letter] = map(json.loads, data_of("orders-dead"))
    assert base64.b64decode(letter["data"]) == b"no JSON"
    assert letter["reason"].startswith("JSONDecodeError")


def test_dead_letters_are_put_back(run, local_kinesis):
    local_kinesis.create_stream("orders")
    letter = {"data": base64.b64encode(b"repaired").decode(), "partitionKey": "bob"}
    run(PUT_BACK, "orders-dead", [("bob", json.dumps(letter).encode())], lambda _: data_of("orders"))
    assert any(b"repaired" in data for data in data_of("orders"))
