"""Run the program while records are put, shards are split and merged, and processes are killed by a seeded plan."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import threading
import time
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar

from checks import History, Row
from query_traces import query_trace

from lease_logs import create_table, lease_log, parents_of
from penstock.core.aggregation import AggregateBuilder
from penstock_demo.processes import ProcessKind, find_processes, kill_process, kill_session
from penstock_demo.resharding import merge_shards, open_shards, split_shard
from penstock_local import LocalKinesisProcess
from penstock_sim.model_log import trace_of_log
from stream_reading import raw_records

PROGRAM = Path(__file__).with_name("program.py")
KEYS = 60
GROUP = 5
"""User records of one key that go into one aggregate, every other time."""
START_S = 240.0
KINDS = {
    "driver": lambda process: process.kind is ProcessKind.JVM,
    "planner": lambda process: process.kind is ProcessKind.PLANNER,
    "worker": lambda process: process.kind is ProcessKind.WORKER,
    "executor": lambda process: "CoarseGrainedExecutorBackend" in process.command,
}
"""What may be killed: Spark's driver, the process that plans beside it, a task's Python, an executor of its own."""


@dataclass(frozen=True)
class Plan:
    """How a run goes.

    Attributes:
        seed: Chance for everything.
        records: How many are put, evenly over the kills.
        shards: At the beginning.
        reshards: Splits and merges.
        kills: Processes that are killed; `weights` says how often each of `KINDS`.
        master: Spark's.
    """

    seed: int
    records: int
    kills: int
    shards: int = 8
    reshards: int = 6
    weights: tuple[int, ...] = (1, 2, 4, 0)
    master: str = "local[2,8]"
    finish_s: float = 420.0

    queries: tuple[str, ...] = ("parquet", "copy")
    """What the program starts."""
    consumer_type: str = "polling"
    """The source's option."""


@dataclass
class Run:
    """One run; `history` is what came of it."""

    plan: Plan
    folder: Path
    killed: Counter = field(default_factory=Counter)
    restarts: int = 0
    history: History = field(default_factory=History)
    sent: Counter = field(default_factory=Counter)
    subscription_count: int = 0
    program: subprocess.Popen | None = None
    listener: threading.Thread | None = None
    server: LocalKinesisProcess | None = None
    traces: list = field(default_factory=list)
    """Histories for the models of the protocol, once they are gathered."""

    kinds: ClassVar = tuple(KINDS)
    """What `weights` are about."""
    waiting_kinds: ClassVar = ("driver",)
    """Kinds that are killed when a batch is in work."""
    batch_wait_s: ClassVar = 6

    def play(self):
        """Do everything, and gather the history."""
        chance = random.Random(self.plan.seed)
        with LocalKinesisProcess(limits=False, settle_s=0) as server:
            client = server.client()
            server.create_stream("numbers", shards=self.plan.shards)
            server.create_stream("copy", shards=4)
            self.server = server
            self.prepare(server)
            self.start(server)
            try:
                self.disturb(client, chance, server)
                self.finish(server)
                self.subscription_count = server.calls().count("SubscribeToShard")
            finally:
                self.bury()
                self.dismiss()
            self.gather(client)
        return self.history

    def prepare(self, server):
        """Make what must be there before the program starts: the lease table of each query, with a change stream."""
        for name in self.plan.queries:
            create_table(server, name)

    def dismiss(self):
        """End what runs beside the program."""

    # --- the program's lives ---------------------------------------------------------------------------------

    def start(self, server):
        with (self.folder / "spark.log").open("a") as log:
            self.program = self.launch(server, log)
        started = threading.Event()

        def listen(lines=self.program.stdout):
            with suppress(ValueError):  # closed meanwhile
                if lines.readline().strip() == b"started":
                    started.set()

        self.listener = threading.Thread(target=listen, daemon=True)
        self.listener.start()
        assert started.wait(START_S), f"the program did not start:\n{self.log()}"

    def launch(self, server, log):
        return subprocess.Popen(
            [
                *(sys.executable, str(PROGRAM), str(self.folder), server.endpoint_url, self.plan.master),
                ",".join(self.plan.queries),
                self.plan.consumer_type,
            ],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            env={
                **os.environ,
                **server.environ(),
                "PYSPARK_PYTHON": sys.executable,
                "SPARK_LOCAL_IP": "127.0.0.1",
            },
            start_new_session=True,
        )

    def bury(self):
        """End what is left of a life; the listener has read to the end then."""
        if self.program is None:
            return
        kill_session(self.program.pid)
        self.program.wait()
        self.program.stdin.close()
        self.listener.join(10)
        self.program.stdout.close()

    def restart_if_dead(self, server):
        if self.program.poll() is None and find_processes(self.program.pid):
            return
        self.bury()
        self.restarts += 1
        self.start(server)

    def log(self):
        return "".join(
            (self.folder / "spark.log").read_text(errors="replace").splitlines(keepends=True)[-40:]
        )

    # --- disturbing ----------------------------------------------------------------------------------------------

    def disturb(self, client, chance, server):
        """Put, reshard and kill, all from one plan, one after the other."""
        plan = self.plan
        reshard_turns = set(chance.sample(range(plan.kills), min(plan.kills, plan.reshards)))
        for turn in range(plan.kills):
            self.put(client, plan.records * turn // plan.kills, plan.records * (turn + 1) // plan.kills)
            if turn in reshard_turns:
                self.reshard(client, chance)
            self.kill_one(chance, server)
        # On a busy machine the program may have ended, or have no process of a kind, just when it was to be killed.
        for _ in range(plan.kills):
            if sum(self.killed.values()) >= plan.kills:
                break
            self.kill_one(chance, server)

    def kill_one(self, chance, server):
        """Kill one process of a kind that is drawn, and start what is dead."""
        time.sleep(chance.uniform(0.0, 1.0))
        (kind,) = chance.choices(self.kinds, self.plan.weights)
        if kind in self.waiting_kinds:
            self.wait_for_a_batch_in_work()
        self.kill(kind, chance)
        if kind == "driver":
            self.program.wait(60)
        self.restart_if_dead(server)

    def wait_for_a_batch_in_work(self):
        """Wait until a batch is past its first action, so that it must be repeated; not for long, none may be due."""
        before = self.noted_bytes()
        end_s = time.monotonic() + self.batch_wait_s
        while time.monotonic() < end_s:
            if self.noted_bytes() > before:
                return
            time.sleep(0.01)

    def noted_bytes(self):
        """How much the queries' executions have noted."""
        files = [self.folder / f"{name}.jsonl" for name in self.plan.queries]
        return sum(file.stat().st_size for file in files if file.exists())

    def put(self, client, start, end):
        self.history.put += put_numbers(client, start, end, self.sent)

    @staticmethod
    def reshard(client, chance):
        count = len(open_shards(client, "numbers"))
        if chance.random() < 0.5 and count > 4:
            merge_shards(client, "numbers", chance.randrange(count - 1))
        else:
            split_shard(client, "numbers", chance.randrange(count))

    def kill(self, kind, chance):
        """Kill one process of a kind, as soon as there is one."""
        end_s = time.monotonic() + 60
        while time.monotonic() < end_s:
            found = [each for each in find_processes(self.program.pid) if KINDS[kind](each)]
            if found and kill_process(chance.choice(sorted(found, key=lambda each: each.pid)).pid):
                self.killed[kind] += 1
                return
            if self.program.poll() is not None:
                return
            time.sleep(0.02)

    def finish(self, server):
        """Let the program read to the end."""
        (self.folder / "stop").touch()
        end_s = time.monotonic() + self.plan.finish_s
        while self.program.poll() is None:
            assert time.monotonic() < end_s, f"the program did not come to its end:\n{self.log()}"
            time.sleep(0.1)
            if not any(each.kind is ProcessKind.JVM for each in find_processes(self.program.pid)):
                self.program.wait(30)
        if self.program.returncode != 0:
            # The last kill may have hit just before: one more life comes to the end.
            self.bury()
            self.restarts += 1
            self.start(server)
            assert self.program.wait(self.plan.finish_s) == 0, self.log()

    # --- what came of it -----------------------------------------------------------------------------------------

    def gather(self, client):
        history = self.history
        self.gather_query("parquet", history)
        for shard in client.list_shards(StreamName="numbers")["Shards"]:
            parents = (shard.get("ParentShardId"), shard.get("AdjacentParentShardId"))
            history.parents[shard["ShardId"]] = tuple(parent for parent in parents if parent)
        for file in (self.folder / "checkpoints" / "parquet" / "offsets").iterdir():
            if file.name.isdigit():
                history.offsets[int(file.name)] = file.read_text().splitlines()[2]
        for _, records in raw_records(client, "copy"):
            history.copied += [(record["PartitionKey"], record["Data"].decode()) for record in records]
        # The sink notes no reads, so the batches of `copy` cannot be compared.
        self.traces.append(query_trace(self.folder, self.server, "parquet", "parquet"))
        parents = parents_of(self.server, "numbers")
        for name in self.plan.queries:
            log = lease_log(self.server, name)
            self.traces.append(trace_of_log(f"the leases of {name}", log, (), parents))

    def gather_query(self, name, history):
        """Read what one query wrote, and what its executions noted."""
        import pyarrow.dataset as ds

        table = ds.dataset(
            str(self.folder / name), format="parquet", partitioning=ds.partitioning(flavor="hive")
        ).to_table()
        for row in table.to_pylist():
            history.rows.append(
                Row(
                    row["batch"],
                    row["shardId"],
                    int(row["sequenceNumber"]),
                    row["subSequenceNumber"],
                    row["partitionKey"],
                    row["data"],
                )
            )
        for line in (self.folder / f"{name}.jsonl").read_text().splitlines():
            with suppress(ValueError):  # cut off by a kill
                told = json.loads(line)
                history.executions.setdefault(told["batch"], []).append((told["count"], told["hash"]))


def put_numbers(client, start, end, sent):
    """Put records for KEYS keys, every other group of a key as an aggregate; return (key, data) of each.

    Args:
        client: boto3's, for Kinesis.
        start: Number of the first record.
        end: Number behind the last one.
        sent: A counter of what each key has got; a key's records are numbered by it.
    """
    put, entries, number = [], [], start
    while number < end:
        key = f"key-{number % KEYS}"
        group = min(GROUP, end - number) if number // GROUP % 2 else 1
        datas = []
        for _ in range(group):
            datas.append(f"{key}/{sent[key]}")
            sent[key] += 1
        number += group
        put += [(key, data) for data in datas]
        entries.append({"PartitionKey": key, "Data": packed(key, datas)})
    for place in range(0, len(entries), 500):
        answer = client.put_records(StreamName="numbers", Records=entries[place : place + 500])
        assert answer["FailedRecordCount"] == 0
    return put


def packed(key, datas):
    if len(datas) == 1:
        return datas[0].encode()
    builder = AggregateBuilder()
    for data in datas:
        builder.add(data.encode(), key, None)
    return builder.build().data
