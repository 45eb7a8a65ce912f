"""`penstock record`: write a slice of a stream to a file."""

from __future__ import annotations

import argparse
import contextlib
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from penstock import wiring
from penstock.cli.moments import MOMENT_FORMS, ServiceTime, parse_age_or_moment, print_moments
from penstock.cli.progress_line import ProgressLine
from penstock.cli.record_filter import shard_id_of
from penstock.cli.service_options import add_connection_arguments, options_of
from penstock.cli.terminal import counted, safe_json, warn
from penstock.errors import OptionError
from penstock.runtime.threads import repeat_on_daemon

if TYPE_CHECKING:
    from collections.abc import Iterator

    from penstock.core.recording.metadata import RecordingMetadata
    from penstock.recording.recorder import Recorder

DESCRIPTION = "Record a slice of a stream to a file, to replay it or to ask it questions."
_DRAW_INTERVAL_S: Final = 0.25
_MIB: Final = 1024 * 1024


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("stream", metavar="STREAM", help="name or ARN")
    parser.add_argument(
        "--since",
        required=True,
        metavar="AGE",
        help=f"how far back: 30s, 10m, 2h, 1d; or a moment: {MOMENT_FORMS}",
    )
    parser.add_argument(
        "--until",
        metavar="MOMENT",
        help="records that arrive before this moment, in the past or the future (default: now); or an age, as above",
    )
    parser.add_argument(
        "--shards",
        nargs="+",
        metavar="ID",
        help="of these shards only: ids or numbers; the others keep their lineage",
    )
    parser.add_argument(
        "--key",
        action="append",
        metavar="TEXT",
        help="with this partition key only, and aggregates that hold one; may be repeated",
    )
    parser.add_argument(
        "--redact",
        action="append",
        default=[],
        metavar="EXPRESSION",
        help="key=hash, data=drop, json:$.customer.name, or json:$.customer.id=hash; may be repeated",
    )
    parser.add_argument(
        "-o", "--output", required=True, metavar="FILE", help="the file, for instance incident.penstock"
    )
    parser.add_argument("--json", action="store_true", help="print the result as JSON")
    add_connection_arguments(parser)


def run(args: argparse.Namespace) -> int:
    """Record; return 0, or 128 plus the number of a signal. After a signal, the same command continues the recording."""
    from penstock.recording.recorder import Recorder, RecordingStoppedError, SliceRequest
    from penstock.runtime.stop_signals import StopSignals, received_signal

    path = Path(args.output)
    kinesis = wiring.open_kinesis(options_of(args))
    now_ms = ServiceTime(kinesis, args.stream)
    from_ms = parse_age_or_moment(args.since, "--since", now_ms)
    until_ms = None if args.until is None else parse_age_or_moment(args.until, "--until", now_ms)
    if from_ms >= (now_ms() if until_ms is None else until_ms):
        raise OptionError(f"--since {args.since} is not before --until {args.until or 'now'}")
    request = SliceRequest(
        stream=args.stream,
        from_ms=from_ms,
        until_ms=until_ms,
        shards=None if args.shards is None else tuple(map(shard_id_of, args.shards)),
        keys=None if args.key is None else tuple(args.key),
        redactions=tuple(args.redact),
    )
    began_s = time.monotonic()
    recorder = Recorder(kinesis, request, path, options=_recording_options(args))
    print_moments("record", "from", {"": recorder.recorded_slice.from_ms})
    print_moments("record", "until", {"": recorder.recorded_slice.until_ms})
    if recorder.is_resumed:
        warn(
            f"penstock record: going on with {path}.part, which has {counted(recorder.state.records, 'record')}"
        )
    try:
        with StopSignals(recorder.request_stop), _show_progress(recorder, is_shown=not args.json):
            metadata = recorder.run()
    except RecordingStoppedError as stopped:
        warn(f"penstock record: {stopped}")
        return 128 + (received_signal() or 0)
    _report(args, path, metadata, recorder, time.monotonic() - began_s)
    return 0


def _recording_options(args: argparse.Namespace) -> dict[str, Any]:
    """Return the options that must be the same in a run that continues the recording."""
    return {
        "--since": args.since,
        "--until": args.until,
        "--shards": args.shards,
        "--key": args.key,
        "--redact": args.redact or None,
    }


def _report(
    args: argparse.Namespace, path: Path, metadata: RecordingMetadata, recorder: Recorder, duration_s: float
) -> None:
    """Print the result, and how many records' data was dropped because it could not be redacted."""
    dropped_count = recorder.dropped_count
    if dropped_count:
        warn(
            f"penstock record: the data of {dropped_count:,} records is not JSON and was dropped, because fields are redacted"
        )
    shard_count = sum(shard.is_recorded for shard in metadata.shards)
    if args.json:
        document = {
            "file": str(path),
            "file_bytes": path.stat().st_size,
            "stream": metadata.stream.arn,
            "records": metadata.record_count,
            "record_bytes": metadata.record_bytes,
            "shards": shard_count,
            "from_ms": metadata.recorded.from_ms,
            "until_ms": metadata.recorded.until_ms,
            "dropped": dropped_count,
            "resumed": recorder.is_resumed,
            "seconds": round(duration_s, 3),
        }
        print(safe_json(document))
        return
    print(
        f"{path}: {counted(metadata.record_count, 'record')} of {counted(shard_count, 'shard')}, "
        f"{_size_text(metadata.record_bytes)} in a file of {_size_text(path.stat().st_size)}, in {duration_s:.1f} s"
    )


@contextlib.contextmanager
def _show_progress(recorder: Recorder, *, is_shown: bool) -> Iterator[None]:
    """Show the progress of the recording in a line of the terminal, which is removed at the end."""
    began_s = time.monotonic()
    with ProgressLine(is_shown=is_shown) as line:

        def draw() -> bool:
            line.draw(_progress_text(recorder, time.monotonic() - began_s))
            return False  # it is called again

        with repeat_on_daemon("penstock-progress", _DRAW_INTERVAL_S, draw):
            yield


def _progress_text(recorder: Recorder, duration_s: float) -> str:
    state = recorder.state
    if state.parts_written:
        return f"writing the file: {state.parts_written} of {state.part_count} batches"
    return (
        f"{state.done_count} of {state.shard_count} shards, {state.records:,} records, {_size_text(state.record_bytes)}, "
        f"reading {_size_text(round(state.read_bytes / max(duration_s, 0.001)))}/s"
    )


def _size_text(byte_count: int) -> str:
    if byte_count >= _MIB:
        return f"{byte_count / _MIB:,.1f} MiB"
    return f"{byte_count / 1024:,.1f} KiB" if byte_count >= 1024 else f"{byte_count} bytes"
