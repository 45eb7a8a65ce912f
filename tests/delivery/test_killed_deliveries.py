"""Deliveries by Spark that are killed at chosen places of the run that `make soak` makes, between reshards."""

from __future__ import annotations

import pytest

from killed_deliveries import IN_THE_WRITE, KilledTable

SELECTION = (IN_THE_WRITE, "after call 1 of the commit", "after call 2 of the commit", "end")
"""Those that no other test has: `begin`, `write` and `commit` are among the steps of test_deliver.py."""


@pytest.mark.timeout(900)
def test_duckdb_and_pyarrow_find_each_record_once_whatever_is_killed(kinesis, running_spark, tmp_path):
    table = KilledTable(running_spark, kinesis, tmp_path, 1)
    for at, place in enumerate(SELECTION):
        table.put()
        if at % 2:
            table.reshard()
        table.kill(place)
    table.finish()
    assert table.killed.total() >= len(SELECTION) - 1  # a write may be over before it is cancelled


@pytest.mark.timeout(900)
def test_a_process_that_is_killed_by_sigkill_leaves_no_row_twice(kinesis, running_spark, tmp_path):
    table = KilledTable(running_spark, kinesis, tmp_path, 2, "json")
    table.put()
    table.kill("after call 2 of the commit", is_hard=True)
    assert table.killed.total() == 1
    table.finish()
