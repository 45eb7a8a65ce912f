"""Answers of transactions, kept for clients that send a transaction again with the same token."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from hashlib import sha256
from typing import Any, Literal

import msgspec

from penstock_local.http import Response
from penstock_local.service_errors import RequestRefused, validation

LIFETIME_MS = 10 * 60_000
_TOKENS_MAX = 10_000
_TOKEN_CHARS_MAX = 36
# a client may ask for other figures with the same token
_IGNORED_PARAMETERS = ("ClientRequestToken", "ReturnConsumedCapacity", "ReturnItemCollectionMetrics")


@dataclass(frozen=True, slots=True)
class _AnsweredTransaction:
    """A transaction that was carried out, with its answer."""

    digest: bytes
    at_ms: int
    response: Response


class IdempotentWrites:
    """The transactions of the last ten minutes that carried a token; used from one thread."""

    def __init__(self) -> None:
        self._answered: OrderedDict[tuple[str, str], _AnsweredTransaction] = OrderedDict()

    def answer(self, region: str, document: dict[str, Any], now_ms: int) -> Response | None:
        """Return the answer of a transaction that was carried out before; None for a new one.

        Args:
            region: The region of the request.

        Raises:
            RequestRefused: `IdempotentParameterMismatchException`: another request had its token.
        """
        token = document.get("ClientRequestToken")
        if token is None:
            return None
        if not 1 <= len(token) <= _TOKEN_CHARS_MAX:
            raise validation(
                f"1 validation error detected: Value '{token[:100]}' at 'clientRequestToken' failed to satisfy "
                f"constraint: Member must have length less than or equal to {_TOKEN_CHARS_MAX}"
            )
        self._forget_old(now_ms)
        earlier = self._answered.get((region, token))
        if earlier is None:
            return None
        if earlier.digest != _digest(document):
            raise RequestRefused(
                "com.amazonaws.dynamodb.v20120810#IdempotentParameterMismatchException",
                f"The request uses the same client token as a previous, but non-identical request: {token}",
            )
        return Response(earlier.response.status, earlier.response.body, list(earlier.response.headers))

    def keep(self, region: str, document: dict[str, Any], response: Response, now_ms: int) -> None:
        """Keep the answer of a transaction that succeeded and carries a token."""
        token = document.get("ClientRequestToken")
        if token is not None and response.status == 200:
            copy = Response(response.status, response.body, list(response.headers))
            self._answered[region, token] = _AnsweredTransaction(_digest(document), now_ms, copy)

    def _forget_old(self, now_ms: int) -> None:
        while self._answered:
            oldest = next(iter(self._answered.values()))
            if now_ms - oldest.at_ms <= LIFETIME_MS and len(self._answered) < _TOKENS_MAX:
                return
            self._answered.popitem(last=False)


def _digest(document: dict[str, Any]) -> bytes:
    order: Literal["sorted"] = "sorted"
    rest = {name: value for name, value in document.items() if name not in _IGNORED_PARAMETERS}
    return sha256(msgspec.json.encode(rest, order=order)).digest()
