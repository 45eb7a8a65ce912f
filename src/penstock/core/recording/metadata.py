"""The metadata of a recording: the document in the file's footer, as plain values.

docs/recording-format.md describes the document. Sequence numbers and hash keys are texts, because JSON readers lose the digits
of large numbers; moments are milliseconds since the epoch.
"""

from __future__ import annotations

from typing import Final

import msgspec
from msgspec import Struct

from penstock.errors import DamagedRecording

FORMAT: Final = "penstock recording"
VERSION: Final = 1
METADATA_KEY: Final = b"penstock.recording"
CHECKSUM_KEY: Final = b"penstock.recording.crc32"


class RecordedShard(Struct, frozen=True, omit_defaults=True):
    """A shard of the stream, as the service listed it when the recording ended.

    Args:
        parents: Parent and adjacent parent; they may be older than the recording.
        ending_sequence_number: Where it ends; None while it is open.
        opened_ms: When it was opened, as far as the recording shows it; None: before the recording.
        closed_ms: When it was closed, likewise; None while it is open.
        is_recorded: Whether its records were to be recorded (`--shards`).
    """

    id: str
    hash_range: tuple[str, str]
    starting_sequence_number: str
    ending_sequence_number: str | None = None
    parents: tuple[str, ...] = ()
    opened_ms: int | None = None
    closed_ms: int | None = None
    is_recorded: bool = True


class RecordedBatch(Struct, frozen=True):
    """A row group of the file: consecutive records of one shard.

    Args:
        record_bytes: Bytes of their data and partition keys.
        first_sequence_number: Sequence number of the first row.
        last_sequence_number: Sequence number of the last row.
        offset: Where its bytes begin in the file.
        crc32: Their CRC-32.
    """

    shard: str
    records: int
    record_bytes: int
    first_sequence_number: str
    last_sequence_number: str
    arrived_from_ms: int
    arrived_until_ms: int
    offset: int
    length: int
    crc32: int


class RecordedStream(Struct, frozen=True):
    """The stream that was recorded.

    Args:
        mode: `PROVISIONED` or `ON_DEMAND`.
    """

    name: str
    arn: str
    mode: str
    retention_hours: float
    created_ms: int


class RecordedSlice(Struct, frozen=True):
    """The requested slice.

    Args:
        from_ms: Records that arrived at this moment or later.
        until_ms: Records that arrived before this moment.
        shards: Only these shards; None: all.
        keys: Only records with one of these partition keys; None: all.
        redactions: The expressions by which keys and data were changed.
    """

    from_ms: int
    until_ms: int
    shards: tuple[str, ...] | None = None
    keys: tuple[str, ...] | None = None
    redactions: tuple[str, ...] = ()


class RecordingMetadata(Struct, frozen=True):
    """The metadata document of a recording.

    Args:
        shards: The stream's shards, parents before their children.
        batches: The file's row groups, in order.
        began_ms: When recording began, by the service's clock.
        written_by: Package and version.
    """

    stream: RecordedStream
    recorded: RecordedSlice
    shards: tuple[RecordedShard, ...]
    batches: tuple[RecordedBatch, ...]
    began_ms: int
    ended_ms: int
    written_by: str
    format: str = FORMAT
    version: int = VERSION

    @property
    def record_count(self) -> int:
        """How many Kinesis records the recording has."""
        return sum(batch.records for batch in self.batches)

    @property
    def record_bytes(self) -> int:
        """Bytes of all data and partition keys."""
        return sum(batch.record_bytes for batch in self.batches)


class _FormatVersion(Struct):
    format: str
    version: int


def encode_metadata(metadata: RecordingMetadata) -> bytes:
    """Return the document as JSON."""
    return msgspec.json.encode(metadata)


def decode_metadata(document: bytes, path: str) -> RecordingMetadata:
    """Return the metadata in a document.

    Args:
        document: JSON.
        path: The file, for messages.

    Raises:
        DamagedRecording: The document is not a recording's metadata, or has a later version.
    """
    try:
        kind = msgspec.json.decode(document, type=_FormatVersion)
        if kind.format != FORMAT:
            raise DamagedRecording(f"{path}: the footer describes a {kind.format!r}, not a {FORMAT!r}")
        if kind.version > VERSION:
            raise DamagedRecording(
                f"{path}: version {kind.version} of the format; this Penstock reads up to version {VERSION}: upgrade it"
            )
        return msgspec.json.decode(document, type=RecordingMetadata)
    except msgspec.MsgspecError as error:
        raise DamagedRecording(f"{path}: the metadata in the footer cannot be read: {error}") from error
