"""`from_glue_avro` and `from_glue_json`: columns of records that were written with the AWS Glue Schema Registry.

The driver knows the schema of the column. The executors read each record's header, fetch the version that it names once
per Python worker, and read the record into the column's schema.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias
from uuid import UUID

from penstock.errors import OptionError, SchemaError, SchemaMismatch, UnknownSchema, UnsupportedSchema
from penstock.ports.schema_registry import DataFormat, SchemaRegistry, SchemaVersion
from penstock.schemas.avro import AvroCodec, load_avro, parse_avro
from penstock.schemas.decoder import PAYLOAD_BYTES_MAX, fetch_version
from penstock.schemas.header import split_header
from penstock.schemas.registry_opening import DEFAULT_REGISTRY, open_registry
from penstock.schemas.version_cache import VersionCache

if TYPE_CHECKING:
    from pyspark.sql import Column
    from pyspark.sql.types import DataType

Definition: TypeAlias = str | Mapping[str, Any] | Sequence[Any]
Mode: TypeAlias = Literal["FAILFAST", "PERMISSIVE"]
_MODES: Final = ("FAILFAST", "PERMISSIVE")


def from_glue_avro(
    column: str | Column,
    schema: Definition | None = None,
    *,
    schema_name: str | None = None,
    mode: Mode = "FAILFAST",
    registry_name: str = DEFAULT_REGISTRY,
    region: str | None = None,
    endpoint_url: str | None = None,
    connection: dict[str, Any] | None = None,
    registry: SchemaRegistry | None = None,
) -> Column:
    """Return a column of the values of Avro records, for every version of their schema.

    Args:
        column: Of the type binary, for instance `data`.
        schema: Schema that all records are read into, by Avro's rules of resolution. One of `schema` and `schema_name` is
            needed.
        schema_name: Name of a schema in the registry. Its newest version is fetched now, by the driver; the column keeps
            it for as long as the query runs.
        mode: What happens to a record that cannot be read: FAILFAST fails the query, PERMISSIVE makes it null. A registry
            that cannot be read fails the task in both.
        registry_name: Registry of `schema_name`.
        region: Region of the registry. Without it driver and executors each use their own.
        endpoint_url: Endpoint of Glue.
        connection: Further connection options (docs/api.md).
        registry: Another registry than AWS's; a copy of it goes to the executors.

    Raises:
        OptionError: Both or neither of `schema` and `schema_name` are given, or an option has a bad value.
        UnknownSchema: The registry has no schema of this name.
        UnsupportedSchema: The schema is not Avro, or Spark has no type for it.
    """
    from penstock.spark.schemas.avro_types import spark_avro

    _check_mode(mode)
    opened = open_registry(
        registry,
        registry_name=registry_name,
        region=region,
        endpoint_url=endpoint_url,
        connection=connection,
    )
    if (schema is None) == (schema_name is None):
        raise OptionError(
            "from_glue_avro: give the schema of the column, or schema_name to use the newest version of the registry; one "
            "of the two"
        )
    if schema_name is not None:
        schema = _fetch_latest(opened, schema_name).definition
    assert schema is not None
    parse_avro(schema, "the schema of the column")
    definition = load_avro(schema)
    return _reading_column(column, opened, json.dumps(definition), mode, spark_avro(definition).type)


def from_glue_json(
    column: str | Column,
    *,
    mode: Mode = "FAILFAST",
    region: str | None = None,
    endpoint_url: str | None = None,
    connection: dict[str, Any] | None = None,
    registry: SchemaRegistry | None = None,
) -> Column:
    """Return a column of the JSON text of records that were written with a JSON Schema; Spark's `from_json` parses it.

    Args:
        column: Of the type binary, for instance `data`.
        mode: What happens to a record that cannot be read: FAILFAST fails the query, PERMISSIVE makes it null. A registry
            that cannot be read fails the task in both.
        region: Region of the registry. Without it driver and executors each use their own.
        endpoint_url: Endpoint of Glue.
        connection: Further connection options (docs/api.md).
        registry: Another registry than AWS's; a copy of it goes to the executors.

    Raises:
        OptionError: An option has a bad value.
    """
    from pyspark.sql.types import StringType

    _check_mode(mode)
    opened = open_registry(registry, region=region, endpoint_url=endpoint_url, connection=connection)
    return _reading_column(column, opened, None, mode, StringType())


class ColumnReader:
    """Reads the records of a column in one Python worker.

    Args:
        registry: Has the versions that the records were written with.
        definition: Schema of the column as JSON text; None for a column of JSON texts.
    """

    def __init__(self, registry: SchemaRegistry, definition: str | None) -> None:
        self._registry: Final = registry
        self._column: Final = None if definition is None else json.loads(definition)
        self._reader_schema: Any = None
        if definition is not None:
            from penstock.spark.schemas.avro_types import without_logical_types

            self._reader_schema = parse_avro(without_logical_types(self._column), "the schema of the column")
        self._versions: Final = VersionCache(self._fetch_decoder)

    def read(self, data: bytes) -> Any:
        """Return Spark's value of a record.

        Raises:
            SchemaError: The record cannot be read.
            Throttled, Unavailable, AccessDenied: The registry cannot be read; the record may be valid.
        """
        version_id, payload = split_header(bytes(data), PAYLOAD_BYTES_MAX)
        return self._versions.get(version_id)(payload)

    def _fetch_decoder(self, version_id: bytes) -> Callable[[bytes], Any]:
        version = fetch_version(self._registry, UUID(bytes=version_id))
        what = f"version {version.version_id} of schema {version.schema_name}"
        expected = DataFormat.JSON if self._column is None else DataFormat.AVRO
        if version.data_format is not expected:
            other = "from_glue_avro" if expected is DataFormat.JSON else "from_glue_json"
            raise SchemaMismatch(f"{what} is {version.data_format.value}: {other} reads such records")
        if expected is DataFormat.JSON:
            return _decode_text
        from penstock.spark.schemas.avro_types import spark_avro_of_expanded, without_logical_types
        from penstock.spark.schemas.written_units import column_as_written

        parse_avro(version.definition, what)
        definition = load_avro(version.definition)
        schema = parse_avro(without_logical_types(definition), what)
        codec = AvroCodec(schema, what, reader_schema=self._reader_schema, names_branches=True)
        convert = spark_avro_of_expanded(column_as_written(self._column, definition, what)).convert
        return lambda payload: convert(codec.decode(payload))


@functools.lru_cache(maxsize=16)
def reader_of(registry: SchemaRegistry, definition: str | None) -> ColumnReader:
    """Return the reader of a column, which this Python worker keeps for all of its tasks."""
    return ColumnReader(registry, definition)


def _reading_column(
    column: str | Column, registry: SchemaRegistry, definition: str | None, mode: str, kind: DataType
) -> Column:
    """Return a column whose records the executors read.

    Args:
        definition: Schema of the column as JSON text; None for a column of JSON texts.
        kind: Type of the column in Spark.
    """
    from pyspark.sql import functions as f

    is_permissive = mode == "PERMISSIVE"

    def read(data: bytes | None) -> Any:
        if data is None:
            return None
        try:
            return reader_of(registry, definition).read(data)
        except SchemaError:
            if is_permissive:
                return None
            raise

    read.__name__ = "from_glue_json" if definition is None else "from_glue_avro"
    return f.udf(read, kind, useArrow=True)(column)


def _decode_text(payload: bytes) -> str:
    try:
        return payload.decode()
    except UnicodeDecodeError as error:
        raise SchemaMismatch(f"the payload of {len(payload)} bytes is not JSON: {error}") from error


def _check_mode(mode: str) -> None:
    if mode not in _MODES:
        raise OptionError(f"mode is {mode!r}; expected {' or '.join(_MODES)}")


def _fetch_latest(registry: SchemaRegistry, schema_name: str) -> SchemaVersion:
    version = registry.fetch_latest(schema_name)
    if version is None:
        raise UnknownSchema(
            f"schema {schema_name} is not in {registry}: check its name, registry_name, region and account"
        )
    if version.data_format is not DataFormat.AVRO:
        other = "; from_glue_json reads its records" if version.data_format is DataFormat.JSON else ""
        raise UnsupportedSchema(
            f"schema {schema_name} of {registry} is {version.data_format.value}, not AVRO{other}"
        )
    return version
