"""Where measurements go: to the log, to Prometheus or to CloudWatch.

Implementations must not raise: no measurement is worth a failure.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol, runtime_checkable


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


@runtime_checkable
class MetricsOfConsumers(Protocol):
    """Metrics that several consumers of a process may share."""

    def of_consumer(
        self, stream: str, application: str, worker_id: str, health: Callable[[], Any], /
    ) -> Metrics:
        """Return where one consumer's figures go, told apart from the others'.

        Args:
            stream: Name or ARN.
            application: Names the lease table.
            worker_id: In the lease table.
            health: Returns the consumer's `penstock.consumer.Health`.
        """


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
