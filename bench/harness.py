"""Run the rows: contenders in turn, each in a fresh process, against one embedded server in a process of its own."""

from __future__ import annotations

import base64
import contextlib
import http.client
import json
import os
import random
import statistics
import subprocess
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from contenders import process_tree
from environments import BUILD, Unavailable, python_of, versions
from table import Contender, Results, Row, Streams

CONTENDERS = Path(__file__).parent / "contenders"
RUN_S_MAX = 150.0
SAMPLE_S, FIRST_SAMPLE_S, FIRST_S = 0.4, 0.04, 2.0
"""How often the memory of the tree is sampled, and that of its root alone in the first seconds, the whole life of the shortest programs."""
_ANSWER = {
    "Content-Type": "application/x-amz-json-1.1",
    "Authorization": "AWS4-HMAC-SHA256 Credential=local/20260101/us-east-1/kinesis/aws4_request, SignedHeaders=host, Signature=0",
}


# --- what contenders find ---------------------------------------------------------------------------------------


def _data(streams: Streams, count: int) -> list[bytes]:
    """Return the data of some Kinesis records; text, because a contender insists on it."""
    from penstock.core.aggregation import AggregateBuilder

    chance = random.Random(1)

    def user_data() -> bytes:
        return base64.b64encode(chance.randbytes(streams.data_bytes))[: streams.data_bytes]

    if not streams.per_aggregate:
        return [user_data() for _ in range(count)]
    found = []
    for _ in range(count):
        builder = AggregateBuilder()
        for number in range(streams.per_aggregate):
            builder.add(user_data(), f"key-{number % 50}")
        found.append(builder.build().data)
    return found


def _puts(streams: Streams) -> Iterator[list[dict[str, Any]]]:
    """Yield the entries of each PutRecords, spread evenly over the shards."""
    left = streams.record_count // (streams.per_aggregate or 1)
    size = streams.data_bytes * (streams.per_aggregate or 1)
    per_call = min(left, 500, 4_000_000 // size)
    per_call -= per_call % streams.shards if per_call > streams.shards else 0
    entries = [
        {
            "Data": base64.b64encode(data).decode(),
            "PartitionKey": f"key-{number % 50}",
            "ExplicitHashKey": str((2 * (number % streams.shards) + 1) * 2**128 // (2 * streams.shards)),
        }
        for number, data in enumerate(_data(streams, per_call))
    ]
    while left > 0:
        yield entries[:left]
        left -= per_call


def fill(server: Any, name: str, streams: Streams) -> None:
    """Create a stream and put its records."""
    server.create_stream(name, shards=streams.shards)
    if not streams.record_count:
        return
    parts = urlsplit(server.endpoint_url)
    connection = http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=60)
    sent: list[dict[str, Any]] = []
    body = ""
    for entries in _puts(streams):
        if entries != sent:
            sent, body = entries, json.dumps({"StreamName": name, "Records": entries})
        if streams.has_limits:
            server.clock.advance(5.0)
        connection.request("POST", "/", body, {**_ANSWER, "X-Amz-Target": "Kinesis_20131202.PutRecords"})
        answer = json.loads(connection.getresponse().read())
        if answer.get("FailedRecordCount") != 0:
            raise RuntimeError(f"{name} could not be filled: {str(answer)[:300]}")
    connection.close()
    if streams.has_limits:
        server.clock.advance(60.0)


@contextlib.contextmanager
def _input(row: Row) -> Iterator[dict[str, Any]]:
    """Write a GetRecords answer in both formats and return the paths; nothing for rows without one."""
    if not row.has_input or row.streams is None:
        yield {}
        return
    import cbor2

    streams = row.streams
    folder = BUILD / "input"
    folder.mkdir(parents=True, exist_ok=True)
    blobs = _data(streams, streams.record_count // (streams.per_aggregate or 1))
    records = [
        {
            "SequenceNumber": f"4967{number:052d}",
            "ApproximateArrivalTimestamp": 1.7e9 + number / 1000,
            "Data": blob,
            "PartitionKey": f"key-{number % 50}",
        }
        for number, blob in enumerate(blobs)
    ]
    answer = {"Records": records, "NextShardIterator": "x" * 200, "MillisBehindLatest": 0}
    texts = [{**record, "Data": base64.b64encode(record["Data"]).decode()} for record in records]
    stamps = [
        {**r, "ApproximateArrivalTimestamp": cbor2.CBORTag(1, r["ApproximateArrivalTimestamp"])}
        for r in records
    ]
    paths = {"json_path": str(folder / f"{row.key}.json"), "cbor_path": str(folder / f"{row.key}.cbor")}
    Path(paths["json_path"]).write_text(json.dumps({**answer, "Records": texts}))
    Path(paths["cbor_path"]).write_bytes(cbor2.dumps({**answer, "Records": stamps}))
    yield {
        **paths,
        "record_count": streams.record_count,
        "data_bytes": streams.record_count * streams.data_bytes,
    }


# --- one run ----------------------------------------------------------------------------------------------------


def run_program(
    contender: Contender, options: dict[str, Any], environ: dict[str, str], deadline_s: float
) -> dict[str, float]:
    """Run a contender once in a process of its own; return its figures with the peak of its tree's memory.

    Raises:
        Unavailable: It cannot run here, or it failed.
    """
    if contender.needs is not None:
        variable, option = contender.needs
        if not os.environ.get(variable):
            raise Unavailable(f"set {variable} to let it take part")
        options = {**options, option: os.environ[variable]}
    file, name = contender.program
    command = [python_of(contender.environment), str(CONTENDERS / f"{file}.py"), name]
    command.append(json.dumps({**options, **contender.options}))
    out, errors = BUILD / "out.txt", BUILD / "errors.txt"
    environ = {
        **os.environ,
        **environ,
        "BENCH_BEGAN_S": repr(time.time()),
        "BENCH_DEADLINE_S": repr(deadline_s),
        "PYTHONWARNINGS": "ignore",
    }
    peak_mb, began_s = 0.0, time.monotonic()
    end_s = began_s + deadline_s
    with out.open("w") as out_file, errors.open("w") as errors_file:
        process = subprocess.Popen(
            command, env=environ, stdout=out_file, stderr=errors_file, stdin=subprocess.DEVNULL
        )
        try:
            tree_due_s = began_s
            while process.poll() is None and (now_s := time.monotonic()) < end_s:
                is_due = now_s >= tree_due_s
                peak_mb = max(peak_mb, process_tree.memory_mb(process.pid, with_children=is_due))
                tree_due_s = now_s + SAMPLE_S if is_due else tree_due_s
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(FIRST_SAMPLE_S if now_s - began_s < FIRST_S else SAMPLE_S)
        finally:
            if process.poll() is None:
                for pid in process_tree.members(process.pid):
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(pid, 9)
                process.wait()
    if process.returncode != 0:
        told = errors.read_text(errors="replace").strip().splitlines() or ["it printed nothing"]
        why = f"took longer than {deadline_s:.0f} s" if time.monotonic() >= end_s else told[-1][:200]
        (BUILD / f"failed-{file}-{name}.txt").write_text("\n".join(told))
        raise Unavailable(f"failed: {why}")
    figures: dict[str, float] = json.loads(out.read_text().strip().splitlines()[-1])
    return {**figures, "peak_mb": peak_mb}


def _count_arrived(server: Any, stream: str, *, has_limits: bool) -> int:
    """Count the user records in a stream."""
    from penstock.core.aggregation import deaggregate

    client, count = server.client(), 0
    for shard in client.list_shards(StreamName=stream)["Shards"]:
        iterator = client.get_shard_iterator(
            StreamName=stream, ShardId=shard["ShardId"], ShardIteratorType="TRIM_HORIZON"
        )["ShardIterator"]
        while True:
            if has_limits:
                server.clock.advance(5.0)  # a page of 10 MB uses the shard's quota for so long
            page = client.get_records(ShardIterator=iterator)
            if not page["Records"]:
                break
            count += sum(len(deaggregate(record["Data"]) or [record]) for record in page["Records"])
            iterator = page["NextShardIterator"]
    return count


# --- one row ----------------------------------------------------------------------------------------------------


class RowRun:
    """The turns of one row."""

    def __init__(self, row: Row, turns: int, budget_s: float, patience: float) -> None:
        self._row = row
        self._turns = turns
        self._budget_s = budget_s
        self._run_s_max = RUN_S_MAX * patience
        self._runs: dict[str, list[dict[str, float]]] = {each.name: [] for each in row.contenders}
        self._failures: dict[str, str] = {}

    def run(self) -> None:
        """Run as many turns as the row's time allows, at least one."""
        row = self._row
        with contextlib.ExitStack() as stack:
            environ, server = {}, None
            options = {**row.options, **stack.enter_context(_input(row))}
            if row.streams is not None and not row.has_input:
                from penstock_local import LocalKinesisProcess

                server = stack.enter_context(LocalKinesisProcess(limits=row.streams.has_limits, settle_s=0))
                server.client("dynamodb").list_tables()  # it loads moto now, and not for the first contender
                environ = server.environ()
                options["stream"] = row.key
                if not row.streams.is_fresh:
                    fill(server, row.key, row.streams)
                if row.streams.distance_s and not row.streams.is_fresh:
                    server.faults.delay("*", row.streams.distance_s, count=None)
            with contextlib.suppress(Unavailable):  # each run finds out, and says so
                for contender in row.contenders:
                    python_of(contender.environment)
            began_s = time.monotonic()
            for turn in range(self._turns):
                if (time.monotonic() - began_s) * (turn + 1) > self._budget_s * max(1, turn):
                    break
                self._run_turn(server, {**options, "turn": turn} if row.takes_turn else options, environ)

    def _run_turn(self, server: Any, options: dict[str, Any], environ: dict[str, str]) -> None:
        row = self._row
        for place, contender in enumerate(row.contenders):
            if contender.name in self._failures:
                continue
            if row.streams is not None and row.streams.is_fresh:
                options = {**options, "stream": f"{row.key}-{place}-{options['turn']}"}
                server.faults.clear()  # of the contender before
                fill(server, options["stream"], row.streams)
                if row.streams.distance_s:
                    server.faults.delay("*", row.streams.distance_s, count=None)
            before = Counter(server.calls().total) if server is not None else Counter()
            try:
                found = run_program(contender, options, environ, self._run_s_max)
                if server is not None:
                    found |= _call_figures(
                        Counter(server.calls().total) - before,
                        are_writers=row.streams is not None and row.streams.is_fresh,
                    )
                if row.streams is not None and row.streams.is_fresh:
                    server.faults.clear()  # what has arrived is counted without the distance
                if (
                    row.streams is not None
                    and row.streams.is_fresh
                    and "record_count" in options
                    and not contender.is_bound
                ):
                    times = 2 if "again_wall_s" in found else 1
                    _check_count(
                        times * options["record_count"],
                        _count_arrived(server, options["stream"], has_limits=row.streams.has_limits),
                    )
            except Unavailable as error:
                self._failures[contender.name] = str(error)
                print(f"    {contender.name}: {error}", flush=True)
                continue
            self._runs[contender.name].append(found)
            print(f"    {contender.name}: {found.get(row.figure, float('nan')):.4g} {row.figure}", flush=True)

    def results(self) -> Results:
        """Return what each contender needed, or why it has no figures."""
        found = []
        for contender in self._row.contenders:
            runs = self._runs[contender.name]
            entry: Results = {"name": contender.name, "is_bound": contender.is_bound}
            if contender.name in self._failures or not runs:
                entry["problem"] = self._failures.get(contender.name, "did not run")
            else:
                entry["versions"] = versions(contender.environment, contender.packages)
                entry["turns"] = len(runs)
                entry["figures"] = {
                    figure: {
                        "median": _rounded(statistics.median(run[figure] for run in runs)),
                        "least": _rounded(min(run[figure] for run in runs)),
                        "most": _rounded(max(run[figure] for run in runs)),
                    }
                    for figure in runs[0]
                }
            found.append(entry)
        return {"key": self._row.key, "contenders": found}


def _check_count(put_count: int, count: int) -> None:
    if count != put_count:
        raise Unavailable(f"failed: {put_count} records were put, {count} arrived")


def _call_figures(calls: Counter[str], *, are_writers: bool) -> dict[str, float]:
    """Count a contender's calls, from its start to its end, by service."""
    by_service: Counter[str] = Counter()
    for operation, count in calls.items():
        by_service[operation.partition(".")[0]] += count
    found = {
        "kinesis_calls": float(by_service["kinesis"]),
        "dynamodb_calls": float(by_service["dynamodb"]),
    }
    if are_writers:
        found["put_calls"] = float(calls["kinesis.PutRecords"] + calls["kinesis.PutRecord"])
    return found


def _rounded(value: float) -> float:
    """Return four significant digits."""
    return float(f"{value:.4g}")
