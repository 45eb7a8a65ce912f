"""Real processes against the embedded Kinesis: killed, paused, joined and stopped under load.

A record counts as delivered when the handler has written it to the worker's file. The lines of all files are counted, so
a record that two workers got counts twice. Without faults each record is delivered exactly once, so the bound on
repetition is 105 % of the records sent.
"""

import contextlib
import itertools
import json
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from pathlib import Path

import pytest

pytest.importorskip("httptools")

from lease_logs import assert_behaves_as_the_model, create_table, lease_log
from penstock.core.aggregation import AggregateBuilder
from penstock.core.position import Position, parse_checkpoint
from penstock_local import LocalKinesisProcess
from spark_support import wait_active
from waiting import wait_until

PROGRAM = Path(__file__).with_name("worker_program.py")
STOP_S = 90  # a worker's own bound is 30 s


@pytest.fixture(scope="module")
def kinesis():
    with LocalKinesisProcess() as server:
        yield server


class Fleet:
    """Worker processes of one application."""

    def __init__(self, endpoint: str, stream: str, application: str, folder: Path, **options) -> None:
        self._fixed = [endpoint, stream, application]
        self.folder = folder
        self._options = [f"{name}={json.dumps(value)}" for name, value in options.items()]
        self.processes: dict[str, subprocess.Popen] = {}
        self._counts: Counter = Counter()
        self._read_through: Counter = Counter()

    def start(self, name: str) -> subprocess.Popen:
        log = (self.folder / f"{name}.log").open("w")
        with log:
            process = subprocess.Popen(
                [sys.executable, str(PROGRAM), *self._fixed, name, str(self.folder), *self._options],
                stdout=log,
                stderr=log,
            )
        self.processes[name] = process
        return process

    def delivered(self) -> Counter:
        """Count deliveries per record; only new lines of the files are read."""
        for path in self.folder.glob("*.records"):
            with path.open("rb") as file:
                file.seek(self._read_through[path])
                text = file.read()
            whole = text[: text.rfind(b"\n") + 1]
            self._read_through[path] += len(whole)
            self._counts.update(line.partition(b" ")[0].decode() for line in whole.splitlines())
        return self._counts

    def stop(self) -> dict[str, int]:
        alive = {name: process for name, process in self.processes.items() if process.poll() is None}
        for process in alive.values():
            process.send_signal(signal.SIGTERM)
        codes = {}
        for name, process in alive.items():
            try:
                codes[name] = process.wait(STOP_S)
            except subprocess.TimeoutExpired:
                process.kill()
                codes[name] = process.wait()
        return codes


@pytest.fixture
def fleet(kinesis, tmp_path):
    made = []

    def make(stream, application, **options):
        fleet = Fleet(kinesis.endpoint_url, stream, application, tmp_path, **options)
        made.append(fleet)
        return fleet

    yield make
    for fleet in made:
        for process in fleet.processes.values():
            if process.poll() is None:
                with contextlib.suppress(ProcessLookupError):
                    process.send_signal(signal.SIGCONT)
                process.kill()
            process.wait()


def owners(client, application) -> dict[str, str | None]:
    """Return who reads each unfinished shard: while a lease is handed over, the old owner."""
    rows = client.scan(TableName=application, ConsistentRead=True)["Items"]
    return {
        row["leaseKey"]["S"]: (row.get("checkpointOwner") or row.get("leaseOwner") or {}).get("S")
        for row in rows
        if row["checkpoint"]["S"] != "SHARD_END"
    }


def holders(client, application: str) -> Counter:
    """Count the unfinished leases per owner; nothing while there is no table yet."""
    with contextlib.suppress(client.exceptions.ResourceNotFoundException):
        return Counter(owners(client, application).values())
    return Counter()


def put_all(client, stream: str, entries: list[dict]) -> None:
    """Put records, refused ones again, until all are in."""
    end_s = time.monotonic() + 30
    while entries:
        answer = client.put_records(StreamName=stream, Records=entries)
        entries = [
            entry for entry, given in zip(entries, answer["Records"], strict=True) if "ErrorCode" in given
        ]
        if entries:
            assert time.monotonic() < end_s
            threading.Event().wait(0.05)


def entries_for(numbers: range) -> list[dict]:
    """One record in ten lies in an aggregate, ten of them together."""
    entries, builder = [], AggregateBuilder()
    for number in numbers:
        data = f"{number} {'x' * 60}".encode()
        if number % 100 < 10:
            builder.add(data, f"k{number // 10}")
            if number % 100 == 9:
                packed = builder.build()
                entry = {"Data": packed.data, "PartitionKey": packed.partition_key}
                entries.append({**entry, "ExplicitHashKey": packed.explicit_hash_key})
                builder = AggregateBuilder()
        else:
            entries.append({"Data": data, "PartitionKey": f"k{number}"})
    return entries


class Producer(threading.Thread):
    """Puts about 2,500 records a second, so that every fault happens under load."""

    def __init__(self, client, stream: str, total: int) -> None:
        super().__init__(daemon=True)
        self._client = client
        self._stream = stream
        self._total = total
        self.sent_count = 0

    def run(self) -> None:
        began_s = time.monotonic()
        for start in range(0, self._total, 500):
            put_all(self._client, self._stream, entries_for(range(start, start + 500)))
            self.sent_count = start + 500
            threading.Event().wait(max(0.0, began_s + self.sent_count / 2_500 - time.monotonic()))


def open_shards(client, stream):
    shards = client.list_shards(StreamName=stream)["Shards"]
    found = [s for s in shards if "EndingSequenceNumber" not in s["SequenceNumberRange"]]
    return sorted(found, key=lambda s: int(s["HashKeyRange"]["StartingHashKey"]))


def split(client, stream, place):
    wait_active(client, stream)
    shard = open_shards(client, stream)[place]
    bounds = shard["HashKeyRange"]
    middle = (int(bounds["StartingHashKey"]) + int(bounds["EndingHashKey"])) // 2
    client.split_shard(StreamName=stream, ShardToSplit=shard["ShardId"], NewStartingHashKey=str(middle))


def merge(client, stream, place):
    wait_active(client, stream)
    left, right = open_shards(client, stream)[place : place + 2]
    client.merge_shards(
        StreamName=stream, ShardToMerge=left["ShardId"], AdjacentShardToMerge=right["ShardId"]
    )


def read_position(text: str) -> Position:
    number, _, sub = text.partition(".")
    return parse_checkpoint(number, int(sub or 0))


def check_checkpoints_never_went_back(folder: Path) -> int:
    """Every write bumps the counter but a late checkpoint, so the counter orders what all workers wrote."""
    by_key: dict[str, list[tuple[int, Position]]] = {}
    for path in folder.glob("*.writes"):
        for line in path.read_text().splitlines():
            key, counter, checkpoint, _, _ = json.loads(line)
            by_key.setdefault(key, []).append((counter, read_position(checkpoint)))
    for key, written in by_key.items():
        written.sort()
        for (_, before), (counter, after) in itertools.pairwise(written):
            assert before <= after, f"{key}: {before} then {after} at counter {counter}"
    return sum(len(written) for written in by_key.values())


# A mark on the function would overrule the one on a case.
@pytest.mark.parametrize(
    "rounds",
    [
        pytest.param(1, id="two kills", marks=pytest.mark.timeout(900)),
        pytest.param(4, id="eight kills", marks=[pytest.mark.soak, pytest.mark.timeout(5400)]),
    ],
)
def test_nothing_is_lost_and_little_repeated_through_kills_pauses_and_reshards(
    kinesis, fleet, tmp_path, rounds
):
    total = 100_000 * rounds
    stream, application = f"orders-{rounds}", f"billing-{rounds}"
    kinesis.create_stream(stream, 16)
    client = kinesis.client("kinesis")
    create_table(kinesis, application)
    workers = fleet(
        stream,
        application,
        starting_position="TRIM_HORIZON",
        lease_duration_s=4.0,
        cold_start_jitter_s=0.5,
        checkpoint_interval_s=0.4,
        idle_time_between_reads_s=0.5,
        max_records=500,
    )
    dynamo = kinesis.client("dynamodb")
    for name in ("w1", "w2", "w3"):
        workers.start(name)

    wait_until(lambda: sorted(holders(dynamo, application).values()) == [5, 5, 6], "three shares", 120)
    producer = Producer(kinesis.client("kinesis"), stream, total)

    def calm() -> None:
        """Wait until the backlog has been small for two seconds.

        A death repeats the records that were delivered since the last checkpoint: few, unless a backlog was just worked
        off at full speed.
        """
        since_s = [time.monotonic()]

        def is_calm() -> bool:
            if producer.sent_count - len(workers.delivered()) > 2_000:
                since_s[0] = time.monotonic()
            return time.monotonic() - since_s[0] >= 2.0

        wait_until(is_calm, "a small backlog", 120)

    def kill(name: str, successor: str) -> None:
        calm()
        workers.processes[name].kill()
        workers.start(successor)

    def pause(name: str) -> None:
        calm()
        workers.processes[name].send_signal(signal.SIGSTOP)
        wait_until(lambda: name not in holders(dynamo, application), "others have its leases", 90)
        workers.processes[name].send_signal(signal.SIGCONT)

    def play(names: list[str], start: int) -> list[str]:
        """Kill two workers, pause one, split and merge shards; return the names of the workers that are left."""
        first, paused, last = names
        new = [f"w{len(workers.processes) + place}" for place in (1, 2)]
        story = [
            (10_000, lambda: split(client, stream, 3)),
            (15_000, lambda: kill(first, new[0])),
            (25_000, lambda: merge(client, stream, 8)),
            (33_000, lambda: split(client, stream, 0)),
            (35_000, lambda: pause(paused)),
            (62_000, lambda: merge(client, stream, 3)),
            (65_000, lambda: kill(last, new[1])),
            (80_000, lambda: split(client, stream, 10)),
        ]
        for sent_count, act in story:
            wait_until(lambda count=start + sent_count: producer.sent_count >= count, "the story", 120)
            act()
        return [new[0], paused, new[1]]

    producer.start()
    names = ["w1", "w2", "w3"]
    for done in range(rounds):
        names = play(names, 100_000 * done)
    producer.join(120)
    assert producer.sent_count == total
    wait_until(lambda: len(workers.delivered()) == total, "every record is delivered", 180)
    wait_until(lambda: holders(dynamo, application)[names[-1]] > 0, "the last worker has leases", 120)
    codes = workers.stop()
    assert codes == dict.fromkeys(names, 0)
    counts = workers.delivered()
    assert set(counts) == {str(number) for number in range(total)}
    deliveries = sum(counts.values())
    assert deliveries <= 1.05 * total, f"{deliveries} deliveries of {total} records"
    assert check_checkpoints_never_went_back(tmp_path) > 500
    assert_behaves_as_the_model(kinesis, stream, lease_log(kinesis, application), tmp_path)


def test_the_checker_of_checkpoints_finds_one_that_went_back(tmp_path):
    lines = [["s", 1, "10.0", "Checkpoint", "a"], ["s", 2, "9.5", "Checkpoint", "b"]]
    (tmp_path / "a.writes").write_text("\n".join(json.dumps(line) for line in lines))
    with pytest.raises(AssertionError, match=r"10\.0 then 9\.5"):
        check_checkpoints_never_went_back(tmp_path)


def test_a_politely_stopped_worker_is_replaced_and_a_new_one_gets_its_share(kinesis, fleet):
    lease_s = 8.0
    kinesis.create_stream("polite", 12)
    dynamo = kinesis.client("dynamodb")
    workers = fleet(
        "polite",
        "polite-app",
        starting_position="TRIM_HORIZON",
        lease_duration_s=lease_s,
        cold_start_jitter_s=0.0,
    )
    for name in ("w1", "w2", "w3"):
        workers.start(name)

    def shares() -> list[int]:
        with contextlib.suppress(dynamo.exceptions.ResourceNotFoundException):
            return sorted(Counter(owners(dynamo, "polite-app").values()).values())
        return []

    wait_until(lambda: shares() == [4, 4, 4], "three fair shares", 90)
    process = workers.processes["w2"]
    process.send_signal(signal.SIGTERM)
    assert process.wait(STOP_S) == 0
    wait_until(lambda: shares() == [6, 6], "the others have its leases", 120)
    workers.start("w4")
    wait_until(lambda: "w4" in owners(dynamo, "polite-app").values(), "the new worker holds a lease", 60)
    wait_until(lambda: shares() == [4, 4, 4], "three fair shares again", 120)
    assert set(workers.stop().values()) == {0}
    assert set(owners(dynamo, "polite-app").values()) == {None}
