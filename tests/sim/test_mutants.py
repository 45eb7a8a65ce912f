"""The simulator finds every bug of a list that libraries of this kind really had, planted one by one."""

import runpy
from pathlib import Path

import pytest

from penstock_sim.kinds import SeedKind
from penstock_sim.run import run_scenario
from penstock_sim.seed_kinds import DRAW
from sim.mutants import MUTANTS, is_a_finding
from sim.mutants_by_kind import MUTANTS_BY_KIND
from sim.test_many_seeds import SEEDS

SEARCH = Path(__file__).parents[2] / "tools" / "mutant_seeds.py"
ALL = [(kind, mutant) for kind, mutants in MUTANTS_BY_KIND.items() for mutant in mutants]


def broken_at(kind, seed):
    return run_scenario(DRAW[kind](seed)).violation


@pytest.mark.parametrize(
    ("kind", "mutant"), [pytest.param(*each, id=f"{each[0].value}: {each[1].name}") for each in ALL]
)
def test_a_planted_bug_is_found_at_its_seed(kind, mutant):
    with mutant.planted():
        violation = broken_at(kind, mutant.seed)
    assert is_a_finding(violation), (
        f"seed {mutant.seed} of {kind.value} no longer shows '{mutant.name}' ({mutant.had_by}): "
        f'search another with python tools/mutant_seeds.py "{mutant.name}", and write it in its place: {violation}'
    )


@pytest.mark.parametrize("kind", SeedKind, ids=lambda kind: kind.value)
def test_without_a_planted_bug_the_same_seeds_are_clean(kind):
    seeds = sorted({mutant.seed for mutant in MUTANTS_BY_KIND[kind]} - set(range(SEEDS[kind].stop)))
    assert [seed for seed in seeds if broken_at(kind, seed) is not None] == []


def test_there_are_enough_of_them_and_each_says_who_had_it():
    assert min(len(MUTANTS_BY_KIND[kind]) for kind in (SeedKind.CONSUMERS, SeedKind.QUERIES)) >= 15
    assert MUTANTS_BY_KIND.keys() == set(SeedKind)
    assert all(mutant.had_by for _, mutant in ALL)
    assert len({mutant.name for _, mutant in ALL}) == len(ALL)


# --- the search for a new seed ------------------------------------------------------------------------------------


@pytest.fixture
def tool():
    return runpy.run_path(str(SEARCH))


@pytest.fixture
def search(tool):
    return tool["main"]


def test_the_search_names_the_first_seed_that_shows_a_planted_bug(search, capsys):
    mutant = next(mutant for mutant in MUTANTS if mutant.name == "end before the children")
    assert search([mutant.name, "--seeds", "3", "--start", str(mutant.seed)]) == 0
    assert f"{mutant.name}: seed {mutant.seed} of consumers, S5 at " in capsys.readouterr().out


def test_the_search_tells_what_it_did_not_find_and_which_planted_bugs_there_are(search, capsys):
    name = "a lost lease wakes its reader for ever"
    assert search([name, "--seeds", "1"]) == 1
    assert f"{name}: not shown by the seeds of consumers from 0 to 0" in capsys.readouterr().out
    assert search(["no such bug"]) == 2
    assert "'silence'" in capsys.readouterr().err


def test_a_seed_that_is_found_is_written_behind_the_name_of_its_bug(tool, tmp_path):
    (tmp_path / "sim").mkdir()
    source = tmp_path / "sim" / "some_mutants.py"
    text = '@planted("a", KCL, {}, x, "f")\ndef f(): ...\n@planted(\n    "b",\n    "c, d",\n    {},\n)\n'
    source.write_text(text.format(7, 7))
    tool["_write"].__globals__["TESTS"] = tmp_path
    tool["_write"]("a", 10)
    tool["_write"]("b", 11)
    assert source.read_text() == text.format(10, 11)
    with pytest.raises(LookupError, match="'e'"):
        tool["_write"]("e", 12)


def test_the_search_tries_known_seeds_first_and_only_those_that_can_show_the_bug(tool):
    bugs = MUTANTS_BY_KIND[SeedKind.QUERIES]
    mutant = next(mutant for mutant in bugs if mutant.name == "two loads of one query share the shards")
    tried = list(tool["_candidates"](SeedKind.QUERIES, mutant, range(200)))
    known = {other.seed for other in bugs}
    assert tried
    assert all(DRAW[SeedKind.QUERIES](seed).faults.twins_per_min > 0 for seed in tried)
    assert [seed in known for seed in tried] == sorted((seed in known for seed in tried), reverse=True)
