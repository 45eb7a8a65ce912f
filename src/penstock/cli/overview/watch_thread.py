"""Open the watcher of the named applications, and take snapshots at an interval on a thread."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Self

from penstock import wiring
from penstock.cli.overview.queue_reader import QueueReader
from penstock.cli.overview.stream_reader import StreamReader
from penstock.cli.overview.trouble import TroubleLimits
from penstock.cli.overview.watcher import ApplicationWatcher, FleetWatcher, WatchOptions
from penstock.cli.service_options import connection_arguments_of, options_of

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable

    from penstock.cli.overview.snapshot import Snapshot


def open_fleet_watcher(args: argparse.Namespace, silent_after_s: float) -> FleetWatcher:
    """Open a watcher of the named applications; if none is named, of all applications and the queues.

    Args:
        silent_after_s: Used if `--silent-after` is not given.
    """
    clock, connection = wiring.SystemClock(), options_of(args)
    kinesis = wiring.open_kinesis(connection)
    options = WatchOptions(
        stream=args.stream,
        silent_after_s=silent_after_s if args.silent_after is None else args.silent_after,
        lag_count_max=args.lags,
        limits=TroubleLimits(lag_s=args.lag_warn),
    )

    def open_watcher(name: str) -> ApplicationWatcher:
        return ApplicationWatcher(wiring.open_lease_table(name, connection), kinesis, clock, options)

    queues = QueueReader(wiring.open_queues(connection), wiring.open_cloudwatch_queries(connection), clock)
    finder = wiring.open_lease_table_finder(connection)
    return FleetWatcher(args.applications, open_watcher, finder, clock, queues.take_snapshot)


def open_stream_reader(args: argparse.Namespace) -> StreamReader:
    """Open the reader of the figures of streams."""
    options = options_of(args)
    return StreamReader(
        wiring.open_kinesis(options),
        wiring.open_cloudwatch_queries(options),
        wiring.SystemClock(),
        connection_arguments_of(args),
    )


class WatchThread:
    """Takes snapshots at an interval, on its own thread.

    Args:
        watcher: Not used by any other thread.
        interval_s: Seconds from the end of one snapshot to the beginning of the next.
        on_snapshot: Called with each snapshot, on the thread.
    """

    def __init__(
        self,
        watcher: FleetWatcher,
        interval_s: float,
        on_snapshot: Callable[[Snapshot], None] = lambda _: None,
    ) -> None:
        self._watcher = watcher
        self._interval_s = interval_s
        self._on_snapshot = on_snapshot
        self._condition = threading.Condition()
        self._is_closed = False
        self._newest: Snapshot | None = None
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="penstock-snapshots", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        """Take snapshots until `close` is called or a snapshot fails."""
        while True:
            try:
                snapshot = self._watcher.take_snapshot()
                self._on_snapshot(snapshot)
            except BaseException as error:  # noqa: BLE001 - raised again on the thread that shows the snapshots
                with self._condition:
                    self._error = error
                    self._condition.notify_all()
                return
            with self._condition:
                self._newest = snapshot
                self._condition.notify_all()
                if self._condition.wait_for(lambda: self._is_closed, self._interval_s):
                    return

    def newest_snapshot(self) -> Snapshot | None:
        """Return the newest snapshot; None before the first one.

        Raises:
            Exception: The error that ended the thread.
        """
        with self._condition:
            if self._error is not None:
                raise self._error
            return self._newest

    def wait_until_failed(self, timeout_s: float) -> None:
        """Wait until the thread has failed, or the timeout has passed.

        Raises:
            Exception: The error that ended the thread.
        """
        with self._condition:
            self._condition.wait_for(lambda: self._error is not None, timeout_s)
        self.newest_snapshot()

    def close(self) -> None:
        """Stop; a snapshot under way ends by itself."""
        with self._condition:
            self._is_closed = True
            self._condition.notify_all()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
