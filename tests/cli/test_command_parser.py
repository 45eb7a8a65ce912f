"""How the command line takes what people type."""

import os
import subprocess
import sys

import pytest

from penstock.cli.main import build_parser


def parsed(*words):
    return build_parser()[0].parse_args(words)


def refused(capsys, *words):
    with pytest.raises(SystemExit) as caught:
        parsed(*words)
    assert caught.value.code == 2
    return capsys.readouterr().err.splitlines()[-1]


@pytest.mark.parametrize(
    "words",
    [
        ("put", "orders", "a", "b", "--whole", "--key", "k"),
        ("put", "--whole", "--key=k", "orders", "a", "b"),
        ("put", "orders", "--whole", "a", "--key", "k", "b"),
        ("put", "--key", "k", "orders", "--whole", "--", "a", "b"),
    ],
)
def test_options_may_stand_anywhere(words):
    args = parsed(*words)
    assert (args.stream, args.files, args.whole, args.key) == ("orders", ["a", "b"], True, "k")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (
            ("tial", "orders"),
            "penstock: error: unknown command tial: did you mean tail? known are consume, tail",
        ),
        (
            ("consume", "orders", "--aplication", "a"),
            "unknown option --aplication: did you mean --application?",
        ),
        (("tail", "orders", "--untill"), "unknown option --untill: did you mean --until?"),
        (
            ("consume", "s", "--application", "a", "--policy", "evne"),
            "unknown value evne: did you mean even?",
        ),
        (("tail", "orders", "--qqq=1"), "unknown option --qqq: `penstock tail --help` lists the options"),
    ],
)
def test_the_nearest_known_word_is_named(capsys, words, said):
    assert said in refused(capsys, *words)


def test_a_word_after_two_hyphens_is_no_option():
    assert parsed("put", "orders", "--", "--whole").files == ["--whole"]


@pytest.mark.parametrize("word", ["--help", "--json", "-e"])
def test_no_command_takes_a_word_after_two_hyphens_for_an_option(word):
    assert parsed("streams", "create", "--", word).stream == word
    assert parsed("tail", "--json", "--", word).stream == word


def test_two_hyphens_end_the_values_of_an_option(capsys):
    args = parsed("consume", "--application", "a", "--fan-out", "--", "orders")
    assert (args.fan_out, args.streams) == ("", ["orders"])
    args = parsed("record", "--since", "1h", "-o", "f", "--shards", "0", "1", "--", "orders")
    assert (args.shards, args.stream) == (["0", "1"], "orders")
    assert refused(capsys, "tail", "--key", "--", "orders").endswith("--key: expected one argument")
    assert refused(capsys, "tail", "--", "orders", "-x").endswith("unrecognized arguments: -x")


@pytest.mark.parametrize(
    "words", [("tail", ""), ("tail", "s", "--region="), ("put", "s", "--key", ""), ("tail", "--", "")]
)
def test_an_empty_value_is_refused(capsys, words):
    assert refused(capsys, *words).endswith("the value is empty; is a variable of the shell not set?")


def test_only_what_is_required_is_said_to_be(capsys):
    with pytest.raises(SystemExit):
        build_parser()[0].parse_args(["put"])
    assert "the following arguments are required: STREAM\n" in capsys.readouterr().err
    assert build_parser()[0].parse_args(["put", "orders"]).files == []


@pytest.mark.parametrize("words", [["--version"], ["put", "--help"]])
def test_help_that_cannot_be_written_is_an_error(words):
    environment = os.environ | {"PYTHONUNBUFFERED": "1"}  # otherwise `main` writes it at its end
    with open("/dev/full", "wb") as full:  # noqa: PTH123 - a device
        done = subprocess.run(
            [sys.executable, "-m", "penstock", *words],
            stdout=full,
            stderr=subprocess.PIPE,
            env=environment,
            timeout=60,
            check=False,
        )
    assert done.returncode == 1
    assert b"No space left on device" in done.stderr
