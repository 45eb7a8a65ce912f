"""The places where Penstock uses botocore beyond its public interface. Each test really uses one, so that a change shows."""

from __future__ import annotations

import datetime as dt
import io
import json

import botocore.loaders
import botocore.session
import pytest
from botocore.awsrequest import AWSResponse
from botocore.exceptions import ClientError, UnknownServiceError
from botocore.parsers import ResponseParserError

from penstock.aws.aws_options import AwsOptions
from penstock.aws.connection import client_for
from penstock.aws.data_plane import WirePage
from penstock.aws.kinesis import AwsKinesis
from penstock.aws.service_descriptions import DescriptionLoader
from penstock.errors import UnknownOutcome
from penstock.ports.kinesis import PutEntry
from penstock_local import LocalKinesis

SHARD = "shardId-000000000000"
EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)


@pytest.fixture(scope="module")
def client():
    with LocalKinesis(limits=False, settle_s=0) as server:
        server.create_stream("s")
        options = AwsOptions(**server.connection())
        yield client_for("kinesis", options)


def put(client, data):
    client.put_record(StreamName="s", Data=data, PartitionKey="k")


def iterator(client, **start):
    return client.get_shard_iterator(StreamName="s", ShardId=SHARD, **start)["ShardIterator"]


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


def test_descriptions_are_those_that_botocore_reads(tmp_path):
    theirs, ours = botocore.loaders.Loader(), DescriptionLoader(None)
    for kind in ("service-2", "endpoint-rule-set-1"):
        assert list(ours.list_available_services(kind)) == theirs.list_available_services(kind)
        for service in ("kinesis", "dynamodb"):
            assert ours.load_service_model(service, kind) == theirs.load_service_model(service, kind)
    assert ours.load_data("endpoints") == theirs.load_data("endpoints")
    with pytest.raises(UnknownServiceError, match="kinesis"):
        ours.load_service_model("nothing", "service-2")
    folder = tmp_path / "nothing" / "2026-11-23"
    folder.mkdir(parents=True)
    (folder / "service-2.json").write_text('{"metadata": {}}')
    assert DescriptionLoader(str(tmp_path)).load_service_model("nothing", "service-2") == {"metadata": {}}


def test_get_records_is_built_once_and_repeated_with_another_body(client):
    built, sent_bodies, seen, found = [], [], [], []

    def note_built(params, **_):
        built.append(params)

    def note_sent(request, **_):
        assert "Authorization" in request.headers
        sent_bodies.append(request.body)

    options = AwsOptions(
        region="us-east-1",
        endpoint_url=client.meta.endpoint_url,
        access_key_id="other",
        secret_access_key="k",
    )
    fresh = client_for("kinesis", options)
    fresh.meta.events.register("before-parameter-build.kinesis.GetRecords", note_built)
    fresh.meta.events.register("before-send.kinesis.GetRecords", note_sent)
    fresh.meta.events.register(
        "after-call.kinesis.GetRecords", lambda parsed, **_: seen.append(parsed["Page"])
    )
    put(fresh, b"1")
    at = iterator(fresh, ShardIteratorType="TRIM_HORIZON")
    for limit in (1, 2, 3):
        answer = fresh.get_records(ShardIterator=at, Limit=limit)
        found += [record.data for record in answer["Page"].records]
        assert answer["ResponseMetadata"]["HTTPHeaders"]["date"]
        at = answer["Page"].next_iterator
    assert found.count(b"1") == 1
    assert [each["Limit"] for each in built] == [1]
    assert [json.loads(body)["Limit"] for body in sent_bodies] == [1, 2, 3]
    assert len(seen) == 3


def test_put_records_is_built_once_and_repeated_with_other_entries(client):
    built, sent_bodies = [], []
    options = AwsOptions(
        region="us-east-1",
        endpoint_url=client.meta.endpoint_url,
        access_key_id="writer",
        secret_access_key="k",
    )
    fresh = client_for("kinesis", options)
    fresh.meta.events.register(
        "before-parameter-build.kinesis.PutRecords", lambda params, **_: built.append(params)
    )
    fresh.meta.events.register(
        "before-send.kinesis.PutRecords", lambda request, **_: sent_bodies.append(json.loads(request.body))
    )
    kinesis = AwsKinesis(options)
    for data in (b"1", b"2", b"3"):
        (answer,) = kinesis.put_records("s", [PutEntry(data, "k")])
        assert (answer.shard_id, answer.error_code) == (SHARD, None)
    assert len(built) == 1
    assert [(body["StreamName"], body["Records"][0]["Data"]) for body in sent_bodies] == [
        ("s", "MQ=="),
        ("s", "Mg=="),
        ("s", "Mw=="),
    ]
    plain = fresh.put_records(StreamName="s", Records=[{"Data": b"4", "PartitionKey": "k"}])
    assert (len(built), len(plain["Answers"].records)) == (2, 1)


@pytest.mark.parametrize(
    "body",
    [b"", b"{}", b'{"Records":null}', b'{"Records":[{"ShardId":"x"', b'{"Records":[]}', b"<html>"],
)
def test_a_repeated_put_whose_answer_is_not_whole_has_no_known_outcome(client, body):
    options = AwsOptions(
        region="us-east-1",
        endpoint_url=client.meta.endpoint_url,
        access_key_id="writer",
        secret_access_key="k",
    )
    kinesis, own = AwsKinesis(options), client_for("kinesis", options)
    kinesis.put_records("s", [PutEntry(b"1", "k")])
    answer = AWSResponse("http://nowhere", 200, {"content-length": str(len(body))}, io.BytesIO(body))
    answer._content = body
    event = "before-send.kinesis.PutRecords"
    own.meta.events.register(event, lambda **_: answer, unique_id="cut")
    try:
        with pytest.raises(UnknownOutcome, match="PutRecords"):
            kinesis.put_records("s", [PutEntry(b"2", "k")])
    finally:
        own.meta.events.unregister(event, unique_id="cut")


def test_a_refused_repetition_is_the_clients_error(client):
    at = iterator(client, ShardIteratorType="LATEST")
    client.get_records(ShardIterator=at)
    with pytest.raises(ClientError) as caught:
        client.get_records(ShardIterator="nonsense")
    assert caught.value.response["Error"]["Code"] == "InvalidArgumentException"
    assert caught.value.response["Error"]["Message"]
    assert caught.value.response["ResponseMetadata"]["HTTPStatusCode"] == 400


@pytest.mark.parametrize("body", [b"<h1>Zur\xfcck</h1>", b"[]", b"null", b'"x"', b'{"__type":5}'])
def test_an_unreadable_refusal_of_a_repetition_is_an_answer_that_cannot_be_parsed(client, body):
    at = iterator(client, ShardIteratorType="LATEST")
    client.get_records(ShardIterator=at)
    answer = AWSResponse("http://nowhere", 502, {"content-length": str(len(body))}, io.BytesIO(body))
    answer._content = body
    event = "before-send.kinesis.GetRecords"
    client.meta.events.register(event, lambda **_: answer, unique_id="gateway")
    try:
        with pytest.raises((ResponseParserError, ClientError)) as caught:
            client.get_records(ShardIterator=at)
    finally:
        client.meta.events.unregister(event, unique_id="gateway")
    if isinstance(caught.value, ClientError):
        assert caught.value.response["ResponseMetadata"]["HTTPStatusCode"] == 502


def test_a_call_that_names_the_stream_by_its_arn_is_built_by_botocore(client):
    arn = client.describe_stream_summary(StreamName="s")["StreamDescriptionSummary"]["StreamARN"]
    at = iterator(client, ShardIteratorType="LATEST")
    client.get_records(ShardIterator=at)
    built = []
    client.meta.events.register(
        "before-parameter-build.kinesis.GetRecords", lambda **_: built.append(1), unique_id="arn"
    )
    client.get_records(ShardIterator=at, StreamARN=arn)
    client.meta.events.unregister("before-parameter-build.kinesis.GetRecords", unique_id="arn")
    assert built == [1]


def test_who_answers_before_a_request_is_sent_is_asked_for_repetitions_too(client):
    at = iterator(client, ShardIteratorType="LATEST")
    client.get_records(ShardIterator=at)
    body = b'{"Records":[],"MillisBehindLatest":77}'
    answer = AWSResponse("http://nowhere", 200, {"content-length": str(len(body))}, io.BytesIO(body))
    answer._content = body

    def reply(**_):
        return answer

    client.meta.events.register("before-send.kinesis.GetRecords", reply)
    try:
        assert client.get_records(ShardIterator=at)["Page"].millis_behind_latest == 77
    finally:
        client.meta.events.unregister("before-send.kinesis.GetRecords", reply)
