"""Where the metrics of a consumer, a producer or a query go: one of these is the argument `metrics`.

`PrometheusMetrics` serves them, `OpenTelemetryMetrics` gives them to OpenTelemetry (`pip install 'penstock[otel]'`),
`LoggingMetrics` logs them, `open_cloudwatch` sends them to CloudWatch. `Metrics` is the protocol of your own.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from penstock.aws.cloudwatch_metrics import CloudWatchMetrics
    from penstock.consumer.metrics_prometheus import PrometheusMetrics
    from penstock.ports.metrics import Metrics, NoMetrics
    from penstock.runtime.metrics_log import LoggingMetrics
    from penstock.runtime.open_telemetry import OpenTelemetryMetrics
    from penstock.wiring import open_cloudwatch

__all__ = [
    "CloudWatchMetrics",
    "LoggingMetrics",
    "Metrics",
    "NoMetrics",
    "OpenTelemetryMetrics",
    "PrometheusMetrics",
    "open_cloudwatch",
]

_HOMES: Final = {
    "CloudWatchMetrics": "penstock.aws.cloudwatch_metrics",
    "LoggingMetrics": "penstock.runtime.metrics_log",
    "Metrics": "penstock.ports.metrics",
    "NoMetrics": "penstock.ports.metrics",
    "OpenTelemetryMetrics": "penstock.runtime.open_telemetry",
    "PrometheusMetrics": "penstock.consumer.metrics_prometheus",
    "open_cloudwatch": "penstock.wiring",
}


def __getattr__(name: str) -> Any:
    """Load a name on first use: a program has one or two of these."""
    if name not in _HOMES:
        raise AttributeError(f"module 'penstock.metrics' has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    """Show the public names."""
    return sorted(__all__)
