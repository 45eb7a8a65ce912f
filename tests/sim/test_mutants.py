"""What the simulator can find: it finds every bug of a list that libraries of this kind really had, planted one by one."""

import pytest

from penstock.sim.run import run_query_seed, run_seed
from sim.mutants import MUTANTS
from sim.query_mutants import QUERY_MUTANTS
from sim.test_many_seeds import QUERIES, WORKERS

SEEDS_MAX = 500


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_a_planted_bug_is_found(mutant):
    # A change of how scenarios are drawn moves the seed: then any one will do.
    seeds = (mutant.seed, *range(SEEDS_MAX))
    with mutant.planted():
        found = next((seed for seed in seeds if run_seed(seed).violation is not None), None)
    assert found is not None, f"{mutant.name} ({mutant.had_by}) was not found in {SEEDS_MAX} seeds"


@pytest.mark.parametrize("mutant", QUERY_MUTANTS, ids=lambda mutant: mutant.name)
def test_a_planted_bug_of_a_query_is_found(mutant):
    seeds = (mutant.seed, *range(SEEDS_MAX))
    with mutant.planted():
        found = next((seed for seed in seeds if run_query_seed(seed).violation is not None), None)
    assert found is not None, f"{mutant.name} ({mutant.had_by}) was not found in {SEEDS_MAX} seeds"


def test_there_are_enough_of_them_and_each_says_who_had_it():
    both = (*MUTANTS, *QUERY_MUTANTS)
    assert min(len(MUTANTS), len(QUERY_MUTANTS)) >= 15
    assert all(mutant.had_by for mutant in both)
    assert len({mutant.name for mutant in both}) == len(both)


def test_without_a_planted_bug_the_same_seeds_are_clean():
    seeds = {mutant.seed for mutant in MUTANTS if mutant.seed >= WORKERS.stop}  # the others are run elsewhere
    assert [seed for seed in sorted(seeds) if run_seed(seed).violation is not None] == []


def test_without_a_planted_bug_the_same_seeds_of_queries_are_clean():
    seeds = {mutant.seed for mutant in QUERY_MUTANTS if mutant.seed >= QUERIES.stop}
    assert [seed for seed in sorted(seeds) if run_query_seed(seed).violation is not None] == []
