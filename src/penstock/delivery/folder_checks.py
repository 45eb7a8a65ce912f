"""Checks of a delivery's folders before the first write: they belong to this delivery, and can be written."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from pyspark.sql import SparkSession

from penstock.core.delivering.definition import FILE_FORMATS, NEW_TABLE, Delivery
from penstock.core.delivering.lake_table import describe_lost_table
from penstock.core.delivering.manifest import ArrivalRange
from penstock.core.delivering.record import DeliveryRecord, check_other_delivery, has_files_of, parse_record
from penstock.core.starting import StartingPosition
from penstock.delivery.batch_store import BatchStore
from penstock.delivery.files import Files, open_files
from penstock.delivery.run_lock import REDELIVERY
from penstock.delivery.targets.delta import has_log
from penstock.errors import DeliveryFailed, OptionError

_PROBE: Final = ".penstock-probe"


def check_table_folder(delivery: Delivery, store: BatchStore) -> None:
    """Raise DeliveryFailed if the table's folder on this machine was renamed or removed since the last batch. Called before each batch."""
    is_local = delivery.is_folder and delivery.to.startswith("/")
    if is_local and not Path(delivery.to).exists() and not store.is_empty():
        raise DeliveryFailed(describe_lost_table(f"the folder {delivery.to}", delivery))


def check_first_run(
    spark: SparkSession, files: Files, delivery: Delivery, store: BatchStore, kind: str
) -> None:
    """Check the table of a first run, and that the run is no redelivery.

    Raises:
        DeliveryFailed: The table is another delivery's, or the run is a redelivery.
        OptionError: The folder of a Delta table has files and no table.
    """
    if kind == REDELIVERY:
        raise DeliveryFailed(
            f"delivery {delivery.name} into {delivery.to} has not run: there are no dead letters"
        )
    table_files = open_files(spark, delivery.to) if delivery.is_folder else files
    _refuse_unrecorded_files(table_files, delivery, store)
    if delivery.format == "delta" and delivery.is_folder:
        _refuse_files_without_log(table_files, delivery.to)


def _refuse_unrecorded_files(files: Files, delivery: Delivery, store: BatchStore) -> None:
    if delivery.is_folder and delivery.to.startswith("/") and Path(delivery.to).is_file():
        raise DeliveryFailed(f"to={delivery.to} is a file; a table is a folder")
    is_plain = delivery.format in FILE_FORMATS
    try:
        # The table may be a mount point, whose `lost+found` only root may read.
        found = files.walk(delivery.to, skips_unreadable=True) if is_plain else ()
        names = [path.rpartition("/")[2] for path, _ in found]
    except OSError as error:
        raise DeliveryFailed(f"{delivery.to} cannot be read: {error}") from error
    if has_files_of(delivery.name, names) or not store.is_empty():
        raise DeliveryFailed(
            f"{delivery.to} has files of a delivery {delivery.name} whose record is not in {delivery.state}: restore that folder, "
            f"or {NEW_TABLE}"
        )


def _refuse_files_without_log(files: Files, folder: str) -> None:
    """Raise OptionError if a folder has files and no Delta table. A later run may find data files of a creation that was killed."""
    if has_log(files, folder):
        return
    paths = (path for path, _ in files.walk(folder, skips_unreadable=True))
    other = next((path for path in paths if not path.rpartition("/")[2].startswith(".")), None)
    if other is not None:
        raise OptionError(
            f"to={folder} is not a Delta table and has files, such as {other}: name another folder"
        )


def check_other_names(
    files: Files, delivery: Delivery, record: DeliveryRecord, begin: StartingPosition | ArrivalRange
) -> None:
    """Raise DeliveryFailed if another delivery, whose state is beside this one's, has put the run's records into the table.

    Args:
        record: The record of this run.
        begin: Where this run's query starts, or the range of its backfill.
    """
    folder = delivery.state.rpartition("/")[0]
    for name, other in _delivery_records_in(files, folder):
        if name != delivery.name:
            check_other_delivery(delivery, record, (name, other), begin)


def _delivery_records_in(files: Files, folder: str) -> Iterator[tuple[str, DeliveryRecord]]:
    """Yield the name and the record of each delivery whose state is in a folder."""
    for name in files.folders(folder):
        path = f"{folder}/{name}/delivery.json"
        try:
            text = files.read(path)
        except PermissionError:  # another user's folder, such as `lost+found`
            continue
        if text is not None:
            yield name, parse_record(text, path)


def check_checkpoint(
    files: Files, delivery: Delivery, record: DeliveryRecord, store: BatchStore, *, is_first: bool
) -> None:
    """Raise DeliveryFailed if a checkpoint location is not the delivery's, has gone, is broken, or is older than the table.

    With an older checkpoint the query would plan batches again, with other records under numbers that the table already has. Only the
    manifests of the last batches show that.
    """
    location = delivery.checkpoint_location
    text = files.read(f"{location}/metadata")
    try:
        found = None if text is None else str(json.loads(text).get("id"))
    except ValueError as error:
        raise DeliveryFailed(f"checkpoint {location}: the file metadata is broken: {error}") from error
    if is_first and found is not None:
        raise DeliveryFailed(f"checkpoint {location} is that of another query")
    if record.query_id is not None and found != record.query_id:
        raise DeliveryFailed(
            f"checkpoint {location} "
            f"{'has gone' if found is None else f'is not that of delivery {delivery.name} into {delivery.to}'}: restore it, or "
            f"{NEW_TABLE}"
        )
    names = (path.rpartition("/")[2] for path, _ in files.walk(f"{location}/offsets"))
    planned = max((int(name) for name in names if name.isdecimal()), default=-1)
    delivered = max((int(label) for label in store.labels() if label.isdecimal()), default=-1)
    if planned < delivered:
        raise DeliveryFailed(
            f"checkpoint {location} {f'ends with batch {planned}' if planned >= 0 else 'has no batch'}, and {delivery.to} has batch {delivered} "
            f"of delivery {delivery.name}: it was restored from an earlier copy, or its files were removed; put its newest state back, or "
            f"{NEW_TABLE}"
        )


def check_writable(files: Files, folder: str) -> None:
    """Raise DeliveryFailed if a folder cannot be written."""
    path = f"{folder}/{_PROBE}"
    try:
        files.replace(path, b"")
        files.remove(path)
    except OSError as error:
        raise DeliveryFailed(f"{folder} cannot be written: {error}") from error
