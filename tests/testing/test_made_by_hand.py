"""Records and batches made by hand."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
from datetime import UTC, datetime, timedelta, timezone

import pytest

from penstock import testing
from penstock.consumer import AsyncBatch, Batch
from penstock.errors import LeaseLost, PositionError, UsageError


def places_of(records):
    return [(record.data, record.sequence_number, record.sub_sequence_number) for record in records]


def test_records_are_numbered_by_their_places_and_joined_with_plus():
    made = testing.records("a", bytearray(b"b")) + testing.aggregate("c", "d") + testing.records({"e": 1})
    assert places_of(made) == [
        (b"a", "1", 0),
        (b"b", "2", 0),
        (b"c", "3", 0),
        (b"d", "3", 1),
        (b'{"e": 1}', "4", 0),
    ]
    assert [record.partition_key for record in made] == ["key-1", "key-2", "key-3", "key-4", "key-5"]
    moments = [record.approximate_arrival_timestamp for record in made]
    assert moments == sorted(moments)
    assert moments[2] == moments[3]
    assert (made[1:], len(made), made == list(made)) == (list(made)[1:], 5, True)


def test_attributes_are_those_that_were_given_when_the_handler_gets_them():
    moment = datetime(2026, 3, 1, 12, 30, 15, 123_456, tzinfo=timezone(timedelta(hours=1)))
    made = testing.records(
        "a",
        partition_key="c7",
        sequence_number="49590338271490256608559692538361571095921575989136588898",
        arrival=moment,
        shard_id="shardId-000000000007",
        stream="orders",
    ) + testing.aggregate(
        "b",
        "c",
        partition_key="c{n}",
        explicit_hash_key="17",
        arrival=moment,
        shard_id="shardId-000000000007",
        stream="orders",
    )
    given = []
    run = testing.run(given.extend, made)
    assert given == list(made) == run.records
    assert given[0].approximate_arrival_timestamp == datetime(2026, 3, 1, 11, 30, 15, 123_000, tzinfo=UTC)
    assert [(record.partition_key, record.explicit_hash_key) for record in given] == [
        ("c7", None),
        ("c2", "17"),
        ("c3", "17"),
    ]
    assert {(record.shard_id, record.stream) for record in given} == {("shardId-000000000007", "orders")}
    assert int(given[1].sequence_number) == int(given[0].sequence_number) + 1


@pytest.mark.parametrize("arrival", ["2026-01-31T12:00:00Z", 1_769_860_800_000, "2026-01-31T07:00-05:00"])
def test_an_arrival_is_written_as_any_moment(arrival):
    made = testing.records("a", arrival=arrival)
    assert made[0].approximate_arrival_timestamp == datetime(2026, 1, 31, 12, tzinfo=UTC)


def test_a_record_may_have_no_key():
    given = []
    testing.run(given.extend, testing.records("a", partition_key=None))
    assert given[0].partition_key is None


@pytest.mark.parametrize(
    ("make", "kind", "message"),
    [
        (lambda: testing.aggregate("a"), UsageError, "two or more"),
        (lambda: testing.records("a", arrival=datetime(2026, 1, 1)), PositionError, "has no time zone"),  # noqa: DTZ001
        (lambda: testing.records("a", arrival="2026-01-01"), PositionError, "has no time zone"),
        (
            lambda: testing.records("a", arrival=1_769_860_800),
            PositionError,
            r"seconds\? milliseconds are expected",
        ),
        (lambda: testing.records(object()), UsageError, "a payload of type object cannot become JSON"),
        (lambda: testing.records("a", partition_key=5), UsageError, "partition_key=5: expected a text"),
        (lambda: testing.records("a", sequence_number=5), UsageError, "sequence_number=5: expected a text"),
        (lambda: testing.run(list, [b"a"]), UsageError, r"b'a' is not a record; .*testing\.records"),
        (lambda: testing.batch([b"a"]), UsageError, r"b'a' is not a record; .*testing\.records"),
        (lambda: testing.records("a", sequence_number="later"), PositionError, "later"),
        (
            lambda: testing.records("a", "b") + testing.records("c", sequence_number="2"),
            UsageError,
            "the record before has 2",
        ),
        (lambda: testing.run(list, [*testing.records("a"), *testing.records("b")]), UsageError, "join"),
        (
            lambda: testing.run(
                list, testing.records("a") + testing.records("b", shard_id="shardId-000000000001")
            ),
            UsageError,
            "one shard",
        ),
        (lambda: testing.run(list, testing.aggregate("a", "b", "c")[::2]), UsageError, "are numbered"),
        (lambda: testing.batch(testing.records()), UsageError, "a batch of 0 records"),
    ],
)
def test_records_that_no_shard_can_hold_are_refused(make, kind, message):
    with pytest.raises(kind, match=message):
        make()


def test_a_batch_is_given_to_a_handler_and_asked_what_it_stored():
    made = testing.records("a", "b") + testing.aggregate("c", "d")
    batch = testing.batch(made, attempt=3, millis_behind_latest=7)
    assert isinstance(batch, Batch)
    assert (list(batch), batch.attempt, batch.millis_behind_latest) == (list(made), 3, 7)
    assert (batch.is_owned, batch.stored) == (True, None)
    batch.checkpoint(batch[2])
    assert batch.stored == made[2]
    with pytest.raises(UsageError, match="is at"):
        batch.checkpoint(batch[0])
    batch.acknowledge(batch[3])
    assert batch.stored == made[3]


def test_a_batch_loses_its_lease():
    batch = testing.batch(testing.records("a", "b"))
    batch.checkpoint(batch[0])
    batch.lose_lease()
    assert (batch.is_owned, batch.stored) == (False, batch[0])
    with pytest.raises(LeaseLost):
        batch.checkpoint()


def test_a_batch_for_a_coroutine_is_checkpointed_with_await():
    batch = testing.async_batch(testing.records("a", "b"))
    assert isinstance(batch, AsyncBatch)
    asyncio.run(batch.checkpoint(batch[0]))
    assert batch.stored == batch[0]
    batch.lose_lease()
    with pytest.raises(LeaseLost):
        asyncio.run(batch.checkpoint())


def test_a_run_starts_no_thread(monkeypatch):
    def refuse(self):
        raise AssertionError(f"{self.name} was started")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    assert testing.run(list, testing.records("a")).left == []
    assert testing.batch(testing.records("a")).stored is None


def test_no_service_is_loaded():
    code = "import sys; from penstock import testing; testing.run(list, testing.records('a')); print('boto3' in sys.modules)"
    said = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True
    )
    assert said.stdout == "False\n"
