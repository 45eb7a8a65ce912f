"""List the test files that compute the most: `make test PYTEST_ARGS="-p tools.cpu_of_tests"`.

A plugin of pytest. Each test counts its process's CPU time and that of the child processes that ended meanwhile, so the figures
hold on a busy machine, too. A JVM that is still running is not counted.
"""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Iterator

import pytest

FILES_MAX = 40
_read_last_s = [0.0]


def _cpu_s() -> float:
    times = os.times()
    return times.user + times.system + times.children_user + times.children_system


def pytest_runtest_logstart() -> None:
    _read_last_s[0] = _cpu_s()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Iterator[None]:
    """Send the CPU time of a setup, a call or a teardown with its report; pytest-xdist carries it to the main process."""
    report = yield
    now_s = _cpu_s()
    report.cpu_s = now_s - _read_last_s[0]
    _read_last_s[0] = now_s
    return report


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    files: dict[str, list[float]] = defaultdict(lambda: [0.0, 0.0, 0])
    for reports in terminalreporter.stats.values():
        for report in reports:
            if hasattr(report, "cpu_s"):
                row = files[report.nodeid.partition("::")[0]]
                row[0] += report.cpu_s
                row[1] += report.duration
                row[2] += report.when == "call"
    terminalreporter.section("CPU time by file")
    terminalreporter.line(f"{'CPU s':>8} {'wall s':>8} {'tests':>6}")
    for file, (cpu_s, wall_s, count) in sorted(files.items(), key=lambda item: -item[1][0])[:FILES_MAX]:
        terminalreporter.line(f"{cpu_s:8.1f} {wall_s:8.1f} {count:6.0f} {file}")
    total_s = sum(row[0] for row in files.values())
    terminalreporter.line(f"{total_s:8.1f} s in all, without the start and the collection of each process")
