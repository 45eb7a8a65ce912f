"""Measure the calls of one Spark query under a steady load, their price a month, and the time from put to row.

    python bench/bill.py [--shards 4] [--per-s 20] [--seconds 60] [--option NAME=VALUE ...] [--json]
    python bench/bill.py --virtual [--cycle-s 0.25] ...
    python bench/bill.py --virtual --consumer ...

An embedded server with its quotas, the writer and Spark run in processes of their own. The query has the default options and
Spark's own worker daemon (`--daemon` takes `penstock.spark.daemon`). Records are put one by one on random shards at random
moments; each carries the moment before its put. The server counts the calls of the measured time. CPU milliseconds of a batch are those
of the processes: Spark's JVM, its Python process that plans, the workers of the tasks, and the program with `foreachBatch`.

With `--virtual` the planner and the tasks run in the simulator instead, with two executors and no faults. A batch takes
`--cycle-s` beside its calls. With `--consumer` a `Consumer` is measured in place of the query. The figures are the same on any machine, at any load, so two versions can be compared.

Prices are those of docs/costs.md: a write of a lease is one unit, and so is each lease that is read. Each lease that a task
fetches is fetched once more by the driver, which calls `BatchGetItem` once for all shards of a batch.
"""

from __future__ import annotations

import json
import math
import os
import random
import statistics
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent / "contenders"))

import process_tree
from program import percentile
from row_printing import parser_of, print_rows
from spark_session import kinesis, running, session, wait_until

from penstock.core.sizing.prices import HOURS_PER_MONTH
from penstock.sizing.price_table import load_prices
from penstock_local import LocalKinesisProcess

STREAM = "bill"
MONTH_S = HOURS_PER_MONTH * 3600
WARM_UP_S = 15.0
PARTS = ("JVM", "planner", "tasks", "program")


def write(stream: str, per_s: float, seconds: float) -> None:
    """Put records at random moments for so many seconds."""
    import boto3

    client, chance = boto3.client("kinesis"), random.Random(1)
    next_s = time.monotonic()
    end_s = next_s + seconds
    while next_s < end_s:
        time.sleep(max(0.0, next_s - time.monotonic()))
        client.put_record(
            StreamName=stream,
            Data=str(time.time()).encode(),
            PartitionKey="k",
            ExplicitHashKey=str(chance.randrange(2**128)),
        )
        next_s += chance.expovariate(per_s)


def row_of(
    arguments: Any,
    calls: Mapping[str, int],
    latencies: Sequence[float],
    batch_count: int,
    seconds: float,
) -> dict[str, Any]:
    """Return the row to print.

    Args:
        arguments: The command line.
        calls: The calls in the measured time, by service and operation.
        latencies: Seconds from put to row of each record.
        batch_count: Batches with records.
        seconds: The measured time.
    """
    prices = load_prices()
    claims, writes = calls["dynamodb.GetItem"] / seconds, calls["dynamodb.UpdateItem"] / seconds
    scanned = calls["dynamodb.Scan"] / seconds * math.ceil(arguments.shards / 4)  # four rows to a unit
    month = writes * prices.lease_write_million + (2 * claims + scanned) * prices.lease_read_million
    return {
        "name": f"{'consumer, ' * arguments.consumer}{arguments.shards} shards, {arguments.per_s:g}/s, trigger {arguments.trigger_s:g} s{', virtual' if arguments.virtual else ''}",
        "p50 s": round(statistics.median(latencies), 2) if latencies else "-",
        "p99 s": round(percentile(latencies, 0.99), 2) if latencies else "-",
        "batches/s": round(batch_count / seconds, 2),
        "leases a month, $": round(month * MONTH_S / 1e6, 2),
        "lease writes/s": round(writes, 2),
        "claims/s": round(claims, 2),
        "reads per shard and s": round(calls["kinesis.GetRecords"] / seconds / arguments.shards, 2),
        "iterators per shard and s": round(calls["kinesis.GetShardIterator"] / seconds / arguments.shards, 2),
    }


def cpu_by_part() -> Counter[str]:
    """Return the CPU seconds so far of the query's processes, by part."""
    ticks_per_s = os.sysconf("SC_CLK_TCK")
    found: Counter[str] = Counter()
    for pid, stat in process_tree.members(os.getpid()).items():
        try:
            line = Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace").replace("\0", " ")
        except OSError:
            continue  # it has ended
        if "penstock_local" in line or "bill.py write" in line:
            continue
        if line.split(" ", 1)[0].endswith("java"):
            part = "JVM"
        elif pid == os.getpid():
            part = "program"
        elif "pyspark.daemon" in line or "penstock.spark.daemon" in line:
            part = "tasks"
        else:
            part = "planner"
        found[part] += sum(map(int, stat[11:13])) / ticks_per_s
    return found


# --- the real query -----------------------------------------------------------------------------------------------


@contextmanager
def pointed_to(environ: Mapping[str, str]) -> Iterator[None]:
    """Set variables for this process and those that it starts."""
    os.environ.update(environ)
    try:
        yield
    finally:
        for name in environ:
            del os.environ[name]


def measure(arguments: Any) -> dict[str, Any]:
    """Run the query under the load; return its row."""
    latencies: list[float] = []
    batch_count = 0
    measuring = False

    def note(batch: Any, _: int) -> None:
        nonlocal batch_count
        rows = batch.select("data").collect()
        now_s = time.time()
        if measuring and rows:
            batch_count += 1
            latencies.extend(now_s - float(bytes(row.data)) for row in rows)

    options = dict(each.split("=", 1) for each in arguments.option)
    if arguments.fan_out:
        options["consumerType"] = "fan-out"
    daemon = "penstock.spark.daemon" if arguments.daemon else "pyspark.daemon"
    load_s = WARM_UP_S + arguments.seconds + 5
    with (
        LocalKinesisProcess(limits=True) as server,
        pointed_to(server.environ()),
        session(daemon=daemon) as spark,
    ):
        server.create_stream(STREAM, shards=arguments.shards)
        line = [sys.executable, __file__, "write", json.dumps([STREAM, arguments.per_s, load_s])]
        frame = kinesis(spark, STREAM, STREAM, **options)
        with running(frame, note, arguments.trigger_s) as query, subprocess.Popen(line) as writer:
            try:
                warm_s = time.monotonic() + WARM_UP_S
                wait_until(query, lambda: time.monotonic() > warm_s, "the start")
                before, began_s, cpu = server.calls(), time.monotonic(), cpu_by_part()
                measuring = True
                wait_until(query, lambda: time.monotonic() > began_s + arguments.seconds, "the load")
                measuring = False
                after, took_s = server.calls(), time.monotonic() - began_s
                cpu = cpu_by_part() - cpu
            finally:
                writer.kill()
    calls = Counter(after.total)
    calls.subtract(before.total)
    row = row_of(arguments, calls, latencies, batch_count, took_s)
    row |= {f"CPU ms a batch, {part}": round(1000 * cpu[part] / batch_count) for part in PARTS}
    row["CPU ms a batch"] = round(1000 * cpu.total() / batch_count)
    if arguments.fan_out:
        refused = after.failed("SubscribeToShard") - before.failed("SubscribeToShard")
        row |= {"subscriptions": calls["kinesis.SubscribeToShard"], "refused": refused}
    return row


# --- in virtual time ----------------------------------------------------------------------------------------------

OPERATIONS = {
    "read": "kinesis.GetRecords",
    "iterator": "kinesis.GetShardIterator",
    "fetch": "dynamodb.GetItem",
    "scan": "dynamodb.Scan",
}


def operation_of(call: str) -> str:
    """Return the operation behind a call of the simulator, whose name begins with its caller."""
    if " write " in f" {call}":
        return "dynamodb.UpdateItem"
    return OPERATIONS.get(call.rpartition(" ")[2], call)


def simulate(arguments: Any) -> dict[str, Any]:
    """Run the query in the simulator; return its row."""
    from penstock.core.leases.coordinator_options import CoordinatorOptions
    from penstock_sim.events.processes import CallMade, CallRetried
    from penstock_sim.events.queries import BatchCommitted
    from penstock_sim.events.reading import RecordsHandled
    from penstock_sim.plan import EPOCH_MS, FaultPlan, QueryPlan, Scenario
    from penstock_sim.run import open_world

    options = dict(each.split("=", 1) for each in arguments.option)
    if arguments.fan_out:
        options["consumerType"] = "fan-out"
    plan = QueryPlan(options, executor_count=2, commit_s=(arguments.cycle_s,), trigger_s=arguments.trigger_s)
    queries: dict[str, Any] = (
        {} if arguments.consumer else {"queries": frozenset({"query"}), "query_plan": plan}
    )
    scenario = Scenario(
        seed=1,
        workers=("query",),
        shard_count=arguments.shards,
        options=CoordinatorOptions(),
        faults=FaultPlan(latency_max_s=0.0),
        **queries,
    )
    chance = random.Random(1)
    with closing(open_world(scenario, lambda _entry: None)) as world:

        def put() -> None:
            world.streams.put()
            world.schedule(world.now + chance.expovariate(arguments.per_s), put)

        for actors in world.actors:
            actors.begin()
        world.is_healed = True  # the service makes no mistakes
        world.start_worker("query")
        if arguments.per_s:
            world.schedule(3.0, put)
        world.run_until(WARM_UP_S)
        begin, met = len(world.history), world.met.copy()
        world.run_until(WARM_UP_S + arguments.seconds)
        entries, shards = world.history[begin:], world.stream.shards
        met = world.met - met
    events = [entry.event for entry in entries]
    arrivals = {
        key: dict(zip(shard.sequences, shard.arrivals_ms, strict=True)) for key, shard in shards.items()
    }
    latencies = [
        entry.at_s - (arrivals[entry.event.key][number] - EPOCH_MS) / 1000
        for entry in entries
        if isinstance(entry.event, RecordsHandled)
        for number in entry.event.numbers
    ]
    calls = Counter(operation_of(each.call) for each in events if isinstance(each, CallMade | CallRetried))
    batch_count = sum(isinstance(each, BatchCommitted) for each in events)
    row = row_of(arguments, calls, latencies, batch_count, arguments.seconds)
    if arguments.fan_out:
        refused = met["fan-out: refused, ResourceBusy"]
        row |= {"subscriptions": met["fan-out: accepted"] + refused, "refused": refused}
    return row


def main() -> None:
    """Measure one query and print its row."""
    if sys.argv[1:2] == ["write"]:
        write(*json.loads(sys.argv[2]))
        return
    parser = parser_of(__doc__)
    parser.add_argument("--shards", type=int, default=4)
    parser.add_argument(
        "--per-s", type=float, default=20.0, help="records per second over all shards; 0 with --virtual: none"
    )
    parser.add_argument("--seconds", type=float, default=60.0, help="measured time")
    parser.add_argument("--virtual", action="store_true", help="run in the simulator, in virtual time")
    parser.add_argument("--consumer", action="store_true", help="with --virtual: a consumer, not a query")
    parser.add_argument("--cycle-s", type=float, default=0.25, help="with --virtual: Spark's part of a batch")
    parser.add_argument("--trigger-s", type=float, default=0.0, help="seconds of trigger(processingTime=...)")
    parser.add_argument("--fan-out", action="store_true", help="read with consumerType=fan-out")
    parser.add_argument(
        "--daemon", action="store_true", help="Spark's workers begin in penstock.spark.daemon"
    )
    parser.add_argument(
        "--option", action="append", default=[], metavar="NAME=VALUE", help="an option of the source"
    )
    arguments = parser.parse_args()
    print_rows([simulate(arguments) if arguments.virtual else measure(arguments)], as_json=arguments.json)


if __name__ == "__main__":
    main()
