"""`penstock.frames.sql`: the engine of `penstock sql` as a function."""

from __future__ import annotations

import logging
import os
from collections.abc import Generator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from penstock import wiring
from penstock.core.keyword_options import merge_connection
from penstock.core.stream_identity import with_region_of_arns
from penstock.sql.tables import TableOpener

if TYPE_CHECKING:
    import pyarrow as pa

    from penstock.sql.query import Query

_log: Final = logging.getLogger("penstock.sql")


def sql(
    query: str,
    *,
    recordings: Mapping[str, str | os.PathLike[str]] | None = None,
    time_zone: str | None = None,
    memory: str = "1GB",
    region: str | None = None,
    endpoint_url: str | None = None,
    connection: Mapping[str, Any] | None = None,
) -> pa.RecordBatchReader:
    """Run a SELECT over streams and recordings, as `penstock sql` does. Needs `pip install 'penstock[sql]'`.

    Args:
        query: One SELECT. Its tables are streams, by name or ARN. A name that ends in `.penstock` is a recording.
            Conditions on `arrived` limit the read.
        recordings: Paths of recordings by their names in the query.
        time_zone: The time zone of timestamps in the query and in the result; None: that of this machine.
        memory: The limit of DuckDB's memory; larger data goes to a temporary folder.
        region: Region of the streams.
        endpoint_url: Another endpoint than AWS's.
        connection: Further connection options (docs/api.md).

    Returns:
        The result, batch by batch as it is computed: `read_all()` makes a table, `read_pandas()` a frame. The query ends
        with the reader, or when the reader is no longer referenced. An error in later rows is raised by the reader.

    Raises:
        UsageError: DuckDB refuses the query, it is not a single SELECT, or an option has a bad value.
        NotFound: There is no such stream.
        DamagedRecording: A file is not a complete recording.
    """
    from penstock.sql.packages import pa
    from penstock.sql.query import Query

    fields = merge_connection(connection, region=region, endpoint_url=endpoint_url)
    wiring.parse_connection(fields)  # raises for a bad value even if no stream is read
    tables = TableOpener(
        {name: Path(path) for name, path in (recordings or {}).items()},
        lambda stream: wiring.open_kinesis(wiring.parse_connection(with_region_of_arns(fields, stream))),
    )
    rows = _batches_of(Query(query, tables.open, zone=time_zone, memory=memory))
    columns = next(rows)  # starts the generator: only a started one ends the query when it is discarded
    return pa.RecordBatchReader.from_batches(columns.schema, rows)


def _batches_of(query: Query) -> Generator[pa.RecordBatch, None, None]:
    """Yield the query's results, then log how many records have no text; close the query at the end."""
    with query:
        yield from query.results_on_thread()
        if query.not_utf8_count:
            _log.warning(
                "%d of the records read are not UTF-8: their text and json are null", query.not_utf8_count
            )
