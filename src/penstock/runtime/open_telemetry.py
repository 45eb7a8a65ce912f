"""Metrics and traces for OpenTelemetry, by its API alone: the program chooses the SDK and the exporters."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, Final
from weakref import WeakKeyDictionary

from penstock._version import __version__
from penstock.errors import UsageError
from penstock.runtime.metrics_tally import (
    LabelledMetrics,
    MetricsTally,
    Series,
    Snapshot,
    labels_of,
)

if TYPE_CHECKING:
    from opentelemetry.metrics import CallbackOptions, Histogram, MeterProvider, Observation
    from opentelemetry.trace import TracerProvider

_SCOPE: Final = "penstock"
_UNITS: Final = {"_s": "s", "_bytes": "By"}


class OpenTelemetryMetrics(LabelledMetrics):
    """Implements `penstock.metrics.Metrics` with OpenTelemetry's instruments, by the names of docs/metrics.md.

    Counters become observable counters, gauges observable gauges, and distributions histograms. Several consumers may share
    it: each one's figures carry its stream, application and worker. Objects of the same provider and prefix
    share their instruments: each instrument exists once there.

    Args:
        provider: Makes the instruments; None: the provider of the process (`opentelemetry.metrics.set_meter_provider`).
        prefix: In front of every name.

    Raises:
        UsageError: opentelemetry-api is not installed.
    """

    def __init__(self, provider: MeterProvider | None = None, prefix: str = "penstock.") -> None:
        with _missing_package_error():
            from opentelemetry import metrics
        provider = provider or metrics.get_meter_provider()
        with _instruments_lock:
            of_provider = _instruments.setdefault(provider, {})
            if prefix not in of_provider:
                of_provider[prefix] = _Instruments(provider, prefix)
            instruments = of_provider[prefix]
        super().__init__(instruments, {})

    def of_consumer(
        self, stream: str, application: str, worker_id: str, _health: Callable[[], Any]
    ) -> LabelledMetrics:
        """Return the metrics that a consumer fills. Called by `Consumer` when it starts."""
        labels = {"stream": stream, "application": application, "worker": worker_id}
        return LabelledMetrics(self._metrics, labels)


class _Instruments(MetricsTally):
    """The instruments of one provider and one prefix. A meter creates each instrument once, with one callback."""

    def __init__(self, provider: MeterProvider, prefix: str) -> None:
        super().__init__()
        from opentelemetry import metrics

        self._observation: type[Observation] = metrics.Observation
        self._meter = metrics.get_meter(_SCOPE, __version__, meter_provider=provider)
        self._prefix = prefix
        self._observed: set[str] = set()
        self._histograms: dict[str, Histogram] = {}

    def count(self, name: str, value: float = 1, labels: Mapping[str, str] | None = None) -> None:
        super().count(name, value, labels)
        self._observe_through(self._meter.create_observable_counter, name, lambda now: now.counters)

    def gauge(self, name: str, value: float, labels: Mapping[str, str] | None = None) -> None:
        super().gauge(name, value, labels)
        self._observe_through(self._meter.create_observable_gauge, name, lambda now: now.gauges)

    def observe(self, name: str, value: float, labels: Mapping[str, str] | None = None) -> None:
        super().observe(name, value, labels)
        with self._lock:
            if (name, labels_of(labels)) not in self._now.distributions:
                return  # it was dropped for lack of room
            histogram = self._histograms.get(name)
            if histogram is None:
                histogram = self._meter.create_histogram(self._prefix + name, unit=_unit_of(name))
                self._histograms[name] = histogram
        histogram.record(value, dict(labels or {}))

    def _observe_through(
        self, create: Callable[..., object], name: str, kind: Callable[[Snapshot], dict[Series, float]]
    ) -> None:
        """Create the observable instrument of a name at its first measurement; later calls do nothing."""
        with self._lock:
            if name in self._observed:
                return
            self._observed.add(name)

        def read(_: CallbackOptions) -> Iterable[Observation]:
            return [
                self._observation(value, dict(labels))
                for (measured, labels), value in kind(self.snapshot()).items()
                if measured == name
            ]

        create(self._prefix + name, callbacks=[read], unit=_unit_of(name))


_instruments: WeakKeyDictionary[MeterProvider, dict[str, _Instruments]] = WeakKeyDictionary()
_instruments_lock: Final = threading.Lock()


class _Traces:
    """Makes spans of one consumer, with attributes that all of them share.

    Raises:
        UsageError: opentelemetry-api is not installed.

    Source:
        OpenTelemetry's semantic conventions for messaging, "Messaging attributes".
    """

    def __init__(self, provider: TracerProvider, shared: Mapping[str, str]) -> None:

        with _missing_package_error():
            from opentelemetry import trace
        self._kind = trace.SpanKind.CONSUMER
        self._tracer = trace.get_tracer(_SCOPE, __version__, tracer_provider=provider)
        self._shared = {"messaging.system": "aws_kinesis", **shared}

    def _begin(self, name: str, attributes: Mapping[str, Any]) -> AbstractContextManager[object]:
        return self._tracer.start_as_current_span(
            name, kind=self._kind, attributes={**self._shared, **attributes}
        )


class BatchTraces(_Traces):
    """Makes a span for each call of a consumer's handler."""

    def __init__(self, provider: TracerProvider, application: str, worker_id: str) -> None:
        shared = {"messaging.consumer.group.name": application, "messaging.client.id": worker_id}
        super().__init__(provider, shared)

    @contextlib.contextmanager
    def span(self, operation: str, batch: Any) -> Iterator[None]:
        """Run a call inside a span of its own; an exception marks the span as failed and is raised again.

        Args:
            operation: `process`, or `dead_letter`.
            batch: The `Batch` or `AsyncBatch` that user code gets.
        """
        records = batch.records
        destination = batch.stream.rpartition("/")[2]
        attributes = {
            "messaging.destination.name": destination,
            "messaging.operation.name": operation,
            "messaging.operation.type": "process",
            "messaging.destination.partition.id": batch.shard_id,
            "messaging.batch.message_count": len(records),
            "penstock.attempt": batch.attempt,
            "penstock.millis_behind_latest": batch.millis_behind_latest,
            "penstock.first_sequence_number": records[0].sequence_number,
            "penstock.last_sequence_number": records[-1].sequence_number,
        }
        with self._begin(f"{operation} {destination}", attributes):
            yield


class QueueTraces(_Traces):
    """Makes a span for each call of a queue consumer's handler."""

    def __init__(self, provider: TracerProvider, queue: str, worker_id: str) -> None:
        self._name = f"process {queue}"
        shared = {
            "messaging.client.id": worker_id,
            "messaging.destination.name": queue,
            "messaging.operation.name": "process",
            "messaging.operation.type": "process",
        }
        super().__init__(provider, shared)

    @contextlib.contextmanager
    def span(self, batch: Any) -> Iterator[None]:
        """Run a call inside a span of its own; an exception marks the span as failed and is raised again.

        Args:
            batch: The `QueueBatch` of the call.
        """
        records = batch.records
        attributes = {
            "messaging.batch.message_count": len(records),
            "penstock.receive_count": max(record.receive_count for record in records),
        }
        if len(records) == 1:
            attributes["messaging.message.id"] = records[0].record_id
        with self._begin(self._name, attributes):
            yield


@contextlib.contextmanager
def _missing_package_error() -> Iterator[None]:
    try:
        yield
    except ModuleNotFoundError as error:
        raise UsageError(
            f"OpenTelemetry is not installed ({error.name}): pip install 'penstock[otel]'"
        ) from error


def _unit_of(name: str) -> str:
    if name.startswith("millis_"):
        return "ms"
    return next((unit for ending, unit in _UNITS.items() if name.endswith(ending)), "")
