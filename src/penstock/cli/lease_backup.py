"""Reset the checkpoints of an application, and keep a backup file with which a reset is undone."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from penstock.core.hash_key import HashRange
from penstock.core.leases.lease import Lease
from penstock.core.leases.lease_reset import ResetPlan
from penstock.core.leases.lease_writes import (
    Applied,
    Create,
    Delete,
    LeaseWrite,
    Refusal,
    Refused,
    Reset,
)
from penstock.core.position import parse_checkpoint
from penstock.errors import OptionError, PenstockError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from penstock.ports.lease_table import LeaseTable

_FORMAT: Final = "penstock lease backup 1"
_ATTEMPTS: Final = 5


def apply_reset(table: LeaseTable, leases: tuple[Lease, ...], plan: ResetPlan) -> int:
    """Write a reset; return the number of leases written or removed.

    Raises:
        PenstockError: A lease kept changing under the reset: a worker is alive.
    """
    rows = {lease.key: lease for lease in leases}
    # Creations first: a child's lease must never be seen without its parent's.
    for lease in plan.created_leases:
        table.write(Create(lease))
    for key, position in plan.targets.items():
        _write_with_retries(table, rows[key], lambda row, to=position: Reset(row.key, row.counter, to))
    for key in plan.removed_keys:
        _write_with_retries(table, rows[key], lambda row: Delete(row.key, row.counter, row.checkpoint))
    return len(plan.targets) + len(plan.created_leases) + len(plan.removed_keys)


def _write_with_retries(table: LeaseTable, row: Lease, make_write: Any) -> None:
    """Do the write that `make_write` returns for a row. If the row has changed, fetch it and try again; if it is missing, do nothing."""
    for _ in range(_ATTEMPTS):
        write: LeaseWrite = make_write(row)
        outcome = table.write(write)
        is_missing = isinstance(outcome, Refused) and outcome.reason is Refusal.MISSING
        if is_missing or isinstance(outcome, Applied):
            return
        current_row = table.fetch(row.key)
        if current_row is None:
            return
        row = current_row
    raise PenstockError(
        f"lease {row.key} of table {table.name} keeps changing: worker {row.owner} is alive. Stop it; "
        "--restore with the backup file undoes the writes so far"
    )


# --- the backup file ------------------------------------------------------------------------------------


def write_backup(path: Path, table_name: str, written_at: str, leases: Sequence[Lease]) -> None:
    """Write every lease to a new file, with the time of day as text.

    Raises:
        OptionError: The file exists, or cannot be written.
    """
    document = {
        "format": _FORMAT,
        "table": table_name,
        "written": written_at,
        "leases": [_lease_document(lease) for lease in leases],
    }
    try:
        with path.open("x", encoding="utf-8") as file:
            json.dump(document, file, indent=1)
            file.write("\n")
    except FileExistsError as error:
        raise OptionError(f"backup file {path} exists: give another one with --backup") from error
    except OSError as error:
        raise OptionError(
            f"backup file {path} cannot be written, so nothing is reset: {error}; give another one with --backup"
        ) from error


def read_backup(path: Path, table_name: str | None) -> tuple[Lease, ...]:
    """Read a backup.

    Args:
        table_name: The table that the file must be a backup of; None accepts a backup of any table.

    Raises:
        OptionError: The file is not a backup, or a backup of another table.
        OSError: The file cannot be read.
    """
    try:
        document = json.loads(path.read_text(encoding="utf-8-sig"))
        if document.get("format") != _FORMAT:
            raise OptionError(f"{path} is not a backup of a lease table")
        if table_name not in (None, document["table"]):
            raise OptionError(
                f"{path} is a backup of table {document['table']}, not of {table_name}, which has leases of its own"
            )
        return tuple(_parse_lease(entry) for entry in document["leases"])
    except (ValueError, KeyError, AttributeError, TypeError) as error:
        if isinstance(error, OptionError):
            raise
        raise OptionError(f"{path} is not a backup of a lease table: {error}") from error


def _lease_document(lease: Lease) -> dict[str, Any]:
    checkpoint, hash_range = lease.checkpoint, lease.hash_range
    sentinel = None if checkpoint.sentinel is None else checkpoint.sentinel.value
    return {
        "key": lease.key,
        "counter": lease.counter,
        "owner": lease.owner,
        "checkpoint": sentinel if checkpoint.sequence_number is None else checkpoint.sequence_number,
        "sub_sequence_number": checkpoint.sub_sequence_number,
        "timestamp_ms": checkpoint.timestamp_ms,
        "parents": sorted(lease.parents),
        "children": sorted(lease.children),
        "hash_range": None if hash_range is None else [str(hash_range.start), str(hash_range.end)],
        "pending_state": None
        if lease.pending_checkpoint_state is None
        else base64.b64encode(lease.pending_checkpoint_state).decode(),
    }


def _parse_lease(entry: dict[str, Any]) -> Lease:
    bounds = entry["hash_range"]
    return Lease(
        key=entry["key"],
        checkpoint=parse_checkpoint(entry["checkpoint"], entry["sub_sequence_number"], entry["timestamp_ms"]),
        parents=frozenset(entry["parents"]),
        children=frozenset(entry["children"]),
        hash_range=None if bounds is None else HashRange(int(bounds[0]), int(bounds[1])),
    )
