"""The Kinesis port: what readers and writers rely on, by name and by ARN."""

from __future__ import annotations

import pytest

from penstock.aws import service_calls
from penstock.aws.aws_options import AwsOptions
from penstock.aws.data_plane import WireAnswers
from penstock.aws.kinesis import AwsKinesis
from penstock.core.hash_key import FULL_RANGE, HashRange
from penstock.errors import NotFound, ServiceError, UnknownOutcome
from penstock.ports.kinesis import EntryAnswer, IteratorStart, IteratorType, PutEntry, ShardFilter
from penstock_local import LocalKinesis

FIRST = "shardId-000000000000"


@pytest.fixture(scope="module")
def server():
    with LocalKinesis(limits=False, settle_s=0) as running:
        yield running


@pytest.fixture(scope="module")
def kinesis(server):
    return AwsKinesis(
        AwsOptions(
            **server.connection(),
            retry_base_s=0.01,
            retry_cap_s=0.02,
            attempts_max=3,
            deadline_s=60,
        )
    )


@pytest.fixture(params=["name", "arn"])
def stream(request, server):
    name = f"s-{request.node.name.replace('[', '-').replace(']', '')}"[:128]
    arn = server.create_stream(name)
    yield name if request.param == "name" else arn
    server.faults.clear()


def put(kinesis, stream, *blobs):
    answers = kinesis.put_records(stream, [PutEntry(blob, "k") for blob in blobs])
    assert {answer.error_code for answer in answers} == {None}
    return [answer.sequence_number for answer in answers]


def read(kinesis, stream, start, shard=FIRST):
    return [
        record.data
        for record in kinesis.fetch_records(stream, kinesis.fetch_iterator(stream, shard, start)).records
    ]


def test_each_of_the_five_iterators_begins_where_it_says(kinesis, server, stream):
    numbers = put(kinesis, stream, b"a", b"b")
    server.clock.advance(1)
    moment_ms = server.clock.now_ms()
    numbers += put(kinesis, stream, b"c")
    latest = kinesis.fetch_iterator(stream, FIRST, IteratorStart(IteratorType.LATEST))
    put(kinesis, stream, b"d")
    begins = {
        IteratorStart(IteratorType.TRIM_HORIZON): [b"a", b"b", b"c", b"d"],
        IteratorStart(IteratorType.AT_SEQUENCE_NUMBER, numbers[1]): [b"b", b"c", b"d"],
        IteratorStart(IteratorType.AFTER_SEQUENCE_NUMBER, numbers[1]): [b"c", b"d"],
        IteratorStart(IteratorType.AT_TIMESTAMP, timestamp_ms=moment_ms): [b"c", b"d"],
    }
    assert {start: read(kinesis, stream, start) for start in begins} == begins
    assert [record.data for record in kinesis.fetch_records(stream, latest).records] == [b"d"]


def test_pages_follow_each_other_without_a_gap_and_say_how_far_behind_they_are(kinesis, server, stream):
    put(kinesis, stream, b"a", b"b", b"c")
    server.clock.advance(5)
    put(kinesis, stream, b"d")
    iterator = kinesis.fetch_iterator(stream, FIRST, IteratorStart(IteratorType.TRIM_HORIZON))
    found, behind = [], []
    for _ in range(3):
        page = kinesis.fetch_records(stream, iterator, 2)
        iterator = page.next_iterator
        found.append([record.data for record in page.records])
        behind.append(page.millis_behind_latest >= 5000)
    assert found == [[b"a", b"b"], [b"c", b"d"], []]
    assert behind == [True, False, False]
    assert page.millis_behind_latest == 0


def test_a_stream_says_what_it_is(kinesis, server, stream):
    summary = kinesis.fetch_summary(stream)
    assert stream in (summary.name, summary.arn)
    assert (summary.status, summary.open_shard_count, summary.retention_hours) == ("ACTIVE", 1, 24)
    assert (summary.record_bytes_max, summary.on_demand) == (1024 * 1024, False)
    assert abs(summary.created_ms - server.clock.now_ms()) < 60_000


def test_a_listing_shows_lineage_and_what_is_open(kinesis, server, stream):
    client = server.client("kinesis")
    named = {"StreamARN": stream} if stream.startswith("arn:") else {"StreamName": stream}
    client.split_shard(**named, ShardToSplit=FIRST, NewStartingHashKey=str(2**127))
    client.merge_shards(
        **named, ShardToMerge="shardId-000000000001", AdjacentShardToMerge="shardId-000000000002"
    )
    shards = kinesis.fetch_shards(stream).shards
    assert [(shard.shard_id[-1], shard.parents, shard.is_open) for shard in shards] == [
        ("0", (), False),
        ("1", (FIRST,), False),
        ("2", (FIRST,), False),
        ("3", ("shardId-000000000001", "shardId-000000000002"), True),
    ]
    assert [shard.hash_range for shard in shards] == [
        FULL_RANGE,
        HashRange(0, 2**127 - 1),
        HashRange(2**127, 2**128 - 1),
        FULL_RANGE,
    ]
    latest = kinesis.fetch_shards(stream, ShardFilter("AT_LATEST")).shards
    assert [shard.shard_id[-1] for shard in latest] == ["3"]
    after = kinesis.fetch_shards(
        stream, ShardFilter("AFTER_SHARD_ID", shard_id="shardId-000000000001")
    ).shards
    assert [shard.shard_id[-1] for shard in after] == ["2", "3"]


def test_entries_that_are_refused_keep_their_place_in_the_answer(kinesis, server, stream):
    server.faults.partial("PutRecords", code="ProvisionedThroughputExceededException", fraction=0.5, seed=1)
    answers = kinesis.put_records(stream, [PutEntry(bytes([number]), "k") for number in range(10)])
    assert [answer.error_code is None for answer in answers].count(False) == 5
    stored = read(kinesis, stream, IteratorStart(IteratorType.TRIM_HORIZON))
    assert stored == [
        bytes([place]) for place, answer in enumerate(answers) if answer.sequence_number is not None
    ]
    refused = next(answer for answer in answers if answer.error_code is not None)
    assert refused.error_code == "ProvisionedThroughputExceededException"
    assert refused.error_message
    assert refused.sequence_number is None


def test_what_does_not_exist_is_not_found(kinesis, server, stream):
    with pytest.raises(NotFound, match=r"GetShardIterator on stream .*, shard shardId-000000000009"):
        kinesis.fetch_iterator(stream, "shardId-000000000009", IteratorStart(IteratorType.LATEST))
    for ask in (kinesis.fetch_summary, kinesis.fetch_shards):
        with pytest.raises(NotFound, match="on stream nowhere"):
            ask("nowhere")


# --- listings whose tokens expire, answers that do not fit --------------------------------------------------


class Expiring(AwsKinesis):
    """Lets the page tokens expire after the first page of a listing, some times."""

    def __init__(self, options, server, times):
        super().__init__(options)
        self.server = server
        self.times = times
        self.pages = 0

    def _call(self, operation, resource, **arguments):
        self.pages += 1
        if "NextToken" in arguments and self.times > 0:
            self.times -= 1
            self.server.faults.expire_next_tokens()
        return super()._call(operation, resource, **arguments)


@pytest.fixture(scope="module")
def wide(server):
    server.create_stream("wide", shards=1500)
    return "wide"


def test_a_listing_whose_token_expired_begins_again_and_names_every_shard_once(kinesis, server, wide):
    expiring = Expiring(kinesis._options, server, times=2)
    shards = expiring.fetch_shards(wide).shards
    assert len({shard.shard_id for shard in shards}) == len(shards) == 1500
    assert expiring.pages == 6


def test_a_listing_whose_tokens_always_expire_ends_with_the_error(kinesis, server, wide):
    expiring = Expiring(kinesis._options, server, times=100)
    with pytest.raises(ServiceError, match="ListShards on stream wide: ExpiredNextTokenException"):
        expiring.fetch_shards(wide)
    assert expiring.pages == 8


def test_an_answer_that_does_not_match_what_was_sent_is_unknown(kinesis, monkeypatch):
    class Client:
        def put_records(self, **_):
            return {"Answers": WireAnswers([EntryAnswer("5", FIRST)])}

    monkeypatch.setattr(service_calls, "client_for", lambda *_: Client())
    with pytest.raises(UnknownOutcome, match="2 entries sent, 1 answered"):
        kinesis.put_records("s", [PutEntry(b"a", "k"), PutEntry(b"b", "k")])


def test_a_page_tells_the_time_of_the_service_not_of_this_machine():
    with LocalKinesis(limits=False, settle_s=0) as ahead:
        ahead.clock.advance(3 * 86_400)
        far = AwsKinesis(AwsOptions(**ahead.connection()))
        ahead.create_stream("ahead")
        before_ms = ahead.clock.now_ms()
        iterator = far.fetch_iterator("ahead", FIRST, IteratorStart(IteratorType.TRIM_HORIZON))
        told_ms = far.fetch_records("ahead", iterator).server_ms
        assert told_ms is not None
        assert before_ms - 1000 <= told_ms <= ahead.clock.now_ms()
