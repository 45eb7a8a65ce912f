"""Rows of DynamoDB are read as botocore's own parser reads them."""

from __future__ import annotations

import json

import botocore.session
import pytest
from botocore.parsers import ResponseParserError, create_parser

from penstock.aws.data_plane import DataPlaneParser

MODEL = botocore.session.get_session().get_service_model("dynamodb")
ROW = {
    "leaseKey": {"S": "shardId-000000000000"},
    "leaseCounter": {"N": "17"},
    "parentShardId": {"SS": ["a", "b"]},
    "numbers": {"NS": ["1", "2"]},
    "pendingCheckpointState": {"B": "AP8="},
    "blobs": {"BS": ["AP8=", ""]},
    "flag": {"BOOL": False},
    "nothing": {"NULL": True},
    "penstockClaim:w": {"M": {"note": {"B": "AQID"}, "inner": {"M": {}}, "end": {"S": "49"}}},
    "list": {"L": [{"B": "AQ=="}, {"L": []}, {"M": {"x": {"B": "Ag=="}}}]},
}
KEY = {"leaseKey": {"S": "k"}, "sort": {"B": "AP8="}}
ANSWERS = {
    "ScanOutput": [
        {"Items": [ROW, ROW], "Count": 2, "ScannedCount": 2, "LastEvaluatedKey": KEY},
        {"Items": [], "Count": 0, "LastEvaluatedKey": None},
    ],
    "QueryOutput": [{"Items": [ROW], "Count": 1}],
    "BatchGetItemOutput": [
        {
            "Responses": {"leases": [ROW], "others": []},
            "UnprocessedKeys": {"leases": {"Keys": [KEY], "ConsistentRead": True}},
        },
        {"Responses": {}, "UnprocessedKeys": {}},
    ],
    "GetItemOutput": [{"Item": ROW}, {}],
    "UpdateItemOutput": [{"Attributes": ROW}, {}],
}


def answer(body, status=200):
    headers = {"content-length": str(len(body)), "x-amzn-requestid": "r-1"}
    return {"status_code": status, "headers": headers, "body": body}


def ours():
    return DataPlaneParser(create_parser("json"))


def shape(name):
    return MODEL.operation_model(name.removesuffix("Output")).output_shape


@pytest.mark.parametrize("name", sorted(ANSWERS))
def test_rows_are_read_as_botocore_reads_them(name):
    for document in ANSWERS[name]:
        response = answer(json.dumps(document).encode())
        assert ours().parse(response, shape(name)) == create_parser("json").parse(response, shape(name))


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b'{"Items": [',
        b"[]",
        b'{"Items": 5}',
        b'{"Items": [5]}',
        b'{"Items": [{"a": 5}]}',
        b'{"Items": [{"a": {"B": "A"}}]}',
        b'{"Items": [{"a": {"B": 5}}]}',
        b'{"Items": [{"a": {"M": []}}]}',
        b'{"Responses": []}',
        b'{"UnprocessedKeys": {"t": {}}}',
        b'{"Items": [' + b'{"a": {"L": [' * 5_000,
    ],
)
def test_an_answer_of_another_form_is_no_row(body):
    with pytest.raises(ResponseParserError):
        ours().parse(answer(body), shape("ScanOutput"))


def test_a_refusal_is_read_by_botocore():
    refusal = {"__type": "com.amazonaws.dynamodb.v20120810#ConditionalCheckFailedException", "Item": ROW}
    response = answer(json.dumps(refusal).encode(), status=400)
    found = ours().parse(response, shape("UpdateItemOutput"))
    assert found["Error"]["Code"] == "ConditionalCheckFailedException"
    assert found == create_parser("json").parse(response, shape("UpdateItemOutput"))
