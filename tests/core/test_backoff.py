import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.core.backoff import Backoff, RetryPlan
from penstock.errors import OptionError

BACKOFF = Backoff(base_s=0.5, cap_s=10)
PLAN = RetryPlan(BACKOFF, attempts_max=4, deadline_s=30)
ALMOST_ONE = 1 - 2**-53


@pytest.mark.parametrize(
    ("attempt", "bound_s"), [(1, 0.5), (2, 1.0), (3, 2.0), (5, 8.0), (6, 10.0), (50, 10.0), (10**6, 10.0)]
)
def test_the_bound_doubles_up_to_the_cap(attempt, bound_s):
    assert BACKOFF.bound_s(attempt) == bound_s


def test_the_delay_is_spread_over_the_whole_bound():
    assert BACKOFF.delay_s(3, 0.0) == 0.0
    assert BACKOFF.delay_s(3, 0.25) == 0.5
    assert BACKOFF.delay_s(3, ALMOST_ONE) == pytest.approx(2.0)


@pytest.mark.parametrize(("base_s", "cap_s"), [(0, 1), (-1, 1), (2, 1), (1, float("inf")), (1, float("nan"))])
def test_a_back_off_that_is_none_is_refused(base_s, cap_s):
    with pytest.raises(OptionError, match="back-off: "):
        Backoff(base_s, cap_s)


def test_attempts_are_counted_from_one():
    with pytest.raises(ValueError, match="attempt 0: attempts are counted from 1"):
        BACKOFF.delay_s(0, 0.5)


@pytest.mark.parametrize(
    ("attempt", "elapsed_s", "u", "delay_s"),
    [
        (1, 0.0, 0.5, 0.25),
        (3, 10.0, 0.5, 1.0),
        (3, 29.5, 0.5, 0.5),
        (4, 10.0, 0.5, None),
        (5, 10.0, 0.5, None),
        (1, 30.0, 0.5, None),
        (1, 31.0, 0.5, None),
        (4, 30.0, 0.5, None),
    ],
)
def test_a_plan_tries_again_until_a_bound_is_reached(attempt, elapsed_s, u, delay_s):
    assert PLAN.delay_s(attempt, elapsed_s, u) == delay_s


def test_a_single_attempt_is_never_repeated():
    assert RetryPlan(BACKOFF, attempts_max=1, deadline_s=30).delay_s(1, 0.0, 0.0) is None


@pytest.mark.parametrize(
    ("attempts_max", "deadline_s", "message"),
    [(0, 1, "attempts_max=0"), (1, 0, "deadline_s=0"), (1, float("inf"), "deadline_s=inf")],
)
def test_an_unbounded_plan_is_refused(attempts_max, deadline_s, message):
    with pytest.raises(OptionError, match=message):
        RetryPlan(BACKOFF, attempts_max, deadline_s)


@given(
    attempts_max=st.integers(min_value=1, max_value=50),
    deadline_s=st.floats(min_value=0.001, max_value=1e6),
    draws=st.lists(st.floats(min_value=0, max_value=ALMOST_ONE), min_size=50, max_size=50),
    call_s=st.floats(min_value=0, max_value=10),
)
def test_every_plan_ends_and_begins_no_attempt_after_its_deadline(attempts_max, deadline_s, draws, call_s):
    plan = RetryPlan(BACKOFF, attempts_max, deadline_s)
    now_s = begun_s = 0.0
    for attempt, u in enumerate(draws, start=1):
        assert begun_s <= deadline_s * (1 + 1e-9)
        now_s = begun_s + call_s
        delay_s = plan.delay_s(attempt, now_s, u)
        if delay_s is None:
            assert attempt <= attempts_max
            return
        assert 0 <= delay_s <= BACKOFF.bound_s(attempt)
        begun_s = now_s + delay_s
    raise AssertionError("the plan did not end")
