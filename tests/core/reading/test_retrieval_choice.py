"""When a shard changes between polling and fan-out, case by case."""

import pytest

from penstock.core.limits import SHARD_READ_BYTES_PER_S_MAX
from penstock.core.reading.reader_options import ReaderOptions
from penstock.core.reading.retrieval_choice import (
    AutoRetrieval,
    ChangeReason,
    OwnReads,
    Retrieval,
    RetrievalChange,
    RetrievalChoice,
)
from penstock.errors import AccessDenied, ExpiredIterator, OptionError, Throttled, Unavailable

OPTIONS = AutoRetrieval(ReaderOptions(), ReaderOptions(spacing_s=0.0), contended_s=30.0, hold_s=900.0)
CONTENDED = RetrievalChange(Retrieval.FAN_OUT, ChangeReason.CONTENDED)
TRIAL = RetrievalChange(Retrieval.POLLING, ChangeReason.TRIAL)
PUSH_FAILED = RetrievalChange(Retrieval.POLLING, ChangeReason.PUSH_FAILED)
REFUSED = Throttled("slow", code="ProvisionedThroughputExceededException")


class Shard:
    """A choice, and the moment."""

    def __init__(self, chance: float = 0.0) -> None:
        self.choice = RetrievalChoice(OPTIONS, chance)
        self.now_s = 0.0

    def poll(self, duration_s: float, refused_of_ten: int, error=REFUSED, read_bytes: int = 1000) -> None:
        """Poll once a second; of ten calls so many are refused."""
        end_s, place = self.now_s + duration_s, 0
        while self.now_s < end_s:
            if place % 10 < refused_of_ten:
                self.choice.on_poll_failed(error, self.now_s)
            else:
                self.choice.on_polled(self.now_s, read_bytes)
            place += 1
            self.now_s += 1.0

    def be_given_events(self, duration_s: float) -> None:
        """Take events at the tip, as an idle shard has them."""
        self.now_s += duration_s
        self.choice.on_event(0, self.now_s)

    @property
    def plan(self) -> RetrievalChange | None:
        return self.choice.plan_change(self.now_s)

    def make(self, expected: RetrievalChange, chance: float = 0.0) -> None:
        assert self.plan == expected
        self.choice.on_changed(expected, self.now_s, chance)

    def until_planned(self, refused_of_ten: int) -> float:
        """Poll until a change is planned; return how long that took."""
        began_s = self.now_s
        while self.plan is None:
            self.poll(10.0, refused_of_ten)
            assert self.now_s < began_s + 10_000
        return self.now_s - began_s


@pytest.mark.parametrize("refused_of_ten", [2, 5, 9, 10])
def test_refusals_for_others_change_a_shard_to_fan_out_once_they_last(refused_of_ten):
    shard = Shard()
    assert shard.until_planned(refused_of_ten) == pytest.approx(30.0, abs=10.0)
    shard.make(CONTENDED)
    assert shard.choice.retrieval is Retrieval.FAN_OUT


def test_readers_of_one_shard_change_one_after_the_other():
    assert Shard(0.0).until_planned(5) < Shard(0.99).until_planned(5)


@pytest.mark.parametrize("refused_of_ten", [0, 1])
def test_a_few_refusals_are_nothing(refused_of_ten):
    shard = Shard()
    shard.poll(3600.0, refused_of_ten)
    assert shard.plan is None


def test_refusals_that_stop_in_between_are_counted_anew():
    shard = Shard()
    for _ in range(20):
        shard.poll(10.0, 5)
        shard.poll(20.0, 0)
        assert shard.plan is None


def test_refusals_with_a_long_pause_between_are_not_in_a_row():
    shard = Shard()
    for _ in range(20):
        shard.poll(12.0, 5)
        shard.now_s += 61.0  # a stalled handler
        assert shard.plan is None


def test_pauses_after_refusals_do_not_break_the_row():
    shard = Shard()
    for _ in range(7):
        shard.poll(1.0, 10)
        shard.now_s += 19.0
    assert shard.plan == CONTENDED


@pytest.mark.parametrize(
    "error",
    [
        Throttled("a key's quota", code="KMSThrottlingException"),
        Unavailable("no connection"),
        ExpiredIterator("old"),
    ],
)
def test_other_failures_say_nothing_of_other_readers(error):
    shard = Shard()
    shard.poll(600.0, 5, error)
    assert shard.plan is None


def test_refusals_that_the_readers_own_bytes_explain_are_nothing():
    shard = Shard()
    shard.poll(600.0, 5, read_bytes=3 * SHARD_READ_BYTES_PER_S_MAX)
    assert shard.plan is None


def test_fan_out_is_kept_for_its_time_and_then_polling_is_tried():
    shard = Shard()
    shard.until_planned(5)
    shard.make(CONTENDED, chance=0.0)
    shard.now_s += 899.0
    shard.choice.on_event(0, shard.now_s)
    assert shard.plan is None
    shard.now_s += 1.0
    shard.make(TRIAL)
    shard.poll(3600.0, 1)
    assert shard.plan is None


def test_a_shard_that_is_behind_stays_with_fan_out():
    shard = Shard()
    shard.until_planned(5)
    shard.make(CONTENDED)
    shard.now_s += 2000.0
    shard.choice.on_event(10_001, shard.now_s)
    assert shard.plan is None
    shard.choice.on_event(10_000, shard.now_s)
    assert shard.plan == TRIAL


def test_a_shard_whose_handler_holds_events_up_stays_with_fan_out():
    shard = Shard()
    shard.until_planned(5)
    shard.make(CONTENDED)
    shard.choice.on_event(0, shard.now_s)
    shard.now_s += 2000.0  # what the last event told is long ago
    assert shard.plan is None


def test_a_trial_that_fails_ends_sooner_and_the_next_one_comes_later():
    shard = Shard()
    held_s = []
    for _ in range(6):
        shard.until_planned(5)
        shard.make(CONTENDED)
        began_s = shard.now_s
        while shard.plan is None:
            shard.be_given_events(100.0)
        held_s.append(shard.now_s - began_s)
        shard.make(TRIAL)
        assert shard.until_planned(5) <= 20.0
    assert held_s == [900.0, 1800.0, 3600.0, 7200.0, 7200.0, 7200.0]


def test_a_trial_that_lasted_is_forgotten():
    shard = Shard()
    shard.until_planned(5)
    shard.make(CONTENDED)
    shard.be_given_events(900.0)
    shard.make(TRIAL)
    shard.poll(901.0, 0)
    assert shard.until_planned(5) >= 30.0
    shard.make(CONTENDED)
    shard.be_given_events(900.0)
    assert shard.plan == TRIAL


@pytest.mark.parametrize(
    ("errors", "expected"),
    [
        ([AccessDenied("policy")], PUSH_FAILED),
        ([Unavailable("silence")], None),
        ([Unavailable("silence"), ExpiredIterator("ended early")], PUSH_FAILED),
        ([Throttled("slow"), "event", Unavailable("silence")], None),
    ],
)
def test_a_subscription_that_does_not_work_is_given_up(errors, expected):
    shard = Shard()
    shard.until_planned(5)
    shard.make(CONTENDED)
    for error in errors:
        if error == "event":
            shard.choice.on_event(0, shard.now_s)
        else:
            shard.choice.on_push_failed(error)
    assert shard.plan == expected


def test_fan_out_that_does_not_work_is_tried_ever_more_rarely_until_an_event_comes():
    shard = Shard()
    pauses_s = []
    for _ in range(6):
        shard.until_planned(5)
        shard.make(CONTENDED)
        shard.choice.on_push_failed(AccessDenied("policy"))
        shard.make(PUSH_FAILED)
        pauses_s.append(shard.until_planned(5))
    assert pauses_s == [60.0, 120.0, 240.0, 480.0, 900.0, 900.0]
    shard.make(CONTENDED)
    shard.choice.on_event(0, shard.now_s)
    shard.choice.on_push_failed(AccessDenied("policy"))
    shard.make(PUSH_FAILED)
    assert shard.until_planned(5) == 60.0


def test_a_reader_explains_refusals_by_its_own_calls_and_bytes_alone():
    own = OwnReads()
    for place in range(5):
        own.on_call(place * 0.2)
    assert not own.explains_refusal(0.8)  # five a second are allowed
    own.on_call(0.9)
    assert own.explains_refusal(0.9)
    own.on_call(3.0)
    assert not own.explains_refusal(3.0)
    own.on_bytes(3.0, 2 * SHARD_READ_BYTES_PER_S_MAX)
    own.on_bytes(3.5, SHARD_READ_BYTES_PER_S_MAX)
    own.on_call(5.9)
    assert own.explains_refusal(5.9)
    own.on_call(6.2)
    assert not own.explains_refusal(6.2)


def test_each_way_has_its_pace():
    assert OPTIONS.options_of(Retrieval.POLLING) is OPTIONS.polling
    assert OPTIONS.options_of(Retrieval.FAN_OUT) is OPTIONS.fan_out


@pytest.mark.parametrize("name", ["contended_s", "hold_s"])
def test_times_must_be_above_0(name):
    with pytest.raises(OptionError, match=f"{name}=0"):
        AutoRetrieval(ReaderOptions(), ReaderOptions(), **{name: 0})
