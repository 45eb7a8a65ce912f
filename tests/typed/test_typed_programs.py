"""A strict type checker accepts the programs of users, and finds their misspelt and mistyped options."""

import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent


def mypy(path, cache):
    """Return what `mypy --strict` says of a program, by line, in an environment with Penstock installed and no settings."""
    command = [sys.executable, "-m", "mypy", "--strict", "--config-file=", f"--cache-dir={cache}"]
    said = subprocess.run(
        [*command, "--hide-error-context", "--no-error-summary", str(path)],
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
        cwd=cache,
    )
    assert said.stderr == ""
    found = {}
    for line in said.stdout.splitlines():
        assert line.startswith(f"{path}:"), line
        number, text = line.removeprefix(f"{path}:").split(":", 1)
        if ": note: " not in f":{text}":
            found[int(number)] = text
    return found


@pytest.fixture(scope="module")
def cache(tmp_path_factory):
    return tmp_path_factory.mktemp("mypy")


def test_a_right_program_is_accepted(cache):
    assert mypy(HERE / "right.py", cache) == {}


@pytest.mark.parametrize("name", ["wrong.py", "wrong_in_spark.py"])
def test_every_mistake_is_found_and_nothing_else(cache, name):
    lines = enumerate((HERE / name).read_text().splitlines(), 1)
    expected = {number: line.partition("  # ")[2] for number, line in lines if "  # " in line}
    found = mypy(HERE / name, cache)
    assert found.keys() == expected.keys()
    for number, text in expected.items():
        assert text in found[number]
