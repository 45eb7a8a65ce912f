"""Commands whose distribution is not installed say in one sentence how to get it."""

import importlib.util

import pytest

from penstock.cli import main as cli


@pytest.mark.parametrize(
    ("command", "package", "said"),
    [
        ("local", "penstock_local", "pip install 'penstock[local]'"),
        ("simulate", "penstock_sim", "part of the repository"),
        ("demo", "penstock_demo", "part of the repository"),
    ],
)
@pytest.mark.parametrize("words", [[], ["--port", "0"], ["--help"], ["--nothing", "x", "-v"]])
def test_a_command_that_is_not_installed_says_how_to_get_it(
    monkeypatch, capsys, command, package, said, words
):
    there = importlib.util.find_spec
    monkeypatch.setattr(
        "penstock.cli.separate_commands.find_spec", lambda name: None if name == package else there(name)
    )
    assert cli.main([command, *words]) == 1
    assert said in capsys.readouterr().err
    with pytest.raises(SystemExit) as end:
        cli.main(["--help"])
    assert end.value.code == 0
