"""The flights of the demonstration: ids in event order, a key for each, JSON with every field."""

import json

import pandas as pd
import pytest

from penstock.errors import OptionError
from penstock_demo.dataset import FIELDS, FLIGHT_COUNT, events_of, load_flights


@pytest.fixture(scope="module")
def flights():
    return load_flights()


def test_every_flight_of_the_year_is_there_in_the_order_of_its_event(flights):
    assert len(flights) == FLIGHT_COUNT
    assert list(flights["id"]) == list(range(FLIGHT_COUNT))
    assert flights["event_time"].is_monotonic_increasing
    assert str(flights["event_time"].iloc[0]) == "2013-01-01 10:15:00+00:00"
    assert str(flights["event_time"].iloc[-1]) == "2014-01-01 04:59:00+00:00"


def test_the_partition_key_is_the_tail_number_or_a_stand_in_that_looks_like_none(flights):
    without = flights["tailnum"].isna()
    assert int(without.sum()) == 2512
    assert (flights["partition_key"] == flights["tailnum"])[~without].all()
    first = flights[without].iloc[0]
    assert first["partition_key"] == f"no-tail-{first['carrier']}{first['flight']}"
    assert not flights["tailnum"].dropna().str.startswith("no-tail-").any()


def test_a_part_is_the_beginning_of_the_whole(flights):
    pd.testing.assert_frame_equal(load_flights(1000), flights.head(1000))


@pytest.mark.parametrize("count", [0, -1, FLIGHT_COUNT + 1])
def test_a_count_that_the_data_set_does_not_have_is_refused(count):
    with pytest.raises(OptionError, match=f"{count} flights: the data set has 336776, choose 1 to 336776"):
        load_flights(count)


def test_an_event_says_everything_about_its_flight(flights):
    first = next(events_of(flights))
    assert first.partition_key == "N14228"
    assert json.loads(first.data) == {
        "id": 0,
        "event_time": "2013-01-01T10:15:00Z",
        "carrier": "UA",
        "tailnum": "N14228",
        "origin": "EWR",
        "dest": "IAH",
        "flight": 1545,
        "sched_dep_time": 515,
        "dep_time": 517,
        "dep_delay": 2,
        "sched_arr_time": 819,
        "arr_time": 830,
        "arr_delay": 11,
        "air_time": 227,
        "distance": 1400,
    }


def test_what_is_not_known_is_null(flights):
    cancelled = flights[flights["tailnum"].isna()].head(1)
    (event,) = events_of(cancelled)
    document = json.loads(event.data)
    assert tuple(document) == FIELDS
    assert {name for name, value in document.items() if value is None} == {
        "tailnum",
        "dep_time",
        "dep_delay",
        "arr_time",
        "arr_delay",
        "air_time",
    }


def test_events_go_through_chunks_without_a_seam(flights):
    some = flights.head(10_000)
    assert [json.loads(event.data)["id"] for event in events_of(some)] == list(range(10_000))
