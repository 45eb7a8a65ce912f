"""From raw records to Arrow columns: one row per user record, in the schema that Spark expects."""

from __future__ import annotations

import sys
from datetime import UTC, datetime

import pyarrow as pa
import pytest

from penstock.aws.data_plane import WireRecord
from penstock.core.aggregation import MAGIC, AggregateBuilder, DecodeCounts, MisplacedRule, Undecodable
from penstock.core.hash_key import HashRange
from penstock.core.position import LATEST, TRIM_HORIZON, at_record
from penstock.frames import SCHEMA
from penstock.spark.tasks.arrow_records import MISPLACED, records_to_slices, without_misplaced

ARRIVAL_S = 1700000000.123
ARRIVAL = datetime(2023, 11, 14, 22, 13, 20, 123000, tzinfo=UTC)


def aggregate(*payloads, key="k", hash_key=None):
    builder = AggregateBuilder()
    for payload in payloads:
        builder.add(payload, key, hash_key)
    return builder.build().data


def record(number, data, key="outer"):
    return WireRecord(str(number), data, key, ARRIVAL_S)


PLAIN = [record(9, b"nine"), record(10, b""), record(100, b"hundred", None)]
MIXED = [record(9, b"nine"), record(10, aggregate(b"a", b"b", b"c", hash_key="7")), record(100, b"last")]


def records_to_batch(*args, **options):
    """All rows of a page as one batch."""
    return next(records_to_slices(*args, **options, rows_max=sys.maxsize))[0]


def places(batch):
    return list(zip(batch["sequenceNumber"].to_pylist(), batch["subSequenceNumber"].to_pylist(), strict=True))


def test_plain_records_become_rows_in_sparks_schema():
    batch = records_to_batch("orders", "shardId-000000000000", PLAIN)
    assert batch.schema == SCHEMA
    assert batch.to_pylist()[0] == {
        "streamName": "orders",
        "shardId": "shardId-000000000000",
        "sequenceNumber": "9",
        "subSequenceNumber": 0,
        "partitionKey": "outer",
        "explicitHashKey": None,
        "approximateArrivalTimestamp": ARRIVAL,
        "data": b"nine",
    }
    assert batch["partitionKey"].to_pylist() == ["outer", "outer", None]
    assert batch["data"].to_pylist() == [b"nine", b"", b"hundred"]


def test_an_aggregate_becomes_a_row_per_user_record_between_its_neighbours():
    counts = DecodeCounts()
    batch = records_to_batch("orders", "s", MIXED, counts=counts)
    batch.validate(full=True)
    assert batch.schema == SCHEMA
    assert places(batch) == [("9", 0), ("10", 0), ("10", 1), ("10", 2), ("100", 0)]
    assert batch["data"].to_pylist() == [b"nine", b"a", b"b", b"c", b"last"]
    assert batch["partitionKey"].to_pylist() == ["outer", "k", "k", "k", "outer"]
    assert batch["explicitHashKey"].to_pylist() == [None, "7", "7", "7", None]
    assert set(batch["approximateArrivalTimestamp"].to_pylist()) == {ARRIVAL}
    assert counts.aggregates == 1


def test_what_only_begins_like_an_aggregate_passes_untouched_and_is_counted():
    counts = DecodeCounts()
    broken = MAGIC + b"not an aggregate at all, surely"
    batch = records_to_batch("orders", "s", [record(1, broken), record(2, b"x")], counts=counts)
    assert batch["data"].to_pylist() == [broken, b"x"]
    assert counts.undecodable == {Undecodable.DIGEST: 1}


def test_aggregates_stay_whole_when_asked():
    batch = records_to_batch("orders", "s", MIXED, deaggregate=False)
    assert places(batch) == [("9", 0), ("10", 0), ("100", 0)]
    assert batch["data"].to_pylist()[1] == MIXED[1].data


@pytest.mark.parametrize(
    ("after", "first"),
    [
        (None, ("9", 0)),
        (TRIM_HORIZON, ("9", 0)),
        (LATEST, ("9", 0)),
        (at_record("8", 5), ("9", 0)),
        (at_record("9"), ("10", 0)),
        (at_record("10", 0), ("10", 1)),
        (at_record("10", 1), ("10", 2)),
        (at_record("10", 2), ("100", 0)),
        (at_record("10", 99), ("100", 0)),
        (at_record("99"), ("100", 0)),
    ],
)
def test_everything_up_to_a_position_is_left_out_by_number_not_by_text(after, first):
    assert places(records_to_batch("orders", "s", MIXED, after=after))[0] == first


def test_nothing_is_left_behind_the_last_record():
    assert records_to_batch("orders", "s", MIXED, after=at_record("100")).num_rows == 0


def test_an_empty_page_becomes_an_empty_batch_of_the_same_schema():
    batch = records_to_batch("orders", "s", [], after=at_record("5"))
    assert (batch.num_rows, batch.schema) == (0, SCHEMA)


def test_every_millisecond_of_an_arrival_is_kept():
    millis = [1700000000000 + offset for offset in range(1000)]
    rows = [WireRecord(str(place), b"x", "k", ms / 1000) for place, ms in enumerate(millis)]
    arrivals = records_to_batch("orders", "s", rows)["approximateArrivalTimestamp"]
    assert arrivals.cast(pa.timestamp("ms", tz="UTC")).cast(pa.int64()).to_pylist() == millis


def owns_the_lowest_key(_age_max_s):
    return HashRange(0, 0)


def test_misplaced_records_have_rows_to_cut_by_and_are_not_delivered():
    counts = DecodeCounts()
    rule = MisplacedRule(owns_the_lowest_key, drops_unmarked=True)
    batch = records_to_batch("orders", "s", MIXED, counts=counts, rule=rule)
    assert places(batch) == [("9", 0), ("10", 0), ("10", 1), ("10", 2), ("100", 0)]
    assert batch[MISPLACED].to_pylist() == [False, True, True, True, False]
    assert counts.misplaced_records == 3
    left = without_misplaced(batch.slice(1))
    left.validate(full=True)
    assert (left.schema, places(left)) == (SCHEMA, [("100", 0)])
    assert without_misplaced(batch.slice(1, 2)).num_rows == 0


def test_a_page_without_misplaced_records_is_delivered_as_it_is():
    rule = MisplacedRule(owns_the_lowest_key)
    batch = records_to_batch("orders", "s", MIXED, rule=rule)
    assert without_misplaced(batch) is batch


@pytest.mark.parametrize(
    ("after", "expected"),
    [
        (at_record("9"), ["10", "100"]),
        (at_record("10", 0), ["10", "100"]),
        (at_record("10", 1), ["10", "100"]),
        (at_record("10", 2), ["100"]),
        (at_record("100"), []),
        (TRIM_HORIZON, ["9", "10", "100"]),
    ],
)
def test_a_begun_aggregate_is_emitted_whole_without_deaggregation(after, expected):
    batch = records_to_batch("orders", "s", MIXED, after=after, deaggregate=False)
    assert batch["sequenceNumber"].to_pylist() == expected
