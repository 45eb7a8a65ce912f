"""Setting an application's checkpoints anew: what is written, and the backup that takes it back."""

from __future__ import annotations

import base64
import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from penstock.core.hash_key import HashRange
from penstock.core.leases.lease import (
    Applied,
    Create,
    Delete,
    Lease,
    LeaseWrite,
    Refusal,
    Refused,
    Reset,
    starting_lease,
)
from penstock.core.position import TRIM_HORIZON, Position, Sentinel, parse_checkpoint
from penstock.core.shard import Shard
from penstock.errors import OptionError, PenstockError

if TYPE_CHECKING:
    from penstock.ports.lease_table import LeaseTable

_FORMAT: Final = "penstock lease backup 1"
_ATTEMPTS: Final = 5


@dataclass(frozen=True, slots=True)
class ResetPlan:
    """What a reset writes.

    Args:
        targets: Where each existing lease goes.
        created: Leases of shards that have none.
        removed: Leases of shards that ended before the position: while a parent's lease stands, its child is read
            from its own beginning.
        kept: Leases that stay as they are, with the reason.
    """

    targets: dict[str, Position]
    created: tuple[Lease, ...] = ()
    removed: tuple[str, ...] = ()
    kept: dict[str, str] = field(default_factory=dict)


def plan_reset(
    leases: tuple[Lease, ...],
    position: Position,
    shards: tuple[Shard, ...] | None = None,
    snapshot: frozenset[str] = frozenset(),
) -> ResetPlan:
    """Plan a reset.

    Args:
        leases: As they stand.
        position: TRIM_HORIZON, or a LATEST or AT_TIMESTAMP with its moment.
        shards: The stream's whole listing, or None when the stream was not named.
        snapshot: With `shards`: those that were open at the moment; they cover the hash range together.

    Returns:
        At TRIM_HORIZON every shard is read again, parents before children. At a moment the snapshot starts there,
        what came after it starts at its beginning, and what ended before it is not read.

    Raises:
        OptionError: A moment in the past, and the stream was not named: which shards were open then is unknown.
    """
    if position.sentinel is Sentinel.TRIM_HORIZON:
        return _plan_everything(leases, position, shards)
    if shards is None:
        if position.sentinel is not Sentinel.LATEST:
            raise OptionError(
                "--reset-to AT_TIMESTAMP needs --stream: the table does not say which shards were open at the moment"
            )
        parents = frozenset[str]().union(*(lease.parents for lease in leases))
        return ResetPlan(
            targets={lease.key: position for lease in leases if lease.key not in parents},
            removed=tuple(lease.key for lease in leases if lease.key in parents),
        )
    starts: dict[str, Position] = {}
    # A shard's number is larger than its parents', so parents come first in this order.
    for shard in sorted(shards, key=lambda shard: shard.shard_id):
        if shard.shard_id in snapshot:
            starts[shard.shard_id] = position
        elif any(parent in starts for parent in shard.parents):
            starts[shard.shard_id] = TRIM_HORIZON
    return _plan_starts(leases, shards, starts)


def _plan_everything(
    leases: tuple[Lease, ...], position: Position, shards: tuple[Shard, ...] | None
) -> ResetPlan:
    if shards is None:
        return ResetPlan(
            targets={lease.key: position for lease in leases if not lease.is_ended},
            kept={lease.key: "it is finished" for lease in leases if lease.is_ended},
        )
    return _plan_starts(leases, shards, {shard.shard_id: position for shard in shards})


def _plan_starts(
    leases: tuple[Lease, ...], shards: tuple[Shard, ...], starts: dict[str, Position]
) -> ResetPlan:
    have = {lease.key for lease in leases}
    return ResetPlan(
        targets={key: position for key, position in starts.items() if key in have},
        created=tuple(
            starting_lease(shard.shard_id, starts[shard.shard_id], shard.parents, shard.hash_range)
            for shard in shards
            if shard.shard_id in starts and shard.shard_id not in have
        ),
        removed=tuple(sorted(have - set(starts))),
    )


def apply_reset(table: LeaseTable, leases: tuple[Lease, ...], plan: ResetPlan) -> int:
    """Write a reset; gives the number of leases written or removed.

    Raises:
        PenstockError: A lease kept changing under the reset: a worker is alive.
    """
    rows = {lease.key: lease for lease in leases}
    # Creations first: a child must find its parent's lease when it is looked at.
    for lease in plan.created:
        table.write(Create(lease))
    for key, position in plan.targets.items():
        _write_as_read(table, rows[key], lambda row, to=position: Reset(row.key, row.counter, to))
    for key in plan.removed:
        _write_as_read(table, rows[key], lambda row: Delete(row.key, row.counter, row.checkpoint))
    return len(plan.targets) + len(plan.created) + len(plan.removed)


def restore(table: LeaseTable, leases: tuple[Lease, ...], backup: tuple[Lease, ...]) -> int:
    """Bring checkpoints back as a backup has them; gives the number of leases written or removed.

    Leases that the backup does not have are removed: the reset made them.

    Raises:
        PenstockError: A lease kept changing: a worker is alive.
    """
    saved = {lease.key: lease for lease in backup}
    rows = {lease.key: lease for lease in leases}
    for key, lease in saved.items():
        if key not in rows:
            table.write(Create(lease))
        else:
            _write_as_read(table, rows[key], lambda row, to=lease.checkpoint: Reset(row.key, row.counter, to))
    for key, row in rows.items():
        if key not in saved:
            _write_as_read(table, row, lambda row: Delete(row.key, row.counter, row.checkpoint))
    return len(saved) + len(set(rows) - set(saved))


def _write_as_read(table: LeaseTable, row: Lease, write_of: Any) -> None:
    for _ in range(_ATTEMPTS):
        write: LeaseWrite = write_of(row)
        outcome = table.write(write)
        if isinstance(outcome, Applied) or (
            isinstance(outcome, Refused) and outcome.reason is Refusal.MISSING
        ):
            return
        fresh = table.fetch(row.key)
        if fresh is None:
            return
        row = fresh
    raise PenstockError(
        f"lease {row.key} of table {table.name} keeps changing: worker {row.owner} is alive. Stop it; what was "
        "written so far is taken back by --restore with the backup file"
    )


# --- the backup file ------------------------------------------------------------------------------------


def write_backup(path: Path, table_name: str, moment: str, leases: tuple[Lease, ...]) -> None:
    """Write every lease to a new file.

    Raises:
        OptionError: The file exists.
        OSError: It cannot be written.
    """
    document = {
        "format": _FORMAT,
        "table": table_name,
        "written": moment,
        "leases": [_to_document(lease) for lease in leases],
    }
    try:
        with path.open("x", encoding="utf-8") as file:
            json.dump(document, file, indent=1)
            file.write("\n")
    except FileExistsError as error:
        raise OptionError(f"backup file {path} exists: give another one with --backup") from error


def read_backup(path: Path, table_name: str) -> tuple[Lease, ...]:
    """Read a backup of this table.

    Raises:
        OptionError: Not a backup, or one of another table.
        OSError: It cannot be read.
    """
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
        if document.get("format") != _FORMAT:
            raise OptionError(f"{path} is no backup of a lease table")
        if document["table"] != table_name:
            raise OptionError(f"{path} is a backup of table {document['table']}, not of {table_name}")
        return tuple(_from_document(entry) for entry in document["leases"])
    except (ValueError, KeyError, AttributeError, TypeError) as error:
        if isinstance(error, OptionError):
            raise
        raise OptionError(f"{path} is no backup of a lease table: {error}") from error


def _to_document(lease: Lease) -> dict[str, Any]:
    spelled = lease.checkpoint.sequence_number
    if spelled is None and lease.checkpoint.sentinel is not None:
        spelled = lease.checkpoint.sentinel.value
    return {
        "key": lease.key,
        "counter": lease.counter,
        "owner": lease.owner,
        "checkpoint": spelled,
        "sub_sequence_number": lease.checkpoint.sub_sequence_number,
        "timestamp_ms": lease.checkpoint.timestamp_ms,
        "parents": sorted(lease.parents),
        "children": sorted(lease.children),
        "hash_range": None
        if lease.hash_range is None
        else [str(lease.hash_range.start), str(lease.hash_range.end)],
        "pending_state": None
        if lease.pending_state is None
        else base64.b64encode(lease.pending_state).decode(),
    }


def _from_document(entry: dict[str, Any]) -> Lease:
    bounds = entry["hash_range"]
    return Lease(
        key=entry["key"],
        checkpoint=parse_checkpoint(entry["checkpoint"], entry["sub_sequence_number"], entry["timestamp_ms"]),
        parents=frozenset(entry["parents"]),
        children=frozenset(entry["children"]),
        hash_range=None if bounds is None else HashRange(int(bounds[0]), int(bounds[1])),
    )
