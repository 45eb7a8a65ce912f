"""The protocols of metrics, which send measurements to the log, to Prometheus or to CloudWatch.

If an implementation raises an error, the error is logged and the measurement is left out.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final, Protocol, runtime_checkable

from penstock.errors import UsageError

_METHODS: Final = ("count", "gauge", "observe")


class Metrics(Protocol):
    """Three kinds of measurement. Names end in their unit; labels are few and bounded (shard, reason)."""

    def count(self, name: str, value: float = 1, labels: Mapping[str, str] | None = None) -> None:
        """Add to a counter."""

    def gauge(self, name: str, value: float, labels: Mapping[str, str] | None = None) -> None:
        """Set a gauge to its present value."""

    def observe(self, name: str, value: float, labels: Mapping[str, str] | None = None) -> None:
        """Add one measurement to a distribution."""


def check_metrics(metrics: object) -> None:
    """Refuse an object without the methods of `Metrics`. None and `MetricsOfConsumers` are accepted.

    Raises:
        UsageError: A method of `Metrics` is missing.
    """
    if metrics is None or isinstance(metrics, MetricsOfConsumers):
        return
    missing_methods = [name for name in _METHODS if not callable(getattr(metrics, name, None))]
    if missing_methods:
        raise UsageError(
            f"metrics={metrics!r} has no {', '.join(missing_methods)}: give an object of `penstock.ports.metrics.Metrics`, for instance "
            "PrometheusMetrics(port=9464) of penstock.consumer.metrics_prometheus"
        )


class ClosableMetrics(Metrics, Protocol):
    """Metrics that run threads until they are closed."""

    def close(self) -> None:
        """Report the remaining measurements and end the threads."""


@runtime_checkable
class ForgettingMetrics(Protocol):
    """Metrics that show a gauge's last value until it is forgotten."""

    def forget_gauge(self, name: str, labels: Mapping[str, str] | None = None) -> None:
        """Stop showing a gauge: its subject is gone, or another worker measures it now."""


@runtime_checkable
class MetricsOfConsumers(Protocol):
    """Metrics that several consumers of a process may share."""

    def of_consumer(
        self, stream: str, application: str, worker_id: str, health: Callable[[], Any], /
    ) -> Metrics:
        """Return metrics that keep one consumer's measurements separate.

        Args:
            stream: Name or ARN.
            application: The application, which names the lease table.
            worker_id: The worker's name in the lease table.
            health: Returns the consumer's `penstock.consumer.Health`.
        """


class NoMetrics:
    """Measures nothing; the default."""

    def count(self, name: str, value: float = 1, labels: Mapping[str, str] | None = None) -> None:
        """Drop the measurement."""

    def gauge(self, name: str, value: float, labels: Mapping[str, str] | None = None) -> None:
        """Drop the measurement."""

    def observe(self, name: str, value: float, labels: Mapping[str, str] | None = None) -> None:
        """Drop the measurement."""

    def close(self) -> None:
        """Do nothing."""
