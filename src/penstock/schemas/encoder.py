"""`SchemaEncoder` turns a value into the data of a record, which begins with a header that names the schema's version."""

from __future__ import annotations

import json
import random
from collections.abc import Mapping, Sequence
from typing import Any, Final, Literal
from uuid import UUID

from penstock.core.backoff import Backoff, RetryPlan
from penstock.errors import (
    OptionError,
    Rejected,
    ResourceBusy,
    SchemaRefused,
    UnknownSchema,
    UnsupportedSchema,
)
from penstock.ports.clock import Chance, Clock
from penstock.ports.schema_registry import (
    Compatibility,
    DataFormat,
    RegisteredVersion,
    SchemaRegistry,
    VersionStatus,
)
from penstock.runtime.system_clock import SystemClock
from penstock.schemas.avro import AvroCodec, is_bare_name, load_avro, parse_avro
from penstock.schemas.avro_cost import without_marks
from penstock.schemas.header import add_header
from penstock.schemas.json_schema import JsonCodec
from penstock.schemas.registry_opening import DEFAULT_REGISTRY, open_registry
from penstock.schemas.version_cache import VersionCache

_CHECK_BACKOFF: Final = Backoff(0.5, 3.0)
_CHECKS_MAX: Final = 10_000  # never reached: `available_within_s` ends the checks first
_CALLS_WITHIN_S: Final = 400.0
_REFUSAL_KEPT_S: Final = 10.0


class SchemaEncoder:
    """Encodes values for records that others read with the AWS Glue Schema Registry. Safe to use from several threads.

    The first encoded value looks up the id of the schema's version by its definition; later values use the same id.

    Args:
        schema_name: Name of the schema in the registry.
        definition: The schema, as text or as JSON values.
        data_format: AVRO or JSON (JSON Schema).
        register: Whether a definition that the registry does not have is added to it: to the schema of this name, or as a
            new schema.
        compatibility: Rule for the versions of a new schema: BACKWARD, BACKWARD_ALL, FORWARD, FORWARD_ALL, FULL, FULL_ALL,
            NONE or DISABLED. An existing schema keeps its rule.
        compression: `none` or `zlib`.
        available_within_s: Longest wait until the registry has checked a new version.
        registry_name: Registry that the schema is in.
        region: Region of the registry; as for `Producer`.
        endpoint_url: Endpoint of Glue.
        connection: Further connection options (docs/api.md).
        registry: Another registry than AWS's, for instance `MemorySchemaRegistry`.
        clock: Waits for the registry's check.
        chance: Jitter of the waiting.

    Raises:
        OptionError: An option has a bad value.
        UnsupportedSchema: The definition is not valid in `data_format`.
    """

    def __init__(
        self,
        schema_name: str,
        definition: str | Mapping[str, Any] | Sequence[Any],
        *,
        data_format: Literal["AVRO", "JSON"] = "AVRO",
        register: bool = False,
        compatibility: str = "BACKWARD",
        compression: Literal["none", "zlib"] = "none",
        available_within_s: float = 30.0,
        registry_name: str = DEFAULT_REGISTRY,
        region: str | None = None,
        endpoint_url: str | None = None,
        connection: dict[str, Any] | None = None,
        registry: SchemaRegistry | None = None,
        clock: Clock | None = None,
        chance: Chance | None = None,
    ) -> None:
        _check_word("data_format", data_format, ("AVRO", "JSON"))
        _check_word("compression", compression, ("none", "zlib"))
        _check_word("compatibility", compatibility, tuple(each.value for each in Compatibility))
        if not schema_name:
            raise OptionError("schema_name is empty: name the schema as it is in the registry")
        if not isinstance(available_within_s, int | float) or not available_within_s > 0:
            raise OptionError(f"available_within_s is {available_within_s!r}; expected more than 0")
        self._name: Final = schema_name
        what = f"schema {schema_name}"
        if not isinstance(definition, str | Mapping | list | tuple):
            raise UnsupportedSchema(
                f"the definition of {what} is a {type(definition).__name__}; expected text, or JSON values"
            )
        self._definition: Final = _text_of(definition, data_format)
        self._format: Final = DataFormat(data_format)
        self._registers: Final = register
        self._compatibility: Final = Compatibility(compatibility)
        self._compresses: Final = compression == "zlib"
        self._check_retries: Final = RetryPlan(_CHECK_BACKOFF, _CHECKS_MAX, available_within_s)
        self._clock: Final = clock or SystemClock()
        self._chance: Final = chance or random.Random()
        self._codec: Final = (
            AvroCodec(parse_avro(definition, what), what)
            if self._format is DataFormat.AVRO
            else JsonCodec(definition, what, checks=True)
        )
        self._registry: Final = open_registry(
            registry,
            registry_name=registry_name,
            region=region,
            endpoint_url=endpoint_url,
            connection=connection,
        )
        self._version_ids: Final = VersionCache(
            self._find_or_register,
            count_max=1,
            refusal_kept_s=_REFUSAL_KEPT_S,
            wait_s=available_within_s + _CALLS_WITHIN_S,
            clock=self._clock,
        )

    @property
    def schema_version_id(self) -> UUID:
        """The id of the schema's version. The first use looks it up or registers it, and may raise the errors of `encode`."""
        return self._version_ids.get(self._definition)

    def encode(self, value: Any) -> bytes:
        """Return the data of a record.

        Raises:
            SchemaMismatch: The value does not fit the schema. The registry was not asked.
            UnknownSchema: The registry does not have the definition, and `register` is false.
            SchemaRefused: The registry does not accept the definition.
            ResourceBusy: The registry has not checked the definition in time.
            Throttled, Unavailable, UnknownOutcome: The registry gave no answer, after the last retry.
            AccessDenied: The credentials do not permit to read the registry, or to write to it.
        """
        payload = self._codec.encode(value)
        return add_header(self.schema_version_id.bytes, payload, compress=self._compresses)

    def _find_or_register(self, definition: str) -> UUID:
        """Return the id of the definition's version, once the registry has checked the version."""
        try:
            found = self._registry.find_version(self._name, definition)
            if found is None:
                found = self._register(definition)
        except Rejected as error:
            raise SchemaRefused(
                f"the registry does not take the definition of {self._schema_text}: {error}"
            ) from error
        if found.data_format not in (None, self._format):
            raise SchemaRefused(
                f"{self._schema_text} is {found.data_format.value}, not {self._format.value}: set data_format, or use "
                "another schema"
            )
        self._wait_for_check(found)
        return found.version_id

    def _register(self, definition: str) -> RegisteredVersion:
        if not self._registers:
            raise UnknownSchema(
                f"{self._schema_text} does not exist, or has no version with this definition: register the definition, use "
                "SchemaEncoder(..., register=True), or check region, account and registry_name"
            )
        # Another producer may create the schema between our two calls.
        found = (
            self._registry.register_version(self._name, definition)
            or self._registry.create_schema(self._name, self._format, definition, self._compatibility)
            or self._registry.register_version(self._name, definition)
        )
        if found is None:
            raise ResourceBusy(
                f"{self._schema_text} is being deleted: it can neither be created nor have a new version"
            )
        return found

    def _wait_for_check(self, pending_version: RegisteredVersion) -> None:
        began_s = self._clock.monotonic_s()
        status = pending_version.status
        attempt = 1
        while status is VersionStatus.PENDING:
            delay_s = self._check_retries.delay_s(
                attempt, self._clock.monotonic_s() - began_s, self._chance.random()
            )
            if delay_s is None:
                raise ResourceBusy(
                    f"the registry has not checked version {pending_version.version_id} of {self._schema_text} within "
                    f"{self._check_retries.deadline_s:g} s: try again, or raise available_within_s"
                )
            self._clock.sleep(delay_s)
            version = self._registry.fetch_version(pending_version.version_id)
            status = VersionStatus.DELETING if version is None else version.status
            attempt += 1
        if status is not VersionStatus.AVAILABLE:
            raise SchemaRefused(
                f"version {pending_version.version_id} of {self._schema_text} is {status.value}: "
                + (
                    "the definition is not compatible with the versions before it"
                    if status is VersionStatus.FAILURE
                    else "it is being deleted"
                )
            )

    @property
    def _schema_text(self) -> str:
        return f"schema {self._name} of {self._registry}"


def _text_of(definition: str | Mapping[str, Any] | Sequence[Any], data_format: str) -> str:
    """Return the definition as the registry gets it: JSON, without the marks of a schema that fastavro has parsed."""
    if isinstance(definition, str):
        is_name = data_format == "AVRO" and is_bare_name(definition)
        return json.dumps(load_avro(definition)) if is_name else definition
    return json.dumps(without_marks(definition))


def _check_word(name: str, value: str, known_words: tuple[str, ...]) -> None:
    if value not in known_words:
        raise OptionError(f"{name} is {value!r}; expected {', '.join(known_words[:-1])} or {known_words[-1]}")
