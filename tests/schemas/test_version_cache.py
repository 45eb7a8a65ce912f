"""What is kept of schema versions: bounded, fetched once, and refusals for a while only."""

import threading

import pytest

from moved_clock import MovedClock
from penstock.errors import Throttled, Unavailable, UnknownSchema
from penstock.schemas.version_cache import VersionCache
from waiting import DEADLINE_S, wait_until


def cache_of(fetch, *, count_max=10, refusal_kept_s=60.0, wait_s=DEADLINE_S, clock=None):
    return VersionCache(
        fetch,
        count_max=count_max,
        refusal_kept_s=refusal_kept_s,
        wait_s=wait_s,
        clock=clock or MovedClock(100.0),
    )


def test_a_value_is_fetched_once_until_others_have_taken_its_place():
    asked = []
    cache = cache_of(lambda key: asked.append(key) or key.upper(), count_max=2)
    assert [cache.get(key) for key in "aabacaba"] == list("AABACABA")
    assert asked == ["a", "b", "c", "b"], "a was used last whenever there was no room"


def test_threads_that_want_the_same_ask_once():
    asked, gate = [], threading.Event()

    def fetch(key):
        asked.append(key)
        assert gate.wait(DEADLINE_S)
        return key

    cache = cache_of(fetch)
    got = []
    threads = [threading.Thread(target=lambda: got.append(cache.get("a"))) for _ in range(8)]
    for thread in threads:
        thread.start()
    wait_until(lambda: asked, "the first thread to ask")
    gate.set()
    for thread in threads:
        thread.join(DEADLINE_S)
    assert got == ["a"] * 8
    assert asked == ["a"]


def test_who_waits_for_another_thread_does_not_wait_for_ever():
    gate, is_asked = threading.Event(), threading.Event()

    def fetch(key):
        is_asked.set()
        assert gate.wait(DEADLINE_S)
        return key

    cache = cache_of(fetch, wait_s=0.01)
    first = threading.Thread(target=cache.get, args=("a",))
    first.start()
    assert is_asked.wait(DEADLINE_S)
    with pytest.raises(Unavailable, match="another thread has asked"):
        cache.get("a")
    gate.set()
    first.join(DEADLINE_S)
    assert cache.get("a") == "a"


def test_a_refusal_is_kept_for_a_while():
    asked, clock = [], MovedClock(100.0)

    def fetch(key):
        asked.append(key)
        raise UnknownSchema(f"no {key}")

    cache = cache_of(fetch, clock=clock)
    for _ in range(3):
        with pytest.raises(UnknownSchema, match="no a"):
            cache.get("a")
    assert asked == ["a"]
    clock.now_s += 60
    with pytest.raises(UnknownSchema, match="no a"):
        cache.get("a")
    assert asked == ["a", "a"]


def test_refusals_are_bounded_too():
    asked = []

    def fetch(key):
        asked.append(key)
        raise UnknownSchema(key)

    cache = cache_of(fetch, count_max=2)
    for key in "abca":
        with pytest.raises(UnknownSchema):
            cache.get(key)
    assert asked == list("abca")


def test_what_may_help_a_moment_later_is_asked_again():
    answers = [Throttled("slow"), "found"]

    def fetch(key):
        answer = answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    cache = cache_of(fetch)
    with pytest.raises(Throttled):
        cache.get("a")
    assert cache.get("a") == "found"


def test_an_interruption_of_the_thread_that_asks_does_not_interrupt_the_others():
    is_asked, gate, got = threading.Event(), threading.Event(), []

    def fetch(key):
        is_asked.set()
        assert gate.wait(DEADLINE_S)
        raise KeyboardInterrupt

    cache = cache_of(fetch)

    def get():
        try:
            cache.get("a")
        except (KeyboardInterrupt, Unavailable) as error:
            got.append(type(error))

    threads = [threading.Thread(target=get) for _ in range(2)]
    threads[0].start()
    assert is_asked.wait(DEADLINE_S)
    (answer,) = cache._fetches_under_way.values()
    threads[1].start()
    wait_until(lambda: answer._condition._waiters, "the second thread to wait")
    gate.set()
    for thread in threads:
        thread.join(DEADLINE_S)
    assert set(got) == {KeyboardInterrupt, Unavailable}
