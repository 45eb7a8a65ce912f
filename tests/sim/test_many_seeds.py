"""The seeds behind the first sixty, of workers and of queries."""

import pytest

from penstock.sim.run import run_query_seed, run_seed

BEGIN, BLOCK = 60, 20


def check(run, begin):
    for seed in range(begin, begin + BLOCK):
        result = run(seed)
        assert result.violation is None, f"seed {seed}: {result.violation}\n" + "\n".join(result.tail(60))


@pytest.mark.parametrize("begin", range(BEGIN, 300, BLOCK))
def test_no_invariant_is_broken_in_any_of_many_seeds(begin):
    check(run_seed, begin)


@pytest.mark.parametrize("begin", range(40, 160, BLOCK))
def test_no_guarantee_of_a_query_is_broken_in_any_of_many_seeds(begin):
    check(run_query_seed, begin)
