"""`penstock streams`: list, describe, create, delete and change streams, with the cost in shards."""

from __future__ import annotations

import argparse
import re
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

from penstock import wiring
from penstock.cli import stream_consumers
from penstock.cli.actions import add_action, confirm, wait_for_status
from penstock.cli.record_filter import shard_id_of
from penstock.cli.service_options import add_connection_arguments, options_of
from penstock.cli.terminal import Output, counted, print_line, safe_json
from penstock.errors import OptionError, PenstockError, UsageError

if TYPE_CHECKING:
    from penstock.core.shard import Shard, StreamSummary

DESCRIPTION = "List, describe, create, delete and change streams."
_WAIT_S: Final = 900.0
_RETENTION: Final = re.compile(r"(\d+)\s*([hd]?)")
_RETENTION_HOURS: Final = (24, 8760)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)

    listing = actions.add_parser("list", help="the streams of the region")
    listing.add_argument("--json", action="store_true", help="print JSON")
    describe = _add_on_stream(actions, "describe", "a stream's mode, shards and retention", changes=False)
    describe.add_argument("--json", action="store_true", help="print JSON")
    create = _add_on_stream(actions, "create", "create a stream")
    create.add_argument(
        "--shards", type=int, metavar="N", help="a provisioned one with N shards (default: 1)"
    )
    create.add_argument("--on-demand", action="store_true", help="one whose shards the service manages")
    delete = _add_on_stream(actions, "delete", "delete a stream with all its records")
    delete.add_argument("--yes", action="store_true", help="do not ask")
    split = _add_on_stream(actions, "split", "split a shard in two: one shard more")
    split.add_argument("shard", metavar="SHARD", help="its id or its number")
    split.add_argument(
        "--at", type=int, metavar="HASH_KEY", help="where the second half begins (default: the middle)"
    )
    merge = _add_on_stream(actions, "merge", "merge two neighbouring shards: one shard less")
    merge.add_argument("shard", metavar="SHARD", help="its id or its number")
    merge.add_argument("adjacent", metavar="ADJACENT", help="the other one")
    scale = _add_on_stream(actions, "scale", "reshard a stream evenly to a number of shards")
    scale.add_argument(
        "shards", type=int, metavar="N", help="at most the double of its open shards, at least the half"
    )
    mode = _add_on_stream(
        actions, "mode", "make a stream provisioned or on-demand; twice in 24 hours at most"
    )
    mode.add_argument("mode", choices=("provisioned", "on-demand"))
    retention = _add_on_stream(actions, "retention", "set how long records are kept")
    retention.add_argument("retention", metavar="TIME", help="24h to 365d; a bare number is hours")
    retention.add_argument("--yes", action="store_true", help="do not ask before records are lost")
    stream_consumers.add_arguments(
        _add_on_stream(
            actions,
            "consumers",
            "list, register and deregister a stream's consumers (enhanced fan-out)",
            changes=False,
        )
    )
    for action in actions.choices.values():
        add_connection_arguments(action)


def _add_on_stream(actions: Any, name: str, about: str, *, changes: bool = True) -> argparse.ArgumentParser:
    parser = add_action(actions, name, about)
    parser.add_argument("stream", metavar="STREAM", help="name or ARN")
    if changes:
        parser.add_argument("--wait", action="store_true", help="end when the change is done")
    return parser


def run(args: argparse.Namespace) -> int:
    """Carry out an action; return the exit status."""
    if args.action == "list":
        _list(args)
    elif args.action == "describe":
        _describe(args)
    elif args.action == "consumers":
        stream_consumers.run(args)
    elif args.action == "create":
        _create(args)
    else:
        _change(args, wiring.open_kinesis(options_of(args)).fetch_summary(args.stream))
    if getattr(args, "wait", False):
        _wait_for_change(args)
    return 0


# --- describing -----------------------------------------------------------------------------------------


def _list(args: argparse.Namespace) -> None:
    names = wiring.open_stream_control(options_of(args)).list_streams()
    if args.json:
        print(safe_json(names))
        return
    for name in names:
        print_line(name)


def _describe(args: argparse.Namespace) -> None:
    summary = wiring.open_kinesis(options_of(args)).fetch_summary(args.stream)
    created = datetime.fromtimestamp(summary.created_ms / 1000, UTC).isoformat(timespec="seconds")
    document: dict[str, Any] = {
        "name": summary.name,
        "arn": summary.arn,
        "status": summary.status,
        "mode": _mode_name(summary),
        "open_shards": summary.open_shard_count,
        "retention_hours": summary.retention_hours,
        "record_bytes_max": summary.record_bytes_max,
        "created": created,
    }
    if args.json:
        print(safe_json(document, indent=2))
        return
    Output().facts(document)


def _mode_name(summary: StreamSummary) -> str:
    return "on-demand" if summary.on_demand else "provisioned"


# --- changing -------------------------------------------------------------------------------------------


def _create(args: argparse.Namespace) -> None:
    if args.on_demand and args.shards is not None:
        raise UsageError(
            "--shards and --on-demand exclude each other: the service manages an on-demand stream's shards"
        )
    count = None if args.on_demand else 1 if args.shards is None else args.shards
    if count is not None and count < 1:
        raise OptionError(f"--shards {count}: expected at least 1")
    if args.stream.startswith("arn:"):
        raise UsageError(
            f"{args.stream}: the service gives a new stream its ARN; name it {args.stream.rpartition('/')[2]}, and the region with --region"
        )
    wiring.open_stream_control(options_of(args)).create(args.stream, count)
    cost = (
        "the service bills written and read data"
        if count is None
        else f"{counted(count, 'shard')} will be billed"
    )
    print_line(f"{args.stream} is being created; {cost}")


def _change(args: argparse.Namespace, summary: StreamSummary) -> None:
    control, open_count = wiring.open_stream_control(options_of(args)), summary.open_shard_count
    if args.action == "delete":
        confirm(
            args,
            f"This deletes the stream {summary.name} ({summary.arn}) with all its records, for good.",
            summary.name,
        )
        control.delete(args.stream)
        text = f"{summary.name} is being deleted; {counted(open_count, 'shard')} fewer will be billed"
    elif args.action == "split":
        shard = _find_open_shard(args, args.shard)
        middle = (shard.hash_range.start + shard.hash_range.end) // 2 + 1
        control.split(args.stream, shard.shard_id, middle if args.at is None else args.at)
        text = f"{shard.shard_id} is being split; {counted(open_count + 1, 'shard')} will be billed, {open_count} so far"
    elif args.action == "merge":
        first, second = _find_open_shard(args, args.shard), _find_open_shard(args, args.adjacent)
        control.merge(args.stream, first.shard_id, second.shard_id)
        text = (
            f"{first.shard_id} and {second.shard_id} are being merged; {counted(open_count - 1, 'shard')} will be billed, "
            f"{open_count} so far"
        )
    elif args.action == "scale":
        if args.shards < 1:
            raise OptionError(f"N {args.shards}: expected at least 1")
        control.scale(args.stream, args.shards)
        change = "stays at" if args.shards == open_count else f"goes from {open_count} to"
        text = (
            f"{summary.name} {change} {counted(args.shards, 'shard')}, which will be billed; the service allows ten "
            "such changes in 24 hours"
        )
    elif args.action == "mode" and args.mode == _mode_name(summary):
        text = f"{summary.name} is {args.mode} already"  # a needless call could count as one of the two in 24 hours
    elif args.action == "mode":
        control.set_mode(summary.arn, on_demand=args.mode == "on-demand")
        cost = (
            f"{counted(open_count, 'shard')} will be billed"
            if args.mode == "provisioned"
            else "written and read data will be billed"
        )
        text = f"{summary.name} becomes {args.mode}; {cost}. The service allows two such changes in 24 hours"
    else:
        text = _set_retention(args, summary)
    print_line(text)


def _set_retention(args: argparse.Namespace, summary: StreamSummary) -> str:
    """Change the retention, after a question if records are lost; return a text about it."""
    match = _RETENTION.fullmatch(args.retention.strip())
    hours = 0 if match is None else int(match[1]) * (24 if match[2] == "d" else 1)
    low, high = _RETENTION_HOURS
    if not low <= hours <= high:
        raise OptionError(f"TIME {args.retention}: expected {low}h to {high // 24}d")
    if hours == summary.retention_hours:
        return f"{summary.name} keeps records for {hours} hours already"
    if hours < summary.retention_hours:
        confirm(
            args,
            f"Records of {summary.name} that are older than {hours} hours will be gone, for good.",
            summary.name,
        )
    wiring.open_stream_control(options_of(args)).set_retention(
        args.stream, hours, grows=hours > summary.retention_hours
    )
    billed = "; data kept longer than 24 hours is billed" if hours > low else ""
    return f"{summary.name} keeps records for {hours} hours, {summary.retention_hours} so far{billed}"


def _find_open_shard(args: argparse.Namespace, text: str) -> Shard:
    wanted = shard_id_of(text)
    shards = wiring.open_kinesis(options_of(args)).fetch_shards(args.stream).shards
    for shard in shards:
        if shard.shard_id == wanted and shard.is_open:
            return shard
    known = ", ".join(shard.shard_id for shard in shards if shard.is_open)
    raise OptionError(f"{wanted} is not an open shard of stream {args.stream}; open are {known}")


def _wait_for_change(args: argparse.Namespace) -> None:
    """Wait until the stream is active, or gone after a deletion.

    Raises:
        PenstockError: The change takes too long.
    """
    kinesis = wiring.open_kinesis(options_of(args))
    wanted = None if args.action == "delete" else "ACTIVE"
    status = wait_for_status(lambda: kinesis.fetch_summary(args.stream).status, wanted, _WAIT_S)
    if status != wanted:
        raise PenstockError(
            f"stream {args.stream} is {status} after {_WAIT_S:.0f} s; look later with `penstock streams describe`"
        )
