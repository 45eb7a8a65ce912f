"""The commands show a lease in the state that its workers give it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moved_clock import MovedClock
from penstock.cli.lease_report import (
    WatchedLease,
    count_leases_by,
    find_circular_leases,
    live_owners,
    state_of,
    watch_leases,
    zone_name,
)
from penstock.cli.leases_command import watch_until_expiry
from penstock.cli.overview.shard_rows import shard_rows
from penstock.cli.overview.trouble import TroubleLimits
from penstock.core.hash_key import HASH_KEY_MAX, HashRange
from penstock.core.leases.fleet_view import zone_of
from penstock.core.leases.lease import Lease
from penstock.core.leases.lease_view import LeaseView, OwnerState
from penstock.core.leases.lease_writes import Create, Renew
from penstock.core.position import SHARD_END, TRIM_HORIZON, at_record
from penstock.core.shard import Shard
from penstock.core.shard_graph import ShardGraph
from penstock.errors import OptionError
from penstock.runtime.memory_lease_table import MemoryLeaseTable

KEYS = ("a", "b", "c", "d")
WAITING = ("owned, waits", "waits for parents")
_rows = st.builds(
    Lease,
    st.sampled_from(KEYS),
    owner=st.sampled_from([None, "w"]),
    checkpoint=st.sampled_from([SHARD_END, TRIM_HORIZON, at_record("5")]),
    parents=st.frozensets(st.sampled_from(KEYS), max_size=2),
)


def test_a_merged_child_waits_for_a_parent_whose_lease_is_still_to_come():
    left = Lease("left", checkpoint=SHARD_END)
    child = Lease("child", owner="w", checkpoint=TRIM_HORIZON, parents=frozenset(("left", "right")))
    rows = {"left": left, "child": child}
    assert state_of(WatchedLease(child, OwnerState.ALIVE), rows) == "owned, waits"
    begun = Lease("child", owner="w", checkpoint=at_record("5"), parents=child.parents)
    assert state_of(WatchedLease(begun, OwnerState.ALIVE), {**rows, "child": begun}) == "read"


@given(st.lists(_rows, max_size=4, unique_by=lambda row: row.key), st.frozensets(st.sampled_from(KEYS)))
def test_commands_and_workers_agree_on_which_shards_wait(leases, listed):
    view = LeaseView(10.0)
    view.on_scan(leases, 0.0)
    rows = {lease.key: lease for lease in leases}
    for lease, owner_state, _ in view.with_owner_states(0.0):
        shown = state_of(WatchedLease(lease, owner_state), rows, circular_leases=find_circular_leases(rows))
        assert (shown in WAITING) == (not lease.is_ended and view.waits_for_parents(lease))
    graph = ShardGraph(Shard(key, HashRange(0, HASH_KEY_MAX)) for key in listed)
    parents = {parent for lease in leases for parent in lease.parents}
    view.on_shards_vanished(parents - listed if listed else frozenset())
    watched_leases = [
        WatchedLease(lease, owner_state) for lease, owner_state, _ in view.with_owner_states(0.0)
    ]
    shown = {row.shard: row for row in shard_rows(watched_leases, {}, {}, graph, TroubleLimits())}
    for lease in leases:
        assert shown[lease.key].waits_for_parents == view.waits_for_parents(lease)
        assert (shown[lease.key].state in WAITING) == (not lease.is_ended and view.waits_for_parents(lease))


def test_a_lease_that_is_handed_over_counts_for_the_worker_that_reads():
    row = Lease("s", owner="asks", checkpoint_owner="reads")
    assert (row.reader, row.next_owner, Lease("s", owner="w").next_owner) == ("reads", "asks", None)
    watched = WatchedLease(row, OwnerState.ALIVE, has_moved=True)
    assert (count_leases_by([watched], str), live_owners([watched])) == ({"reads": 1}, ["reads"])
    assert state_of(WatchedLease(row, OwnerState.EXPIRED), {"s": row}) == "owner silent"


@pytest.mark.parametrize(("worker", "zone"), [("eu-1a/w", "eu-1a"), ("w", ""), ("/w", "")])
def test_the_zone_that_is_shown_is_the_one_that_shards_are_shared_by(worker, zone):
    assert (zone_of(worker), zone_name(worker)) == (zone, zone or "-")


@pytest.mark.parametrize(("name", "term_ms"), [("app", 60_000), ("s3://bucket/app", None)])
def test_before_a_reset_a_rarely_renewed_lease_is_watched_for_its_duration(
    monkeypatch, capsys, name, term_ms
):
    table = MemoryLeaseTable(name)
    table.write(Create(Lease("s", owner="w")))
    table.write(Renew("s", 0, "w", term_ms=term_ms))
    clock = MovedClock(on_sleep=lambda now_s: now_s == 20.0 and table.write(Renew("s", 1, "w")))
    monkeypatch.setattr("penstock.wiring.SystemClock", lambda: clock)
    watched_leases, _ = watch_leases(table, clock, 4.0)
    assert live_owners(watched_leases) == []
    with pytest.raises(OptionError, match=f"--observe 4: the leases of {name} last 60 s"):
        watch_until_expiry(table, watched_leases, 4.0)
    assert live_owners(watch_until_expiry(table, watched_leases)) == ["w"]
    assert capsys.readouterr().err.endswith("watching for 60 s, as long as the leases last\n")
    assert clock.now_s == 20.0
