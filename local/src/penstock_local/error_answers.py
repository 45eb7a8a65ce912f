"""Errors, each in the form that its request's protocol has."""

from __future__ import annotations

from xml.sax.saxutils import escape

import msgspec

from penstock_local import cbor
from penstock_local.credentials import credential_of
from penstock_local.http import Request, Response
from penstock_local.service_errors import RequestRefused
from penstock_local.wire import CBOR, Wire

RPC_V2_CBOR = "rpc-v2-cbor"


def kinesis_error(wire: Wire, refusal: RequestRefused) -> Response:
    """Return the answer of a Kinesis operation that is refused."""
    document = {"__type": refusal.code, "message": refusal.message}
    headers = [("Content-Type", wire.content_type)]
    if wire is CBOR:
        headers.append(("x-amzn-ErrorType", refusal.code))
    return Response(refusal.status, wire.encode(document), headers)


def error_answer(request: Request, code: str, message: str, status: int) -> Response:
    """Return an error in XML (the query protocol, S3), in CBOR, or in JSON, as the request is written or signed.

    Args:
        request: The request to answer.
        code: The service's error code; a prefix before a `#` goes into the document only.
    """
    content_type = request.headers.get("content-type", "")
    kind = "Sender" if status < 500 else "Receiver"
    short = code.rpartition("#")[2]
    is_s3 = credential_of(request.headers.get("authorization", "")).service == "s3"
    if is_s3 or "x-www-form-urlencoded" in content_type:
        xml = f"<Error><Type>{kind}</Type><Code>{escape(code)}</Code><Message>{escape(message)}</Message></Error>"
        answer = xml if is_s3 else f"<ErrorResponse>{xml}</ErrorResponse>"
        return Response(status, answer.encode(), [("Content-Type", "text/xml")])
    # services that had only the query protocol in the past still send its codes, in this header
    headers = [("x-amzn-query-error", f"{short};{kind}"), ("x-amzn-ErrorType", short)]
    document = {"__type": code, "message": message, "Message": message}
    if request.headers.get("smithy-protocol") == RPC_V2_CBOR:
        headers += [("Content-Type", "application/cbor"), ("smithy-protocol", RPC_V2_CBOR)]
        return Response(status, cbor.encode(document), headers)
    if "cbor" in content_type:
        return Response(status, cbor.encode(document), [("Content-Type", CBOR.content_type), *headers])
    return Response(
        status, msgspec.json.encode(document), [("Content-Type", "application/x-amz-json-1.0"), *headers]
    )
