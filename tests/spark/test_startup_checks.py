"""Checks before a query joins: other readers under its name, and its starting moment."""

from __future__ import annotations

from contextlib import nullcontext

import pytest
from msgspec.structs import replace

from moved_clock import MovedClock
from penstock.core.hash_key import FULL_RANGE
from penstock.core.leases.lease import Lease
from penstock.core.position import SHARD_END, TRIM_HORIZON, at_record
from penstock.core.shard import Shard
from penstock.errors import OptionError, PositionError
from penstock.ports.kinesis import ShardListing
from penstock.ports.lease_table import LeaseScan
from penstock.runtime.memory_lease_table import MemoryLeaseTable
from penstock.spark.driver.startup_checks import refuse_future_start, refuse_shared_default_name
from penstock.spark.options.spark_options import parse_source

WHOLE = (Shard("shardId-1", FULL_RANGE, (), "1", None),)


# --- other readers under the default name ----------------------------------------------------------------------


class TableOverTime(MemoryLeaseTable):
    """A lease table to which others write between scans: `rows[t]` are its rows after t scans."""

    def __init__(self, *rows):
        super().__init__()
        self._rows = rows
        self._looks = 0
        self.clock = MovedClock()

    def scan(self, part=None):
        rows = self._rows[min(self._looks, len(self._rows) - 1)]
        self._looks += 1
        return LeaseScan(rows)


UNNAMED, _ = parse_source({"streamName": "s", "region": "r"})
READ = Lease("3", counter=2, owner="other", checkpoint=at_record("7"))
ENDED = Lease("3", counter=9, checkpoint=SHARD_END)
CHILD = Lease("5", checkpoint=TRIM_HORIZON, parents=frozenset({"3"}))


def looked_until(table):
    refuse_shared_default_name(table, "me", UNNAMED, table.clock)
    return table.clock.now_s


def test_a_query_without_a_name_joins_where_nobody_renews():
    assert looked_until(TableOverTime((READ,))) == pytest.approx(UNNAMED.lease_duration_s, abs=1.0)
    assert looked_until(TableOverTime((ENDED, replace(CHILD, counter=2)))) == 0.0
    assert looked_until(TableOverTime((replace(READ, owner=None), CHILD))) == 0.0


def test_a_query_without_a_name_waits_for_whoever_has_just_made_a_lease_to_take_it():
    renewed = [(ENDED, replace(CHILD, counter=count, owner="other")) for count in range(1, 60)]
    with pytest.raises(OptionError, match="other reads it"):
        looked_until(TableOverTime((ENDED, CHILD), *renewed))
    # Its creator ended before it took the lease.
    assert looked_until(TableOverTime((ENDED, CHILD))) == pytest.approx(UNNAMED.lease_duration_s, abs=1.0)


def test_a_query_without_a_name_waits_for_whoever_lost_a_lease_to_take_it_again():
    lost = (replace(READ, owner="third", counter=3),)
    given_up = (replace(READ, owner=None, counter=4),)
    taken_again = [(replace(READ, counter=count),) for count in range(5, 60)]
    with pytest.raises(OptionError, match="other reads it"):
        looked_until(TableOverTime((READ,), lost, given_up, given_up, *taken_again))
    # Also if all of it happened at the end of the wait.
    renewed = [(replace(READ, counter=count),) for count in range(14)]
    late = [(replace(READ, owner=None, counter=20),)] * 3
    with pytest.raises(OptionError, match="other reads it"):
        looked_until(TableOverTime(*renewed, *late, (replace(READ, counter=21),)))


def test_a_query_without_a_name_joins_a_lease_duration_after_the_others_stop():
    stopped = (replace(READ, owner=None, counter=3),)
    assert looked_until(TableOverTime((READ,), stopped)) == 1.0 + UNNAMED.lease_duration_s


def test_a_query_without_a_name_joins_although_an_unowned_lease_keeps_changing():
    written = [(replace(READ, owner=None, counter=count),) for count in range(100)]
    assert looked_until(TableOverTime(*written)) == pytest.approx(3 * UNNAMED.lease_duration_s, abs=1.0)


def test_a_query_without_a_name_is_refused_where_another_one_renews():
    renewed = [(replace(READ, counter=count),) for count in range(60)]
    with pytest.raises(
        OptionError, match=r"other reads it under the default application name .*applicationName"
    ):
        looked_until(TableOverTime(*renewed))


def test_a_query_without_a_name_is_refused_while_a_new_child_has_no_owner():
    with pytest.raises(OptionError, match="other reads it"):
        looked_until(TableOverTime((READ,), (ENDED, CHILD)))


def test_a_query_without_a_name_is_refused_after_another_ones_table_was_deleted():
    with pytest.raises(OptionError, match="other reads it"):
        looked_until(TableOverTime((READ,), ()))


def test_of_two_queries_without_a_name_that_begin_at_once_the_first_by_name_goes_on():
    renewed = [(replace(READ, counter=count),) for count in range(20)]
    released = (replace(READ, owner=None, counter=20),)
    for worker, is_refused in (("a", False), ("z", True)):
        table = TableOverTime(*renewed, released)
        with pytest.raises(OptionError, match="other reads it") if is_refused else nullcontext():
            refuse_shared_default_name(table, worker, UNNAMED, table.clock, has_joined=True)
    table = TableOverTime(*[(replace(READ, counter=count),) for count in range(60)])
    with pytest.raises(OptionError, match="other reads it"):  # the other one has checked before
        refuse_shared_default_name(table, "a", UNNAMED, table.clock, has_joined=True)


class DatedKinesis:
    """Answers with the service's moment."""

    def __init__(self, server_ms):
        self._server_ms = server_ms

    def fetch_shards(self, stream, shard_filter=None):
        return ShardListing(WHOLE, server_ms=self._server_ms)


def test_a_future_moment_is_judged_by_the_services_clock():
    moment_ms = 1_700_000_000_000
    options, _ = parse_source(
        {
            "streamName": "s",
            "applicationName": "app",
            "region": "r",
            "startingPosition": f"AT_TIMESTAMP {moment_ms}",
        }
    )
    clock = MovedClock()
    refuse_future_start(DatedKinesis(moment_ms), options, clock)
    with pytest.raises(PositionError, match="this moment is in the future"):
        refuse_future_start(DatedKinesis(moment_ms - 60_000), options, clock)
