"""Metrics as log lines, one line per report: for deployments without a metrics system."""

from __future__ import annotations

import logging

from penstock.runtime.metrics_tally import Labels, MetricsTally, PeriodicReports, Snapshot, check_interval


class LoggingMetrics(MetricsTally, PeriodicReports):
    """Logs the measurements periodically; implements `penstock.metrics.Metrics`.

    Args:
        interval_s: Seconds between two reports.
        logger: The logger; lines are at INFO.

    Raises:
        OptionError: The interval is not positive.
    """

    def __init__(self, interval_s: float = 60.0, logger: logging.Logger | None = None) -> None:
        super().__init__()
        check_interval(interval_s)
        self._logger = logger or logging.getLogger("penstock.metrics")
        self.start_reports(interval_s, "penstock-metrics-log")

    def report(self) -> None:
        """Log the measurements since the last report."""
        text = format_snapshot(self.take())
        if text:
            self._logger.info(text)


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
