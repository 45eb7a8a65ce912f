"""The demonstration's command before anything starts."""

from penstock.cli import main as cli
from penstock_demo import command


def test_what_is_missing_is_named_once_with_the_extra_that_brings_it(monkeypatch, capsys):
    there = command.find_spec
    monkeypatch.setattr(
        command, "find_spec", lambda name: None if name in ("penstock_local", "rich") else there(name)
    )
    assert cli.main(["demo", "--records", "200"]) == 1
    assert capsys.readouterr().err == (
        "penstock demo: the demonstration needs penstock_local, rich, which this installation does not have: "
        "`make setup` in the repository installs them\n"
    )
