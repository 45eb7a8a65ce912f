"""Calls moto at the point where its own botocore hook would call it; nothing is sent over a network.

moto keeps its tables per process and account, and has no locks. So all servers of a process take turns,
and each of them has its own account. moto has the account's data during a call only: `mock_aws` in a test empties all accounts,
and has an account of the same number for the test's own tables.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from penstock_local.http import Request
from penstock_local.moto_fixes import install_fixes
from penstock_local.store import ACCOUNT

_SERVICES = ("dynamodb", "dynamodbstreams", "cloudwatch", "sts")
_OWN_HEADERS = ("content-length", "date", "status", "connection", "transfer-encoding", "x-amzn-requestid")

# one request at a time in the whole process, so that only one of several conditional writes succeeds
_turn_lock = threading.Lock()
_accounts: set[int] = set()


class MotoAccount:
    """A moto account of one server. The first server of a process has the account of its Kinesis ARNs."""

    def __init__(self) -> None:
        with _turn_lock:
            number = int(ACCOUNT)
            while number in _accounts:
                number += 1
            _accounts.add(number)
        self._number = f"{number:012d}"
        self._has_fixes = False
        self._own_data: dict[str, Any] = {}

    def dispatch(self, host: str, request: Request) -> tuple[int, list[tuple[str, str]], bytes]:
        """Carry one request out.

        Args:
            host: The service's public host name, by which moto chooses the service and the region.
            request: The request as received.

        Returns:
            Status, headers and body of the answer.
        """
        with self._lend_data():
            # imported late: a server that is asked for Kinesis only never pays for it
            from botocore.awsrequest import AWSPreparedRequest
            from botocore.compat import HTTPHeaders
            from moto.core.botocore_stubber import BotocoreStubber

            sent_headers = HTTPHeaders()
            for name, value in request.headers.items():
                if name not in ("host", "content-length"):
                    sent_headers[name] = value
            sent_headers["host"] = host
            sent_headers["x-moto-account-id"] = self._number
            prepared = AWSPreparedRequest(
                method=request.method,
                url=f"https://{host}{request.target}",
                headers=sent_headers,
                body=request.body,
                stream_output=False,
            )
            answer = BotocoreStubber().process_request(prepared)
        if answer is None:
            return 404, [], b'{"__type":"UnknownOperationException","message":"moto does not serve this"}'
        status, headers, body = answer
        kept_headers = [(str(n), str(v)) for n, v in headers.items() if str(n).lower() not in _OWN_HEADERS]
        raw = body.encode() if isinstance(body, str) else bytes(body or b"")
        if host.startswith("sts."):
            # Callers compare it with the account of their streams' ARNs, which is the same for every server.
            raw = raw.replace(self._number.encode(), ACCOUNT.encode())
        return int(status), kept_headers, raw

    def tables(self, region: str) -> Any | None:
        """Return moto's DynamoDB of a region; None when moto knows no such region."""
        with self._lend_data():
            from moto.dynamodb.models import dynamodb_backends

            try:
                return dynamodb_backends[self._number][region]
            except KeyError:
                return None

    @contextmanager
    def _lend_data(self) -> Iterator[None]:
        """Take a turn, and give moto the account's data for it."""
        with _turn_lock:
            from moto import backends
            from moto.core.base_backend import backend_lock

            if not self._has_fixes:
                install_fixes()
                self._has_fixes = True
            with backend_lock:  # `mock_aws` empties the accounts under this lock
                moto_accounts: list[Any] = [backends.get_backend(each) for each in _SERVICES]  # type: ignore[call-overload]
                others = [accounts.pop(self._number, None) for accounts in moto_accounts]
                _put_accounts(moto_accounts, self._number, [self._own_data.get(each) for each in _SERVICES])
                try:
                    yield
                finally:
                    self._own_data = {
                        each: accounts.pop(self._number, None)
                        for each, accounts in zip(_SERVICES, moto_accounts, strict=True)
                    }
                    _put_accounts(moto_accounts, self._number, others)

    def release(self) -> None:
        """Forget the data; another server may use the account's number then."""
        with _turn_lock:
            self._own_data = {}
            _accounts.discard(int(self._number))


def _put_accounts(moto_accounts: list[Any], number: str, data: list[Any]) -> None:
    for accounts, account in zip(moto_accounts, data, strict=True):
        if account is not None:
            accounts[number] = account
