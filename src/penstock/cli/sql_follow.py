"""`penstock sql --follow`: a result that changes while records arrive."""

from __future__ import annotations

import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Final

from penstock.cli.filtered_logs import filtered_logs, is_shown_without_leases
from penstock.cli.output_reader import while_output_is_read
from penstock.cli.sql_output import ResultWriter, json_rows, open_writer, print_not_utf8, whole_file
from penstock.errors import OptionError
from penstock.sql.database import Database, empty_batch
from penstock.sql.follow import FollowedQuery
from penstock.sql.followed_rows import FollowedRecording, FollowedStream
from penstock.sql.read_ahead import ReadAhead, ReadStopped
from penstock.sql.stream_rows import StreamRows

if TYPE_CHECKING:
    import argparse

    import pyarrow as pa

    from penstock.sql.query import Query

_REFRESH_MIN_S: Final = 0.1
_END_WAIT_S: Final = 10.0


def check_follow(args: argparse.Namespace, format_name: str) -> None:
    """Check the options of `--follow`.

    Raises:
        OptionError: The interval is too short, or the format needs `--output`.
    """
    if args.follow and args.refresh < _REFRESH_MIN_S:
        raise OptionError(f"--refresh {args.refresh:g}: expected at least {_REFRESH_MIN_S:g} seconds")
    if args.follow and args.output is None and format_name == "csv":
        raise OptionError("--follow with --format csv needs --output: the file then has the newest result")


def follow_query(query: Query, args: argparse.Namespace, format_name: str, sql: str) -> None:
    """Print results until a signal, or until the reader of the output has gone.

    Raises:
        OptionError: The query reads no stream, or rows without an end cannot be written in this format.
        BrokenPipeError: The reader of the output has gone.
    """
    if not any(isinstance(table.source, StreamRows) for table in query.tables):
        raise OptionError("--follow: the query reads no stream, so its result does not change")
    sources = [
        FollowedStream(table.source)
        if isinstance(table.source, StreamRows)
        else FollowedRecording(table.source)
        for table in query.tables
    ]
    followed_query = FollowedQuery(
        query, sources, lambda: Database(sql, args.time_zone, args.memory), interval_s=args.refresh
    )
    try:
        _print_results(followed_query, format_name, None if args.output is None else Path(args.output))
    finally:
        followed_query.close()


def _print_results(followed_query: FollowedQuery, format_name: str, path: Path | None) -> None:
    if followed_query.is_row_by_row and format_name == "parquet":
        raise OptionError("--follow: rows without an end are written as table, csv or json, not as parquet")
    writer = open_writer(format_name, path) if followed_query.is_row_by_row else None
    results: ReadAhead[pa.Table] = ReadAhead("penstock-sql", followed_query.results)
    try:
        with filtered_logs(is_shown_without_leases), while_output_is_read(results.stop) as is_reader_gone:
            try:
                for rows in results:
                    if writer is None:
                        _print_whole(rows, format_name, path)
                    else:
                        _write_batches(rows, writer)
            except ReadStopped:
                if is_reader_gone.is_set():
                    raise BrokenPipeError from None
                raise
    finally:
        followed_query.stop()
        results.stop()
        results.join(_END_WAIT_S)
        if writer is not None:
            writer.close()
        print_not_utf8(followed_query.not_utf8_count)


def _write_batches(rows: pa.Table, writer: ResultWriter) -> None:
    writer.write(empty_batch(rows.schema))
    for batch in rows.to_batches():
        writer.write(batch)


def _print_whole(rows: pa.Table, format_name: str, path: Path | None) -> None:
    """Write a whole result. In a file, it replaces the previous result; on stdout, it follows the previous result."""
    if path is not None:
        with whole_file(format_name, path) as writer:
            _write_batches(rows, writer)
        return
    at = datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    if format_name == "json":
        sys.stdout.write(f'{{"at": "{at}", "rows": [{", ".join(json_rows(rows))}]}}\n')
        sys.stdout.flush()
        return
    sys.stdout.write(f"\n{at}\n")
    writer = open_writer(format_name, None)
    _write_batches(rows, writer)
    writer.close()
