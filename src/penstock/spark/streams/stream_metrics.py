"""The metrics of one stream of a query of several."""

from __future__ import annotations

from collections.abc import Mapping

from penstock.ports.metrics import ClosableMetrics


class StreamMetrics:
    """Adds the label `stream`, and leaves the shared metrics open. Figures of several streams never mix.

    Args:
        metrics: Of the whole query.
    """

    def __init__(self, metrics: ClosableMetrics, stream: str) -> None:
        self._metrics = metrics
        self._label = {"stream": stream}

    def count(self, name: str, value: float = 1, labels: Mapping[str, str] | None = None) -> None:
        """Add to a counter."""
        self._metrics.count(name, value, {**(labels or {}), **self._label})

    def gauge(self, name: str, value: float, labels: Mapping[str, str] | None = None) -> None:
        """Set a gauge."""
        self._metrics.gauge(name, value, {**(labels or {}), **self._label})

    def observe(self, name: str, value: float, labels: Mapping[str, str] | None = None) -> None:
        """Add one measurement to a distribution."""
        self._metrics.observe(name, value, {**(labels or {}), **self._label})

    def close(self) -> None:
        """Do nothing: the query closes its metrics."""
