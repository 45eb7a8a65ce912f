"""Differences of the installed Spark: its version, a batch's start, and the partition of a number."""

from __future__ import annotations

import pytest

from penstock.errors import UsageError
from penstock.spark import engine
from penstock.spark.engine import BatchStarts, check_version

INITIAL, ONE, TWO, THREE = ({"batch": number} for number in range(4))


@pytest.mark.parametrize("version", ["3.5.2", "3.4"])
def test_a_spark_that_is_too_old_is_told_in_a_sentence(version):
    with pytest.raises(
        UsageError, match=rf"this is Spark {version}, and the kinesis source needs 4\.0 or later"
    ):
        check_version(version)


@pytest.mark.parametrize("version", ["4.0.0", "4.0.2-amzn-0", "4.2.0", "5.0.0.dev1"])
def test_a_spark_with_python_sources_is_taken(version):
    check_version(version)


def test_a_new_query_starts_at_the_beginning():
    starts = BatchStarts(INITIAL)
    assert (starts.next_start, starts.planned_count) == (INITIAL, 0)
    starts.on_plan(ONE)
    starts.on_partitions(INITIAL, ONE)
    assert (starts.next_start, starts.planned_count) == (ONE, 1)


def test_a_batch_of_which_spark_reads_nothing_is_done_as_well():
    starts = BatchStarts(INITIAL)
    starts.on_plan(ONE)
    assert starts.next_start == ONE


def test_while_there_is_nothing_to_read_the_start_stays():
    starts = BatchStarts(INITIAL)
    starts.on_plan(INITIAL)
    starts.on_partitions(INITIAL, INITIAL)  # the first batch runs, whether there is something to read or not
    starts.on_plan(INITIAL)
    assert (starts.next_start, starts.planned_count) == (INITIAL, 0)


@pytest.mark.parametrize(
    "calls", [[(TWO, TWO)], [(TWO, TWO), (ONE, TWO)]], ids=["committed", "to be run again"]
)
def test_a_query_that_is_started_again_goes_on_behind_the_last_offset_of_the_log(calls):
    starts = BatchStarts(INITIAL)
    for call in calls:
        starts.on_partitions(*call)
    assert starts.next_start == TWO
    starts.on_plan(THREE)
    starts.on_partitions(TWO, THREE)
    assert starts.next_start == THREE


@pytest.mark.parametrize("call", [(TWO, TWO), (TWO, THREE), (INITIAL, THREE)])
def test_a_spark_that_tells_only_afterwards_where_the_query_stands_is_refused(call):
    starts = BatchStarts(INITIAL)
    starts.on_plan(ONE)
    with pytest.raises(UsageError, match=r"triggerAvailableNowWrapper\.enabled"):
        starts.on_partitions(*call)


def test_sparks_hash_of_integers_is_known():
    # What `select hash(0), hash(1), ...` gives.
    assert [engine._spark_hash(value) for value in (0, 1, 2, 100, 65_536)] == [
        933211791,
        -559580957,
        1765031574,
        751823303,
        1017081869,
    ]


@pytest.mark.parametrize("count", [1, 2, 7, 500])
def test_each_partition_has_an_integer_that_spark_places_there(count):
    assert [engine._spark_hash(salt) % count for salt in engine._salts(count)] == list(range(count))
