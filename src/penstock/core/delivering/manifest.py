"""The manifest of a batch: the files that it adds to a table, decided before the first of them appears there.

A batch is staged beside the table, its manifest is written in one step, and then its files are moved. Until there is a
manifest, nothing of the batch is in the table and it is staged again. As soon as there is one, every later attempt moves the
files that are left. So a batch is in the table once, whatever its attempts were.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from enum import Enum
from typing import Final

import msgspec
from msgspec import Struct

from penstock.errors import DeliveryFailed

VERSION: Final = 1


class Move(Struct, frozen=True):
    """One file of a batch.

    Args:
        source: Path of the staged file.
        target: Path of the file in the table.
    """

    source: str
    target: str
    size_bytes: int


class Identity(Struct, frozen=True):
    """Identifies the records of a batch; compared when the batch runs again.

    It has only minima and maxima, because Spark may count the rows of a repeated task twice.

    Args:
        first: Smallest sequence number; None for an empty batch.
        last: Largest sequence number.
        hash_min: Smallest hash of a record's position.
        hash_max: Largest hash of a record's position.
    """

    first: str | None
    last: str | None
    hash_min: int | None
    hash_max: int | None


class Manifest(Struct, frozen=True, kw_only=True):
    """The files of one batch.

    Args:
        delivery: Name of the delivery.
        batch: Label of the batch.
        row_count: Rows in the table's files, as Spark counted them.
        dead_count: Dead letters, as Spark counted them.
        removes: Files that are removed after the moves.
        rows: Folder of the staged rows, if the table has transactions of its own or is a stream.
        state_before: State of the table before the batch, as its target describes it.
        staged_count: Files in the folder of staged rows.
    """

    delivery: str
    batch: str
    identity: Identity
    row_count: int
    dead_count: int
    moves: tuple[Move, ...]
    removes: tuple[str, ...] = ()
    rows: str | None = None
    state_before: str | None = msgspec.field(default=None, name="before")
    staged_count: int = 0
    version: int = VERSION

    def to_json(self) -> bytes:
        """Return the manifest as JSON."""
        return msgspec.json.encode(self)


def parse_manifest(text: bytes, place: str) -> Manifest:
    """Parse a manifest.

    Args:
        place: Its path, for the message.

    Raises:
        DeliveryFailed: It is not a manifest, or one of a later version.
    """
    try:
        manifest = msgspec.json.decode(text, type=Manifest)
    except msgspec.DecodeError as error:
        raise DeliveryFailed(f"{place} is not a manifest of a batch: {error}") from error
    if manifest.version != VERSION:
        raise DeliveryFailed(f"{place} is of version {manifest.version}; this Penstock reads {VERSION}")
    return manifest


class Step(Enum):
    """The next step for one file of a manifest."""

    MOVE = "move"
    DROP_SOURCE = "drop the staged copy"
    DONE = "done"
    LOST = "lost"
    FOREIGN = "another file has the name"


def next_step(move: Move, source_bytes: int | None, target_bytes: int | None) -> Step:
    """Return the next step for a file.

    Args:
        source_bytes: Size of the staged file; None if there is none.
        target_bytes: Size of the file in its place; None if there is none.
    """
    if target_bytes is not None and target_bytes != move.size_bytes:
        return Step.FOREIGN
    if source_bytes is None:
        return Step.LOST if target_bytes is None else Step.DONE
    return Step.MOVE if target_bytes is None else Step.DROP_SOURCE


def batch_label(batch_id: int) -> str:
    """Return the label of one of the query's batches; labels sort like the numbers."""
    return f"{batch_id:09d}"


def range_label(since_ms: int, until_ms: int) -> str:
    """Return the label of a backfill."""
    return f"range.{since_ms}.{until_ms}"


def redelivery_label(number: int) -> str:
    """Return the label of a redelivery of dead letters."""
    return f"redelivery.{number:06d}"


def next_redelivery_number(labels: Iterable[str]) -> int:
    """Return the number after the last redelivery's."""
    numbers = [int(label.rpartition(".")[2]) for label in labels if label.startswith("redelivery.")]
    return max(numbers, default=0) + 1


def file_name(delivery: str, label: str, number: int, ending: str) -> str:
    """Return the name of a file: by delivery, batch and number."""
    return f"part-{delivery}-{label}-{number:05d}.{ending}"


def plan_moves(
    delivery: str, label: str, staged: Iterable[tuple[str, int]], *, root: str, to: str, ending: str
) -> tuple[Move, ...]:
    """Return the moves of staged files into a folder; sub-folders are kept.

    Args:
        delivery: Name of the delivery.
        staged: Path and size of each file below `root`.
        root: The folder in which they were staged.
        to: The folder that gets them.
        ending: End of the new names, without a dot.
    """
    moves = []
    for number, (path, size_bytes) in enumerate(sorted(staged)):
        folder = path.removeprefix(f"{root}/").rpartition("/")[0]
        place = f"{to}/{folder}" if folder else to
        moves.append(Move(path, f"{place}/{file_name(delivery, label, number, ending)}", size_bytes))
    return tuple(moves)


class ArrivalRange(Struct, frozen=True):
    """The range of arrival times of a backfill.

    Args:
        until_ms: Its end, exclusive.
    """

    since_ms: int
    until_ms: int


def parse_range(label: str) -> ArrivalRange | None:
    """Return the range of a backfill's label; None for other labels."""
    words = label.split(".")
    if len(words) != 3 or words[0] != "range":
        return None
    return ArrivalRange(int(words[1]), int(words[2]))


def find_overlap(new_range: ArrivalRange, ranges: Sequence[ArrivalRange]) -> ArrivalRange | None:
    """Return a range that overlaps with the new one and is not equal to it; None if there is none."""
    for other in ranges:
        if other != new_range and other.since_ms < new_range.until_ms and new_range.since_ms < other.until_ms:
            return other
    return None
