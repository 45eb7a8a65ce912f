"""Tables with transactions: which columns may change, which packages a Spark needs, and whether a batch was committed."""

from __future__ import annotations

import pytest

from lake_recipes import packages
from penstock.core.delivering.definition import parse_delivery
from penstock.core.delivering.lake_packages import PACKAGES, lake_settings
from penstock.core.delivering.lake_table import (
    Snapshot,
    TableChange,
    TableColumn,
    batch_of,
    batches_in,
    check_batches,
    check_computed,
    check_owner,
    check_partitions,
    history_of,
    is_in_snapshots,
    may_try_again,
    plan_change,
    transaction_of,
)
from penstock.core.delivering.partitions import parse_partitions
from penstock.errors import DeliveryFailed, OptionError

TABLE = (TableColumn("id", "int"), TableColumn("price", "double"), TableColumn("Note", "string"))


def plan(*wanted, columns=TABLE, way=None):
    return plan_change("orders", [TableColumn(*each) for each in wanted], columns, way_to_widen=lambda: way)


def test_columns_that_the_table_lacks_are_added_and_narrower_ones_are_widened():
    assert plan(("id", "bigint"), ("price", "double"), ("country", "string")) == TableChange(
        added_columns=(TableColumn("country", "string"),), widened_columns=(TableColumn("id", "bigint"),)
    )


def test_a_column_of_the_table_may_be_wider_and_spelled_in_another_case():
    assert plan(("price", "float"), ("note", "string")) == TableChange()


@pytest.mark.parametrize(
    ("wanted", "message"),
    [
        (("id", "string"), "column id is INT, and STRING does not fit into it: name it `id INT`"),
        (("price", "bigint"), "column price is DOUBLE, and BIGINT does not fit"),
        (("a b", "string"), "cannot be named 'a b'"),
    ],
)
def test_a_column_that_does_not_fit_is_refused_with_the_way_out(wanted, message):
    with pytest.raises(OptionError) as error:
        plan(wanted)
    assert message in str(error.value)


@pytest.mark.parametrize(
    ("columns", "partitions", "key"),
    [
        (["id", "Day"], [], "the schema"),
        (["id"], ["day"], "partition-by"),
        (["id"], ["date(ts) AS day"], None),
    ],
)
def test_a_field_that_would_fill_a_computed_column_is_refused(columns, partitions, key):
    def check():
        check_computed("orders", ["day"], columns=columns, partitions=parse_partitions(partitions))

    if key is None:
        check()
        return
    with pytest.raises(
        OptionError, match=f"orders computes its column (?i:day) itself: leave it out of {key}"
    ):
        check()


def test_a_wider_type_that_readers_may_not_know_is_refused_with_the_way_to_allow_it():
    with pytest.raises(OptionError, match="has to become BIGINT: allow it so"):
        plan(("id", "bigint"), way="allow it so")


def test_a_table_with_a_column_that_takes_no_null_is_refused():
    with pytest.raises(OptionError, match="column id takes no null"):
        plan(("id", "int"), columns=(TableColumn("id", "int", is_required=True),))


def test_partitions_are_those_of_the_table_or_left_out():
    dates = parse_partitions(["date(arrived)"])
    check_partitions("orders", (), ["days(arrived)"])
    check_partitions("orders", dates, ["date"])
    with pytest.raises(OptionError, match=r"partitioned by days\(arrived\), not by date"):
        check_partitions("orders", dates, ["days(arrived)"])
    with pytest.raises(OptionError, match="not partitioned, not by date"):
        check_partitions("orders", dates, [])


def test_rows_of_a_delivery_whose_record_was_lost_are_not_delivered_again():
    delivery = parse_delivery({"stream": "orders", "to": "/lake/orders", "format": "delta"})
    check_owner("orders", delivery, None, "new")
    check_owner("orders", delivery, "own", "own")
    with pytest.raises(DeliveryFailed, match=r"record is not in /lake/orders.penstock/orders"):
        check_owner("orders", delivery, "other", "new")


def test_the_batches_of_a_query_are_one_application_of_delta_and_others_have_their_own():
    assert transaction_of("d", "000000012") == ("penstock/d", 12)
    assert transaction_of("d", "range.1.2") == ("penstock/d/range.1.2", 0)


@pytest.mark.parametrize("label", ["000000007", "range.1.2", "redelivery.3"])
def test_the_batch_of_a_transaction_of_delta_is_found_again(label):
    assert batch_of("the id", *transaction_of("the id", label)) == label
    assert batch_of("another id", *transaction_of("the id", label)) is None
    assert batch_of("the id", "another application", 7) is None


def test_the_batches_of_a_table_of_iceberg_are_those_that_were_not_rolled_back():
    snapshots = [
        Snapshot(1, None, "d", "000000000"),
        Snapshot(2, 1, "d", "range.1.2"),
        Snapshot(3, 2, "d", "000000001"),
        Snapshot(4, 3),
        Snapshot(5, 4, "other", "000000009"),
        Snapshot(6, 3, "d", "000000002"),
    ]
    assert batches_in(snapshots, 5, "d") == ["range.1.2", "000000001"]
    assert batches_in(snapshots, 6, "d") == ["range.1.2", "000000002"]
    assert batches_in(snapshots, None, "d") == []


def test_a_state_that_lacks_a_batch_of_the_table_is_refused():
    delivery = parse_delivery({"stream": "orders", "to": "/lake/orders", "format": "delta"})
    check_batches(delivery, ["000000001"], ["000000000", "000000001", "000000002"])
    check_batches(
        delivery, ["000000001"], ["000000050", "000000149"]
    )  # its manifest is removed: later ones had no rows
    check_batches(delivery, [], [])
    with pytest.raises(DeliveryFailed, match=r"has batch range\.1\.2 of"):
        check_batches(delivery, ["000000001", "range.1.2"], ["000000002"])
    with pytest.raises(
        DeliveryFailed, match=r"/lake/orders has batch 000000001 of delivery orders, and .*restored"
    ):
        check_batches(delivery, ["000000001"], ["000000000"])


@pytest.mark.parametrize(
    ("snapshots", "before", "answer"),
    [
        ([], None, False),
        ([Snapshot(1, None), Snapshot(2, 1, "d", "b")], 1, True),
        ([Snapshot(2, 1, "d", "b")], 1, True),
        ([Snapshot(1, None), Snapshot(2, 1, "d", "a"), Snapshot(3, 2, "other", "b")], 1, False),
        ([Snapshot(3, 2)], 1, None),
        ([Snapshot(1, None)], None, False),
        ([Snapshot(3, 2)], None, None),
    ],
)
def test_a_batch_is_found_by_its_snapshot_and_unknown_if_snapshots_are_gone(snapshots, before, answer):
    assert is_in_snapshots(snapshots, "d", "b", before) is answer


def test_the_history_of_a_table_leaves_out_what_was_rolled_back():
    snapshots = [Snapshot(1, None), Snapshot(2, 1, "d", "b"), Snapshot(3, 1, "d", "b"), Snapshot(4, 3)]
    assert history_of(snapshots, 4) == [4, 3, 1]
    assert history_of(snapshots[2:], 4) == [4, 3]  # earlier ones have expired
    assert history_of([], None) == []


def test_a_transaction_is_tried_again_only_if_another_one_was_faster():
    assert may_try_again("[DELTA_METADATA_CHANGED] The metadata of the Delta table has been changed")
    assert may_try_again("org.apache.iceberg.exceptions.CommitFailedException: metadata location changed")
    assert not may_try_again("[DELTA_VIOLATE_CONSTRAINT_WITH_VALUES] CHECK constraint")


def test_the_packages_are_those_of_the_page():
    for line in ("4.0", "4.1", "4.2", "4.3"):
        assert {lake: found[line] for lake, found in PACKAGES.items() if line in found} == packages(line)


def test_the_session_gets_the_packages_and_extensions_that_its_formats_need():
    given = {"spark.jars.packages": "org.apache.hadoop:hadoop-aws:3.4.1"}
    found = lake_settings({"delta", "parquet"}, "4.1", given)
    assert found == {
        "spark.jars.packages": "org.apache.hadoop:hadoop-aws:3.4.1,io.delta:delta-spark_4.1_2.13:4.4.0",
        "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
        "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
    }
    assert lake_settings({"parquet"}, "4.1", given) == {}
    own = {"spark.jars.packages": "io.delta:delta-spark_4.3_2.13:5.0.0"}
    assert lake_settings({"delta"}, "4.3", own)["spark.jars.packages"] == own["spark.jars.packages"]


def test_a_spark_without_a_release_is_answered_with_one_that_has_it():
    with pytest.raises(
        OptionError, match=r"no release of Apache Iceberg for Spark 4\.3: install `pyspark==4\.1\.\*`"
    ):
        lake_settings({"iceberg"}, "4.3", {})
