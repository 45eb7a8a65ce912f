"""Which runs take a test: the marks of each folder, set here and nowhere else, and no Java without the mark for it."""

from __future__ import annotations

import logging
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from marks import HERE, marks_of, may_select
from penstock.runtime import own_loggers
from spark_jvm import jvm_environ

pytest_plugins = ["spark_fixtures"]

for _name, _value in jvm_environ().items():
    os.environ.setdefault(_name, _value)

# How long an example takes says nothing on a machine that does other things too; what is slow has a test of its own.
settings.register_profile("penstock", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("penstock")

# A shell in the background starts its programs without Ctrl-C, and so would be those that the tests start and interrupt.
if (
    signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    and threading.current_thread() is threading.main_thread()
):
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Leave a file unread if `-m` selects none of its tests: each worker of pytest-xdist would compile its assertions."""
    expression = config.option.markexpr
    return (
        True
        if expression
        and collection_path.name.startswith("test_")
        and not may_select(expression, collection_path)
        else None
    )


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the tests, and begin with those that run Spark; the kills, which take longest, are the first."""
    files: dict[Path, list[pytest.Item]] = {}
    for item in items:
        for mark in marks_of(item.path, getattr(item, "originalname", None)):
            item.add_marker(mark)
        files.setdefault(item.path, []).append(item)
    with_spark = [tests for tests in files.values() if tests[0].get_closest_marker("spark") is not None]
    others = [tests for tests in files.values() if tests[0].get_closest_marker("spark") is None]
    with_spark.sort(key=lambda tests: "spark_kills" not in tests[0].path.parts)
    items[:] = [item for tests in [*with_spark, *others] for item in tests]


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    """Let a test that has no mark for Java find one that only fails."""
    if any(item.get_closest_marker(mark) is not None for mark in ("spark", "interop")):
        return (yield)
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("JAVA_HOME", str(HERE / "no_java"))
        environment.setenv("PATH", f"{HERE / 'no_java' / 'bin'}{os.pathsep}{os.environ['PATH']}")
        return (yield)


@pytest.fixture(autouse=True)
def logging_errors() -> Iterator[list[BaseException | None]]:
    """Fail if a guarded line could not be logged, as pytest does for others; a test of logging that raises clears the list."""
    errors: list[BaseException | None] = []
    report = own_loggers._reporter.handleError

    def handle_error(record: logging.LogRecord) -> None:
        errors.append(sys.exception())
        report(record)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(own_loggers._reporter, "handleError", handle_error)
        yield errors
    assert errors == [], "a line could not be logged"


CPU_OF_A_LEFT_THREAD_MAX_S = 2.0
SHARE_OF_A_LEFT_THREAD_MAX = 0.1  # of a processor: PySpark's servers of a session take some seconds in hours
_left: dict[threading.Thread, tuple[str, float, float]] = {}


def _cpu_s(thread: threading.Thread) -> float:
    """CPU time of a thread; 0 where the system has no /proc, and of a thread that has just ended."""
    try:
        fields = Path(f"/proc/self/task/{thread.native_id}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")  # utime and stime


@pytest.fixture(scope="module", autouse=True)
def no_thread_computes_for_ever(request: pytest.FixtureRequest) -> Iterator[None]:
    """Fail if a nameless thread of an earlier file still computes: it slows every test that follows in this process."""
    yield
    for thread in threading.enumerate():
        if not thread.name.startswith("Thread-"):
            continue  # servers and sessions that several files share
        now_s = time.monotonic()
        file, before_s, seen_s = _left.setdefault(thread, (request.node.nodeid, _cpu_s(thread), now_s))
        allowed_s = max(CPU_OF_A_LEFT_THREAD_MAX_S, SHARE_OF_A_LEFT_THREAD_MAX * (now_s - seen_s))
        if _cpu_s(thread) - before_s > allowed_s:
            _left[thread] = (file, float("inf"), now_s)  # reported once
            pytest.fail(f"{thread.name} of {file} still computes")
