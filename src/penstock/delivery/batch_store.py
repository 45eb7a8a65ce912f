"""The folder beside a table: manifests of batches, staged files, dead letters; and the commit of a batch."""

from __future__ import annotations

import logging
import uuid
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Final

from penstock.core.delivering.definition import NEW_TABLE
from penstock.core.delivering.manifest import (
    ArrivalRange,
    Identity,
    Manifest,
    Move,
    Step,
    next_step,
    parse_manifest,
    parse_range,
)
from penstock.delivery.files import Files
from penstock.errors import AnotherDriver, DeliveryFailed, PenstockError

_log: Final = logging.getLogger("penstock.delivery")
_KEPT_BATCHES: Final = 100
"""Number of finished batches of the query whose manifests are kept, for people to read."""


class BatchStore:
    """The batches of one delivery.

    Args:
        files: The file system of the table.
        folder: The delivery's folder beside the table.
        commit_rows: Puts the staged rows of a manifest into a Delta or Iceberg table, or into a stream, once.
    """

    def __init__(
        self, files: Files, folder: str, commit_rows: Callable[[Manifest], None] = lambda _manifest: None
    ) -> None:
        self._files = files
        self._commit_rows = commit_rows
        self._folder = folder
        self._batches = f"{folder}/batches"
        self._staging = f"{folder}/staging"

    def new_staging(self, label: str) -> str:
        """Return the path of a new folder for one attempt of a batch. The folder does not exist yet."""
        return f"{self._staging}/{label}/{uuid.uuid4().hex}"

    def staged_files(self, folder: str, ending: str) -> list[tuple[str, int]]:
        """Return path and size of each file that Spark has written into a folder and whose name has the ending."""
        # Hadoop may return a path with another beginning: `hdfs:///x` as `hdfs://host/x`.
        own = folder.removeprefix(f"{self._staging}/")
        return [
            (f"{folder}{path.partition(own)[2]}", size)
            for path, size in self._files.walk(folder)
            if path.endswith(ending) and not path.rpartition("/")[2].startswith((".", "_"))
        ]

    def read(self, label: str) -> Manifest | None:
        """Return a batch's manifest; None if nothing of the batch is in the table."""
        path = self._manifest_path(label)
        text = self._files.read(path)
        return None if text is None else parse_manifest(text, path)

    def is_done(self, label: str) -> bool:
        """Return whether a batch was finished: everything in its manifest was done."""
        return self._files.size(self._done_path(label)) is not None

    def is_empty(self) -> bool:
        """Return whether no batch was ever delivered."""
        return not any(True for _ in self._files.walk(self._batches))

    def has_rows(self) -> bool:
        """Return whether a finished batch has put rows into the target by `commit_rows`."""
        batches = ((label, self.read(label)) for label in reversed(self.labels()))
        return any(
            found is not None and found.rows is not None and self.is_done(label) for label, found in batches
        )

    def labels(self) -> list[str]:
        """Return the labels of the batches that have a manifest, in order."""
        names = (path.rpartition("/")[2] for path, _ in self._files.walk(self._batches))
        return sorted(name.removesuffix(".json") for name in names if name.endswith(".json"))

    def backfill_ranges(self) -> list[ArrivalRange]:
        """Return the ranges of the backfills that have a manifest."""
        return [found for label in self.labels() if (found := parse_range(label)) is not None]

    def commit(self, manifest: Manifest) -> Manifest:
        """Make a staged batch part of the table, once.

        Returns:
            The manifest that was committed: that of an earlier attempt, if there is one.

        Raises:
            AnotherDriver: Another attempt of the batch had other records.
            DeliveryFailed: A staged file has gone, or a name is taken by another file.
        """
        if not self._files.create(self._manifest_path(manifest.batch), manifest.to_json()):
            first = self.read(manifest.batch)
            if first is None:
                raise AnotherDriver(
                    f"batch {manifest.batch}: its manifest was created and removed by another driver"
                )
            self.check_same_records(first, manifest.identity)
            manifest = first
        self.finish(manifest)
        return manifest

    def finish(self, manifest: Manifest) -> None:
        """Put the rows of a committed batch into the table, move its remaining files, and mark it as done."""
        if not self.is_done(manifest.batch):
            if manifest.rows is not None:
                with self.detect_another_driver(manifest.batch):
                    self._commit_rows(manifest)
            for move in manifest.moves:
                self._finish_move(manifest.batch, move)
            for path in manifest.removes:
                self._files.remove(path)
            self._files.replace(self._done_path(manifest.batch), b"")
        self._files.remove(f"{self._staging}/{manifest.batch}")

    @contextmanager
    def detect_another_driver(self, label: str) -> Iterator[None]:
        """Raise AnotherDriver if the block fails because another driver has finished the batch, and so removed its staged rows."""
        try:
            yield
        except PenstockError:
            raise
        except Exception as error:
            if not self.is_done(label):
                raise
            raise AnotherDriver(
                f"batch {label} of {self._folder}: another driver has finished it while this one was at it: two drivers run, or this one "
                "was paused while its successor went on. Make sure that one at a time runs"
            ) from error

    def _finish_move(self, batch: str, move: Move) -> None:
        """Move a file, unless an earlier attempt or another driver has moved it."""
        match next_step(move, self._files.size(move.source), self._files.size(move.target)):
            case Step.MOVE:
                self._move(move.source, move.target)
            case Step.DROP_SOURCE:
                self._files.remove(move.source)
            case Step.LOST:
                # Another driver may have finished the batch since, and its rows may have been removed from the table.
                if not self.is_done(batch):
                    raise DeliveryFailed(
                        f"batch {batch}: {move.source} has gone before it was moved to {move.target}"
                    )
            case Step.FOREIGN:
                raise DeliveryFailed(f"batch {batch}: {move.target} is there already, with another size")
            case Step.DONE:
                pass

    def check_same_records(self, manifest: Manifest, identity: Identity) -> None:
        """Raise AnotherDriver if a batch in the table has other records than this attempt of it."""
        if manifest.identity != identity:
            raise AnotherDriver(
                f"batch {manifest.batch} of {self._folder} is in the table already, with other records (sequence numbers "
                f"{manifest.identity.first} to {manifest.identity.last}; now {identity.first} to {identity.last}): the checkpoint "
                f"location was replaced or restored, or another program uses it; {NEW_TABLE}"
            )

    def remove_old_manifest(self, current: int) -> None:
        """Remove the manifest of the query's batch that is `_KEPT_BATCHES` before the current one, if that batch is done."""
        label = f"{current - _KEPT_BATCHES:09d}"
        if current >= _KEPT_BATCHES and self.is_done(label):
            self._files.remove(self._manifest_path(label))
            self._files.remove(self._done_path(label))

    def unfinished_manifests(self) -> Iterable[Manifest]:
        """Return the manifests of committed batches that are not done."""
        for label in self.labels():
            manifest = None if self.is_done(label) else self.read(label)
            if manifest is not None:
                yield manifest

    def _move(self, source: str, target: str) -> None:
        try:
            self._files.rename(source, target)
        except OSError:
            # A second driver may have moved the file after this driver read the sizes.
            if self._files.size(target) is None:
                raise
            _log.warning("%s was moved by another program", target)

    def _manifest_path(self, label: str) -> str:
        return f"{self._batches}/{label}.json"

    def _done_path(self, label: str) -> str:
        return f"{self._batches}/{label}.done"
