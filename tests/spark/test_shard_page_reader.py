"""One shard read from a position: missing records, refusals, and wrong answers of the service."""

from __future__ import annotations

import logging
import random
import uuid
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

import pytest

from moved_clock import MovedClock
from penstock.aws.aws_options import AwsOptions
from penstock.aws.connection import client_for
from penstock.aws.kinesis import AwsKinesis
from penstock.core.aggregation import AggregateBuilder
from penstock.core.position import TRIM_HORIZON, Position, at_record
from penstock.core.reading.reader_options import ReaderOptions
from penstock.errors import DataLossError, NotFound, Rejected, StreamChanged, Throttled, Unavailable
from penstock.runtime.system_clock import SystemClock
from penstock.spark.tasks.iterator_cache import IteratorCache, KeptIterator
from penstock.spark.tasks.shard_opening import ERROR_ADVICE
from penstock.spark.tasks.shard_page_reader import ShardPageReader
from penstock_local import LocalKinesis
from spark_support import numbered, put

FIRST = "shardId-000000000000"
HOUR_S = 3600
DAY_MS = 24 * HOUR_S * 1000


@dataclass
class Rig:
    """A stream of one shard on a server of its own, so that its clock can be moved."""

    server: LocalKinesis
    kinesis: AwsKinesis
    client: object
    options: AwsOptions
    stream: str = field(default_factory=lambda: f"s-{uuid.uuid4().hex[:10]}")

    def put(self, start, end):
        put(self.client, self.stream, numbered(start, end))

    def read(
        self,
        start=TRIM_HORIZON,
        *,
        shard=FIRST,
        fetch_count_max=10_000,
        deadline_s=60.0,
        fail=True,
        retention_ms=DAY_MS,
        read_bytes_per_s_max=None,
        spacing_s=0.0,
        clock=None,
        **more,
    ):
        return ShardPageReader(
            self.kinesis,
            self.stream,
            shard,
            start,
            options=ReaderOptions(
                record_count_max=fetch_count_max,
                spacing_s=spacing_s,
                read_bytes_per_s_max=read_bytes_per_s_max,
                backoff_min_s=0.01,
                backoff_max_s=0.02,
                deadline_s=deadline_s,
                on_data_loss="fail" if fail else "warn",
                retention_s=retention_ms / 1000,
                error_advice=ERROR_ADVICE,
            ),
            clock=clock or SystemClock(),
            chance=random.Random(1),
            **more,
        )

    def positions(self):
        """The position of each record in the first shard."""
        return [at_record(row["sequenceNumber"]) for row in rows(self.read())]

    def split(self, shard=FIRST, at=2**127):
        self.client.split_shard(StreamName=self.stream, ShardToSplit=shard, NewStartingHashKey=str(at))

    def listed(self):
        return [shard.shard_id for shard in self.kinesis.fetch_shards(self.stream).shards]


@pytest.fixture
def rig():
    with LocalKinesis(limits=False, settle_s=0) as server:
        options = AwsOptions(
            **server.connection(),
            retry_base_s=0.01,
            retry_cap_s=0.02,
            deadline_s=2,
        )
        made = Rig(server, AwsKinesis(options), server.client("kinesis"), options)
        server.create_stream(made.stream)
        yield made


def rows(shard_range):
    """Every row up to the tip or the end."""
    found = []
    for page in shard_range.pages():
        found += page.rows.to_pylist()
        if page.millis_behind_latest == 0:
            break
    return found


def numbers(shard_range):
    return [int(row["data"]) for row in rows(shard_range)]


@contextmanager
def altered_pages(rig, alter):
    """Change the server's answers to GetRecords with `alter`."""
    events = client_for("kinesis", rig.options).meta.events
    events.register("after-call.kinesis.GetRecords", alter)
    yield
    events.unregister("after-call.kinesis.GetRecords", alter)


# --- a shard that left the stream -----------------------------------------------------------------------------


@pytest.fixture
def gone(rig):
    """The first shard was split, and everything of it has left the stream; gives where it was read to."""
    rig.put(0, 10)
    position = rig.positions()[4]
    rig.split()
    rig.server.clock.advance(25 * HOUR_S)
    assert FIRST not in rig.listed()
    return position


@pytest.mark.parametrize("named", [True, False])
def test_a_shard_that_left_the_stream_is_a_loss_that_names_shard_and_position(rig, gone, named):
    position = gone if named else TRIM_HORIZON
    with pytest.raises(DataLossError) as raised:
        numbers(rig.read(position))
    for word in (rig.stream, FIRST, str(position), "left the stream", "failOnDataLoss=false"):
        assert word in str(raised.value)


@pytest.mark.parametrize("named", [True, False])
def test_a_shard_that_left_the_stream_ends_with_its_children_where_loss_is_allowed(rig, gone, named, caplog):
    caplog.set_level(logging.WARNING, "penstock.spark")
    pages = list(rig.read(gone if named else TRIM_HORIZON, fail=False).pages())
    assert [(page.rows.num_rows, page.is_end) for page in pages] == [(0, True)]
    assert [(child.shard_id, child.parents) for child in pages[0].children] == [
        ("shardId-000000000001", (FIRST,)),
        ("shardId-000000000002", (FIRST,)),
    ]
    assert sum("has left the stream" in record.message for record in caplog.records) == 1


def test_a_shard_leaving_the_stream_in_mid_read_is_a_loss_from_the_last_record(rig):
    rig.put(0, 10)
    pages = rig.read(fetch_count_max=5).pages()
    last = next(pages).rows.to_pylist()[-1]["sequenceNumber"]
    rig.split()
    rig.server.clock.advance(25 * HOUR_S)
    with pytest.raises(DataLossError, match=rf"{FIRST}.* was read only to {last}\.0"):
        next(pages)


def test_a_shard_that_is_listed_is_not_gone_whatever_one_answer_says(rig):
    rig.put(0, 10)
    rig.server.faults.error("GetShardIterator", count=2, status=400, code="ResourceNotFoundException")
    assert numbers(rig.read()) == list(range(10))


def test_a_shard_that_one_listing_leaves_out_is_not_gone(rig):
    rig.put(0, 10)
    rig.server.faults.error("GetShardIterator", count=1, status=400, code="ResourceNotFoundException")
    rig.server.faults.omit_shard(FIRST)
    assert numbers(rig.read()) == list(range(10))


def test_a_shard_that_is_listed_and_unknown_for_good_is_given_up_at_the_deadline(rig):
    rig.server.faults.error("GetShardIterator", count=None, status=400, code="ResourceNotFoundException")
    with pytest.raises(NotFound, match=FIRST):
        numbers(rig.read(deadline_s=0.5))


def test_a_stream_that_is_gone_is_said_to_be_gone(rig):
    rig.put(0, 10)
    position = rig.positions()[4]
    rig.client.delete_stream(StreamName=rig.stream)
    with pytest.raises(NotFound, match=f"stream {rig.stream} does not exist any more"):
        numbers(rig.read(position, fail=False))


def test_a_position_of_a_stream_that_was_made_anew_is_refused(rig):
    rig.put(0, 10)
    position = rig.positions()[4]
    rig.client.delete_stream(StreamName=rig.stream)
    rig.server.create_stream(rig.stream)
    with pytest.raises(StreamChanged, match=f"{FIRST}: the service refuses position {position}"):
        numbers(rig.read(position, fail=False))


# --- a record that left the stream ----------------------------------------------------------------------------


def test_a_missing_record_is_judged_by_the_clock_of_the_service(rig):
    """The service's clock is days ahead of this machine's, by which every moment is recent."""
    rig.server.clock.advance(5 * 24 * HOUR_S)
    rig.put(0, 1)
    (position,) = rig.positions()
    tip_ms = rig.server.clock.now_ms()
    rig.server.clock.advance(30 * HOUR_S)
    rig.put(1, 2)
    with pytest.raises(DataLossError, match=str(position)):
        numbers(rig.read(position, tip_ms=tip_ms, retention_ms=DAY_MS))
    assert numbers(rig.read(position, tip_ms=tip_ms, retention_ms=DAY_MS, fail=False)) == [1]


def test_a_missing_record_is_no_loss_while_the_retention_reaches_back_to_the_tip(rig, caplog):
    caplog.set_level(logging.WARNING, "penstock.spark")
    rig.put(0, 1)
    (position,) = rig.positions()
    rig.server.clock.advance(20 * HOUR_S)
    tip_ms = rig.server.clock.now_ms()
    rig.server.clock.advance(20 * HOUR_S)
    rig.put(1, 2)
    assert numbers(rig.read(position, tip_ms=tip_ms, retention_ms=DAY_MS)) == [1]
    assert caplog.records == []


@pytest.mark.parametrize(("is_foreign", "is_loss"), [(True, False), (False, True)])
def test_a_foreign_checkpoint_on_an_open_empty_shard_is_warned_of_only(rig, caplog, is_foreign, is_loss):
    caplog.set_level(logging.WARNING, "penstock.spark")
    rig.put(0, 1)
    (position,) = rig.positions()
    rig.server.clock.advance(30 * HOUR_S)
    if is_loss:
        with pytest.raises(DataLossError, match=str(position)):
            numbers(rig.read(position, is_foreign=is_foreign, retention_ms=DAY_MS))
    else:
        assert numbers(rig.read(position, is_foreign=is_foreign, retention_ms=DAY_MS)) == []
        assert [record.levelname for record in caplog.records] == ["WARNING"]


# --- mistakes and refusals of the service ---------------------------------------------------------------------


def hide_records(count):
    """Answers without records; their next iterator is behind the hidden records."""
    left = [count]

    def alter(parsed, **_):
        if left[0]:
            left[0] -= 1
            parsed["Page"].records = []
            parsed["Page"].millis_behind_latest = 0

    return alter


def test_an_empty_answer_is_not_believed_where_a_record_must_be(rig):
    rig.put(0, 10)
    position = rig.positions()[4]
    with altered_pages(rig, hide_records(2)):
        assert numbers(rig.read(position)) == [5, 6, 7, 8, 9]


def test_where_something_must_follow_the_service_is_asked_again_and_not_for_ever(rig):
    rig.put(0, 10)
    shard = rig.read()
    found, looks = [], 0
    with altered_pages(rig, hide_records(2)):
        for page in shard.pages():
            found += [int(row["data"]) for row in page.rows.to_pylist()]
            if page.millis_behind_latest == 0 and not (looks < 20 and shard.read_again()):
                break
            looks += 1
    assert found == list(range(10))
    assert looks == 5


def test_a_refused_iterator_is_replaced(rig):
    rig.put(0, 10)
    cache = IteratorCache()
    position = rig.positions()[4]
    cache.put(rig.kinesis, rig.stream, FIRST, position, KeptIterator("no-iterator-at-all", None, 1e12))
    assert numbers(rig.read(position, iterators=cache)) == [5, 6, 7, 8, 9]


def test_what_is_refused_for_good_is_raised_after_some_new_iterators(rig):
    rig.put(0, 10)
    rig.server.faults.error("GetRecords", count=None, status=400, code="InvalidArgumentException")
    with pytest.raises(Rejected, match="InvalidArgumentException"):
        numbers(rig.read())
    assert rig.server.calls().count("GetShardIterator") <= 10


def test_throttling_is_waited_out_until_the_deadline(rig):
    rig.put(0, 10)
    rig.server.faults.throttle("GetRecords", count=30)
    assert numbers(rig.read()) == list(range(10))
    rig.server.faults.throttle("GetRecords", count=None)
    with pytest.raises(Throttled):
        numbers(rig.read(deadline_s=0.3))


# --- large pages ----------------------------------------------------------------------------------------------


def test_a_page_of_aggregates_of_empty_records_comes_in_slices(rig):
    count = 60_000
    aggregates = 4
    for _ in range(aggregates):
        packer = AggregateBuilder()
        for _ in range(count):
            packer.add(b"", "k")
        rig.client.put_record(StreamName=rig.stream, PartitionKey="k", Data=packer.build().data)
    found: list[Position] = []
    kept = IteratorCache()
    shard = rig.read(iterators=kept)
    for page in shard.pages():
        assert page.rows.num_rows <= 2 * count
        last = page.rows.slice(page.rows.num_rows - 1).to_pylist()[0]
        found.append(at_record(last["sequenceNumber"], last["subSequenceNumber"]))
        if page.millis_behind_latest == 0:
            break
        # The page's iterator is behind rows that were not given yet: it must not be kept for this place.
        shard.keep_iterator(found[-1])
        assert kept.take(rig.kinesis, rig.stream, FIRST, found[-1], 0.0) is None
    assert len(found) == aggregates
    assert [position.sub_sequence_number for position in found] == [count - 1] * aggregates
    assert numbers_of_rows(rig.read(found[1])) == 2 * count


def numbers_of_rows(shard_range):
    total = 0
    for page in shard_range.pages():
        total += page.rows.num_rows
        if page.millis_behind_latest == 0:
            return total
    return total


# --- kept iterators -------------------------------------------------------------------------------------------


def test_an_iterator_is_kept_for_its_own_service_only(rig):
    cache = IteratorCache()
    position = at_record("5")
    same = AwsKinesis(rig.options)
    others = [
        AwsKinesis(replace(rig.options, **differing))
        for differing in (
            {"region": "eu-west-1"},
            {"access_key_id": "another"},
            {"endpoint_url": "http://127.0.0.1:9"},
        )
    ]
    kept = KeptIterator("iterator", None, 0.0)
    cache.put(rig.kinesis, "orders", FIRST, position, kept)
    assert [cache.take(other, "orders", FIRST, position, 1.0) for other in others] == [None] * 3
    assert cache.take(same, "orders", FIRST, position, 1.0) == kept
    assert cache.take(same, "orders", FIRST, position, 1.0) is None


# --- pace and ends ----------------------------------------------------------------------------------------------


def test_a_large_page_uses_up_the_bytes_of_the_seconds_to_come(rig):
    for number in range(4):
        put(rig.client, rig.stream, [(f"k{number}", "x" * (1024 * 1024 - 2))])
    clock = MovedClock()
    shard = rig.read(fetch_count_max=2, clock=clock, read_bytes_per_s_max=2 * 1024 * 1024, spacing_s=0.2)
    read_at_s = []
    for page in shard.pages():
        read_at_s.append(clock.now_s)
        if page.millis_behind_latest == 0:
            break
    assert read_at_s == [0.0, 1.0]


def test_the_end_of_a_page_tells_nothing_of_the_tip_once_it_is_cut(rig):
    rig.put(0, 10)
    page = next(rig.read().pages())
    assert page.millis_behind_latest == 0
    rest = page.tail(4)
    assert ([int(row["data"]) for row in rest.rows.to_pylist()], rest.millis_behind_latest) == (
        [4, 5, 6, 7, 8, 9],
        None,
    )


def test_a_last_page_that_names_no_children_is_confirmed_by_the_listing(rig):
    rig.put(0, 10)
    rig.split()

    def alter(parsed, **_):
        parsed["Page"].children = []

    with altered_pages(rig, alter):
        pages = list(rig.read().pages())
    assert [int(row["data"]) for page in pages for row in page.rows.to_pylist()] == list(range(10))
    assert [page.millis_behind_latest for page in pages[:-1]] == [None] * (len(pages) - 1)
    assert [child.shard_id for child in pages[-1].children] == [
        "shardId-000000000001",
        "shardId-000000000002",
    ]
    assert [page.is_end for page in pages] == [False] * (len(pages) - 1) + [True]


def test_a_shard_that_is_open_and_said_to_have_ended_is_given_up_after_a_while(rig):
    rig.put(0, 10)

    def alter(parsed, **_):
        parsed["Page"].next_iterator = None

    with altered_pages(rig, alter), pytest.raises(Unavailable, match=f"{FIRST}: listed, yet"):
        list(rig.read().pages())
