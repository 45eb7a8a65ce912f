"""Records and dead letters of a queue, on the command line: shown, returned, acknowledged, restored."""

from __future__ import annotations

import argparse
import random
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from itertools import count
from typing import TYPE_CHECKING, Any, Final, TypeVar

from penstock.cli.actions import confirm
from penstock.cli.record_filter import matches, pattern_of
from penstock.cli.record_lines import data_document, data_text
from penstock.cli.terminal import counted, escape_text, safe_json, warn
from penstock.core.backoff import Backoff, RetryPlan
from penstock.core.queueing.queue_events import EntryOutcome
from penstock.core.queueing.queue_limits import RECORDS_PER_CALL_MAX
from penstock.errors import PenstockError, Throttled, Unavailable, UnknownOutcome, UnknownRefusal

if TYPE_CHECKING:
    from penstock.ports.queues import EntryResult, QueueDescription, Queues, ReceivedRecord

_DEAD_LETTERS_HIDDEN_S: Final = 600
"""Seconds for which dead letters that are shown are invisible to others, for instance while the user answers a question."""
_SHOWN_VISIBILITY_S: Final = 60
_WAIT_S: Final = 1
_RETRIES: Final = RetryPlan(Backoff(0.1, 5.0), 10, 30.0)
_RETRIED_ERRORS: Final = (Throttled, Unavailable, UnknownOutcome, UnknownRefusal)
_T = TypeVar("_T")


def receive(args: argparse.Namespace, queues: Queues, queue: QueueDescription) -> None:
    """Show records of a queue, then make them visible again or acknowledge them."""
    if args.acknowledge:
        confirm(
            args,
            f"Records of {queue.name} are acknowledged when they are shown: no consumer gets them.",
            queue.name,
        )
    records: list[ReceivedRecord] = []
    try:
        for record in _receive_until_empty(queues, queue.arn, args.count, _SHOWN_VISIBILITY_S, is_dead=False):
            records.append(record)
            _print_received(record, as_json=args.json)
        sys.stdout.flush()
    except BaseException:
        _set_visible(queues, queue.arn, records, is_dead=False)
        raise
    if args.acknowledge:
        _report_results(
            _call_in_tens(records, lambda handles: queues.acknowledge(queue.arn, handles)), "acknowledged"
        )
    else:
        _set_visible(queues, queue.arn, records, is_dead=False)


def run_on_dead_letters(args: argparse.Namespace, queues: Queues, queue: QueueDescription) -> None:
    """Show, restore or acknowledge the dead letters of a queue that match the filters; the others stay as they are."""
    pattern = pattern_of(args)
    ids = None if args.record is None else frozenset(args.record)
    targets: list[ReceivedRecord] = []
    records: list[ReceivedRecord] = []
    try:
        for record in _receive_until_empty(queues, queue.arn, None, _DEAD_LETTERS_HIDDEN_S, is_dead=True):
            records.append(record)
            if not matches(record, args.key, pattern) or (ids is not None and record.record_id not in ids):
                continue
            targets.append(record)
            if args.action == "dead":
                _print_received(record, as_json=args.json)
            if args.count is not None and len(targets) >= args.count:
                break
        sys.stdout.flush()
        if args.action == "restore" and targets:
            confirm(
                args,
                f"{len(targets)} dead letters return to {queue.name} and are delivered again.",
                queue.name,
            )
            results = _call_in_tens(targets, lambda handles: queues.restore(queue.arn, handles))
        elif args.action == "purge-dead" and targets:
            confirm(args, f"{queue.name} forgets {len(targets)} dead letters.", queue.name)
            results = _call_in_tens(
                targets, lambda handles: queues.acknowledge(queue.arn, handles, is_dead=True)
            )
        else:
            results = {}
    except BaseException:
        _set_visible(queues, queue.arn, records, is_dead=True)
        raise
    done_handles = {handle for handle, result in results.items() if result.outcome is EntryOutcome.APPLIED}
    _set_visible(
        queues, queue.arn, [each for each in records if each.handle not in done_handles], is_dead=True
    )
    if args.action != "dead":
        _report_results(results, "restored" if args.action == "restore" else "acknowledged")


def _receive_until_empty(
    queues: Queues, queue_arn: str, count_max: int | None, visibility_s: int, *, is_dead: bool
) -> Iterator[ReceivedRecord]:
    """Receive and yield records, at most `count_max`, until no record is visible any more."""
    remaining = count_max
    while remaining is None or remaining > 0:
        limit = RECORDS_PER_CALL_MAX if remaining is None else min(RECORDS_PER_CALL_MAX, remaining)

        def receive_some(limit: int = limit) -> Sequence[ReceivedRecord]:
            return queues.receive(queue_arn, limit, _WAIT_S, visibility_s, is_dead=is_dead)

        page = _call_with_retries(receive_some)
        if not page:
            return
        yield from page
        remaining = None if remaining is None else remaining - len(page)


def _call_with_retries(call: Callable[[], _T]) -> _T:
    """Do a call; repeat it, within bounds, if it is refused or not answered."""
    began_s = time.monotonic()
    for attempt in count(1):
        try:
            return call()
        except _RETRIED_ERRORS:
            delay_s = _RETRIES.delay_s(attempt, time.monotonic() - began_s, random.random())
            if delay_s is None:
                raise
            time.sleep(delay_s)
    raise AssertionError("counting has no end")


def _call_in_tens(
    records: Sequence[ReceivedRecord], call: Callable[[Sequence[str]], Sequence[EntryResult]]
) -> dict[str, EntryResult]:
    """Do a call for all records, ten at a time; return the results by receipt handle."""
    handles = [each.handle for each in records]
    results: dict[str, EntryResult] = {}
    for start in range(0, len(handles), RECORDS_PER_CALL_MAX):
        results |= _call_ten(handles[start : start + RECORDS_PER_CALL_MAX], call)
    return results


def _call_ten(
    handles: list[str], call: Callable[[Sequence[str]], Sequence[EntryResult]]
) -> dict[str, EntryResult]:
    """Do a call for at most ten receipt handles; refused entries are sent again, within bounds."""
    results: dict[str, EntryResult] = {}
    remaining = handles

    def send() -> None:
        nonlocal remaining
        results.update(zip(remaining, call(remaining), strict=True))
        remaining = [handle for handle, result in results.items() if result.outcome is EntryOutcome.REFUSED]
        if remaining:
            refusal = results[remaining[0]]
            raise Throttled(f"{len(remaining)} entries were refused: {refusal.code}: {refusal.message}")

    try:
        _call_with_retries(send)
    except Throttled as error:
        warn(f"penstock queues: {error}")
    return results


def _set_visible(queues: Queues, queue_arn: str, records: Sequence[ReceivedRecord], *, is_dead: bool) -> None:
    """Make records visible again at once. If that fails, they become visible when their timeout ends."""
    try:
        _call_in_tens(
            records,
            lambda handles: queues.set_visibility(queue_arn, handles, [0] * len(handles), is_dead=is_dead),
        )
    except PenstockError as error:
        warn(
            f"penstock queues: records could not be returned, and are visible again within {_DEAD_LETTERS_HIDDEN_S} s: {error}"
        )


def _report_results(results: Mapping[str, EntryResult], verb: str) -> None:
    """Print how many records an action reached.

    Raises:
        PenstockError: Some were not reached.
    """
    done_count = sum(result.outcome is EntryOutcome.APPLIED for result in results.values())
    print(f"{counted(done_count, 'record')} {verb}")
    if done_count < len(results):
        failure = next(result for result in results.values() if result.outcome is not EntryOutcome.APPLIED)
        raise PenstockError(
            f"{counted(len(results) - done_count, 'record')} not {verb}: {failure.code}: {failure.message}"
        )


def _print_received(record: ReceivedRecord, *, as_json: bool) -> None:
    document = {
        "record_id": record.record_id,
        "partition_key": record.partition_key,
        "receive_count": record.receive_count,
        "approximate_arrival_timestamp": _iso(record.arrival_s),
        "first_receive_timestamp": _iso(record.first_receive_s),
    }
    print_record(document, record.data, as_json=as_json)


def print_record(fields: Mapping[str, Any], data: bytes, *, as_json: bool) -> None:
    """Print a record as a line for people, or as a JSON document with `data` if it is UTF-8 and `data_base64` otherwise."""
    document = {**fields, **data_document(data)}
    if as_json:
        sys.stdout.write(safe_json(document) + "\n")
        return
    line = (
        f"{document['record_id']}  {document['receive_count']:>3}x  {document['approximate_arrival_timestamp']}  "
        f"{document['partition_key'] or '-'}  {data_text(data)}"
    )
    sys.stdout.write(escape_text(line) + "\n")


def _iso(moment_s: float) -> str:
    return datetime.fromtimestamp(moment_s, UTC).isoformat(timespec="milliseconds")
