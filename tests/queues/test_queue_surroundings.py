"""What surrounds a queue's consumer: spans, Prometheus with health, forked children, signals, odd logs."""

import json
import os
import re
import signal
import subprocess
import sys
import threading
import urllib.error
import urllib.request
from functools import partial

import pytest

from penstock import QueueConsumer, Reject
from penstock.consumer.metrics_prometheus import PrometheusMetrics
from penstock.errors import UsageError
from queue_world import QueueWorld
from waiting import wait_until


@pytest.fixture
def world():
    return QueueWorld()


def consumer(world, handler, **options):
    return QueueConsumer("invoices", handler, ports=world.ports, **{"wait_time_s": 1, **options})


def get(url):
    try:
        with urllib.request.urlopen(url, timeout=30) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


def test_prometheus_serves_figures_health_and_readiness(world):
    world.put("a", "b")
    with PrometheusMetrics(port=0) as metrics:
        url = f"http://127.0.0.1:{metrics.port}"
        assert get(f"{url}/ready")[0] == 503
        with consumer(world, lambda _: None, metrics=metrics, metrics_interval_s=0.1, worker_id="w"):
            wait_until(lambda: get(f"{url}/ready")[0] == 200, "the consumer to be ready")
            wait_until(lambda: not world.left)
            ended = re.compile(
                r'queue_records_ended_total\{application="invoices",end="acknowledged",stream="orders",worker="w"\} 2'
            )
            wait_until(lambda: ended.search(get(f"{url}/metrics")[1]))
            in_hand = re.compile(r"penstock_queue_in_hand_records\{.*\} 0\n")
            wait_until(lambda: in_hand.search(get(f"{url}/metrics")[1]))
            health = json.loads(get(f"{url}/health")[1])["consumers"][0]
            assert (health["queue"], health["in_hand"], health["is_healthy"]) == ("invoices", 0, True)
        status, text = get(f"{url}/health")
        assert (status, "the consumer has stopped" in text) == (503, True)


def test_each_call_of_the_handler_is_a_span(world):
    pytest.importorskip("opentelemetry.sdk")
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import SimpleSpanProcessor
    from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
    from opentelemetry.trace import SpanKind, StatusCode

    exporter, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))

    def handle(record):
        if record.data == b"bad":
            raise Reject("never")

    ids = world.put("good", "bad")
    with consumer(world, handle, tracer_provider=provider, worker_id="w"):
        wait_until(lambda: not world.left)
    spans = {span.attributes["messaging.message.id"]: span for span in exporter.get_finished_spans()}
    good, bad = spans[ids[0]], spans[ids[1]]
    assert (good.name, good.kind) == ("process invoices", SpanKind.CONSUMER)
    assert good.attributes["messaging.destination.name"] == "invoices"
    assert good.attributes["penstock.receive_count"] == 1
    assert (good.status.status_code, bad.status.status_code) == (StatusCode.UNSET, StatusCode.ERROR)
    provider.shutdown()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="nothing forks here")
@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_a_forked_child_is_refused_and_disturbs_nothing(world):
    world.put("a")
    go_on = threading.Event()
    of = consumer(world, lambda _: go_on.wait(60))
    of.start()
    wait_until(lambda: of.health().in_handler == 1)
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:  # pragma: no cover - counted in the parent
        said = []
        leave = partial(of.__exit__, None, None, None)
        for act in (of.health, of.stop, of.request_stop, of.start, of.run, of.__enter__, leave):
            try:
                act()
            except UsageError as error:
                said.append("made in process" in str(error))
        of.__exit__(KeyError, KeyError(), None)  # the error of the block goes first
        os.write(writing, repr(said).encode())
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as answer:
        assert answer.read() == repr([True] * 7)
    os.waitpid(child, 0)
    go_on.set()
    wait_until(lambda: not world.left)
    of.stop()


PROGRAM = """
import logging, sys
sys.path.insert(0, sys.argv[1])
logging.basicConfig(level=logging.DEBUG)
from penstock import QueueConsumer, Reject
from queue_world import QueueWorld

class Odd(Exception):
    def __str__(self):
        return "\\ud800 from user code"

def handle(record):
    if record.data == b"reject":
        raise Reject("\\udfff")
    if record.receive_count == 1:
        raise Odd
    print("done", flush=True)

world = QueueWorld()
world.put("fail", "reject")
QueueConsumer("invoices", handle, ports=world.ports, wait_time_s=1, backoff_min_s=1, backoff_max_s=1).run()
print("left", world.left, "dead", world.dead())
"""


def test_messages_with_half_surrogate_pairs_are_logged_and_a_signal_stops(tmp_path):
    out, err = tmp_path / "out", tmp_path / "err"
    with out.open("w") as stdout, err.open("w") as stderr:
        here = os.path.dirname(os.path.dirname(__file__))  # noqa: PTH120 - the folder of queue_world.py
        process = subprocess.Popen([sys.executable, "-c", PROGRAM, here], stdout=stdout, stderr=stderr)
    try:
        wait_until(lambda: "done" in out.read_text() or process.poll() is not None)
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0, err.read_text()
    finally:
        process.kill()
    logged = err.read_text()
    assert "\\ud800 from user code" in logged
    assert "a record was rejected: \\udfff" in logged
    assert "Logging error" not in logged
    assert out.read_text().endswith("left [] dead ['reject']\n")
