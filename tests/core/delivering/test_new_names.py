"""Names of new fields that no column may have."""

from __future__ import annotations

from penstock.core.delivering.definition import parse_delivery
from penstock.core.delivering.new_names import column_name_rule
from penstock.core.delivering.partitions import parse_partitions


def rule(unreadable=(), **given):
    return column_name_rule(parse_delivery({"stream": "orders", "to": "/t", **given}), dict(unreadable))


def test_columns_of_the_layout_keep_their_names():
    names = rule(
        **{"partition-by": ["country", "date(arrived)", "substr(id, 1, 2) AS head"], "metadata": "shardId"}
    )
    taken = {
        name
        for name in ("date", "Head", "arrived", "_shardid", "country", "id", "shardId", "note")
        if names.refusal(name)
    }
    assert taken == {"date", "Head", "arrived", "_shardid"}


def test_a_text_in_an_expression_is_no_name():
    assert rule(**{"partition-by": "if(x = 'arrived', 1, 2) AS y"}).refusal("arrived") is None


def test_names_that_spark_or_a_lake_cannot_write_are_refused():
    assert all(rule().refusal(name) for name in ("", "a\nb", "\ud800"))
    assert rule().refusal("a b.ü`") is None
    assert rule(format="delta").refusal("a b") is not None
    assert "VARIANT" in rule({"V": "variant"}, format="delta").refusal("v")


def test_names_in_an_expression_are_its_columns():
    part = parse_partitions(["concat(`a b`, o.city, upper(c), 'x y') AS p"])[0]
    assert part.column_names == ("a b", "o.city", "c")
    assert [each.field for each in parse_partitions(["country", "date(created) AS day", "a + b AS c"])] == [
        "country",
        "created",
        None,
    ]
