"""The tables that a query names: recordings by name or file, and streams."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Final

from penstock.core.stream_identity import is_name_or_arn
from penstock.errors import OptionError

if TYPE_CHECKING:
    from penstock.ports.kinesis import Kinesis
    from penstock.sql.query import RowSource

_RECORDING_SUFFIX: Final = ".penstock"


class TableOpener:
    """Opens the tables that a query names.

    Args:
        recordings: Paths of recordings by name. Any other name that ends in `.penstock` is a path itself.
        open_kinesis: Returns the connection to the service for a stream's name or ARN.
    """

    def __init__(self, recordings: Mapping[str, Path], open_kinesis: Callable[[str], Kinesis]) -> None:
        self._recordings = recordings
        self._open_kinesis = open_kinesis

    def open(self, name: str) -> RowSource:
        """Open a recording or a stream.

        Raises:
            NotFound: There is no stream of this name.
            OptionError: The name cannot be that of a stream.
        """
        if name in self._recordings or name.endswith(_RECORDING_SUFFIX):
            from penstock.sql.recording_rows import RecordingRows

            return RecordingRows(self._recordings.get(name) or Path(name))
        return self._open_stream(name)

    def _open_stream(self, name: str) -> RowSource:
        from penstock.sql.stream_rows import open_stream_rows

        if not is_name_or_arn(name):
            raise OptionError(
                f"table {name}: this is not a name of a stream; of files a query reads only recordings: those that end in "
                f"{_RECORDING_SUFFIX}, or were given a name"
            )
        return open_stream_rows(self._open_kinesis(name), name)
