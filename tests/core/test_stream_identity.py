"""The text of a stream's identity, as a lease row bears it."""

import pytest

from penstock.core.stream_identity import StreamIdentity, parse_identity

ORDERS = StreamIdentity("arn:aws:kinesis:eu-west-1:123456789012:stream/orders", 1_700_000_000_999)


def test_an_identity_is_read_back_as_it_was_written():
    assert str(ORDERS) == "arn:aws:kinesis:eu-west-1:123456789012:stream/orders@1700000000999"
    assert parse_identity(str(ORDERS)) == ORDERS


@pytest.mark.parametrize(
    "text", ["", "orders", "@1700000000999", "arn:orders@", "arn:orders@yesterday", "arn:orders@\u0663"]
)
def test_what_names_no_stream_is_refused(text):
    with pytest.raises(ValueError, match="names no stream: expected <ARN>@<creation in milliseconds>"):
        parse_identity(text)
