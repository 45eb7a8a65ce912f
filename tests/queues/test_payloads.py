"""Payloads in the handler of a queue's consumer: Glue schemas, gzip and zstd, as the pages describe it."""

import asyncio
import gzip

import pytest

from docs_blocks import blocks
from penstock import AsyncQueueConsumer, QueueConsumer, Reject
from penstock.core.aggregation import AggregateBuilder
from penstock.errors import SchemaError
from penstock.schemas import MemorySchemaRegistry, SchemaDecoder, SchemaEncoder
from queue_world import QueueWorld
from schema_registries import ORDER
from waiting import wait_until


@pytest.fixture
def world():
    return QueueWorld(receive_count_max=2)


def aggregate_of(*payloads):
    builder = AggregateBuilder()
    for payload in payloads:
        builder.add(payload, "k")
    return builder.build().data


@pytest.fixture
def encoder_and_decoder():
    registry = MemorySchemaRegistry()
    return SchemaEncoder("orders", ORDER, registry=registry, register=True), SchemaDecoder(registry=registry)


def test_records_with_schemas_are_decoded_also_in_aggregates(world, encoder_and_decoder):
    encoder, decoder = encoder_and_decoder
    payloads = [encoder.encode({"id": n, "item": "kettle"}) for n in range(4)]
    world.service.put(world.stream_arn, payloads[0], "k")
    world.service.put(world.stream_arn, aggregate_of(*payloads[1:]), "k")
    world.service.put(world.stream_arn, b"no header", "k")
    handled, rejected = [], []

    def handle(record):
        try:
            handled.append(decoder.decode(record.data).data["id"])
        except SchemaError as error:
            rejected.append(record.data)
            raise Reject(str(error)) from error

    with QueueConsumer("invoices", handle, ports=world.ports, wait_time_s=1):
        wait_until(lambda: not world.left)
    assert (sorted(handled), rejected, world.dead()) == ([0, 1, 2, 3], [b"no header"], ["no header"])


def test_an_asyncio_handler_decodes_too(world, encoder_and_decoder):
    encoder, decoder = encoder_and_decoder
    world.service.put(world.stream_arn, encoder.encode({"id": 7, "item": "kettle"}), "k")
    handled = []

    async def main():
        async def handle(record):
            handled.append(decoder.decode(record.data).data)
            of.request_stop()

        of = AsyncQueueConsumer("invoices", handle, ports=world.ports, wait_time_s=1)
        await of.run()

    asyncio.run(main())
    assert (handled, world.left) == ([{"id": 7, "item": "kettle"}], [])


def test_the_recipe_for_packed_payloads_serves_a_queue_and_damaged_ones_are_dead_letters(world):
    zstandard = pytest.importorskip("zstandard")
    recipe = next(
        each.text for each in blocks("docs/recipes.md") if "def decompress" in each.text and each.is_program
    )
    names = {}
    exec(recipe.partition("\ndef handle")[0], names)
    damaged = gzip.compress(b"damaged")[:-5]
    for payload in (gzip.compress(b"gzip"), zstandard.compress(b"zstd"), b"plain", damaged):
        world.service.put(world.stream_arn, payload, "k")
    handled = []
    with QueueConsumer(
        "invoices",
        lambda record: handled.append(names["decompress"](record.data)),
        ports=world.ports,
        wait_time_s=1,
        backoff_min_s=0.1,
        backoff_max_s=1,
    ):
        wait_until(lambda: not world.left, "all done or dead")
    assert sorted(handled) == [b"gzip", b"plain", b"zstd"]
    (dead,) = world.service.receive(world.queue.arn, 10, 1, 0, is_dead=True)
    assert dead.data == damaged
