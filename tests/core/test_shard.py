from dataclasses import FrozenInstanceError

import pytest

from penstock.core.hash_key import FULL_RANGE
from penstock.core.shard import ChildShard, Shard, StreamSummary


def test_a_shard_is_open_until_it_has_an_ending_sequence_number():
    assert Shard("s", FULL_RANGE).is_open
    assert not Shard("s", FULL_RANGE, ending_sequence_number="0").is_open


def test_what_the_service_says_cannot_be_changed():
    with pytest.raises(FrozenInstanceError):
        Shard("s", FULL_RANGE).ending_sequence_number = "9"
    with pytest.raises(FrozenInstanceError):
        ChildShard("c", ("s",), FULL_RANGE).parents = ()
    with pytest.raises(FrozenInstanceError):
        StreamSummary("n", "arn", "ACTIVE", 0).status = "DELETING"


def test_a_summary_that_says_nothing_about_service_managed_keys_does_not_deny_them():
    assert StreamSummary("n", "arn", "ACTIVE", 0).service_managed_keys is None
