"""Opens the registry of an encoder or a decoder: the one that the user gives, or AWS's."""

from __future__ import annotations

from typing import Any

from penstock.core.keyword_options import merge_connection
from penstock.errors import UsageError
from penstock.ports.schema_registry import SchemaRegistry

DEFAULT_REGISTRY = "default-registry"


def open_registry(
    registry: SchemaRegistry | None,
    *,
    registry_name: str = DEFAULT_REGISTRY,
    region: str | None,
    endpoint_url: str | None,
    connection: dict[str, Any] | None,
) -> SchemaRegistry:
    """Return the given registry; if it is None, AWS's Glue Schema Registry with this connection. No call is made yet.

    Raises:
        UsageError: Both a registry and a connection are given.
        OptionError: A field of the connection is unknown or has a bad value.
    """
    fields = merge_connection(connection, region=region, endpoint_url=endpoint_url)
    if registry is not None:
        if fields:
            raise UsageError(
                f"a registry is given, and {', '.join(sorted(fields))} would have no effect: keep one"
            )
        return registry
    from penstock import wiring  # here, so that the SDK is loaded only if it is used

    return wiring.open_schema_registry(registry_name, wiring.parse_connection(fields))
