"""Records whose schemas are in the AWS Glue Schema Registry: `SchemaDecoder` reads them, `SchemaEncoder` writes them.

Both need the extra: `pip install 'penstock[schemas]'`. `MemorySchemaRegistry` replaces the registry in tests.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from penstock.ports.schema_registry import SchemaVersion
    from penstock.schemas.decoder import Decoded, SchemaDecoder
    from penstock.schemas.encoder import SchemaEncoder
    from penstock.schemas.memory_registry import MemorySchemaRegistry

__all__ = ["Decoded", "MemorySchemaRegistry", "SchemaDecoder", "SchemaEncoder", "SchemaVersion"]

_HOMES: Final = {
    "Decoded": "decoder",
    "MemorySchemaRegistry": "memory_registry",
    "SchemaDecoder": "decoder",
    "SchemaEncoder": "encoder",
    "SchemaVersion": "decoder",
}


def __getattr__(name: str) -> Any:
    """Load a name on first use; if the extra is missing, raise an error that names it."""
    if name not in _HOMES:
        raise AttributeError(f"module 'penstock.schemas' has no attribute {name!r}")
    try:
        return getattr(import_module(f"penstock.schemas.{_HOMES[name]}"), name)
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        if package != "fastavro":
            raise
        raise ModuleNotFoundError(
            f"penstock.schemas.{name} needs the package {package}, which is not installed: pip install 'penstock[schemas]'",
            name=error.name,
        ) from error


def __dir__() -> list[str]:
    """Show the public names."""
    return sorted(__all__)
