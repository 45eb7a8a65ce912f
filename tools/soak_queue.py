"""Kill worker processes of a queue under load, and restart others gracefully, over the embedded Kinesis; print a verdict.

`python tools/soak_queue.py [--records 100000] [--workers 20] [--seconds 120] [--every 3]` puts the records evenly over the time,
and kills a worker (SIGKILL) every few seconds; another one takes its place. Then a fifth as many records are handled while every
worker is stopped by SIGTERM and replaced, one after the other. The exit code is 1 if a record is lost or too many are repeated.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from penstock_local import LocalKinesisProcess

PROGRAM: Final = Path(__file__).resolve().parents[1] / "tests" / "queues" / "queue_program.py"
OPTIONS: Final = ("visibility_timeout_s=10", "concurrency=4", "pause_s=0.002", "shutdown_timeout_s=60")
KILLED_MAX: Final = 1.1
"""Deliveries for each record, without those of the killed workers."""
RESTARTED_MAX: Final = 1.01
_DRAINED_WITHIN_S: Final = 600.0
_CALL_RECORDS: Final = 500


class Fleet:
    """The workers of one queue, and the records of its stream.

    Args:
        server: The embedded Kinesis.
        name: Of the stream and the queue.
        folder: Workers write what they have done here.
        worker_count: Workers at once.
    """

    def __init__(self, server: LocalKinesisProcess, name: str, folder: Path, worker_count: int) -> None:
        self._server = server
        self._name = name
        self._folder = folder
        self._kinesis = server.client("kinesis")
        self._kinesis.create_stream(StreamName=name, StreamModeDetails={"StreamMode": "ON_DEMAND"})
        self._kinesis.get_waiter("stream_exists").wait(StreamName=name, WaiterConfig={"Delay": 1})
        self._started = 0
        self._killed: set[str] = set()
        self.put_count = 0
        self.workers: dict[str, subprocess.Popen[bytes]] = {}
        for _ in range(worker_count):
            self.start()

    def start(self) -> None:
        """Start a worker."""
        self._started += 1
        worker = f"w{self._started}"
        with (self._folder / f"{worker}.log").open("wb") as log:
            self.workers[worker] = subprocess.Popen(
                [
                    sys.executable,
                    PROGRAM,
                    self._server.endpoint_url,
                    self._name,
                    worker,
                    self._folder,
                    *OPTIONS,
                ],
                stdout=log,
                stderr=log,
            )

    def kill_one(self) -> None:
        """Kill the oldest worker, and start another."""
        worker = next(iter(self.workers))
        process = self.workers.pop(worker)
        process.kill()
        process.wait()
        self._killed.add(worker)
        self.start()

    def restart_one(self) -> None:
        """Stop the oldest worker gracefully, and start another."""
        worker = next(iter(self.workers))
        process = self.workers.pop(worker)
        while b"consumes queue" not in (self._folder / f"{worker}.log").read_bytes():  # it is still starting
            if process.poll() is not None:
                raise RuntimeError(f"worker {worker} has ended: {self._folder / worker}.log")
            time.sleep(0.1)
        process.terminate()
        if process.wait(120) != 0:
            raise RuntimeError(
                f"worker {worker} ended with {process.returncode}: {self._folder / worker}.log"
            )
        self.start()

    def put(self, count: int) -> None:
        """Put records; those that the stream refuses are put again."""
        texts = [f"r{number}" for number in range(self.put_count, self.put_count + count)]
        self.put_count += count
        for begin in range(0, count, _CALL_RECORDS):
            refused = texts[begin : begin + _CALL_RECORDS]
            while refused:
                entries: list[Any] = [{"Data": text.encode(), "PartitionKey": text} for text in refused]
                results = self._kinesis.put_records(StreamName=self._name, Records=entries)["Records"]
                refused = [
                    text for text, result in zip(refused, results, strict=True) if "ErrorCode" in result
                ]

    def left_count(self) -> int:
        """Return the records that are neither acknowledged nor a dead letter."""
        queue = self._server.state()["streams"][self._name]["queues"].get(self._name)
        if queue is None:  # no worker has created it yet
            return self.put_count
        count: int = queue["visible"] + queue["in_flight"] + queue["dead_letters"]
        return count

    def drain(self) -> None:
        """Wait until nothing is left, and stop the workers.

        Raises:
            TimeoutError: Records are left.
        """
        until_s = time.monotonic() + _DRAINED_WITHIN_S
        while self.left_count():
            if time.monotonic() > until_s:
                raise TimeoutError(f"{self.left_count()} records are left after {_DRAINED_WITHIN_S:.0f} s")
            time.sleep(0.5)
        for process in self.workers.values():
            process.terminate()
        for process in self.workers.values():
            process.wait(120)

    def close(self) -> None:
        """Leave no worker behind."""
        for process in self.workers.values():
            process.kill()
            process.wait()

    def judge(self, deliveries_max: float) -> bool:
        """Print the figures; return whether nothing is lost and few records were delivered twice.

        A delivery to a killed worker counts only if its record was delivered to no other one.
        """
        by_living: Counter[str] = Counter()
        by_killed: Counter[str] = Counter()
        for file in self._folder.glob("*.done"):
            counts = by_killed if file.stem in self._killed else by_living
            counts.update(file.read_text().split("\n")[:-1])
        done = by_living.keys() | by_killed.keys()
        lost = self.put_count - len(done)
        total = by_living.total() + by_killed.total()
        ratio = sum(max(1, by_living[text]) for text in done) / self.put_count
        print(
            f"{self.put_count:,} records, {self._started} workers ({len(self._killed)} killed): {lost} lost; {total:,} deliveries, "
            f"{total / self.put_count:.4f} for each record; {ratio:.4f} without the killed workers' own (at most {deliveries_max})",
            flush=True,
        )
        return not lost and ratio <= deliveries_max


@contextmanager
def opened(name: str, worker_count: int) -> Iterator[Fleet]:
    """Open a server and a fleet."""
    with tempfile.TemporaryDirectory() as folder, LocalKinesisProcess() as server:
        fleet = Fleet(server, name, Path(folder), worker_count)
        try:
            yield fleet
        finally:
            fleet.close()


def kill(record_count: int, worker_count: int, for_s: float, every_s: float) -> bool:
    """Kill a worker every few seconds while records are put."""
    with opened("killed", worker_count) as fleet:
        began_s = time.monotonic()
        step_count = max(1, int(for_s / every_s))
        for step in range(step_count):
            fleet.put(record_count * (step + 1) // step_count - fleet.put_count)
            time.sleep(max(0.0, began_s + (step + 1) * every_s - time.monotonic()))
            fleet.kill_one()
        fleet.drain()
        print(
            f"kill -9 of a worker every {every_s:g} s: {time.monotonic() - began_s:.0f} s until all was handled"
        )
        return fleet.judge(KILLED_MAX)


def restart(record_count: int, worker_count: int) -> bool:
    """Restart every worker gracefully, one after the other, while records are put."""
    with opened("restarted", worker_count) as fleet:
        began_s = time.monotonic()
        for step in range(worker_count):
            fleet.put(record_count * (step + 1) // worker_count - fleet.put_count)
            fleet.restart_one()
        fleet.drain()
        print(f"a rolling restart: {time.monotonic() - began_s:.0f} s until all was handled")
        return fleet.judge(RESTARTED_MAX)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--records", type=int, default=100_000, help="records to put (default: 100000)")
    parser.add_argument("--workers", type=int, default=20, help="worker processes at once (default: 20)")
    parser.add_argument("--seconds", type=float, default=120.0, help="time of the kills (default: 120)")
    parser.add_argument("--every", type=float, default=3.0, help="seconds between two kills (default: 3)")
    args = parser.parse_args()
    print(f"{os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}")
    is_good = kill(args.records, args.workers, args.seconds, args.every)
    is_good = restart(args.records // 5, args.workers) and is_good
    print("passed" if is_good else "FAILED")
    return 0 if is_good else 1


if __name__ == "__main__":
    sys.exit(main())
