"""A recording in progress: a folder with one Parquet file for each batch, and a document with options and finished shards.

Each batch is also written to the final file while the shards are read, so little is left to do at the end. A run that continues
an interrupted recording first copies the earlier parts to the final file, and then adds new batches.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import msgspec
from msgspec import Struct

from penstock.core.recording.metadata import (
    RecordedBatch,
    RecordedSlice,
    RecordedStream,
    RecordingMetadata,
)
from penstock.errors import DamagedRecording, OptionError
from penstock.recording.arrow import SCHEMA, pa, pq
from penstock.recording.writer import DICTIONARY_COLUMNS, RecordingWriter, describe_batch

PART_SUFFIX: Final = ".part"
_DOCUMENT: Final = "recording.json"
_BATCH_KEY: Final = "penstock.batch"
_RECORDING: Final = "recording.unfinished"
_FORMAT: Final = "penstock recording in progress 1"


class RecordingProgress(Struct, kw_only=True):
    """The JSON document in the folder of a recording in progress.

    Args:
        options: The options as the user typed them. Only a run with the same options may continue the recording.
        has_given_end: Whether the user gave the end of the slice. If not, the slice ends when the recording began.
        began_ms: When the recording began.
        secret: The secret with which redaction hashes values, in hexadecimal. It is removed with the folder.
        finished_shard_ids: Ids of the shards that are read to the end of the slice.
        dropped_count: Payloads that redaction dropped.
    """

    options: dict[str, Any] = msgspec.field(name="asked")
    stream: RecordedStream
    recorded: RecordedSlice
    has_given_end: bool = msgspec.field(name="has_end")
    began_ms: int
    secret: str
    finished_shard_ids: list[str] = msgspec.field(default_factory=list, name="done")
    dropped_count: int = 0
    format: str = _FORMAT


class PartFolder:
    """The folder of a recording in progress: adds parts, and finishes the recording. Thread-safe.

    Args:
        batches: The batch of each existing part, by the part's number. Within a shard, numbers follow the order of records.

    Raises:
        OptionError: Another process has locked the folder.
    """

    def __init__(self, path: Path, progress: RecordingProgress, batches: dict[int, RecordedBatch]) -> None:
        self.path = path
        self.progress = progress
        self.batches = batches
        self._folder = folder_of(path)
        self._lock = threading.Lock()
        self._number = max(batches, default=0)
        self._earlier_parts = tuple(sorted(batches))
        self._writer_lock = threading.Lock()
        self._writer: RecordingWriter | None = None
        self._folder_lock = os.open(self._folder, os.O_RDONLY)
        try:
            fcntl.flock(self._folder_lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            self.close()
            raise OptionError(
                f"another process records to {path}: wait for it, or choose another file"
            ) from error

    def close(self) -> None:
        """Remove the unfinished recording but not its parts, and unlock the folder for other processes."""
        try:
            if self._writer is not None:
                self._writer.close()
                (self._folder / _RECORDING).unlink(missing_ok=True)  # `remove_if_empty` may have removed it
                self._writer = None
        finally:
            os.close(self._folder_lock)

    def remove_if_empty(self) -> None:
        """Remove the folder if it has no part and no shard is finished."""
        if not self.batches and not self.progress.finished_shard_ids:
            shutil.rmtree(self._folder)

    def add(self, table: pa.Table) -> RecordedBatch:
        """Write consecutive records of one shard to a part and to the recording. A part exists whole or not at all."""
        batch = describe_batch(table)
        with self._lock:
            self._number += 1
            number = self._number
        part = self._folder / _part_name(number)
        unfinished = part.with_suffix(".unfinished")
        document = msgspec.json.encode(batch).decode()
        # Arrow refuses a path that is not UTF-8, so it gets the open file.
        with (
            unfinished.open("wb") as file,
            pq.ParquetWriter(
                file, SCHEMA, compression="lz4", use_dictionary=DICTIONARY_COLUMNS, write_statistics=False
            ) as writer,
        ):
            writer.write_table(table, row_group_size=table.num_rows)
            writer.add_key_value_metadata({_BATCH_KEY: document})
        unfinished.rename(part)
        with self._lock:
            self.batches[number] = batch
        with self._writer_lock:
            self._open_writer().add(table)
        return batch

    def on_shard_finished(self, shard_id: str) -> None:
        """Store that a shard is read to the end of the slice."""
        with self._lock:
            self.progress.finished_shard_ids.append(shard_id)
            _write_document(self._folder, self.progress)

    def on_payloads_dropped(self, count: int) -> None:
        """Count payloads that redaction dropped."""
        with self._lock:
            self.progress.dropped_count += count

    def finish(
        self,
        make_metadata: Callable[[tuple[RecordedBatch, ...]], RecordingMetadata],
        on_part: Callable[[int, int], None],
    ) -> RecordingMetadata:
        """Finish the recording, and remove the parts.

        Args:
            make_metadata: Returns the metadata for the batches.
            on_part: Called after each copied part of earlier runs, with the counts of copied parts and of all such parts.
        """
        with self._writer_lock:
            writer = self._open_writer(on_part)
            metadata = writer.finish(make_metadata)
            writer.close()
            self._writer = None
        (self._folder / _RECORDING).rename(self.path)
        shutil.rmtree(self._folder)
        return metadata

    def _open_writer(
        self, on_part: Callable[[int, int], None] = lambda _done, _count: None
    ) -> RecordingWriter:
        """Return the writer of the recording. The first call opens it and copies the parts of earlier runs to it."""
        if self._writer is None:
            self._writer = RecordingWriter(self._folder / _RECORDING)
            for done, number in enumerate(self._earlier_parts, 1):
                self._writer.add(_read_part(self._folder / _part_name(number)))
                on_part(done, len(self._earlier_parts))
        return self._writer


def folder_of(path: Path) -> Path:
    """Return the folder in which the recording to a file is in progress."""
    return path.with_name(path.name + PART_SUFFIX)


def create_parts(path: Path, progress: RecordingProgress) -> PartFolder:
    """Begin a recording: make its folder of parts.

    Raises:
        OptionError: The parent folder does not exist, or another process has just begun this recording.
    """
    folder = folder_of(path)
    try:
        folder.mkdir()
    except FileNotFoundError as error:
        raise OptionError(f"{path}: there is no folder {path.parent}") from error
    except FileExistsError as error:
        raise OptionError(f"{folder} exists: another process has begun a recording to {path}") from error
    _write_document(folder, progress)
    return PartFolder(path, progress, {})


def open_parts(path: Path) -> PartFolder | None:
    """Open the folder of the recording in progress to a file; return None if there is none.

    Raises:
        DamagedRecording: The folder is damaged.
    """
    folder = folder_of(path)
    if not folder.exists():
        return None
    document = folder / _DOCUMENT
    advice = f"remove {folder} to begin again"
    try:
        progress = msgspec.json.decode(document.read_bytes(), type=RecordingProgress)
    except (OSError, msgspec.MsgspecError) as error:
        raise DamagedRecording(f"{document} cannot be read: {error}; {advice}") from error
    if progress.format != _FORMAT:
        raise DamagedRecording(f"{document} is {progress.format!r}, not {_FORMAT!r}; {advice}")
    batches: dict[int, RecordedBatch] = {}
    for part in sorted(folder.glob("*.parquet")):
        try:
            with part.open("rb") as file:
                entries = pq.read_metadata(file).metadata or {}
            batches[int(part.stem)] = msgspec.json.decode(entries[_BATCH_KEY.encode()], type=RecordedBatch)
        except (OSError, KeyError, ValueError, pa.ArrowException, msgspec.MsgspecError) as error:
            raise DamagedRecording(f"{part} cannot be read: {error}; {advice}") from error
    return PartFolder(path, progress, batches)


def _part_name(number: int) -> str:
    return f"{number:06d}.parquet"


def _read_part(part: Path) -> pa.Table:
    try:
        with part.open("rb") as file:
            return pq.read_table(file, schema=SCHEMA).combine_chunks()
    except (OSError, pa.ArrowException) as error:
        raise DamagedRecording(f"{part} cannot be read: {error}; remove its folder to begin again") from error


def _write_document(folder: Path, progress: RecordingProgress) -> None:
    unfinished = folder / f"{_DOCUMENT}.unfinished"
    unfinished.write_bytes(msgspec.json.encode(progress))
    unfinished.replace(folder / _DOCUMENT)
