from penstock.core.hash_key import FULL_RANGE
from penstock.core.shard import Shard


def test_a_shard_is_open_until_it_has_an_ending_sequence_number():
    assert Shard("s", FULL_RANGE).is_open
    assert not Shard("s", FULL_RANGE, ending_sequence_number="0").is_open
