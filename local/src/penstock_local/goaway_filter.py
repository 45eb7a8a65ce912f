"""Removes a client's GOAWAY frames from its bytes.

A client that has sent GOAWAY may still wait for answers (RFC 9113, 6.8), and Node.js sends one after every request. h2 takes
the frame for the end of the connection, and refuses everything after it.
"""

from __future__ import annotations

_PREFACE_BYTES = 24
_FRAME_HEAD_BYTES = 9
_GOAWAY = 7


class GoawayFilter:
    """Removes the GOAWAY frames from one connection's bytes.

    Attributes:
        has_goaway: Whether the client has sent a GOAWAY frame.
    """

    def __init__(self) -> None:
        self.has_goaway = False
        self._head = b""
        self._left_bytes = _PREFACE_BYTES
        self._is_goaway = False

    def remove_goaways(self, data: bytes) -> bytes:
        """Return the next bytes without GOAWAY frames; an incomplete head of a frame is kept for the next call."""
        if not self._is_goaway and len(data) <= self._left_bytes:
            self._left_bytes -= len(data)
            return data
        kept: list[bytes | memoryview] = []
        view = memoryview(data)
        at = 0
        while at < len(data):
            if not self._left_bytes:
                missing = _FRAME_HEAD_BYTES - len(self._head)
                self._head += view[at : at + missing]
                at += missing
                if len(self._head) < _FRAME_HEAD_BYTES:
                    break
                self._left_bytes = int.from_bytes(self._head[:3])
                self._is_goaway = self._head[3] == _GOAWAY
                self.has_goaway |= self._is_goaway
                if not self._is_goaway:
                    kept.append(self._head)
                self._head = b""
            count = min(self._left_bytes, len(data) - at)
            if not self._is_goaway:
                kept.append(view[at : at + count])
            at += count
            self._left_bytes -= count
        return b"".join(kept)
