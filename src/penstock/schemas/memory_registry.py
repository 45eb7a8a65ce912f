"""A schema registry in memory, for tests and for programs without AWS."""

from __future__ import annotations

import dataclasses
import json
import threading
from collections.abc import Mapping, Sequence
from typing import Any
from uuid import UUID, uuid4

from penstock.ports.schema_registry import (
    Compatibility,
    DataFormat,
    RegisteredVersion,
    SchemaVersion,
    VersionStatus,
)


class MemorySchemaRegistry:
    """A schema registry in memory, for tests. A pickled copy has the schemas of the moment at which it was pickled.

    The registry does not check whether versions are compatible: `checked` decides the outcome.

    Args:
        pending_fetch_count: How often a version that was added by `register_version` is PENDING when it is fetched.
        checked: The status of such a version after that.
    """

    def __init__(
        self, *, pending_fetch_count: int = 0, checked: VersionStatus = VersionStatus.AVAILABLE
    ) -> None:
        self._pending_fetch_count = pending_fetch_count
        self._checked = checked
        self._lock = threading.Lock()
        self._versions: dict[UUID, SchemaVersion] = {}
        self._pending: dict[UUID, int] = {}

    def __str__(self) -> str:
        return "registry in memory"

    def __getstate__(self) -> dict[str, Any]:
        """Pickle without the lock, which cannot be sent to another process."""
        with self._lock:
            return {**self.__dict__, "_lock": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Unpickle with a new lock."""
        self.__dict__.update({**state, "_lock": threading.Lock()})

    def add(
        self,
        schema_name: str,
        definition: str | Mapping[str, Any] | Sequence[Any],
        data_format: str = "AVRO",
        *,
        version_id: UUID | None = None,
    ) -> UUID:
        """Add a version that is available at once, and return its id.

        Args:
            schema_name: Name of an existing schema, or of a new one.
            definition: The schema, as text or as JSON values.
            data_format: AVRO, JSON or PROTOBUF.
            version_id: Id of the version; None: a random one.
        """
        text = definition if isinstance(definition, str) else json.dumps(definition)
        with self._lock:
            return self._add(schema_name, text, DataFormat(data_format), version_id or uuid4()).version_id

    def delete(self, version_id: UUID) -> None:
        """Delete a version."""
        with self._lock:
            del self._versions[version_id]

    def fetch_version(self, version_id: UUID) -> SchemaVersion | None:
        """Return a version by its id; None if there is none."""
        with self._lock:
            version = self._versions.get(version_id)
            return None if version is None else self._on_fetched(version)

    def fetch_latest(self, schema_name: str) -> SchemaVersion | None:
        """Return the newest version of a schema; None if there is none."""
        with self._lock:
            versions = self._versions_of(schema_name)
            return versions[-1] if versions else None

    def find_version(self, schema_name: str, definition: str) -> RegisteredVersion | None:
        """Return the version with this definition, in which spaces and the order of keys do not count; None if there is none."""
        with self._lock:
            return self._find_by_definition(schema_name, definition)

    def create_schema(
        self,
        schema_name: str,
        data_format: DataFormat,
        definition: str,
        compatibility: Compatibility,  # noqa: ARG002 - nothing is checked here
    ) -> RegisteredVersion | None:
        """Create a schema with its first version, which is available at once; return None if the schema exists."""
        with self._lock:
            if self._versions_of(schema_name):
                return None
            version = self._add(schema_name, definition, data_format, uuid4())
        return RegisteredVersion(version.version_id, version.status, data_format)

    def register_version(self, schema_name: str, definition: str) -> RegisteredVersion | None:
        """Add a version to a schema, or return the version that has this definition; None if there is no such schema."""
        with self._lock:
            versions = self._versions_of(schema_name)
            if not versions:
                return None
            found = self._find_by_definition(schema_name, definition)
            if found is not None:
                return found
            status = VersionStatus.PENDING if self._pending_fetch_count else self._checked
            version = SchemaVersion(uuid4(), schema_name, versions[0].data_format, definition, status)
            self._versions[version.version_id] = version
            self._pending[version.version_id] = self._pending_fetch_count
            return RegisteredVersion(version.version_id, status)

    def _add(
        self, schema_name: str, definition: str, data_format: DataFormat, version_id: UUID
    ) -> SchemaVersion:
        version = SchemaVersion(version_id, schema_name, data_format, definition, VersionStatus.AVAILABLE)
        self._versions[version_id] = version
        return version

    def _versions_of(self, schema_name: str) -> list[SchemaVersion]:
        return [version for version in self._versions.values() if version.schema_name == schema_name]

    def _find_by_definition(self, schema_name: str, definition: str) -> RegisteredVersion | None:
        for version in self._versions_of(schema_name):
            if _canonical_text(version.definition) == _canonical_text(definition):
                return RegisteredVersion(version.version_id, version.status, version.data_format)
        return None

    def _on_fetched(self, version: SchemaVersion) -> SchemaVersion:
        """Count a fetch of a pending version; after the last one, return the version with its final status."""
        if version.status is VersionStatus.PENDING:
            left = self._pending[version.version_id] = self._pending[version.version_id] - 1
            if left < 0:
                version = dataclasses.replace(version, status=self._checked)
                self._versions[version.version_id] = version
        return version


def _canonical_text(definition: str) -> str:
    try:
        return json.dumps(json.loads(definition), sort_keys=True)
    except ValueError:
        return definition
