"""When the tasks of a query may subscribe to a shard."""

from itertools import pairwise

import pytest

from penstock.core.batches.task_plan import PERMIT_S, SubscriptionPermits
from penstock.core.limits import SUBSCRIPTIONS_APART_S

NOW, LATER = 0.0, PERMIT_S


@pytest.mark.parametrize(
    ("planned_s", "expected"),
    [
        pytest.param(
            [100, 101, 105], [NOW, LATER, LATER], id="one permission for the batches of six seconds"
        ),
        pytest.param([100, 107, 108, 114], [NOW, NOW, LATER, NOW], id="the next one after that"),
        pytest.param([100, 102, 110], [NOW, LATER, LATER], id="a long task has subscribed in the middle"),
        pytest.param([100, 102, 120], [NOW, LATER, NOW], id="a task has subscribed long ago"),
        pytest.param([100, 150, 151], [NOW, NOW, LATER], id="a task with permission has used it at once"),
    ],
)
def test_each_plan_gives_a_permission_or_none(planned_s, expected):
    permits = SubscriptionPermits()
    assert [permits.plan_delay_s("a", now_s) for now_s in planned_s] == expected


def test_two_permissions_are_further_apart_than_the_service_demands():
    assert PERMIT_S > SUBSCRIPTIONS_APART_S
    permits = SubscriptionPermits()
    given_s = [now_s / 10 for now_s in range(1000, 1600) if permits.plan_delay_s("a", now_s / 10) == NOW]
    assert len(given_s) == 10
    assert min(after - before for before, after in pairwise(given_s)) >= PERMIT_S - 1e-9


def test_shards_have_turns_of_their_own_until_they_are_released():
    permits = SubscriptionPermits()
    assert [permits.plan_delay_s(key, 100.0) for key in "aab"] == [NOW, LATER, NOW]
    permits.keep_only(frozenset("b"))
    assert [permits.plan_delay_s(key, 101.0) for key in "ab"] == [NOW, LATER]
