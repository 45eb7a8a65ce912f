"""`penstock sql`: a SELECT over streams and recordings."""

from __future__ import annotations

import argparse
import signal
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from penstock import wiring
from penstock.cli.exit_on_signals import CLEAN_STOP, exit_on_signals, shell_statuses
from penstock.cli.pairs import pairs_of
from penstock.cli.service_options import add_connection_arguments, options_of
from penstock.cli.terminal import counted, warn
from penstock.errors import OptionError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from penstock.sql.query import PlannedTable, Query

DESCRIPTION = "Ask a stream questions in SQL: a SELECT over its records, run by DuckDB on this machine."
OPTION_FLAGS: Final = {"time_zone": "--time-zone", "memory": "--memory"}
_EXAMPLE: Final = (
    "select json->>'type', count(*) from orders where arrived > now() - interval 2 hours group by 1"
)
_FORMATS: Final = ("table", "csv", "json", "parquet")
_CLOCK_AHEAD_S_MAX: Final = 5.0
_EXIT_USAGE: Final = 2


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.epilog = f'penstock sql "{_EXAMPLE}"'
    parser.add_argument(
        "query",
        metavar="QUERY",
        help="one SELECT; - reads it from stdin. Its tables are streams, by name or ARN (in double quotes where SQL needs them). Columns: arrived, text, "
        "json, partitionKey, data, shardId, sequenceNumber, subSequenceNumber, explicitHashKey, streamName, "
        "approximateArrivalTimestamp. Conditions on arrived limit the read",
    )
    parser.add_argument(
        "--recording",
        action="append",
        default=[],
        metavar="NAME=FILE",
        help="a recording under a name for the query; repeat for several. A table in single quotes that ends in .penstock is a "
        "recording as well",
    )
    parser.add_argument("--json", action="store_const", dest="format", const="json", help="--format json")
    parser.add_argument(
        "--format", choices=_FORMATS, help="default: by the name of --output, otherwise table"
    )
    parser.add_argument(
        "-o", "--output", metavar="FILE", help="write the result to a file: .csv, .json, .jsonl or .parquet"
    )
    parser.add_argument(
        "--time-zone",
        metavar="ZONE",
        help="time zone of timestamps without one in the query, and of those in the result: UTC, Europe/Berlin (default: that of "
        "this machine)",
    )
    parser.add_argument(
        "--memory",
        metavar="SIZE",
        default="1GB",
        help="DuckDB's memory; the rest goes to a temporary folder (default: 1GB)",
    )
    parser.add_argument(
        "--follow",
        action="store_true",
        help="go on with new records until Ctrl-C. A query over single rows prints new rows. Any other, for instance with group by, is "
        "computed again over all records since its lower bound of arrived, and printed when its result has changed",
    )
    parser.add_argument(
        "--refresh",
        type=float,
        default=2.0,
        metavar="SECONDS",
        help="with --follow: time between two results over all records (default: 2)",
    )
    add_connection_arguments(parser)


def run(args: argparse.Namespace) -> int:
    """Run the query; return 0, or 2 if DuckDB refuses it."""
    from penstock.cli.sql_follow import check_follow, follow_query
    from penstock.cli.sql_output import format_of
    from penstock.sql.query import Query
    from penstock.sql.statement import StatementError
    from penstock.sql.tables import TableOpener

    format_name = format_of(args.format, args.output)
    check_follow(args, format_name)
    if args.output is not None and not Path(args.output).parent.is_dir():
        raise OptionError(f"--output {args.output}: there is no folder {Path(args.output).parent}")
    recordings = pairs_of(args.recording, "--recording", "NAME=FILE", may_be_empty=False)
    tables = TableOpener(
        {table_name: Path(path) for table_name, path in recordings.items()},
        lambda stream: wiring.open_kinesis(options_of(args, stream)),
    )
    sql = sys.stdin.read() if args.query == "-" else args.query
    statuses = CLEAN_STOP if args.follow else shell_statuses(signal.SIGINT, signal.SIGTERM)
    with exit_on_signals(statuses), ExitStack() as stack:
        try:
            query = stack.enter_context(Query(sql, tables.open, zone=args.time_zone, memory=args.memory))
            _print_plan(query, follows=args.follow)
            if args.follow:
                follow_query(query, args, format_name, sql)
            else:
                _write(query, format_name, args.output)
        except StatementError as error:
            for line in f"penstock sql: {error}".split("\n"):
                warn(line)
            return _EXIT_USAGE
    return 0


def _print_plan(query: Query, *, follows: bool) -> None:
    from penstock.sql.stream_rows import StreamRows

    for table in query.tables:
        if table.is_read:
            warn(f"penstock sql: {table.name}: {_range_text(table, follows=follows)}")
    ahead_s = max(
        (table.source.clock_ahead_s for table in query.tables if isinstance(table.source, StreamRows)),
        key=abs,
        default=0.0,
    )
    if abs(ahead_s) > _CLOCK_AHEAD_S_MAX:
        warn(
            f"penstock sql: this machine's clock is {abs(ahead_s):.0f} s {'ahead of' if ahead_s > 0 else 'behind'} the service's: "
            "now() in the query is by this machine's, arrived by the service's"
        )


def _range_text(table: PlannedTable, *, follows: bool) -> str:
    """Return the part of a table that the query reads; if it begins with the oldest record, with the reason."""
    from penstock.core.moments import describe_moment
    from penstock.sql.query_plan import RowBounds
    from penstock.sql.recording_rows import RecordingRows
    from penstock.sql.stream_rows import StreamRows

    source = table.source
    if isinstance(source, RecordingRows):
        return f"reads {counted(source.record_count(table.bounds), 'record')} of this recording of {source.metadata.stream.name}"
    assert isinstance(source, StreamRows), "a stream otherwise"
    stream_range = source.plan(RowBounds(table.bounds.from_ms) if follows else table.bounds)
    if not stream_range.shards and not follows:
        return "nothing is read: no record can be in this range"
    shards = counted(len(stream_range.shards), "shard")
    until = "on, until Ctrl-C" if follows else f"until {describe_moment(stream_range.until_ms, None)}"
    if stream_range.from_ms is not None:
        return f"reads {shards} from {describe_moment(stream_range.from_ms, None)} {until}"
    reason = "the query has no lower bound for arrived"
    if table.bounds.from_ms is not None:
        reason = "the query's lower bound for arrived is before the oldest record"
    elif table.use is not None and table.use.has_condition:
        reason = "the query's conditions on arrived are not a lower bound that limits the read"
    oldest = f"the oldest record (retention {source.summary.retention_hours:g} h)"
    return f"reads {shards} from {oldest} {until}: {reason}"


def _write(query: Query, format_name: str, output: str | None) -> None:
    from penstock.cli.sql_output import print_not_utf8, whole_file

    with whole_file(format_name, None if output is None else Path(output)) as writer:
        for rows in _results(query):
            writer.write(rows)
    print_not_utf8(query.not_utf8_count)


def _results(query: Query) -> Iterator[Any]:
    """Yield results that another thread computes. This thread handles signals, and shows how much has been read."""
    from penstock.cli.progress_line import ProgressLine
    from penstock.sql.stream_rows import StreamRows

    streams = [table.source for table in query.tables if isinstance(table.source, StreamRows)]

    def draw() -> None:
        count = sum(stream.record_count for stream in streams)
        megabytes = sum(stream.data_bytes for stream in streams) / 1_000_000
        line.draw(f"{count:,} records read, {megabytes:,.1f} MB")

    with ProgressLine(is_shown=bool(streams)) as line:
        for rows in query.results_on_thread(draw):
            line.clear()
            yield rows
