"""The header before a payload, byte for byte as the Java reference writes it."""

import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import NoSchemaHeader, SchemaMismatch
from penstock.schemas.header import HEADER_BYTES, add_header, has_header, split_header

ID = bytes(range(16))


def test_a_header_is_version_compression_and_id():
    assert add_header(ID, b"payload", compress=False) == b"\x03\x00" + ID + b"payload"
    compressed = add_header(ID, b"payload", compress=True)
    assert compressed[:HEADER_BYTES] == b"\x03\x05" + ID
    assert zlib.decompress(compressed[HEADER_BYTES:]) == b"payload"


@given(st.binary(max_size=200), st.booleans(), st.binary(min_size=16, max_size=16))
def test_what_was_put_behind_a_header_comes_back(payload, compress, version_id):
    data = add_header(version_id, payload, compress=compress)
    assert has_header(data)
    assert split_header(data, 200) == (version_id, payload)


@pytest.mark.parametrize(
    "data",
    [b"", b"\x03", b"\x03\x00" + ID[:15], b"\x02\x00" + ID, b"\x03\x01" + ID, b'{"id": 1234567890123}'],
)
def test_data_without_a_header_is_told_by_its_first_bytes(data):
    assert not has_header(data)
    with pytest.raises(NoSchemaHeader, match=f"{len(data)} bytes.*expected at least 18.*0x0305$"):
        split_header(data, 100)


def test_an_empty_payload_has_a_header_too():
    assert split_header(b"\x03\x00" + ID, 100) == (ID, b"")


def test_a_payload_that_becomes_too_large_is_not_unpacked():
    data = add_header(ID, bytes(1_000_001), compress=True)
    assert split_header(data, 1_000_001).payload == bytes(1_000_001)
    with pytest.raises(SchemaMismatch, match=r"becomes larger than 1000000 bytes.*payload_bytes_max"):
        split_header(data, 1_000_000)


@pytest.mark.parametrize(
    "damage", [lambda data: data[:-3], lambda data: data + b"more", lambda data: data[:HEADER_BYTES]]
)
def test_a_compressed_payload_must_be_whole(damage):
    data = add_header(ID, b"payload" * 10, compress=True)
    with pytest.raises(SchemaMismatch, match="cut off or has more behind its end"):
        split_header(damage(data), 1000)


def test_a_payload_that_is_not_compressed_says_so():
    with pytest.raises(SchemaMismatch, match="cannot be decompressed with zlib"):
        split_header(b"\x03\x05" + ID + b"not zlib", 1000)
