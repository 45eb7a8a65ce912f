"""`penstock deliver`: its files, and its answers to mistakes, which need neither a service nor Spark."""

from __future__ import annotations

import _thread
import json
import logging
import signal
import sys
import threading
from types import SimpleNamespace
from unittest.mock import MagicMock

import pytest

from penstock.cli.deliver_command import _parse_deliveries
from penstock.cli.main import build_parser, main
from waiting import wait_until

ONE = "stream: orders\nto: /lake/orders\npartition-by: date(arrived)\nsince: 2026-01-01\n"
TWO = "deliveries:\n- {stream: orders, to: /lake/a}\n- {stream: returns, to: /lake/b, schema: raw, options: {deaggregate: false}}\n"


def read(*words):
    return _parse_deliveries(build_parser()[0].parse_args(["deliver", *words]))


@pytest.fixture
def file(tmp_path):
    def write(text, name="orders.yml"):
        path = tmp_path / name
        path.write_text(text)
        return str(path)

    return write


def test_a_file_and_options_give_the_same_delivery(file):
    options = ("orders", "--to", "/lake/orders", "--partition-by", "date(arrived)", "--since", "2026-01-01")
    as_toml = 'stream = "orders"\nto = "/lake/orders"\npartition-by = "date(arrived)"\nsince = "2026-01-01"\n'
    as_json = json.dumps(
        {"stream": "orders", "to": "/lake/orders", "partition-by": ["date(arrived)"], "since": "2026-01-01"}
    )
    found = [
        read(*options),
        read("-f", file(ONE)),
        read("-f", file(as_toml, "a.toml")),
        read("-f", file(as_json, "a.json")),
        read("-f", file(f"\ufeff{as_json}", "a.json")),  # as an editor of Windows saves it
        read("-f", file(f"\ufeff{as_toml}", "a.toml")),
    ]
    assert all(each == found[0] for each in found)


def test_a_file_holds_several_deliveries_and_the_command_line_the_connection(file):
    first, second = read("-f", file(TWO), "--region", "eu-west-1")
    assert (first.stream, second.schema, second.options) == ("orders", "raw", (("deaggregate", "false"),))
    assert first.connection == (("region", "eu-west-1"),)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("stream: orders\nto: /l\nfreshnes: 5s\n", "did you mean freshness?"),
        ("- a\n- b\n", "expected names and values"),
        ("- stream: a\n  to: /l\n", "several are a list under `deliveries`"),
        ("stream: [\n", "no YAML"),
        ("stream: a\n\tto: /l\n", "orders.yml: no YAML: line 2, column 1: found character"),
        ("stream a\nto: /l\n", "orders.yml: no YAML: line 2, column 3: mapping values are not allowed here"),
        ("stream: a\nto /l\nname: b\n", "expected ':'; line 2, column 1: while scanning a simple key"),
        ("stream: 'a\nto: /l\n", "line 3, column 1: found unexpected end of stream; line 1, column 9: while"),
        ("stream: ${STREAM}\nto: /l\n", "variables are not replaced here"),
        (
            "stream: a\nto: /l\npartition-by: x\npartition-by: y\n",
            "line 4, column 1: partition-by is there twice",
        ),
        ("stream: a\nto: /l\npartition-by: x\npartition_by: y\n", "partition-by is there twice"),
        ("stream: on\nto: /l\n", "stream=true: expected one value (text); YAML reads"),
        ("stream: a\nto: /l\ncompact: off\n", "between quotes; for none, leave compact out"),
        (
            "stream: a\nto: /l\noptions: {fetchInterval: }\n",
            "options: fetchInterval=None: expected one value",
        ),
        ("deliveries: []\n", "is a list and stands alone"),
        ("deliveries:\n- {stream: a, to: /l}\n- {stream: b}\n", "delivery 2: to is missing"),
        ("deliveries:\n- text\n", "delivery 1 is not a mapping"),
    ],
)
def test_a_mistake_in_a_file_names_the_place(file, capsys, text, message):
    assert main(["deliver", "-f", file(text)]) == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("stream: a\nto: $HOME/l\n", "orders.yml: to=$HOME/l: variables are not replaced here; write /"),
        ("stream: a\nto: /l\nstart: yesterday\n", "orders.yml: option start: 'yesterday' is not a position"),
    ],
)
def test_a_mistake_that_is_found_by_the_delivery_names_the_file(file, capsys, text, message):
    pytest.importorskip("penstock.delivery.running")
    assert main(["deliver", "-f", file(text)]) == 2
    assert message in capsys.readouterr().err


def test_a_number_in_a_file_is_the_text_that_was_written(file):
    (delivery,) = read(
        "-f", file("stream: 007\nto: 1e3\nname: 12_0\nsince: 12:30\nfile-size: 64 MiB\noptions: {a: 1.50}\n")
    )
    assert (delivery.stream, delivery.to, delivery.name, delivery.since) == ("007", "1e3", "12_0", "12:30")
    assert (delivery.file_bytes, delivery.options) == (2**26, (("a", "1.50"),))


@pytest.mark.parametrize("key", ["endpoint-url", "endpoint_url"])
def test_the_connection_of_a_file_counts_before_the_command_lines(file, key):
    name = file(f"stream: a\nto: /l\n{key}: http://file:1\n")
    (delivery,) = read("-f", name, "--endpoint-url", "http://line:2")
    assert delivery.connection == (("endpointUrl", "http://file:1"),)


def test_a_key_that_a_json_file_has_twice_is_refused(file, capsys):
    assert main(["deliver", "-f", file('{"stream": "a", "to": "/l", "to": "/m"}', "orders.json")]) == 2
    assert "to is there twice" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ((), "name a stream, or a file"),
        (("orders",), "to is missing"),
        (("-f", "/nowhere.yml"), "cannot be read"),
        (("-f", "-"), "give a file, or -f /dev/stdin for YAML"),
        (("orders", "--to", "/l", "--option", "region"), "--option region: expected NAME=VALUE"),
        (("orders", "--to", "/l", "--print-submit"), "needs a file"),
        (("orders", "--to", "/l", "--freshness", "1s"), "from 5s"),
    ],
)
def test_a_mistake_on_the_command_line_is_answered(capsys, words, message):
    assert main(["deliver", *words]) == 2
    assert message in capsys.readouterr().err


def test_options_of_a_delivery_beside_a_file_are_refused(file, capsys):
    assert main(["deliver", "-f", file(ONE), "--to", "/other"]) == 2
    assert "to belongs into it" in capsys.readouterr().err


def test_the_lines_for_a_cluster_are_printed(file, capsys):
    assert (
        main(["deliver", "-f", file(ONE), "--print-submit", "--once", "--master", "spark://host:7077"]) == 0
    )
    lines = capsys.readouterr().out.splitlines()
    assert lines[-2].endswith(f"--archives 'environment.tar.gz#environment' --files {file(ONE)} \\")
    assert lines[-1] == "  deliver.py deliver -f orders.yml --once"


def test_the_lines_for_a_cluster_ship_the_schema_files_and_the_connection(file, tmp_path, capsys):
    schema = tmp_path / "columns.ddl"
    schema.write_text("id BIGINT")
    path = file(f"{ONE}\nschema: {schema}\n")
    assert main(["deliver", "-f", path, "--print-submit", "--region", "eu-west-1"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[-2].endswith(f"--files {path},{schema} \\")
    assert lines[-1] == "  deliver.py deliver -f orders.yml --region eu-west-1"


@pytest.mark.parametrize(
    ("interruption", "status", "message"),
    [
        ("none", 0, ""),
        ("first signal", 130, "stopped before all was delivered; the same command goes on"),
        ("second signal", 130, "interrupted; the same command goes on"),
        ("at the start", 130, "interrupted; the same command goes on"),
        ("SIGTERM at the start", 143, "interrupted; the same command goes on"),
    ],
)
def test_an_interrupted_delivery_says_that_the_same_command_goes_on(
    monkeypatch, capsys, interruption, status, message
):
    running = pytest.importorskip("penstock.delivery.running")

    class Run:
        opened = ()
        is_cut = False

        def __init__(self, *_, **__):
            pass

        def stop(self):
            self.is_cut = True

        def run(self, *, once):
            assert once
            if interruption in {"first signal", "second signal"}:
                signal.raise_signal(signal.SIGINT)
            if interruption == "second signal":
                signal.raise_signal(signal.SIGTERM)

    def open_session(*_, **__):
        if interruption.endswith("at the start"):
            signal.raise_signal(signal.SIGTERM if "SIGTERM" in interruption else signal.SIGINT)
        return SimpleNamespace(stop=lambda: None)

    monkeypatch.setattr(running, "open_session", open_session)
    monkeypatch.setattr(running, "DeliveryRun", Run)
    try:
        ended = main(["deliver", "orders", "--to", "/tmp/orders", "--once"])
    except SystemExit as exit_:
        ended = exit_.code
    assert ended == status
    lines = capsys.readouterr().err.splitlines()
    assert [message in line for line in lines] == ([True] if message else [])


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_during_a_call_of_spark_does_not_make_its_end_an_error(monkeypatch, capsys, caplog, number):
    running = pytest.importorskip("penstock.delivery.running")
    cut_off = set()  # threads whose next call would read the answer of the one before

    def stop():
        assert threading.current_thread() not in cut_off, "the session does not exist in the JVM"

    def preview(*_):
        cut_off.add(threading.current_thread())
        try:
            signal.raise_signal(number)
        except KeyboardInterrupt:
            logging.getLogger().exception("KeyboardInterrupt while sending command.")  # as py4j does
            raise

    monkeypatch.setattr(running, "open_session", lambda *_, **__: SimpleNamespace(stop=stop))
    monkeypatch.setattr("penstock.delivery.preview.preview", preview)
    monkeypatch.setattr(logging.getLogger(), "filters", [running._is_no_interruption])
    try:
        ended = main(["deliver", "orders", "--to", "/tmp/orders", "--dry-run"])
    except SystemExit as exit_:
        ended = exit_.code
    assert (ended, capsys.readouterr().err, caplog.records) == (128 + number, "", [])


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (
            ["--since", "2026-02-01", "--until", "2026-01-01"],
            "since=2026-02-01 is not before until=2026-01-01",
        ),
        (["--schema", "/no/such.json"], "schema=/no/such.json: there is no file /no/such.json"),
    ],
)
def test_a_wrong_value_is_refused_before_spark_starts(monkeypatch, capsys, arguments, said):
    running = pytest.importorskip("penstock.delivery.running")
    monkeypatch.setattr(running, "open_session", None)
    assert main(["deliver", "orders", "--to", "/tmp/orders", *arguments]) == 2
    assert said in capsys.readouterr().err


def test_a_signal_does_not_end_the_launch_of_java_half_way(monkeypatch):
    running = pytest.importorskip("penstock.delivery.running")
    handled, launched = threading.Event(), []

    def on_signal(*_):
        handled.set()
        raise KeyboardInterrupt

    def launch(*_):
        signal.pthread_kill(threading.main_thread().ident, signal.SIGTERM)
        launched.append(handled.wait(30))

    monkeypatch.setattr(running, "launch_gateway", launch)
    for changes_environment in ("use_utf8_names", "set_java_options"):
        monkeypatch.setattr(running, changes_environment, lambda: None)
    for name in ("PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON"):
        monkeypatch.setenv(name, sys.executable)
    monkeypatch.setattr(running.SparkContext, "_active_spark_context", None)
    before = signal.signal(signal.SIGTERM, on_signal)
    try:
        with pytest.raises(KeyboardInterrupt):
            running.open_session(None, {}, is_verbose=False)
    finally:
        signal.signal(signal.SIGTERM, before)
    wait_until(lambda: launched == [True], "the end of the launch")


def test_spark_takes_over_no_signal_and_a_signal_during_its_start_is_not_logged(monkeypatch):
    running = pytest.importorskip("penstock.delivery.running")
    found = []

    def context(**_):  # on the main thread it would replace the handler of SIGINT
        is_filtered = running._is_no_interruption in logging.getLogger().filters
        found.append((threading.current_thread() is threading.main_thread(), is_filtered))

    without_spark(monkeypatch, context)
    running.open_session(None, {}, is_verbose=False)
    assert found == [(False, True)]


def test_a_signal_does_not_wait_for_a_cluster_that_has_not_accepted_the_program(monkeypatch):
    running = pytest.importorskip("penstock.delivery.running")
    may_start, started = threading.Event(), []

    def context(**_):
        _thread.interrupt_main()
        started.append(may_start.wait(10))

    without_spark(monkeypatch, context)
    try:
        with pytest.raises(KeyboardInterrupt):
            running.open_session("yarn", {}, is_verbose=False)
        assert started == []
    finally:
        may_start.set()


def without_spark(monkeypatch, context):
    """Open sessions by this function in place of SparkContext, without Java."""
    running = sys.modules["penstock.delivery.running"]
    context._active_spark_context = None
    for name in ("launch_gateway", "SparkSession", "use_utf8_names", "set_java_options"):
        monkeypatch.setattr(running, name, MagicMock())
    for name in ("PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON"):
        monkeypatch.setenv(name, sys.executable)
    for name in ("py4j", "SQLQueryContextLogger"):
        monkeypatch.setattr(logging.getLogger(name), "level", logging.CRITICAL)
    monkeypatch.setattr(logging.getLogger(), "filters", [])
    monkeypatch.setattr(running, "SparkContext", context)
