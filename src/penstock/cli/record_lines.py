"""Records as lines: columns for people, one JSON document each, the data alone, or a format that was given."""

from __future__ import annotations

import argparse
import base64
import sys
import threading
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from penstock.cli.line_format import LineFormat, parse_format
from penstock.cli.record_filter import RecordFilter
from penstock.cli.terminal import escape_text, safe_json

if TYPE_CHECKING:
    from penstock.consumer import Batch, Record

RecordFormat: TypeAlias = Literal["columns", "json", "data"] | LineFormat


def add_format_arguments(parser: argparse.ArgumentParser) -> None:
    """Add `--json`, `--data` and `--format`."""
    formats = parser.add_mutually_exclusive_group()
    formats.add_argument("--json", action="store_true", help="one JSON document per record")
    formats.add_argument(
        "--data",
        action="store_true",
        help="the data alone, each record's followed by a line end: byte by byte to a file or a program, escaped to a "
        "terminal",
    )
    formats.add_argument(
        "-f",
        "--format",
        metavar="TEXT",
        help=r"text with fields, as kcat: %%s data, %%k key, %%p shard, %%o sequence number, %%t stream, %%T arrival in ms, "
        r"%%S and %%K lengths of data and key, \n \t \x1f; for instance '%%k\t%%s\n'. Of a queue, %%o is the record id and %%t the "
        "queue, and there is no %%p",
    )


def format_of(args: argparse.Namespace) -> RecordFormat:
    """Return the format that the options describe.

    Raises:
        OptionError: `--format` cannot be read.
    """
    if args.format is not None:
        return parse_format(args.format)
    if args.json:
        return "json"
    return "data" if args.data else "columns"


def record_document(record: Record, *, names_stream: bool = False) -> dict[str, Any]:
    """Return a record as a JSON document, with `data` if it is UTF-8 text, otherwise with `data_base64`."""
    return {
        **({"stream": record.stream} if names_stream else {}),
        "shard_id": record.shard_id,
        "sequence_number": record.sequence_number,
        "sub_sequence_number": record.sub_sequence_number,
        "partition_key": record.partition_key,
        "explicit_hash_key": record.explicit_hash_key,
        "approximate_arrival_timestamp": record.approximate_arrival_timestamp.isoformat(
            timespec="milliseconds"
        ),
        **data_document(record.data),
    }


def data_text(data: bytes) -> str:
    """Return data as text if it is UTF-8, otherwise as Base64, with a mark."""
    document = data_document(data)
    return document["data"] if "data" in document else f"base64:{document['data_base64']}"


def data_document(data: bytes) -> dict[str, str]:
    """Return `data` if it is UTF-8 text, otherwise `data_base64`."""
    try:
        return {"data": data.decode("utf-8")}
    except UnicodeDecodeError:
        return {"data_base64": base64.b64encode(data).decode("ascii")}


def record_text(record: Record, *, names_stream: bool = False) -> str:
    """Return a record as one line for people: stream and shard, arrival in the zone of this machine, key, data.

    Characters that could act on a terminal are escaped. Data that is not UTF-8 is shown as Base64, with a mark.
    """
    shard = record.shard_id.removeprefix("shardId-").lstrip("0") or "0"
    arrival = record.approximate_arrival_timestamp.astimezone().isoformat(timespec="milliseconds")
    if names_stream:
        shard = f"{record.stream}/{shard}"
    return escape_text(f"{shard:>4}  {arrival}  {record.partition_key or '-'}  {data_text(record.data)}")


class RecordPrinter:
    """Prints records, one batch at a time, and counts them.

    Args:
        record_format: `columns` for people, `json` for one document per line, `data` for the data alone, or a format.
        count_max: Stop printing after this many records; None prints all.
        record_filter: Which records are printed; None: all.
        names_streams: Whether each line names the record's stream.
    """

    def __init__(
        self,
        record_format: RecordFormat,
        count_max: int | None = None,
        record_filter: RecordFilter | None = None,
        *,
        names_streams: bool = False,
    ) -> None:
        self._format = record_format
        self._filter = RecordFilter() if record_filter is None else record_filter
        self._count_max = count_max
        self._names_streams = names_streams
        self._lock = threading.Lock()
        self.count = 0

    @property
    def is_full(self) -> bool:
        """Whether `count_max` records are printed."""
        return self._count_max is not None and self.count >= self._count_max

    def print_batch(self, batch: Batch) -> None:
        """Print a batch and flush the output, before the batch counts as done."""
        with self._lock:
            for record in batch:
                if self.is_full:
                    break
                if self._filter.accepts(record):
                    self._print(record)
                    self.count += 1
            sys.stdout.flush()

    def _print(self, record: Record) -> None:
        if self._format == "json":
            sys.stdout.write(safe_json(record_document(record, names_stream=self._names_streams)) + "\n")
        elif self._format == "columns":
            sys.stdout.write(record_text(record, names_stream=self._names_streams) + "\n")
        elif isinstance(self._format, LineFormat):
            print_fields(self._format.fields(record))
        else:
            print_fields([(record.data, True), (b"\n", False)])


def print_fields(fields: list[tuple[bytes, bool]]) -> None:
    """Print the parts of a record as `LineFormat.fields` returns them; on a terminal, fields of the record are escaped."""
    if not sys.stdout.isatty():
        sys.stdout.buffer.write(b"".join(part for part, _ in fields))
        return
    for part, is_foreign in fields:
        text = part.decode("utf-8", "backslashreplace")
        sys.stdout.write(escape_text(text) if is_foreign else text)
