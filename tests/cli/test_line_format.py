"""The output format of `tail -f`."""

from datetime import UTC, datetime

import pytest

from penstock.cli.line_format import parse_format
from penstock.consumer.records import Record
from penstock.errors import OptionError

RECORD = Record(
    b"\xff1", "k\u00e9", "77", 0, None, datetime(2026, 1, 2, tzinfo=UTC), "shardId-000000000003", "orders"
)


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("%s", b"\xff1"),
        (r"%k\t%s\n", "k\u00e9\t".encode() + b"\xff1\n"),
        ("%t/%p/%o %S %K", b"orders/shardId-000000000003/77 2 3"),
        ("%T", b"1767312000000"),
        (r"100%% \\ \x00|\r", b"100% \\ \x00|\r"),
        ("", b""),
    ],
)
def test_fields_and_escapes_are_filled_in(text, shown):
    assert b"".join(part for part, _ in parse_format(text).fields(RECORD)) == shown


@pytest.mark.parametrize("text", ["%z", "%", "\\", r"\q", r"\x1"])
def test_what_is_no_field_is_refused(text):
    with pytest.raises(OptionError, match="is none of %s"):
        parse_format(text)


def test_what_comes_from_the_record_is_told_from_the_text():
    assert parse_format("%k\n").fields(RECORD) == [("k\u00e9".encode(), True), (b"\n", False)]
