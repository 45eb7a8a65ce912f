"""Schemas that contain themselves: a small record can be nested deeper than any stack."""

import subprocess
import sys

import pytest

from penstock.errors import SchemaMismatch
from penstock.schemas import MemorySchemaRegistry, SchemaDecoder, SchemaEncoder

NODE = {"type": "record", "name": "Node", "fields": [{"name": "next", "type": ["null", "Node"]}]}
TREE = {
    "type": "record",
    "name": "Tree",
    "fields": [{"name": "kids", "type": {"type": "array", "items": "Tree"}}],
}
LONG = {"type": "record", "name": "Node", "fields": [{"name": "id", "type": "long", "default": 1}]}
READ = """
import sys
from penstock.errors import SchemaMismatch
from penstock.schemas import MemorySchemaRegistry, SchemaDecoder
from penstock.schemas.header import add_header

schema, payload, reader_schema = eval(sys.argv[1])
registry = MemorySchemaRegistry()
data = add_header(registry.add("s", schema).bytes, payload, compress=True)
try:
    SchemaDecoder(registry=registry, reader_schema=reader_schema).decode(data)
except SchemaMismatch as error:
    print(error)
"""
LEVELS = 200_000


@pytest.mark.parametrize(
    ("schema", "payload", "reader_schema"),
    [
        (NODE, f"b'\\x02' * {LEVELS} + b'\\0'", None),
        (NODE, f"b'\\x02' * {LEVELS} + b'\\0'", {**NODE, "doc": "read with rules of resolution"}),
        (NODE, f"b'\\x02' * {LEVELS} + b'\\0'", LONG),
        (TREE, f"b'\\x02' * {LEVELS} + b'\\0' * {LEVELS + 1}", None),
    ],
    ids=["list", "list read into a list", "list that is left out", "tree"],
)
def test_a_record_that_is_nested_without_end_is_a_mismatch_and_does_not_end_the_process(
    schema, payload, reader_schema
):
    ran = subprocess.run(
        [sys.executable, "-c", READ, f"{schema!r}, {payload}, {reader_schema!r}"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    assert "does not fit version" in ran.stdout
    assert "RecursionError" in ran.stdout


def nested(depth):
    value = None
    for _ in range(depth):
        value = {"next": value}
    return value


def test_what_may_be_written_can_be_read():
    registry = MemorySchemaRegistry()
    encoder = SchemaEncoder("nodes", NODE, registry=registry, register=True)
    for depth in (1, 2, 100):
        data = encoder.encode(nested(depth))
        assert SchemaDecoder(registry=registry).decode(data).data == nested(depth)
        assert SchemaDecoder(registry=registry, reader_schema=NODE).decode(data).data == nested(depth)


@pytest.mark.parametrize("depth", [101, 100_000])
def test_a_value_that_is_nested_too_deep_is_not_written(depth):
    encoder = SchemaEncoder("nodes", NODE, registry=MemorySchemaRegistry(), register=True)
    with pytest.raises(SchemaMismatch, match="schema nodes: it is nested more than 100 levels deep"):
        encoder.encode(nested(depth))
