"""The part of the main job that runs: publish, change shards, kill the query and start it again, until all is read."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from penstock.errors import PenstockError
from penstock_demo.averages import AverageFollower
from penstock_demo.checkpoints import EventRows
from penstock_demo.dataset import events_of, load_flights
from penstock_demo.demo_options import DemoOptions
from penstock_demo.display import Display
from penstock_demo.kills import plan_kills
from penstock_demo.publish import ProducerWriter, Publisher, Stop
from penstock_demo.query import EVENTS, QuerySettings
from penstock_demo.resharding import merge_shards, split_shard
from penstock_demo.supervisor import QueryProcess
from penstock_demo.watch import QueryWatch, Statuses

if TYPE_CHECKING:
    import pandas as pd

    from penstock_local import Handle

FLIGHTS: Final = "flights"
DELAYS: Final = "delays"
_POLL_S: Final = 0.05
_SHOW_S: Final = 0.25
_STALL_S: Final = 180.0
_QUIET_S: Final = 1.5
_END_DEADLINE_S: Final = 120.0


class Run:
    """Publishing, the query, and what happens to them.

    Args:
        options: What to do.
        folder: For everything that is written.
        display: Where to show it.
        statuses: Collects the query's status lines.
        server: Has both streams.
        follower: Reads the second one.
    """

    def __init__(  # noqa: PLR0917 - what `Demo` has, handed over once
        self,
        options: DemoOptions,
        folder: Path,
        display: Display,
        statuses: Statuses,
        server: Handle,
        follower: AverageFollower,
    ) -> None:
        self._options = options
        self._display = display
        self._server = server
        self._follower = follower
        self.settings = QuerySettings(
            folder=str(folder),
            endpoint_url=server.endpoint_url,
            region=server.region,
            source=FLIGHTS,
            target=DELAYS,
            batch_records_max=options.batch_records_max,
            fetch_records_max=options.fetch_records_max,
            # Two queries share the five reads a second that a shard allows.
            fetch_interval_s=0.4,
        )
        self._process = QueryProcess(self.settings, server.environ(), folder / "spark.log", statuses.take)
        kills = plan_kills(options.kill_count, options.seed)
        self.watch = QueryWatch(self._process, self.settings, statuses, kills, display, options.seed)
        self.flights: pd.DataFrame
        self.publisher: Publisher
        self._event_rows = EventRows(self.settings.events_dir, self.settings.checkpoint_dir(EVENTS))
        self._read = (0, 0)
        self._first_read_s: float | None = None
        self._last_read_s = 0.0

    @property
    def reading_s(self) -> float:
        """From the first finished batch to the last one, kills and restarts included."""
        return 0.0 if self._first_read_s is None else self._last_read_s - self._first_read_s

    def go(self) -> None:
        """Run everything until all is read, then end the query politely."""
        total = self._options.record_count
        self._display.step(
            "a Spark query starts in a process of its own: flights to Parquet, average delays to the second stream"
        )
        try:
            self.watch.start()
            self.flights = load_flights(total)
            self._display.step(
                f"{total:,} flights are published as JSON, aggregated, by tail number, in order per aircraft"
            )
            self.publisher = Publisher(events_of(self.flights), self._open_writer, self._stops())
            with self._display.bars():
                self.publisher.start()
                self._watch_until_read()
            self._display.step(
                "everything is read, every average has come through the second stream; the query ends"
            )
            self._process.end(_END_DEADLINE_S)
            self._wait_until_quiet()
        finally:
            self._process.kill()

    def _open_writer(self) -> ProducerWriter:
        return ProducerWriter(FLIGHTS, service_of(self._server))

    # --- what happens on the way --------------------------------------------------------------------------

    def _stops(self) -> list[Stop]:
        """Return the publisher's stops: it waits for the query, shards change, and records are held back for the kills."""
        total = self._options.record_count
        stops = [
            (0.10, self._wait_for_reading),
            (0.25, self._split),
            (0.50, self._merge),
        ]
        stops += [
            (number / self._options.kill_count, self._waiter_for_kill(number))
            for number in range(1, self._options.kill_count)
        ]
        return [Stop(int(share * total), act) for share, act in sorted(stops, key=lambda stop: stop[0])]

    def _wait_for_reading(self) -> None:
        self._wait(lambda: self._read[0] > 0, "the query's first batch")

    def _waiter_for_kill(self, number: int) -> Callable[[], None]:
        return lambda: self._wait(lambda: self.watch.kill_count >= number, f"kill {number}")

    def _split(self) -> None:
        client = self._server.client()
        self._display.step(split_shard(client, FLIGHTS, 1) + " while it is read")

    def _merge(self) -> None:
        # The upper child of the split and its neighbour: a shard whose parents are of two generations.
        client = self._server.client()
        self._display.step(merge_shards(client, FLIGHTS, 2) + " while they are read")

    def _wait(self, condition: Callable[[], bool], what: str) -> None:
        end_s = time.monotonic() + 2 * _STALL_S
        while not condition():
            if time.monotonic() > end_s:
                raise PenstockError(f"waited {2 * _STALL_S:g} s for {what}{self._process.log_tail()}")
            time.sleep(_POLL_S)

    # --- watching -----------------------------------------------------------------------------------------

    def _watch_until_read(self) -> None:
        total = self._options.record_count
        shown_s = changed_s = time.monotonic()
        before: tuple[int, ...] = ()
        while True:
            now_s = time.monotonic()
            if now_s - shown_s >= _SHOW_S:
                shown_s = now_s
                counts = self._count(now_s)
                progress = (*counts, self.watch.kill_count, self.watch.restart_count)
                if progress != before:
                    before, changed_s = progress, now_s
                if self.publisher.is_done and min(self._read) >= total and not self.watch.has_kills_left:
                    return
            if now_s - changed_s > _STALL_S:
                if self.publisher.is_done:
                    self._display.note(f"nothing came for {_STALL_S:g} s: what is there is compared")
                    return
                raise PenstockError(
                    f"nothing happened for {_STALL_S:g} s: published {before[0]} of {total}, in Parquet {before[1]}, in "
                    f"averages {before[2]}{self._process.log_tail()}"
                )
            self.watch.step(may_kill=self._may_kill(), is_all_read=self._is_all_read)
            time.sleep(_POLL_S)

    def _count(self, now_s: float) -> tuple[int, int, int]:
        published = self.publisher.acknowledged.event_count
        read = (self._event_rows.count(), self._follower.flight_count)
        if read != self._read:
            self._last_read_s = now_s
            if self._first_read_s is None:
                self._first_read_s = now_s
        self._read = read
        self._display.update((published, *read))
        return (published, *read)

    def _may_kill(self) -> bool:
        # A single kill is at half of the records; several follow each other from the first batch on.
        return self._read[0] * 2 >= self._options.record_count or self._options.kill_count > 1

    def _is_all_read(self) -> bool:
        return min(self._read) >= self.publisher.acknowledged.event_count

    def _wait_until_quiet(self) -> None:
        """Wait until the last averages, some of them perhaps written twice, are read."""
        end_s = time.monotonic() + _END_DEADLINE_S
        count, changed_s = -1, time.monotonic()
        while time.monotonic() - changed_s < _QUIET_S:
            if self._follower.record_count != count:
                count, changed_s = self._follower.record_count, time.monotonic()
            if time.monotonic() > end_s:
                raise PenstockError(f"averages still come {_END_DEADLINE_S:g} s after the query ended")
            time.sleep(_POLL_S)


def service_of(server: Handle) -> dict[str, Any]:
    """Return the arguments by which a `Consumer` or a `Producer` reaches the embedded server."""
    environ = server.environ()
    return {
        "region": server.region,
        "endpoint_url": server.endpoint_url,
        "connection": {
            "access_key_id": environ["AWS_ACCESS_KEY_ID"],
            "secret_access_key": environ["AWS_SECRET_ACCESS_KEY"],
        },
    }
