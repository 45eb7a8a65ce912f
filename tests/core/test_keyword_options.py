"""Options as keywords: names are checked, and values replace the defaults."""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction

import pytest

from penstock.consumer.consumer_options import ConsumerOptions
from penstock.core.keyword_options import (
    check_names,
    check_types,
    field_names,
    merge_connection,
    merge_options,
)
from penstock.errors import OptionError


@dataclass(frozen=True)
class Tea:
    sugar_count: int = 0
    milk: bool = False
    warmth: float | None = None


def test_single_options_replace_those_of_the_value():
    given = Tea(sugar_count=2)
    assert merge_options(given, {"milk": True}) == Tea(2, milk=True)
    assert merge_options(given, {}) is given


def test_an_unknown_option_is_named_with_the_nearest_known_one():
    with pytest.raises(
        OptionError,
        match=r"unknown option sugar_cont: did you mean sugar_count\? known are milk, sugar_count, warmth",
    ):
        merge_options(Tea(), {"sugar_cont": 1})


def test_a_name_that_is_like_no_other_is_told_what_there_is():
    with pytest.raises(
        OptionError, match="unknown connection option zzz: known are milk, sugar_count, warmth"
    ):
        check_names(["milk", "zzz"], field_names(Tea), "connection option")


@pytest.mark.parametrize("value", [10**400, -(10**5000), Fraction(10**400)], ids=["400", "5000", "fraction"])
def test_a_number_beyond_every_float_is_refused(value):
    with pytest.raises(OptionError, match="warmth: the number is too large"):
        check_types(Tea(warmth=value))


def test_the_bounds_of_a_back_off_are_finite():
    with pytest.raises(OptionError, match=r"handler_backoff_max_s=inf: expected 0 < .*, and finite"):
        ConsumerOptions(handler_backoff_max_s=math.inf)


class _Count(
    int
):  # as numpy's numbers, and texts of other libraries, these are none that every encoder takes
    pass


class _Name(str):
    __slots__ = ()


def test_numbers_and_texts_of_other_classes_become_plain():
    @dataclass(frozen=True, slots=True)
    class Pot:
        cup_count: int
        warmth: float
        name: str | None = None

    pot = Pot(_Count(3), Fraction(1, 2), _Name("blue"))
    check_types(pot)
    assert [(type(value), value) for value in (pot.cup_count, pot.warmth, pot.name)] == [
        (int, 3),
        (float, 0.5),
        (str, "blue"),
    ]
    whole = Pot(1, 2)
    check_types(whole)
    assert (type(whole.warmth), whole.name) == (int, None)


def test_a_parameter_of_its_own_goes_before_the_same_field_of_the_connection():
    given = {"region": "eu-west-1", "profile": "test"}
    assert merge_connection(given, region="us-east-1", endpoint_url=None) == {
        "region": "us-east-1",
        "profile": "test",
    }
    assert merge_connection(None) == {}


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"sugar_count": "2"}, "sugar_count='2': expected a whole number"),
        ({"sugar_count": 2.5}, "sugar_count=2.5: expected a whole number"),
        ({"sugar_count": True}, "sugar_count=True: expected a whole number"),
        ({"sugar_count": None}, "sugar_count=None: expected a whole number"),
        ({"warmth": "hot"}, "warmth='hot': expected a number"),
        ({"milk": "no"}, "milk='no': expected True or False"),
    ],
)
def test_a_value_of_another_kind_is_named(given, message):
    with pytest.raises(OptionError) as caught:
        check_types(Tea(**given))
    assert str(caught.value) == message


def test_a_whole_number_is_a_number_and_none_is_where_it_may_be():
    check_types(Tea(sugar_count=1, milk=True, warmth=60))
    check_types(Tea(warmth=None))
