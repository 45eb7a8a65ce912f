"""When a shard is asked for news again."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.core.batches.probe_pace import READ_COST_S, ProbePace
from penstock_local.quotas import Bucket


def probed(pace, until_s, *, interval_s=1.0, now_s=0.0):
    """The moments of the probes of a shard that stays quiet."""
    moments = []
    while now_s <= until_s:
        moments.append(round(now_s, 3))
        now_s = max(pace.on_probe(now_s, interval_s), pace.ready_s)
    return moments


def test_a_shard_that_nobody_has_read_is_asked_once_per_interval():
    assert probed(ProbePace(), 4.0) == [0.0, 1.0, 2.0, 3.0, 4.0]


def test_a_shard_that_was_just_read_is_asked_four_times_as_often_for_one_interval():
    pace = ProbePace()
    pace.on_batch(0.0)
    assert probed(pace, 3.0) == [0.0, 0.25, 0.5, 0.75, 1.0, 2.0, 3.0]


def test_a_batch_begins_that_time_anew():
    pace = ProbePace()
    pace.on_batch(0.0)
    assert probed(pace, 0.5) == [0.0, 0.25, 0.5]
    pace.on_batch(0.6)
    assert probed(pace, 2.7, now_s=0.7) == [0.7, 0.95, 1.2, 1.45, 1.7, 2.7]


def test_a_refusal_means_that_others_read_the_shard_too():
    pace = ProbePace()
    pace.on_batch(0.0)
    pace.on_probe(0.0, 1.0)
    pace.on_refusal(0.1)
    assert pace.ready_s == pytest.approx(0.5)
    assert probed(pace, 3.0, now_s=1.0) == [1.0, 2.0, 3.0]


def test_a_server_without_quotas_is_asked_as_often_as_batches_end():
    pace = ProbePace(0.0)
    for now_s in (0.0, 0.01, 0.02, 0.03):
        pace.on_batch(now_s)
        pace.on_probe(now_s, 1.0)
        assert pace.ready_s <= now_s


@given(
    batch_s=st.floats(0.01, 0.5),
    news=st.lists(st.booleans(), min_size=60, max_size=60),
    interval_s=st.floats(0.2, 5.0),
)
def test_a_query_alone_is_never_refused(batch_s, news, interval_s):
    """Batches of one read each follow a probe that finds news; the service counts all reads."""
    pace, service, now_s = ProbePace(READ_COST_S), Bucket(5), 1.0
    for has_news in news:
        now_s = max(now_s, pace.ready_s) + 0.001
        at_ms = round(now_s * 1000)
        assert service.may_take(1, at_ms)
        service.take(1)
        due_s = pace.on_probe(now_s, interval_s)
        if has_news:
            assert service.may_take(1, at_ms)
            service.take(1)
            now_s += batch_s
            pace.on_batch(now_s)
        else:
            now_s = due_s
