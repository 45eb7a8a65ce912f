"""Shared by the tests of the commands: a command in this process, a worker in another one."""

import contextlib
import os
import signal
import subprocess
import sys

import pytest

pytest.importorskip("httptools")

from penstock.cli import main as cli
from waiting import wait_until

READERS = ["head -n 1", "(read line; echo $line; sleep 1)"]


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
