"""Measure whether three consumers and a Spark query keep up with one stream that is written at its full rate.

    python bench/fourth_reader.py [--seconds 60] [--json]

An embedded server with its quotas, the writer, each consumer and Spark run in processes of their own. Four shards get 0.95 MiB a
second each. Four readers need twice the quota of polling: 2 MiB a second and shard. The measure is each reader's lag: the
seconds that it takes to write the records that the reader's handler does not have yet.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent / "contenders"))

STREAM = "shared"
SHARD_COUNT = 4
RECORD_BYTES = 62_000
RECORDS_PER_S = 16 * SHARD_COUNT  # 0.95 MiB a second and shard
PUTS_PER_S = 4
CONSUMERS = ("one", "two", "three")
QUERY = "query"
START_S = 180.0
CALM_S = 30.0
"""How long what is left is waited for, at least; without quotas it takes no time."""

Tell = Callable[[int], None]


def write(channel: Connection, endpoint_url: str, seconds: float) -> None:
    """Put records at the rate of the stream; send how many there are by now."""
    from penstock.aws.aws_options import AwsOptions
    from penstock.aws.connection import client_for

    client = client_for("kinesis", AwsOptions(endpoint_url=endpoint_url, region="us-east-1"))
    shards = client.list_shards(StreamName=STREAM)["Shards"]
    hashes = [shard["HashKeyRange"]["StartingHashKey"] for shard in shards]
    data = bytes(RECORD_BYTES)
    each = [{"Data": data, "PartitionKey": "k", "ExplicitHashKey": start} for start in hashes]
    began_s, count = time.monotonic(), 0
    while time.monotonic() - began_s < seconds:
        left = each * (RECORDS_PER_S // SHARD_COUNT // PUTS_PER_S)
        while left:
            answer = client.put_records(StreamName=STREAM, Records=left)
            count += len(left) - answer["FailedRecordCount"]
            left = [
                entry for entry, result in zip(left, answer["Records"], strict=True) if "ErrorCode" in result
            ]
            time.sleep(0.1 if left else 0)
        channel.send(count)
        time.sleep(max(0.0, began_s + count / RECORDS_PER_S - time.monotonic()))


def consume(channel: Connection, endpoint_url: str, name: str, retrieval: str) -> None:
    """Read until the channel is closed; send how many records the handler has had."""
    from penstock import Consumer

    with Consumer(
        STREAM,
        name,
        lambda batch: channel.send(len(batch)),
        retrieval=retrieval,
        starting_position="TRIM_HORIZON",
        endpoint_url=endpoint_url,
        region="us-east-1",
    ):
        channel.send(0)
        channel.recv()


def query(channel: Connection, endpoint_url: str, retrieval: str) -> None:
    """Run a Spark query until the channel is closed; send the size of each batch."""
    from spark_session import running, session

    with session() as spark:
        options = {
            "streamName": STREAM,
            "applicationName": QUERY,
            "startingPosition": "TRIM_HORIZON",
            "endpointUrl": endpoint_url,
            "region": "us-east-1",
            "consumerType": retrieval,
        }
        frame = spark.readStream.format("kinesis").options(**options).load()
        with running(frame, lambda batch, _: channel.send(batch.count())):
            channel.send(0)
            channel.recv()


class Part:
    """A process and its reports."""

    def __init__(self, run: Callable[..., None], *arguments: Any) -> None:
        context = multiprocessing.get_context("spawn")
        self.channel, theirs = context.Pipe()
        self.process: BaseProcess = context.Process(target=run, args=(theirs, *arguments))
        self.process.start()
        theirs.close()
        self.count = 0

    def wait_until_started(self) -> None:
        """Wait for its first word."""
        if not self.channel.poll(START_S):
            raise SystemExit(f"{self.process.name} did not start within {START_S:g} s")
        self.channel.recv()

    def stop(self) -> None:
        """End the process."""
        if self.process.is_alive():
            self.channel.send(None)
            self.process.join(60)
        if self.process.is_alive():
            self.process.terminate()
        self.channel.close()


@contextmanager
def readers(endpoint_url: str, retrieval: str) -> Iterator[dict[str, Part]]:
    """Start the consumers and the query, and wait until all read."""
    parts = {name: Part(consume, endpoint_url, name, retrieval) for name in CONSUMERS}
    try:
        parts[QUERY] = Part(query, endpoint_url, retrieval)
        for part in parts.values():
            part.wait_until_started()
        yield parts
    finally:
        for part in parts.values():
            part.stop()


def listen(writer: Part, parts: dict[str, Part], is_over: Callable[[], bool]) -> None:
    """Take the processes' reports until a condition holds."""
    by_channel: dict[Any, Part] = {part.channel: part for part in (writer, *parts.values())}
    while not is_over():
        for channel in wait(list(by_channel), 0.2):
            try:
                told = by_channel[channel].channel.recv()
            except EOFError:  # the writer has ended
                if by_channel.pop(channel) is not writer:
                    raise SystemExit("a reader has ended") from None
                continue
            if by_channel[channel] is writer:
                writer.count = told
            else:
                by_channel[channel].count += told


def measure(retrieval: str, seconds: float) -> dict[str, Any]:
    """Return how far each reader was behind when the writing ended, at worst in its second half, and that it got everything."""
    from penstock.aws.aws_options import AwsOptions
    from penstock.aws.connection import client_for
    from penstock_local import LocalKinesisProcess

    with LocalKinesisProcess() as server:
        client = client_for("kinesis", AwsOptions(endpoint_url=server.endpoint_url, region="us-east-1"))
        client.create_stream(StreamName=STREAM, ShardCount=SHARD_COUNT)
        client.get_waiter("stream_exists").wait(StreamName=STREAM)
        with readers(server.endpoint_url, retrieval) as parts:
            writer = Part(write, server.endpoint_url, seconds)
            worst_s = dict.fromkeys(parts, 0.0)
            began_s = time.monotonic()

            def behind_s() -> dict[str, float]:
                return {name: (writer.count - part.count) / RECORDS_PER_S for name, part in parts.items()}

            def is_written() -> bool:
                if time.monotonic() - began_s > seconds / 2:
                    for name, value in behind_s().items():
                        worst_s[name] = max(worst_s[name], value)
                return not writer.process.is_alive()

            listen(writer, parts, is_written)
            end_s = behind_s()
            rate = writer.count * RECORD_BYTES / (time.monotonic() - began_s) / SHARD_COUNT / 2**20
            deadline_s = time.monotonic() + CALM_S + 4 * seconds
            listen(writer, parts, lambda: max(behind_s().values()) <= 0 or time.monotonic() > deadline_s)
            left = {name: writer.count - part.count for name, part in parts.items()}
            writer.stop()
    if any(left.values()):
        raise SystemExit(f"{retrieval}: records that a reader did not get, or got twice: {left}")
    return {
        "retrieval": retrieval,
        "written_mib_per_s_and_shard": round(rate, 2),
        "behind_at_end_s": {name: round(value, 1) for name, value in end_s.items()},
        "worst_behind_s": {name: round(value, 1) for name, value in worst_s.items()},
    }


def main() -> int:
    """Print how far each reader is behind, by polling and with fan-out."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--seconds", type=float, default=60, help="how long is written (default: 60)")
    parser.add_argument("--json", action="store_true", help="one JSON document")
    args = parser.parse_args()
    rows = []
    for retrieval in ("polling", "fan-out"):
        rows.append(measure(retrieval, args.seconds))
        if not args.json:
            show(rows[-1])
    if args.json:
        print(json.dumps(rows, indent=1))
    return 0


def show(row: dict[str, Any]) -> None:
    """Print one way's figures."""
    print(f"{row['retrieval']}: {row['written_mib_per_s_and_shard']} MiB/s a shard")
    for name, value in row["behind_at_end_s"].items():
        print(
            f"  {name:6} {value:6.1f} s behind at the end, {row['worst_behind_s'][name]:6.1f} s at worst",
            flush=True,
        )


if __name__ == "__main__":
    raise SystemExit(main())
