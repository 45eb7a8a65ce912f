"""`penstock put`: write lines or files as records, and print how many were acknowledged."""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import select
import signal
import sys
import time
from codecs import BOM_UTF8
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, Final

from penstock import wiring
from penstock.cli.exit_on_signals import exit_on_signals, shell_statuses
from penstock.cli.progress_line import ProgressLine
from penstock.cli.service_options import add_connection_arguments, large_request_options, options_of
from penstock.cli.terminal import warn
from penstock.errors import AccessDenied, PenstockError, RecordError, Throttled, UsageError

if TYPE_CHECKING:
    from penstock.producer.task_writer import TaskWriter

OPTION_FLAGS: Final = {"rate_limit_percent": "--rate-limit"}
DESCRIPTION = "Write lines, JSON lines or whole files as records; ends when every one is acknowledged."
_IDLE_S: Final = 0.2
_READ_BYTES: Final = 65_536
_PAYLOAD_BYTES_MAX: Final = 16 * 1024 * 1024
"""More than a record of any stream may have. A longer line or file is not read to its end, and the writer refuses it."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("stream", metavar="STREAM", help="name or ARN")
    # Without a default, argparse would require at least one file.
    parser.add_argument(
        "files", nargs="*", default=[], metavar="FILE", help="what to write; - or nothing is standard input"
    )
    parser.add_argument("--whole", action="store_true", help="one record per file instead of one per line")
    parser.add_argument(
        "--key", metavar="TEXT", help="partition key of every record; a random one each when not given"
    )
    parser.add_argument(
        "--key-field", metavar="NAME", help="take the key from this field of each line's JSON object"
    )
    parser.add_argument("--aggregate", action="store_true", help="pack records into KPL aggregates")
    parser.add_argument(
        "--rate-limit", type=int, metavar="PERCENT", help="percent of the shards' write capacity to use"
    )
    parser.add_argument("--json", action="store_true", help="print the report as JSON")
    add_connection_arguments(parser)


def run(args: argparse.Namespace) -> int:
    """Write all records; return 0 when all are acknowledged.

    Raises:
        UsageError: `--key` and `--key-field` together, or a file that cannot be read.
        Unavailable, NotFound: There is no service, or no such stream.
        DeliveryFailed: Not everything is acknowledged; the message has the number.
        RecordError: A record can never be written. The records before it are acknowledged, and none after it was sent.
        SystemExit: SIGTERM, with 143, after the number of acknowledged records is printed.
    """
    from penstock.producer.task_writer import TaskWriter, TaskWriterOptions

    if args.key is not None and args.key_field is not None:
        raise UsageError("--key and --key-field exclude each other; give one")
    options = TaskWriterOptions(
        aggregation=args.aggregate, rate_limit_percent=args.rate_limit, no_progress_deadline_s=60.0
    )
    _check_files(args.files)
    # An unreachable stream is an error at once, for which the writer would wait a minute. A user who may write need not be
    # allowed to describe.
    with contextlib.suppress(AccessDenied, Throttled):
        wiring.open_kinesis(options_of(args)).fetch_summary(args.stream)
    kinesis = wiring.open_kinesis(large_request_options(args))
    writer = TaskWriter(kinesis, args.stream, options)
    began_s = time.monotonic()
    try:
        with exit_on_signals(shell_statuses(signal.SIGTERM)), ProgressLine() as line:
            number = 0
            for payload in _payloads(args):
                if payload is None:
                    writer.finish()  # input pauses: send the records so far, though the request is not full
                    continue
                number += 1
                _write_record(args, writer, *payload)
                line.draw(f"{number:,} records")
            report = writer.finish()
    except OSError as error:  # a file failed: errors of the service are Penstock's own classes
        writer.finish()
        raise PenstockError(f"{error}; {_acknowledged_text(writer)} acknowledged before") from error
    except (KeyboardInterrupt, SystemExit):
        warn(
            f"penstock put: interrupted. {writer.report.user_record_count} records are acknowledged; "
            f"{writer.waiting_count} more were read and are not acknowledged; "
            "those that were being sent may be stored"
        )
        raise
    if args.json:
        document = {
            "acknowledged": report.user_record_count,
            "bytes": report.bytes_count,
            "refused": report.refused_count,
            "possible_duplicates": report.possible_duplicate_count,
            "shards": {shard_id: each.kinesis_record_count for shard_id, each in report.by_shard.items()},
        }
        print(json.dumps(document))
    else:
        print(f"acknowledged: {report} in {time.monotonic() - began_s:.1f} s")
    return 0


def _write_record(args: argparse.Namespace, writer: TaskWriter, data: bytes, place: str) -> None:
    try:
        writer.write(data, _partition_key_of(args, data))
    except RecordError as error:
        writer.finish()  # so that the records before this one need not be put again
        raise RecordError(f"{place}: {error}; {_acknowledged_text(writer)} acknowledged before") from error


def _acknowledged_text(writer: TaskWriter) -> str:
    count = writer.report.user_record_count
    return "1 record was" if count == 1 else f"{count} records were"


def _check_files(names: list[str]) -> None:
    """Make sure that every file can be read, before anything is written.

    Raises:
        UsageError: A file cannot be read.
    """
    # The files are not opened: if the pipe of a `<(...)` were opened and closed, its program would lose its reader.
    for name in names:
        if name == "-":
            continue
        if not Path(name).exists():
            raise UsageError(f"{name}: there is no such file; nothing was written")
        if Path(name).is_dir():
            raise UsageError(f"{name} is a folder; name the files in it. Nothing was written")
        if not os.access(name, os.R_OK):
            raise UsageError(f"{name}: this user may not read it; nothing was written")


def _payloads(args: argparse.Namespace) -> Iterator[tuple[bytes, str] | None]:
    """Yield each record's data and its place in the input; None while the input pauses."""
    for name in args.files or ["-"]:
        with contextlib.ExitStack() as stack:
            file: BinaryIO = sys.stdin.buffer if name == "-" else stack.enter_context(Path(name).open("rb"))
            of_file = "" if name == "-" else f" of {name}"
            if args.whole:
                yield file.read(_PAYLOAD_BYTES_MAX + 1), "standard input" if name == "-" else name
                continue
            number = 0
            for line in _lines_of(file):
                if line is None:
                    yield None
                    continue
                number += 1
                yield line.removeprefix(BOM_UTF8) if number == 1 else line, f"line {number}{of_file}"


def _lines_of(file: BinaryIO) -> Iterator[bytes | None]:
    if sys.platform == "win32":  # select() takes no files there
        yield from (line.rstrip(b"\r\n") for line in file)
    else:
        yield from _lines_as_they_arrive(file.fileno())


def _lines_as_they_arrive(descriptor: int) -> Iterator[bytes | None]:
    """Yield the lines of a file or pipe as they arrive, and None when the input pauses for `_IDLE_S`."""
    line_begin: list[bytes] = []
    line_begin_bytes = 0
    while True:
        if not select.select([descriptor], [], [], _IDLE_S)[0]:
            yield None
            select.select([descriptor], [], [])
        piece = os.read(descriptor, _READ_BYTES)
        if not piece:
            break
        first, *others = piece.split(b"\n")
        line_begin.append(first)
        line_begin_bytes += len(first)
        if line_begin_bytes > _PAYLOAD_BYTES_MAX:
            break
        for line in others:
            yield b"".join(line_begin).rstrip(b"\r")
            line_begin, line_begin_bytes = [line], len(line)
    if last_line := b"".join(line_begin):
        yield last_line.rstrip(b"\r")


def _partition_key_of(args: argparse.Namespace, data: bytes) -> str:
    if args.key is not None:
        return str(args.key)
    if args.key_field is None or len(data) > _PAYLOAD_BYTES_MAX:  # cut off, so perhaps not JSON
        return f"{random.getrandbits(64):016x}"
    try:
        # Whole numbers as text: that is what a key is, and Python's int refuses more than 4,300 digits.
        document: Any = json.loads(data, parse_int=str)
    except (ValueError, RecursionError) as error:
        raise RecordError(
            f"this is not JSON, so it has no field {args.key_field!r} to take the key from: {data[:80]!r}"
        ) from error
    key = document.get(args.key_field) if isinstance(document, dict) else None
    if not isinstance(key, str | int | float):
        raise RecordError(
            f"this has no text or number in a field {args.key_field!r} to take the key from: {data[:80]!r}"
        )
    return json.dumps(key) if isinstance(key, bool) else str(key)
