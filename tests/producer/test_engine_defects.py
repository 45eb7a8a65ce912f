"""Whatever goes wrong inside, every receipt ends: with an acknowledgement, or with an error that says what to do."""

from __future__ import annotations

import contextlib
import linecache
import logging
import sys
import threading
import warnings

import pytest

import penstock.producer.producer
from few_threads import leave_threads
from penstock.core.hash_key import HashRange
from penstock.core.put_entry import EntryAnswer
from penstock.core.shard import Shard, StreamSummary
from penstock.core.writing.batcher import Batcher
from penstock.errors import DeliveryFailed, UsageError
from penstock.ports.kinesis import ShardListing
from penstock.producer import Producer
from penstock.producer.engine import Engine
from penstock.runtime.system_clock import SystemClock
from penstock.runtime.threads import begin_on_daemon

WAIT_S = 30.0
HALF = 2**127


class Stream:
    """A stream of two shards in memory."""

    def __init__(self):
        self.stored = []
        self.may_answer = threading.Event()
        self.may_answer.set()
        self.asked = threading.Semaphore(0)

    def fetch_summary(self, stream):
        return StreamSummary(stream, f"arn:aws:kinesis:eu-central-1:1:stream/{stream}", "ACTIVE", 1)

    def fetch_shards(self, _, shard_filter=None):
        shards = (
            Shard("low", HashRange(0, HALF - 1), (), "1"),
            Shard("high", HashRange(HALF, 2**128 - 1), (), "1"),
        )
        return ShardListing(shards, 1)

    def put_records(self, _, entries):
        self.asked.release()
        assert self.may_answer.wait(WAIT_S)
        self.stored += [entry.data for entry in entries]
        return [
            EntryAnswer("1", "low" if int(entry.explicit_hash_key or 0) < HALF else "high")
            for entry in entries
        ]


@pytest.fixture
def stream():
    found = Stream()
    yield found
    found.may_answer.set()


def producer_of(stream, **options):
    return Producer("orders", kinesis=stream, **{"linger_s": 0.01, "aggregation": False, **options})


def put(producer, data):
    return producer.put(data, "key", "1")


def raises_once(owner, name, error, monkeypatch, after=False):
    """Make a method raise at its next call, before or after its work."""
    method, left = getattr(owner, name), [error]

    def call(self, *arguments, **named):
        if after:
            method(self, *arguments, **named)
        if left:
            raise left.pop()
        return method(self, *arguments, **named)

    monkeypatch.setattr(owner, name, call)


def test_a_producer_goes_on_with_the_threads_that_it_gets(stream, monkeypatch, caplog):
    with monkeypatch.context() as limited:
        leave_threads(limited, 0)
        producer = producer_of(stream)
        with pytest.raises(RuntimeError, match="can't start new thread"):
            put(producer, b"1")
    leave_threads(monkeypatch, 1)
    with producer:
        assert put(producer, b"2").result(WAIT_S).shard_id == "low"
    assert stream.stored == [b"2"]
    assert caplog.messages == [
        "stream orders: the producer goes on with 1 of 4 threads: can't start new thread"
    ]


@pytest.mark.parametrize(
    "name", ["plan_step", "_plan_request", "on_answers", "on_shards", "_check_counts", "_recount_full_bytes"]
)
@pytest.mark.parametrize("after", [False, True])
def test_a_defect_of_the_batcher_ends_every_receipt_and_names_what_to_do(
    stream, name, after, monkeypatch, caplog
):
    producer = producer_of(stream)
    stream.may_answer.clear()
    receipts = [put(producer, b"%d" % number) for number in range(3)]
    if name != "on_shards":
        assert stream.asked.acquire(
            timeout=WAIT_S
        )  # the first request is under way, and the others wait for it
    raises_once(Batcher, name, AssertionError("a defect"), monkeypatch, after)
    receipts += [put(producer, b"%d" % number) for number in range(3, 6)]
    stream.may_answer.set()
    for receipt in receipts:
        if receipt.exception(WAIT_S) is not None:
            assert isinstance(receipt.exception(), DeliveryFailed)
            assert "a defect" in str(receipt.exception())
    if any(receipt.exception() is not None for receipt in receipts):
        with pytest.raises(DeliveryFailed, match="a defect"):
            producer.close()
        assert "a defect" in caplog.text
    else:
        producer.close()


def test_records_that_a_failing_plan_has_taken_are_not_left_open(stream, monkeypatch):
    producer = producer_of(stream)
    raises_once(Batcher, "_plan_request", AssertionError("a defect"), monkeypatch, after=True)
    receipts = [put(producer, b"%d" % number) for number in range(3)]
    for receipt in receipts:
        with pytest.raises(DeliveryFailed, match="Open another one, and report"):
            receipt.result(WAIT_S)
    with pytest.raises(DeliveryFailed, match="the record was not taken"):
        put(producer, b"late")
    with pytest.raises(DeliveryFailed, match="3 records failed"):
        producer.close()


def test_a_record_in_flight_while_the_batcher_fails_has_its_own_outcome(stream, monkeypatch):
    producer = producer_of(stream)
    stream.may_answer.clear()
    first = put(producer, b"first")
    assert stream.asked.acquire(timeout=WAIT_S)
    raises_once(Batcher, "plan_step", AssertionError("a defect"), monkeypatch)
    with pytest.raises(DeliveryFailed, match="a defect"):
        put(producer, b"second").result(WAIT_S)
    assert not first.done()
    stream.may_answer.set()
    assert first.result(WAIT_S).shard_id == "low"
    with pytest.raises(DeliveryFailed, match="1 records failed"):
        producer.close()


@pytest.mark.parametrize("error", [SystemExit(3), KeyboardInterrupt()])
def test_a_callback_that_ends_its_thread_keeps_no_other_receipt_from_its_outcome(stream, error, caplog):
    def leave(_):
        raise error

    with producer_of(stream, aggregation=True) as producer:
        receipts = [put(producer, b"%d" % number) for number in range(5)]
        receipts[1].add_done_callback(leave)
        assert [receipt.result(WAIT_S).shard_id for receipt in receipts] == ["low"] * 5
        assert put(producer, b"later").result(WAIT_S).shard_id == "low"
    assert "a callback of a record's future raised" in caplog.text


@pytest.mark.parametrize("name", ["flush", "close"])
def test_a_callback_that_would_wait_for_itself_is_refused(stream, name):
    raised = []

    def wait(_):
        try:
            getattr(producer, name)()
        except UsageError as error:
            raised.append(str(error))

    with producer_of(stream) as producer:
        stream.may_answer.clear()
        receipt = put(producer, b"1")
        receipt.add_done_callback(wait)
        stream.may_answer.set()
        receipt.result(WAIT_S)
        assert put(producer, b"2").result(WAIT_S).shard_id == "low"
    assert len(raised) == 1
    assert f"{name}() waits for records, and is called in a future's callback" in raised[0]


def test_a_callback_may_close_a_producer_that_is_closing(stream):
    raised = []

    def close(_):
        assert closing.wait(WAIT_S)
        try:
            producer.close()
        except UsageError as error:
            raised.append(error)

    closing = threading.Event()
    producer = producer_of(stream)
    stream.may_answer.clear()
    put(producer, b"1").add_done_callback(close)
    flush = producer._flush

    def flush_in_close(*arguments, **options):
        closing.set()
        stream.may_answer.set()
        flush(*arguments, **options)

    producer._flush = flush_in_close
    producer.close()
    assert raised == []


def test_a_future_that_was_settled_elsewhere_keeps_no_other_from_its_outcome(stream, caplog):
    with producer_of(stream, aggregation=True) as producer:
        receipts = [put(producer, b"%d" % number) for number in range(5)]
        receipts[1].set_exception(ValueError("mine"))
        assert [receipt.result(WAIT_S).shard_id for receipt in (receipts[0], *receipts[2:])] == ["low"] * 4
    assert "was settled elsewhere" in caplog.text


class Broken:
    """Metrics that fail."""

    def count(self, *_):
        raise RuntimeError("no metrics today")

    gauge = observe = count


def test_metrics_that_fail_leave_no_receipt_open(stream, caplog):
    producer = producer_of(stream, metrics=Broken(), record_ttl_s=0.01)
    receipts = [put(producer, b"%d" % number) for number in range(5)]
    for receipt in receipts:
        receipt.exception(WAIT_S)
    with contextlib.suppress(DeliveryFailed):
        producer.close()
    assert "the metrics could not be written" in caplog.text


def test_a_producer_without_its_logger_warns(stream, monkeypatch):
    monkeypatch.setattr(logging.getLogger("penstock.producer"), "disabled", True)
    with pytest.warns(RuntimeWarning, match="penstock.producer is disabled") as caught:
        producer = producer_of(stream)
    assert [each.filename for each in caught] == [__file__]
    with producer, warnings.catch_warnings():
        warnings.simplefilter("error")
        put(producer, b"1").result(WAIT_S)


def test_metrics_that_fail_cost_no_record(stream, caplog):
    with producer_of(stream, metrics=Broken()) as producer:
        receipts = [put(producer, b"%d" % number) for number in range(5)]
        assert [receipt.result(WAIT_S).shard_id for receipt in receipts] == ["low"] * 5
    assert "the metrics could not be written" in caplog.text
    assert len(stream.stored) == 5


def test_what_comes_back_after_the_producer_was_closed_and_left_alone_fails_too(stream, monkeypatch):
    monkeypatch.setattr("penstock.producer.producer._JOIN_S", 0.01)
    producer = producer_of(stream)
    stream.may_answer.clear()

    def refuse(_, entries):
        stream.asked.release()
        assert stream.may_answer.wait(WAIT_S)
        return [EntryAnswer(error_code="InternalFailure") for _ in entries]

    stream.put_records = refuse
    receipt = put(producer, b"slow")
    assert stream.asked.acquire(timeout=WAIT_S)
    with pytest.raises(DeliveryFailed, match="not acknowledged within"):
        producer.close(0.01)
    assert not receipt.done()
    stream.may_answer.set()
    with pytest.raises(DeliveryFailed, match="the producer was closed"):
        receipt.result(WAIT_S)


def test_a_second_close_waits_until_its_own_deadline(stream, monkeypatch):
    monkeypatch.setattr(penstock.producer.producer, "_JOIN_S", 0.1)
    producer = producer_of(stream)
    stream.may_answer.clear()
    receipt = put(producer, b"1")
    first, second = (begin_on_daemon("closing", producer.close) for _ in range(2))
    with pytest.raises(DeliveryFailed, match=r"not acknowledged within 0\.01 s"):
        producer.close(0.01)
    stream.may_answer.set()
    for each in (first, second):
        each.exception(WAIT_S)
    assert receipt.done()
    producer.close()


# --- called by a signal handler, a log handler or __del__, in the middle of a call ---------------------------------


class InterruptingClock(SystemClock):
    """Calls a function once, when the thread `putting` asks for the time."""

    def __init__(self, function):
        super().__init__()
        self._left = [function]

    def monotonic_s(self):
        if self._left and threading.current_thread().name == "putting":
            self._left.pop()()
        return super().monotonic_s()


@pytest.mark.parametrize("name", ["put", "flush", "close"])
def test_a_call_that_interrupts_a_put_of_its_thread_is_refused(stream, name):
    def interrupt():
        with pytest.raises(UsageError, match="a signal handler"):
            put(producer, b"2") if name == "put" else getattr(producer, name)()

    producer = producer_of(stream, clock=InterruptingClock(interrupt))
    receipt = begin_on_daemon("putting", lambda: put(producer, b"1")).result(WAIT_S)
    assert receipt.result(WAIT_S).shard_id == "low"
    producer.close(WAIT_S)
    assert stream.stored == [b"1"]


def test_a_put_while_its_thread_opens_the_producer_is_refused(stream):
    fetch = stream.fetch_summary

    def fetch_and_log(name):
        with pytest.raises(UsageError, match="leaves out the loggers botocore, urllib3 and penstock"):
            put(producer, b"2")
        return fetch(name)

    stream.fetch_summary = fetch_and_log
    producer = producer_of(stream)
    begin_on_daemon("putting", lambda: put(producer, b"1")).result(WAIT_S)
    producer.close(WAIT_S)
    assert stream.stored == [b"1"]


def test_a_signal_handler_closes_a_producer_that_its_thread_opens(stream):
    fetch = stream.fetch_summary
    stream.fetch_summary = lambda name: (producer.close(), fetch(name))[1]
    producer = producer_of(stream)
    with pytest.raises(DeliveryFailed, match="the producer is closed"):
        begin_on_daemon("putting", lambda: put(producer, b"1")).result(WAIT_S)


# --- interrupted anywhere ---------------------------------------------------------------------------------------


class Interruption:
    """Ctrl-C at the n-th line that this thread reaches while `put` adds the record."""

    FILES = ("producer/engine.py", "writing/batcher.py", "writing/shard_queue.py")

    def __init__(self, line_number):
        self.left = line_number

    def __call__(self, frame, event, _):
        return self.trace if frame.f_code.co_filename.endswith(self.FILES) else None

    def trace(self, frame, event, _):
        is_put = frame.f_code is Engine.put.__code__
        line = linecache.getline(frame.f_code.co_filename, frame.f_lineno).strip()
        # Before, nothing has happened; the record is put when the lock is free again.
        if event != "line" or (
            is_put and ("open_count" not in frame.f_locals or line.startswith(("with", "try", "return")))
        ):
            return self.trace
        if not self.left:
            sys.settrace(None)
            raise KeyboardInterrupt
        self.left -= 1
        return self.trace


@pytest.mark.parametrize("options", [{}, {"ordering": "none"}, {"aggregation": True}, {"linger_s": 30.0}])
def test_a_put_that_is_interrupted_anywhere_leaves_nothing_that_a_flush_waits_for(stream, options):
    interrupted = 0
    while True:
        stream.stored.clear()
        producer = producer_of(stream, request_count_max=1, **options)
        stream.may_answer.clear()
        receipts = [put(producer, b"%d" % number) for number in range(4)]
        sys.settrace(Interruption(interrupted))
        try:
            receipts.append(put(producer, b"interrupted"))
        except KeyboardInterrupt:
            interrupted += 1
        finally:
            sys.settrace(None)
        receipts.append(put(producer, b"later"))
        stream.may_answer.set()
        producer.close(WAIT_S)
        assert all(receipt.done() and receipt.exception() is None for receipt in receipts)
        assert producer.waiting_count == 0
        if len(receipts) == 6:
            break
        if options != {"aggregation": True}:
            assert stream.stored == [b"0", b"1", b"2", b"3", b"later"]
    assert interrupted > 10
