"""A registry of schemas: each schema has versions, which never change and have their own ids.

Implemented by `penstock.aws.glue_schema_registry` and `penstock.schemas.memory_registry`.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Protocol
from uuid import UUID


class DataFormat(Enum):
    """The language of a schema's definitions."""

    AVRO = "AVRO"
    JSON = "JSON"
    PROTOBUF = "PROTOBUF"


class VersionStatus(Enum):
    """The state of a version in the registry."""

    AVAILABLE = "AVAILABLE"
    PENDING = "PENDING"
    FAILURE = "FAILURE"
    DELETING = "DELETING"


class Compatibility(Enum):
    """The registry's rule for a new version of a schema."""

    NONE = "NONE"
    DISABLED = "DISABLED"
    BACKWARD = "BACKWARD"
    BACKWARD_ALL = "BACKWARD_ALL"
    FORWARD = "FORWARD"
    FORWARD_ALL = "FORWARD_ALL"
    FULL = "FULL"
    FULL_ALL = "FULL_ALL"


@dataclass(frozen=True, slots=True)
class SchemaVersion:
    """One version of a schema.

    Args:
        version_id: Id of this version, unique in all registries.
        schema_name: Name of the schema.
        data_format: The language of its definition.
        definition: The schema's text.
        status: Its state in the registry.
    """

    version_id: UUID
    schema_name: str
    data_format: DataFormat
    definition: str
    status: VersionStatus


@dataclass(frozen=True, slots=True)
class RegisteredVersion:
    """The registry's answer about a definition that it has.

    Args:
        version_id: Id of the version with this definition.
        status: Its state in the registry.
        data_format: The language of the schema's definitions; None if the call does not return it.
    """

    version_id: UUID
    status: VersionStatus
    data_format: DataFormat | None = None


class SchemaRegistry(Protocol):
    """A schema registry. Safe to call from several threads; every method has a deadline, and may be repeated.

    Raises (every method):
        Throttled, Unavailable, UnknownOutcome: After the last retry.
        AccessDenied, Rejected: At once.
        UnsupportedSchema: The registry answers with a format or a status that this Penstock does not know.
    """

    def __hash__(self) -> int:
        """Return the same hash for equal registries, so that they share a process's cache of versions."""

    def __str__(self) -> str:
        """Return the name of this registry, for messages."""

    def fetch_version(self, version_id: UUID) -> SchemaVersion | None:
        """Return a version by its id; None when there is none."""

    def fetch_latest(self, schema_name: str) -> SchemaVersion | None:
        """Return the newest version of a schema; None when there is no such schema."""

    def find_version(self, schema_name: str, definition: str) -> RegisteredVersion | None:
        """Return the version of a schema that has this definition; None when there is none."""

    def create_schema(
        self, schema_name: str, data_format: DataFormat, definition: str, compatibility: Compatibility
    ) -> RegisteredVersion | None:
        """Create a schema with its first version; return None when a schema of this name exists."""

    def register_version(self, schema_name: str, definition: str) -> RegisteredVersion | None:
        """Add a version to a schema, or return the version that has this definition; None when there is no such schema."""
