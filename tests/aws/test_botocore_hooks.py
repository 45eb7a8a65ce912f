"""The places where Penstock uses botocore beyond its public interface. Each test really uses one, so that a change shows."""

from __future__ import annotations

import datetime as dt

import botocore.loaders
import botocore.session
import pytest

from penstock.aws.aws_options import AwsOptions
from penstock.aws.connection import client_for
from penstock.aws.data_plane import WirePage, install_parser
from penstock.local import LocalKinesis

SHARD = "shardId-000000000000"
EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)


@pytest.fixture(scope="module")
def client():
    with LocalKinesis(limits=False, settle_s=0) as server:
        server.create_stream("s")
        options = AwsOptions(
            region="us-east-1",
            endpoint_url=server.endpoint_url,
            access_key_id="local",
            secret_access_key="local",
        )
        yield client_for("kinesis", options)


def put(client, data):
    client.put_record(StreamName="s", Data=data, PartitionKey="k")


def iterator(client, **start):
    return client.get_shard_iterator(StreamName="s", ShardId=SHARD, **start)["ShardIterator"]


def test_this_botocore_has_a_place_for_our_response_parser():
    assert install_parser(botocore.session.Session())


def test_pages_of_records_are_read_by_our_parser_and_other_answers_by_botocores(client):
    put(client, b"\x00\xff")
    answer = client.get_records(ShardIterator=iterator(client, ShardIteratorType="TRIM_HORIZON"))
    assert isinstance(answer["Page"], WirePage)
    assert "Records" not in answer
    assert client.describe_stream_summary(StreamName="s")["StreamDescriptionSummary"]["StreamName"] == "s"


def sent(client, call):
    """The body of a call as it leaves."""
    bodies = []

    def note(request, **_):
        bodies.append(request.body)

    client.meta.events.register("before-send.kinesis", note)
    try:
        call()
    finally:
        client.meta.events.unregister("before-send.kinesis", note)
    (body,) = bodies
    return body if isinstance(body, bytes) else body.encode()


@pytest.mark.parametrize("operation", ["GetShardIterator", "ListShards"])
def test_a_moment_is_sent_with_its_milliseconds(client, operation):
    moment = EPOCH + dt.timedelta(milliseconds=1_700_000_000_123)
    calls = {
        "GetShardIterator": lambda: iterator(client, ShardIteratorType="AT_TIMESTAMP", Timestamp=moment),
        "ListShards": lambda: client.list_shards(
            StreamName="s", ShardFilter={"Type": "FROM_TIMESTAMP", "Timestamp": moment}
        ),
    }
    assert b"1700000000.123" in sent(client, calls[operation])


def test_the_descriptions_of_services_are_read_once_for_all_clients(monkeypatch):
    def open_client(port):
        return client_for("kinesis", AwsOptions(region="us-east-1", endpoint_url=f"http://127.0.0.1:{port}"))

    open_client(1)
    read = []
    load_file = botocore.loaders.JSONFileLoader.load_file
    monkeypatch.setattr(
        botocore.loaders.JSONFileLoader,
        "load_file",
        lambda loader, path: read.append(path) or load_file(loader, path),
    )
    assert open_client(2) is not open_client(1)
    assert read == []
