"""A processor of amazon_kclpy runs under its own daemon and under Penstock, unchanged, in turns on one application."""

from __future__ import annotations

import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Callable
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path

from counterparts import KCLPY, KCLPY_VERSION, environment

from penstock.core.position import TRIM_HORIZON, at_record, parse_checkpoint
from penstock_local import Handle, LocalKinesis

KEYS = 20
EACH = 10
WAIT_S = 300.0


@contextmanager
def running(command: list[str], variables: dict[str, str], log: Path):
    """Run a program, end its input to let it stop, and kill it if it does not."""
    with log.open("w") as file:
        process = subprocess.Popen(command, env=variables, stdin=subprocess.PIPE, stdout=file, stderr=file)
        try:
            yield process
        finally:
            process.stdin.close()
            process.terminate()
            try:
                process.wait(30)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def test_a_processor_goes_on_where_the_other_runtime_stopped(tmp_path):
    built = KCLPY.built()
    output = tmp_path / "output"
    output.touch()
    ends = [0]
    with LocalKinesis() as server:
        server.create_stream("orders", shards=2)
        variables = {
            **environment(server, tmp_path),
            "OUTPUT": str(output),
            "PYTHONPATH": f"{built}/amazon_kclpy-{KCLPY_VERSION}",
        }
        launcher = tmp_path / "processor"
        launcher.write_text(f"#!/bin/sh\nexec {sys.executable} {built}/processor.py\n")
        launcher.chmod(0o755)
        properties = tmp_path / "app.properties"
        properties.write_text(
            f"executableName = {launcher}\n"
            "streamName = orders\n"
            "applicationName = billing\n"
            "AwsCredentialsProvider = DefaultCredentialsProvider\n"
            "processingLanguage = python/3\n"
            "initialPositionInStream = TRIM_HORIZON\n"
            "regionName = us-east-1\n"
            "retrievalMode = POLLING\n"
            "failoverTimeMillis = 5000\n"
            "clientVersionConfig = CLIENT_VERSION_CONFIG_COMPATIBLE_WITH_2X\n"
        )
        daemon = [*KCLPY.command(built), "--properties-file", str(properties)]
        ours = [sys.executable, str(built / "penstock_worker.py"), "orders", "billing"]
        for turn, command in enumerate((ours, daemon, ours)):
            log = tmp_path / f"{turn}.log"
            put(server, turn)
            with running(command, variables, log) as process:
                wanted = (turn + 1) * KEYS * EACH
                wait_for(process, log, lambda wanted=wanted: len(lines(output)) >= wanted)
                wait_for(process, log, lambda: is_checkpointed(server, output))
            ends.append(len(lines(output)))
    processed = [(key, int(data)) for _, _, key, data in lines(output)]
    for turn, (begin, end) in enumerate(pairwise(ends)):
        by_key = defaultdict(dict)  # a worker that was slow may repeat its own records
        for key, number in processed[begin:end]:
            by_key[key].setdefault(number)
        expected = list(range(turn * EACH, (turn + 1) * EACH))
        assert {key: list(numbers) for key, numbers in by_key.items()} == {
            f"key-{key}": expected for key in range(KEYS)
        }


def put(server: Handle, turn: int) -> None:
    entries = [
        {"PartitionKey": f"key-{key}", "Data": str(turn * EACH + number).encode()}
        for number in range(EACH)
        for key in range(KEYS)
    ]
    answer = server.client("kinesis").put_records(StreamName="orders", Records=entries)
    assert answer["FailedRecordCount"] == 0


def lines(output: Path) -> list[list[str]]:
    """Return what the processors wrote; a line that is being written is not there yet."""
    return [line.split() for line in output.read_text().splitlines(keepends=True) if line.endswith("\n")]


def is_checkpointed(server: Handle, output: Path) -> bool:
    """Whether each shard's checkpoint is at the last record that was processed, so that none comes again."""
    last = {}
    for shard, number, _, _ in lines(output):
        last[shard] = max(at_record(number), last.get(shard, TRIM_HORIZON))
    rows = server.client("dynamodb").scan(TableName="billing", ConsistentRead=True)["Items"]
    at = {row["leaseKey"]["S"]: row["checkpoint"]["S"] for row in rows if "checkpoint" in row}
    return all(shard in at and parse_checkpoint(at[shard]) >= place for shard, place in last.items())


def wait_for(process: subprocess.Popen, log: Path, condition: Callable[[], bool]) -> None:
    deadline_s = time.monotonic() + WAIT_S
    while not condition():
        assert process.poll() is None, log.read_text()[-6000:]
        assert time.monotonic() < deadline_s, log.read_text()[-6000:]
        time.sleep(0.2)
