"""Headers for web pages of this machine, by which a browser shows them the answers (cross-origin resource sharing)."""

from __future__ import annotations

from typing import Final

from penstock_local.http import Request, Response

_PREFLIGHT_S: Final = 7200
"""How long a browser may keep the answer to a preflight request. No browser keeps it longer."""
_SHOWN_HEADERS: Final = (
    "x-amzn-RequestId,x-amzn-ErrorType,x-amz-crc32,x-amz-request-id,x-amz-id-2,x-amzn-ErrorMessage,Date"
)


def preflight_answer(request: Request) -> Response:
    """Return the answer to a browser that asks whether a page may send a request."""
    wanted = request.headers.get("access-control-request-headers", "")
    return Response(
        200,
        headers=[
            ("Access-Control-Allow-Methods", "GET, POST, DELETE"),
            *([("Access-Control-Allow-Headers", wanted)] if wanted else []),
            ("Access-Control-Max-Age", str(_PREFLIGHT_S)),
        ],
    )


def allow_page(response: Response, origin: str) -> Response:
    """Allow a page to read a response; the page must be one that `Access` allows."""
    response.headers += [
        ("Access-Control-Allow-Origin", origin),
        ("Access-Control-Expose-Headers", _SHOWN_HEADERS),
        ("Vary", "Origin"),
    ]
    return response
