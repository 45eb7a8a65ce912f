"""Metrics as log lines: one line per report, for those who have nothing else."""

from __future__ import annotations

import logging
import threading
from typing import Self

from penstock.errors import OptionError
from penstock.runtime.metrics_tally import Labels, MetricsTally, Snapshot


class LoggingMetrics(MetricsTally):
    """Logs what was measured every so often; implements `penstock.ports.metrics.Metrics`.

    Args:
        interval_s: Seconds between two reports.
        logger: Where to; at INFO.

    Raises:
        OptionError: The interval is not positive.
    """

    def __init__(self, interval_s: float = 60.0, logger: logging.Logger | None = None) -> None:
        super().__init__()
        if not interval_s > 0:
            raise OptionError(f"interval_s={interval_s}: expected more than 0")
        self._logger = logger or logging.getLogger("penstock.metrics")
        self._interval_s = interval_s
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._report_on, name="penstock-metrics-log", daemon=True)
        self._thread.start()

    def report(self) -> None:
        """Log what was measured since the last report, now."""
        text = format_snapshot(self.take())
        if text:
            self._logger.info("%s", text)

    def close(self) -> None:
        """Report once more, and end."""
        if not self._closed.is_set():
            self._closed.set()
            self._thread.join()
            self.report()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _report_on(self) -> None:
        while not self._closed.wait(self._interval_s):
            self.report()


def format_snapshot(snapshot: Snapshot) -> str:
    """Return a report on one line, or an empty text if nothing was measured."""
    parts = [f"{_name(*key)}=+{value:g}" for key, value in sorted(snapshot.counters.items())]
    parts += [f"{_name(*key)}={value:g}" for key, value in sorted(snapshot.gauges.items())]
    for key, known in sorted(snapshot.distributions.items()):
        mean = known.sum / known.count
        parts.append(f"{_name(*key)}={mean:.3g} (max {known.maximum:.3g}, n {known.count})")
    return " ".join(parts)


def _name(name: str, labels: Labels) -> str:
    if not labels:
        return name
    inside = ",".join(f"{key}={value}" for key, value in labels)
    return f"{name}{{{inside}}}"
