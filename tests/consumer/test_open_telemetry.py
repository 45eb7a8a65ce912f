"""Metrics and spans by OpenTelemetry's API, read from the SDK's exporters in memory."""

import subprocess
import sys
import threading

import pytest

pytest.importorskip("opentelemetry.sdk")

from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode, get_current_span
from real_threads import FAST, tiny_stream

from penstock.consumer import Consumer, ConsumerPorts
from penstock.errors import UsageError
from penstock.runtime.memory_lease_table import MemoryLeaseTable
from penstock.runtime.open_telemetry import OpenTelemetryMetrics

DEADLINE_S = 60.0


@pytest.fixture
def reader():
    return InMemoryMetricReader()


@pytest.fixture
def metrics(reader):
    provider = MeterProvider(metric_readers=[reader])
    yield OpenTelemetryMetrics(provider)
    provider.shutdown()


@pytest.fixture
def spans():
    """The exported spans, and the provider."""
    exporter, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    yield exporter, provider
    provider.shutdown()


def points(reader):
    """The metrics that the SDK has collected: name to (unit, {labels: value}); of a histogram, its count and sum."""
    data = reader.get_metrics_data()
    return {
        metric.name: (
            metric.unit,
            {
                tuple(sorted(point.attributes.items())): getattr(point, "value", None)
                if hasattr(point, "value")
                else (point.count, point.sum)
                for point in metric.data.data_points
            },
        )
        for resource in (data.resource_metrics if data else ())
        for scope in resource.scope_metrics
        for metric in scope.metrics
    }


def test_two_objects_of_one_provider_show_the_figures_of_both(reader):
    provider = MeterProvider(metric_readers=[reader])
    first, second = OpenTelemetryMetrics(provider), OpenTelemetryMetrics(provider)
    first.count("records", 3, {"shard": "s0"})
    second.count("records", 7, {"shard": "s1"})
    first.gauge("leases", 1, {"worker": "w0"})
    second.gauge("leases", 2, {"worker": "w1"})
    found = points(reader)
    assert found["penstock.records"][1] == {(("shard", "s0"),): 3, (("shard", "s1"),): 7}
    assert found["penstock.leases"][1] == {(("worker", "w0"),): 1, (("worker", "w1"),): 2}
    provider.shutdown()


def test_counters_gauges_and_distributions_become_instruments(metrics, reader):
    metrics.count("records", 3, {"shard": "s0"})
    metrics.count("records", 2, {"shard": "s0"})
    metrics.count("records", 7, {"shard": "s1"})
    metrics.gauge("millis_behind_latest", 4, {"shard": "s0"})
    metrics.gauge("millis_behind_latest", 5, {"shard": "s0"})
    metrics.observe("checkpoint_latency_s", 0.5)
    metrics.observe("checkpoint_latency_s", 0.25)
    first, second = (("shard", "s0"),), (("shard", "s1"),)
    expected = {
        "penstock.records": ("", {first: 5, second: 7}),
        "penstock.millis_behind_latest": ("ms", {first: 5}),
        "penstock.checkpoint_latency_s": ("s", {(): (2, 0.75)}),
    }
    assert points(reader) == expected
    assert points(reader) == expected, "counters are sums since the start, and a gauge stays"
    metrics.forget_gauge("millis_behind_latest", {"shard": "s0"})
    metrics.count("records", 1, {"shard": "s0"})
    found = points(reader)
    assert found["penstock.records"] == ("", {first: 6, second: 7})
    assert "penstock.millis_behind_latest" not in found


def test_the_number_of_histogram_series_is_bounded(metrics, reader, monkeypatch, caplog):
    monkeypatch.setattr(metrics._metrics, "_series_max", 2)
    for shard in ("s0", "s1", "s2", "s0"):
        metrics.observe("lease_scan_s", 1.0, {"shard": shard})
    _, found = points(reader)["penstock.lease_scan_s"]
    assert found == {(("shard", "s0"),): (2, 2.0), (("shard", "s1"),): (1, 1.0)}
    assert "metric lease_scan_s has no place among 2 metrics" in caplog.text


def consume(handler, count, is_done, **given):
    stream = tiny_stream(1)
    for index in range(count):
        stream.put(f"k{index}", b"r%d" % index)
    consumer = Consumer(
        "arn:aws:kinesis:eu-west-1:123456789012:stream/orders",
        "billing",
        handler,
        ports=ConsumerPorts(stream, MemoryLeaseTable("billing")),
        worker_id="w1",
        **FAST,
        **given,
    )
    consumer.start()
    try:
        assert is_done.wait(DEADLINE_S)
    finally:
        consumer.stop()
    return stream.shards


def test_a_consumers_figures_carry_its_labels(metrics, reader):
    is_done = threading.Event()
    consume(lambda _: is_done.set(), 5, is_done, metrics=metrics)
    _, found = points(reader)["penstock.records"]
    ((labels, value),) = found.items()
    assert value == 5
    assert {"application", "shard", "stream", "worker"} == dict(labels).keys()
    assert (dict(labels)["application"], dict(labels)["worker"]) == ("billing", "w1")


def test_each_call_of_the_handler_is_a_span_in_which_it_runs(spans):
    exporter, provider = spans
    is_done = threading.Event()
    failures = []

    def handle(batch):
        get_current_span().set_attribute("by.handler", "yes")
        if not failures:
            failures.append(batch)
            raise ValueError("not yet")
        is_done.set()

    shards = consume(handle, 5, is_done, tracer_provider=provider)
    first, second = exporter.get_finished_spans()
    ((shard, kept),) = shards.items()
    attributes = dict(first.attributes)
    assert attributes.pop("penstock.millis_behind_latest") >= 0
    assert attributes == {
        "messaging.system": "aws_kinesis",
        "messaging.destination.name": "orders",
        "messaging.destination.partition.id": shard,
        "messaging.consumer.group.name": "billing",
        "messaging.client.id": "w1",
        "messaging.operation.name": "process",
        "messaging.operation.type": "process",
        "messaging.batch.message_count": 5,
        "penstock.attempt": 1,
        "penstock.first_sequence_number": kept.records[0].sequence_number,
        "penstock.last_sequence_number": kept.records[-1].sequence_number,
        "by.handler": "yes",
    }
    assert (first.name, first.kind) == ("process orders", SpanKind.CONSUMER)
    assert first.status.status_code is StatusCode.ERROR
    assert first.events[0].attributes["exception.message"] == "not yet"
    assert (second.attributes["penstock.attempt"], second.status.status_code) == (2, StatusCode.UNSET)


def test_records_that_are_put_aside_have_a_span_too(spans):
    exporter, provider = spans
    is_done = threading.Event()

    def handle(_):
        raise ValueError("never")

    options = {"on_failure": "dead_letter", "handler_retries_max": 0}
    consume(handle, 1, is_done, dead_letter=lambda *_: is_done.set(), tracer_provider=provider, **options)
    assert [span.name for span in exporter.get_finished_spans()] == ["process orders", "dead_letter orders"]


def test_what_is_not_asked_for_is_not_loaded():
    program = (
        "import sys; from penstock import Consumer; Consumer('orders', 'billing', print); "
        "sys.exit('opentelemetry' in sys.modules)"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=DEADLINE_S)


def test_without_the_package_the_error_names_the_extra(monkeypatch, spans):
    monkeypatch.setitem(sys.modules, "opentelemetry", None)
    with pytest.raises(UsageError, match=r"pip install 'penstock\[otel\]'"):
        OpenTelemetryMetrics()
    consumer = Consumer(
        "orders",
        "billing",
        print,
        ports=ConsumerPorts(tiny_stream(1), MemoryLeaseTable("billing")),
        tracer_provider=spans[1],
    )
    with pytest.raises(UsageError, match="OpenTelemetry is not installed"):
        consumer.start()
