"""Worker processes of one queue over the embedded server: killed, paused and stopped, with answers lost."""

import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

pytest.importorskip("httptools")

from penstock.aws.aws_options import AwsOptions
from penstock.aws.queues import AwsQueues
from penstock_local import LocalKinesisProcess
from queue_rig import knows_queues
from waiting import wait_until

pytestmark = knows_queues

PROGRAM = Path(__file__).with_name("queue_program.py")
SOAK = Path(__file__).parents[2] / "tools" / "soak_queue.py"


@pytest.fixture(scope="module")
def server():
    with LocalKinesisProcess() as server:
        yield server


@pytest.fixture
def start_workers(server, tmp_path):
    started = []

    def start(name, records, **options):
        started.append(Workers(server, name, tmp_path, records, **options))
        return started[-1]

    yield start
    for workers in started:
        workers.kill()


class Workers:
    """Processes that consume one queue; each writes the records that it has done into its file."""

    def __init__(self, server, name, folder, records, **options):
        self.server, self.name, self.folder = server, name, folder
        self.options = options
        self.kinesis = server.client("kinesis")
        self.kinesis.create_stream(StreamName=name, StreamModeDetails={"StreamMode": "ON_DEMAND"})
        self.kinesis.get_waiter("stream_exists").wait(StreamName=name, WaiterConfig={"Delay": 1})
        self.queues = AwsQueues(AwsOptions(**server.connection()))
        self.sent = [f"r{n}" for n in range(records)]
        for start in range(0, records, 500):
            self.put(self.sent[start : start + 500])
        self.processes = {}

    def put(self, texts):
        """Put the records; those that the stream has no room for are put again."""
        refused = list(texts)

        def is_put():
            entries = [{"Data": text.encode(), "PartitionKey": text} for text in refused]
            results = self.kinesis.put_records(StreamName=self.name, Records=entries)["Records"]
            refused[:] = [
                text for text, result in zip(refused, results, strict=True) if "ErrorCode" in result
            ]
            return not refused

        wait_until(is_put, "room in the stream")

    def start(self, worker):
        options = [f"{name}={value}" for name, value in self.options.items()]
        log = (self.folder / f"{worker}.log").open("w")
        with log:
            self.processes[worker] = subprocess.Popen(
                [
                    sys.executable,
                    str(PROGRAM),
                    self.server.endpoint_url,
                    self.name,
                    worker,
                    str(self.folder),
                    *options,
                ],
                stdout=log,
                stderr=log,
            )

    def done(self):
        counts = Counter()
        for file in self.folder.glob("*.done"):
            counts.update(line for line in file.read_text().split("\n")[:-1])
        return counts

    def stop(self, *, deadline_s=90):
        for process in self.processes.values():
            process.send_signal(signal.SIGTERM)
        for process in self.processes.values():
            process.wait(deadline_s)

    def left(self):
        queue = self.server.state()["streams"][self.name]["queues"].get(self.name)
        if queue is None:  # no worker has created it yet
            return len(self.sent)
        return queue["visible"] + queue["in_flight"] + queue["dead_letters"]

    def kill(self):
        for process in self.processes.values():
            process.kill()
            process.wait(60)


def test_twenty_workers_lose_nothing_when_three_are_killed(start_workers):
    workers = start_workers("killed", 6_000, visibility_timeout_s=5, concurrency=4)
    for n in range(20):
        workers.start(f"w{n}")
    wait_until(lambda: sum(workers.done().values()) > 500, "the workers to work")
    for name in ("w0", "w1", "w2"):
        workers.processes[name].kill()
    wait_until(lambda: workers.left() == 0, "every record to be acknowledged", deadline_s=240)
    workers.stop()
    done = workers.done()
    assert set(done) == set(workers.sent)
    # Only what the killed ones had in hand may come twice.
    assert sum(done.values()) <= len(workers.sent) * 1.05


def test_a_paused_worker_is_replaced_and_does_no_harm_when_it_wakes(start_workers):
    workers = start_workers("paused", 400, visibility_timeout_s=2, concurrency=4, pause_s=0.05)
    workers.start("a")
    workers.start("b")
    wait_until(lambda: sum(workers.done().values()) > 40)
    workers.processes["a"].send_signal(signal.SIGSTOP)
    try:
        wait_until(lambda: workers.left() == 0, deadline_s=120)
    finally:
        workers.processes["a"].send_signal(signal.SIGCONT)
    workers.stop()
    assert set(workers.done()) == set(workers.sent)
    assert [process.returncode for process in workers.processes.values()] == [0, 0]


def test_lost_answers_lose_no_record(server, start_workers):
    for operation in ("AcknowledgeQueueRecords", "UpdateQueueRecordsVisibility", "ReceiveQueueRecords"):
        server.faults.drop_after(operation, rate=0.1, count=60, stream="faulty")
        server.faults.throttle(operation, rate=0.1, count=60, stream="faulty")
    workers = start_workers("faulty", 1_500, visibility_timeout_s=5, concurrency=8)
    for n in range(3):
        workers.start(f"w{n}")
    wait_until(lambda: workers.left() == 0, "every record to be acknowledged", deadline_s=240)
    workers.stop()
    server.faults.clear()
    assert set(workers.done()) == set(workers.sent)


def test_a_stopped_worker_gives_back_at_once(start_workers):
    workers = start_workers("stopped", 50, visibility_timeout_s=3_600, concurrency=2, pause_s=0.3)
    workers.start("a")
    wait_until(lambda: sum(workers.done().values()) > 4)
    workers.stop()
    assert workers.processes["a"].returncode == 0
    workers.start("b")
    wait_until(lambda: workers.left() == 0, "the rest, an hour before its visibility ends")
    workers.stop()
    assert workers.done() == Counter(workers.sent), "a graceful stop repeats nothing"


def test_the_run_of_make_soak_passes_with_few_records():
    options = ("--records", "2000", "--workers", "3", "--seconds", "6")
    done = subprocess.run([sys.executable, SOAK, *options], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count(" 0 lost;") == 2
    assert done.stdout.endswith("passed\n")
