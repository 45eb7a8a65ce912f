"""The record of a delivery beside its table: values that later runs must repeat, and the ranges that runs may deliver."""

from __future__ import annotations

import itertools
import re
from collections.abc import Sequence
from typing import Final

import msgspec
from msgspec import Struct, structs

from penstock.core.delivering.definition import NEW_TABLE, Delivery
from penstock.core.delivering.manifest import ArrivalRange, find_overlap
from penstock.core.moments import describe_moment
from penstock.core.position import LATEST, TRIM_HORIZON
from penstock.core.starting import StartingPosition
from penstock.core.time_zones import is_same_time_zone
from penstock.errors import DeliveryFailed, OptionError

_FIXED_FIELDS: Final = (
    "stream",
    "to",
    "table_format",
    "partitions",
    "time_zone",
    "application",
    "checkpoint",
    "metadata",
    "is_raw",
)
_KEYS_OF_FIELDS: Final = {
    "table_format": "format",
    "partitions": "partition-by",
    "time_zone": "time-zone",
    "is_raw": "schema",
}


class DeliveryRecord(Struct, frozen=True, kw_only=True):
    """The values that the first run fixes.

    Args:
        stream: Name or ARN.
        partitions: Expressions by name.
        time_zone: Of the partitions' dates; empty without partitions, and in records of earlier releases.
        application: Name of the leases.
        checkpoint: Spark's checkpoint location.
        metadata: Columns beside the fields.
        is_raw: Whether the table has the source's columns.
        id: Id of the delivery in the log of its table.
        to: The table; empty in records of earlier releases.
        identity: Of the stream, as text: another stream of its name has another one. Empty in records of earlier releases.
        start: Where the running delivery began, as an option of the source; None if there are backfills only.
        start_ms: The start as a moment; None if it is not a moment.
    """

    stream: str
    table_format: str
    partitions: tuple[tuple[str, str], ...]
    application: str
    checkpoint: str
    metadata: tuple[str, ...] = ()
    is_raw: bool = False
    id: str = ""
    to: str = ""
    identity: str = ""
    start: str | None = None
    start_ms: int | None = None
    query_id: str | None = None
    time_zone: str = ""

    def to_json(self) -> bytes:
        """Return the record as JSON."""
        return msgspec.json.encode(self)


def record_of(
    delivery: Delivery, application: str, delivery_id: str = "", identity: str = ""
) -> DeliveryRecord:
    """Return the record of a delivery that has not run yet."""
    return DeliveryRecord(
        stream=delivery.stream,
        table_format=delivery.format,
        partitions=tuple((each.name, each.expression) for each in delivery.partitions),
        time_zone=delivery.time_zone if delivery.partitions else "",
        application=application,
        checkpoint=delivery.checkpoint_location,
        metadata=delivery.metadata,
        is_raw=delivery.schema == "raw",
        id=delivery_id,
        to=delivery.to,
        identity=identity,
    )


def parse_record(text: bytes, place: str) -> DeliveryRecord:
    """Parse the record of a delivery.

    Raises:
        DeliveryFailed: The file is not a record.
    """
    try:
        return msgspec.json.decode(text, type=DeliveryRecord)
    except msgspec.DecodeError as error:
        raise DeliveryFailed(f"{place} is not a record of a delivery: {error}") from error


def check_same_delivery(delivery: Delivery, old_record: DeliveryRecord, current: DeliveryRecord) -> None:
    """Refuse a run whose values differ from those of earlier runs, if files or leases depend on them.

    Raises:
        OptionError: A value differs; the message names the first one.
    """
    for field in _FIXED_FIELDS:
        before, given = getattr(old_record, field), getattr(current, field)
        if before == given or (field in ("to", "time_zone") and not before):
            continue
        if field == "time_zone" and is_same_time_zone(before, given):
            continue
        if field == "to":
            raise OptionError(
                f"delivery {delivery.name} has delivered into {before}, and its state {delivery.state} is used with {given}: put table "
                f"and state back to their places, or {NEW_TABLE}"
            )
        raise OptionError(
            f"delivery {delivery.name} into {delivery.to} has run with {_KEYS_OF_FIELDS.get(field, field)} {_show_value(before)}, not "
            f"{_show_value(given)}: keep it, or {NEW_TABLE}"
        )


def _show_value(value: object) -> str:
    """Return a fixed value as the user writes it."""
    if isinstance(value, bool):  # whether the schema is raw
        return "raw" if value else "columns"
    if not isinstance(value, tuple):
        return repr(value)
    texts = [each if isinstance(each, str) else f"{each[1]} AS {each[0]}" for each in value]
    return ", ".join(texts) or "none"


def plan_start(position: StartingPosition, now_ms: int, ranges: list[ArrivalRange]) -> tuple[str, int | None]:
    """Return where a delivery begins: as an option of the source, and as a moment.

    `LATEST` becomes the present moment, so that a backfill can end exactly there.

    Args:
        now_ms: The present moment by the service's clock.
        ranges: Backfills into the same table under the same name.

    Raises:
        OptionError: Records of a backfill would be delivered again.
    """
    start_ms = now_ms if position.default == LATEST else position.default.timestamp_ms
    last = max(ranges, key=lambda each: each.until_ms, default=None)
    if last is not None and (start_ms is None or start_ms < last.until_ms or position.by_shard):
        raise OptionError(
            f"the table has records up to {describe_moment(last.until_ms)} from a backfill: start the delivery there, with "
            f"start AT_TIMESTAMP {describe_moment(last.until_ms)}"
        )
    if position.by_shard:
        return "", None
    if start_ms is None:
        assert position.default == TRIM_HORIZON
        return "TRIM_HORIZON", None
    return f"AT_TIMESTAMP {describe_moment(start_ms)}", start_ms


def plan_backfill(
    wanted_ms: tuple[int, int | None], now_ms: int, running: DeliveryRecord | None, ranges: list[ArrivalRange]
) -> ArrivalRange:
    """Return the range of a backfill. If no end was typed, that of an earlier backfill with the same begin counts, or the present.

    Args:
        wanted_ms: Its begin, and its end if one was typed.
        now_ms: The present moment by the service's clock.
        running: The record of the delivery of the same name, if there is one.

    Raises:
        OptionError: The range is empty or in the future, or has records that another run delivers.
    """
    since_ms, until_ms = wanted_ms
    is_running = running is not None and running.start is not None
    start_ms = running.start_ms if running is not None else None
    if is_running and start_ms is None:
        raise OptionError(
            "the delivery of this name began with the oldest record or with positions of single shards, so a backfill beside it "
            "would deliver records twice; deliver the range into another table"
        )
    if until_ms is None:
        # If the same command ran before, and perhaps was killed, the end is that run's: the moment at which it began.
        same = next((each for each in ranges if each.since_ms == since_ms), None)
        if same is not None:
            return same
        until_ms = now_ms if start_ms is None else start_ms
    if until_ms > now_ms:
        raise OptionError(f"until={describe_moment(until_ms)} is in the future")
    if since_ms >= until_ms:
        raise OptionError(
            f"since={describe_moment(since_ms)} is not before until={describe_moment(until_ms)}"
        )
    if start_ms is not None and until_ms > start_ms:
        raise OptionError(
            f"the delivery of this name began at {describe_moment(start_ms)}, and delivers later records itself; end the backfill "
            f"there, or leave out until"
        )
    wanted = ArrivalRange(since_ms, until_ms)
    other = find_overlap(wanted, ranges)
    if other is not None:
        raise OptionError(
            f"the range from {describe_moment(other.since_ms)} to {describe_moment(other.until_ms)} is in the table already, and "
            "shares records with this one"
        )
    return wanted


def check_retention(backfill: ArrivalRange, oldest_ms: int, created_ms: int) -> str | None:
    """Return a warning if records of a backfill's range have left the stream; None if it has all of them.

    Args:
        oldest_ms: The moment from which the stream keeps its records.
        created_ms: Its creation.

    Raises:
        OptionError: The stream has no record of that time.
    """
    begin_ms = max(oldest_ms, created_ms)
    reason = "it was created then" if begin_ms == created_ms else "older ones have gone by its retention"
    if backfill.until_ms <= begin_ms:
        raise OptionError(
            f"until={describe_moment(backfill.until_ms)}: the stream has records from {describe_moment(begin_ms)} on; {reason}"
        )
    if backfill.since_ms < begin_ms and begin_ms > created_ms:
        return f"the range has only the records from {describe_moment(begin_ms)} on; {reason}"
    return None


def check_other_delivery(
    delivery: Delivery,
    record: DeliveryRecord,
    other: tuple[str, DeliveryRecord],
    begin: StartingPosition | ArrivalRange,
) -> None:
    """Refuse a run into a table that another delivery has filled from the same stream, if records would come again or be left out.

    Args:
        other: Name and record of the other delivery.
        begin: The starting position of a delivery that has not run, or the range of a backfill.

    Raises:
        DeliveryFailed: The starting position is not a moment or a position in each shard, or the range does not end before the
            other's start.
    """
    name, before = other
    if before.to != record.to or not _is_same_stream(before, record):
        return
    shown = f"{delivery.to} gets records of {delivery.stream} by a delivery {name}"
    if isinstance(begin, ArrivalRange):
        if before.start_ms is None or begin.until_ms > before.start_ms:
            remedy = "" if before.start_ms is None else f", or end it at {describe_moment(before.start_ms)}"
            if before.start is None:  # it has backfilled only; no two deliveries of a program have one name
                remedy = ", in a run of its own"
            raise DeliveryFailed(
                f"{shown}, and a backfill under the name {delivery.name} would bring some of them again: keep name={name}{remedy}"
            )
    elif begin.default.timestamp_ms is None and not begin.by_shard:
        raise DeliveryFailed(
            f"{shown}, and under the name {delivery.name} it would begin anew: records would come again, or be left out. Keep "
            f"name={name}, or start {delivery.name} at a moment (start: AT_TIMESTAMP …)"
        )


def check_streams(runs: Sequence[tuple[Delivery, DeliveryRecord, ArrivalRange | None]]) -> None:
    """Refuse deliveries of one program that would put a record into one table twice, whatever names its stream has there.

    Args:
        runs: Deliveries and their records; with the range of a backfill.

    Raises:
        OptionError: Two run on, from one stream into one table.
        DeliveryFailed: One is a backfill, which `check_other_delivery` refuses.
    """
    for (first, record, reach), (second, other, other_reach) in itertools.combinations(runs, 2):
        if reach is not None:
            check_other_delivery(first, record, (second.name, other), reach)
        elif other_reach is not None:
            check_other_delivery(second, other, (first.name, record), other_reach)
        elif record.to == other.to and _is_same_stream(record, other):
            raise OptionError(
                f"deliveries {first.name} and {second.name} have the same stream {first.stream} and to={first.to}: the table would have "
                "each record twice"
            )


def _is_same_stream(first: DeliveryRecord, second: DeliveryRecord) -> bool:
    if first.identity and second.identity:
        return first.identity == second.identity
    return first.stream.rpartition("/")[2] == second.stream.rpartition("/")[2]


def has_files_of(name: str, names: list[str]) -> bool:
    """Return whether files of a delivery are among names."""
    own = re.compile(rf"part-{re.escape(name)}-(\d{{9}}|range\.\d+\.\d+|redelivery\.\d+)-\d{{5}}\.\w+")
    return any(own.fullmatch(each) for each in names)


def with_layout(record: DeliveryRecord, current: DeliveryRecord) -> DeliveryRecord:
    """Return a record with the layout of the current run, for a table that has no files yet."""
    return structs.replace(
        record,
        table_format=current.table_format,
        partitions=current.partitions,
        time_zone=current.time_zone,
        metadata=current.metadata,
        is_raw=current.is_raw,
    )
