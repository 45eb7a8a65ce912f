"""Two Spark drivers and one plain consumer share 16 shards; one driver is killed, and the others take its shards.

    python examples/fleet_of_three.py --local

Each of the three is a separate process and a worker of the same application. There is no leader: each computes the same shares
from the lease table and asks for missing leases. `penstock leases` shows the owners. When a driver dies, its leases are not
renewed any more; after `leaseDuration` the others take them in their next round.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import boto3
import where

LEASE_S = 5.0
SHARDS = 16
DEADLINE_S = 120.0


def drive(stream: str, application: str, name: str, folder: str) -> None:
    """Be one Spark driver: read until the end of this process."""
    with where.session(name) as spark:
        orders = (
            spark.readStream.format("kinesis")
            .option("streamName", stream)
            .option("applicationName", application)
            .option("workerId", name)
            .option("startingPosition", "TRIM_HORIZON")
            .option("leaseDuration", f"{LEASE_S:g}s")
            .option("shardsPerTask", 8)
            .load()
        )
        query = orders.writeStream.foreachBatch(lambda batch, _: batch.count())
        query.option("checkpointLocation", str(Path(folder) / name)).start().awaitTermination()


def leases(application: str) -> Counter[str]:
    """Count each worker's leases, as `penstock leases` shows them."""
    shown = subprocess.run(
        [sys.executable, "-m", "penstock", "leases", application, "--json", "--observe", "0"],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    if shown.returncode != 0:
        return Counter()
    return Counter(row["owner"] or "nobody" for row in json.loads(shown.stdout)["leases"])


def readers(application: str) -> Counter[str]:
    """Count each worker's leases in the table itself, since a program's start would distort the timing."""
    rows = boto3.client("dynamodb").scan(TableName=application, ConsistentRead=True)["Items"]
    return Counter(
        (row.get("checkpointOwner") or row.get("leaseOwner") or {"S": "nobody"})["S"] for row in rows
    )


def wait(
    application: str,
    condition: Callable[[Counter[str]], bool],
    what: str,
    look: Callable[[str], Counter[str]] = leases,
) -> tuple[Counter[str], float]:
    """Wait for a state of the leases; give it, and how long it took."""
    began_s = time.monotonic()
    while True:
        counts = look(application)
        if condition(counts):
            return counts, time.monotonic() - began_s
        if time.monotonic() > began_s + DEADLINE_S:
            raise SystemExit(f"waited {DEADLINE_S:g} s for {what}; {dict(counts)}")
        time.sleep(0.2)


def main() -> int:
    parser = where.arguments(__doc__, application="fleet", driver="", folder="")
    args = parser.parse_args()
    if args.driver:
        drive(args.stream, args.application, args.driver, args.folder)
        return 0
    with where.kinesis(args, **{args.stream: SHARDS}), tempfile.TemporaryDirectory() as folder:
        where.put_orders(args.stream, range(1000))
        me = [sys.executable, __file__, "--stream", args.stream, "--application", args.application]
        log = (Path(folder) / "spark.log").open("w")
        fleet = {
            name: subprocess.Popen(
                [*me, "--driver", name, "--folder", folder], stdout=log, stderr=log, start_new_session=True
            )
            for name in ("spark-1", "spark-2")
        }
        consume = [
            sys.executable,
            "-m",
            "penstock",
            "consume",
            args.stream,
            "--application",
            args.application,
        ]
        consume += ["--worker-id", "plain", "--lease-duration", f"{LEASE_S:g}", "--from", "TRIM_HORIZON"]
        fleet["plain"] = subprocess.Popen(
            consume, stdout=subprocess.DEVNULL, stderr=log, start_new_session=True
        )
        try:
            counts, _ = wait(
                args.application,
                lambda counts: sorted(counts.values()) == [5, 5, 6] and set(counts) == set(fleet),
                "even shares",
            )
            print("shared:", ", ".join(f"{name} {count}" for name, count in sorted(counts.items())))
            os.killpg(fleet["spark-1"].pid, signal.SIGKILL)
            fleet["spark-1"].wait()
            _, took_s = wait(
                args.application, lambda counts: set(counts) == {"spark-2", "plain"}, "its shards", readers
            )
            counts, _ = wait(
                args.application, lambda counts: counts == {"spark-2": 8, "plain": 8}, "even shares again"
            )
            # A lease duration to notice, a round (0.8 of it, and its jitter) to take; the rest is what asking takes here.
            bound_s = LEASE_S * (1 + 0.8 * 1.2) + 5.0
            print("spark-1 killed:", ", ".join(f"{name} {count}" for name, count in sorted(counts.items())))
            print(
                f"its shards were taken {'within' if took_s <= bound_s else 'after'} a lease time and a round"
            )
            print(f"it took {took_s:.1f} s; allowed are {bound_s:.1f} s")
            return 0 if took_s <= bound_s else 1
        finally:
            for process in fleet.values():
                if process.poll() is None:
                    os.killpg(process.pid, signal.SIGKILL)
                process.wait()
            log.close()


if __name__ == "__main__":
    raise SystemExit(main())
