"""The output format of `tail -f`."""

from argparse import Namespace
from datetime import UTC, datetime

import pytest

from penstock.cli.line_format import QUEUE_FIELDS, parse_format
from penstock.cli.record_filter import pattern_of
from penstock.core.reading.record import Record
from penstock.errors import OptionError
from penstock.queues import QueueRecord

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
        ("a\udcffb %s", b"a\xffb \xff1"),  # an argument that is not UTF-8 gives the bytes that were typed
        ("", b""),
    ],
)
def test_fields_and_escapes_are_filled_in(text, shown):
    assert b"".join(part for part, _ in parse_format(text).fields(RECORD)) == shown


def test_a_record_of_a_queue_has_its_id_its_queue_and_no_shard():
    at = datetime(2026, 1, 2, tzinfo=UTC)
    record = QueueRecord(b"d", None, "id7", 0, None, at, at, 1, "invoices")
    shown = parse_format("%t/%o %k%K %s %T", QUEUE_FIELDS).fields(record)
    assert b"".join(part for part, _ in shown) == b"invoices/id7 0 d 1767312000000"
    with pytest.raises(OptionError, match="'%p' is none of %s %S %k %K %T %o %t"):
        parse_format("%p", QUEUE_FIELDS)


@pytest.mark.parametrize("text", ["%z", "%", "\\", r"\q", r"\x1"])
def test_what_is_no_field_is_refused(text):
    with pytest.raises(OptionError, match="is none of %s"):
        parse_format(text)


def test_what_comes_from_the_record_is_told_from_the_text():
    assert parse_format("%k\n").fields(RECORD) == [("k\u00e9".encode(), True), (b"\n", False)]


def test_a_pattern_that_is_not_utf_8_finds_the_same_bytes():
    pattern = pattern_of(Namespace(grep="\udcff[0-9]"))
    assert pattern.search(RECORD.data)
    assert not pattern.search("\u00ff1".encode())
    with pytest.raises(OptionError, match="--grep"):
        pattern_of(Namespace(grep="("))
