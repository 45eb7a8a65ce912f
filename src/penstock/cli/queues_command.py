"""`penstock queues`: list, create, describe, change and delete queues; look at records and dead letters, restore them."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any, Final

from penstock import wiring
from penstock.cli.actions import add_action, confirm, wait_for_status
from penstock.cli.moments import MOMENT_FORMS, parse_position
from penstock.cli.pairs import pairs_of
from penstock.cli.service_options import add_connection_arguments, options_of
from penstock.cli.terminal import Output, print_line, safe_json
from penstock.core.moments import describe_moment
from penstock.errors import NotFound, OptionError, PenstockError, UsageError

if TYPE_CHECKING:
    from penstock.ports.queues import DeadLetterRule, QueueDescription, Queues, QueueStart

DESCRIPTION = (
    "List, create, describe, change and delete queues; look at records and dead letters, and restore them."
)
OPTION_FLAGS: Final = {"starting_position": "--from"}
_WAIT_S: Final = 300.0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)

    listing = add_action(actions, "list", "the queues of the region")
    listing.add_argument("--stream", metavar="STREAM", help="only those of this stream: its name or ARN")
    listing.add_argument("--json", action="store_true", help="print JSON")

    create = _add_on_queue(actions, "create", "create a queue on an on-demand stream")
    create.add_argument("--stream", required=True, metavar="STREAM", help="name or ARN")
    create.add_argument(
        "--from",
        dest="start",
        default="LATEST",
        metavar="POSITION",
        help=f"TRIM_HORIZON, LATEST or AT_TIMESTAMP <moment>: {MOMENT_FORMS}; it cannot be changed later (default: LATEST)",
    )
    _add_attributes(create)
    create.add_argument("--tag", action="append", metavar="NAME=VALUE", help="of the queue; may be repeated")
    create.add_argument("--wait", action="store_true", help="end when the queue is ACTIVE")

    describe = _add_on_queue(actions, "describe", "a queue's stream, state and attributes")
    describe.add_argument("--json", action="store_true", help="print JSON")

    update = _add_on_queue(actions, "update", "change a queue's attributes; those that are not named stay")
    _add_attributes(update)
    update.add_argument("--wait", action="store_true", help="end when the change is done")

    delete = _add_on_queue(actions, "delete", "delete a queue; its stream and the records in it stay")
    delete.add_argument("--yes", action="store_true", help="do not ask")
    delete.add_argument("--wait", action="store_true", help="end when it is gone")

    receive = _add_on_queue(
        actions, "receive", "look at records and give them back; each look counts as a receive"
    )
    receive.add_argument("--count", type=int, default=10, metavar="N", help="at most N (default: 10)")
    receive.add_argument("--json", action="store_true", help="one JSON document per record")
    receive.add_argument(
        "--acknowledge",
        action="store_true",
        help="acknowledge them instead of giving them back: nobody gets them again",
    )
    receive.add_argument("--yes", action="store_true", help="do not ask before records are acknowledged")

    dead = _add_on_queue(actions, "dead", "look at dead letters; they stay dead letters")
    dead.add_argument("--json", action="store_true", help="one JSON document per record")
    _add_filters(dead)
    restore = _add_on_queue(actions, "restore", "return dead letters to the queue, with a receive count of 0")
    restore.add_argument("--yes", action="store_true", help="do not ask")
    _add_filters(restore)
    purge = _add_on_queue(
        actions,
        "purge-dead",
        "acknowledge dead letters: the queue forgets them; the stream keeps the records",
    )
    purge.add_argument("--yes", action="store_true", help="do not ask")
    _add_filters(purge)
    for action in actions.choices.values():
        add_connection_arguments(action)


def _add_on_queue(actions: Any, name: str, about: str) -> argparse.ArgumentParser:
    parser = add_action(actions, name, about)
    parser.add_argument("queue", metavar="QUEUE", help="name or ARN")
    return parser


def _add_attributes(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--visibility",
        type=int,
        metavar="S",
        help="visibility timeout in seconds, 0 to 43,200 (a new queue's: 30)",
    )
    dead_letters = parser.add_mutually_exclusive_group()
    dead_letters.add_argument(
        "--max-receive-count",
        type=int,
        metavar="N",
        help="a record becomes a dead letter after N receives (a new queue's: 6)",
    )
    dead_letters.add_argument(
        "--no-dead-letters", action="store_true", help="a record is delivered until its retention ends"
    )


def _add_filters(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("which dead letters", "all of them by default")
    group.add_argument("--key", metavar="TEXT", help="with this partition key")
    group.add_argument("--grep", metavar="REGEX", help="whose data as UTF-8 matches")
    group.add_argument("--record", action="append", metavar="ID", help="with this record id; may be repeated")
    group.add_argument("--count", type=int, metavar="N", help="at most N")


def run(args: argparse.Namespace) -> int:
    """Carry out an action; return the exit status."""
    queues = wiring.open_queues(options_of(args))
    if args.action == "list":
        _list(args, queues)
    elif args.action == "create":
        _create(args, queues)
    else:
        _run_on_queue(args, queues, _fetch_description(queues, args.queue))
    return 0


def _run_on_queue(args: argparse.Namespace, queues: Queues, queue: QueueDescription) -> None:
    from penstock.cli import queue_records

    if args.action == "describe":
        _describe(args, queue)
    elif args.action == "update":
        _update(args, queues, queue)
    elif args.action == "delete":
        _delete(args, queues, queue)
    elif args.action == "receive":
        queue_records.receive(args, queues, queue)
    else:
        queue_records.run_on_dead_letters(args, queues, queue)


def _fetch_description(queues: Queues, queue: str) -> QueueDescription:
    from penstock.queues.queue_opening import find_queue

    if queue.startswith("arn:"):
        return queues.describe_queue(queue)
    found = find_queue(queues, queue)
    if found is None:
        raise NotFound(
            f"there is no queue {queue}: `penstock queues list` shows those of the region", resource=queue
        )
    return queues.describe_queue(found.arn)


def _list(args: argparse.Namespace, queues: Queues) -> None:
    found = sorted(queues.list_queues(_stream_arn(args)), key=lambda each: each.name)
    if args.json:
        rows = [
            {
                "name": each.name,
                "arn": each.arn,
                "status": each.status,
                "stream_arn": each.stream_arn,
                "created": describe_moment(each.created_ms),
            }
            for each in found
        ]
        print(safe_json(rows))
        return
    for each in found:
        print_line(f"{each.name:<32} {each.status:<9} {each.stream_arn.rpartition('/')[2]}")


def _stream_arn(args: argparse.Namespace) -> str | None:
    stream: str | None = args.stream
    if stream is None or stream.startswith("arn:"):
        return stream
    return wiring.open_kinesis(options_of(args)).fetch_summary(stream).arn


def _create(args: argparse.Namespace, queues: Queues) -> None:
    stream_arn = _stream_arn(args)
    assert stream_arn is not None
    created = queues.create_queue(
        args.queue,
        stream_arn,
        _parse_start(args.start),
        visibility_s=args.visibility,
        dead_letters=_dead_letters_of(args),
        tags=pairs_of(args.tag or (), "--tag"),
    )
    print_line(f"{created.name} is being created: {created.arn}")
    if args.wait:
        _wait_for_status(queues, created.arn, "ACTIVE")


def _parse_start(text: str) -> QueueStart:
    from penstock.core.position import LATEST, TRIM_HORIZON
    from penstock.ports.queues import QueueStart

    start = parse_position(text, "--from")
    position = start.default
    if not start.by_shard and position.timestamp_ms is not None:
        return QueueStart("AT_TIMESTAMP", position.timestamp_ms)
    if start.by_shard or position not in (LATEST, TRIM_HORIZON):
        raise OptionError(f"--from {text!r}: a queue starts at LATEST, TRIM_HORIZON or AT_TIMESTAMP <moment>")
    return QueueStart("LATEST" if position == LATEST else "TRIM_HORIZON")


def _dead_letters_of(args: argparse.Namespace) -> DeadLetterRule | None:
    from penstock.ports.queues import DeadLetterRule

    if args.no_dead_letters:
        return DeadLetterRule(None)
    return None if args.max_receive_count is None else DeadLetterRule(args.max_receive_count)


def _describe(args: argparse.Namespace, queue: QueueDescription) -> None:
    start: str = queue.start.type
    if queue.start.timestamp_ms is not None:
        start = f"{start} {describe_moment(queue.start.timestamp_ms)}"
    document = {
        "name": queue.name,
        "arn": queue.arn,
        "status": queue.status,
        "stream_arn": queue.stream_arn,
        "start": start,
        "visibility_timeout_s": queue.visibility_s,
        "max_receive_count": queue.dead_letters.receive_count_max,
        "created": describe_moment(queue.created_ms),
    }
    if args.json:
        print(safe_json(document, indent=2))
        return
    if queue.dead_letters.receive_count_max is None:
        document["max_receive_count"] = "none: no dead letters"
    Output().facts(document)


def _update(args: argparse.Namespace, queues: Queues, queue: QueueDescription) -> None:
    dead_letters = _dead_letters_of(args)
    if args.visibility is None and dead_letters is None:
        raise UsageError("nothing to change: give --visibility, --max-receive-count or --no-dead-letters")
    queues.update_queue(queue.arn, visibility_s=args.visibility, dead_letters=dead_letters)
    print_line(f"{queue.name} is being changed; a new visibility timeout counts for later receives")
    if args.wait:
        _wait_for_status(queues, queue.arn, "ACTIVE")


def _delete(args: argparse.Namespace, queues: Queues, queue: QueueDescription) -> None:
    confirm(
        args,
        f"Queue {queue.name} forgets which records are done, and its dead letters; its stream keeps the records.",
        queue.name,
    )
    queues.delete_queue(queue.arn)
    print_line(f"{queue.name} is being deleted")
    if args.wait:
        _wait_for_status(queues, queue.arn, None)


def _wait_for_status(queues: Queues, arn: str, status: str | None) -> None:
    """Wait until a queue has a status; if that is None, until the queue is deleted."""
    if wait_for_status(lambda: queues.describe_queue(arn).status, status, _WAIT_S) != status:
        raise PenstockError(f"the queue has not become {status or 'deleted'} within {_WAIT_S:.0f} s")
