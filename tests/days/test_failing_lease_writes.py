"""Leases cannot be written for a while, and everything else works: a full disk, a throttled table."""

import contextlib
import json
import os
import subprocess
import urllib.error
import urllib.request

import pytest

from user_programs import Orders, once
from waiting import wait_until

PROGRAM = r"""
    import logging
    import sys

    from penstock import Consumer
    from penstock.consumer.metrics_prometheus import PrometheusMetrics

    logging.basicConfig(level="INFO")
    metrics = PrometheusMetrics(port=0)
    logging.info("metrics on port %d.", metrics.port)

    def handle(batch):
        for record in batch:
            print(record.data.decode() + "\n", end="", flush=True)

    Consumer(
        stream="orders", application=sys.argv[1], handler=handle, starting_position="TRIM_HORIZON", metrics=metrics
    ).run()
"""


REFUSAL = "ProvisionedThroughputExceededException"


def ready(program):
    """Return the status of a program's /ready, and the problems in its answer."""
    port = program.log().partition("metrics on port ")[2].partition(".")[0]
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/ready", timeout=10) as answer:
            return answer.status, json.load(answer)["problems"]
    except urllib.error.HTTPError as answer:
        return answer.code, json.load(answer)["problems"]


def names(program, what, error):
    """Whether a program is not ready, and has a problem of this kind with this error."""
    status, problems = ready(program)
    return status == 503 and any(what in problem and error in problem for problem in problems)


def works_again(program):
    return "no call about leases fails any more" in program.log()


class Disk:
    """A folder in which nothing can be written for a while; root's is a small file system, another user's is read-only."""

    def __init__(self, folder):
        self.folder = folder
        folder.mkdir()
        self._is_mounted = os.geteuid() == 0
        if self._is_mounted:
            mounted = subprocess.run(
                ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(folder)],
                capture_output=True,
                check=False,
            )
            if mounted.returncode:
                pytest.skip("root may not mount a small file system here")

    @property
    def error(self):
        return "No space left on device" if self._is_mounted else "Permission denied"

    def fill(self):
        if not self._is_mounted:
            (self.folder / "billing").chmod(0o500)
            return
        with (self.folder / "logs").open("wb", 0) as file, contextlib.suppress(OSError):
            while True:
                file.write(bytes(4096))

    def clear(self):
        if self._is_mounted:
            (self.folder / "logs").unlink(missing_ok=True)
        else:
            (self.folder / "billing").chmod(0o700)

    def end(self):
        if self._is_mounted:
            subprocess.run(["umount", "--lazy", str(self.folder)], check=True)
        else:
            self.clear()


@pytest.fixture
def disk(tmp_path):
    made = Disk(tmp_path / "disk")
    yield made
    made.end()


def test_the_disk_of_a_lease_folder_is_full_for_a_while(local_kinesis, programs, disk):
    local_kinesis.create_stream("orders", shards=2)
    consumer = programs.start(PROGRAM, f"file://{disk.folder}/billing", name="consumer")
    orders = Orders(local_kinesis)
    orders.put(100)
    programs.wait_for(orders)
    assert ready(consumer) == (200, [])
    disk.fill()
    orders.put_until(lambda: names(consumer, "renewing leases", disk.error), "the consumer's problem")
    consumer.wait_for("could not be renewed in time")
    log = consumer.log()
    assert "too slow" not in log
    assert disk.error in log.partition("could not be renewed in time")[2].partition("\n")[0]
    disk.clear()
    programs.wait_for(orders)
    wait_until(lambda: ready(consumer) == (200, []), "the end of the problem")
    wait_until(lambda: works_again(consumer), "the recovery in the log")
    assert consumer.terminate() == 0
    assert consumer.log().count("no call about leases fails any more") == 1
    assert programs.printed() == once(orders)


def test_a_consumer_starts_while_the_disk_of_its_lease_folder_is_full(local_kinesis, programs, disk):
    local_kinesis.create_stream("orders", shards=2)
    (disk.folder / "billing").mkdir()
    orders = Orders(local_kinesis)
    orders.put(100)
    disk.fill()
    consumer = programs.start(PROGRAM, f"file://{disk.folder}/billing", name="consumer")
    consumer.wait_for("metrics on port")
    wait_until(lambda: names(consumer, "creating leases", disk.error), "the consumer's problem")
    consumer.wait_for("ERROR:penstock.leases:creating leases")
    assert programs.printed() == {}
    disk.clear()
    programs.wait_for(orders)
    wait_until(lambda: ready(consumer) == (200, []), "the end of the problem")
    assert consumer.terminate() == 0
    assert programs.printed() == once(orders)


def test_the_lease_table_is_throttled_for_more_than_a_minute(local_kinesis, programs):
    local_kinesis.create_stream("orders", shards=2)
    consumer = programs.start(PROGRAM, "billing", name="consumer")
    orders = Orders(local_kinesis)
    orders.put(100)
    programs.wait_for(orders)
    local_kinesis.faults.throttle("dynamodb.UpdateItem", count=None)

    def said():
        return [line for line in consumer.log().splitlines() if line.startswith("ERROR:")]

    def is_repeated():
        whats = [line.partition(" has failed")[0] for line in said()]
        return len(whats) > len(set(whats))

    orders.put_until(lambda: names(consumer, "renewing leases", REFUSAL), "the consumer's problem")
    orders.put_until(is_repeated, "the error of the next minute")
    assert all(line.startswith("ERROR:penstock.leases:") and REFUSAL in line for line in said())
    assert ready(consumer)[0] == 503
    local_kinesis.faults.clear()
    programs.wait_for(orders)
    wait_until(lambda: ready(consumer) == (200, []), "the end of the problem")
    assert consumer.terminate() == 0
    assert programs.printed() == once(orders)


def test_the_lease_table_is_throttled_for_a_moment(local_kinesis, programs):
    local_kinesis.create_stream("orders", shards=2)
    consumer = programs.start(PROGRAM, "billing", name="consumer")
    orders = Orders(local_kinesis)
    orders.put(100)
    programs.wait_for(orders)
    local_kinesis.faults.throttle("dynamodb.UpdateItem", count=10)
    orders.put_until(
        lambda: sum(calls["dynamodb.UpdateItem"] for calls in local_kinesis.calls().by_caller.values()) >= 30,
        "renewals after the refused ones",
    )
    programs.wait_for(orders)
    assert ready(consumer) == (200, [])
    assert consumer.terminate() == 0
    assert "ERROR" not in consumer.log()
    assert programs.printed() == once(orders)
