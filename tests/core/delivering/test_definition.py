"""Definitions of deliveries: what a file or the command line may say, and the answer to each mistake."""

from __future__ import annotations

import pytest

from penstock.core.delivering.definition import LeasePlace, check_together, parse_delivery
from penstock.core.delivering.partitions import PartitionColumn
from penstock.errors import OptionError


def test_a_stream_and_a_folder_are_enough():
    found = parse_delivery({"stream": "orders", "to": "s3://lake/orders/"})
    assert (found.name, found.to, found.format, found.schema, found.freshness_s) == (
        "orders",
        "s3://lake/orders",
        "parquet",
        "sample",
        60.0,
    )
    assert found.checkpoint_location == "s3://lake/orders.penstock/orders/checkpoint"
    assert found.dead_letter_folder == "s3://lake/orders.penstock/orders/dead-letters"


def test_the_name_of_an_arn_is_the_streams():
    found = parse_delivery({"stream": "arn:aws:kinesis:eu-west-1:123456789012:stream/orders", "to": "/lake"})
    assert found.name == "orders"


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"strem": "orders"}, "unknown key strem: did you mean stream?"),
        ({"stream": "orders"}, "to is missing"),
        ({"to": "/lake"}, "stream is missing"),
        ({"stream": "orders", "to": "/"}, "to=/ is the root of a file system"),
        ({"stream": "orders", "to": "file:///"}, "to=file:/// is the root of a file system"),
        ({"stream": "orders", "to": "s3://lake/orders", "state": "hdfs:///"}, "state=hdfs:/// is the root"),
        ({"stream": "orders", "to": "/lake/orders", "checkpoint": "/"}, "checkpoint=/ is the root"),
        ({"stream": "orders", "to": "s3://lake/"}, "a folder of its own, such as s3://lake/orders"),
        (
            {"stream": "orders", "to": "s3://lake", "state": "s3://lake/_state"},
            "in the same file system or bucket",
        ),
        ({"stream": "orders", "to": "hdfs://host", "format": "delta"}, "or name a folder with state"),
        (
            {"stream": "orders", "to": "hdfs://host/."},
            "to=hdfs://host/.: write the address without a step . or ..",
        ),
        ({"stream": "orders", "to": "s3a://lake/a/../b"}, "without a step"),
        ({"stream": "orders", "to": "/l", "state": "hdfs:/x/./y/"}, "state=hdfs:/x/./y/: write"),
        ({"stream": "orders", "to": "/l", "freshness": "1s"}, "from 5s to 86400s"),
        ({"stream": "orders", "to": "/l", "freshness": True}, "expected one value"),
        ({"stream": "orders", "to": "/\udcff"}, r"to='/\udcff': it is not Unicode text at character 1"),
        ({"stream": "orders", "to": "/l", "partition-by": ["\udcff"]}, "not Unicode text at character 0"),
        ({"stream": "orders", "to": "/l", "options": {"a": "\udcff"}}, "not Unicode text at character 2"),
        (
            {"stream": "orders", "to": "/l", "format": "csv"},
            "expected one of parquet, json, delta, iceberg, stream",
        ),
        ({"stream": "orders", "to": "/l", "name": "a/b"}, "part of file names"),
        ({"stream": "orders", "to": "/l", "until": "2026-01-01"}, "until needs since"),
        ({"stream": "orders", "to": "/l", "since": "2026-01-01", "start": "LATEST"}, "exclude each other"),
        ({"stream": "orders", "to": "/l", "metadata": "arived"}, "did you mean arrived?"),
        ({"stream": "orders", "to": "/l", "schema": "raw", "metadata": "arrived"}, "no effect"),
        ({"stream": "orders", "to": "/l", "partition-by": 5}, "a text or a list"),
        ({"stream": "orders", "to": "/l", "partition-by": "a + b"}, "`a + b AS part`"),
        (
            {"stream": "orders", "to": "/l", "partition-by": "date(a), b"},
            "as a list, [date(a), b], or repeat",
        ),
        (
            {"stream": "orders", "to": "/l", "partition-by": ["date(a)", "date(b)"]},
            "two columns are named date",
        ),
        ({"stream": "orders", "to": "/l", "options": "x"}, "names and values"),
        (
            {"stream": "orders", "to": "/l", "format": "iceberg"},
            "named by its catalog, such as lake.sales.orders",
        ),
        ({"stream": "orders", "to": "lake.orders", "format": "iceberg"}, "state is missing"),
        ({"stream": "orders", "to": "sales.orders", "format": "delta"}, "if it is one, write ./sales.orders"),
        ({"stream": "orders", "to": "copy", "format": "stream"}, "state is missing"),
        (
            {"stream": "orders", "to": "orders", "format": "stream", "state": "/s"},
            "is the stream that is read",
        ),
        (
            {"stream": "orders", "to": "copy", "format": "stream", "state": "/s", "metadata": "arrived"},
            "metadata has no effect",
        ),
    ],
)
def test_a_mistake_is_answered_with_the_remedy(given, message):
    with pytest.raises(OptionError) as error:
        parse_delivery(given)
    assert message in str(error.value)


def test_dashes_and_underscores_in_a_key_are_the_same():
    given = {
        "stream": "orders",
        "to": "/l",
        "partition_by": [
            "date(arrived)",
            "substr(id, 1, 2) as head",
            "replace(`a,b`, ',(', ')') as c",
            "country",
        ],
    }
    assert parse_delivery(given).partitions == (
        PartitionColumn("date", "date(arrived)"),
        PartitionColumn("head", "substr(id, 1, 2)"),
        PartitionColumn("c", "replace(`a,b`, ',(', ')')"),
        PartitionColumn("country", "country"),
    )


def check_other_delivery(first, second, lease_tables=("app", "app")):
    places = [LeasePlace(("eu",), table) for table in lease_tables]
    check_together([*zip((parse_delivery(first), parse_delivery(second)), places, strict=True)])


def test_two_deliveries_with_one_name_and_table_are_refused():
    orders = {"stream": "orders", "to": "/l"}
    check_other_delivery(orders, {"stream": "returns", "to": "/l"})
    with pytest.raises(OptionError, match="give one another name"):
        check_other_delivery(orders, {"stream": "returns", "to": "/l", "name": "orders"})


@pytest.mark.parametrize(
    ("given", "key"),
    [
        ({"state": "/lake/orders"}, "state=/lake/orders/orders"),
        ({"state": "/lake"}, "state=/lake/orders"),  # by its name
        ({"checkpoint": "/lake/orders/_checkpoint"}, "checkpoint"),
        ({"dead-letters": "/lake/orders/_dead"}, "dead-letters"),
        ({"dead-letters": "/lake/orders/dead/_letters", "format": "delta"}, "dead-letters"),
        ({"checkpoint": "/lake/orders/_delta_log/checkpoint", "format": "delta"}, "checkpoint"),
    ],
)
def test_a_folder_inside_the_tables_folder_is_refused(given, key):
    other = {"stream": "returns", "to": "/lake/returns"}
    with pytest.raises(OptionError, match=rf"{key}.* is in the folder of the table /lake/orders, whose"):
        check_other_delivery(other, {"stream": "orders", "to": "/lake/orders", **given})


def test_a_folder_that_readers_of_a_delta_table_skip_may_be_inside_its_folder():
    inside = {"checkpoint": "_checkpoints/orders", "dead-letters": "_dead", "state": "_penstock"}
    given = {key: f"/lake/orders/{place}" for key, place in inside.items()}
    other = {"stream": "returns", "to": "/lake/returns"}
    check_other_delivery(other, {"stream": "orders", "to": "/lake/orders", "format": "delta", **given})


@pytest.mark.parametrize("state", ["s3://other/orders", "s3://other", "s3://lake/_state"])
def test_a_delta_table_at_the_root_of_a_bucket_has_its_state_where_the_user_says(state):
    delivery = parse_delivery({"stream": "orders", "to": "s3://lake/", "format": "delta", "state": state})
    check_together([(delivery, LeasePlace(("us-east-1",), "leases"))])
    assert (delivery.to, delivery.state) == ("s3://lake", f"{state}/orders")


def test_a_table_inside_another_table_is_refused():
    given = {"stream": "orders", "to": "/lake"}, {"stream": "returns", "to": "/lake/returns"}
    for first, second in (given, given[::-1]):
        with pytest.raises(OptionError, match="to=/lake/returns is in the folder of the table /lake, whose"):
            check_other_delivery(first, second | {"state": "/state"})
    check_other_delivery(given[0], {"stream": "returns", "to": "/lake_returns"})


@pytest.mark.parametrize(
    ("shared", "message"),
    [
        ({"application": "app"}, "application=app: they would divide the shards"),
        ({"checkpoint": "/c"}, "checkpoint=/c: each needs its own"),
        (
            {"dead-letters": "/d", "name": "orders"},
            "dead-letters=/d and name=orders: give one another dead-letters folder",
        ),
    ],
)
def test_two_deliveries_share_neither_leases_nor_places(shared, message):
    first = {"stream": "orders", "to": "/a", "name": "first", **shared}
    second = {"stream": "orders", "to": "/b", "name": "second", **shared}
    with pytest.raises(OptionError, match=message):
        check_other_delivery(first, second)


def test_two_deliveries_may_have_one_folder_of_dead_letters_or_one_table():
    first = {"stream": "orders", "to": "/l", "name": "first", "dead-letters": "/d"}
    check_other_delivery(first, {"stream": "returns", "to": "/l", "name": "second", "dead-letters": "/d"})


def test_an_application_may_have_two_lease_tables():
    first, second = (
        {"stream": each, "to": f"/{each}", "application": "app"} for each in ("orders", "returns")
    )
    with pytest.raises(OptionError, match="application=app: they would divide the shards"):
        check_other_delivery(first, second)
    check_other_delivery(first, second, lease_tables=("a", "b"))


def test_a_stream_whose_name_is_no_name_of_files_needs_another_one():
    with pytest.raises(OptionError, match="so choose another one with `name`"):
        parse_delivery({"stream": "orders--eu", "to": "/l"})
    assert parse_delivery({"stream": "orders--eu", "to": "/l", "name": "orders"}).stream == "orders--eu"


def test_a_table_without_a_folder_has_its_state_where_the_user_says():
    found = parse_delivery(
        {"stream": "orders", "to": "main.sales.orders", "format": "delta", "state": "s3://lake/state/"}
    )
    assert (found.is_folder, found.state) == (False, "s3://lake/state/orders")
    assert parse_delivery({"stream": "orders", "to": "orders", "format": "delta"}).is_folder


def test_another_stream_gets_the_records_as_they_are():
    given = {"stream": "orders", "to": "copy", "format": "stream", "state": "/s"}
    assert parse_delivery(given).schema == "raw"


@pytest.mark.parametrize(
    ("schema", "found"),
    [
        ("glue", ("default-registry", "orders")),
        ("glue:prices", ("default-registry", "prices")),
        ("glue:shop/prices", ("shop", "prices")),
        ("glue: prices", ("default-registry", "prices")),
        ("glued STRING", None),
        ("raw", None),
    ],
)
def test_a_registered_schema_is_named_by_registry_and_name(schema, found):
    stream = "arn:aws:kinesis:eu-west-1:123456789012:stream/orders"
    assert parse_delivery({"stream": stream, "to": "/t", "schema": schema}).glue_schema == found
