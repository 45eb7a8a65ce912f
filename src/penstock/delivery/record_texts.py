"""JSON texts of records that have a schema: one of the AWS Glue Schema Registry, or a JSON Schema that checks them."""

from __future__ import annotations

import base64
import functools
import json
import math
from collections.abc import Callable, Hashable
from typing import Any, Final, Protocol
from uuid import UUID

from pyspark.sql import Column
from pyspark.sql import functions as F  # noqa: N812 - its name everywhere
from pyspark.sql.types import ArrayType, DataType, MapType, StructType

from penstock.core.delivering.json_schema_columns import columns_of_json_schema
from penstock.core.safe_text import text_of
from penstock.errors import OptionError, SchemaError, SchemaMismatch, UnknownSchema, UnsupportedSchema
from penstock.ports.schema_registry import DataFormat, SchemaRegistry

_PACKAGE_TEXT: Final = "this schema needs the package {}: pip install 'penstock[deliver,schemas]'"


class RecordTexts(Hashable, Protocol):
    """Makes the JSON texts of records by a schema. Implemented by `GlueTexts` and `CheckedTexts`. Each Spark executor gets a copy."""

    @property
    def allows_non_finite(self) -> bool:
        """Whether a record may have NaN and infinite numbers."""

    def columns(self) -> StructType:
        """Return the columns of the schema as it is now.

        Raises:
            SchemaError, ServiceError: The schema cannot be read.
        """

    def make_decoder(self) -> Callable[[bytes], str]:
        """Return the function that makes the JSON text of a record. It raises SchemaError if the record cannot be read."""


class GlueTexts:
    """Decodes records by the schema version that their Glue Schema Registry header names, and makes JSON texts of them.

    Args:
        registry: Fetches schema versions.
        schema_name: Schema whose newest version has the table's columns.
    """

    def __init__(self, registry: SchemaRegistry, schema_name: str) -> None:
        self._registry = registry
        self._schema_name = schema_name
        self.allows_non_finite = True
        """False once `columns` has found that the schema is a JSON Schema: JSON has no NaN."""

    def columns(self) -> StructType:
        """Return the columns of the newest version."""
        version = self._registry.fetch_latest(self._schema_name)
        if version is None:
            raise UnknownSchema(
                f"schema {self._schema_name} is not in {self._registry}: name it with schema=glue:NAME or glue:REGISTRY/NAME"
            )
        if version.data_format is DataFormat.JSON:
            self.allows_non_finite = False
            return _columns(json.loads(version.definition))
        if version.data_format is not DataFormat.AVRO:
            raise UnsupportedSchema(
                f"schema {self._schema_name} is {version.data_format.value}; AVRO and JSON are read"
            )
        found = _spark_avro(version.definition).type
        if not isinstance(found, StructType):
            raise UnsupportedSchema(f"schema {self._schema_name} is not a record, so it has no columns")
        return _nullable_columns(found)

    def make_decoder(self) -> Callable[[bytes], str]:
        """Return the function that reads a record."""
        from penstock.schemas.decoder import PAYLOAD_BYTES_MAX
        from penstock.schemas.header import split_header
        from penstock.schemas.version_cache import VersionCache

        versions = VersionCache(self._fetch_decoder)

        def read(data: bytes) -> str:
            version_id, payload = split_header(data, PAYLOAD_BYTES_MAX)
            return versions.get(version_id)(payload)

        return read

    def _fetch_decoder(self, version_id: bytes) -> Callable[[bytes], str]:
        from penstock.schemas.avro import AvroCodec, load_avro, parse_avro
        from penstock.schemas.decoder import fetch_version
        from penstock.spark.schemas.avro_types import without_logical_types

        version = fetch_version(self._registry, UUID(bytes=version_id))
        what = f"version {version.version_id} of schema {version.schema_name}"
        if version.data_format is DataFormat.JSON:
            return _decoded_text
        parse_avro(version.definition, what)
        schema = parse_avro(without_logical_types(load_avro(version.definition)), what)
        codec = AvroCodec(schema, what, names_branches=True)
        kind, _, convert = _spark_avro(version.definition)
        return lambda payload: json_text(convert(codec.decode(payload)), kind)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, GlueTexts) and (other._registry, other._schema_name) == (
            self._registry,
            self._schema_name,
        )

    def __hash__(self) -> int:
        return hash((self._registry, self._schema_name))


class CheckedTexts:
    """Makes texts of records that are JSON, and checks them by a JSON Schema.

    Args:
        definition: Text of the JSON Schema.
    """

    allows_non_finite = False

    def __init__(self, definition: str) -> None:
        self._definition = definition

    def columns(self) -> StructType:
        """Return the columns of the JSON Schema, after checking it."""
        self.make_decoder()
        return _columns(json.loads(self._definition))

    def make_decoder(self) -> Callable[[bytes], str]:
        """Return the function that checks a record and returns its text."""
        from penstock.schemas.json_schema import JsonCodec

        codec = JsonCodec(self._definition, "the schema", checks=True)

        def read(data: bytes) -> str:
            codec.decode(data)
            return _decoded_text(data)

        return read

    def __eq__(self, other: object) -> bool:
        return isinstance(other, CheckedTexts) and other._definition == self._definition

    def __hash__(self) -> int:
        return hash(self._definition)


def decoder_of(texts: RecordTexts) -> Callable[[bytes], str]:
    """Return the function that makes JSON texts of records.

    Raises:
        OptionError: A package is missing.
    """
    try:
        return _cached_decoder(texts)
    except ModuleNotFoundError as error:
        raise OptionError(_PACKAGE_TEXT.format(error.name)) from error


@functools.lru_cache(maxsize=16)
def _cached_decoder(texts: RecordTexts) -> Callable[[bytes], str]:
    return texts.make_decoder()


def text_and_reason(texts: RecordTexts) -> Column:
    """Return a struct column with two fields: `text`, the JSON text of `data`, and `reason`, why there is no text. One is null."""

    def read(data):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN202 - Spark would read the hints
        try:
            return decoder_of(texts)(bytes(data or b"")), None
        except SchemaError as error:
            return None, text_of(error)

    return F.udf(read, "text STRING, reason STRING", useArrow=True)("data")


def json_text(value: Any, kind: DataType) -> str:
    """Return a Spark value as JSON text from which `from_json` reads the same value."""
    if value is None:
        return "null"
    if isinstance(kind, StructType):
        pairs = zip(kind.fields, value, strict=True)
        return f"{{{','.join(f'{json.dumps(each.name)}:{json_text(part, each.dataType)}' for each, part in pairs)}}}"
    if isinstance(kind, MapType):
        items = (f"{json.dumps(key)}:{json_text(part, kind.valueType)}" for key, part in value.items())
        return f"{{{','.join(items)}}}"
    if isinstance(kind, ArrayType):
        return f"[{','.join(json_text(part, kind.elementType) for part in value)}]"
    return _plain_text(value)


def _plain_text(value: Any) -> str:
    if isinstance(value, bytes):
        return json.dumps(base64.b64encode(value).decode())
    if isinstance(value, float) and not math.isfinite(value):
        return '"NaN"' if math.isnan(value) else '"Infinity"' if value > 0 else '"-Infinity"'
    if isinstance(value, bool | int | float | str):
        return json.dumps(value)
    return json.dumps(value.isoformat()) if hasattr(value, "isoformat") else format(value, "f")


def _spark_avro(definition: str) -> Any:
    from penstock.schemas.avro import load_avro
    from penstock.spark.schemas.avro_types import spark_avro

    return spark_avro(load_avro(definition))


def _columns(document: Any) -> StructType:
    found = StructType.fromDDL(columns_of_json_schema(document))
    assert isinstance(found, StructType)
    return found


def _nullable_columns(schema: StructType) -> StructType:
    from pyspark.sql.types import StructField

    return StructType([StructField(each.name, each.dataType) for each in schema.fields])


def _decoded_text(payload: bytes) -> str:
    try:
        return payload.decode()
    except UnicodeDecodeError as error:
        raise SchemaMismatch(f"not UTF-8: byte {error.start}") from error
