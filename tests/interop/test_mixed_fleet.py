"""Real workers of the KCL and consumers of Penstock share an application: nothing is lost, and little comes twice."""

from __future__ import annotations

import pytest
from counterparts import KCL_2, KCL_3_COMPATIBLE, PENSTOCK, Counterpart
from fleet import everything_wrong, reading_fleet, report_repeats

from penstock_demo.resharding import merge_shards, split_shard

PART = 900


@pytest.mark.parametrize(
    ("first", "second"),
    [
        pytest.param(KCL_2, PENSTOCK, id="KCL 2.7.2 first"),
        pytest.param(PENSTOCK, KCL_2, id="beside KCL 2.7.2"),
        pytest.param(KCL_3_COMPATIBLE, PENSTOCK, id="KCL 3.5.1 as 2.x first"),
        pytest.param(PENSTOCK, KCL_3_COMPATIBLE, id="beside KCL 3.5.1 as 2.x"),
    ],
)
def test_workers_join_are_killed_and_stop_while_shards_are_split_and_merged(
    first: Counterpart, second: Counterpart, tmp_path, record_property
):
    with reading_fleet(tmp_path, first, PART) as (fleet, early):
        kinesis = fleet.server.client("kinesis")
        late = fleet.start(second)
        fleet.wait_until_all_have_leases()

        fleet.put(PART)
        split_shard(kinesis, "numbers", 0)
        fleet.put(PART)
        merge_shards(kinesis, "numbers", 3)
        fleet.put(PART)
        fleet.wait_until_all_is_read()

        fleet.put(PART)
        fleet.kill(early)
        fleet.put(PART)
        fleet.wait_until_all_is_read()

        again = fleet.start(first)
        fleet.wait_until_all_have_leases()
        fleet.put(PART)
        fleet.kill(late)
        fleet.put(PART)
        fleet.wait_until_all_is_read()

        fleet.start(second)
        fleet.wait_until_all_have_leases()
        fleet.stop(again)
        fleet.put(PART)
        fleet.wait_until_all_is_read()
        history = fleet.gather()
        fleet.assert_behaves_as_the_model()
        logs = fleet.logs()
    report_repeats(history, fleet.gone, record_property)
    assert everything_wrong(history) == {}, logs
    assert all(worker.records for worker in fleet.workers.values())
