"""Records whose schemas are in the AWS Glue Schema Registry: `SchemaDecoder` reads them, `SchemaEncoder` writes them.

Both need the extra: `pip install 'penstock[schemas]'`. `MemorySchemaRegistry` replaces the registry in tests.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from penstock._lazy_names import loaded_on_use

if TYPE_CHECKING:
    from penstock.ports.schema_registry import SchemaVersion
    from penstock.schemas.decoder import Decoded, SchemaDecoder
    from penstock.schemas.encoder import SchemaEncoder
    from penstock.schemas.memory_registry import MemorySchemaRegistry

__all__ = ["Decoded", "MemorySchemaRegistry", "SchemaDecoder", "SchemaEncoder", "SchemaVersion"]

_HOMES: Final = {
    ".decoder": "Decoded SchemaDecoder SchemaVersion",
    ".encoder": "SchemaEncoder",
    ".memory_registry": "MemorySchemaRegistry",
}

__getattr__, __dir__ = loaded_on_use(__name__, _HOMES, __all__, {"fastavro": "'penstock[schemas]'"})
