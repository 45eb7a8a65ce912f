"""A stranger's first day: an empty environment, the built wheels, the README, type checkers, a unit test, search, an upgrade."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
import zipfile
from pathlib import Path
from typing import NamedTuple

import pytest

import penstock
from built_distributions import FOLDERS, new_environment, run
from docs_blocks import blocks, run_blocks, shows
from old_version import NEW, QUERY_S_MAX, WRITTEN, go_on_with_the_query
from readme_terminal import Terminal, run_readme
from site_index import search

STRANGE = ("penstock_sim", "penstock_demo", "penstock_local", "penstock/sim", "flights")
"""Parts of paths that no file of the library's wheel may have."""
PROJECT = {
    "orders.py": """
from penstock import Batch, Consumer


def store(batch: Batch) -> None:
    for record in batch:
        if not record.data:
            raise ValueError("an order without a text")


def billing() -> Consumer:
    return Consumer("orders", "billing", store, lease_duration_s=30)
""",
    "test_orders.py": """
from orders import store
from penstock import testing


def test_orders_are_stored() -> None:
    run = testing.run(store, testing.records("a", "b"))
    assert run.checkpoint == run.records[-1]


def test_an_empty_order_is_put_aside() -> None:
    orders = testing.records("a", "", "b")
    assert testing.run(store, orders, on_failure="dead_letter").dead_letters == [orders[1]]
""",
    "misspelt.py": """
from orders import store
from penstock import Consumer

Consumer("orders", "billing", store, lease_duration=30)
""",
}
TABLE_S_MAX = 180.0
"""From `pip install` to the first query of a table."""
MISTAKE = ("misspelt.py", 5, "lease_duration")
"""File, line and word."""


class Stranger(NamedTuple):
    """An environment that has what the README's first line installs, and pytest.

    Args:
        python: Its Python.
        environ: Environment variables for pip: it finds the built files, and of Penstock no version but theirs.
        install_s: Duration of the installation.
    """

    python: Path
    environ: dict[str, str]
    install_s: float


@pytest.fixture(scope="module")
def stranger(built, tmp_path_factory) -> Stranger:
    folder = tmp_path_factory.mktemp("stranger")
    wheels = folder / "wheels"
    wheels.mkdir()
    for files in built.values():
        shutil.copy(files.wheel, wheels)
    constraints = folder / "constraints.txt"
    names = [name.replace("_", "-") for name in FOLDERS]
    constraints.write_text("".join(f"{name}=={penstock.__version__}\n" for name in names))
    environ = {
        **{
            name: value
            for name, value in os.environ.items()
            if not name.startswith(("AWS_", "PYTHON", "SPARK_"))
        },
        "PIP_FIND_LINKS": f"{os.environ.get('PIP_FIND_LINKS', '')} {wheels}".strip(),
        "PIP_CONSTRAINT": str(constraints),
    }
    python = new_environment(folder / "environment", "pytest")
    install = run_blocks("README.md")[1].splitlines()[0]
    assert install.startswith("pip install ")
    began_s = time.monotonic()
    run("bash", "-c", f"{python} -m {install}", env=environ, timeout=800)
    return Stranger(python, environ, time.monotonic() - began_s)


@pytest.fixture
def terminal(stranger, tmp_path):
    made = Terminal(tmp_path, str(stranger.python), pip=f'exec {stranger.python} -m pip "$@"')
    made.environ |= {name: value for name, value in stranger.environ.items() if name.startswith("PIP_")}
    yield made
    for program in made.running:
        program.kill()


@pytest.fixture
def project(tmp_path) -> Path:
    for name, text in PROJECT.items():
        (tmp_path / name).write_text(text)
    return tmp_path


def test_the_wheel_holds_no_file_of_simulator_server_or_demonstration(built):
    with zipfile.ZipFile(built["penstock"].wheel) as wheel:
        names = wheel.namelist()
    assert len(names) > 100
    assert not [name for name in names if any(part in name for part in STRANGE)]


@pytest.mark.timeout(1800)  # the first test installs; longer than the deadlines of its steps
def test_the_commands_of_the_readme_do_what_it_says(stranger, terminal):
    run_readme(terminal, run_blocks("README.md"))


@pytest.mark.timeout(900)
def test_a_table_is_queried_three_minutes_after_the_installation_began(stranger, terminal):
    _, serve, shell, *_ = run_blocks("README.md")
    found = [block.text for block in blocks("README.md")]
    at = next(at for at, text in enumerate(found) if "penstock deliver" in text)
    began_s = time.monotonic()
    terminal.start(serve).wait_for("# Streams: orders (2 shards).")
    terminal.run(shell.splitlines()[0])
    said = terminal.run(found[at].replace("/tmp/sales", f"{terminal.folder}/sales"))
    assert shows(said, found[at + 1]), said
    if os.getloadavg()[0] < 2 * (os.cpu_count() or 1):  # a busy machine says nothing about time
        assert stranger.install_s + time.monotonic() - began_s < TABLE_S_MAX


def checked(*command: object, folder: Path) -> str:
    done = subprocess.run(
        [str(word) for word in command], capture_output=True, text=True, check=False, cwd=folder, timeout=280
    )
    assert done.returncode == 1, done.stdout + done.stderr
    return done.stdout


@pytest.mark.parametrize(
    "checker",
    [
        (
            "mypy",
            "--strict",
            "--config-file=",
            "--cache-dir=cache",
            "--no-error-summary",
            "--python-executable",
        ),
        ("basedpyright", "--level", "error", "--pythonpath"),
    ],
    ids=lambda command: command[0],
)
def test_a_type_checker_finds_the_misspelt_option_and_nothing_else(stranger, project, checker):
    """The checkers are those of this environment, and read what the stranger's has installed."""
    program = Path(sys.executable).parent / checker[0]
    said = checked(program, *checker[1:], stranger.python, *PROJECT, folder=project)
    name, line, word = MISTAKE
    found = [text for text in said.splitlines() if "error:" in text]
    assert len(found) == 1, said
    assert f"{name}:{line}:" in found[0]
    assert f'"{word}"' in found[0]


def test_a_handler_is_tested_without_a_service(stranger, project):
    said = run(stranger.python, "-m", "pytest", "-q", "-p", "no:cacheprovider", cwd=project)
    assert "2 passed" in said


def test_the_search_of_the_pages_answers():
    found = search(["IAM", "dead letter", "migrate"])
    assert [pages[0][0].partition("/")[0] for pages in found.values()] == [
        "cluster",
        "recipes",
        "coming-from",
    ]


def test_an_upgrade_refuses_the_old_state_folder_and_goes_on_from_the_old_leases(terminal):
    for name in ("state-of-0.1.0", "state"):
        shutil.copytree(WRITTEN / name, terminal.folder / name)
    refused = terminal.start("exec penstock local --state state-of-0.1.0")
    refused.wait_for("version 0.1.0 wrote it")
    refused.kill()

    terminal.start("exec penstock local --state state --no-limits --settle 0").wait_for("# Streams: orders")
    terminal.run('eval "$(penstock local --export)"')
    consumer = terminal.start("exec penstock consume orders --application billing --data")
    consumer.wait_for_all(NEW)
    assert consumer.interrupt() == 0, consumer.said
    assert sorted(line for line in consumer.said.splitlines() if line.isdigit()) == NEW


@pytest.mark.timeout(QUERY_S_MAX + 60)
def test_an_upgrade_goes_on_from_the_old_checkpoint_location(stranger, tmp_path):
    assert go_on_with_the_query(tmp_path, str(stranger.python)) == NEW
