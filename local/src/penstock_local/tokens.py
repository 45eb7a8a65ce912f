"""Shard iterators and page tokens: opaque, self-contained, signed, and dated by the virtual clock.

The signature shows whether this server made a token, so it needs no table of all that it has issued. The service refuses
invented tokens, too.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import struct
from typing import Any, NamedTuple

import msgspec

from penstock_local.service_errors import RequestRefused, invalid_argument

LIFETIME_MS = 300_000
_ITERATOR = struct.Struct(">BQIQQI")
_RECEIPT = struct.Struct(">BQIQQ")
_NORMAL_RECEIPT, _DEAD_RECEIPT = 2, 3
_MAC_BYTES = 8


class IteratorState(NamedTuple):
    """The position of a shard iterator."""

    stream_uid: int
    shard_index: int
    ordinal: int


class Receipt(NamedTuple):
    """The delivery that a receipt handle names."""

    queue_uid: int
    shard_index: int
    ordinal: int
    number: int


class Tokens:
    """Makes and reads tokens.

    Attributes:
        key: Secret that signs them; keep it over a restart for tokens to stay valid.
    """

    def __init__(self, key: bytes) -> None:
        self.key = key
        self.iterator_generation = 0
        self.page_generation = 0

    def iterator(self, state: IteratorState, now_ms: int) -> str:
        """Return a shard iterator for this position, valid for five minutes from now."""
        return self._seal(_ITERATOR.pack(1, *state, now_ms, self.iterator_generation))

    def read_iterator(self, text: str, now_ms: int) -> IteratorState:
        """Open a shard iterator.

        Raises:
            RequestRefused: `InvalidArgumentException` when it is not one of ours, `ExpiredIteratorException` when
                it is older than five minutes.
        """
        raw = self._open(text)
        if raw is None or len(raw) != _ITERATOR.size:
            raise invalid_argument("Invalid ShardIterator.")
        _, uid, index, ordinal, issued_ms, generation = _ITERATOR.unpack(raw)
        if generation != self.iterator_generation or now_ms - issued_ms > LIFETIME_MS:
            raise RequestRefused(
                "ExpiredIteratorException",
                f"Iterator expired. The iterator was created at time {issued_ms} while right now it is {now_ms} "
                f"which is further in the future than the tolerated delay of {LIFETIME_MS} milliseconds.",
            )
        return IteratorState(uid, index, ordinal)

    def receipt(self, receipt: Receipt, *, dead: bool) -> str:
        """Return the receipt handle of a delivery; `dead` is whether it is a dead letter's."""
        return self._seal(_RECEIPT.pack(_DEAD_RECEIPT if dead else _NORMAL_RECEIPT, *receipt))

    def read_receipt(self, text: str) -> tuple[Receipt, bool] | None:
        """Return the delivery that a receipt handle names, and whether that is a dead letter's; None if this server made no such handle."""
        raw = self._open(text)
        if raw is None or len(raw) != _RECEIPT.size or raw[0] not in (_NORMAL_RECEIPT, _DEAD_RECEIPT):
            return None
        kind, *fields = _RECEIPT.unpack(raw)
        return Receipt(*fields), kind == _DEAD_RECEIPT

    def page(self, kind: str, fields: dict[str, Any], now_ms: int) -> str:
        """Return a NextToken of this kind that carries the fields, valid for five minutes from now."""
        return self._seal(msgspec.json.encode([kind, fields, now_ms, self.page_generation]))

    def read_page(self, kind: str, text: str, now_ms: int) -> dict[str, Any]:
        """Open a NextToken.

        Raises:
            RequestRefused: `InvalidArgumentException` when it is not one of ours and of this kind,
                `ExpiredNextTokenException` when it is older than five minutes.
        """
        raw = self._open(text)
        found = None if raw is None or not raw.startswith(b"[") else msgspec.json.decode(raw)
        if found is None or found[0] != kind:
            raise invalid_argument("NextToken is invalid.")
        _, fields, issued_ms, generation = found
        if generation != self.page_generation or now_ms - issued_ms > LIFETIME_MS:
            raise RequestRefused(
                "ExpiredNextTokenException",
                f"NextToken expired: it was created at time {issued_ms}, and it is {now_ms} now.",
            )
        return dict(fields)

    def _seal(self, raw: bytes) -> str:
        return base64.b64encode(raw + self._mac(raw)).decode()

    def _open(self, text: str) -> bytes | None:
        try:
            sealed = base64.b64decode(text.encode(), validate=True)
        except (binascii.Error, ValueError):
            return None
        raw, mac = sealed[:-_MAC_BYTES], sealed[-_MAC_BYTES:]
        return raw if mac == self._mac(raw) else None

    def _mac(self, raw: bytes) -> bytes:
        return hashlib.blake2b(raw, key=self.key, digest_size=_MAC_BYTES).digest()
