"""DynamoDB, CloudWatch and STS on the same endpoint: requests are handed to moto, in this process.

One thread carries them out, so one request runs at a time: moto itself has no locks, and with two at
once a conditional write could have two winners. moto is imported on the first such request, and is
entered at the point where its own botocore hook would enter it, so nothing is ever sent anywhere.
"""

from __future__ import annotations

import asyncio
import re
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import msgspec

from penstock.local.http import Request, Response

_SCOPE = re.compile(r"Credential=[^/]*/\d*/([^/]*)/([^/]*)/aws4_request")
_HOSTS = {
    "dynamodb": "dynamodb.{}.amazonaws.com",
    "dynamodbstreams": "streams.dynamodb.{}.amazonaws.com",
    "cloudwatch": "monitoring.{}.amazonaws.com",
    "sts": "sts.{}.amazonaws.com",
}
_TARGETS = {
    "DynamoDB_20120810": "dynamodb",
    "DynamoDBStreams_20120810": "dynamodbstreams",
    "GraniteServiceVersion20100801": "cloudwatch",
}
_VERSIONS = {"2010-08-01": "cloudwatch", "2011-06-15": "sts"}
_FORM = re.compile(rb"(?:^|&)(Action|Version)=([^&]*)")


def service_and_operation(request: Request) -> tuple[str, str] | None:
    """Return the service (a key of the bridge) and operation that a request is for; None when neither is ours."""
    prefix, _, operation = request.headers.get("x-amz-target", "").partition(".")
    if prefix in _TARGETS:
        return _TARGETS[prefix], operation
    if request.target.startswith("/service/GraniteServiceVersion20100801/operation/"):
        return "cloudwatch", request.target.rsplit("/", 1)[1]
    if request.headers.get("content-type", "").startswith("application/x-www-form-urlencoded"):
        form = {name: value.decode("latin-1") for name, value in _FORM.findall(request.body)}
        service = _VERSIONS.get(form.get(b"Version", ""))
        if service is not None and b"Action" in form:
            return service, form[b"Action"]
    return None


def tables_of(body: bytes) -> tuple[str, ...]:
    """Return the tables that a DynamoDB request names."""
    try:
        document = msgspec.json.decode(body)
    except msgspec.DecodeError:
        return ()
    if not isinstance(document, dict):
        return ()
    found = set()
    if isinstance(document.get("TableName"), str):
        found.add(document["TableName"])
    if isinstance(document.get("RequestItems"), dict):
        found.update(document["RequestItems"])
    items = document.get("TransactItems")
    for item in items if isinstance(items, list) else ():
        found.update(action["TableName"] for action in item.values() if "TableName" in action)
    return tuple(sorted(found))


class MotoBridge:
    """Carries requests to moto, one at a time.

    Args:
        region: Region to use for requests that are not signed.
    """

    def __init__(self, region: str) -> None:
        self._region = region
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="penstock-moto")
        self._stubber: Any = None

    async def answer(self, service: str, request: Request) -> Response:
        """Return moto's answer to a request."""
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._thread, self._answer, service, request)

    def close(self) -> None:
        """Wait for the request in hand, then stop the thread."""
        self._thread.shutdown(wait=True, cancel_futures=True)

    def _answer(self, service: str, request: Request) -> Response:
        scope = _SCOPE.search(request.headers.get("authorization", ""))
        region = scope[1] if scope is not None else self._region
        status, headers, body = self._dispatch(_HOSTS[service].format(region), request)
        raw = body.encode() if isinstance(body, str) else bytes(body or b"")
        kept = [
            (str(name), str(value))
            for name, value in headers.items()
            if str(name).lower()
            not in ("content-length", "date", "status", "connection", "transfer-encoding")
        ]
        return Response(int(status), raw, kept)

    def _dispatch(self, host: str, request: Request) -> tuple[int, dict[str, Any], Any]:
        # imported late: a server that is asked for Kinesis only never pays for it
        from botocore.awsrequest import AWSPreparedRequest
        from botocore.compat import HTTPHeaders
        from moto.core.botocore_stubber import BotocoreStubber

        if self._stubber is None:
            self._stubber = BotocoreStubber()
        headers = HTTPHeaders()
        for name, value in request.headers.items():
            if name not in ("host", "content-length"):
                headers[name] = value
        headers["host"] = host
        prepared = AWSPreparedRequest(
            method=request.method,
            url=f"https://{host}{request.target}",
            headers=headers,
            body=request.body,
            stream_output=False,
        )
        answer = self._stubber.process_request(prepared)
        if answer is None:
            return 404, {}, '{"__type":"UnknownOperationException","message":"moto does not serve this"}'
        return answer  # type: ignore[no-any-return]  # moto is not typed
