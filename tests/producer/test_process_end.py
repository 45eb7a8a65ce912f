"""The hooks of process pools that the tests do not install: Celery's signal, and billiard's pool, which has none."""

import os
import signal
import sys
from types import SimpleNamespace

import pytest

from penstock.errors import UsageError
from penstock.producer import process_end
from penstock.producer.process_end import EndHook, refuse_open_end, warn_of_open_end


class Signal:
    """Celery's, as far as it is used: a function is connected once for each `dispatch_uid`."""

    def __init__(self) -> None:
        self.functions = {}

    def connect(self, function, *, weak, dispatch_uid):
        assert not weak
        self.functions[dispatch_uid] = function

    def send(self, **arguments):
        for function in self.functions.values():
            function(signal=self, **arguments)


def test_the_end_of_a_celery_worker_closes_its_open_producers_newest_first(monkeypatch):
    signals = SimpleNamespace(worker_process_shutdown=Signal())
    monkeypatch.setitem(sys.modules, "celery.signals", signals)
    closed = []
    hooks = [EndHook(lambda number=number: closed.append(number)) for number in range(3)]
    hooks[1].cancel()
    signals.worker_process_shutdown.send(sender="celery@host", pid=1, exitcode=0)
    assert closed == [2, 0]
    for hook in hooks:
        hook.cancel()


class Worker:
    """`billiard.pool.Worker`."""


@pytest.mark.parametrize(
    ("target", "has_celery", "is_refused"),
    [(Worker(), False, True), (Worker(), True, False), (print, False, False), (None, False, False)],
)
def test_only_a_pool_of_billiard_without_celery_refuses_an_open_end(
    monkeypatch, target, has_celery, is_refused
):
    modules = sys.modules
    monkeypatch.setitem(modules, "billiard.pool", SimpleNamespace(Worker=Worker))
    process = SimpleNamespace(_target=target)
    monkeypatch.setitem(modules, "billiard.process", SimpleNamespace(current_process=lambda: process))
    if has_celery:
        monkeypatch.setitem(modules, "celery.signals", SimpleNamespace())
    if is_refused:
        with pytest.raises(UsageError, match="billiard"):
            refuse_open_end("events")
    else:
        refuse_open_end("events")


@pytest.mark.parametrize(
    ("handler", "is_warned"), [(signal.SIG_DFL, True), (signal.SIG_IGN, False), (print, False)]
)
def test_a_producer_of_a_pools_other_thread_is_warned_of_termination(monkeypatch, caplog, handler, is_warned):
    monkeypatch.setattr(signal, "getsignal", lambda _: handler)
    monkeypatch.setattr(process_end._terminations, "has_warned", False)
    for is_child in (False, True, True):
        monkeypatch.setattr(process_end, "_is_pool_child", lambda is_child=is_child: is_child)
        warn_of_open_end("events")
        assert caplog.text.count("make it on the main thread") == (is_warned and is_child), "once"


class _MainProcess:
    """`billiard.process._MainProcess`."""


@pytest.mark.parametrize(("process", "is_child"), [(_MainProcess(), False), (SimpleNamespace(), True)])
def test_a_program_that_only_imports_billiard_is_no_pools_child(monkeypatch, process, is_child):
    monkeypatch.setitem(sys.modules, "billiard.process", SimpleNamespace(current_process=lambda: process))
    monkeypatch.setitem(sys.modules, "billiard", SimpleNamespace())
    assert process_end._is_pool_child() == is_child


def test_a_caller_that_ends_the_process_at_once_is_warned_of(caplog):
    """As in a worker of RQ, and in a program that forks by itself."""

    def work_in_a_child(job, *, ends=False):
        job()
        if ends:
            os._exit(0)

    def do_in_a_child(job, *, forks=False):
        if not forks or os.fork() == 0:
            work_in_a_child(job)

    work_in_a_child(lambda: warn_of_open_end("events"))  # as a worker of pytest-xdist
    assert caplog.text == ""
    do_in_a_child(lambda: warn_of_open_end("events"))
    assert "work_in_a_child of " in caplog.text
    assert "can end the process by os._exit" in caplog.text


def test_a_fork_that_has_not_led_here_is_not_warned_of(caplog):
    def become_daemon(*, forks=False):
        if forks and os.fork():
            os._exit(0)
        warn_of_open_end("events")

    def fork_later():
        warn_of_open_end("events")
        if os.getpid() == 0 and os.fork() == 0:
            os._exit(0)

    def run_around(job, *, ends=False):
        job()
        if ends:
            os._exit(0)

    become_daemon()
    fork_later()
    run_around(become_daemon)
    assert caplog.text == ""


def test_a_child_that_ends_in_a_finally_block_is_warned_of(caplog):
    def run_in_a_child(job, *, forks=False):
        pid = os.fork() if forks else 0
        if pid == 0:
            try:
                job()
            finally:
                if forks:
                    os._exit(0)

    run_in_a_child(lambda: warn_of_open_end("events"))
    assert "run_in_a_child of " in caplog.text


class Server:
    """`uvicorn.server.Server`."""

    def handle_exit(self, number, frame):
        """Ask the server to stop."""


@pytest.mark.parametrize("serves", [True, False])
def test_a_server_of_uvicorn_is_warned_of_an_open_producer(monkeypatch, caplog, serves):
    monkeypatch.setitem(sys.modules, "uvicorn.server", SimpleNamespace(Server=Server))
    handler = Server().handle_exit if serves else signal.SIG_DFL
    monkeypatch.setattr(signal, "getsignal", lambda _: handler)
    warn_of_open_end("events")
    assert ("close it in the lifespan" in caplog.text) == serves
