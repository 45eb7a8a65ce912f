"""The command line as a whole: its commands, and how it fails."""

import argparse
import json
import logging
import signal
import subprocess
import sys

import pytest

import penstock
from penstock.cli import main as cli
from penstock.cli.consume_command import parse_address
from penstock.cli.exit_on_signals import exit_on_signals
from penstock.errors import OptionError, Throttled


def run(*arguments: str) -> subprocess.CompletedProcess:
    return subprocess.run(
        [sys.executable, "-m", "penstock", *arguments],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def test_the_version_is_the_packages():
    answer = run("--version")
    assert (answer.returncode, answer.stdout) == (0, f"penstock {penstock.__version__}\n")


def test_help_lists_the_commands_and_loads_nothing_heavy():
    code = (
        "import sys\n"
        "from penstock.cli.main import build_parser\n"
        "build_parser()\n"
        "heavy = {'boto3', 'botocore', 'rich', 'pyspark', 'pyarrow', 'moto', 'httptools', 'google.protobuf'}\n"
        "print(sorted(heavy & set(sys.modules)))\n"
    )
    answer = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True
    )
    assert answer.stdout == "[]\n"
    shown = run("--help").stdout
    for command in ("consume", "tail", "leases", "shards", "local"):
        assert f"\n    {command} " in shown


def test_no_command_is_wrong_usage():
    assert run().returncode == 2


class Command:
    """A command that fails by its arguments."""

    def __init__(self, error):
        self.error = error

    def run(self, _args):
        raise self.error


@pytest.fixture
def failing(monkeypatch):
    def make(error):
        parser, modules = cli.build_parser()
        monkeypatch.setattr(cli, "build_parser", lambda: (parser, {**modules, "tail": Command(error)}))

    return make


@pytest.mark.parametrize(
    ("error", "status", "said"),
    [
        (Throttled("GetRecords: slow down"), 1, "penstock tail: GetRecords: slow down\n"),
        (OptionError("--count 0: expected at least 1"), 2, "penstock tail: --count 0: expected at least 1\n"),
        (FileNotFoundError(2, "No such file", "x"), 1, "penstock tail: [Errno 2] No such file: 'x'\n"),
        (
            ModuleNotFoundError("No module named 'pyarrow'", name="pyarrow.compute"),
            1,
            "penstock tail: `tail` needs the package pyarrow.compute, which is not installed: pip install 'penstock[arrow]'\n",
        ),
        (KeyboardInterrupt(), 130, ""),
    ],
)
def test_an_error_is_one_line_on_stderr_and_an_exit_status(failing, capsys, error, status, said):
    failing(error)
    assert cli.main(["tail", "orders"]) == status
    assert capsys.readouterr().err == said


def test_verbose_shows_the_traceback(failing, capsys):
    failing(Throttled("slow down"))
    assert cli.main(["-v", "tail", "orders"]) == 1
    assert "Traceback" in capsys.readouterr().err
    assert cli.main(["tail", "orders", "-v"]) == 1
    assert "Traceback" in capsys.readouterr().err


@pytest.mark.parametrize("words", [["--log-json", "tail", "orders"], ["tail", "orders", "--log-json"]])
def test_logs_are_json_where_it_is_asked_for(failing, monkeypatch, words):
    set_up = {}
    monkeypatch.setattr("logging.basicConfig", set_up.update)
    failing(Throttled("slow down"))
    cli.main(words)
    error = ValueError("bell \a")
    record = logging.LogRecord(
        "penstock.leases", logging.WARNING, __file__, 1, "of %s", ("ümlaut",), (ValueError, error, None)
    )
    record.created = 1767312000.25
    line = set_up["handlers"][0].format(record)
    assert line.isascii()
    assert line.isprintable()
    found = json.loads(line)
    assert found.pop("exception").endswith("ValueError: bell \a")
    assert found == {
        "time": "2026-01-02T00:00:00.250Z",
        "level": "WARNING",
        "logger": "penstock.leases",
        "thread": "MainThread",
        "message": "of ümlaut",
    }


def test_what_ends_a_command_is_json_too_where_it_is_asked_for(failing, capsys, caplog):
    failing(Throttled("slow down"))
    assert cli.main(["--log-json", "tail", "orders"]) == 1
    assert not capsys.readouterr().err
    assert [(each.name, each.getMessage()) for each in caplog.records] == [("penstock", "tail: slow down")]


def test_a_defect_is_not_dressed_up_as_an_error_of_the_user(failing):
    failing(ZeroDivisionError("a defect"))
    with pytest.raises(ZeroDivisionError):
        cli.main(["tail", "orders"])


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("9100", ("127.0.0.1", 9100)),
        ("0", ("127.0.0.1", 0)),
        ("0.0.0.0:9100", ("0.0.0.0", 9100)),
        ("localhost:1", ("localhost", 1)),
        ("[::1]:9100", ("::1", 9100)),
    ],
)
def test_metrics_are_served_where_it_is_said_and_on_this_machine_by_default(text, address):
    assert parse_address(text) == address


@pytest.mark.parametrize("text", ["", "http", ":9100", "::1:9100", "a:b", "65536", "-1", "1 2", "\u0661"])
def test_an_address_that_is_none_is_refused(text):
    with pytest.raises(argparse.ArgumentTypeError, match=r"expected PORT or HOST:PORT|IPv6"):
        parse_address(text)


def test_an_interruption_before_the_command_began_shows_no_traceback(monkeypatch, capsys):
    def interrupted():
        raise KeyboardInterrupt

    monkeypatch.setattr(cli, "build_parser", interrupted)
    assert cli.main(["streams", "list"]) == 130
    assert capsys.readouterr().err == ""


IMPORTING = """
import runpy, signal, sys

class Interrupts:
    def find_spec(self, name, path, target=None):
        if name == "penstock.cli.main":
            signal.raise_signal(signal.SIGINT)

if sys.argv.pop(1) == "ignored":
    signal.signal(signal.SIGINT, signal.SIG_IGN)
sys.meta_path.insert(0, Interrupts())
runpy.run_module("penstock", run_name="__main__", alter_sys=True)
"""


@pytest.mark.parametrize(
    ("case", "status"), [("default", -signal.SIGINT), ("ignored", 0)], ids=["a terminal", "a background job"]
)
def test_an_interruption_during_the_imports_shows_no_traceback(case, status):
    command = [sys.executable, "-c", IMPORTING, case, "--version"]
    answer = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert (answer.returncode, answer.stderr) == (status, "")


def test_a_signal_wins_over_the_error_that_a_library_makes_of_it():
    """DuckDB runs the signal's handler during a query, and raises an error of its own in place of the handler's."""

    def query():
        try:
            signal.raise_signal(signal.SIGINT)
        except SystemExit:
            raise RuntimeError("Query interrupted") from None

    with pytest.raises(SystemExit) as ended, exit_on_signals({signal.SIGINT: 130}):
        query()
    assert ended.value.code == 130
