"""The calls of the Glue Schema Registry that serializers make, served over HTTP from a registry in memory."""

from __future__ import annotations

import json
import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from uuid import UUID

from penstock.ports.schema_registry import Compatibility, DataFormat
from penstock.schemas import MemorySchemaRegistry


class MissingError(Exception):
    """What the call names is not there; the message is the one that AWS's serializer looks for."""


def get_schema_version(registry, asked):
    found = registry.fetch_version(UUID(asked["SchemaVersionId"]))
    if found is None:
        raise MissingError("Schema version is not found.")
    return {
        "SchemaVersionId": str(found.version_id),
        "SchemaDefinition": found.definition,
        "DataFormat": found.data_format.value,
        "SchemaArn": f"arn:aws:glue:eu-west-1:123456789012:schema/default-registry/{found.schema_name}",
        "VersionNumber": 1,
        "Status": found.status.value,
    }


def get_schema_by_definition(registry, asked):
    name = asked["SchemaId"]["SchemaName"]
    found = registry.find_version(name, asked["SchemaDefinition"])
    if found is None:
        known = registry.fetch_latest(name) is not None
        raise MissingError("Schema version is not found." if known else "Schema is not found.")
    return {
        "SchemaVersionId": str(found.version_id),
        "DataFormat": found.data_format.value,
        "Status": found.status.value,
    }


def create_schema(registry, asked):
    found = registry.create_schema(
        asked["SchemaName"],
        DataFormat(asked["DataFormat"]),
        asked["SchemaDefinition"],
        Compatibility(asked["Compatibility"]),
    )
    return {"SchemaVersionId": str(found.version_id), "SchemaVersionStatus": found.status.value}


def register_schema_version(registry, asked):
    found = registry.register_version(asked["SchemaId"]["SchemaName"], asked["SchemaDefinition"])
    if found is None:
        raise MissingError("Schema is not found.")
    return {"SchemaVersionId": str(found.version_id), "VersionNumber": 1, "Status": found.status.value}


CALLS = {
    "AWSGlue.GetSchemaVersion": get_schema_version,
    "AWSGlue.GetSchemaByDefinition": get_schema_by_definition,
    "AWSGlue.CreateSchema": create_schema,
    "AWSGlue.RegisterSchemaVersion": register_schema_version,
    "AWSGlue.PutSchemaVersionMetadata": lambda _, asked: {"SchemaVersionId": asked["SchemaVersionId"]},
}


@contextmanager
def serving(registry: MemorySchemaRegistry):
    """Serve a registry on a free port of this machine; gives the endpoint."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self):
            asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            try:
                status, said = 200, CALLS[self.headers["X-Amz-Target"]](registry, asked)
            except MissingError as error:
                status, said = 400, {"__type": "EntityNotFoundException", "Message": str(error)}
            body = json.dumps(said).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/x-amz-json-1.1")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_):
            """Say nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
