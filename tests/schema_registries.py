"""Schemas, and registries that count what they are asked, for the tests of this folder."""

from __future__ import annotations

import threading

from penstock.schemas import MemorySchemaRegistry

ORDER = {
    "type": "record",
    "name": "Order",
    "namespace": "shop",
    "fields": [{"name": "id", "type": "long"}, {"name": "item", "type": "string"}],
}
ORDER_WITH_COUNT = {**ORDER, "fields": [*ORDER["fields"], {"name": "count", "type": "int", "default": 1}]}
ORDER_JSON = {
    "$schema": "http://json-schema.org/draft-07/schema#",
    "type": "object",
    "properties": {"id": {"type": "integer"}, "item": {"type": "string"}},
    "required": ["id"],
    "additionalProperties": False,
}


class CountingRegistry(MemorySchemaRegistry):
    """Counts its calls; `failure` is raised by each of them, and `gate` holds up whoever fetches a version."""

    def __init__(self, **given):
        super().__init__(**given)
        self.calls = []
        self.failure = None
        self.gate = threading.Event()
        self.gate.set()

    def _note(self, call):
        self.calls.append(call)
        if self.failure is not None:
            raise self.failure

    def fetch_version(self, version_id):
        self._note("fetch_version")
        assert self.gate.wait(90)
        return super().fetch_version(version_id)

    def find_version(self, schema_name, definition):
        self._note("find_version")
        return super().find_version(schema_name, definition)

    def create_schema(self, schema_name, data_format, definition, compatibility):
        self._note("create_schema")
        return super().create_schema(schema_name, data_format, definition, compatibility)

    def register_version(self, schema_name, definition):
        self._note("register_version")
        return super().register_version(schema_name, definition)


class Half:
    """Always the middle."""

    def random(self):
        return 0.5
