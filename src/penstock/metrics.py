"""Where the metrics of a consumer, a producer or a query go: one of these is the argument `metrics`.

`PrometheusMetrics` serves them, `OpenTelemetryMetrics` gives them to OpenTelemetry (`pip install 'penstock[otel]'`),
`LoggingMetrics` logs them, `open_cloudwatch` sends them to CloudWatch. `Metrics` is the protocol of your own.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from penstock._lazy_names import loaded_on_use

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
    "penstock.aws.cloudwatch_metrics": "CloudWatchMetrics",
    "penstock.consumer.metrics_prometheus": "PrometheusMetrics",
    "penstock.ports.metrics": "Metrics NoMetrics",
    "penstock.runtime.metrics_log": "LoggingMetrics",
    "penstock.runtime.open_telemetry": "OpenTelemetryMetrics",
    "penstock.wiring": "open_cloudwatch",
}

__getattr__, __dir__ = loaded_on_use(__name__, _HOMES, __all__)
