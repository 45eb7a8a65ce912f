"""Where measurements go: to the log, to Prometheus or to CloudWatch.

Implementations must not raise: no measurement is worth a failure.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol, runtime_checkable


class Metrics(Protocol):
    """Three kinds of measurement. Names end in their unit; labels are few and bounded (shard, reason)."""

    def count(self, name: str, value: float = 1, labels: Mapping[str, str] | None = None) -> None:
        """Add to a counter."""

    def gauge(self, name: str, value: float, labels: Mapping[str, str] | None = None) -> None:
        """Set a gauge to what a value is now."""

    def observe(self, name: str, value: float, labels: Mapping[str, str] | None = None) -> None:
        """Add one measurement to a distribution."""


class ClosableMetrics(Metrics, Protocol):
    """Metrics with threads of their own."""

    def close(self) -> None:
        """Report what is left, and end."""


@runtime_checkable
class ForgettingMetrics(Protocol):
    """Metrics that show a gauge's last value until it is forgotten."""

    def forget_gauge(self, name: str, labels: Mapping[str, str] | None = None) -> None:
        """Stop showing a gauge: what it measured is gone, or another worker measures it now."""


class NoMetrics:
    """Measures nothing; the default."""

    def count(self, name: str, value: float = 1, labels: Mapping[str, str] | None = None) -> None:
        """Drop it."""

    def gauge(self, name: str, value: float, labels: Mapping[str, str] | None = None) -> None:
        """Drop it."""

    def observe(self, name: str, value: float, labels: Mapping[str, str] | None = None) -> None:
        """Drop it."""

    def close(self) -> None:
        """Nothing is open."""
