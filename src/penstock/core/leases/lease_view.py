"""One observer's view of the lease table: the last known rows, and when each was last seen to change.

Every decision about other workers' leases is based on it. Each observer judges expiry on its own monotonic clock: a lease
has expired if its counter, owner and checkpoint have not changed for the lease duration, as seen from here. Clocks of
different workers are never compared. A row that is seen for the first time counts as alive, whatever its owner; a row
without an owner is free at once.

A row that looks unchanged may have been renewed since it was read. A take is conditional on the counter as read, so it is
refused then.
"""

from __future__ import annotations

import math
from collections.abc import Container, Iterable, Iterator, Mapping
from collections.abc import Set as AbstractSet
from enum import Enum
from typing import Final, TypeAlias

from msgspec import Struct

from penstock.core.leases.handovers import Handovers
from penstock.core.leases.lease import Lease, TablePart
from penstock.core.shard_graph import find_cycles

STALE_READ_S: Final = 2.0
"""An eventually consistent scan may miss writes that were made up to this many seconds before it."""


class OwnerState(Enum):
    """The state of a lease's owner, as an observer judges it."""

    ALIVE = "the owner renews"
    UNOWNED = "there is no owner"
    EXPIRED = "the owner has not renewed for the lease duration"
    ENDED = "everything in the shard is done"


LeaseRows: TypeAlias = "LeaseView | Mapping[str, Lease]"


def waits_for_parents(
    lease: Lease,
    rows: LeaseRows,
    vanished_shards: Container[str] = (),
    circular_leases: Container[str] = (),
) -> bool:
    """Return whether a shard may not be read yet: a parent's lease is unfinished, or should exist and does not.

    Args:
        vanished_shards: Shards that the stream does not list any more.
        circular_leases: Leases that descend from themselves, because of damaged rows. They do not wait for each other.
    """
    for parent in lease.parents:
        row = rows.get(parent)
        is_unfinished = row is not None and not row.is_ended
        if is_unfinished and (lease.key not in circular_leases or parent not in circular_leases):
            return True
    return bool(missing_parents(lease, rows, vanished_shards))


def missing_parents(lease: Lease, rows: LeaseRows, vanished_shards: Container[str]) -> set[str]:
    """Return the parents whose leases should exist and do not; none once the shard is being read.

    A parent's lease is deleted only after every child is past its start. So if no parent has a lease, the application
    started at this shard, and none is missing. If one of two parents has a lease, or has left the stream, the application
    reads the parents: the lease of the other one is not created yet, or was deleted by hand.
    """
    if lease.is_ended or lease.checkpoint.is_record:
        return set()
    missing = {
        parent for parent in lease.parents if rows.get(parent) is None and parent not in vanished_shards
    }
    return missing if len(missing) < len(lease.parents) else set()


def parents_of_unfinished_leases(leases: Iterable[Lease]) -> dict[str, AbstractSet[str]]:
    """Return the keys of the parents of every unfinished lease that has parents, by the lease's key."""
    return {lease.key: lease.parents for lease in leases if lease.parents and not lease.is_ended}


class _ObservedRow(Struct):
    """The last known row of a lease, and its changes as this observer saw them."""

    lease: Lease
    changed_s: float  # when the row was last seen to change
    was_renewed: bool = False  # whether its counter was ever seen to change
    unchanged_scans: int = 0  # number of scans since the last change


class LeaseView:
    """The last known row of every lease, with the moment it was last seen to change. Not thread-safe.

    Methods about one lease raise KeyError if no row of it is known, unless they return None then.

    Args:
        lease_duration_s: A counter that has not changed for this long means that the owner has stopped.
        handover_bound_s: A hand-over that lasts longer will not be answered.
        names_streams: Whether Penstock workers name the stream on leases that they renew.
    """

    def __init__(
        self, lease_duration_s: float, handover_bound_s: float = 30.0, *, names_streams: bool = False
    ) -> None:
        self.lease_duration_s = lease_duration_s
        self.handovers: Handovers = Handovers(handover_bound_s, names_streams=names_streams)
        self.vanished_shards: frozenset[str] = frozenset()
        """Shards that the stream does not list any more, as two listings agreed: no lease waits for them."""
        self.damaged_rows: dict[str, str] = {}
        """Keys of rows that cannot be read as leases, or are not leases, each with the reason."""
        self.rows_set_aside: frozenset[str] = frozenset()
        """Keys of rows that may belong to another stream: not compared with a listing yet."""
        self.circular_leases: frozenset[str] = frozenset()
        """Keys of leases that descend from themselves, by damaged rows: they do not wait for each other."""
        self.watched_keys: frozenset[str] | None = None
        """Keys of the rows in the part that is scanned in every round; None if that is the whole table."""
        self._watched_part: TablePart | None = None
        self._absent_parents: set[str] = set()  # parents that are known to have no row
        self._found_by_index: set[str] = set()  # keys from the index, until a whole scan shows them
        self._rows: dict[str, _ObservedRow] = {}

    def __len__(self) -> int:
        return len(self._rows)

    def __contains__(self, key: object) -> bool:
        return key in self._rows

    def __iter__(self) -> Iterator[Lease]:
        return (observed_row.lease for observed_row in self._rows.values())

    def get(self, key: str) -> Lease | None:
        """Return the last known row, or None."""
        observed_row = self._rows.get(key)
        return None if observed_row is None else observed_row.lease

    def rows(self) -> Mapping[str, Lease]:
        """Return every last known row by key."""
        return {key: observed_row.lease for key, observed_row in self._rows.items()}

    def watched_rows(self) -> Mapping[str, Lease]:
        """Return the last known rows of the part that is scanned in every round, by key."""
        return {
            observed_row.lease.key: observed_row.lease
            for observed_row in self._observed_rows(self.watched_keys)
        }

    def on_scan(  # noqa: PLR0917 - the result of a scan
        self,
        leases: Iterable[Lease],
        now_s: float,
        began_s: float | None = None,
        held_keys: Container[str] = (),
        skipped_rows: Iterable[tuple[str, str]] = (),
        part: TablePart | None = None,
    ) -> list[str]:
        """Handle the rows of a scan.

        Args:
            leases: Every row of the table, or of the part.
            now_s: Monotonic seconds at which the scan was complete: ages count from here.
            began_s: When it began, or None if no write or read of a row was made since. A known row that is newer than the
                scan is kept.
            held_keys: Leases of this worker. A scan does not remove them; only an answer to a write or read of the row does.
            skipped_rows: Keys of rows that could not be read as leases, each with the reason. Their last known rows are kept.
            part: The part that was scanned; None for the whole table.

        Returns:
            Keys of known rows that the scan did not find, including those of held leases. Unreadable rows, and rows that
            changed after the scan began or a moment before, are not among them.
        """
        rows = self._rows
        is_whole_table = part is None or part.is_whole_table
        not_found = dict.fromkeys(rows if is_whole_table else self._known_keys_of(part))
        for lease in leases:
            not_found.pop(lease.key, None)
            if not self._has_newer_row(lease, began_s) and self.on_row(lease, now_s):
                rows[lease.key].unchanged_scans += 1
        if not is_whole_table:
            # Damaged rows outside the part stay known, since this scan could not find them.
            outside = ((key, why) for key, why in self.damaged_rows.items() if key not in not_found)
            skipped_rows = [*outside, *skipped_rows]
        self.damaged_rows = dict(skipped_rows)
        changed_before_s = math.inf if began_s is None else began_s - STALE_READ_S
        # A row that changed later was written while the scan was under way, or a moment before it.
        missing = [
            key
            for key in not_found
            if key not in self.damaged_rows and rows[key].changed_s <= changed_before_s
        ]
        for key in missing:
            if key not in held_keys:
                self.forget(key)
        if is_whole_table:
            self._found_by_index &= not_found.keys()
            self._on_whole_table()
        else:
            self._watched_part = part
            self.watched_keys = frozenset(lease.key for lease in leases if lease.key in rows)
        return missing

    def _known_keys_of(self, part: TablePart | None) -> list[str]:
        """Return the keys of a part's rows as its previous scan found them; none if another part was scanned."""
        keys = self.watched_keys if self.watched_keys is not None and self._watched_part == part else ()
        return [key for key in keys if key in self._rows]

    def _has_newer_row(self, lease: Lease, began_s: float | None) -> bool:
        """Return whether the known row of a lease is newer than `lease`: it was read, or written, after the scan began."""
        observed_row = self._rows.get(lease.key)
        return (
            observed_row is not None
            and began_s is not None
            and observed_row.changed_s > began_s
            and observed_row.lease.counter >= lease.counter
        )

    def _on_whole_table(self) -> None:
        """Find circular leases and absent parents, and forget workers without a lease, after a scan of the whole table."""
        self.handovers.forget_unnamed_workers(self)
        parents = parents_of_unfinished_leases(self)
        self.circular_leases = find_cycles(parents)
        self._absent_parents = set().union(*parents.values()) - self._rows.keys()

    def watch_whole_table(self) -> None:
        """Watch the whole table: from now on every scan is of it."""
        self._watched_part = self.watched_keys = None

    def on_row_absent(self, key: str) -> None:
        """Handle a read by key that found no row."""
        self.forget(key)
        self._absent_parents.add(key)

    def unknown_parents(self, lease: Lease) -> list[str]:
        """Return the parents whose rows must be fetched, since it is unknown whether they have a row.

        After a scan of the whole table there are none: only a worker that watches a part, or finds leases by the index, reads
        rows without the rows of their parents.
        """
        if self.watched_keys is None and lease.key not in self._found_by_index:
            return []
        return [
            parent
            for parent in lease.parents
            if parent not in self._rows
            and parent not in self._absent_parents
            and parent not in self.vanished_shards
        ]

    def blocking_parents(self, lease: Lease) -> list[str]:
        """Return the parents that this lease waits for: unfinished ones, and those whose rows must be fetched."""
        rows = self._rows
        unfinished = [
            parent for parent in lease.parents if parent in rows and not rows[parent].lease.is_ended
        ]
        return [*unfinished, *self.unknown_parents(lease)]

    def on_row(self, lease: Lease, now_s: float) -> bool:
        """Keep one row, from a scan, a read or a write's answer; return True if it has not changed."""
        before = self._rows.get(lease.key)
        self.handovers.on_row(None if before is None else before.lease, lease, now_s)
        if before is not None and _is_unchanged(before.lease, lease):
            before.lease = lease
            return True
        was_renewed = before is not None and (before.was_renewed or before.lease.counter != lease.counter)
        self._rows[lease.key] = _ObservedRow(lease, now_s, was_renewed)
        return False

    def on_row_found_by_index(self, lease: Lease, now_s: float) -> None:
        """Handle a row that was found by the index. Its parents' rows may be newer than the last scan."""
        self._found_by_index.add(lease.key)
        self.on_row(lease, now_s)

    def is_usable(self, key: str) -> bool:
        """Return whether a row can be read and is known to be of this stream, so that it may be written."""
        return key not in self.damaged_rows and key not in self.rows_set_aside

    def on_shards_vanished(self, shard_ids: AbstractSet[str]) -> None:
        """Handle shards that the stream does not list any more: no lease waits for them from now on."""
        self.vanished_shards |= shard_ids

    def set_rows_aside(self, keys: Iterable[str]) -> None:
        """Set rows aside until they are known to belong to this stream; this replaces the earlier set."""
        self.rows_set_aside = frozenset(keys)

    def forget(self, key: str) -> None:
        """Forget a row that does not exist."""
        self._rows.pop(key, None)
        self._found_by_index.discard(key)
        self.handovers.forget(key)

    def owner_state(self, key: str, now_s: float) -> OwnerState:
        """Return the state of a lease's owner."""
        return self._owner_state(self._rows[key], now_s)

    def duration_s_of(self, lease: Lease) -> float:
        """Return a lease's duration: the application's, or the longer one that the reader has given it."""
        return max(self.lease_duration_s, lease.term_s)

    def was_renewed(self, key: str) -> bool:
        """Return whether a lease's counter was seen to change, which proves that its reader was alive then."""
        return self._rows[key].was_renewed

    def unchanged_s(self, key: str, now_s: float) -> float:
        """Return the seconds since a lease's row was last seen to change."""
        return now_s - self._rows[key].changed_s

    def with_owner_states(
        self, now_s: float, keys: Iterable[str] | None = None
    ) -> Iterator[tuple[Lease, OwnerState, float]]:
        """Yield every row, or those of some keys, with its owner's state and the seconds since it was last seen to change."""
        for observed_row in self._observed_rows(keys):
            yield observed_row.lease, self._owner_state(observed_row, now_s), now_s - observed_row.changed_s

    def _observed_rows(self, keys: Iterable[str] | None) -> Iterable[_ObservedRow]:
        rows = self._rows
        return rows.values() if keys is None else [rows[key] for key in keys if key in rows]

    def next_expiry_s(self, me: str) -> float | None:
        """Return the earliest moment at which another worker's lease that seems abandoned expires; None without such a lease.

        A live owner renews several times per lease duration, so the owner of a row that two scans found unchanged may have
        stopped. A scan at the row's expiry finds that sooner than the regular round.
        """
        moments = [
            observed_row.changed_s + self.duration_s_of(observed_row.lease)
            for observed_row in self._observed_rows(self.watched_keys)
            if observed_row.unchanged_scans
            and observed_row.lease.owner is not None
            and observed_row.lease.owner != me
            and not observed_row.lease.is_ended
        ]
        return min(moments, default=None)

    def waits_for_parents(self, lease: Lease) -> bool:
        """Return whether this shard may not be read yet: a parent is unfinished, unknown, or missing."""
        return bool(self.unknown_parents(lease)) or waits_for_parents(
            lease, self, self.vanished_shards, self.circular_leases
        )

    def missing_parents(self) -> set[str]:
        """Return the parents without a row that keep leases from being read."""
        merged = (lease for lease in self if len(lease.parents) > 1)
        return set().union(*(missing_parents(lease, self, self.vanished_shards) for lease in merged))

    def has_parent_lease(self, lease: Lease) -> bool:
        """Return whether a parent's lease is in the table, finished or not."""
        return any(parent in self._rows for parent in lease.parents)

    def _owner_state(self, observed_row: _ObservedRow, now_s: float) -> OwnerState:
        lease = observed_row.lease
        if lease.is_ended:
            return OwnerState.ENDED
        if lease.reader is None:
            return OwnerState.UNOWNED
        if now_s - observed_row.changed_s >= self.duration_s_of(lease):
            return OwnerState.EXPIRED
        return OwnerState.ALIVE


def _is_unchanged(before: Lease, row: Lease) -> bool:
    # The checkpoint too: a row that was deleted and created again may reach the counter that it had.
    return before.counter == row.counter and before.owner == row.owner and before.checkpoint == row.checkpoint


class StreamRows:
    """One stream's rows in a view. Not thread-safe.

    Args:
        stream_id: The prefix of the stream's keys; empty if the table has only this stream.
    """

    def __init__(self, view: LeaseView, stream_id: str) -> None:
        self._view = view
        self._prefix = f"{stream_id}:" if stream_id else ""

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def __contains__(self, key: object) -> bool:
        return isinstance(key, str) and self._is_of_stream(key) and key in self._view

    def __iter__(self) -> Iterator[Lease]:
        return (lease for lease in self._view if self._is_of_stream(lease.key))

    def _is_of_stream(self, key: str) -> bool:
        return key.startswith(self._prefix)

    def rows(self) -> Mapping[str, Lease]:
        """Return every last known row by key."""
        return {lease.key: lease for lease in self}

    @property
    def damaged_rows(self) -> Mapping[str, str]:
        """Existing rows that cannot be read as leases, each with the reason."""
        return {key: why for key, why in self._view.damaged_rows.items() if self._is_of_stream(key)}

    def missing_parents(self) -> set[str]:
        """Return the parents without a row that keep leases from being read."""
        return {parent for parent in self._view.missing_parents() if self._is_of_stream(parent)}
