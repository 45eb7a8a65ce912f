"""AWS's own serializer of the Glue Schema Registry: what either side has written, the other one reads."""

from __future__ import annotations

import base64
import json
import subprocess

from counterparts import GLUE, RUN_TIMEOUT_S
from glue_server import serving

from penstock.schemas import MemorySchemaRegistry, SchemaDecoder, SchemaEncoder
from schema_registries import ORDER, ORDER_JSON

THEIRS = {"id": 7, "item": "kettle ☕"}
OURS = {"id": 8, "item": "cup ☕"}
FORMATS = (("orders", ORDER, "AVRO"), ("orders-json", ORDER_JSON, "JSON"))


def test_both_sides_read_what_the_other_one_has_written():
    command = GLUE.command(GLUE.built())
    with serving(MemorySchemaRegistry()) as endpoint_url:
        connection = {"access_key_id": "key", "secret_access_key": "secret"}
        where = {"region": "eu-west-1", "endpoint_url": endpoint_url, "connection": connection}
        written = [
            SchemaEncoder(
                name, schema, data_format=data_format, compression=compression, register=True, **where
            ).encode(OURS)
            for compression in ("none", "zlib")
            for name, schema, data_format in FORMATS
        ]
        given = [endpoint_url, json.dumps(ORDER), json.dumps(ORDER_JSON)]
        given += [base64.b64encode(data).decode() for data in written]
        done = subprocess.run(
            [*command, *given], capture_output=True, text=True, timeout=RUN_TIMEOUT_S, check=False
        )
        assert done.returncode == 0, done.stderr[-3000:]
        said = [line.split() for line in done.stdout.splitlines()]
        theirs = [base64.b64decode(text) for kind, text in said if kind == "wrote"]
        read = [json.loads(base64.b64decode(text)) for kind, text in said if kind == "read"]

        assert read == [OURS] * 4
        decoder = SchemaDecoder(**where)
        decoded = [decoder.decode(data) for data in theirs]
    assert [each.data for each in decoded] == [THEIRS] * 4
    assert [each.schema_name for each in decoded] == [name for name, _, _ in FORMATS] * 2
    # Neither side has registered a definition that the other one had registered before.
    assert [data[2:18] for data in theirs] == [data[2:18] for data in written]
    assert [data[:2] for data in theirs] == [b"\x03\x00", b"\x03\x00", b"\x03\x05", b"\x03\x05"]
    assert [data[:18] for data in theirs] == [data[:18] for data in written]
