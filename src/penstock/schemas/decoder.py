"""`SchemaDecoder` turns the data of a record into a value, by the schema with which the record was written."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, Literal, NamedTuple
from uuid import UUID

from penstock.errors import NoSchemaHeader, OptionError, UnknownSchema, UnsupportedSchema, UsageError
from penstock.ports.clock import Clock
from penstock.ports.schema_registry import DataFormat, SchemaRegistry, SchemaVersion
from penstock.schemas.avro import AvroCodec, parse_avro
from penstock.schemas.avro_cost import VALUE_COUNT_MAX
from penstock.schemas.header import has_header, split_header
from penstock.schemas.json_schema import JsonCodec
from penstock.schemas.registry_opening import open_registry
from penstock.schemas.version_cache import VersionCache

WithoutHeader = Literal["error", "pass"]
PAYLOAD_BYTES_MAX: Final = 64 * 1024 * 1024


class Decoded(NamedTuple):
    """The content of a record.

    Args:
        data: The value, in the Python types of the Avro schema or of JSON. The record's bytes, unchanged,
            if the record has no header.
        version: The schema's version that the record was written with; None if the record has no header.
    """

    data: Any
    version: SchemaVersion | None

    @property
    def schema_name(self) -> str | None:
        """The schema's name."""
        return None if self.version is None else self.version.schema_name

    @property
    def schema_version_id(self) -> UUID | None:
        """The id of the schema's version."""
        return None if self.version is None else self.version.version_id

    @property
    def data_format(self) -> str | None:
        """AVRO or JSON."""
        return None if self.version is None else self.version.data_format.value


class SchemaDecoder:
    """Decodes records that were written with the AWS Glue Schema Registry. Safe to use from several threads.

    Each version of a schema is fetched once and kept: versions never change. Decoding a record again after a
    `SchemaError` raises the same error, so skip the record or set it aside. A `ServiceError` is about the
    registry (`Throttled`, `Unavailable`, `AccessDenied`) and not about the record.

    Args:
        reader_schema: Avro records are read into this schema, by Avro's rules, whatever version they were written with.
            None: each record has the form of the version that it was written with.
        without_header: The handling of a record that does not begin with the registry's header: `error` raises
            `NoSchemaHeader`; `pass` returns its bytes, as the KCL does.
        validate_json: Whether JSON records are checked against their schema when they are read. Their writer has usually
            checked them before.
        payload_bytes_max: A record whose payload is larger after decompression is refused.
        value_count_max: A record with more values is refused. Records, arrays, maps and each of their members count.
        version_count_max: How many versions are kept; the ones used last stay.
        unknown_kept_s: Seconds for which a version that cannot be used is not requested again.
        region: Region of the registry; as for `Consumer`.
        endpoint_url: Endpoint of Glue.
        connection: Further connection options (docs/api.md).
        registry: Another registry than AWS's, for instance `MemorySchemaRegistry`.
        clock: Measures how long ago a version was refused.

    Raises:
        OptionError: An option has a bad value.
        UnsupportedSchema: `reader_schema` is not an Avro schema.
    """

    def __init__(
        self,
        *,
        reader_schema: str | Mapping[str, Any] | Sequence[Any] | None = None,
        without_header: WithoutHeader = "error",
        validate_json: bool = False,
        payload_bytes_max: int = PAYLOAD_BYTES_MAX,
        value_count_max: int = VALUE_COUNT_MAX,
        version_count_max: int = 200,
        unknown_kept_s: float = 60.0,
        region: str | None = None,
        endpoint_url: str | None = None,
        connection: dict[str, Any] | None = None,
        registry: SchemaRegistry | None = None,
        clock: Clock | None = None,
    ) -> None:
        if without_header not in ("error", "pass"):
            raise OptionError(f"without_header is {without_header!r}; expected 'error' or 'pass'")
        for name, value in (
            ("payload_bytes_max", payload_bytes_max),
            ("value_count_max", value_count_max),
            ("version_count_max", version_count_max),
        ):
            if not isinstance(value, int) or value < 1:
                raise OptionError(f"{name} is {value!r}; expected a whole number of at least 1")
        if not isinstance(unknown_kept_s, int | float) or not unknown_kept_s >= 0:
            raise OptionError(f"unknown_kept_s is {unknown_kept_s!r}; expected at least 0")
        self._passes_without_header: Final = without_header == "pass"
        self._validates_json: Final = validate_json
        self._payload_bytes_max: Final = payload_bytes_max
        self._value_count_max: Final = value_count_max
        self._reader_schema: Final = (
            None if reader_schema is None else parse_avro(reader_schema, "reader_schema")
        )
        self._registry: Final = open_registry(
            registry, region=region, endpoint_url=endpoint_url, connection=connection
        )
        self._versions: Final = VersionCache(
            self._fetch_codec, count_max=version_count_max, refusal_kept_s=unknown_kept_s, clock=clock
        )

    def decode(self, data: bytes | bytearray | memoryview) -> Decoded:
        """Return the value of a record's data, and the schema's version that it was written with.

        Raises:
            NoSchemaHeader: The data has no header, and `without_header` is `error`.
            UnknownSchema: The registry does not have the version.
            UnsupportedSchema: The schema is Protobuf, or cannot be read.
            SchemaMismatch: The payload is damaged, does not fit the schema, or is over a bound (docs/schemas.md).
            Throttled, Unavailable: The registry gave no answer, after the last retry. The record may be decoded later.
            AccessDenied: The credentials do not permit `glue:GetSchemaVersion`.
            UsageError: The data is not bytes.
        """
        if not isinstance(data, bytes | bytearray | memoryview):
            raise UsageError(f"decode takes the bytes of a record's data, not a {type(data).__name__}")
        data = bytes(data)
        if self._passes_without_header and not has_header(data):
            return Decoded(data, None)
        try:
            version_id, payload = split_header(data, self._payload_bytes_max)
        except NoSchemaHeader as error:
            raise NoSchemaHeader(
                f'{error}; if some records have no schema, use without_header="pass"'
            ) from None
        version, codec = self._versions.get(version_id)
        return Decoded(codec.decode(payload), version)

    def _fetch_codec(self, version_id: bytes) -> tuple[SchemaVersion, AvroCodec | JsonCodec]:
        version = fetch_version(self._registry, UUID(bytes=version_id))
        schema_name = f"version {version.version_id} of schema {version.schema_name}"
        if version.data_format is DataFormat.AVRO:
            schema = parse_avro(version.definition, schema_name)
            codec = AvroCodec(
                schema, schema_name, reader_schema=self._reader_schema, value_count_max=self._value_count_max
            )
            return version, codec
        return version, JsonCodec(
            version.definition,
            schema_name,
            checks=self._validates_json,
            value_count_max=self._value_count_max,
        )


def fetch_version(registry: SchemaRegistry, version_id: UUID) -> SchemaVersion:
    """Fetch a version that records can be read with.

    Raises:
        UnknownSchema: The registry has no version with this id.
        UnsupportedSchema: Its schema is of a format that is not supported.
    """
    version = registry.fetch_version(version_id)
    if version is None:
        raise UnknownSchema(
            f"schema version {version_id} is not in {registry}: the record was written with the registry of another "
            "region or account, or the version was deleted"
        )
    if version.data_format is DataFormat.PROTOBUF:
        raise UnsupportedSchema(
            f"version {version_id} of schema {version.schema_name} is {version.data_format.value}; AVRO and JSON are "
            "supported"
        )
    return version
