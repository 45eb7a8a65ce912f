"""Measure how soon the shards of a consumer that stops, or is killed, have another owner: two workers, as in `bench/take_over.py`."""

from __future__ import annotations

import os
import signal
import statistics
import sys
from pathlib import Path

from program import Figures, run

sys.path.insert(0, str(Path(__file__).parent.parent))

import take_over


def measured(stream: str, turn: int, shards: int, how: signal.Signals) -> Figures:
    import boto3

    environ = {"AWS_ENDPOINT_URL": os.environ["AWS_ENDPOINT_URL"]}
    times = take_over.take_over(boto3.client("dynamodb"), environ, stream, shards, turn=turn, how=how)
    return {"median_s": statistics.median(times), "longest_s": max(times)}


def killed(stream: str, turn: int, shards: int) -> Figures:
    return measured(stream, turn, shards, signal.SIGKILL)


def stopped(stream: str, turn: int, shards: int) -> Figures:
    return measured(stream, turn, shards, signal.SIGTERM)


if __name__ == "__main__":
    run({"killed": killed, "stopped": stopped})
