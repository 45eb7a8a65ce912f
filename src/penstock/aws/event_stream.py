"""The frames of an event stream, and the events of SubscribeToShard in them. Pure: bytes in, values out.

A frame begins with its own length and the length of its headers (4 bytes each, big-endian) and a checksum of these 8 bytes. The
headers, the payload and a checksum of all bytes before it follow. Both checksums are CRC-32.

Source:
    AWS event stream encoding (`vnd.amazon.eventstream`), as botocore's `botocore.eventstream` reads it.
"""

from __future__ import annotations

import struct
import zlib
from collections import deque
from typing import Final, NamedTuple

import msgspec
from botocore.eventstream import EventStreamHeaderParser, ParserError

from penstock.aws.data_plane import WireChild, WireRecord, child_shards
from penstock.ports.kinesis import RecordPage

_PRELUDE: Final = struct.Struct(">III")
_OVERHEAD_BYTES: Final = 16  # prelude, its checksum and the frame's
_FRAME_BYTES_MAX: Final = 24 * 1024 * 1024 + 128 * 1024 + _OVERHEAD_BYTES  # the format's limits


class BrokenFrameError(ValueError):
    """The bytes are not a whole frame: a checksum is wrong, or a length cannot be."""


class Frame(NamedTuple):
    """One frame.

    Args:
        headers: Those whose values are texts.
        received_s: When its last bytes were received, by the clock of `FrameBuffer.add`.
    """

    headers: dict[str, str]
    payload: bytes
    received_s: float


class FrameBuffer:
    """Received bytes, and the frames in them. A frame is decoded when it is taken, not before."""

    def __init__(self) -> None:
        self._bytes = bytearray()
        self._taken_bytes = 0
        self._received_bytes = 0
        self._moments: deque[tuple[int, float]] = deque()  # number of bytes received so far, and when

    def __len__(self) -> int:
        return len(self._bytes)

    def add(self, data: bytes, now_s: float) -> None:
        """Add received bytes."""
        self._bytes += data
        self._received_bytes += len(data)
        self._moments.append((self._received_bytes, now_s))

    def drain(self) -> bytes:
        """Return everything that is left, for an answer that has no frames."""
        found = bytes(self._bytes)
        self._bytes.clear()
        return found

    def take(self) -> Frame | None:
        """Return the next frame, or None while it is not whole.

        Raises:
            BrokenFrameError: The next bytes are not a frame, and nothing after them can be read.
        """
        if len(self._bytes) < _PRELUDE.size:
            return None
        total, headers_bytes, checksum = _PRELUDE.unpack_from(self._bytes)
        with memoryview(self._bytes) as view:
            if zlib.crc32(view[:8]) != checksum:  # before the lengths are trusted
                raise BrokenFrameError(f"the checksum of a frame's first bytes is not {checksum:#010x}")
            if not headers_bytes + _OVERHEAD_BYTES <= total <= _FRAME_BYTES_MAX:
                raise BrokenFrameError(
                    f"a frame of {total} bytes with {headers_bytes} bytes of headers cannot be"
                )
            if len(view) < total:
                return None
            if zlib.crc32(view[: total - 4]) != int.from_bytes(view[total - 4 : total], "big"):
                raise BrokenFrameError(f"the checksum of a frame of {total} bytes is wrong")
            headers = bytes(view[12 : 12 + headers_bytes])
            payload = bytes(view[12 + headers_bytes : total - 4])
        del self._bytes[:total]
        return Frame(_decode_headers(headers), payload, self._take_moment(total))

    def _take_moment(self, frame_bytes: int) -> float:
        """Return when the last byte of the frame that is taken was received."""
        self._taken_bytes += frame_bytes
        while self._moments[0][0] < self._taken_bytes:
            self._moments.popleft()
        return self._moments[0][1]


def _decode_headers(raw: bytes) -> dict[str, str]:
    try:
        found = EventStreamHeaderParser().parse(raw)
    except (KeyError, struct.error, UnicodeDecodeError, ParserError) as error:
        raise BrokenFrameError(f"the headers of a frame cannot be read: {error!r}") from error
    return {name: value for name, value in found.items() if isinstance(value, str)}


class _WireEvent(msgspec.Struct):
    records: list[WireRecord] = msgspec.field(name="Records")
    continuation: str | None = msgspec.field(name="ContinuationSequenceNumber", default=None)
    millis_behind_latest: int | None = msgspec.field(name="MillisBehindLatest", default=None)
    children: list[WireChild] | None = msgspec.field(name="ChildShards", default=None)


_event_decoder: Final = msgspec.json.Decoder(_WireEvent)


def decode_event(payload: bytes, *, age_ms: int = 0, server_ms: int | None = None) -> RecordPage:
    """Decode a SubscribeToShardEvent as a page whose next iterator is the continuation.

    Args:
        age_ms: How long the event has waited in this process. It is added to `millis_behind_latest`.
        server_ms: The service's current time.

    Raises:
        BrokenFrameError: The payload is not a SubscribeToShardEvent.
    """
    try:
        event = _event_decoder.decode(payload)
    except msgspec.MsgspecError as error:
        raise BrokenFrameError(f"an event of {len(payload)} bytes cannot be read: {error}") from error
    return RecordPage(
        records=event.records,
        next_iterator=event.continuation,
        millis_behind_latest=(event.millis_behind_latest or 0) + age_ms,
        child_shards=child_shards(event.children),
        server_ms=server_ms,
    )
