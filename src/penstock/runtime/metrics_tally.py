"""Adds measurements up, and reports them periodically: the bases of the adapters of metrics."""

from __future__ import annotations

import itertools
import logging
import threading
from collections.abc import Mapping
from typing import Final, Self, TypeAlias

from msgspec import Struct, field

from penstock.core.sparse_reports import is_reported
from penstock.errors import OptionError
from penstock.ports.metrics import ForgettingMetrics, Metrics

log = logging.getLogger("penstock.metrics")

Labels: TypeAlias = tuple[tuple[str, str], ...]
Series: TypeAlias = tuple[str, Labels]

SERIES_MAX: Final = 20_000
"""The most name-and-label pairs that are kept; more are dropped, with a warning, so that memory is bounded."""


class Distribution(Struct):
    """Measurements of one kind: count, sum, extremes."""

    count: int = 0
    sum: float = 0.0
    minimum: float = float("inf")
    maximum: float = float("-inf")

    def add(self, value: float) -> None:
        """Add one measurement."""
        self.count += 1
        self.sum += value
        self.minimum = min(self.minimum, value)
        self.maximum = max(self.maximum, value)


class Snapshot(Struct):
    """The measurements at one moment."""

    counters: dict[Series, float] = field(default_factory=dict)
    gauges: dict[Series, float] = field(default_factory=dict)
    distributions: dict[Series, Distribution] = field(default_factory=dict)


def labels_of(labels: Mapping[str, str] | None) -> Labels:
    """Return labels as a key."""
    return tuple(sorted(labels.items())) if labels else ()


class MetricsTally:
    """Implements `penstock.ports.metrics.Metrics` by adding up. Safe to use from several threads.

    Args:
        series_max: The most name-and-label pairs; None: `SERIES_MAX`.
        remedy: The remedy if there are more.
    """

    def __init__(
        self,
        series_max: int | None = None,
        remedy: str = "measure fewer shards in one process, or with fewer labels",
    ) -> None:
        self._lock = threading.Lock()
        self._now = Snapshot()
        self._series_max = SERIES_MAX if series_max is None else series_max
        self._remedy = remedy
        self._dropped_counts = itertools.count(1)

    def count(self, name: str, value: float = 1, labels: Mapping[str, str] | None = None) -> None:
        """Add to a counter."""
        key = (name, labels_of(labels))
        with self._lock:
            has_place = self._has_place(self._now.counters, key)
            if has_place:
                self._now.counters[key] = self._now.counters.get(key, 0.0) + value
        self._warn_if_dropped(name, has_place)

    def gauge(self, name: str, value: float, labels: Mapping[str, str] | None = None) -> None:
        """Set a gauge."""
        self._set_gauge(name, value, labels)

    def _set_gauge(
        self, name: str, value: float, labels: Mapping[str, str] | None, *, keeps_largest: bool = False
    ) -> None:
        key = (name, labels_of(labels))
        with self._lock:
            gauges = self._now.gauges
            has_place = self._has_place(gauges, key)
            if has_place:
                gauges[key] = max(value, gauges.get(key, value)) if keeps_largest else value
        self._warn_if_dropped(name, has_place)

    def forget_gauge(self, name: str, labels: Mapping[str, str] | None = None) -> None:
        """Stop showing a gauge."""
        with self._lock:
            self._now.gauges.pop((name, labels_of(labels)), None)

    def observe(self, name: str, value: float, labels: Mapping[str, str] | None = None) -> None:
        """Add to a distribution."""
        key = (name, labels_of(labels))
        with self._lock:
            has_place = self._has_place(self._now.distributions, key)
            if has_place:
                self._now.distributions.setdefault(key, Distribution()).add(value)
        self._warn_if_dropped(name, has_place)

    def snapshot(self) -> Snapshot:
        """Return everything that was measured since the start."""
        with self._lock:
            distributions = {
                key: Distribution(known.count, known.sum, known.minimum, known.maximum)
                for key, known in self._now.distributions.items()
            }
            return Snapshot(dict(self._now.counters), dict(self._now.gauges), distributions)

    def take(self) -> Snapshot:
        """Return the measurements since the last `take`, and reset them."""
        with self._lock:
            taken, self._now = self._now, Snapshot()
            return taken

    def _has_place(self, series: Mapping[Series, object], key: Series) -> bool:
        now = self._now
        held = len(now.counters) + len(now.gauges) + len(now.distributions)
        return key in series or held < self._series_max

    def _warn_if_dropped(self, name: str, has_place: bool) -> None:
        """Warn of measurements that were dropped, ever more rarely. Called without the lock: a log handler may measure."""
        number = 0 if has_place else next(self._dropped_counts)
        if is_reported(number):
            log.warning(
                "metric %s has no place among %d metrics with different names or labels; measurements dropped so far: %d; %s",
                name,
                self._series_max,
                number,
                self._remedy,
            )


class LabelledMetrics:
    """Implements `penstock.ports.metrics.Metrics` by adding labels to every figure.

    Args:
        labels: Added to those that each figure has.
    """

    def __init__(self, metrics: Metrics, labels: Mapping[str, str]) -> None:
        self._metrics = metrics
        self._labels = dict(labels)

    def count(self, name: str, value: float = 1, labels: Mapping[str, str] | None = None) -> None:
        self._metrics.count(name, value, {**self._labels, **(labels or {})})

    def gauge(self, name: str, value: float, labels: Mapping[str, str] | None = None) -> None:
        self._metrics.gauge(name, value, {**self._labels, **(labels or {})})

    def forget_gauge(self, name: str, labels: Mapping[str, str] | None = None) -> None:
        if isinstance(self._metrics, ForgettingMetrics):
            self._metrics.forget_gauge(name, {**self._labels, **(labels or {})})

    def observe(self, name: str, value: float, labels: Mapping[str, str] | None = None) -> None:
        self._metrics.observe(name, value, {**self._labels, **(labels or {})})


def check_interval(interval_s: float) -> None:
    """Raise `OptionError` unless the seconds between two reports are more than 0."""
    if not interval_s > 0:
        raise OptionError(f"interval_s={interval_s}: expected more than 0")


class PeriodicReports:
    """Calls `report` from a thread of its own until it is closed. A subclass starts it when it is complete."""

    def report(self) -> None:
        """Report the measurements since the last report. Never raises."""
        raise NotImplementedError

    def start_reports(self, interval_s: float, thread_name: str) -> None:
        """Start the thread that reports every `interval_s` seconds."""
        self._closed = threading.Event()
        self._thread = threading.Thread(
            target=self._report_on, args=(interval_s,), name=thread_name, daemon=True
        )
        self._thread.start()

    def close(self) -> None:
        """Send the last report and stop."""
        if not self._closed.is_set():
            self._closed.set()
            self._thread.join()
            self.report()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _report_on(self, interval_s: float) -> None:
        while not self._closed.wait(interval_s):
            self.report()
