"""Receipts behave as any future does, and take little memory until a thread waits for them."""

from __future__ import annotations

import asyncio
import contextlib
import copy
import gc
import logging
import pickle
import subprocess
import sys
import threading
import tracemalloc
from concurrent.futures import FIRST_COMPLETED, Future, InvalidStateError, as_completed, wait

import pytest

from penstock.core.writing.packing import RECORD_OVERHEAD_BYTES
from penstock.errors import DeliveryFailed
from penstock.producer.receipts import RECEIPT_BYTES, Acknowledgement, FullReceipt, LightReceipt, Receipt

HERE = Acknowledgement("shardId-000000000000", "7")
DEADLINE_S = 30.0


def record(kind=LightReceipt):
    return kind(b"data", "key", None)


@pytest.fixture(params=[LightReceipt, FullReceipt])
def receipt(request):
    return record(request.param)


def test_this_python_makes_futures_as_light_receipts_know_them():
    assert Receipt is LightReceipt


def test_a_receipt_that_waits_is_a_pending_future(receipt):
    assert isinstance(receipt, Future)
    assert (receipt.done(), receipt.cancelled(), receipt.running(), receipt.cancel()) == (False,) * 4
    assert "pending" in repr(receipt)
    with pytest.raises(TimeoutError):
        receipt.result(0.001)
    with pytest.raises(TimeoutError):
        receipt.exception(0.001)


@pytest.mark.parametrize("send", [pickle.dumps, copy.deepcopy])
def test_a_receipt_is_not_sent_to_another_process_where_it_would_wait_for_ever(receipt, send):
    with pytest.raises(TypeError, match=r"cannot (be pickled: return its|pickle)"):
        send(receipt)


def test_an_acknowledged_receipt_has_a_result_and_keeps_it(receipt):
    receipt.set_result(HERE)
    assert (receipt.done(), receipt.result(), receipt.result(0), receipt.exception()) == (
        True,
        HERE,
        HERE,
        None,
    )
    assert not receipt.cancel()
    for again in (lambda: receipt.set_result(HERE), lambda: receipt.set_exception(DeliveryFailed("late"))):
        with pytest.raises(InvalidStateError):
            again()
    assert receipt.result() is HERE


@pytest.mark.parametrize(
    "settle", [lambda r: r.set_result(HERE), lambda r: r.set_exception(DeliveryFailed("no"))]
)
def test_a_settled_receipt_lets_go_of_its_data(settle):
    receipt = record()
    assert receipt.data == b"data"
    settle(receipt)
    assert receipt.data == b""


def test_a_receipt_whose_record_was_given_up_raises(receipt):
    failure = DeliveryFailed("gone")
    receipt.set_exception(failure)
    assert (receipt.done(), receipt.exception()) == (True, failure)
    with pytest.raises(DeliveryFailed, match="gone"):
        receipt.result()


def test_an_error_of_many_records_does_not_keep_the_traceback_of_each():
    failure, lengths = DeliveryFailed("gone"), []
    for _ in range(5):
        receipt = record()
        receipt.set_exception(failure)
        with pytest.raises(DeliveryFailed) as caught:
            receipt.result()
        lengths.append(len(caught.traceback))
    assert len(set(lengths)) == 1


@pytest.mark.parametrize(
    "settle", [lambda r: r.set_result(HERE), lambda r: r.set_exception(DeliveryFailed("no"))]
)
def test_callbacks_are_called_once_in_their_order_and_late_ones_at_once(receipt, settle):
    called = []
    receipt.add_done_callback(lambda found: called.append(("first", found)))
    receipt.add_done_callback(lambda found: called.append(("second", found)))
    assert not called
    settle(receipt)
    receipt.add_done_callback(lambda found: called.append(("late", found)))
    assert called == [("first", receipt), ("second", receipt), ("late", receipt)]


def test_a_callback_that_fails_is_logged_and_the_others_are_called(caplog):
    receipt, called = record(), []

    def fail(_):
        raise ValueError("a defect of the callback")

    receipt.add_done_callback(fail)
    receipt.add_done_callback(called.append)
    with caplog.at_level(logging.ERROR, "penstock.producer"):
        receipt.set_result(HERE)
    assert called == [receipt]
    assert "a defect of the callback" in caplog.text


def test_threads_that_wait_are_woken(receipt):
    found = []
    threads = [threading.Thread(target=lambda: found.append(receipt.result(DEADLINE_S))) for _ in range(3)]
    for thread in threads:
        thread.start()
    receipt.set_result(HERE)
    for thread in threads:
        thread.join(DEADLINE_S)
    assert found == [HERE] * 3


def test_wait_and_as_completed_take_receipts():
    first, second, third = receipts = [record() for _ in range(3)]
    first.set_result(HERE)
    assert wait(receipts, DEADLINE_S, return_when=FIRST_COMPLETED).done == {first}
    second.set_exception(DeliveryFailed("no"))
    settling = threading.Timer(0.01, third.set_result, [HERE])
    settling.start()
    assert set(as_completed(receipts, DEADLINE_S)) == set(receipts)
    assert wait(receipts, DEADLINE_S) == (set(receipts), set())
    settling.join(DEADLINE_S)


def test_an_event_loop_awaits_receipts():
    async def await_both(good, bad):
        threading.Timer(0.01, good.set_result, [HERE]).start()
        assert await asyncio.wrap_future(good) == HERE
        with pytest.raises(DeliveryFailed, match="no"):
            await asyncio.wrap_future(bad)

    good, bad = record(), record()
    bad.set_exception(DeliveryFailed("no"))
    asyncio.run(await_both(good, bad))


RACE = """
import sys, threading
from concurrent.futures import wait
from penstock.producer.receipts import Acknowledgement, LightReceipt

sys.setswitchinterval(1e-6)
COUNT, HERE = 4000, Acknowledgement("shardId-000000000000", "7")
receipts = [LightReceipt(b"", "key", None) for _ in range(COUNT)]
called = [[] for _ in range(COUNT)]
found = []
begin = threading.Barrier(4)

def settle():
    begin.wait(30)
    for receipt in receipts:
        receipt.set_result(HERE)

def leave_callbacks():
    begin.wait(30)
    for place, receipt in enumerate(receipts):
        receipt.add_done_callback(called[place].append)
        receipt.add_done_callback(called[place].append)

def ask():
    begin.wait(30)
    found.extend(receipt.result(30) for receipt in receipts)

def gather():
    begin.wait(30)
    for place in range(0, COUNT, 10):
        assert not wait(receipts[place : place + 10], 30).not_done

threads = [threading.Thread(target=each) for each in (settle, leave_callbacks, ask, gather)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join(60)
assert found == [HERE] * COUNT
assert all(calls == [receipt, receipt] for calls, receipt in zip(called, receipts))
"""


def test_whoever_comes_while_it_is_settled_misses_nothing():
    subprocess.run([sys.executable, "-c", RACE], check=True, timeout=120)


def test_whoever_settles_stores_the_outcome_before_looking_for_those_who_wait():
    looked = []

    class Receipt(LightReceipt):
        @property
        def _is_watched(self):
            looked.append((self._state, self._result))
            return False

    Receipt(b"", "key", None).set_result(HERE)
    assert looked == [("FINISHED", HERE)]


@pytest.mark.parametrize(
    "come", [lambda r: r.add_done_callback(print), lambda r: wait([r], 0), lambda r: r.exception(0)]
)
def test_whoever_waits_shows_itself_before_looking_for_the_outcome(come):
    looked = []

    class Receipt(LightReceipt):
        @property
        def _state(self):
            looked.append(self._is_watched)
            return "PENDING"

        @_state.setter
        def _state(self, state):
            """It stays pending."""

    with contextlib.suppress(TimeoutError):
        come(Receipt(b"", "key", None))
    assert looked[-1]


@pytest.mark.parametrize("use", [lambda _: None, lambda receipt: receipt.add_done_callback(print)])
def test_a_receipt_takes_no_more_memory_than_is_counted(use):
    receipts = [None] * 2000
    gc.collect()
    tracemalloc.start()
    try:
        for place in range(len(receipts)):
            receipts[place] = record(Receipt)
            use(receipts[place])
        taken_bytes, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert taken_bytes <= (RECORD_OVERHEAD_BYTES + RECEIPT_BYTES) * len(receipts)
