"""The result of a call to the embedded server, as the error's code."""

from __future__ import annotations

from botocore.exceptions import ClientError


def code(call, **arguments) -> str:
    """Return the code of the error that a call raises, or `ok`."""
    try:
        call(**arguments)
    except ClientError as error:
        return str(error.response["Error"]["Code"])
    return "ok"
