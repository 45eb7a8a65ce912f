"""Show how writers share a stream that is too small for them: a chart of offered, accepted and refused records over time.

    python bench/flow.py [--seconds 30] [--json] [--out artifacts/flow.html]

Eight writers offer three times what four shards accept, with the service's quotas, and stop after `--seconds`. The chart goes
on until the last acknowledgement. Penstock's producer runs first, then the usual loop with boto3: PutRecords, and refused
entries again after a tenth of a second. The embedded server runs in a separate process, the writers as threads of
this one. Every record is counted in the stream afterwards.
"""

from __future__ import annotations

import argparse
import json
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from html import escape
from pathlib import Path
from typing import Any

SHARDS, WRITERS, RECORD_BYTES, OVERLOAD = 4, 8, 10_000, 3
CAPACITY_BYTES_PER_S = SHARDS * 2**20
BOTO3_PAUSE_S = 0.1
SETTLED_S = 10.0
FINISH_S_MAX = 300.0


@dataclass
class Course:
    """What happened when, in seconds since the beginning; each entry with its bytes."""

    name: str
    began_s: float = field(default_factory=time.monotonic)
    offered: list[tuple[float, int]] = field(default_factory=list)
    accepted: list[tuple[float, int]] = field(default_factory=list)
    refused: list[tuple[float, int]] = field(default_factory=list)
    requests: list[tuple[float, bool]] = field(default_factory=list)
    record_count: int = 0
    found_count: int = 0

    def now_s(self) -> float:
        return time.monotonic() - self.began_s

    def note(self, sizes: list[int], refused: list[bool]) -> None:
        """Count one answered request."""
        now_s = self.now_s()
        self.accepted.append((now_s, sum(size for size, no in zip(sizes, refused, strict=True) if not no)))
        self.refused.append((now_s, sum(size for size, no in zip(sizes, refused, strict=True) if no)))
        self.requests.append((now_s, any(refused)))


class Watched:
    """The service port, with an eye on what PutRecords answers."""

    def __init__(self, kinesis: Any, course: Course) -> None:
        self._kinesis = kinesis
        self._course = course

    def __getattr__(self, name: str) -> Any:
        return getattr(self._kinesis, name)

    def put_records(self, stream: str, entries: Any) -> Any:
        from penstock.errors import Throttled

        sizes = [len(entry.data) for entry in entries]
        try:
            answers = self._kinesis.put_records(stream, entries)
        except Throttled:
            self._course.note(sizes, [True] * len(sizes))
            raise
        self._course.note(sizes, [answer.error_code is not None for answer in answers])
        return answers


# --- the writers -------------------------------------------------------------------------------------------------


def offer(course: Course, writer: int, end_s: float, put: Callable[[bytes, str], None]) -> None:
    """Put three eighths of the stream's capacity, evenly, as far as there is room."""
    interval_s = WRITERS * RECORD_BYTES / (OVERLOAD * CAPACITY_BYTES_PER_S)
    next_s, number = course.now_s(), 0
    while course.now_s() < end_s:
        put((b"%d/%d " % (writer, number)).ljust(RECORD_BYTES, b"."), f"{writer}-{number % 40}")
        course.offered.append((course.now_s(), RECORD_BYTES))
        number += 1
        next_s = max(next_s + interval_s, course.now_s() - 0.5)
        time.sleep(max(0.0, next_s - course.now_s()))


def write_penstock(server: Any, stream: str, course: Course, writer: int, end_s: float) -> None:
    from penstock.aws.aws_options import AwsOptions
    from penstock.aws.kinesis import AwsKinesis
    from penstock.producer import Producer

    environ = server.environ()
    options = AwsOptions(
        endpoint_url=server.endpoint_url,
        region=server.region,
        access_key_id=environ["AWS_ACCESS_KEY_ID"],
        secret_access_key=environ["AWS_SECRET_ACCESS_KEY"],
    )
    kinesis: Any = Watched(AwsKinesis(options), course)
    with Producer(stream, kinesis=kinesis, buffer_bytes_max=2 * 2**20) as producer:
        offer(course, writer, end_s, lambda data, key: void(producer.put(data, key)))


def void(_: object) -> None:
    """Drop a call's result."""


def write_boto3(server: Any, stream: str, course: Course, writer: int, end_s: float) -> None:
    client = server.client()
    waiting: list[dict[str, Any]] = []

    def send() -> None:
        batch = waiting[:100]
        answer = client.put_records(StreamName=stream, Records=batch)
        refused = ["ErrorCode" in word for word in answer["Records"]]
        course.note([len(entry["Data"]) for entry in batch], refused)
        waiting[:100] = [entry for entry, no in zip(batch, refused, strict=True) if no]
        if any(refused):
            time.sleep(BOTO3_PAUSE_S)

    def put(data: bytes, key: str) -> None:
        waiting.append({"Data": data, "PartitionKey": key})
        while len(waiting) >= 100:
            send()

    offer(course, writer, end_s, put)
    while waiting:
        send()


# --- the run -----------------------------------------------------------------------------------------------------


def run(server: Any, name: str, write: Callable[..., None], stream: str, seconds: float) -> Course:
    server.create_stream(stream, shards=SHARDS)
    course = Course(name)
    threads = [
        threading.Thread(target=write, args=(server, stream, course, writer, seconds), daemon=True)
        for writer in range(WRITERS)
    ]
    for thread in threads:
        thread.start()
    deadline_s = time.monotonic() + seconds + FINISH_S_MAX
    for thread in threads:
        thread.join(max(0.0, deadline_s - time.monotonic()))
    if any(thread.is_alive() for thread in threads):
        raise SystemExit(f"{name}: not everything was acknowledged {FINISH_S_MAX:g} s after the load ended")
    course.record_count = len(course.offered)
    course.found_count = arrived(server, stream)
    return course


def arrived(server: Any, stream: str) -> int:
    """Count different user records in a stream."""
    from penstock.core.aggregation import deaggregate

    client = server.client()
    found: set[bytes] = set()
    for shard in client.list_shards(StreamName=stream)["Shards"]:
        iterator = client.get_shard_iterator(
            StreamName=stream, ShardId=shard["ShardId"], ShardIteratorType="TRIM_HORIZON"
        )["ShardIterator"]
        while True:
            server.clock.advance(10)  # reads have their quota too
            page = client.get_records(ShardIterator=iterator)
            if not page["Records"]:
                break
            for record in page["Records"]:
                inner = deaggregate(record["Data"])
                found.update([record["Data"]] if inner is None else (each.data for each in inner))
            iterator = page["NextShardIterator"]
    return len({data.split(b" ")[0] for data in found})


def summary(course: Course, seconds: float) -> dict[str, Any]:
    late = [no for moment_s, no in course.requests if SETTLED_S < moment_s < seconds]
    if not late:
        late = [no for _, no in course.requests]
    used = sum(size for moment_s, size in course.accepted if moment_s < seconds)
    last_s = max((moment_s for moment_s, size in course.accepted if size), default=0.0)
    return {
        "writers": course.name,
        "capacity_used_percent": round(100 * used / (seconds * CAPACITY_BYTES_PER_S), 1),
        "requests_refused_percent": round(100 * sum(late) / len(late), 1),
        "requests": len(course.requests),
        "finished_after_load_s": round(max(0.0, last_s - seconds), 1),
        "records_put": course.record_count,
        "records_found": course.found_count,
    }


# --- the picture -------------------------------------------------------------------------------------------------

_WIDTH, _HEIGHT, _LEFT, _TOP, _BOTTOM = 860, 260, 60, 30, 40
_LINES = (("offered", "#8a8f98"), ("accepted", "#1a7f5a"), ("refused", "#c2412d"))


def per_second(entries: list[tuple[float, int]], end_s: int) -> list[float]:
    """Return MiB of each second."""
    sums = [0.0] * (end_s + 1)
    for moment_s, size in entries:
        sums[min(end_s, int(moment_s))] += size / 2**20
    return sums


def picture(course: Course, figures: dict[str, Any], seconds: float, end_s: int) -> str:
    """Draw one course as SVG."""
    series = {name: per_second(getattr(course, name), end_s) for name, _ in _LINES}
    top = max(OVERLOAD * CAPACITY_BYTES_PER_S / 2**20, *(max(values) for values in series.values())) * 1.05

    def x(second: float) -> float:
        return _LEFT + second / max(1, end_s) * (_WIDTH - _LEFT - 10)

    def y(mib: float) -> float:
        return _HEIGHT - _BOTTOM - mib / top * (_HEIGHT - _TOP - _BOTTOM)

    parts = [
        f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" aria-label="{escape(course.name)}">',
        (
            f'<text x="{_LEFT}" y="18" class="title">{escape(course.name)}: {figures["capacity_used_percent"]} % of the '
            f"capacity used, {figures['requests_refused_percent']} % of requests refused</text>"
        ),
    ]
    for mib in range(0, int(top) + 1, 4):
        parts.append(
            f'<line x1="{_LEFT}" x2="{_WIDTH - 10}" y1="{y(mib):.1f}" y2="{y(mib):.1f}" class="grid"/>'
        )
        parts.append(f'<text x="{_LEFT - 8}" y="{y(mib) + 4:.1f}" class="tick">{mib} MiB/s</text>')
    parts += [
        f'<text x="{x(second):.1f}" y="{_HEIGHT - 20}" class="second">{second} s</text>'
        for second in range(0, end_s + 1, max(1, end_s // 10))
    ]
    capacity = y(CAPACITY_BYTES_PER_S / 2**20)
    parts.append(
        f'<line x1="{_LEFT}" x2="{_WIDTH - 10}" y1="{capacity:.1f}" y2="{capacity:.1f}" class="capacity"/>'
    )
    parts.append(
        f'<line x1="{x(seconds):.1f}" x2="{x(seconds):.1f}" y1="{_TOP}" y2="{_HEIGHT - _BOTTOM}" class="end"/>'
    )
    for place, (name, colour) in enumerate(_LINES):
        points = " ".join(f"{x(second):.1f},{y(mib):.1f}" for second, mib in enumerate(series[name]))
        parts.append(f'<polyline points="{points}" fill="none" stroke="{colour}" stroke-width="2"/>')
        parts.append(f'<text x="{_LEFT + 90 * place}" y="{_HEIGHT - 4}" fill="{colour}">{name}</text>')
    return "\n".join([*parts, "</svg>"])


def page(courses: list[Course], rows: list[dict[str, Any]], seconds: float) -> str:
    end_s = max(int(moment_s) for course in courses for moment_s, _ in course.accepted) + 1
    drawings = "\n".join(
        picture(course, row, seconds, end_s) for course, row in zip(courses, rows, strict=True)
    )
    return f"""<!doctype html>
<html lang="en"><meta charset="utf-8"><title>Flow control</title>
<style>
body {{ font: 14px system-ui, sans-serif; max-width: 900px; margin: 2em auto; color: #1c2026; }}
svg {{ width: 100%; }} text {{ font-size: 12px; }} .title {{ font-size: 14px; font-weight: 600; }}
.grid {{ stroke: #e4e6ea; }} .capacity {{ stroke: #1c2026; stroke-dasharray: 4 3; }} .end {{ stroke: #8a8f98; stroke-dasharray: 2 3; }}
.tick {{ text-anchor: end; fill: #5d636d; }} .second {{ text-anchor: middle; fill: #5d636d; }}
</style>
<h1>{WRITERS} writers push {OVERLOAD} times what {SHARDS} shards take</h1>
<p>MiB in each second. Dashed: what the shards take in; dotted: the load ends.</p>
{drawings}
</html>
"""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--seconds", type=float, default=30.0, help="how long the writers push")
    parser.add_argument("--json", action="store_true", help="print one JSON list instead of rows")
    parser.add_argument(
        "--out", type=Path, default=Path("artifacts/flow.html"), help="where the picture goes"
    )
    args = parser.parse_args()
    from penstock_local import LocalKinesisProcess

    with LocalKinesisProcess(limits=True) as server:
        courses = [
            run(server, "penstock Producer", write_penstock, "flow-penstock", args.seconds),
            run(server, "boto3 put_records", write_boto3, "flow-boto3", args.seconds),
        ]
    rows = [summary(course, args.seconds) for course in courses]
    args.out.parent.mkdir(parents=True, exist_ok=True)
    args.out.write_text(page(courses, rows, args.seconds), encoding="utf-8")
    if args.json:
        print(json.dumps(rows))
    else:
        for row in rows:
            print(
                f"{row['writers']:20} {row['capacity_used_percent']:6.1f} % of capacity  "
                f"{row['requests_refused_percent']:5.1f} % of {row['requests']} requests refused  "
                f"done {row['finished_after_load_s']:.1f} s after the load  {row['records_found']} of {row['records_put']} records"
            )
        print(f"drawn in {args.out}")
    return 0 if all(row["records_found"] == row["records_put"] for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
