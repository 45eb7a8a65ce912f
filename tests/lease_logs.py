"""The log of a lease table: every row as every write left it, from the table's change stream; compared with the model."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Collection, Sequence
from dataclasses import asdict
from pathlib import Path

from penstock.aws.lease_codec import read_item
from penstock.core.leases.lease import Lease
from penstock_local import Handle
from penstock_sim.model_batches import BatchTrace
from penstock_sim.model_log import trace_of_log
from penstock_sim.model_trace import Trace

TRACES = Path(__file__).parents[1] / "model" / "traces.py"


def create_table(server: Handle, table: str) -> None:
    """Create a lease table with a change stream."""
    server.client("dynamodb").create_table(
        TableName=table,
        KeySchema=[{"AttributeName": "leaseKey", "KeyType": "HASH"}],
        AttributeDefinitions=[{"AttributeName": "leaseKey", "AttributeType": "S"}],
        BillingMode="PAY_PER_REQUEST",
        StreamSpecification={"StreamEnabled": True, "StreamViewType": "NEW_IMAGE"},
    )


def lease_log(server: Handle, table: str) -> list[tuple[str, Lease | None]]:
    """Return (shard, its row) after every write on a lease; None if the row was deleted."""
    return [(key, row) for _, key, row in timed_lease_log(server, table)]


def timed_lease_log(server: Handle, table: str) -> list[tuple[float, str, Lease | None]]:
    """Return (seconds since the epoch, shard, its row) after every write on a lease; None if the row was deleted."""
    log = []
    streams = server.client("dynamodbstreams")
    (described,) = streams.list_streams(TableName=table)["Streams"]
    arn = described["StreamArn"]
    for shard in streams.describe_stream(StreamArn=arn)["StreamDescription"]["Shards"]:
        iterator = streams.get_shard_iterator(
            StreamArn=arn, ShardId=shard["ShardId"], ShardIteratorType="TRIM_HORIZON"
        )["ShardIterator"]
        while iterator:
            page = streams.get_records(ShardIterator=iterator)
            if not page["Records"]:
                break
            for record in page["Records"]:
                change = record["dynamodb"]
                key, item = change["Keys"]["leaseKey"]["S"], change.get("NewImage")
                if key.startswith("shardId-"):  # KCL 3 has rows of other kinds
                    at_s = change["ApproximateCreationDateTime"].timestamp()
                    log.append((at_s, key, read_item(item) if item else None))
            iterator = page.get("NextShardIterator")
    return log


def assert_behaves_as_the_model(
    server: Handle,
    stream: str,
    log: list[tuple[str, Lease | None]],
    folder: Path,
    java: Collection[str] = (),
) -> None:
    """Compare the log of a lease table with the model of the protocol.

    Args:
        server: With the stream.
        stream: Its name.
        log: From `lease_log`.
        folder: Where the trace may be written.
        java: Workers of the KCL.
    """
    trace = trace_of_log("the fleet", log, java, parents_of(server, stream))
    assert_are_behaviours([trace], folder)


def parents_of(server: Handle, stream: str) -> dict[str, list[str]]:
    """Return the parents of each shard of a stream, as far as they are in the stream."""
    shards = server.client("kinesis").list_shards(StreamName=stream)["Shards"]
    keys = {shard["ShardId"] for shard in shards}
    names = ("ParentShardId", "AdjacentParentShardId")
    return {shard["ShardId"]: [shard[name] for name in names if shard.get(name) in keys] for shard in shards}


def assert_are_behaviours(traces: Sequence[Trace | BatchTrace], folder: Path) -> None:
    """Compare traces, each with at least one event, with the models of the protocol."""
    assert traces
    assert all(trace.events for trace in traces), [trace.name for trace in traces if not trace.events]
    command = [sys.executable, TRACES, "--deadline", "1800"]
    for number, trace in enumerate(traces):
        path = folder / f"trace-{number}.json"
        path.write_text(json.dumps(asdict(trace), default=sorted))
        command += ["--file", path]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
