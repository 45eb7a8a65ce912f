"""The query's processes: found by their session, told apart and killed; supervised, restarted by plan, stopped in order."""

import os
import subprocess
import sys
import threading

import pytest

from penstock.errors import PenstockError
from penstock_demo import processes, watch
from penstock_demo.display import Display
from penstock_demo.kills import Kill
from penstock_demo.processes import (
    FoundProcess,
    ProcessKind,
    find_processes,
    kill_process,
    kill_session,
    kind_of,
)
from penstock_demo.query import EVENTS, QuerySettings, parse_settings
from penstock_demo.supervisor import QueryProcess
from penstock_demo.watch import QueryWatch, Statuses
from waiting import wait_until

DEADLINE_S = 30.0

# --- processes ------------------------------------------------------------------------------------------------

FAMILY = """
import os, subprocess, sys
if sys.argv[1] != "0":
    if sys.argv[1] == "1":
        os.setpgid(0, 0)  # as Spark's worker daemons do
    subprocess.Popen([sys.executable, *sys.orig_argv[1:-1], str(int(sys.argv[1]) - 1)])
print("up", flush=True)
sys.stdin.read()
"""


@pytest.fixture
def family():
    """A process in a session of its own, its child in another process group, and its grandchild."""
    process = subprocess.Popen(
        [sys.executable, "-c", FAMILY, "2"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    for _ in range(3):
        assert process.stdout.readline() == "up\n"
    yield process
    process.communicate()


def test_a_whole_family_is_found_and_killed_across_process_groups(family):
    found = find_processes(family.pid)
    assert len(found) == 3
    assert len({os.getpgid(each.pid) for each in found}) == 2
    assert kill_session(family.pid, 20) == 3
    assert find_processes(family.pid) == []
    assert kill_session(family.pid, 20) == 0


def test_children_are_killed_when_their_first_process_is_gone(family):
    family.kill()
    family.wait()
    assert len(find_processes(family.pid)) == 2
    assert kill_session(family.pid, 20) == 2


def test_what_has_ended_is_not_found_and_not_killed(family):
    family.kill()
    # not waited for: it is a zombie now
    wait_until(
        lambda: family.pid not in {each.pid for each in find_processes(family.pid)}, "it to be seen as ended"
    )
    kill_session(family.pid, 20)
    family.wait()
    assert not kill_process(family.pid)


def test_processes_are_listed_the_same_without_a_proc_folder(family, monkeypatch, tmp_path):
    by_proc = {(each.pid, each.kind) for each in find_processes(family.pid)}
    monkeypatch.setattr(processes, "_PROC", tmp_path)
    try:
        by_ps = {(each.pid, each.kind) for each in find_processes(family.pid)}
    except FileNotFoundError:
        pytest.skip("this system has no ps")
    finally:
        kill_session(family.pid, 20)
    assert by_ps == by_proc


@pytest.mark.parametrize(
    ("command", "kind"),
    [
        ("python -m penstock_demo.query {...}", ProcessKind.DRIVER),
        (
            "/usr/bin/java -cp ... org.apache.spark.deploy.SparkSubmit --conf x pyspark-shell ",
            ProcessKind.JVM,
        ),
        ("python -m pyspark.sql.streaming.python_streaming_source_runner ", ProcessKind.PLANNER),
        ("python -m pyspark.daemon pyspark.worker ", ProcessKind.WORKER),
        ("python -m penstock.spark.daemon pyspark.worker ", ProcessKind.WORKER),
        ("python -m pyspark.daemon pyspark.sql.worker.create_data_source ", ProcessKind.OTHER),
        ("chmod 0644 /tmp/x", ProcessKind.OTHER),
    ],
)
def test_a_process_is_told_by_its_command_line(command, kind):
    assert kind_of(command) is kind


# --- supervisor -----------------------------------------------------------------------------------------------

PROGRAM = """
import json, os, sys, time
from pathlib import Path
stop, mode = Path(sys.argv[1]), sys.argv[2]
print(json.dumps({"started": os.getpid()}), flush=True)
print(json.dumps({"query": "events", "batch": 0, "rows": 5, "lag_ms": 7}), flush=True)
print("trouble ahead", file=sys.stderr, flush=True)
print("\\tat org.apache.spark.Frame", file=sys.stderr, flush=True)
if mode == "fails":
    sys.exit(3)
if mode == "torn":
    sys.stdout.write('{"query": "ev')
    sys.stdout.flush()
deadline = time.monotonic() + 60
while time.monotonic() < deadline and not (mode == "obeys" and stop.exists()):
    time.sleep(0.02)
"""


@pytest.fixture
def settings(tmp_path):
    return QuerySettings(str(tmp_path), "http://127.0.0.1:1", "us-east-1", "flights", "delays", 100, 5, 0.4)


@pytest.fixture
def supervised(settings, tmp_path):
    """Makes a supervisor of a small program in the query's place; what it says is in `told`."""
    made = []

    def make(mode):
        told = []
        process = QueryProcess(settings, {}, tmp_path / "spark.log", told.append)
        process.command = (sys.executable, "-c", PROGRAM, str(settings.stop_file), mode)
        process.told = told
        made.append(process)
        process.start()
        assert process.has_started.wait(DEADLINE_S)
        return process

    yield make
    for process in made:
        process.kill()


def test_settings_travel_as_text(settings):
    assert parse_settings(settings.to_text()) == settings


def test_what_the_program_says_is_handed_on_and_it_ends_when_asked(supervised):
    process = supervised("obeys")
    process.end(DEADLINE_S)
    assert process.status == 0
    assert process.told == [{"query": "events", "batch": 0, "rows": 5, "lag_ms": 7}]


def test_a_failure_shows_the_end_of_the_log_without_frames(supervised):
    process = supervised("fails")
    with pytest.raises(
        PenstockError, match=r"the query ended with status 3\nThe end of .*spark.log:\ntrouble ahead\n$"
    ):
        process.end(DEADLINE_S)


def test_one_that_does_not_end_in_time_is_an_error_that_says_what_was_waited_for(supervised):
    process = supervised("ignores")
    with pytest.raises(PenstockError, match=r"waited 0\.2 s for the query to end"):
        process.end(0.2)
    assert process.status is None


def test_a_line_that_a_kill_cut_off_is_not_taken(supervised):
    process = supervised("torn")
    wait_until(lambda: process.told, "its first batch")
    process.kill()
    assert process.told == [{"query": "events", "batch": 0, "rows": 5, "lag_ms": 7}]
    assert process.status == -9


def test_it_can_be_started_again_and_appends_to_its_log(supervised, tmp_path):
    process = supervised("ignores")
    first = process.session

    def words():
        return (tmp_path / "spark.log").read_text().count("trouble ahead")

    wait_until(lambda: words() == 1, "the first life's words")
    process.kill()
    process.start()
    assert process.has_started.wait(DEADLINE_S)
    assert process.session != first
    assert process.start_count == 2
    wait_until(lambda: words() == 2, "both lives' words")


# --- watch ----------------------------------------------------------------------------------------------------


class FakeProcess:
    """A query that does what the test says."""

    def __init__(self):
        self.start_count = 0
        self.status = None
        self.has_started = threading.Event()
        self.done = []
        self.found = {}

    def start(self):
        self.start_count += 1
        self.status = None
        self.done.append("start")

    def kill(self):
        self.status = -9
        self.done.append("kill all")

    def processes(self, kind):
        return self.found.get(kind, [])

    def log_tail(self):
        return "\nthe log"


class Lines(Display):
    def __init__(self):
        self.said = []

    def note(self, text):
        self.said.append(text)


@pytest.fixture
def watched(settings, monkeypatch):
    killed = []
    monkeypatch.setattr(watch, "kill_process", killed.append)

    def make(*kills):
        process = FakeProcess()
        statuses = Statuses()
        keeper = QueryWatch(process, settings, statuses, kills, Lines(), seed=0)
        keeper.process, keeper.statuses, keeper.said, keeper.killed = (
            process,
            statuses,
            keeper._display.said,
            killed,
        )
        keeper.start()
        process.has_started.set()
        return keeper

    return make


def look(keeper, *, may_kill=True, is_all_read=False, times=3):
    for _ in range(times):
        keeper.step(may_kill=may_kill, is_all_read=lambda: is_all_read)


def begin_batch(settings, number):
    folder = settings.checkpoint_dir(EVENTS) / "offsets"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / str(number)).touch()


def test_a_query_that_ends_by_itself_is_a_failure(watched):
    keeper = watched()
    keeper.process.status = 1
    with pytest.raises(PenstockError, match="the query ended with status 1\nthe log"):
        look(keeper)


def test_a_query_that_does_not_come_up_is_a_failure(watched, monkeypatch):
    keeper = watched()
    keeper.process.has_started.clear()
    look(keeper)
    monkeypatch.setattr(watch, "_START_DEADLINE_S", 0.0)
    with pytest.raises(PenstockError, match="waited 0 s for Spark to start\nthe log"):
        look(keeper)


def test_the_whole_query_is_killed_only_in_a_batch_and_started_again(watched, settings):
    keeper = watched(Kill(None, in_batch=True))
    look(keeper)
    assert keeper.process.done == ["start"]
    begin_batch(settings, 4)
    look(keeper, may_kill=False)
    assert keeper.process.done == ["start"]
    look(keeper, times=1)
    assert keeper.process.done == ["start", "kill all"]
    assert keeper.has_kills_left
    look(keeper)
    # killed once more before it starts: nothing of the old life may be left
    assert keeper.process.done == ["start", "kill all", "kill all", "start"]
    assert (keeper.kill_count, keeper.restart_count, keeper.has_kills_left) == (1, 1, False)
    assert keeper.said == ["SIGKILL to the whole query in the middle of batch 4"]


def test_a_worker_is_killed_and_spark_replaces_it(watched):
    keeper = watched(Kill(ProcessKind.WORKER), Kill(ProcessKind.WORKER))
    keeper.process.found = {
        ProcessKind.WORKER: [
            FoundProcess(11, ProcessKind.WORKER, ""),
            FoundProcess(12, ProcessKind.WORKER, ""),
        ]
    }
    look(keeper, times=4)
    assert keeper.process.done == ["start"]
    assert len(keeper.killed) == 2
    assert set(keeper.killed) <= {11, 12}
    assert keeper.said == ["kill 1 of 2: SIGKILL to its worker", "kill 2 of 2: SIGKILL to its worker"]


def test_without_a_process_of_the_kind_all_of_it_is_killed(watched):
    keeper = watched(Kill(ProcessKind.WORKER))
    look(keeper, times=2)
    assert keeper.process.done == ["start", "kill all"]
    assert keeper.said == ["SIGKILL to the whole query"]


def test_a_query_that_lost_its_planner_is_started_again_when_it_has_noticed(watched):
    keeper = watched(Kill(ProcessKind.PLANNER))
    keeper.process.found = {ProcessKind.PLANNER: [FoundProcess(11, ProcessKind.PLANNER, "")]}
    look(keeper)
    assert (keeper.killed, keeper.process.done, keeper.has_kills_left) == ([11], ["start"], True)
    keeper.process.status = 1
    look(keeper)
    assert keeper.process.done == ["start", "kill all", "start"]
    assert not keeper.has_kills_left


def test_a_query_that_never_notices_is_started_again_all_the_same(watched, monkeypatch):
    monkeypatch.setattr(watch, "_END_DEADLINE_S", -1.0)
    keeper = watched(Kill(ProcessKind.JVM))
    keeper.process.found = {ProcessKind.JVM: [FoundProcess(11, ProcessKind.JVM, "")]}
    look(keeper, times=2)
    assert keeper.process.done == ["start"]
    look(keeper, times=1)
    assert keeper.process.done == ["start", "kill all", "start"]


def status(batch, query=EVENTS, lag_ms=0):
    return {"query": query, "batch": batch, "rows": 1, "duration_ms": 1, "lag_ms": lag_ms}


def test_a_kill_waits_for_batches_of_the_present_life(watched):
    keeper = watched(Kill(None), Kill(None, after_batches=2))
    keeper.statuses.take(status(0))
    look(keeper, times=3)
    assert keeper.kill_count == 1
    assert keeper.restart_count == 1
    keeper.statuses.take(status(1))
    look(keeper)
    assert keeper.kill_count == 1
    keeper.statuses.take(status(2))
    look(keeper)
    assert keeper.kill_count == 2


def test_a_kill_does_not_wait_for_batches_that_cannot_come(watched):
    keeper = watched(Kill(None, after_batches=9))
    look(keeper)
    assert keeper.kill_count == 0
    look(keeper, is_all_read=True)
    assert keeper.kill_count == 1


def test_statuses_add_up_over_lives():
    statuses = Statuses()
    statuses.take(status(0, lag_ms=500))
    statuses.take(status(0, query="averages", lag_ms=900))
    statuses.begin_life()
    statuses.take(status(0, lag_ms=100))  # run again
    statuses.take(status(1, lag_ms=50))
    assert statuses.batch_count(EVENTS) == 2
    assert statuses.finished_in_life == 2
    assert (statuses.lag_ms, statuses.lag_ms_max) == (900, 900)
    statuses.take({"ended": 3})
    assert (statuses.lag_ms, statuses.lag_ms_max) == (3, 900)
