"""Measure how soon the shards of a worker that stops, or is killed, have another owner.

    python bench/take_over.py [--shards 8] [--turns 3] [--json]

An embedded server and two workers run in processes of their own, with default options. When both hold their shares, one gets
SIGTERM (a planned stop with a standby) or SIGKILL. The lease table is read every 50 ms until the other worker owns every shard.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from typing import Any

from row_printing import parser_of, print_rows

SETTLE_S_MAX = 60.0
TAKE_OVER_S_MAX = 60.0
POLL_S = 0.05


def work(url: str, stream: str, application: str, worker: str) -> None:
    """Consume until SIGTERM."""
    from penstock import Consumer

    Consumer(
        stream,
        application=application,
        handler=lambda _batch: None,
        worker_id=worker,
        starting_position="TRIM_HORIZON",
        endpoint_url=url,
        region="us-east-1",
    ).run()


def owners(client: Any, application: str) -> dict[str, str | None]:
    """Return the owner of each lease."""
    try:
        rows = client.scan(TableName=application, ConsistentRead=True)["Items"]
    except client.exceptions.ResourceNotFoundException:
        return {}
    return {row["leaseKey"]["S"]: row.get("leaseOwner", {}).get("S") for row in rows}


def take_over(
    client: Any, environ: Mapping[str, str], stream: str, shards: int, *, turn: int, how: signal.Signals
) -> list[float]:
    """Return the seconds from the signal until each shard of the worker had its next owner.

    Args:
        client: Of DynamoDB, at the embedded server.
        environ: The variables of programs that use the server.
        stream: It exists; the application has its name.
        shards: Of the stream.
        turn: Shifts the moment of the signal.
        how: The signal.
    """
    application = stream
    processes = {
        name: subprocess.Popen(
            [sys.executable, __file__, "--worker", environ["AWS_ENDPOINT_URL"], stream, name],
            env={**os.environ, **environ},
        )
        for name in ("first", "second")
    }
    try:
        end_s = time.monotonic() + SETTLE_S_MAX
        while time.monotonic() < end_s:
            held = list(owners(client, application).values())
            if len(held) == shards and held.count("first") == held.count("second") == shards // 2:
                break
            time.sleep(POLL_S)
        else:
            raise SystemExit(f"the workers did not share the shards within {SETTLE_S_MAX:.0f} s: {held}")
        time.sleep(5.0 + 2.0 * turn)  # another moment of the rounds in every turn
        waiting = {key for key, owner in owners(client, application).items() if owner == "first"}
        began_s = time.monotonic()
        processes["first"].send_signal(how)
        found: list[float] = []
        while waiting and time.monotonic() < began_s + TAKE_OVER_S_MAX:
            now = owners(client, application)
            for key in [key for key in waiting if now[key] == "second"]:
                waiting.discard(key)
                found.append(time.monotonic() - began_s)
            time.sleep(POLL_S)
        if waiting:
            raise SystemExit(f"{len(waiting)} shards had no new owner after {TAKE_OVER_S_MAX:.0f} s")
        return found
    finally:
        for process in processes.values():
            process.kill()
            process.wait()


def main() -> None:
    """Measure both ends of a worker and print the rows."""
    parser = parser_of(__doc__)
    parser.add_argument("--shards", type=int, default=8)
    parser.add_argument("--turns", type=int, default=3)
    arguments = parser.parse_args()

    from penstock_local import LocalKinesisProcess

    rows = []
    with LocalKinesisProcess() as server:
        for how, name in ((signal.SIGTERM, "stopped (SIGTERM)"), (signal.SIGKILL, "killed (SIGKILL)")):
            times = []
            for turn in range(arguments.turns):
                stream = f"take-over-{how.name}-{turn}".lower()
                server.create_stream(stream, arguments.shards)
                client, environ = server.client("dynamodb"), server.environ()
                times += take_over(client, environ, stream, arguments.shards, turn=turn, how=how)
            times.sort()
            rows.append(
                {
                    "name": name,
                    "shards": len(times),
                    "least_s": round(times[0], 2),
                    "median_s": round(times[len(times) // 2], 2),
                    "most_s": round(times[-1], 2),
                }
            )
    print_rows(rows, as_json=arguments.json)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--worker"]:
        work(sys.argv[2], sys.argv[3], sys.argv[3], sys.argv[4])
    else:
        main()
