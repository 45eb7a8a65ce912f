"""The long run of `make soak`: where it resumes, and its report on a seed that fails."""

import runpy
from pathlib import Path

import pytest

from sim.mutants import MUTANTS

SOAK = Path(__file__).parents[2] / "tools" / "soak_seeds.py"


@pytest.fixture
def tool():
    """The names of the tool; its functions see the replacements that are put there."""
    return runpy.run_path(str(SOAK))["soak"].__globals__


def clean(seeds):
    return [None] * len(seeds)


def test_a_run_goes_on_where_the_last_one_ended(tool, tmp_path):
    asked = []

    def run_all(seeds):
        asked.append(seeds)
        return clean(seeds)

    state = tmp_path / "state.json"
    assert tool["soak"](1, state, run_all) == 0
    assert tool["soak"](tool["CHUNK"] + 1, state, run_all) == 0
    (first, second, third), begin = asked, tool["BEGIN"]
    assert first == list(begin.items())
    assert second[: len(begin)] == [(kind, seed + 1) for kind, seed in begin.items()]
    assert len(second) == len(begin) * tool["CHUNK"]
    assert third == [(kind, seed + 1 + tool["CHUNK"]) for kind, seed in begin.items()]


def test_a_run_that_is_interrupted_repeats_only_the_seeds_under_way(tool, tmp_path):
    state, chunks = tmp_path / "state.json", []

    def run_all(seeds):
        chunks.append(seeds)
        if len(chunks) == 2:
            raise KeyboardInterrupt
        return clean(seeds)

    with pytest.raises(KeyboardInterrupt):
        tool["soak"](5 * tool["CHUNK"], state, run_all)
    assert tool["soak"](tool["CHUNK"], state, run_all) == 0
    assert chunks[2] == chunks[1] != chunks[0]


def test_seeds_that_fail_are_printed_and_counted(tool, tmp_path, capsys):
    assert tool["soak"](2, tmp_path / "state.json", lambda seeds: ["broken", None, "too", None]) == 2
    said = capsys.readouterr()
    assert said.out == "broken\ntoo\n"
    assert " 2 of 2 seeds of each kind, " in said.err
    assert said.err.endswith(" 2 failed\n")


def test_a_violation_is_told_as_a_story_and_as_a_test(tool):
    tool["shrink"] = lambda scenario, breaks: scenario  # a test of its own
    mutant = next(mutant for mutant in MUTANTS if mutant.name == "end before the children")
    with mutant.planted():
        told = tool["run"](("consumers", mutant.seed))
    assert told.startswith(f"seed {mutant.seed} of consumers: ")
    assert f"def test_seed_{mutant.seed}_stays_clean():" in told


def test_an_error_names_its_seed_and_does_not_end_the_run(tool):
    def fail(_scenario):
        raise AssertionError("a lease is held twice")

    tool["run_scenario"] = fail
    told = tool["run"](("queries", 7))
    assert told.startswith("seed 7 of queries ends with an error:\n")
    assert "a lease is held twice" in told
