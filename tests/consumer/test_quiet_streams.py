"""Streams that are quiet for longer than their retention, on the embedded server, whose clock the test moves."""

import logging
import threading
import time

import pytest

from penstock.consumer import Consumer
from penstock_local import LocalKinesis

HOUR_S = 3600.0
DEADLINE_S = 60.0


@pytest.fixture(scope="module")
def server():
    with LocalKinesis(limits=False, settle_s=0) as server:
        yield server


class Application:
    """One application on a stream of its own."""

    def __init__(self, server, name, shards=1):
        self.server = server
        self.name = name
        self.client = server.client("kinesis")
        self.dynamo = server.client("dynamodb")
        self.seen = []
        self.sent = 0
        server.create_stream(name, shards=shards)

    def worker(self, worker_id, **options):
        return Consumer(
            self.name,
            f"{self.name}-app",
            lambda batch: self.seen.extend(int(record.data) for record in batch),
            connection=self.server.connection(),
            worker_id=worker_id,
            **{
                "starting_position": "TRIM_HORIZON",
                "lease_duration_s": 2.0,
                "idle_time_between_reads_s": 0.1,
                "cold_start_jitter_s": 0.0,
                "handover_timeout_s": 10.0,
                **options,
            },
        )

    def put(self, count):
        for number in range(self.sent, self.sent + count):
            self.client.put_record(StreamName=self.name, PartitionKey=f"k{number}", Data=str(number).encode())
        self.sent += count

    def wait(self, condition, what):
        deadline_s = time.monotonic() + DEADLINE_S
        while not condition():
            assert time.monotonic() < deadline_s, f"waited for {what}: {self.rows()}"
            threading.Event().wait(0.05)

    def wait_for_all(self):
        self.wait(lambda: sorted(set(self.seen)) == list(range(self.sent)), "every record")

    def rows(self):
        return self.dynamo.scan(TableName=f"{self.name}-app", ConsistentRead=True)["Items"]

    def owners(self):
        return {row.get("leaseOwner", {}).get("S") for row in self.rows() if "checkpointOwner" not in row}

    def pass_quietly(self, hours):
        """Pass time in steps; after each of them every lease has a mark that its reader was at the tip since."""
        for _ in range(hours // 5):
            self.server.clock.advance(5 * HOUR_S)
            now_ms = self.server.clock.now_ms()
            self.wait(
                lambda now_ms=now_ms: all(
                    int(row.get("penstockTipMillis", {"N": "0"})["N"]) >= now_ms - 2000 for row in self.rows()
                ),
                "a word of the tip",
            )


def test_a_second_worker_that_joins_a_quiet_stream_reads_the_shards_that_it_gets(server):
    app = Application(server, "joined", shards=4)
    app.put(40)
    with app.worker("a") as first:
        app.wait_for_all()
        app.pass_quietly(30)
        with app.worker("b") as second:
            app.wait(lambda: app.owners() == {"a", "b"}, "both to hold leases")
            app.put(40)
            app.wait_for_all()
            assert first.failures == second.failures == {}


def test_a_worker_that_restarts_on_a_quiet_stream_within_the_retention_goes_on(server):
    app = Application(server, "restarted")
    app.put(10)
    with app.worker("a"):
        app.wait_for_all()
        app.pass_quietly(30)
    server.clock.advance(20 * HOUR_S)
    with app.worker("b") as worker:
        app.put(5)
        app.wait_for_all()
        assert worker.failures == {}


def test_a_shard_whose_tip_nobody_has_seen_within_the_retention_stops_as_a_loss(server):
    app = Application(server, "missed", shards=2)
    app.put(10)
    with app.worker("a"):
        app.wait_for_all()
    server.clock.advance(25 * HOUR_S)
    app.put(1)
    with app.worker("b", on_all_stopped="stay") as worker:
        app.wait(lambda: len(worker.failures) == 2, "both shards to stop")
        assert "has left the stream" in str(next(iter(worker.failures.values())))


def test_an_empty_shard_behind_a_java_workers_checkpoint_is_read_on_with_a_warning(server, caplog):
    app = Application(server, "from-java")
    app.put(3)
    with app.worker("a"):
        app.wait_for_all()
    (row,) = app.rows()
    java = {name: value for name, value in row.items() if not name.startswith("penstock")}
    app.dynamo.put_item(TableName="from-java-app", Item=java)
    server.clock.advance(25 * HOUR_S)
    with caplog.at_level(logging.WARNING, "penstock.consumer"), app.worker("b") as worker:
        app.wait(lambda: "did not note when it was at the tip" in caplog.text, "the warning")
        app.put(2)
        app.wait_for_all()
        assert worker.failures == {}
