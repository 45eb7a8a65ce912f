"""The stream's name in the errors of a query of several streams."""

from __future__ import annotations

import pickle

import pytest

from penstock.errors import ClaimConflict, StreamChanged, Throttled
from penstock.spark.stream_names import naming_stream

ARN = "arn:aws:kinesis:eu-west-1:123456789012:stream/orders"


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (ClaimConflict("shard s-1: again"), f"stream {ARN}: shard s-1: again"),
        (ClaimConflict("stream orders: again"), "stream orders: again"),
        (Throttled("wait", operation="GetRecords"), f"stream {ARN}: wait"),
    ],
)
def test_an_error_names_its_stream_once(error, text):
    with pytest.raises(type(error)) as raised, naming_stream(ARN):
        raise error
    assert str(raised.value) == text
    assert str(pickle.loads(pickle.dumps(raised.value))) == text


def test_a_stream_that_was_made_again_has_a_way_out_beside_the_others():
    with (
        pytest.raises(StreamChanged, match=r"orders was deleted.*failOnDataLoss=false"),
        naming_stream("orders"),
    ):
        raise StreamChanged("stream orders was deleted and created again")


def test_errors_of_others_are_left_alone():
    with pytest.raises(ValueError, match=r"^x$"), naming_stream("orders"):
        raise ValueError("x")
