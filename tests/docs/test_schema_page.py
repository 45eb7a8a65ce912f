"""The blocks of docs/schemas.md, in their order: what the producer puts, the consumer decodes."""

import pytest

pytest.importorskip("httptools")

import penstock
from docs_blocks import blocks
from penstock import Consumer, wiring
from penstock.schemas import MemorySchemaRegistry
from penstock_local import LocalKinesis
from waiting import wait_until


def test_the_blocks_are_one_program(monkeypatch):
    programs = [block.text for block in blocks("docs/schemas.md") if block.is_program and block.is_run]
    texts = [text for text in programs if "penstock.spark" not in text]
    registry, billed = MemorySchemaRegistry(), []

    class Until(Consumer):
        """Runs until an order was billed."""

        def run(self):
            self.start()
            wait_until(lambda: billed, "the order to be billed")
            self.stop()

    monkeypatch.setattr(wiring, "open_schema_registry", lambda name, options: registry)
    monkeypatch.setattr(penstock, "Consumer", Until, raising=False)
    with LocalKinesis() as server:
        server.create_stream("orders", shards=1)
        for name, value in server.environ().items():
            monkeypatch.setenv(name, value)
        names = {"bill": lambda *order: billed.append(order), "set_aside": pytest.fail}
        for text in texts:
            exec(text.replace("handle)", 'handle, starting_position="TRIM_HORIZON")'), names)
    assert billed == [(7, "orders")]
