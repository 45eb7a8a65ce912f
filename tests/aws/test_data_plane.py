"""The bodies of GetRecords and PutRecords, read and written without botocore: the same bytes mean the same as with it."""

from __future__ import annotations

import base64
import json

import botocore.session
import pytest
from botocore.exceptions import ClientError
from botocore.parsers import ResponseParserError, create_parser

from penstock.aws import data_plane
from penstock.aws.aws_options import AwsOptions
from penstock.aws.connection import client_for
from penstock.aws.data_plane import (
    DataPlaneParser,
    decode_answers,
    decode_page,
    encode_entries,
)
from penstock.aws.kinesis import AwsKinesis
from penstock.errors import RecordError, Rejected
from penstock.ports.kinesis import IteratorStart, IteratorType, PutEntry
from penstock_local import LocalKinesis

RECORDS = [
    {
        "SequenceNumber": "49590338271490256608559692538361571095921575989136588898",
        "ApproximateArrivalTimestamp": 1700000000.123,
        "Data": base64.b64encode(b"\x00\xffdata").decode(),
        "PartitionKey": 'Zürich "\\ \u2028',
        "EncryptionType": "KMS",
    },
    {"SequenceNumber": "5", "ApproximateArrivalTimestamp": 1.7e9, "Data": ""},
]
LAST = {
    "Records": [],
    "MillisBehindLatest": 0,
    "ChildShards": [
        {
            "ShardId": "shardId-000000000001",
            "ParentShards": ["shardId-000000000000"],
            "HashKeyRange": {
                "StartingHashKey": "0",
                "EndingHashKey": "340282366920938463463374607431768211455",
            },
        }
    ],
}
DOCUMENTS = [
    {"Records": RECORDS, "NextShardIterator": "next", "MillisBehindLatest": 1234},
    LAST,
    {"Records": [], "NextShardIterator": "next", "MillisBehindLatest": None},
]


@pytest.fixture(scope="module")
def server():
    with LocalKinesis(limits=False) as running:
        running.create_stream("s")
        yield running


@pytest.fixture
def options(server):
    return AwsOptions(**server.connection())


def read_by_botocore(operation, body):
    model = botocore.session.get_session().get_service_model("kinesis")
    shape = model.operation_model(operation).output_shape
    return create_parser("json").parse({"status_code": 200, "headers": {}, "body": body}, shape)


@pytest.mark.parametrize("document", DOCUMENTS)
def test_a_page_reads_the_same_as_by_botocore(document):
    body = json.dumps(document).encode()
    ours, stock = decode_page(body), read_by_botocore("GetRecords", body)
    assert [(r.sequence_number, r.data, r.partition_key) for r in ours.records] == [
        (r["SequenceNumber"], r["Data"], r.get("PartitionKey")) for r in stock["Records"]
    ]
    assert [round(r.arrival_s * 1000) for r in ours.records] == [
        round(r["ApproximateArrivalTimestamp"].timestamp() * 1000)
        if "ApproximateArrivalTimestamp" in r
        else 0
        for r in stock["Records"]
    ]
    assert (ours.next_iterator, ours.millis_behind_latest) == (
        stock.get("NextShardIterator"),
        stock.get("MillisBehindLatest"),
    )
    assert [
        (child.shard_id, child.parents, child.hash_range.start, child.hash_range.end)
        for child in ours.children or ()
    ] == [
        (child["ShardId"], child["ParentShards"], *child["HashKeyRange"].values())
        for child in stock.get("ChildShards", ())
    ]


def test_a_page_keeps_every_byte_and_the_millisecond():
    first, second = decode_page(json.dumps(DOCUMENTS[0]).encode()).records
    assert (first.data, first.partition_key, round(first.arrival_s * 1000)) == (
        b"\x00\xffdata",
        'Zürich "\\ \u2028',
        1700000000123,
    )
    assert (second.data, second.partition_key) == (b"", None)


@pytest.mark.parametrize(
    "body", [b"", b"{}", b"null", b'{"Records": [{"SequenceNumber": "5"}]}', b'{"Records": [', b"<html>"]
)
def test_a_page_that_is_not_whole_is_an_error_and_never_an_empty_page(body):
    model = botocore.session.get_session().get_service_model("kinesis")
    shape = model.operation_model("GetRecords").output_shape
    response = {"status_code": 200, "headers": {}, "body": body, "context": {}}
    with pytest.raises(ResponseParserError):
        DataPlaneParser(create_parser("json")).parse(response, shape)


ANSWERS = {
    "FailedRecordCount": 2,
    "EncryptionType": "KMS",
    "Records": [
        {"SequenceNumber": "4959", "ShardId": "shardId-000000000000"},
        {"ErrorCode": "InternalFailure", "ErrorMessage": "Zürich"},
        {"ErrorCode": "ProvisionedThroughputExceededException"},
        {"SequenceNumber": None, "ShardId": None, "ErrorCode": None, "ErrorMessage": None},
        {},
    ],
}


def test_answers_to_entries_read_the_same_as_by_botocore():
    body = json.dumps(ANSWERS).encode()
    ours = decode_answers(body).records
    names = ("SequenceNumber", "ShardId", "ErrorCode", "ErrorMessage")
    found = [(a.sequence_number, a.shard_id, a.error_code, a.error_message) for a in ours]
    stock = read_by_botocore("PutRecords", body)["Records"]
    assert found == [tuple(each.get(name) for name in names) for each in stock]
    assert found == [
        ("4959", "shardId-000000000000", None, None),
        (None, None, "InternalFailure", "Zürich"),
        (None, None, "ProvisionedThroughputExceededException", None),
        (None, None, None, None),
        (None, None, None, None),
    ]


ENTRIES = [
    PutEntry(b"\x00\xff", 'Zürich "\\ \u2028'),
    PutEntry(b"", "k", "340282366920938463463374607431768211455"),
    PutEntry(bytes(range(256)), "k" * 256, "0"),
]


def test_entries_are_written_as_botocore_writes_them():
    assert json.loads(encode_entries(ENTRIES).body) == [
        {
            "Data": base64.b64encode(entry.data).decode(),
            "PartitionKey": entry.partition_key,
            **({} if entry.explicit_hash_key is None else {"ExplicitHashKey": entry.explicit_hash_key}),
        }
        for entry in ENTRIES
    ]


def test_encoded_entries_arrive_as_they_were_given(options):
    kinesis = AwsKinesis(options)
    answers = kinesis.put_records("s", ENTRIES)
    page = kinesis.fetch_records(
        "s", kinesis.fetch_iterator("s", "shardId-000000000000", IteratorStart(IteratorType.TRIM_HORIZON))
    )
    assert [(r.sequence_number, r.data, r.partition_key) for r in page.records] == [
        (answer.sequence_number, entry.data, entry.partition_key)
        for answer, entry in zip(answers, ENTRIES, strict=True)
    ]


def test_a_client_still_takes_plain_records(options):
    answer = client_for("kinesis", options).put_records(
        StreamName="s", Records=[{"Data": b"plain", "PartitionKey": "k"}]
    )
    assert [each.error_code for each in answer["Answers"].records] == [None]


def test_a_put_that_botocore_would_send_without_our_body_is_refused_by_the_service(options):
    with pytest.raises(ClientError, match=r"(?i)explicit ?hash ?key"):
        client_for("kinesis", options).put_records(StreamName="s", Records=[data_plane._PLACEHOLDER])


def test_data_that_is_text_is_refused_before_anything_is_sent(options, server):
    server.reset_calls()
    with pytest.raises(RecordError, match=r"entry 1 \(partition key 'b'\): data is str, not bytes"):
        AwsKinesis(options).put_records("s", [PutEntry(b"x", "a"), PutEntry("text", "b")])
    assert server.calls().count("PutRecords") == 0


def test_an_entry_that_the_service_finds_wrong_is_rejected(options):
    with pytest.raises(Rejected, match="PutRecords on stream s"):
        AwsKinesis(options).put_records("s", [PutEntry(b"x", "")])


@pytest.mark.parametrize("status", [200, 203, 300])
@pytest.mark.parametrize(("operation", "name"), [("GetRecords", "Page"), ("PutRecords", "Answers")])
def test_every_answer_that_is_no_error_for_botocore_is_read(status, operation, name):
    shape = botocore.session.Session().get_service_model("kinesis").operation_model(operation).output_shape
    parser = DataPlaneParser(create_parser("json"))
    response = {"status_code": status, "headers": {}, "body": b'{"Records":[]}', "context": {}}
    assert list(parser.parse(response, shape)[name].records) == []
    with pytest.raises(ResponseParserError):
        parser.parse({**response, "body": b""}, shape)


@pytest.mark.parametrize("operation", ["GetRecords", "PutRecords", "ListShards"])
def test_the_page_of_a_network_is_shown_as_what_it_is_and_nothing_of_records(operation):
    shape = botocore.session.Session().get_service_model("kinesis").operation_model(operation).output_shape
    parser = DataPlaneParser(create_parser("json"))

    def error_of(body, **headers):
        response = {"status_code": 200, "headers": headers, "body": body, "context": {}}
        with pytest.raises(ResponseParserError) as caught:
            parser.parse(response, shape)
        return str(caught.value)

    page = error_of(b"\n<html>Sign in</html>", **{"Content-Type": "text/html"})
    assert "text/html" in page
    assert "<html>Sign in" in page
    assert "check the endpoint" in page
    packed = error_of(b"\x1f\x8bsecret", **{"Content-Encoding": "gzip", "Content-Type": "application/json"})
    assert "gzip" in packed
    assert "secret" not in packed
