"""Parts of the user's program that a consumer calls on its threads, and that raise: its logging, its metrics, its signals."""

import logging
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from real_threads import FAST, put, tiny_stream, unfinished

import penstock
from penstock.consumer import Consumer, ConsumerPorts
from penstock.runtime import consumer_run, own_loggers
from penstock.runtime.memory_lease_table import MemoryLeaseTable
from penstock.runtime.stop_signals import StopSignals
from waiting import wait_until

LOG = logging.getLogger("penstock.consumer")


class ToChat(logging.Handler):
    """Posts each line to a chat, which does not answer."""

    def emit(self, record):
        raise ConnectionError("no chat")


def needs_a_request(*_, **__):
    """As a filter or a record factory that reads the web request of the thread."""
    raise RuntimeError("working outside of a request")


@pytest.fixture
def odd_logging(request):
    handler = ToChat() if request.param == "handler" else logging.StreamHandler()
    if request.param == "filter of a handler":
        handler.addFilter(needs_a_request)
    if request.param == "filter of the logger":
        LOG.addFilter(needs_a_request)
    before = logging.getLogRecordFactory()
    if request.param == "record factory":
        logging.setLogRecordFactory(needs_a_request)
    LOG.addHandler(handler)
    level = LOG.level
    LOG.setLevel(logging.DEBUG)
    yield request.param
    logging.setLogRecordFactory(before)
    LOG.removeHandler(handler)
    LOG.removeFilter(needs_a_request)
    LOG.setLevel(level)


@pytest.mark.parametrize(
    "odd_logging",
    ["handler", "filter of a handler", "filter of the logger", "record factory"],
    indirect=True,
)
def test_logging_that_raises_stops_no_consumer(odd_logging, capfd):
    stream, table = tiny_stream(2), MemoryLeaseTable("app")
    sent, seen = put(stream, 20), []

    def handle(batch):
        if batch.attempt == 1:
            raise ValueError("each batch fails once, which is logged")
        seen.extend(record.data for record in batch)

    ports = ConsumerPorts(stream, table)
    with Consumer("orders", "app", handle, ports=ports, handler_threads=1, **FAST) as consumer:
        wait_until(lambda: len(seen) >= len(sent), f"all records, with a {odd_logging} that raises")
        assert consumer.health().is_healthy
    assert sorted(seen) == sorted(sent)
    assert unfinished(stream, table) == []
    assert "--- Logging error ---" in capfd.readouterr().err


def test_every_logger_of_the_package_is_guarded():
    texts = [path.read_text(encoding="utf-8") for path in Path(penstock.__file__).parent.rglob("*.py")]
    named = {name for text in texts for name in re.findall(r'getLogger\("(penstock\.\w+)"\)', text)}
    assert named == set(own_loggers.NAMES)


def test_a_program_that_ends_while_its_consumer_runs_is_warned(caplog):
    """As one whose last line is `consumer.start()`."""
    stream = tiny_stream(1)
    consumer = Consumer(
        "orders", "app", lambda batch: None, ports=ConsumerPorts(stream, MemoryLeaseTable("app")), **FAST
    )
    consumer_run._warn_at_exit()
    consumer.start()
    assert caplog.text == ""
    consumer_run._warn_at_exit()
    assert caplog.text.count("the program ends while a consumer of it runs") == 1
    consumer.stop()
    consumer_run._warn_at_exit()
    assert caplog.text.count("the program ends while a consumer of it runs") == 1


class Broken:
    """Metrics that fail; without a length, as a collection that is empty at first."""

    def __len__(self):
        return 0

    def count(self, *_):
        raise ConnectionError("no metrics today")

    gauge = observe = forget_gauge = count


def test_metrics_that_raise_stop_no_consumer(caplog):
    stream, table = tiny_stream(2), MemoryLeaseTable("app")
    sent, seen = put(stream, 20), []

    def handle(batch):
        seen.extend(record.data for record in batch)
        batch.checkpoint()

    ports = ConsumerPorts(stream, table)
    options = {**FAST, "checkpointing": "manual"}
    with Consumer("orders", "app", handle, ports=ports, metrics=Broken(), **options) as consumer:
        wait_until(lambda: len(seen) >= len(sent), "all records")
        assert consumer.health().is_healthy
    assert sorted(seen) == sorted(sent)
    assert unfinished(stream, table) == []
    written = [record.getMessage() for record in caplog.records if record.name == "penstock.metrics"]
    assert "no metrics today" in caplog.text
    assert 1 <= len(written) < 12, "one of ever more measurements is logged"


def test_a_signal_handler_that_python_did_not_set_becomes_the_default(monkeypatch):
    handlers = {}

    def set_handler(number, handler):
        if handler is None:
            raise TypeError("signal handler must be signal.SIG_IGN, signal.SIG_DFL, or a callable object")
        return handlers.update({number: handler})

    monkeypatch.setattr(signal, "signal", set_handler)
    with StopSignals(lambda: None):
        assert callable(handlers[signal.SIGTERM])
    assert handlers == {signal.SIGTERM: signal.SIG_DFL, signal.SIGINT: signal.SIG_DFL}


def test_no_logger_is_made_for_a_configuration_to_disable():
    """`logging.config` disables the loggers that exist; those of modules that are loaded later are left alone."""
    code = (
        "import logging, penstock.consumer, penstock.runtime.loop\n"
        "made = logging.root.manager.loggerDict\n"
        "print(sorted(name for name in made if name.startswith('penstock.') and 'producer' in name))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout == "[]\n"
