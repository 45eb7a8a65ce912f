"""The verifier of the demonstration fails on every kind of wrong result, and names the first difference."""

import pandas as pd
import pytest

from penstock_demo.dataset import load_flights
from penstock_demo.verify import averages_of, verify

FLIGHTS = 400


@pytest.fixture(scope="module")
def flights():
    flights = load_flights(FLIGHTS)
    return flights.assign(is_late=lambda frame: frame["arr_delay"] > 15)


def rows_of(flights):
    """What a right run gives: four shards by key, batches of a hundred, sequence numbers of mixed length."""
    shard = flights["partition_key"].map(lambda key: f"shardId-00000000000{sum(key.encode()) % 4}")
    return flights.assign(
        batch=flights["id"] // 100,
        shard_id=shard,
        # 9 and 10 as well as 99 and 100 are among them: texts would be in the wrong order
        sequence_number=(flights["id"] // 10).astype(str),
        sub_sequence_number=flights["id"] % 10,
    ).astype(dict.fromkeys(("id", "batch", "sub_sequence_number"), "Int64"))  # as they come from Parquet


def averages_from(flights):
    return averages_of(flights).reset_index()


@pytest.fixture
def rows(flights):
    return rows_of(flights)


@pytest.fixture
def averages(flights):
    return averages_from(flights)


def verdict(flights, rows, averages):
    return str(verify(flights, rows.sample(frac=1, random_state=1), averages))


def test_a_right_result_is_verified(flights, rows, averages):
    assert verdict(flights, rows, averages) == "verified: 400 flights, 0 lost, 0 duplicated"


def test_a_lost_row_is_named(flights, rows, averages):
    text = verdict(flights, rows[~rows["id"].isin([17, 23])], averages)
    key, moment = flights.loc[17, "partition_key"], flights.loc[17, "event_time"]
    assert text == (
        f"failed: flight 17 (aircraft {key}, {moment}) did not come out (400 flights, 2 lost, 0 duplicated)"
    )


def test_a_doubled_row_is_named_with_both_places(flights, rows, averages):
    again = rows[rows["id"] == 5].assign(batch=3)
    text = str(verify(flights, pd.concat([rows, again]), averages))
    shard = rows.loc[5, "shard_id"]
    assert text == (
        f"failed: flight 5 came out 2 times: batch 0, {shard}, sequence number 0.5; batch 3, {shard}, sequence number "
        "0.5 (400 flights, 0 lost, 1 duplicated)"
    )


def test_a_row_that_never_went_in_is_named(flights, rows, averages):
    stranger = rows[rows["id"] == 5].assign(id=4711)
    assert verdict(flights, pd.concat([rows, stranger]), averages).startswith(
        "failed: a row with id 4711 came out that never went in: batch 0, "
    )


@pytest.mark.parametrize(
    ("column", "value"),
    [("dep_delay", 999), ("dep_delay", None), ("dest", "XXX"), ("is_late", None), ("partition_key", "other")],
)
def test_a_changed_value_is_named(flights, rows, averages, column, value):
    rows = rows.copy()
    rows.loc[8, column] = value
    assert verdict(flights, rows, averages).startswith(f"failed: flight 8 came out with {column} ")


def test_a_null_that_became_a_value_is_named(flights, rows, averages):
    number = int(flights.index[flights["dep_delay"].isna()][0])
    rows.loc[number, "dep_delay"] = 0
    assert verdict(flights, rows, averages).startswith(f"failed: flight {number} came out with dep_delay 0, ")


def two_flights_of_one_aircraft(flights):
    key = flights["partition_key"].value_counts().index[0]
    first, second = flights.index[flights["partition_key"] == key][:2]
    return key, first, second


@pytest.mark.parametrize("columns", [["batch", "sequence_number", "sub_sequence_number"]])
def test_swapped_flights_of_one_aircraft_are_named(flights, rows, averages, columns):
    key, first, second = two_flights_of_one_aircraft(flights)
    rows.loc[[first, second], columns] = rows.loc[[second, first], columns].to_numpy()
    assert verdict(flights, rows, averages).startswith(
        f"failed: aircraft {key}: flight {first} came after flight {second}: "
    )


def test_order_is_judged_by_batch_first(flights, rows, averages):
    # A child shard's numbers are higher than its parents', and only a later batch may hold them.
    key, first, _ = two_flights_of_one_aircraft(flights)
    rows.loc[first, "batch"] = 9
    assert verdict(flights, rows, averages).startswith(f"failed: aircraft {key}: flight ")


def test_sequence_numbers_are_compared_as_numbers(flights, rows, averages):
    # As texts 9 comes after 10.
    one_batch = rows.assign(batch=0)
    assert verdict(flights, one_batch, averages) == "verified: 400 flights, 0 lost, 0 duplicated"


def test_an_aircraft_in_two_shards_of_one_batch_is_named(flights, rows, averages):
    key, first, _ = two_flights_of_one_aircraft(flights)
    rows = rows.assign(batch=0)
    rows.loc[first, "shard_id"] = "shardId-000000000009"
    assert verdict(flights, rows, averages).startswith(
        f"failed: aircraft {key} was in 2 shards in batch 0: {rows.loc[first + 1 :, 'shard_id'][rows['partition_key'] == key].iloc[0]}, "
        "shardId-000000000009 "
    )


@pytest.mark.parametrize("column", ["flights", "departed", "delay_mean"])
def test_a_wrong_average_is_named(flights, rows, averages, column):
    averages.loc[3, column] += 1
    group = f"{averages.loc[3, 'origin']} at {averages.loc[3, 'hour']}"
    assert verdict(flights, rows, averages).startswith(f"failed: {column} of {group} came out as ")


def test_the_last_value_of_a_group_counts(flights, rows, averages):
    early = averages.assign(flights=1, departed=1, delay_mean=0.5)
    assert verdict(flights, rows, pd.concat([early, averages])).startswith("verified: ")
    assert verdict(flights, rows, pd.concat([averages, early])).startswith("failed: flights of EWR at ")


def test_a_missing_and_an_unknown_group_are_named(flights, rows, averages):
    assert verdict(flights, rows, averages.iloc[1:]).startswith("failed: no average came out for EWR at ")
    stranger = averages.iloc[:1].assign(origin="XXX")
    assert verdict(flights, rows, pd.concat([averages, stranger])).startswith(
        "failed: an average came out for XXX at "
    )


def test_a_group_without_any_departure_has_no_average(flights, rows, averages):
    cancelled = flights.assign(dep_delay=pd.array([None] * FLIGHTS, dtype="Int64"))
    rows = rows.assign(dep_delay=None)
    assert verdict(cancelled, rows, averages_from(cancelled)).startswith("verified: ")
    assert verdict(cancelled, rows, averages).startswith("failed: departed of ")


def test_nothing_came_out_at_all(flights, rows, averages):
    text = str(verify(flights, rows.iloc[:0], averages.iloc[:0]))
    assert text.startswith("failed: flight 0 (")
    assert text.endswith("(400 flights, 400 lost, 0 duplicated)")
