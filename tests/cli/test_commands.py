"""The commands against the embedded Kinesis."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import time

import pytest

pytest.importorskip("httptools")

from penstock.cli import main as cli
from penstock.local import LocalKinesis


@pytest.fixture(scope="module")
def kinesis():
    with LocalKinesis() as server:
        yield server


@pytest.fixture(autouse=True)
def environ(kinesis, monkeypatch, tmp_path):
    for name, value in kinesis.environ().items():
        monkeypatch.setenv(name, value)
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def stream(kinesis, request):
    name = f"s{abs(hash(request.node.name))}"
    kinesis.create_stream(name, 4)
    return name


def penstock(capsys, *arguments: str) -> tuple[int, str, str]:
    capsys.readouterr()
    status = cli.main([*arguments])
    said = capsys.readouterr()
    return status, said.out, said.err


def put(kinesis, stream, count, prefix="r"):
    records = [{"Data": f"{prefix}{n}".encode(), "PartitionKey": f"k{n}"} for n in range(count)]
    answer = kinesis.client("kinesis").put_records(StreamName=stream, Records=records)
    assert answer["FailedRecordCount"] == 0


class Worker:
    """A `penstock consume` in a process of its own."""

    def __init__(self, folder, name, stream, application, *arguments):
        self.out = folder / f"{name}.out"
        self.err = folder / f"{name}.err"
        command = [sys.executable, "-m", "penstock", "consume", stream, "--application", application]
        command += ["--worker-id", name, "--from", "TRIM_HORIZON", "--lease-duration", "8", *arguments]
        with self.out.open("w") as out, self.err.open("w") as err:
            self.process = subprocess.Popen(command, stdout=out, stderr=err, env=os.environ.copy())

    def lines(self):
        return self.out.read_text().splitlines()

    def stop(self) -> int:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        return self.process.wait(60)


@pytest.fixture
def consume(tmp_path):
    workers = []

    def start(*arguments):
        workers.append(Worker(tmp_path, *arguments))
        return workers[-1]

    yield start
    for worker in workers:
        worker.process.kill()
        worker.process.wait()


def wait_until(is_true, timeout_s=60.0) -> None:
    end_s = time.monotonic() + timeout_s
    while not is_true():
        assert time.monotonic() < end_s
        threading.Event().wait(0.05)


def wait_until_active(client, stream) -> None:
    def is_active():
        summary = client.describe_stream_summary(StreamName=stream)["StreamDescriptionSummary"]
        return summary["StreamStatus"] == "ACTIVE"

    wait_until(is_active)


def lease_rows(kinesis, table):
    dynamodb = kinesis.client("dynamodb")
    with contextlib.suppress(dynamodb.exceptions.ResourceNotFoundException):
        items = dynamodb.scan(TableName=table)["Items"]
        return {
            item["leaseKey"]["S"]: {name: next(iter(v.values())) for name, v in item.items()}
            for item in items
        }
    return {}


# --- shards ---------------------------------------------------------------------------------------------


def test_shards_shows_the_lineage_as_a_tree(kinesis, stream, capsys):
    client = kinesis.client("kinesis")
    client.split_shard(StreamName=stream, ShardToSplit="shardId-000000000000", NewStartingHashKey=str(2**125))
    wait_until_active(client, stream)
    client.merge_shards(
        StreamName=stream, ShardToMerge="shardId-000000000001", AdjacentShardToMerge="shardId-000000000002"
    )
    wait_until_active(client, stream)
    status, out, _ = penstock(capsys, "shards", stream)
    assert status == 0
    assert [line.rstrip() for line in out.splitlines()] == [
        stream,
        "├── shardId-000000000000  25.00% of the keys, closed",
        "│   ├── shardId-000000000004  12.50% of the keys, open",
        "│   └── shardId-000000000005  12.50% of the keys, open",
        "├── shardId-000000000001  25.00% of the keys, closed",
        "│   └── shardId-000000000006  50.00% of the keys, open, merged with shardId-000000000002",
        "├── shardId-000000000002  25.00% of the keys, closed",
        "└── shardId-000000000003  25.00% of the keys, open",
        "4 open, 3 closed",
    ]
    document = json.loads(penstock(capsys, "shards", stream, "--json")[1])
    assert [shard["shard_id"][-1] for shard in document if shard["is_open"]] == ["3", "4", "5", "6"]
    assert document[6]["parents"] == ["shardId-000000000001", "shardId-000000000002"]


def test_a_stream_that_does_not_exist_is_one_line_and_exit_1(capsys):
    status, out, err = penstock(capsys, "shards", "nosuch")
    assert (status, out) == (1, "")
    assert err.startswith("penstock shards: ")
    assert "nosuch" in err
    assert err.count("\n") == 1


# --- tail -----------------------------------------------------------------------------------------------


def test_tail_prints_what_is_there_and_leaves_no_trace(kinesis, stream, capsys):
    put(kinesis, stream, 20)
    status, out, _ = penstock(capsys, "tail", stream, "--from", "TRIM_HORIZON", "--json", "--count", "20")
    documents = [json.loads(line) for line in out.splitlines()]
    assert status == 0
    assert sorted(d["data"] for d in documents) == sorted(f"r{n}" for n in range(20))
    assert {tuple(sorted(d)) for d in documents} == {
        (
            "approximate_arrival_timestamp",
            "data",
            "explicit_hash_key",
            "partition_key",
            "sequence_number",
            "shard_id",
            "sub_sequence_number",
        )
    }
    assert "tail" not in kinesis.client("dynamodb").list_tables()["TableNames"]


def test_tail_prints_columns_for_people_and_bytes_as_base64(kinesis, stream, capsys):
    kinesis.client("kinesis").put_record(StreamName=stream, Data=b"\xff\x00", PartitionKey="k1")
    _, out, _ = penstock(capsys, "tail", stream, "--from", "TRIM_HORIZON", "--count", "1")
    shard, arrival, key, data = out.split()
    assert (key, data) == ("k1", "/wA=")
    assert shard in "0123"
    assert len(arrival) == len("12:34:56.789")


def test_tail_follows_a_split(kinesis, stream, capsys):
    put(kinesis, stream, 20)
    client = kinesis.client("kinesis")
    client.split_shard(StreamName=stream, ShardToSplit="shardId-000000000000", NewStartingHashKey=str(2**125))
    wait_until_active(client, stream)
    put(kinesis, stream, 40, "n")
    _, out, _ = penstock(capsys, "tail", stream, "--from", "TRIM_HORIZON", "--json", "--count", "60")
    assert len({json.loads(line)["data"] for line in out.splitlines()}) == 60


@pytest.mark.parametrize(
    ("arguments", "word"),
    [(["--from", "yesterday"], "yesterday"), (["--count", "0"], "--count 0")],
)
def test_wrong_values_are_usage_errors(stream, capsys, arguments, word):
    status, _, err = penstock(capsys, "tail", stream, *arguments)
    assert status == 2
    assert word in err


# The second one leaves while there is nothing more to write, when no write tells of it.
READERS = ["head -n 1", "(read line; echo $line; sleep 1)"]


@pytest.mark.parametrize("reader", READERS)
def test_tail_ends_quietly_when_nobody_reads(kinesis, stream, reader):
    put(kinesis, stream, 200)
    command = f"{sys.executable} -m penstock tail {stream} --from TRIM_HORIZON | {reader}"
    answer = subprocess.run(command, shell=True, capture_output=True, text=True, timeout=60, check=True)
    assert answer.stdout.count("\n") == 1
    assert answer.stderr == ""


def test_tail_has_succeeded_when_all_that_was_asked_for_was_read(kinesis, stream):
    put(kinesis, stream, 20)
    command = f"{sys.executable} -m penstock tail {stream} --from TRIM_HORIZON --count 5 | head -n 5"
    for _ in range(4):  # the reader goes while tail is stopping, sometimes before a look and sometimes after
        subprocess.run(["bash", "-o", "pipefail", "-c", command], capture_output=True, timeout=60, check=True)


@pytest.mark.parametrize("reader", READERS)
def test_consume_gives_its_leases_back_when_nobody_reads(kinesis, stream, reader):
    put(kinesis, stream, 200)
    command = (
        f"{sys.executable} -m penstock consume {stream} --application {stream} --from TRIM_HORIZON | {reader}"
    )
    answer = subprocess.run(command, shell=True, capture_output=True, text=True, timeout=60, check=True)
    assert answer.stdout.count("\n") == 1
    assert {row.get("leaseOwner") for row in lease_rows(kinesis, stream).values()} == {None}


# --- consume and leases ---------------------------------------------------------------------------------


def test_workers_share_stop_and_are_seen_and_reset_and_restored(kinesis, stream, capsys, consume, tmp_path):
    put(kinesis, stream, 100)
    first = consume("w1", stream, "shared", "--json")
    second = consume("w2", stream, "shared", "--json")
    wait_until(lambda: len(first.lines()) + len(second.lines()) == 100)

    def shares():
        rows = lease_rows(kinesis, "shared").values()
        # A lease that is being handed over is still its old owner's.
        return sorted([row.get("checkpointOwner", row.get("leaseOwner")) for row in rows], key=str)

    wait_until(lambda: shares() == ["w1", "w1", "w2", "w2"])
    status, out, _ = penstock(capsys, "leases", "shared", "--json", "--stream", stream, "--observe", "30")
    document = json.loads(out)
    assert status == 0
    assert document["workers"] == {"w1": 2, "w2": 2}
    assert [(row["state"], row["has_moved"]) for row in document["leases"]] == [("read", True)] * 4
    assert {row["millis_behind_latest"] for row in document["leases"]} == {0}
    _, shown, _ = penstock(capsys, "leases", "shared", "--observe", "30")
    assert shown.splitlines()[0].split() == ["shard", "state", "owner", "counter", "age", "checkpoint"]
    assert f"w1  {'█' * 40} 2" in shown

    status, _, err = penstock(capsys, "leases", "shared", "--reset-to", "TRIM_HORIZON", "--observe", "30")
    assert status == 1
    assert "live workers (w1, w2): stop them first, or add --force" in err
    assert list(tmp_path.glob("*.json")) == []

    assert (first.stop(), second.stop()) == (0, 0)
    wait_until(lambda: shares() == [None] * 4)
    before = lease_rows(kinesis, "shared")
    status, out, _ = penstock(
        capsys, "leases", "shared", "--reset-to", "TRIM_HORIZON", "--stream", stream, "--backup", "b.json"
    )
    assert status == 0
    assert "4 leases set to TRIM_HORIZON; take it back with --restore b.json" in out
    assert {row["checkpoint"] for row in lease_rows(kinesis, "shared").values()} == {"TRIM_HORIZON"}
    status, _, err = penstock(capsys, "leases", "shared", "--reset-to", "LATEST", "--backup", "b.json")
    assert (status, "b.json exists" in err) == (2, True)
    status, out, _ = penstock(capsys, "leases", "shared", "--restore", "b.json")
    assert (status, out) == (0, "4 leases restored from b.json\n")
    after = lease_rows(kinesis, "shared")
    assert {key: row["checkpoint"] for key, row in after.items()} == {
        key: row["checkpoint"] for key, row in before.items()
    }
    third = consume("w3", stream, "shared", "--json")
    put(kinesis, stream, 10, "n")
    wait_until(lambda: len(third.lines()) >= 10)
    assert third.stop() == 0
    assert sorted(json.loads(line)["data"] for line in third.lines()) == sorted(f"n{n}" for n in range(10))


def test_a_finished_parent_is_read_again_after_a_reset_that_knows_the_stream(
    kinesis, stream, capsys, consume
):
    put(kinesis, stream, 40)
    client = kinesis.client("kinesis")
    client.split_shard(StreamName=stream, ShardToSplit="shardId-000000000000", NewStartingHashKey=str(2**125))
    wait_until_active(client, stream)
    put(kinesis, stream, 40, "n")
    first = consume("w1", stream, "replay", "--json")
    wait_until(lambda: len(first.lines()) == 80)
    first.stop()
    penstock(
        capsys, "leases", "replay", "--reset-to", "TRIM_HORIZON", "--stream", stream, "--backup", "r.json"
    )
    second = consume("w2", stream, "replay", "--json")
    wait_until(lambda: len(second.lines()) == 80)
    second.stop()
    shards = [json.loads(line)["shard_id"][-1] for line in second.lines()]
    assert max(i for i, s in enumerate(shards) if s == "0") < min(
        i for i, s in enumerate(shards) if s in "45"
    )


def test_consume_serves_its_metrics(kinesis, stream, consume):
    import socket
    import urllib.request

    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    put(kinesis, stream, 10)
    worker = consume("w1", stream, "measured", "--metrics-port", f"localhost:{port}")

    def total():
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics") as answer:
            body = answer.read().decode()
        return sum(
            float(line.split()[1])
            for line in body.splitlines()
            if line.startswith('penstock_records_total{application="measured",')
        )

    wait_until(lambda: len(worker.lines()) == 10)
    wait_until(lambda: total() == 10)  # counted when the handler has returned, so after its lines
    for path in ("health", "ready"):
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/{path}") as answer:
            assert json.load(answer)["consumers"][0]["worker_id"] == "w1"
    assert worker.stop() == 0


def test_leases_of_an_application_without_a_table_are_an_error(capsys):
    status, _, err = penstock(capsys, "leases", "nosuch")
    assert status == 1
    assert "nosuch" in err


def test_restoring_something_else_is_refused(kinesis, stream, capsys, tmp_path, consume):
    worker = consume("w1", stream, "other")
    wait_until(lambda: len(lease_rows(kinesis, "other")) == 4)
    worker.stop()
    (tmp_path / "x.json").write_text("{}")
    status, _, err = penstock(capsys, "leases", "other", "--restore", "x.json", "--observe", "0")
    assert (status, "no backup of a lease table" in err) == (2, True)
    (tmp_path / "y.json").write_text('{"format": "penstock lease backup 1", "table": "t", "leases": []}')
    status, _, err = penstock(capsys, "leases", "other", "--restore", "y.json", "--observe", "0")
    assert (status, "a backup of table t, not of other" in err) == (2, True)


# --- what comes from outside ----------------------------------------------------------------------------

HOSTILE = "k[/x]\x1b[31m\nnext\u202e"
SHOWN = "k[/x]\\x1b[31m\\nnext\\u202e"


def put_hostile(kinesis, stream):
    kinesis.client("kinesis").put_record(
        StreamName=stream, Data=f"d{HOSTILE}".encode(), PartitionKey=f"p{HOSTILE}"
    )


@pytest.mark.parametrize(
    "command", [["tail", "--count", "1"], ["consume", "--application", "hostile-records"]]
)
def test_a_record_cannot_command_the_terminal_that_shows_it(kinesis, stream, command):
    put_hostile(kinesis, stream)
    name, *options = command
    shell = (
        f"{sys.executable} -m penstock {name} {stream} {' '.join(options)} --from TRIM_HORIZON | head -n 1"
    )
    answer = subprocess.run(shell, shell=True, capture_output=True, text=True, timeout=60, check=True)
    assert answer.stdout.rstrip("\n").endswith(f"p{SHOWN}  d{SHOWN}")


def test_json_of_a_hostile_record_is_safe_and_exact(kinesis, stream, capsys):
    put_hostile(kinesis, stream)
    _, out, _ = penstock(capsys, "tail", stream, "--from", "TRIM_HORIZON", "--json", "--count", "1")
    assert out.count("\n") == 1
    assert not {"\x1b", "\u202e"} & set(out)
    assert json.loads(out)["data"] == f"d{HOSTILE}"


def test_data_alone_is_given_byte_by_byte_to_a_program(kinesis, stream):
    kinesis.client("kinesis").put_record(StreamName=stream, Data=b"\x1b\xff\x00", PartitionKey="k")
    command = [sys.executable, "-m", "penstock", "tail", stream, "--from", "TRIM_HORIZON"]
    answer = subprocess.run([*command, "--count", "1", "--data"], capture_output=True, timeout=60, check=True)
    assert answer.stdout == b"\x1b\xff\x00\n"


def test_a_lease_cannot_command_the_terminal_that_shows_it(kinesis, capsys):
    dynamodb = kinesis.client("dynamodb")
    dynamodb.create_table(
        TableName="hostile-leases",
        KeySchema=[{"AttributeName": "leaseKey", "KeyType": "HASH"}],
        AttributeDefinitions=[{"AttributeName": "leaseKey", "AttributeType": "S"}],
        BillingMode="PAY_PER_REQUEST",
    )
    lease = {
        "leaseKey": {"S": HOSTILE},
        "leaseOwner": {"S": f"w{HOSTILE}"},
        "leaseCounter": {"N": "1"},
        "checkpoint": {"S": "TRIM_HORIZON"},
    }
    dynamodb.put_item(TableName="hostile-leases", Item=lease)
    strange = {"leaseKey": {"S": f"x{HOSTILE}"}, "entityType": {"S": f"e{HOSTILE}"}}
    dynamodb.put_item(TableName="hostile-leases", Item=strange)
    status, out, err = penstock(capsys, "leases", "hostile-leases", "--observe", "0")
    assert status == 0
    assert f"\n{SHOWN}" in out
    assert f"w{SHOWN}  █" in out
    assert f"its entityType is e{SHOWN}" in err
    assert not {"\x1b", "\u202e"} & set(out + err)
    status, out, _ = penstock(capsys, "leases", "hostile-leases", "--observe", "0", "--json")
    assert json.loads(out)["leases"][0]["owner"] == f"w{HOSTILE}"
    assert not {"\x1b", "\u202e"} & set(out)


# --- standing still -------------------------------------------------------------------------------------


def test_consume_on_a_table_that_is_no_lease_table_ends_with_one_clear_error(kinesis, stream, capsys):
    kinesis.client("dynamodb").create_table(
        TableName="foreign",
        KeySchema=[{"AttributeName": "id", "KeyType": "HASH"}],
        AttributeDefinitions=[{"AttributeName": "id", "AttributeType": "S"}],
        BillingMode="PAY_PER_REQUEST",
    )
    status, out, err = penstock(capsys, "consume", stream, "--application", "foreign")
    assert (status, out) == (1, "")
    assert err.splitlines()[-1].startswith(
        "penstock consume: DynamoDB table foreign is no lease table: its key"
    )


STOPPING = """
import sys
from penstock import Consumer
def handle(batch):
    if batch.shard_id.endswith("0"):
        raise ValueError("no such \\x1bcustomer")
Consumer(sys.argv[1], sys.argv[2], handle, worker_id="w1", starting_position="TRIM_HORIZON", handler_retries_max=0,
         cold_start_jitter_s=0.0).run()
"""


def test_a_stopped_shard_is_seen_from_another_process_and_the_end_is_an_error(kinesis, stream, capsys):
    put(kinesis, stream, 100)
    process = subprocess.Popen(
        [sys.executable, "-c", STOPPING, stream, "standing"], stderr=subprocess.DEVNULL
    )
    try:
        wait_until(lambda: any("penstockStopped" in row for row in lease_rows(kinesis, "standing").values()))
        _, out, _ = penstock(capsys, "leases", "standing", "--observe", "30")
        states = {line.split()[0][-1]: line.split()[1] for line in out.splitlines()[1:5]}
        assert states == {"0": "stopped", "1": "read", "2": "read", "3": "read"}
        said = "shardId-000000000000 has stopped: handler_failed: ValueError: no such \\x1bcustomer (more in the log of w1)"
        assert out.splitlines()[5] == said
        _, out, _ = penstock(capsys, "leases", "standing", "--observe", "30", "--json")
        assert (
            json.loads(out)["leases"][0]["stopped_reason"]
            == "handler_failed: ValueError: no such \x1bcustomer"
        )
    finally:
        process.terminate()
        process.wait(60)


def test_consume_ends_with_an_error_when_its_stream_is_deleted(kinesis, stream, consume):
    put(kinesis, stream, 10)
    worker = consume("w1", stream, "orphaned", "--lease-duration", "2")
    wait_until(lambda: len(worker.lines()) == 10)
    kinesis.client("kinesis").delete_stream(StreamName=stream)
    assert worker.process.wait(60) == 1
    assert "every shard that worker w1 held has stopped" in worker.err.read_text()
