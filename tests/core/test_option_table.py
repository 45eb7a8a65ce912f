"""Options as data: forms, aliases, refusals."""

from __future__ import annotations

import pytest

from penstock.core.option_table import FLAG, SIZE, TEXT, Option, duration, one_of, parse_options, whole_number
from penstock.errors import OptionError

BOTH, READ = frozenset({"source", "sink"}), frozenset({"source"})
TABLE = (
    Option("streamName", TEXT, None, "", BOTH, ("stream",)),
    Option("maxRecords", whole_number(1, 10), 5, "", READ),
    Option("fetchInterval", duration(0, 60), 0.2, "", READ, ("fetchIntervalMs=ms",)),
    Option("failOnDataLoss", FLAG, True, "", READ),
    Option("bufferBytes", SIZE, 1, "", BOTH),
    Option("ordering", one_of("key", "none"), "key", "", BOTH),
    Option("secretKey", duration(0, 1), None, "", BOTH, secret=True),
)


def parse(scope="source", **given):
    return parse_options(
        given,
        TABLE,
        scope=scope,
        without_effect={"old": "it is not needed"},
        refused={"path": "use streamName", "kafka.": "this is not Kafka", "kafka.group.id": "use the name"},
    )


def test_defaults_fill_what_is_not_given():
    values, notes = parse()
    assert values == {
        "streamName": None,
        "maxRecords": 5,
        "fetchInterval": 0.2,
        "failOnDataLoss": True,
        "bufferBytes": 1,
        "ordering": "key",
        "secretKey": None,
    }
    assert notes == ()


@pytest.mark.parametrize(
    ("key", "text", "name", "value"),
    [
        ("STREAMNAME", " s ", "streamName", "s"),
        ("stream", "s", "streamName", "s"),
        ("maxrecords", "10", "maxRecords", 10),
        ("fetchInterval", "2", "fetchInterval", 2.0),
        ("fetchInterval", "200ms", "fetchInterval", 0.2),
        ("fetchInterval", "1m", "fetchInterval", 60.0),
        ("fetchInterval", "10 seconds", "fetchInterval", 10.0),  # as Spark's trigger takes it
        ("fetchInterval", "1 Minute", "fetchInterval", 60.0),
        ("fetchInterval", "200 milliseconds", "fetchInterval", 0.2),
        ("fetchIntervalMs", "500", "fetchInterval", 0.5),
        ("fetchIntervalMs", "2s", "fetchInterval", 2.0),
        ("failOnDataLoss", "False", "failOnDataLoss", False),
        ("bufferBytes", "2k", "bufferBytes", 2048),
        ("bufferBytes", "1mb", "bufferBytes", 2**20),
        ("bufferBytes", "64 MiB", "bufferBytes", 2**26),
        ("bufferBytes", "1t", "bufferBytes", 2**40),
        ("ordering", "NONE", "ordering", "none"),
    ],
)
def test_an_option_is_read(key, text, name, value):
    assert parse(**{key: text})[0][name] == value


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (
            {"strreamName": "s"},
            r"unknown option strreamName\. Did you mean streamName\? Known options of the source: ",
        ),
        ({"streamName ": "s"}, r"unknown option 'streamName '\. Did you mean streamName\?"),
        ({"zzz": "s"}, r"unknown option zzz\. Known options"),
        ({"maxRecords": "11"}, "option maxRecords='11': expected a whole number from 1 to 10"),
        ({"maxRecords": "many"}, "expected a whole number"),
        ({"fetchInterval": "61"}, r"expected a duration from 0s to 60s \(a bare number is seconds\)"),
        ({"fetchInterval": "soon"}, "expected a duration such as"),
        ({"fetchInterval": "1 month"}, "expected a duration such as"),
        ({"failOnDataLoss": "yes"}, "expected true or false"),
        ({"bufferBytes": "0"}, "expected a size"),
        ({"bufferBytes": "some"}, "expected a size"),
        ({"ordering": "most"}, "expected one of key, none"),
        ({"streamName": " "}, "it is empty"),
        ({"PATH": "x"}, "option path: use streamName"),
        ({"kafka.group.ID": "x"}, "option kafka.group.id: use the name"),
        ({"kafka.group": "x"}, "option kafka.group: this is not Kafka"),
        ({"streamName": "a", "stream": "b"}, "option streamName is set twice, as streamName and as stream"),
    ],
)
def test_a_wrong_option_is_refused_with_the_way_out(given, message):
    with pytest.raises(OptionError, match=message):
        parse(**given)


def test_an_option_of_another_scope_is_refused():
    with pytest.raises(OptionError, match="option maxRecords is for the source, not for the sink"):
        parse("sink", maxRecords="1")


def test_an_alias_of_another_scope_is_named_as_it_was_given():
    table = [Option("maxRecords", SIZE, 5, "", READ, aliases=("maxRows",))]
    with pytest.raises(
        OptionError, match=r"option maxRows \(maxRecords\) is for the source, not for the sink"
    ):
        parse_options({"maxrows": "1"}, table, scope="sink", without_effect={}, refused={})


def test_an_option_of_another_scope_gets_no_default():
    assert parse("sink")[0] == {"streamName": None, "bufferBytes": 1, "ordering": "key", "secretKey": None}


def test_a_secret_value_is_not_shown():
    with pytest.raises(OptionError, match=r"secretKey=\(hidden\)"):
        parse(secretKey="hunter2")


def test_a_foreign_option_without_meaning_is_accepted_and_says_so():
    assert parse(OLD="1")[1] == ("option old has no effect: it is not needed",)
