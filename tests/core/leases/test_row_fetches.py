"""Rows that are read by their keys: not more of them at once than the table can bear beside everything else."""

import math

from penstock.core.leases.coordinator_effects import FetchLease, Turn
from penstock.core.leases.table_scans import RowFetches


def test_of_many_rows_that_are_wanted_at_once_twenty_are_read_at_a_time():
    turn = Turn()
    fetches = RowFetches(turn)
    keys = [f"s{number:02}" for number in range(25)]
    fetches.request(keys, 1.0)
    fetches.fetch_due(1.0)
    assert turn.effects == [FetchLease(key) for key in keys[:20]]
    assert fetches.next_fetch_s == math.inf
    assert fetches.on_answer("s07")
    assert fetches.next_fetch_s == 1.0
    fetches.fetch_due(1.0)
    assert turn.effects[20:] == [FetchLease("s20")]
