"""A consumer in a forked child: its threads are in the parent, and each method says so at once."""

import asyncio
import os
import signal
import sys
import threading

import pytest
from real_threads import FAST, tiny_stream

from penstock.consumer import AsyncConsumer, Consumer, ConsumerPorts
from penstock.errors import UsageError
from penstock.queues import AsyncQueueConsumer, QueueConsumer
from penstock.runtime.memory_lease_table import MemoryLeaseTable
from queue_world import QueueWorld

pytestmark = [
    pytest.mark.skipif(not hasattr(os, "fork"), reason="nothing forks here"),
    pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning"),
]
END_S = 60.0


def make(handler=None, kind=Consumer, **options) -> Consumer:
    stream = tiny_stream(1)
    stream.put("k", b"x")
    ports = ConsumerPorts(stream, MemoryLeaseTable("app"))
    return kind("orders", "app", handler, ports=ports, **FAST, **options)


def make_of_queue(handler, kind):
    world = QueueWorld()
    world.put("a")
    return kind("invoices", handler, ports=world.ports, wait_time_s=1)


def in_child(act) -> str:
    """The output of a forked child; it ends by itself or is ended."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:  # pragma: no cover - counted in the parent
        said = b"nothing was raised"
        try:
            act()
        except BaseException as error:  # noqa: BLE001 - every error is reported
            said = f"{type(error).__name__}: {error}".encode()
        os.write(writing, said)
        os._exit(0)
    os.close(writing)
    watchdog = threading.Timer(END_S, os.kill, (child, signal.SIGKILL))
    watchdog.start()
    try:
        with os.fdopen(reading, "rb") as pipe:
            said = pipe.read().decode()
        _, status = os.waitpid(child, 0)
    finally:
        watchdog.cancel()
    assert status == 0, f"the child was still at it after {END_S} s"
    return said


def iterate(consumer):
    next(iter(consumer))


def leave(consumer):
    consumer.__exit__(None, None, None)


@pytest.mark.parametrize(
    "act",
    [
        Consumer.stop,
        Consumer.request_stop,
        Consumer.start,
        Consumer.run,
        Consumer.__enter__,
        leave,
        lambda consumer: consumer.failures,
    ],
)
def test_a_forked_child_is_refused_at_once_and_told_what_to_do(act):
    with make(lambda batch: None) as consumer:
        said = in_child(lambda: act(consumer))
        assert consumer.is_running
    assert said == (
        f"UsageError: this consumer was made in process {os.getpid()} and its threads stayed there; make one in "
        f"process {said.partition('make one in process ')[2].partition(',')[0]}, after the fork"
    )


def test_a_child_cannot_iterate_the_parents_consumer():
    assert in_child(lambda: iterate(make_once)).startswith("UsageError: this consumer was made in process")


make_once = make()


def test_a_consumer_does_not_run_in_a_forked_child_and_can_be_shown():
    with make(lambda batch: None, worker_id="w") as consumer:

        def look():
            raise RuntimeError(f"{consumer.is_running} {consumer!r}")

        assert in_child(look).endswith("worker_id='w', is_running=False)")


def test_a_batch_in_a_forked_child_is_not_acknowledged():
    got = []
    ready = threading.Event()

    def handle(batch):
        got.append(batch)
        ready.set()

    with make(handle, checkpointing="manual"):
        assert ready.wait(END_S)
        for act in (got[0].checkpoint, got[0].acknowledge):
            assert in_child(act).startswith("UsageError: this consumer was made in process")


def test_a_signal_ends_a_forked_child_as_if_there_were_no_consumer():
    """The child inherits the handler that asks the parent's consumer to stop."""
    statuses = []

    def handle(_batch):
        reading, writing = os.pipe()
        child = os.fork()
        if child == 0:  # pragma: no cover - counted in the parent
            os.write(writing, b"!")  # output from before the child is set up is not its own
            threading.Event().wait(END_S)
            os._exit(0)
        assert os.read(reading, 1) == b"!"
        os.kill(child, signal.SIGTERM)
        statuses.append(os.waitpid(child, 0)[1])
        os.kill(os.getpid(), signal.SIGTERM)

    make(handle).run()
    assert [os.WTERMSIG(status) for status in statuses] == [signal.SIGTERM]


def failing_child() -> None:
    raise ValueError("in the child")


CHILDREN = [
    (lambda: None, 0),
    (sys.exit, 0),
    (lambda: sys.exit(3), 3),
    (lambda: sys.exit(1 << 40), 0),
    (failing_child, 1),
]
"""The last act of a child inside the handler, and its exit status."""


def wait_for_child(child: int) -> int:
    watchdog = threading.Timer(END_S, os.kill, (child, signal.SIGKILL))
    watchdog.start()
    try:
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    finally:
        watchdog.cancel()


@pytest.mark.parametrize(("act", "status"), CHILDREN)
@pytest.mark.parametrize("kind", ["stream", "queue"])
def test_a_child_that_comes_back_from_the_handler_ends(kind, act, status):
    """It would handle its copy of the records again, and the handler may wait for its end."""
    statuses = []
    handled = threading.Event()

    def handle(_):
        child = os.fork()
        if child == 0:  # pragma: no cover - counted in the parent
            act()
            return
        statuses.append(wait_for_child(child))
        handled.set()

    with make_of_queue(handle, QueueConsumer) if kind == "queue" else make(handle):
        assert handled.wait(END_S)
    assert statuses == [status]


@pytest.mark.parametrize(("act", "status"), CHILDREN)
@pytest.mark.parametrize("kind", ["stream", "queue"])
def test_a_child_that_comes_back_from_a_coroutine_ends(kind, act, status):
    """It would go on as a second event loop, with copies of the calls under way."""
    statuses = []

    async def handle_one():
        handled = asyncio.Event()

        async def handle(_):
            child = os.fork()
            if child == 0:  # pragma: no cover - counted in the parent
                act()
                return
            statuses.append(wait_for_child(child))
            handled.set()

        is_queue = kind == "queue"
        consumer = make_of_queue(handle, AsyncQueueConsumer) if is_queue else make(handle, AsyncConsumer)
        async with consumer:
            await asyncio.wait_for(handled.wait(), 2 * END_S)  # a child that goes on is killed before

    asyncio.run(handle_one())
    assert statuses == [status]


def test_the_parent_is_not_refused():
    consumer = make(lambda batch: None)
    consumer.start()
    with pytest.raises(UsageError, match="started before"):
        consumer.start()
    consumer.stop()
