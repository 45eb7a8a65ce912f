"""The service's clock, as its answers tell it."""

import pytest

from penstock.core.reading.service_clock import (
    ServiceClock,
    SteadyServiceClock,
    service_bound_ms,
    service_now_ms,
)


@pytest.mark.parametrize(
    ("server_ms", "now_ms"), [(None, 100_400), (100_000, 100_400), (99_000, 100_400), (160_000, 160_000)]
)
def test_a_wrong_local_clock_gives_way_to_the_services(server_ms, now_ms):
    assert service_now_ms(100_400, server_ms) == now_ms


@pytest.mark.parametrize(("server_ms", "bound_ms"), [(None, 100_400), (100_000, 100_400), (160_000, 161_000)])
def test_a_bound_in_whole_seconds_includes_the_second_that_has_begun(server_ms, bound_ms):
    assert service_bound_ms(100_400, server_ms) == bound_ms


def test_what_was_heard_last_counts_until_the_next_word():
    clock = ServiceClock()
    assert clock.now_ms(100_000) == 100_000
    assert clock.on_answer(100_000, 160_000) == 160_000
    assert clock.now_ms(105_000) == 165_000
    assert clock.on_answer(106_000, None) == 166_000
    assert clock.on_answer(107_000, 107_000) == 107_000


@pytest.mark.parametrize(
    ("server_ms", "call_ms", "now_ms"),
    [
        (95_000, 6_000, 101_000),  # made before it was on its way for five seconds
        (95_000, 1_000, 96_000),  # this machine's clock is five seconds ahead
        (107_000, 6_000, 108_000),  # this machine's clock is behind: no delay explains it
    ],
)
def test_a_slow_answer_counts_for_its_moment_and_shows_no_other_clock(server_ms, call_ms, now_ms):
    clock = ServiceClock()
    assert clock.on_answer(100_000, server_ms, call_ms) == server_ms
    assert clock.now_ms(101_000) == now_ms


def test_a_steady_clock_goes_on_from_the_last_answer_whatever_the_time_of_day_is():
    clock = SteadyServiceClock()
    assert clock.now_ms(50.0, 777) == 777
    clock.on_answer(50.0, 160_000)
    assert clock.now_ms(50.0, 777) == 160_000
    assert clock.now_ms(52.5, 777) == 162_500
