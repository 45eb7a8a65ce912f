"""The blocks of docs/consumer.md and docs/fan-out.md: each makes a consumer that reads an embedded Kinesis."""

import re
from datetime import UTC, datetime

import pytest

pytest.importorskip("httptools")

from docs_blocks import blocks
from penstock import AsyncConsumer, Batch, Consumer, Record
from penstock import consumer as package
from penstock.consumer import kclpy
from penstock_local import LocalKinesis

BLOCKS = [
    block.text
    for page in ("docs/consumer.md", "docs/fan-out.md")
    for block in blocks(page)
    if block.is_program and block.is_run
]


class Tried(Consumer):
    """A consumer that starts and stops when it is made."""

    made = 0

    def __init__(self, *given, **named):
        super().__init__(*given, **named)
        self.start()
        self.stop()
        Tried.made += 1

    def run(self):
        """It has run."""


class TriedOnALoop(AsyncConsumer):
    """The same on an event loop, where a loop over it ends at once."""

    async def run(self):
        async with self:
            """It has run."""

    async def __aenter__(self):
        await super().__aenter__()
        self.request_stop()
        Tried.made += 1
        return self


class MyRecordProcessor:
    """What a program brings that was written for amazon_kclpy."""


def batch_of(data):
    """What a handler is given."""
    moment = datetime(2026, 1, 31, tzinfo=UTC)
    records = [
        Record(each, f"key-{n}", str(n), 0, None, moment, "shardId-000000000000")
        for n, each in enumerate(data)
    ]
    places = range(len(records))
    return Batch(
        "shardId-000000000000",
        records,
        stream="orders",
        millis_behind_latest=0,
        attempt=1,
        ordinals=places,
        shard=None,
    )


@pytest.fixture(scope="module")
def kinesis():
    with LocalKinesis() as server:
        server.create_stream("orders", shards=4)
        server.create_stream("returns", shards=1)
        yield server


@pytest.mark.parametrize("text", BLOCKS, ids=range(len(BLOCKS)))
def test_a_block_makes_a_consumer_that_starts(text, kinesis, monkeypatch):
    for name, value in kinesis.environ().items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(kclpy, "Consumer", Tried)
    monkeypatch.setattr(package, "Consumer", Tried)
    monkeypatch.setattr(package, "AsyncConsumer", TriedOnALoop)
    before = Tried.made
    exec(text, {"handle": list, "MyRecordProcessor": MyRecordProcessor})  # a block imports all else
    assert Tried.made == before + 1


def test_the_table_of_the_page_has_what_is_in_the_payloads(kinesis, monkeypatch, capsys):
    for name, value in kinesis.environ().items():
        monkeypatch.setenv(name, value)
    text = next(text for text in BLOCKS if "to_arrow" in text)
    monkeypatch.setattr(package, "Consumer", Tried)
    names = {}
    exec(text, names)
    names["handle"](batch_of([b'{"amount": 3}', b'{"amount": 4}']))
    assert re.search(r"key-0\s+3\nkey-1\s+4\n", capsys.readouterr().out)
