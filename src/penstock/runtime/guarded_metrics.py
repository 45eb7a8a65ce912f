"""The program's own metrics: an error of theirs is logged, and stops no consumer and no producer."""

from __future__ import annotations

import itertools
import logging
from typing import Any

from penstock.core.sparse_reports import is_reported
from penstock.ports.metrics import ForgettingMetrics, Metrics, NoMetrics

log = logging.getLogger("penstock.metrics")


def guard_metrics(metrics: Metrics | None) -> Metrics:
    """Return metrics that do not raise; None measures nothing."""
    if metrics is None:
        return NoMetrics()
    # By the exact class: one that is derived from `NoMetrics` may raise.
    return metrics if type(metrics) in (NoMetrics, GuardedMetrics) else GuardedMetrics(metrics)


class GuardedMetrics:
    """Implements `penstock.ports.metrics.Metrics` with an object that may raise. As thread-safe as that object.

    Arguments are passed on as they are given: an argument that is left out has the default of that object.

    Args:
        metrics: The program's metrics.
    """

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics
        self._failures = itertools.count(1)

    def count(self, name: str, *given: Any, **named: Any) -> None:
        self._measure("count", name, *given, **named)

    def gauge(self, name: str, *given: Any, **named: Any) -> None:
        self._measure("gauge", name, *given, **named)

    def forget_gauge(self, name: str, *given: Any, **named: Any) -> None:
        self._measure("forget_gauge", name, *given, **named)

    def observe(self, name: str, *given: Any, **named: Any) -> None:
        self._measure("observe", name, *given, **named)

    def _measure(self, method: str, name: str, *given: Any, **named: Any) -> None:
        try:
            if method != "forget_gauge" or isinstance(self._metrics, ForgettingMetrics):
                getattr(self._metrics, method)(name, *given, **named)
        except Exception:
            number = next(self._failures)
            if is_reported(number):
                log.exception(
                    "the metrics could not be written: %s raised, error %d of these metrics", name, number
                )
