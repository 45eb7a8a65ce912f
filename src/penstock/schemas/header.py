"""The 18 bytes that a serializer of the AWS Glue Schema Registry puts before a payload. Pure.

Byte 0 is the header's version, always 3. Byte 1 is the compression: 0 for none, 5 for zlib. Bytes 2 to 17 are the id
of the schema's version, as a UUID in network order. The payload follows: in an aggregate, inside each user record.

Source:
    awslabs/aws-glue-schema-registry: `AWSSchemaRegistryConstants`, `SerializationDataEncoder`,
    `GlueSchemaRegistryDeserializerDataParser`, `GlueSchemaRegistryCompressionHandler`.
"""

from __future__ import annotations

import zlib
from typing import Final, NamedTuple

from penstock.errors import NoSchemaHeader, SchemaMismatch

HEADER_BYTES: Final = 18
_VERSION: Final = 3
_UNCOMPRESSED: Final = 0
_ZLIB: Final = 5


class VersionedPayload(NamedTuple):
    """A payload, and the schema version that its header named.

    Args:
        version_id: The 16 bytes of the schema version's id.
        payload: The payload, decompressed if it was compressed.
    """

    version_id: bytes
    payload: bytes


def has_header(data: bytes) -> bool:
    """Return whether data begins with a header. As in the reference, the data's length and first two bytes decide."""
    return len(data) >= HEADER_BYTES and data[0] == _VERSION and data[1] in (_UNCOMPRESSED, _ZLIB)


def add_header(version_id: bytes, payload: bytes, *, compress: bool) -> bytes:
    """Return a payload with its header in front.

    Args:
        version_id: The 16 bytes of the schema version's id.
        payload: The payload, not compressed.
        compress: Whether the payload is compressed with zlib.
    """
    assert len(version_id) == 16
    if compress:
        return bytes((_VERSION, _ZLIB)) + version_id + zlib.compress(payload)
    return bytes((_VERSION, _UNCOMPRESSED)) + version_id + payload


def split_header(data: bytes, payload_bytes_max: int) -> VersionedPayload:
    """Take a payload out of its header, and decompress it.

    Args:
        data: As `add_header` returns it.
        payload_bytes_max: A payload that is larger after decompression is refused. A few kilobytes may hold gigabytes.

    Raises:
        NoSchemaHeader: The data does not begin with a header.
        SchemaMismatch: The payload cannot be decompressed, or becomes too large.
    """
    if not has_header(data):
        raise NoSchemaHeader(_missing_header_text(data))
    version_id, payload = data[2:HEADER_BYTES], data[HEADER_BYTES:]
    if data[1] == _ZLIB:
        payload = _decompress(payload, payload_bytes_max)
    return VersionedPayload(version_id, payload)


def _missing_header_text(data: bytes) -> str:
    text = f"the data does not begin with the header of the Glue Schema Registry: {len(data)} bytes"
    if data:
        text += f" that begin with 0x{data[:2].hex()}"
    return f"{text}, expected at least {HEADER_BYTES} that begin with 0x0300 or 0x0305"


def _decompress(compressed: bytes, bytes_max: int) -> bytes:
    inflater = zlib.decompressobj()
    try:
        payload = inflater.decompress(compressed, bytes_max)
    except zlib.error as error:
        raise SchemaMismatch(f"the payload cannot be decompressed with zlib: {error}") from error
    if inflater.unconsumed_tail:
        raise SchemaMismatch(
            f"the payload of {len(compressed)} bytes becomes larger than {bytes_max} bytes when it is decompressed: "
            "raise payload_bytes_max if it is to be read"
        )
    if not inflater.eof or inflater.unused_data:
        raise SchemaMismatch(
            f"the compressed payload of {len(compressed)} bytes is cut off or has more behind its end"
        )
    return payload
