"""Parts of the user's program that a consumer calls on its threads, and that raise: its logging, its metrics, its signals."""

import contextlib
import gc
import io
import itertools
import json
import logging
import math
import os
import signal
import subprocess
import sys
import threading
from logging.handlers import MemoryHandler
from types import SimpleNamespace

import pytest
from real_threads import FAST, put, tiny_stream, unfinished

from penstock.consumer import Consumer, ConsumerPorts
from penstock.logs import JsonFormatter
from penstock.ports.metrics import NoMetrics
from penstock.runtime import consumer_run, own_loggers, stop_signals
from penstock.runtime.guarded_metrics import guard_metrics
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
def odd_logging(request, logging_errors):
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
    logging_errors.clear()


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


def test_a_log_on_a_closed_stderr_raises_nothing(monkeypatch, logging_errors):
    closed = io.StringIO()
    closed.close()
    monkeypatch.setattr(sys, "stderr", closed)
    monkeypatch.setattr(LOG, "handlers", [logging.StreamHandler(closed)])
    own_loggers.guard_loggers()
    LOG.warning("a shard stops")
    assert [type(error) for error in logging_errors] == [ValueError]
    logging_errors.clear()


def test_a_malformed_log_call_fails_its_test(logging_errors):
    own_loggers.guard_loggers()
    LOG.warning("%d records", "many")
    assert len(logging_errors) == 1
    logging_errors.clear()


def test_a_handler_that_walks_the_stack_finds_the_line_of_a_log_call(monkeypatch):
    """As loguru's, to which its manual passes the lines of `logging`."""
    found = []

    class Walking(logging.Handler):
        def emit(self, record):
            frame = sys._getframe().f_back
            while frame.f_code.co_filename == logging.__file__:
                frame = frame.f_back
            found.append(frame.f_code.co_name)

    monkeypatch.setattr(LOG, "handlers", [Walking()])
    own_loggers.guard_loggers()
    LOG.warning("a shard stops")
    assert found == ["test_a_handler_that_walks_the_stack_finds_the_line_of_a_log_call"]


@pytest.mark.parametrize("formatter", [logging.Formatter(), JsonFormatter()])
@pytest.mark.parametrize("text", ["x" * 1_000_000, "a file named \udcff"])
def test_a_traceback_is_short_enough_and_can_be_written(monkeypatch, logging_errors, formatter, text):
    lines = []
    handler = logging.Handler()
    monkeypatch.setattr(handler, "emit", lambda record: lines.append(handler.format(record)))
    handler.setFormatter(formatter)
    monkeypatch.setattr(LOG, "handlers", [handler])
    own_loggers.guard_loggers()
    for error in (ValueError(text), ValueError("text of its own")):
        LOG.warning("the handler failed", exc_info=error)
    bounded, plain = lines
    assert len(bounded.encode()) < 40_000
    assert "ValueError: " + text[:13] in bounded
    assert plain.endswith(("ValueError: text of its own", 'ValueError: text of its own"}'))


@pytest.mark.parametrize("is_inside", [False, True], ids=["alone", "inside another group"])
@pytest.mark.parametrize("formatter", [logging.Formatter(), JsonFormatter()])
def test_a_large_group_is_shown_by_its_first_errors(monkeypatch, logging_errors, formatter, is_inside):
    """`traceback` examines them all, although it shows 15: 20,000 took a second for each log line."""
    examined, lines = [], []

    class FailedError(ValueError):
        def __str__(self):
            examined.append(self)
            return "a task has failed"

    handler = logging.Handler()
    monkeypatch.setattr(handler, "emit", lambda record: lines.append(handler.format(record)))
    handler.setFormatter(formatter)
    monkeypatch.setattr(LOG, "handlers", [handler])
    own_loggers.guard_loggers()
    group = ExceptionGroup("tasks", [FailedError() for _ in range(2_000)])
    group.add_note("of batch 7")
    LOG.warning("the handler failed", exc_info=ExceptionGroup("all", [group]) if is_inside else group)
    assert len(examined) < 500
    first = 20 if is_inside else 100
    assert f"ExceptionGroup: tasks (2000 sub-exceptions); the first ({first} sub-exceptions)" in lines[0]
    assert not is_inside or "ExceptionGroup: all (1 sub-exception)" in lines[0]
    assert "a task has failed" in lines[0]
    assert "of batch 7" in lines[0]


class Redacting(logging.Formatter):
    def formatException(self, ei):  # noqa: N802 - of the library
        return super().formatException(ei).replace("hunter2", "***")


@pytest.mark.parametrize("logger", [LOG, logging.getLogger()])
@pytest.mark.parametrize("is_buffered", [False, True])
@pytest.mark.parametrize("text", ["x" * 1_000_000, "a short text"])
def test_a_formatter_that_hides_secrets_gets_every_traceback(monkeypatch, text, is_buffered, logger):
    lines = io.StringIO()
    handler = logging.StreamHandler(lines)
    handler.setFormatter(Redacting())
    monkeypatch.setattr(logger, "handlers", [MemoryHandler(1, target=handler) if is_buffered else handler])
    own_loggers.guard_loggers()
    LOG.warning("the handler failed", exc_info=ValueError(f"password=hunter2 {text}"))
    assert f"ValueError: password=*** {text}" in lines.getvalue()


def test_a_line_of_json_has_no_text_of_another_handlers_formatter(monkeypatch, logging_errors):
    class Coloured(logging.Formatter):
        def formatException(self, ei):  # noqa: N802 - of the library
            return f"\x1b[31m{super().formatException(ei)}\x1b[0m"

    lines, handlers = [], [logging.Handler(), logging.Handler()]
    for handler, formatter in zip(handlers, (Coloured(), JsonFormatter()), strict=True):
        handler.setFormatter(formatter)
        monkeypatch.setattr(handler, "emit", lambda record, each=handler: lines.append(each.format(record)))
    monkeypatch.setattr(LOG, "handlers", handlers)
    own_loggers.guard_loggers()
    LOG.warning("the handler failed", exc_info=ValueError("text of its own"))
    assert "\x1b" in lines[0]
    assert json.loads(lines[1])["exception"] == "ValueError: text of its own"


def test_a_logger_that_the_program_patched_is_guarded_as_the_others_are(monkeypatch, logging_errors):
    patched, handled = logging.getLogger("penstock.aws"), []

    def handle(record):
        handled.append(record.getMessage())
        raise ConnectionError("no chat")

    monkeypatch.setitem(vars(patched), "handle", handle)
    for name in ("handle", "makeRecord"):
        monkeypatch.delitem(vars(LOG), name, raising=False)
    own_loggers.guard_loggers()
    own_loggers.guard_loggers()
    patched.warning("throttled")
    assert handled == ["throttled"]
    assert [type(error) for error in logging_errors] == [ConnectionError], "reported once"
    logging_errors.clear()
    assert {"handle", "makeRecord"} <= set(vars(LOG))


class Keyworded(logging.Logger):
    """A class of loggers that makes its records with keywords."""

    def _log(self, level, msg, args, exc_info=None, extra=None, stack_info=False, stacklevel=1):
        record = self.makeRecord(
            self.name, level, "here", 1, msg=msg, args=args, exc_info=exc_info, extra=extra
        )
        self.handle(record)


def test_a_logger_class_may_make_its_records_with_keywords(monkeypatch, caplog, logging_errors):
    own_loggers.guard_loggers()
    monkeypatch.setattr(LOG, "__class__", Keyworded)
    LOG.warning("lag %d", 1)
    before = logging.getLogRecordFactory()
    logging.setLogRecordFactory(needs_a_request)
    try:
        LOG.warning("lag %d", 2)
    finally:
        logging.setLogRecordFactory(before)
    assert caplog.messages == ["lag 1", "lag 2"]
    assert [str(error) for error in logging_errors] == ["working outside of a request"]
    logging_errors.clear()


def exit_warnings(caplog, worker_id):
    """Return how often the end of the program warns of a worker now; consumers of other tests may run in this process."""
    caplog.clear()
    consumer_run._warn_at_exit()
    return caplog.text.count(f"the program ends while worker {worker_id} of stream orders")


def test_a_program_that_ends_while_its_consumer_runs_is_warned(caplog):
    """As one whose last line is `consumer.start()`."""
    stream = tiny_stream(1)
    consumer = Consumer(
        "orders", "app", lambda batch: None, ports=ConsumerPorts(stream, MemoryLeaseTable("app")), **FAST
    )
    assert exit_warnings(caplog, consumer.worker_id) == 0
    consumer.start()
    assert exit_warnings(caplog, consumer.worker_id) == 1
    consumer.stop()
    assert exit_warnings(caplog, consumer.worker_id) == 0


def test_a_stop_may_have_no_bound():
    stream = tiny_stream(1)
    ports = ConsumerPorts(stream, MemoryLeaseTable("app"))
    consumer = Consumer("orders", "app", print, ports=ports, shutdown_timeout_s=math.inf, **FAST)
    consumer.start()
    consumer.stop()
    assert not consumer.is_running


def test_a_program_that_keeps_no_reference_to_its_consumer_is_warned_too(caplog):
    ports = ConsumerPorts(tiny_stream(1), MemoryLeaseTable("app"))
    Consumer("orders", "app", lambda batch: None, ports=ports, worker_id="unkept", **FAST).start()
    gc.collect()
    assert exit_warnings(caplog, "unkept") == 1
    for run in [run for run in consumer_run._begun if "worker unkept of" in run._name]:
        run.request_stop()
        assert run.wait(60)


def test_a_program_that_has_requested_the_stop_is_not_warned(caplog):
    """An event loop that ends has requested it, and has warned of it."""
    stream = tiny_stream(1)
    put(stream, 1)
    is_called, may_end = threading.Event(), threading.Event()

    def handle(batch):
        is_called.set()
        may_end.wait(60)

    ports = ConsumerPorts(stream, MemoryLeaseTable("app"))
    consumer = Consumer("orders", "app", handle, ports=ports, **FAST)
    consumer.start()
    assert is_called.wait(60)
    consumer.request_stop()
    assert exit_warnings(caplog, consumer.worker_id) == 0
    assert consumer.is_running
    may_end.set()
    consumer.stop()


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


class OfARequest:
    """Metrics behind a proxy that has no attribute outside of a web request, as one of werkzeug."""

    def __getattribute__(self, name):
        raise RuntimeError("working outside of a request")


class Subclassed(NoMetrics):
    """Metrics of one kind only."""

    def count(self, *_):
        raise ConnectionError("no metrics today")


@pytest.mark.parametrize("metrics", [OfARequest, Subclassed])
def test_metrics_that_raise_are_guarded_whatever_they_are(metrics, caplog):
    guarded = guard_metrics(metrics())
    guarded.count("records")
    guarded.gauge("shards", 1)
    guarded.forget_gauge("shards")
    assert "the metrics could not be written: records raised, error 1" in caplog.text


def test_guarded_metrics_keep_their_own_defaults():
    seen = []

    class OwnDefaults:
        def count(self, name, value=10, labels=()):
            seen.append((name, value, labels))

        def gauge(self, name, value, labels=()):
            seen.append((name, value, labels))

        observe = gauge

    guarded = guard_metrics(OwnDefaults())
    guarded.count("records")
    guarded.gauge("shards", value=2)
    guarded.observe("age_s", 3, labels={"shard": "1"})
    guarded.forget_gauge("shards")
    assert seen == [("records", 10, ()), ("shards", 2, ()), ("age_s", 3, {"shard": "1"})]


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


@pytest.mark.parametrize(
    ("second", "pause_s", "is_interrupted"),
    [
        (signal.SIGTERM, 0.0, False),  # as `timeout` sends it: to its child, and to the group of both
        (signal.SIGINT, 0.0, True),
        (signal.SIGTERM, 1.0, True),
    ],
)
def test_a_signal_that_is_sent_twice_at_once_is_one_signal(second, pause_s, is_interrupted, monkeypatch):
    now_s = itertools.count(0.0, pause_s)
    monkeypatch.setattr(stop_signals, "time", SimpleNamespace(monotonic=lambda: next(now_s)))
    calls = []
    with StopSignals(lambda: calls.append(1)) as signals:
        os.kill(os.getpid(), signal.SIGTERM)
        with pytest.raises(KeyboardInterrupt) if is_interrupted else contextlib.nullcontext():
            os.kill(os.getpid(), second)
    assert (calls, signals.is_interrupted) == ([1], is_interrupted)


def test_no_logger_is_made_for_a_configuration_to_disable():
    """`logging.config` disables the loggers that exist; those of modules that are loaded later are left alone."""
    code = (
        "import logging, penstock.consumer, penstock.runtime.loop\n"
        "penstock.runtime.loop.ThreadPool('of the program', 1)\n"
        "made = logging.root.manager.loggerDict\n"
        "print(sorted(name for name in made if name.startswith('penstock.') and 'producer' in name))\n"
        "from penstock.producer import Producer\n"
        "penstock.runtime.loop.ThreadPool('of the program', 1)\n"
        "print('handle' in vars(made['penstock.producer']))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout == "[]\nTrue\n"
