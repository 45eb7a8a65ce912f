"""Adds the stream to the errors of a query of several streams: shard ids are the same in every stream."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Final

from penstock.errors import PenstockError, StreamChanged

_ANEW: Final = (
    "Or, since this query reads several streams, start it again with failOnDataLoss=false: it then reads the new stream from "
    "startingPosition, and goes on with the others"
)


@contextlib.contextmanager
def naming_stream(stream: str) -> Iterator[None]:
    """Add the stream to the message of an error of Penstock that does not name it.

    Args:
        stream: Name or ARN.
    """
    try:
        yield
    except PenstockError as error:
        if stream.rpartition("/")[2] not in str(error):
            error.args = (f"stream {stream}: {error}", *error.args[1:])
        if isinstance(error, StreamChanged) and "failOnDataLoss" not in str(error):
            error.args = (f"{error}. {_ANEW}", *error.args[1:])
        raise
