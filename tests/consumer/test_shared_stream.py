"""Who keeps up with a stream that four applications read and that is written at its full rate."""

import pytest
from shared_stream import APPLICATIONS, SHARD_COUNT, Fleet

WRITTEN_S = 20


def test_all_keep_up_with_fan_out():
    fleet = Fleet(retrieval="fan-out")
    fleet.write(WRITTEN_S)
    assert max(fleet.behind_s().values()) <= 0.25


def test_not_all_keep_up_by_polling():
    fleet = Fleet()
    fleet.write(WRITTEN_S)
    behind_s = fleet.behind_s()
    # Two of them share the reads of one shard: 2 MiB a second. The rest of the four MiB is behind.
    assert sum(behind_s.values()) == pytest.approx(WRITTEN_S * 2, rel=0.2)
    assert max(behind_s.values()) > WRITTEN_S / 4


def test_those_who_may_change_do_until_all_keep_up():
    fleet = Fleet(retrieval="auto", fan_out_after_s=6.0)
    fleet.write(3 * WRITTEN_S)
    assert max(fleet.behind_s().values()) <= 2.0
    # Some go on polling: there is room for them.
    assert 0 < fleet.pushed_count() < SHARD_COUNT * len(APPLICATIONS)
