"""`penstock consume` in processes of its own, seen and reset from outside."""

import json
import logging
import subprocess
import sys

import pytest

pytest.importorskip("httptools")


from cli.commands.support import READERS, lease_rows, penstock, put, wait_until_active
from waiting import wait_until


@pytest.mark.parametrize("reader", READERS)
def test_consume_gives_its_leases_back_when_nobody_reads(kinesis, stream, reader):
    put(kinesis, stream, 200)
    command = (
        f"{sys.executable} -m penstock consume {stream} --application {stream} --from TRIM_HORIZON | {reader}"
    )
    answer = subprocess.run(command, shell=True, capture_output=True, text=True, timeout=60, check=True)
    assert answer.stdout.count("\n") == 1
    assert "ERROR" not in answer.stderr
    assert "Traceback" not in answer.stderr
    assert {row.get("leaseOwner") for row in lease_rows(kinesis, stream).values()} == {None}


def test_no_log_tells_of_a_reader_that_is_gone_whichever_handler_met_it(capsys, monkeypatch, caplog):
    """Two handlers print at once: the first one's failure stops the worker, the second fails while its shard is leaving."""
    log = logging.getLogger("penstock.consumer")
    told = ["the batch failed: BrokenPipeError()", "the batch failed while the shard was leaving"]

    class Broken:
        def __init__(self, *_, **__):
            """Record the arguments of a consumer."""

        def run(self):
            for message in told:
                log.error(message, exc_info=BrokenPipeError())
            log.error("something else", exc_info=ValueError("a defect"))

        request_stop = run

    monkeypatch.setattr("penstock.consumer.Consumer", Broken)
    assert penstock(capsys, "consume", "orders", "--application", "billing")[0] == 0
    assert [record.getMessage() for record in caplog.records if record.name == log.name] == ["something else"]


def test_consume_has_its_records_pushed(kinesis, stream, consume):
    put(kinesis, stream, 20)
    worker = consume("w1", stream, stream, "--json", "--fan-out", "pushed")
    wait_until(lambda: len(worker.lines()) == 20)
    assert worker.stop() == 0
    arn = kinesis.client("kinesis").describe_stream_summary(StreamName=stream)["StreamDescriptionSummary"][
        "StreamARN"
    ]
    consumers = kinesis.client("kinesis").list_stream_consumers(StreamARN=arn)["Consumers"]
    assert [consumer["ConsumerName"] for consumer in consumers] == ["pushed"]


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ([], ("polling", None)),
        (["--fan-out"], ("fan-out", None)),
        (["--fan-out", "look"], ("fan-out", "look")),
        (["--auto-fan-out"], ("auto", None)),
        (["--auto-fan-out", "look"], ("auto", "look")),
    ],
)
def test_consume_reads_as_its_options_say(capsys, monkeypatch, arguments, expected):
    made = []

    def make(*_, options, **__):
        made.append((options.retrieval, options.consumer_name))
        raise KeyboardInterrupt

    monkeypatch.setattr("penstock.consumer.Consumer", make)
    penstock(capsys, "consume", "orders", "--application", "billing", *arguments)
    assert made == [expected]


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


def test_restoring_something_else_is_refused(kinesis, stream, capsys, tmp_path, consume):
    worker = consume("w1", stream, "other")
    wait_until(lambda: len(lease_rows(kinesis, "other")) == 4)
    worker.stop()
    (tmp_path / "x.json").write_text("{}")
    status, _, err = penstock(capsys, "leases", "other", "--restore", "x.json", "--observe", "0")
    assert (status, "not a backup of a lease table" in err) == (2, True)
    (tmp_path / "y.json").write_text('{"format": "penstock lease backup 1", "table": "t", "leases": []}')
    status, _, err = penstock(capsys, "leases", "other", "--restore", "y.json", "--observe", "0")
    assert (status, "a backup of table t, not of other" in err) == (2, True)


def test_an_application_gets_another_name_by_a_backup_of_its_leases(kinesis, stream, capsys, consume):
    put(kinesis, stream, 20)
    worker = consume("w1", stream, "old-name")
    wait_until(lambda: len(worker.lines()) == 20)
    worker.stop()
    assert penstock(capsys, "leases", "old-name", "--backup", "old.json")[0] == 0
    status, _, err = penstock(capsys, "leases", "new-name", "--restore", "old.json")
    assert (status, "for a new application add --create" in err) == (1, True)
    status, out, _ = penstock(capsys, "leases", "new-name", "--restore", "old.json", "--create")
    assert (status, out) == (0, "4 leases restored from old.json\n")
    checkpoints = [
        {key: row["checkpoint"] for key, row in lease_rows(kinesis, table).items()}
        for table in ("old-name", "new-name")
    ]
    assert checkpoints[0] == checkpoints[1]


# --- text from outside ----------------------------------------------------------------------------------

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
        "penstock consume: DynamoDB table foreign is not a lease table: its key"
    )
