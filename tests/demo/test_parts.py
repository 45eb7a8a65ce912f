"""The parts of the demonstration: publishing with stops, the plan of kills, checkpoints from outside, options, display."""

import io
import threading
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from rich.console import Console

from penstock.errors import DeliveryFailed, OptionError
from penstock_demo.checkpoints import EventRows, read_events, running_batch
from penstock_demo.dataset import Event
from penstock_demo.demo_options import DemoOptions
from penstock_demo.display import Display
from penstock_demo.kills import Kill, plan_kills
from penstock_demo.processes import ProcessKind
from penstock_demo.publish import Acknowledged, Publisher, Stop

EVENTS = [Event(f"k{number % 3}", str(number).encode()) for number in range(10)]


class Journal:
    """Writers that tell what they are given, and when they are done."""

    def __init__(self, *, loses=0):
        self.said = []
        self.loses = loses

    def open(self):
        self.said.append("open")
        return JournalWriter(self)


class JournalWriter:
    def __init__(self, journal):
        self.journal = journal
        self.count = 0

    def write(self, event):
        self.journal.said.append(event.data.decode())
        self.count += 1

    def finish(self):
        self.journal.said.append("finish")

    @property
    def acknowledged(self):
        return Acknowledged(self.count - self.journal.loses, record_count=1, data_bytes=10)


def publish(publisher):
    publisher.start()
    publisher._thread.join(30)
    return publisher


def test_at_a_stop_everything_before_it_is_acknowledged_and_a_new_writer_follows():
    journal = Journal()
    stops = [
        Stop(3, lambda: journal.said.append("split")),
        Stop(3, lambda: journal.said.append("wait")),
        Stop(7, lambda: journal.said.append("merge")),
    ]
    publisher = publish(Publisher(iter(EVENTS), journal.open, stops))
    assert publisher.is_done
    assert journal.said == [
        *["open", "0", "1", "2", "finish", "split"],
        *["open", "finish", "wait"],
        *["open", "3", "4", "5", "6", "finish", "merge"],
        *["open", "7", "8", "9", "finish"],
    ]
    assert publisher.acknowledged == Acknowledged(10, record_count=4, data_bytes=40)


def test_a_writer_that_acknowledges_less_than_it_took_ends_publishing():
    publisher = publish(Publisher(iter(EVENTS), Journal(loses=1).open, []))
    with pytest.raises(AssertionError, match="10 events were sent and 9 acknowledged"):
        _ = publisher.is_done


def test_what_fails_at_a_stop_is_raised_where_it_is_asked_whether_all_is_done():
    def fail():
        raise DeliveryFailed("the stream is gone")

    publisher = publish(Publisher(iter(EVENTS), Journal().open, [Stop(5, fail)]))
    with pytest.raises(DeliveryFailed, match="the stream is gone"):
        _ = publisher.is_done
    assert publisher.acknowledged.event_count == 5


def test_progress_is_seen_while_a_writer_works():
    is_there, is_seen = threading.Event(), threading.Event()

    def stop():
        is_there.set()
        is_seen.wait(30)

    publisher = Publisher(iter(EVENTS), Journal().open, [Stop(4, stop)])
    assert not publisher.is_done
    publisher.start()
    assert is_there.wait(30)
    assert publisher.acknowledged.event_count == 4
    assert not publisher.is_done
    is_seen.set()
    publisher._thread.join(30)
    assert publisher.acknowledged.event_count == 10


def test_the_first_kill_takes_the_whole_query_in_the_middle_of_a_batch():
    assert plan_kills(1, seed=7) == [Kill(None, in_batch=True)]
    assert plan_kills(0, seed=7) == []
    assert str(plan_kills(1, seed=7)[0]) == "the whole query"


def test_the_same_seed_gives_the_same_kills_and_all_kinds_come():
    kills = plan_kills(20, seed=1)
    assert kills == plan_kills(20, seed=1)
    assert kills != plan_kills(20, seed=2)
    assert len(kills) == 20
    assert {kill.kind for kill in kills} == {None, ProcessKind.JVM, ProcessKind.PLANNER, ProcessKind.WORKER}


def commit(checkpoint: Path, number: int, *, logs=("offsets", "commits")):
    for log in logs:
        (checkpoint / log).mkdir(parents=True, exist_ok=True)
        (checkpoint / log / str(number)).touch()
        (checkpoint / log / f".{number}.crc").touch()


def test_a_batch_runs_between_its_offset_and_its_commit(tmp_path):
    assert running_batch(tmp_path) is None
    commit(tmp_path, 0)
    assert running_batch(tmp_path) is None
    commit(tmp_path, 1, logs=("offsets",))
    assert running_batch(tmp_path) == 1
    commit(tmp_path, 1)
    assert running_batch(tmp_path) is None


def write_batch(events: Path, number: int, ids, part=0):
    folder = events / f"batch={number}"
    folder.mkdir(parents=True, exist_ok=True)
    columns = {
        "id": pa.array(ids, pa.int64()),
        "dep_delay": pa.array([None for _ in ids], pa.int32()),
        "is_late": pa.array([None for _ in ids], pa.bool_()),
    }
    pq.write_table(pa.table(columns), folder / f"part-{part}.parquet")


def test_only_rows_of_committed_batches_count(tmp_path):
    rows = EventRows(tmp_path / "events", tmp_path / "checkpoint")
    assert rows.count() == 0
    write_batch(tmp_path / "events", 0, [1, 2, 3])
    write_batch(tmp_path / "events", 0, [4], part=1)
    commit(tmp_path / "checkpoint", 0, logs=("offsets",))
    assert rows.count() == 0
    commit(tmp_path / "checkpoint", 0)
    assert rows.count() == 4
    write_batch(tmp_path / "events", 1, [5, 6])
    commit(tmp_path / "checkpoint", 1)
    assert rows.count() == 6


def test_rows_are_read_with_their_batch_and_missing_values_stay_missing(tmp_path):
    write_batch(tmp_path, 0, [1, 2])
    write_batch(tmp_path, 11, [3])
    (tmp_path / "batch=11" / "_SUCCESS").touch()
    rows = read_events(tmp_path).sort_values("id")
    assert list(rows["id"]) == [1, 2, 3]
    assert list(rows["batch"]) == [0, 0, 11]
    assert [str(rows[name].dtype) for name in ("dep_delay", "is_late", "batch")] == [
        "Int64",
        "boolean",
        "Int64",
    ]
    assert rows["dep_delay"].isna().all()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"record_count": 99}, "--records 99: choose 100 to 336776"),
        ({"record_count": 336_777}, "--records 336777: choose 100 to 336776"),
        ({"kill_count": -1}, "--kills -1: expected at least 0"),
    ],
)
def test_options_out_of_range_are_refused(options, message):
    with pytest.raises(OptionError, match=message):
        DemoOptions(**options)


def test_a_run_has_a_dozen_batches_or_more_and_some_between_kills():
    assert DemoOptions().batch_records_max == 12_000
    assert DemoOptions(record_count=6000).batch_records_max == 500
    assert DemoOptions(record_count=4200, kill_count=20).batch_records_max == 100
    assert DemoOptions(record_count=100).batch_records_max == 25
    # an answer holds about one shard's part of a batch
    assert DemoOptions().fetch_records_max == 17
    assert DemoOptions(record_count=100).fetch_records_max == 1


def shown(*, terminal):
    stream = io.StringIO()
    console = Console(file=stream, force_terminal=terminal, width=60)
    display = Display(console, total=10)
    with display.bars():
        display.step("a line [with brackets] that is longer than the console is wide, and stays one line")
        display.note("something happened")
        display.update((3, 2, 1))
    display.table([("flights", "10")])
    display.last_line("verified: 10 flights, 0 lost, 0 duplicated")
    return stream.getvalue()


def test_without_a_terminal_there_are_plain_lines_and_a_table():
    text = shown(terminal=False)
    assert text.splitlines()[:2] == [
        "1. a line [with brackets] that is longer than the console is wide, and stays one line",
        "   something happened",
    ]
    assert "\x1b" not in text
    assert "published" not in text
    assert text.splitlines()[-1] == "verified: 10 flights, 0 lost, 0 duplicated"


def test_a_terminal_gets_bars():
    text = shown(terminal=True)
    assert "published" in text
    assert "in averages" in text
    assert text.rstrip().endswith("verified: 10 flights, 0 lost, 0 duplicated")
