"""Input from outside reaches a terminal as text, never as a command, as markup or as a second line."""

import io
import json
import logging
import sys
from unittest.mock import Mock

import pytest

from penstock.cli import main as cli
from penstock.cli import terminal
from penstock.cli.terminal import SafeFormatter, escape_text, safe_json
from penstock.errors import AccessDenied
from penstock.runtime.own_loggers import guard_loggers

HOSTILE = "a\x1b[31mred\x1b]0;title\x07\x9b2J\n\r\t\x7f\u202egpj.exe\u2028[/x][bold]:smile:"


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain, größer, 注文, 👩‍👧, a\u00a0b", "plain, größer, 注文, 👩‍👧, a\u00a0b"),
        ("\x1b[2J", "\\x1b[2J"),
        ("a\nb\r\tc", "a\\nb\\r\\tc"),
        ("\x00\x7f\x9b", "\\x00\\x7f\\x9b"),
        ("\u202egpj", "\\u202egpj"),
        ("\u2028\U000e0041\ud800", "\\u2028\\U000e0041\\ud800"),
        ('{"a": "\\u001b"}', '{"a": "\\u001b"}'),
    ],
)
def test_text_keeps_what_is_read_and_shows_what_would_act(text, shown):
    assert escape_text(text) == shown


def test_a_closed_input_is_an_empty_one(monkeypatch):
    """As after `<&-`: Python has no file for it."""
    monkeypatch.setattr(sys, "stdin", None)
    terminal.prepare_output()
    with sys.stdin as given:
        assert (given.read(), given.isatty()) == ("", False)


def test_json_means_the_same_and_holds_nothing_that_acts():
    document = {"data": HOSTILE, "größe": ["\U000e0041", "注文"]}
    for indent in (None, 2):
        text = safe_json(document, indent=indent)
        assert json.loads(text) == document
        assert escape_text(text.replace("\n", "")) == text.replace("\n", "")
        assert "größe" in text


def test_log_lines_and_tracebacks_stay_lines():
    stream = io.StringIO()
    handler = logging.StreamHandler(stream)
    handler.setFormatter(SafeFormatter("%(levelname)s %(message)s"))
    error = ValueError("\x1b[2Jboom")
    error.__traceback__ = None
    handler.emit(
        logging.LogRecord("n", logging.ERROR, "f", 1, "lease %s", ("k\n\x1b[1m",), (ValueError, error, None))
    )
    said = stream.getvalue()
    assert said == "ERROR lease k\\n\\x1b[1m\nValueError: \\x1b[2Jboom\n"


@pytest.mark.parametrize("text", ["a file named \udcff", "x" * 1_000_000])
def test_a_traceback_that_our_loggers_bound_is_made_harmless_too(monkeypatch, text):
    lines, logger, handler = [], logging.getLogger("penstock.queues"), logging.Handler()
    handler.setFormatter(SafeFormatter())
    monkeypatch.setattr(handler, "emit", lambda record: lines.append(handler.format(record)))
    monkeypatch.setattr(logger, "handlers", [handler])
    guard_loggers()
    logger.warning("the handler failed", exc_info=ValueError(f"\x1b[2J{text}"))
    assert "\x1b" not in lines[0]
    assert f"\\x1b[2J{text[:13]}" in lines[0]
    assert len(lines[0].encode()) < 40_000


def test_an_error_is_one_line_whatever_it_quotes(monkeypatch, capsys):
    class Fails:
        @staticmethod
        def run(_args):
            raise OSError(f"row {HOSTILE}")

    parser, modules = cli.build_parser()
    monkeypatch.setattr(cli, "build_parser", lambda: (parser, {**modules, "options": Fails}))
    assert cli.main(["options"]) == 1
    err = capsys.readouterr().err
    assert err.count("\n") == 1
    assert "\x1b" not in err


def test_a_console_takes_no_markup_from_what_it_prints(capsys):
    terminal.Output().line("[/x][bold]:smile: 1234")
    assert capsys.readouterr().out == "[/x][bold]:smile: 1234\n"


@pytest.mark.parametrize("has_rich", [True, False])
def test_no_text_that_is_printed_acts_on_the_terminal(has_rich, monkeypatch, capsys):
    if not has_rich:
        hide_rich(monkeypatch)
    output = terminal.Output()
    output.line("row \x1b[2J", style="bold")
    output.table(("field \x1b[2J",), [("one\ntwo\x1b[2J",)])
    output.bars("leases per worker", {"w\x1b[2J": 1})
    output.facts({"name": "\x1b[2J"})
    out = capsys.readouterr().out
    assert "\x1b[2J" not in out
    assert out.count("\\x1b[2J") == 5


def hide_rich(monkeypatch):
    for name in ("rich", *(name for name in sys.modules if name.startswith("rich."))):
        monkeypatch.setitem(sys.modules, name, None)
    monkeypatch.setitem(sys.modules, "rich.console", None)


def test_without_rich_lines_and_tables_are_plain_text(monkeypatch, capsys):
    hide_rich(monkeypatch)
    output = terminal.Output()
    output.line("[x] a line", style="bold red")
    output.table(("shard", "age"), [("s0", "0.5 s"), ("shard-1", "10.5 s")], right=("age",))
    assert capsys.readouterr().out.splitlines() == [
        "[x] a line",
        "shard       age",
        "s0        0.5 s",
        "shard-1  10.5 s",
    ]


def test_words_that_no_option_holds_are_an_error(capsys):
    assert cli.main(["options", "stsEndpoint", "nonsense"]) == 1
    output = capsys.readouterr()
    assert output.out == ""
    assert output.err == "no option holds stsEndpoint and nonsense; `penstock options` lists them all\n"


def test_a_misspelt_option_is_told_the_nearest_one(capsys):
    assert cli.main(["options", "startngPosition"]) == 1
    assert capsys.readouterr().err.startswith(
        "no option holds startngPosition; did you mean startingPosition? `penstock options`"
    )


def test_a_command_that_prints_a_table_needs_no_rich(monkeypatch, capsys):
    hide_rich(monkeypatch)
    assert cli.main(["options", "stsEndpoint"]) == 0
    header, row = capsys.readouterr().out.splitlines()
    assert header.split() == ["option", "default", "for", "meaning"]
    assert row.split()[0] == "stsEndpoint"


@pytest.mark.parametrize(
    ("words", "missing", "said"),
    [
        (["tail", "S"], "stream ordesr", "; did you mean orders?"),
        (["tail", "S"], "stream orders", ""),  # it is there: a part of it is missing, or it is being made
        (["tail", "S"], "lease table ordesr", ""),
        (["deliver", "-f", "F"], "stream ordesr", ""),  # the file may name another region
        (["completion", "bash"], "stream ordesr", ""),
    ],
)
def test_a_missing_stream_has_its_nearest_name_where_it_was_looked_for(monkeypatch, words, missing, said):
    monkeypatch.setattr(
        cli.wiring, "open_stream_control", lambda _options: Mock(list_streams=lambda: ["orders", "s"])
    )
    assert cli._nearest_stream_question(cli.build_parser()[0].parse_args(words), missing) == said


def test_a_list_of_streams_that_is_denied_hides_no_error(monkeypatch):
    denied = Mock(list_streams=Mock(side_effect=AccessDenied("no")))
    monkeypatch.setattr(cli.wiring, "open_stream_control", lambda _options: denied)
    assert (
        cli._nearest_stream_question(cli.build_parser()[0].parse_args(["tail", "S"]), "stream ordesr") == ""
    )


def test_a_closed_pipe_stays_an_error_of_the_output(monkeypatch):
    """Rich would end the process with 1, which is the exit status of other errors."""
    closed = io.StringIO()
    monkeypatch.setattr(closed, "write", Mock(side_effect=BrokenPipeError))
    monkeypatch.setattr(sys, "stdout", closed)
    with pytest.raises(BrokenPipeError):
        terminal.Output().line("one")
