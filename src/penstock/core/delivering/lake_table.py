"""Tables with transactions of their own: changes of columns that a batch may make, and the search for a committed batch."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Final

from msgspec import Struct

from penstock.core.delivering.definition import NEW_TABLE, Delivery
from penstock.core.delivering.manifest import batch_label
from penstock.core.delivering.partitions import PartitionColumn
from penstock.errors import DeliveryFailed, OptionError

_UNFIT_CHARACTERS: Final = frozenset(" ,;{}()\n\t=.`")
"""Delta Lake refuses most of these in a column's name. Dots and backquotes are written differently in each SQL dialect."""
_WIDER: Final = {
    "tinyint": ("smallint", "int", "bigint"),
    "smallint": ("int", "bigint"),
    "int": ("bigint",),
    "float": ("double",),
}
_CONCURRENT: Final = (
    "Concurrent",
    "CONCURRENT",
    "METADATA_CHANGED",
    "PROTOCOL_CHANGED",
    "ALREADY_EXISTS",
    "AlreadyExists",
    "CommitFailedException",
)
"""Words in the errors of transactions that failed because another one was committed first."""
_UNREADABLE: Final = ("interval", "void", "variant", "geometry", "geography")
"""Types of a table's columns that no field of a JSON record can have."""


class TableColumn(Struct, frozen=True):
    """A column of a table.

    Args:
        name: As the table spells it.
        kind: Spark's simple type.
        is_required: Whether it is NOT NULL.
    """

    name: str
    kind: str
    is_required: bool = False


class TableChange(Struct, frozen=True):
    """Changes of a table's columns before a batch is written."""

    added_columns: tuple[TableColumn, ...] = ()
    widened_columns: tuple[TableColumn, ...] = ()


def is_wider(kind: str, other: str) -> bool:
    """Return whether the first type differs from the other one and can hold all its values."""
    return kind in _WIDER.get(other, ())


def may_try_again(error: str) -> bool:
    """Return whether a transaction failed only because another one changed the table first."""
    return any(word in error for word in _CONCURRENT)


def may_be_column_name(name: str) -> bool:
    """Return whether a column of a table with transactions may have the name."""
    return bool(name) and not _UNFIT_CHARACTERS & set(name)


def may_fill_column(kind: str) -> bool:
    """Return whether a field of a JSON record may fill a column of a type."""
    return not kind.startswith(_UNREADABLE)


def plan_change(
    table: str,
    row_columns: Iterable[TableColumn],
    table_columns: Sequence[TableColumn],
    *,
    way_to_widen: Callable[[], str | None],
) -> TableChange:
    """Plan the changes of a table's columns before rows are added.

    Args:
        way_to_widen: Returns how a user allows wider types in this table; None if they are allowed.

    Raises:
        OptionError: A column does not fit the table, or the table has a column that takes no null.
    """
    by_name = {each.name.lower(): each for each in table_columns}
    added, widened = [], []
    for each in row_columns:
        column = by_name.get(each.name.lower())
        if column is None:
            if not may_be_column_name(each.name):
                raise OptionError(
                    f"{table}: a column of this format cannot be named {each.name!r} (no blanks, dots, backquotes or any of ,;{{}}()=); "
                    "use format parquet, or leave the field out of the schema"
                )
            added.append(each)
        elif column.kind == each.kind or is_wider(column.kind, each.kind):
            continue
        elif not is_wider(each.kind, column.kind):
            raise OptionError(
                f"{table}: column {column.name} is {column.kind.upper()}, and {each.kind.upper()} does not fit into it: name it "
                f"`{column.name} {column.kind.upper()}` in the schema, or deliver into another table"
            )
        elif (way := way_to_widen()) is not None:
            raise OptionError(
                f"{table}: column {column.name} is {column.kind.upper()} and has to become {each.kind.upper()}: {way}"
            )
        else:
            widened.append(TableColumn(column.name, each.kind))
    required = [each.name for each in table_columns if each.is_required]
    if required:
        raise OptionError(
            f"{table}: column {', '.join(required)} takes no null, and a record may lack it: allow it with "
            f"ALTER TABLE … ALTER COLUMN {required[0]} DROP NOT NULL, or deliver into another table"
        )
    return TableChange(tuple(added), tuple(widened))


def check_partitions(table: str, partitions: Sequence[PartitionColumn], existing: Sequence[str]) -> None:
    """Refuse partition columns that an existing table does not have.

    Args:
        partitions: The delivery's partition columns.
        existing: Partition columns of the table, or its expressions.

    Raises:
        OptionError: The partition columns differ.
    """
    names = [each.name.lower() for each in partitions]
    if names and names != [each.lower() for each in existing]:
        shown = f"partitioned by {', '.join(existing)}" if existing else "not partitioned"
        raise OptionError(
            f"{table} is {shown}, not by {', '.join(each.name for each in partitions)}: leave out partition-by (a column `x` that the "
            "table needs may be filled by a field `x`), or deliver into another table"
        )


def check_computed(
    table: str, computed: Collection[str], *, columns: Collection[str], partitions: Sequence[PartitionColumn]
) -> None:
    """Refuse fields that would fill a column whose values the table computes.

    Args:
        computed: Names of these columns.
        columns: Columns that fields of the records fill.
        partitions: The delivery's partition columns. One with an expression may equal the table's.

    Raises:
        OptionError: There is such a field, in the schema or in a partition column.
    """
    names = {each.lower() for each in computed}
    wanted = {"the schema": columns, "partition-by": [each.name for each in partitions if each.is_plain]}
    for key, given in wanted.items():
        for name in given:
            if name.lower() in names:
                raise OptionError(f"{table} computes its column {name} itself: leave it out of {key}")


def owner_property(delivery: str) -> str:
    """Return the name of the table property that has the id of the delivery of this name."""
    return f"penstock.delivery.{delivery}"


def check_owner(table: str, delivery: Delivery, id_in_table: str | None, own_id: str | None) -> None:
    """Refuse a table with rows of another delivery of the same name, for instance of one whose state folder was lost.

    Args:
        id_in_table: None if no delivery of the name has written.
        own_id: None before the delivery's first run.

    Raises:
        DeliveryFailed: The ids differ.
    """
    if id_in_table is not None and id_in_table != own_id:
        raise DeliveryFailed(
            f"{table} has rows of a delivery {delivery.name} whose record is not in {delivery.state}: restore that folder, or "
            f"{NEW_TABLE}"
        )


def check_batches(delivery: Delivery, table_labels: Collection[str], state_labels: Collection[str]) -> None:
    """Refuse a state folder that is older than the table: other records would get the numbers of batches that the table has.

    Args:
        table_labels: Labels of the delivery's batches in the table, of the query's batches the newest one.
        state_labels: Labels of the batches that have a manifest. Old manifests of the query are removed, so an old batch may have none.

    Raises:
        DeliveryFailed: The table has a later batch of the query than the state, or another batch without a manifest.
    """
    newest = max((label for label in state_labels if label.isdecimal()), default="")
    missing = sorted(
        label for label in set(table_labels) - set(state_labels) if not (label.isdecimal() and label < newest)
    )
    if missing:
        raise DeliveryFailed(
            f"{delivery.to} has batch {missing[0]} of delivery {delivery.name}, and {delivery.state} does not have it: the folder was restored "
            f"from an earlier copy, or its files were removed; put its newest state back, or {NEW_TABLE}"
        )


def describe_lost_table(table: str, delivery: Delivery) -> str:
    """Return the error message of a delivery whose table was removed or renamed."""
    return (
        f"{table} has gone, and {delivery.state} has batches that were delivered into it: put it back, or remove {delivery.state} too to "
        "start over"
    )


def transaction_of(delivery_id: str, label: str) -> tuple[str, int]:
    """Return Delta Lake's application id and version for the transaction of a batch.

    The query's batches have ascending numbers, so they share one application id. Every other batch has an application id of its own.
    """
    return (
        (f"penstock/{delivery_id}", int(label))
        if label.isdecimal()
        else (f"penstock/{delivery_id}/{label}", 0)
    )


def batch_of(delivery_id: str, application: str, version: int) -> str | None:
    """Return the label of the newest batch that Delta Lake's application id and version stand for; None for another writer's id."""
    own, _, label = application.removeprefix("penstock/").partition("/")
    return (label or batch_label(version)) if own == delivery_id else None


class Snapshot(Struct, frozen=True):
    """A version of an Iceberg table.

    Args:
        parent: Id of the one before; None for the first.
        delivery: Id of the delivery that wrote it; None if another writer did.
        batch: Label of the batch.
    """

    id: int
    parent: int | None
    delivery: str | None = None
    batch: str | None = None


def history_of(snapshots: Collection[Snapshot], current: int | None) -> list[int]:
    """Return the ids of the current snapshot and its ancestors, newest first; those that a rollback left out are not among them."""
    parents = {each.id: each.parent for each in snapshots}
    found = []
    while current is not None and current in parents:
        found.append(current)
        current = parents[current]
    return found


def batches_in(snapshots: Collection[Snapshot], current: int | None, delivery_id: str) -> list[str]:
    """Return the labels of a delivery's batches in an Iceberg table; of the query's batches the newest one.

    Args:
        snapshots: Those that the table still has.
        current: The current one.
    """
    history = set(history_of(snapshots, current))
    found = {
        each.batch
        for each in snapshots
        if each.id in history and each.delivery == delivery_id and each.batch is not None
    }
    numbers = sorted(each for each in found if each.isdecimal())
    return [*sorted(found - set(numbers)), *numbers[-1:]]


def is_in_snapshots(
    snapshots: Collection[Snapshot], delivery_id: str, label: str, snapshot_before: int | None
) -> bool | None:
    """Return whether a batch was committed to an Iceberg table.

    Args:
        snapshots: Those that the table still has.
        snapshot_before: The table's snapshot before the first attempt; None if it had none.

    Returns:
        None if it is unknown: the snapshots since the first attempt are gone.
    """
    if any(each.delivery == delivery_id and each.batch == label for each in snapshots):
        return True
    if snapshot_before is not None:
        has_all_since = any(each.id == snapshot_before for each in snapshots)
    else:  # the table's first snapshot has no parent
        has_all_since = not snapshots or any(each.parent is None for each in snapshots)
    return False if has_all_since else None
