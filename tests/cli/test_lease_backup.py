"""Writing a reset of an application's checkpoints, its backup, and the report on a lease table."""

import json

import pytest

from moved_clock import MovedClock
from penstock.cli.lease_backup import apply_reset, read_backup, write_backup
from penstock.cli.lease_report import (
    WatchedLease,
    count_leases_by,
    live_owners,
    state_of,
    watch_leases,
    zone_name,
)
from penstock.core.leases.lease_reset import ResetPlan, plan_reset, plan_restore
from penstock.core.leases.lease_view import OwnerState
from penstock.core.leases.lease_writes import Create, Renew
from penstock.core.position import (
    LATEST,
    SHARD_END,
)
from penstock.errors import OptionError, PenstockError
from penstock.runtime.memory_lease_table import MemoryLeaseTable
from reset_lineage import LINEAGE, NOW, TABLE, lease


def table_of(leases):
    table = MemoryLeaseTable("app")
    for row in leases:
        table.write(Create(row))
    return table


def test_a_reset_is_taken_back_by_its_backup(tmp_path):
    table = table_of(TABLE)
    path = tmp_path / "b.json"
    write_backup(path, "app", "now", TABLE)
    assert (
        apply_reset(table, TABLE, plan_reset(TABLE, NOW, LINEAGE, frozenset({"s2-b", "s3-c", "s4-d"}))) == 5
    )
    changed = table.scan().leases
    assert {row.key: row.checkpoint for row in changed} == {"s2-b": NOW, "s3-c": NOW, "s4-d": NOW}
    path.write_bytes(b"\xef\xbb\xbf" + path.read_bytes())  # as an editor of Windows saves it
    assert apply_reset(table, changed, plan_restore(changed, read_backup(path, "app"))) == 5
    assert {row.key: (row.checkpoint, row.parents) for row in table.scan().leases} == {
        row.key: (row.checkpoint, row.parents) for row in TABLE
    }


def test_a_reset_meets_a_live_worker_and_says_how_to_go_back():
    class Busy(MemoryLeaseTable):
        def write(self, write):
            row = self.fetch(write.key)
            if row is not None and not isinstance(write, Renew):
                super().write(Renew(row.key, row.counter, row.owner))
            return super().write(write)

    table = Busy("app")
    table.write(Create(lease("s1", owner="w1")))
    with pytest.raises(PenstockError, match=r"worker w1 is alive.*--restore"):
        apply_reset(table, table.scan().leases, ResetPlan({"s1": LATEST}))


@pytest.mark.parametrize("text", ["", "{}", "[]", '{"format": "penstock lease backup 1"}'])
def test_what_is_no_backup_is_refused(tmp_path, text):
    path = tmp_path / "x.json"
    path.write_text(text)
    with pytest.raises(OptionError, match="not a backup of a lease table"):
        read_backup(path, "app")


def test_a_backup_is_never_written_over_another(tmp_path):
    path = tmp_path / "b.json"
    write_backup(path, "app", "now", TABLE)
    with pytest.raises(OptionError, match="exists"):
        write_backup(path, "app", "now", ())
    assert len(json.loads(path.read_text())["leases"]) == 3
    with pytest.raises(
        OptionError, match=r"cannot be written, so nothing is reset: .*; give another one with --backup"
    ):
        write_backup(tmp_path / "none" / "b.json", "app", "now", TABLE)


# --- the report -----------------------------------------------------------------------------------------


def test_watching_tells_live_owners_from_silent_ones():
    table = table_of([lease("s1", owner="live"), lease("s2", owner="dead"), lease("s3")])

    def meanwhile(now_s):
        if now_s == 1.0:
            table.write(Renew("s1", 0, "live"))

    watched_leases, _ = watch_leases(table, MovedClock(on_sleep=meanwhile), 4.0)
    assert [(s.lease.key, s.has_moved, s.unmoved_s) for s in watched_leases] == [
        ("s1", True, 3.0),
        ("s2", False, 4.0),
        ("s3", False, 4.0),
    ]
    assert live_owners(watched_leases) == ["live"]
    rows = {s.lease.key: s.lease for s in watched_leases}
    assert [state_of(s, rows) for s in watched_leases] == ["read", "owner silent", "unowned"]


def test_watching_ends_as_soon_as_everything_was_seen_to_move():
    table = table_of([lease("s1", owner="live")])
    clock = MovedClock(on_sleep=lambda now_s: table.write(Renew("s1", 0, "live")))
    watch_leases(table, clock, 60.0)
    assert clock.now_s == 0.5


@pytest.mark.parametrize(
    ("row", "owner_state", "state"),
    [
        (lease("c", owner=None, parents=["p"]), OwnerState.UNOWNED, "waits for parents"),
        (lease("c", owner="w", parents=["p"]), OwnerState.ALIVE, "owned, waits"),
        (lease("c", owner="w", parents=["p"]), OwnerState.EXPIRED, "owner silent"),
        (lease("c", owner="w", checkpoint_owner="v"), OwnerState.ALIVE, "handing over"),
        (lease("c", SHARD_END), OwnerState.ENDED, "ended"),
    ],
)
def test_states(row, owner_state, state):
    assert state_of(WatchedLease(row, owner_state), {"p": lease("p"), "c": row}) == state


def test_an_owner_that_renewed_is_not_silent_however_long_the_last_scan_took():
    row = lease("c", owner="w")
    assert (
        state_of(WatchedLease(row, OwnerState.EXPIRED, unmoved_s=9.0, has_moved=True), {"c": row}) == "read"
    )


def test_shares_count_unfinished_leases_per_worker_and_zone():
    rows = [
        lease("1", owner="a/x"),
        lease("2", owner="a/y"),
        lease("3", owner="a/y"),
        lease("4", SHARD_END, owner="q"),
    ]
    watched_leases = [WatchedLease(row, OwnerState.ALIVE) for row in rows]
    assert count_leases_by(watched_leases, str) == {"a/y": 2, "a/x": 1}
    assert count_leases_by(watched_leases, zone_name) == {"a": 3}
