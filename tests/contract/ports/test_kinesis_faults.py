"""The Kinesis and lease-table adapters against a server that misbehaves: every error becomes one of Penstock's, and none is silent."""

from __future__ import annotations

import threading
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import ClassVar

import pytest

from penstock.aws.aws_options import AwsOptions
from penstock.aws.kinesis import AwsKinesis
from penstock.aws.lease_table import DynamoLeaseTable
from penstock.core.leases.lease import Lease
from penstock.core.leases.lease_writes import Applied, Create
from penstock.core.position import at_record
from penstock.errors import (
    AccessDenied,
    ExpiredIterator,
    NotFound,
    Rejected,
    ServiceError,
    Throttled,
    Unavailable,
    UnknownOutcome,
)
from penstock.ports.kinesis import IteratorStart, IteratorType, PutEntry, ShardFilter
from penstock_local import LocalKinesis


@pytest.fixture(scope="module")
def server():
    with LocalKinesis(limits=False, settle_s=0) as running:
        running.create_stream("s", shards=2)
        yield running


@pytest.fixture
def options(server):
    yield AwsOptions(
        **server.connection(),
        retry_base_s=0.01,
        retry_cap_s=0.02,
        attempts_max=4,
        deadline_s=60,
        read_timeout_s=60,
    )
    server.faults.clear()


@pytest.fixture
def kinesis(options):
    return AwsKinesis(options)


def horizon(kinesis, shard="shardId-000000000000"):
    return kinesis.fetch_iterator("s", shard, IteratorStart(IteratorType.TRIM_HORIZON))


def test_what_is_put_is_read_back_with_its_arrival_to_the_millisecond(kinesis, server):
    before_ms = server.clock.now_ms()
    answers = kinesis.put_records("s", [PutEntry(b"one", "k"), PutEntry(b"two", "k", "0")])
    assert [answer.error_code for answer in answers] == [None, None]
    page = kinesis.fetch_records("s", horizon(kinesis))
    record = next(record for record in page.records if record.data == b"two")
    assert (record.sequence_number, record.partition_key) == (answers[1].sequence_number, "k")
    assert before_ms <= round(record.arrival_s * 1000) <= server.clock.now_ms()
    assert (page.millis_behind_latest, page.child_shards) == (0, ())


def test_the_end_of_a_shard_names_its_children(kinesis, server):
    server.create_stream("split", shards=1)
    server.client("kinesis").split_shard(
        StreamName="split", ShardToSplit="shardId-000000000000", NewStartingHashKey=str(2**127)
    )
    iterator = kinesis.fetch_iterator(
        "split", "shardId-000000000000", IteratorStart(IteratorType.TRIM_HORIZON)
    )
    page = kinesis.fetch_records("split", iterator)
    assert page.next_iterator is None
    assert [(child.shard_id, child.parents) for child in page.child_shards] == [
        ("shardId-000000000001", ("shardId-000000000000",)),
        ("shardId-000000000002", ("shardId-000000000000",)),
    ]


def test_a_listing_of_more_than_a_page_is_whole(kinesis, server):
    server.create_stream("wide", shards=2300)
    before_ms = server.clock.now_ms()
    listing = kinesis.fetch_shards("wide")
    assert len(listing.shards) == 2300
    assert before_ms - 1000 < listing.server_ms <= server.clock.now_ms()  # the header tells whole seconds
    assert len(kinesis.fetch_shards("wide", ShardFilter("AT_LATEST")).shards) == 2300


def test_a_starting_moment_keeps_its_milliseconds(kinesis, server):
    server.create_stream("moments", shards=1)
    kinesis.put_records("moments", [PutEntry(b"before", "k")])
    server.clock.advance(0.010)
    moment_ms = server.clock.now_ms()
    server.clock.advance(0.010)
    kinesis.put_records("moments", [PutEntry(b"after", "k")])
    start = IteratorStart(IteratorType.AT_TIMESTAMP, timestamp_ms=moment_ms)
    page = kinesis.fetch_records("moments", kinesis.fetch_iterator("moments", "shardId-000000000000", start))
    assert [record.data for record in page.records] == [b"after"]


@pytest.mark.parametrize("kind", ["truncate", "garbage", "drop_after", "drop_before"])
def test_a_read_whose_answer_is_damaged_is_tried_again(kinesis, server, kind):
    iterator = horizon(kinesis)
    getattr(server.faults, kind)("GetRecords", count=2)
    page = kinesis.fetch_records("s", iterator)
    assert page.next_iterator is not None


@pytest.mark.parametrize("kind", ["truncate", "garbage", "drop_after"])
def test_a_put_whose_answer_is_damaged_has_an_unknown_outcome(kinesis, server, kind):
    getattr(server.faults, kind)("PutRecords")
    with pytest.raises(UnknownOutcome, match=r"PutRecords on stream s"):
        kinesis.put_records("s", [PutEntry(b"x", "k")])


class _Answers(BaseHTTPRequestHandler):
    """Gives the answers of a list, the last one for ever."""

    answers: ClassVar[list[tuple[int, bytes]]] = []
    count = 0

    def do_POST(self):
        self.rfile.read(int(self.headers["content-length"]))
        status, body = self.answers[min(type(self).count, len(self.answers) - 1)]
        type(self).count += 1
        self.send_response(status)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        """Be quiet."""


@pytest.fixture
def answering(options):
    """Make an adapter, and one for leases, over a server that gives these answers; also gives how often it was asked."""
    servers = []

    def make(*answers):
        handler = type("Handler", (_Answers,), {"answers": list(answers)})
        server = HTTPServer(("127.0.0.1", 0), handler)
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        servers.append((server, thread))
        there = replace(options, endpoint_url=f"http://127.0.0.1:{server.server_port}")
        return AwsKinesis(there), DynamoLeaseTable("t", there), handler

    yield make
    for server, thread in servers:
        server.shutdown()
        thread.join()
        server.server_close()


NO_TEXT = [
    pytest.param((200, b'{"Records": [{"SequenceNumber": "\xff\xfe"}]}'), id="a page that is not UTF-8"),
    pytest.param((200, b'{"ShardIterator": "\xff", "Shards": "\xff"}'), id="a document that is not UTF-8"),
    pytest.param((500, b'{"__type": "\xff"}'), id="a failure that is not UTF-8"),
    pytest.param((200, b"[]"), id="a list instead of a document"),
    pytest.param((200, b"[" * 100_000), id="brackets without end"),
    pytest.param((200, b'{"Shards": 5, "Records": 5, "ShardIterator": {}}'), id="members of other types"),
]


@pytest.mark.parametrize("broken", NO_TEXT)
def test_an_answer_that_cannot_be_read_is_tried_again_by_a_read(answering, broken):
    shards = b'{"Shards": []}'
    kinesis, _, handler = answering(broken, broken, (200, shards))
    assert kinesis.fetch_shards("s").shards == ()
    assert handler.count == 3
    page = b'{"Records": [], "NextShardIterator": "n", "MillisBehindLatest": 0}'
    kinesis, _, handler = answering(broken, (200, page))
    assert kinesis.fetch_records("s", "i").next_iterator == "n"


@pytest.mark.parametrize("broken", NO_TEXT)
def test_an_answer_that_cannot_be_read_leaves_the_outcome_of_a_put_unknown(answering, broken):
    kinesis, _, handler = answering(broken)
    with pytest.raises(UnknownOutcome, match="PutRecords on stream s"):
        kinesis.put_records("s", [PutEntry(b"x", "k")])
    assert handler.count == 1


@pytest.mark.parametrize("body", [b'{"Item": {"leaseKey": {"S": "\xff"}}}', b""])
def test_an_answer_of_the_lease_table_that_cannot_be_read_is_an_error_of_ours(answering, body):
    _, table, handler = answering((200, body))
    with pytest.raises(Unavailable):
        table.fetch("k")
    assert handler.count == 4


def test_a_put_is_sent_once(kinesis, server):
    server.reset_calls()
    server.faults.error("PutRecords", count=1)
    with pytest.raises(UnknownOutcome):
        kinesis.put_records("s", [PutEntry(b"x", "k")])
    assert server.calls().count("PutRecords") == 1


def test_throttled_reads_come_out_at_once_and_throttled_listings_are_tried_again(kinesis, server):
    iterator = horizon(kinesis)
    server.faults.throttle("GetRecords")
    with pytest.raises(Throttled):
        kinesis.fetch_records("s", iterator)
    server.faults.throttle("ListShards", count=2)
    assert len(kinesis.fetch_shards("s").shards) == 2


def test_retries_end_with_the_error(kinesis, server):
    server.faults.error("ListShards", count=None)
    server.reset_calls()
    with pytest.raises(Unavailable, match="ListShards on stream s: InternalFailure"):
        kinesis.fetch_shards("s")
    assert server.calls().count("ListShards") == 4


@pytest.mark.parametrize(
    ("act", "error"),
    [
        (lambda kinesis: kinesis.fetch_summary("nothing"), NotFound),
        (lambda kinesis: kinesis.fetch_records("s", "no iterator"), ServiceError),
        (
            lambda kinesis: kinesis.fetch_iterator(
                "s",
                "shardId-000000000000",
                IteratorStart(IteratorType.AT_SEQUENCE_NUMBER, sequence_number="5"),
            ),
            Rejected,
        ),
    ],
)
def test_a_wrong_request_ends_at_once(kinesis, act, error):
    with pytest.raises(error):
        act(kinesis)


def test_an_expired_iterator_is_told_apart(kinesis, server):
    iterator = horizon(kinesis)
    server.faults.expire_iterators()
    with pytest.raises(ExpiredIterator):
        kinesis.fetch_records("s", iterator)


def test_no_connection_is_unavailable_and_bounded():
    options = AwsOptions(
        region="us-east-1",
        endpoint_url="http://127.0.0.1:9",
        access_key_id="a",
        secret_access_key="b",
        retry_base_s=0.01,
        attempts_max=2,
        deadline_s=5,
    )
    with pytest.raises(Unavailable, match="no connection"):
        AwsKinesis(options).fetch_summary("s")


def test_missing_credentials_say_so(monkeypatch, tmp_path):
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "none"))
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "none"))
    with pytest.raises(AccessDenied, match="Unable to locate credentials; set AWS_ACCESS_KEY_ID"):
        AwsKinesis(
            AwsOptions(region="us-east-1", endpoint_url="http://127.0.0.1:9", deadline_s=7)
        ).fetch_summary("s")


def test_secrets_are_not_shown(options):
    shown = repr(AwsKinesis(options)) + repr(DynamoLeaseTable("t", options))
    assert "local" not in shown.replace("127.0.0.1", "")


@pytest.mark.parametrize("kind", ["truncate", "garbage"])
def test_a_lease_is_not_missing_because_an_answer_was_damaged(options, server, kind):
    table = DynamoLeaseTable(f"damaged-{kind}", options)
    table.ensure_exists()
    assert isinstance(table.write(Create(Lease("shard", checkpoint=at_record("5")))), Applied)
    getattr(server.faults, kind)("dynamodb.GetItem", count=2)
    assert table.fetch("shard") == Lease("shard", checkpoint=at_record("5"))
    getattr(server.faults, kind)("dynamodb.Scan", count=2)
    assert [lease.key for lease in table.scan().leases] == ["shard"]
