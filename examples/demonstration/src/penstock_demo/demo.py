"""The main job from beginning to end: an embedded Kinesis, the run on it, the comparison."""

from __future__ import annotations

import time
from pathlib import Path

from penstock_demo.averages import AverageFollower
from penstock_demo.checkpoints import read_events
from penstock_demo.demo_options import SHARD_COUNT, DemoOptions
from penstock_demo.display import Display
from penstock_demo.query import AVERAGES, LATE_MINUTES
from penstock_demo.run import DELAYS, FLIGHTS, Run, service_of
from penstock_demo.verify import Verdict, verify
from penstock_demo.watch import Statuses


class Demo:
    """One run.

    Args:
        options: What to do.
        folder: An empty folder for everything that is written.
        display: Where to show it.
    """

    def __init__(self, options: DemoOptions, folder: Path, display: Display) -> None:
        self._options = options
        self._folder = folder
        self._display = display
        self._statuses = Statuses()
        self._began_s = time.monotonic()

    def run(self) -> Verdict:
        """Run it from the start of the server to the comparison.

        Raises:
            PenstockError: Something ended or did not happen in time; says what.
        """
        from penstock_local import LocalKinesis

        with LocalKinesis.process() as server:
            server.create_stream(FLIGHTS, shards=SHARD_COUNT)
            server.create_stream(DELAYS, shards=2)
            self._display.step(
                f"embedded Kinesis at {server.endpoint_url}, with the service's limits: stream {FLIGHTS} has "
                f"{SHARD_COUNT} shards, stream {DELAYS} 2"
            )
            follower = AverageFollower(DELAYS, service_of(server))
            follower.start()
            try:
                run = Run(self._options, self._folder, self._display, self._statuses, server, follower)
                run.go()
            finally:
                follower.stop()
        return self._compare(run, follower)

    def _compare(self, run: Run, follower: AverageFollower) -> Verdict:
        self._display.step("every Parquet row is compared with the data set, and every average with pandas")
        rows = read_events(run.settings.events_dir)
        expected = run.flights.assign(is_late=run.flights["arr_delay"] > LATE_MINUTES)
        verdict = verify(expected, rows, follower.rows())
        sent = run.publisher.acknowledged
        megabytes = sent.data_bytes / 1e6
        self._display.table(
            [
                ("flights published", f"{sent.event_count:,} in {sent.record_count:,} Kinesis records"),
                (
                    "published at",
                    f"{megabytes / max(run.publisher.duration_s, 1e-3):.1f} MB/s ({megabytes:.0f} MB)",
                ),
                ("refused for the rate, sent again", f"{sent.resent_count:,}"),
                ("flights in Parquet", f"{len(rows):,} in {rows['batch'].nunique():,} batches"),
                ("read at", f"{megabytes / max(run.reading_s, 1e-3):.1f} MB/s by each of two queries"),
                ("shards read", f"{rows['shard_id'].nunique()}"),
                (
                    "averages written",
                    f"{follower.record_count:,} in {self._statuses.batch_count(AVERAGES):,} batches",
                ),
                ("kills and restarts", f"{run.watch.kill_count} and {run.watch.restart_count}"),
                (
                    "lag at most, and at the end",
                    f"{self._statuses.lag_ms_max / 1000:.1f} s, {self._statuses.lag_ms / 1000:.1f} s",
                ),
                ("time", f"{time.monotonic() - self._began_s:.0f} s"),
            ]
        )
        if sent.possible_duplicate_count and not verdict.is_good:
            self._display.note(
                f"{sent.possible_duplicate_count} flights were sent again by the producer since an answer did not come"
            )
        return verdict
