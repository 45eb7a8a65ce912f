"""Options as keywords: names are checked, and values replace the defaults."""

from dataclasses import dataclass

import pytest

from penstock.core.keyword_options import check_names, field_names, merge_connection, merge_options
from penstock.errors import OptionError


@dataclass(frozen=True)
class Tea:
    sugar_count: int = 0
    milk: bool = False


def test_single_options_replace_those_of_the_value():
    given = Tea(sugar_count=2)
    assert merge_options(given, {"milk": True}) == Tea(2, milk=True)
    assert merge_options(given, {}) is given


def test_an_unknown_option_is_named_with_the_nearest_known_one():
    with pytest.raises(
        OptionError,
        match=r"unknown option sugar_cont: did you mean sugar_count\? known are milk, sugar_count",
    ):
        merge_options(Tea(), {"sugar_cont": 1})


def test_a_name_that_is_like_no_other_is_told_what_there_is():
    with pytest.raises(OptionError, match="unknown connection option zzz: known are milk, sugar_count"):
        check_names(["milk", "zzz"], field_names(Tea), "connection option")


def test_a_parameter_of_its_own_goes_before_the_same_field_of_the_connection():
    given = {"region": "eu-west-1", "profile": "test"}
    assert merge_connection(given, region="us-east-1", endpoint_url=None) == {
        "region": "us-east-1",
        "profile": "test",
    }
    assert merge_connection(None) == {}
