"""The blocks of docs/consumer.md and docs/fan-out.md: each makes a consumer that reads an embedded Kinesis."""

import asyncio

import pytest

pytest.importorskip("httptools")

from docs_blocks import blocks
from penstock import AsyncConsumer, Consumer
from penstock import consumer as package
from penstock.consumer import kclpy
from penstock.local import LocalKinesis

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
        await self._start()
        self.request_stop()
        Tried.made += 1
        return self


class MyRecordProcessor:
    """What a program brings that was written for amazon_kclpy."""


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
    monkeypatch.setattr(package, "AsyncConsumer", TriedOnALoop)
    before = Tried.made
    names = {"Consumer": Tried, "AsyncConsumer": TriedOnALoop, "asyncio": asyncio, "handle": list}
    exec(text, {**names, "MyRecordProcessor": MyRecordProcessor})
    assert Tried.made == before + 1
