"""GetRecords without what botocore works out anew for each call, which is half of a call's CPU time.

A reader at the tip makes this call again and again, and only its body changes. The first call of a client goes through
botocore. Later ones take the address and the headers that botocore gave it; botocore signs and sends them too, so credentials,
certificates, proxies, connections and time limits are the client's own. Whoever answers or refuses requests before they are
sent (moto does) is asked as ever, and whoever looks at answers sees them.
"""

from __future__ import annotations

import logging
from typing import Any, Final

import msgspec
from botocore.awsrequest import AWSRequest
from botocore.exceptions import ClientError
from botocore.parsers import create_parser

from penstock.aws.data_plane import PageParser

_log: Final = logging.getLogger("penstock.aws")
_OPERATION: Final = "GetRecords"
_OF_ONE_CALL: Final = frozenset(
    {"content-length", "amz-sdk-invocation-id", "amz-sdk-request", "x-amzn-trace-id"}
)
_encode: Final = msgspec.json.Encoder().encode


def repeat_get_records(client: Any) -> bool:
    """Make a client of Kinesis repeat its first GetRecords instead of building each anew.

    Returns:
        False where this botocore has not what that takes. Then the client stays as it is, and a warning is logged.
    """
    try:
        call = _RepeatedCall(client)
    except AttributeError as error:
        _log.warning("this botocore shows no signer or connections (%s): GetRecords costs more", error)
        return False
    client.meta.events.register_first(f"request-created.kinesis.{_OPERATION}", call.note)
    client.get_records = call
    return True


class _RepeatedCall:
    """GetRecords of one client; safe to use from several threads.

    Args:
        client: The client.
    """

    def __init__(self, client: Any) -> None:
        self._client = client
        self._build = client.get_records
        self._sign = client._request_signer.sign  # noqa: SLF001 - docs/internals-used.md
        self._send = client._endpoint.http_session.send  # noqa: SLF001 - docs/internals-used.md
        self._parser = PageParser(create_parser("json"))
        self._model = client.meta.service_model.operation_model(_OPERATION)
        self._first: tuple[str, dict[str, str], dict[str, Any]] | None = None

    def note(self, request: Any, **_: Any) -> None:
        """Keep the address, the headers and the context of a request that botocore has built and not signed yet."""
        if self._first is None and b"StreamARN" not in request.data:
            headers = {
                key: value for key, value in request.headers.items() if key.lower() not in _OF_ONE_CALL
            }
            self._first = request.url, headers, dict(request.context)

    def __call__(self, **arguments: Any) -> Any:
        """Call GetRecords, as the client's method does.

        Raises:
            ClientError, BotoCoreError: As the client's method does.
        """
        if self._first is None or "StreamARN" in arguments:  # which may decide about the address
            return self._build(**arguments)
        url, headers, context = self._first
        request = AWSRequest("POST", url, headers, _encode(arguments))
        request.context.update(context)
        self._sign(_OPERATION, request)
        prepared = request.prepare()
        asked = self._client.meta.events.emit(f"before-send.kinesis.{_OPERATION}", request=prepared)
        answers = [answer for _, answer in asked if answer is not None]
        return self._read(answers[0] if answers else self._send(prepared), request.context)

    def _read(self, answer: Any, context: dict[str, Any]) -> Any:
        response = {
            "headers": answer.headers,
            "status_code": answer.status_code,
            "body": answer.content,
            "context": {},
        }
        parsed: Any = self._parser.parse(response, self._model.output_shape)
        self._client.meta.events.emit(
            f"after-call.kinesis.{_OPERATION}",
            http_response=answer,
            parsed=parsed,
            model=self._model,
            context=context,
        )
        if answer.status_code >= 300:
            raise ClientError(parsed, _OPERATION)
        return parsed
