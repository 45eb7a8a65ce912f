"""Frames of event streams, beside botocore's own reader of them."""

import base64
import json
import struct
import zlib

import pytest
from botocore.eventstream import EventStreamBuffer
from hypothesis import given, settings
from hypothesis import strategies as st

from event_frames import EVENT, frame, header
from penstock.aws.event_stream import BrokenFrameError, FrameBuffer, decode_event
from penstock.core.hash_key import HashRange
from penstock.core.shard import ChildShard

WHOLE = frame(b'{"Records":[]}', EVENT)


def take_all(data: bytes, size: int) -> list[tuple[dict[str, str], bytes]]:
    buffer, found = FrameBuffer(), []
    for place in range(0, len(data), size):
        buffer.add(data[place : place + size], 0.0)
        while (each := buffer.take()) is not None:
            found.append((each.headers, each.payload))
    assert len(buffer) == 0
    return found


texts = st.text(min_size=1, max_size=20)


@settings(max_examples=40)
@given(
    st.lists(st.tuples(st.binary(max_size=300), st.dictionaries(texts, texts)), max_size=5),
    st.integers(1, 400),
)
def test_frames_are_read_as_botocore_reads_them_however_the_bytes_come(frames, size):
    data = b"".join(frame(payload, headers) for payload, headers in frames)
    theirs = EventStreamBuffer()
    theirs.add_data(data)
    assert take_all(data, size) == [(each.headers, each.payload) for each in theirs]


def test_a_frame_is_dated_by_its_last_bytes():
    buffer = FrameBuffer()
    buffer.add(WHOLE[:10], 1.0)
    assert buffer.take() is None
    buffer.add(WHOLE[10:] + WHOLE[:20], 2.0)
    buffer.add(WHOLE[20:], 3.0)
    assert [buffer.take().received_s, buffer.take().received_s, buffer.take()] == [2.0, 3.0, None]


@pytest.mark.parametrize("place", [0, 9, 20, len(WHOLE) - 6, len(WHOLE) - 1])
def test_a_changed_byte_is_found(place):
    broken = bytearray(WHOLE)
    broken[place] ^= 1
    buffer = FrameBuffer()
    buffer.add(bytes(broken), 0.0)
    with pytest.raises(BrokenFrameError, match="checksum"):
        buffer.take()


@pytest.mark.parametrize(("total", "headers"), [(2**31, 0), (15, 0), (40, 30)])
def test_lengths_that_cannot_be_are_refused_before_anything_is_awaited(total, headers):
    prelude = struct.pack(">II", total, headers)
    buffer = FrameBuffer()
    buffer.add(prelude + struct.pack(">I", zlib.crc32(prelude)), 0.0)
    with pytest.raises(BrokenFrameError, match="cannot be"):
        buffer.take()


def framed(headers):
    prelude = struct.pack(">II", 16 + len(headers), len(headers))
    checked = prelude + struct.pack(">I", zlib.crc32(prelude)) + headers
    return checked + struct.pack(">I", zlib.crc32(checked))


def test_headers_of_other_types_are_skipped():
    others = b"\x01a\x00\x01b\x04\0\0\0\x05\x01c\x06\0\x02xy\x01d\x09" + bytes(16)
    assert take_all(framed(others + header("e", "text")), 100) == [({"e": "text"}, b"")]


@pytest.mark.parametrize("raw", [b"\x05ab", b"\x01a\x0b", b"\x01a\x07\0", header("a", "b") * 2])
def test_headers_that_cannot_be_read_are_refused(raw):
    with pytest.raises(BrokenFrameError, match="headers"):
        take_all(framed(raw), 100)


def test_an_event_is_a_page_whose_next_iterator_is_its_continuation():
    document = {
        "Records": [
            {
                "SequenceNumber": "495",
                "Data": base64.b64encode(b"\x00payload").decode(),
                "PartitionKey": "k",
                "ApproximateArrivalTimestamp": 1700000000.25,
                "EncryptionType": "NONE",
            }
        ],
        "ContinuationSequenceNumber": "496",
        "MillisBehindLatest": 7,
    }
    page = decode_event(json.dumps(document).encode(), age_ms=2_000, server_ms=5)
    assert [(r.sequence_number, r.data, r.partition_key, r.arrival_s) for r in page.records] == [
        ("495", b"\x00payload", "k", 1700000000.25)
    ]
    assert (page.next_iterator, page.millis_behind_latest, page.server_ms) == ("496", 2_007, 5)
    assert page.child_shards == ()


def test_the_last_event_of_a_shard_has_children_and_no_continuation():
    child = {
        "ShardId": "shardId-1",
        "ParentShards": ["shardId-0"],
        "HashKeyRange": {"StartingHashKey": "0", "EndingHashKey": "9"},
    }
    page = decode_event(json.dumps({"Records": [], "MillisBehindLatest": 0, "ChildShards": [child]}).encode())
    assert page.next_iterator is None
    assert page.child_shards == (ChildShard("shardId-1", ("shardId-0",), HashRange(0, 9)),)


def test_a_payload_that_is_no_event_is_refused():
    with pytest.raises(BrokenFrameError, match="cannot be read"):
        decode_event(b'{"Records":')
