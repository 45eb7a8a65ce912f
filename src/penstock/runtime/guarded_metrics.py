"""The program's own metrics: an error of theirs is logged, and stops no consumer and no producer."""

from __future__ import annotations

import itertools
import logging
from collections.abc import Callable, Mapping

from penstock.ports.metrics import ForgettingMetrics, Metrics, NoMetrics

log = logging.getLogger("penstock.metrics")


def guard_metrics(metrics: Metrics | None) -> Metrics:
    """Return metrics that do not raise; None measures nothing."""
    if metrics is None:
        return NoMetrics()
    return metrics if isinstance(metrics, NoMetrics | GuardedMetrics) else GuardedMetrics(metrics)


class GuardedMetrics:
    """Implements `penstock.ports.metrics.Metrics` with an object that may raise. As thread-safe as that object.

    Args:
        metrics: Measures.
    """

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics
        self._failures = itertools.count(1)

    def count(self, name: str, value: float = 1, labels: Mapping[str, str] | None = None) -> None:
        """Add to a counter."""
        self._measure(self._metrics.count, name, value, labels)

    def gauge(self, name: str, value: float, labels: Mapping[str, str] | None = None) -> None:
        """Set a gauge."""
        self._measure(self._metrics.gauge, name, value, labels)

    def forget_gauge(self, name: str, labels: Mapping[str, str] | None = None) -> None:
        """Stop showing a gauge."""
        if isinstance(self._metrics, ForgettingMetrics):
            self._measure(self._metrics.forget_gauge, name, labels)

    def observe(self, name: str, value: float, labels: Mapping[str, str] | None = None) -> None:
        """Add one measurement to a distribution."""
        self._measure(self._metrics.observe, name, value, labels)

    def _measure(self, measure: Callable[..., object], name: str, *arguments: object) -> None:
        try:
            measure(name, *arguments)
        except Exception:
            number = next(self._failures)
            if number & (number - 1) == 0:  # ever more rarely: there may be thousands a second
                log.exception(
                    "the metrics could not be written: %s raised, error %d of these metrics", name, number
                )
