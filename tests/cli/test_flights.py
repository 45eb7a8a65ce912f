"""The main job: its verifier can say no, and a small run is verified although the query is killed."""

from __future__ import annotations

import os
import re
import subprocess
import sys

import pandas as pd
import pytest

from penstock.cli.flights.dataset import NO_TAIL_NUMBER, events, load_flights
from penstock.cli.flights.verify import expected_delays, verify_delays, verify_events


@pytest.fixture(scope="module")
def flights():
    return load_flights(1000)


@pytest.fixture
def rows(flights):
    """What a right run writes: four shards by key, batches of a hundred."""
    frame = flights.assign(
        batch=flights["id"] // 100,
        shardId=flights["tailnum"].map(lambda key: f"shard-{sum(key.encode()) % 4}"),
        sequenceNumber=flights["id"].map(lambda number: str(9_990 + number)),
        subSequenceNumber=0,
    )
    return frame.assign(time_hour=pd.to_datetime(frame["time_hour"], utc=True))


def test_every_event_is_there_once_and_says_what_the_data_set_says(flights):
    published = list(events(flights))
    assert [event.number for event in published] == list(range(1000))
    assert load_flights()["id"].is_unique
    assert len(load_flights()) == 336_776
    assert {event.key for event in published} == set(flights["tailnum"])
    assert (load_flights()["tailnum"] == NO_TAIL_NUMBER).sum() == 2512


def test_a_right_run_is_verified(flights, rows):
    verdict = verify_events(flights, rows.sample(frac=1, random_state=1))
    assert (verdict.lost_count, verdict.duplicate_count, verdict.findings) == (0, 0, ())


def test_a_lost_flight_is_named(flights, rows):
    verdict = verify_events(flights, rows[rows["id"] != 417])
    assert (verdict.lost_count, verdict.findings) == (1, ("1 flights lost, the first is id 417",))


def test_a_flight_that_is_there_twice_is_named(flights, rows):
    verdict = verify_events(flights, pd.concat([rows, rows[rows["id"] == 500]]))
    assert (verdict.duplicate_count, verdict.findings[0]) == (
        1,
        "1 rows twice, the first is id 500 in batch 5",
    )


def test_a_row_that_is_no_flight_is_named(flights, rows):
    stranger = rows[rows["id"] == 999].assign(id=5000, tailnum="nobody")
    assert verify_events(flights, pd.concat([rows, stranger])).findings == (
        "1 rows are no flight of the data set, the first has id 5000",
    )


def test_a_changed_value_is_named(flights, rows):
    rows.loc[rows["id"] == 3, "dest"] = "XXX"
    assert "1 flights changed in dest, the first is id 3" in verify_events(flights, rows).findings[0]


def test_a_value_that_went_missing_is_named(flights, rows):
    rows.loc[rows["id"] == 3, "dep_delay"] = None
    assert "changed in dep_delay" in verify_events(flights, rows).findings[0]


def two_of_one_key(rows):
    key = rows["tailnum"].value_counts().index[0]
    return rows[rows["tailnum"] == key]["id"].tolist()[:2]


def test_two_flights_of_one_key_in_the_wrong_order_are_named(flights, rows):
    first, second = two_of_one_key(rows)
    sequence = rows.set_index("id")["sequenceNumber"].to_dict()
    rows.loc[rows["id"] == first, "sequenceNumber"] = sequence[second]
    rows.loc[rows["id"] == second, "sequenceNumber"] = sequence[first]
    rows["batch"] = 0
    assert re.match(r"\d+ rows out of order", verify_events(flights, rows).findings[0])


def test_sequence_numbers_are_ordered_as_numbers(flights, rows):
    # From 9990 to 10989: as texts the later ones would come first.
    rows["batch"] = 0
    assert verify_events(flights, rows).findings == ()


def test_a_key_from_two_shards_in_one_batch_is_named(flights, rows):
    first, _ = two_of_one_key(rows)
    rows["batch"] = 0
    rows.loc[rows["id"] == first, "shardId"] = "shard-9"
    assert "comes from several shards in batch 0" in verify_events(flights, rows).findings[0]


def test_averages_that_are_right_are_verified(flights):
    expected = expected_delays(flights)
    assert verify_delays(expected, expected.copy()) == ()


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda frame: frame.iloc[1:], "1 averages missing"),
        (lambda frame: frame.assign(delay=frame["delay"] + 0.001), "averages wrong"),
        (lambda frame: frame.assign(departures=frame["departures"] + 1), "averages wrong"),
        (
            lambda frame: pd.concat(
                [frame, frame.iloc[:1].rename(index={"EWR": "XXX", "JFK": "XXX", "LGA": "XXX"})]
            ),
            "1 averages too many",
        ),
    ],
)
def test_averages_that_are_wrong_are_named(flights, spoil, message):
    expected = expected_delays(flights)
    assert message in verify_delays(expected, spoil(expected.copy()))[0]


def run_demo(*arguments, timeout_s):
    environ = {key: value for key, value in os.environ.items() if not key.startswith("AWS_")}
    return subprocess.run(
        [sys.executable, "-m", "penstock", "demo", *arguments],
        capture_output=True,
        text=True,
        timeout=timeout_s,
        env=environ,
        check=False,
    )


@pytest.mark.spark
@pytest.mark.timeout(400)
def test_a_small_demo_is_verified_through_a_reshard_and_a_kill():
    done = run_demo("--records", "6000", timeout_s=390)
    assert done.stdout.splitlines()[-1] == "verified: 6000 flights, 0 lost, 0 duplicated", (
        done.stdout + done.stderr
    )
    assert done.returncode == 0
    assert "killed the query's driver with SIGKILL" in done.stdout
    assert "split shardId-" in done.stdout
    assert "merged shardId-" in done.stdout


@pytest.mark.spark
@pytest.mark.timeout(900)
@pytest.mark.parametrize("seed", [1])
def test_twenty_kills_at_random_moments_change_nothing(seed):
    done = run_demo("--records", "8000", "--kills", "20", "--seed", str(seed), timeout_s=890)
    assert done.stdout.splitlines()[-1] == "verified: 8000 flights, 0 lost, 0 duplicated", (
        done.stdout + done.stderr
    )
    assert "kill 20 of 20" in done.stdout


def test_a_wrong_count_and_a_folder_in_use_are_refused(tmp_path):
    (tmp_path / "something").touch()
    for arguments, message in [
        (("--records", "5"), "5 is not from 1000"),
        (("--keep", str(tmp_path)), "is not empty"),
    ]:
        done = run_demo(*arguments, timeout_s=60)
        assert done.returncode == 2
        assert message in done.stderr
