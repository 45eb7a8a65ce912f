"""The AWS Glue Schema Registry over boto3.

Source:
    The Glue API reference (Schema Registry), and awslabs/aws-glue-schema-registry (`AWSSchemaRegistryClient`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any, Final, TypeVar
from uuid import UUID

from penstock.aws.aws_options import AwsOptions
from penstock.aws.service_calls import TRANSIENT, call_operation
from penstock.errors import (
    NotFound,
    Rejected,
    ResourceBusy,
    UnknownOutcome,
    UnsupportedSchema,
)
from penstock.ports.schema_registry import (
    Compatibility,
    DataFormat,
    RegisteredVersion,
    SchemaVersion,
    VersionStatus,
)

_Word = TypeVar("_Word", bound=Enum)
_RETRIED_ERRORS: Final = (*TRANSIENT, UnknownOutcome, ResourceBusy)
"""Every call may be repeated: registering a definition a second time returns the version of the first time.
If several producers register at once, the registry refuses all but one (ConcurrentModificationException)."""


@dataclass(frozen=True)
class GlueSchemaRegistry:
    """Implements `penstock.ports.schema_registry.SchemaRegistry`. Equal values reach the same registry.

    Args:
        registry_name: The registry in which schemas are found by name. Ids of versions are valid in all registries of an account.
    """

    options: AwsOptions
    registry_name: str

    def __str__(self) -> str:
        region = self.options.region
        return f"registry {self.registry_name}" + (f" in {region}" if region else "")

    def fetch_version(self, version_id: UUID) -> SchemaVersion | None:
        return self._fetch_version(f"schema version {version_id}", {"SchemaVersionId": str(version_id)})

    def fetch_latest(self, schema_name: str) -> SchemaVersion | None:
        arguments = {"SchemaId": self._id_of(schema_name), "SchemaVersionNumber": {"LatestVersion": True}}
        return self._fetch_version(f"schema {schema_name}", arguments)

    def find_version(self, schema_name: str, definition: str) -> RegisteredVersion | None:
        arguments = {"SchemaId": self._id_of(schema_name), "SchemaDefinition": definition}
        try:
            answer = self._call("GetSchemaByDefinition", schema_name, arguments)
        except NotFound:
            return None
        return RegisteredVersion(
            UUID(answer["SchemaVersionId"]),
            _word_of(VersionStatus, answer["Status"]),
            _word_of(DataFormat, answer["DataFormat"]),
        )

    def create_schema(
        self, schema_name: str, data_format: DataFormat, definition: str, compatibility: Compatibility
    ) -> RegisteredVersion | None:
        arguments = {
            "RegistryId": {"RegistryName": self.registry_name},
            "SchemaName": schema_name,
            "DataFormat": data_format.value,
            "Compatibility": compatibility.value,
            "SchemaDefinition": definition,
        }
        try:
            answer = self._call("CreateSchema", schema_name, arguments, is_write=True)
        except Rejected as error:
            if error.code == "AlreadyExistsException":
                return None
            raise
        return RegisteredVersion(
            UUID(answer["SchemaVersionId"]),
            _word_of(VersionStatus, answer["SchemaVersionStatus"]),
            data_format,
        )

    def register_version(self, schema_name: str, definition: str) -> RegisteredVersion | None:
        arguments = {"SchemaId": self._id_of(schema_name), "SchemaDefinition": definition}
        try:
            answer = self._call("RegisterSchemaVersion", schema_name, arguments, is_write=True)
        except NotFound:
            return None
        return RegisteredVersion(UUID(answer["SchemaVersionId"]), _word_of(VersionStatus, answer["Status"]))

    def _fetch_version(self, resource: str, arguments: Mapping[str, Any]) -> SchemaVersion | None:
        try:
            answer = self._call("GetSchemaVersion", resource, arguments)
        except NotFound:
            return None
        return SchemaVersion(
            UUID(answer["SchemaVersionId"]),
            answer["SchemaArn"].rpartition("/")[2],
            _word_of(DataFormat, answer["DataFormat"]),
            answer["SchemaDefinition"],
            _word_of(VersionStatus, answer["Status"]),
        )

    def _id_of(self, schema_name: str) -> Mapping[str, str]:
        return {"RegistryName": self.registry_name, "SchemaName": schema_name}

    def _call(
        self, operation: str, resource: str, arguments: Mapping[str, Any], *, is_write: bool = False
    ) -> Any:
        return call_operation(
            "glue",
            operation,
            resource if resource.startswith("schema ") else f"schema {resource} of {self}",
            self.options,
            is_write=is_write,
            retried=_RETRIED_ERRORS,
            **arguments,
        )


def _word_of(kind: type[_Word], word: str) -> _Word:
    try:
        return kind(word)
    except ValueError:
        known = ", ".join(each.value for each in kind)
        raise UnsupportedSchema(
            f"the schema registry answers with the {kind.__name__} {word}; known are {known}: a newer Penstock may know it"
        ) from None
