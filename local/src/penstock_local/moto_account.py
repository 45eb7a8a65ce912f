"""Calls moto at the point where its own botocore hook would call it; nothing is sent over a network.

moto keeps its tables per process and account, and has no locks. So all servers of a process take turns,
and each of them has its own account, emptied when the server stops.
"""

from __future__ import annotations

import threading
from typing import Any

from penstock_local.http import Request
from penstock_local.moto_items import install_item_sizes
from penstock_local.moto_serializer import install_serializer
from penstock_local.store import ACCOUNT

_SERVICES = ("dynamodb", "dynamodbstreams", "cloudwatch", "sts")
_OWN_HEADERS = ("content-length", "date", "status", "connection", "transfer-encoding", "x-amzn-requestid")

# one request at a time in the whole process, so that only one of several conditional writes succeeds
_turn = threading.Lock()
_accounts: set[int] = set()


class MotoAccount:
    """A moto account of one server. The first server of a process has the account of its Kinesis ARNs."""

    def __init__(self) -> None:
        with _turn:
            number = int(ACCOUNT)
            while number in _accounts:
                number += 1
            _accounts.add(number)
        self._number = number
        self._used = False

    def dispatch(self, host: str, request: Request) -> tuple[int, list[tuple[str, str]], bytes]:
        """Carry one request out.

        Args:
            host: The service's public host name, by which moto chooses the service and the region.
            request: The request as received.

        Returns:
            Status, headers and body of the answer.
        """
        with _turn:
            # imported late: a server that is asked for Kinesis only never pays for it
            from botocore.awsrequest import AWSPreparedRequest
            from botocore.compat import HTTPHeaders
            from moto.core.botocore_stubber import BotocoreStubber

            self._begin()
            sent = HTTPHeaders()
            for name, value in request.headers.items():
                if name not in ("host", "content-length"):
                    sent[name] = value
            sent["host"] = host
            sent["x-moto-account-id"] = f"{self._number:012d}"
            prepared = AWSPreparedRequest(
                method=request.method,
                url=f"https://{host}{request.target}",
                headers=sent,
                body=request.body,
                stream_output=False,
            )
            answer = BotocoreStubber().process_request(prepared)
        if answer is None:
            return 404, [], b'{"__type":"UnknownOperationException","message":"moto does not serve this"}'
        status, headers, body = answer
        kept = [(str(n), str(v)) for n, v in headers.items() if str(n).lower() not in _OWN_HEADERS]
        raw = body.encode() if isinstance(body, str) else bytes(body or b"")
        if host.startswith("sts."):
            # Callers compare it with the account of their streams' ARNs, which is the same for every server.
            raw = raw.replace(f"{self._number:012d}".encode(), ACCOUNT.encode())
        return int(status), kept, raw

    def tables(self, region: str) -> Any | None:
        """Return moto's DynamoDB of a region; None when moto knows no such region."""
        with _turn:
            from moto.dynamodb.models import dynamodb_backends

            self._begin()
            try:
                return dynamodb_backends[f"{self._number:012d}"][region]
            except KeyError:
                return None

    def _begin(self) -> None:
        if not self._used:
            install_serializer()
            install_item_sizes()
            self._used = True

    def release(self) -> None:
        """Empty the account; another server may use it then."""
        with _turn:
            if self._used:
                from moto import backends

                for service in _SERVICES:
                    all_accounts: Any = backends.get_backend(service)  # type: ignore[call-overload]
                    its_own = all_accounts.pop(f"{self._number:012d}", None)
                    if its_own is not None:
                        its_own.reset()
            _accounts.discard(self._number)
