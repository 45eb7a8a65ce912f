"""Dead letters, `onError=deadLetter`: rows that the service can never accept go to a folder or to another stream.

Such a row (too large, with a bad key, without data) would fail its task however often Spark repeats it. Errors of the
service make no dead letters: they fail the task, which Spark repeats.

In a folder, each task writes one file of JSON lines, named by query, batch, write and partition: a repeated task
replaces its earlier file, and the writes of one `foreachBatch` have files of their own. When a restarted query repeats a
batch in `foreachBatch`, that is another write; its letters are there twice, as its records are. Each line holds all
that is needed to put the record by hand: `{"stream", "partitionKey", "explicitHashKey", "data" (base64), "row",
"reason"}`. A key that is not UTF-8 text is shown with escapes, and its bytes follow as `"partitionKeyBytes"` or
`"explicitHashKeyBytes"` (base64). In a stream, the same JSON is the data of a record.
"""

from __future__ import annotations

import base64
import json
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from typing import IO, Final

from penstock.errors import DeliveryFailed, PenstockError, RecordError, ServiceError
from penstock.producer.task_writer import TaskMemory, TaskWriter, TaskWriterOptions
from penstock.spark.options.spark_options import SinkOptions
from penstock.spark.sink.ports import SinkPorts
from penstock.spark.sink.values import Text

_KEY_CHARACTERS_MAX: Final = 256
_SPOOL_BYTES: Final = 2**20
"""Beyond this size, letters are kept on disk until the end of their task."""


class DeadLetters:
    """Collects and writes the dead letters of one task. All are written when `finish` has returned.

    Args:
        options: The sink's options, with a folder or a stream for dead letters.
        memory: The task's memory, for letters to another stream.
    """

    def __init__(self, options: SinkOptions, ports: SinkPorts, memory: TaskMemory) -> None:
        self._options = options
        self._ports = ports
        self._memory = memory
        self._lines: IO[bytes] | None = None
        self._writer: TaskWriter | None = None
        self.count = 0

    def add(
        self, stream: str | None, row_number: int, row: tuple[bytes | None, Text, Text], reason: str
    ) -> None:
        """Add a row to the file of dead letters, or send it to the stream for them.

        Args:
            stream: The row's stream; None if the row has none.
            row_number: Index of the row in the task, from 0.
            row: Data, partition key, explicit hash key.
            reason: Why the service can never accept the row.

        Raises:
            RecordError: The stream for dead letters cannot accept the letter either.
        """
        data, key, hash_key = row
        letter = json.dumps(
            {
                "stream": stream,
                "partitionKey": _as_text(key),
                "explicitHashKey": _as_text(hash_key),
                "data": _base64(data),
                "row": row_number,
                "reason": reason,
                **({"partitionKeyBytes": _base64(key)} if isinstance(key, bytes) else {}),
                **({"explicitHashKeyBytes": _base64(hash_key)} if isinstance(hash_key, bytes) else {}),
            }
        )
        self.count += 1
        if self._options.dead_letter_path is not None:
            if self._lines is None:
                self._lines = tempfile.SpooledTemporaryFile(_SPOOL_BYTES)  # noqa: SIM115 - closed by `close`
            self._lines.write(letter.encode() + b"\n")
            return
        self._write_to_stream(letter, (_as_text(key) or "dead-letter")[:_KEY_CHARACTERS_MAX], row_number)

    def _write_to_stream(self, letter: str, key: str, row_number: int) -> None:
        target = self._options.dead_letter_stream or ""
        if self._writer is None:
            options = TaskWriterOptions(no_progress_deadline_s=self._options.write_deadline_s)
            self._writer = self._ports.open_writer(self._options.connection, target, options, self._memory)
        try:
            with self._naming_the_option():
                self._writer.write(letter.encode(), key)
        except RecordError as error:
            raise RecordError(
                f"row {row_number} of the task: its dead letter does not fit into stream {target} either ({error}); use "
                "option deadLetterPath, which takes every size"
            ) from None

    @contextmanager
    def _naming_the_option(self) -> Iterator[None]:
        # The writer's error names the dead-letter stream, and does not show that it is another stream than the query's.
        try:
            yield
        except (DeliveryFailed, ServiceError) as error:
            raise DeliveryFailed(
                f"option deadLetterStream={self._options.dead_letter_stream}: the dead letters cannot be written: {error}"
            ) from error

    def finish(self) -> None:
        """Write every letter that was added.

        Raises:
            PenstockError: The folder cannot be written.
            DeliveryFailed: The stream for dead letters did not accept them.
        """
        if self._writer is not None:
            with self._naming_the_option():
                self._writer.finish()
        if self._lines is not None:
            self._write_file(self._lines)

    def close(self) -> None:
        """Discard unwritten letters, after a failure."""
        if self._lines is not None:
            self._lines.close()

    def _write_file(self, lines: IO[bytes]) -> None:
        import pyarrow as pa

        folder = self._options.dead_letter_path or ""
        name = self._ports.name_letters()
        try:
            self._ports.open_folder(folder).replace(name, lines)
        except (OSError, pa.ArrowException) as error:
            raise PenstockError(
                f"option deadLetterPath={folder}: {self.count} dead letters cannot be written to {name}: {error}"
            ) from error


def _base64(value: bytes | None) -> str | None:
    return None if value is None else base64.b64encode(value).decode()


def _as_text(text: Text) -> str | None:
    return text.decode(errors="backslashreplace") if isinstance(text, bytes) else text


def letters_file_name(query: str | None, batch: str | None, write_id: str | None, partition: int) -> str:
    """Return the name of a task's file of dead letters, the same for each attempt of the task.

    Args:
        query: Spark's id of the streaming query; None in a batch job.
        batch: The query's number of the micro-batch.
        write_id: Id of the batch write; None in a streaming query's sink, which writes each of its batches once.
    """
    parts = [] if query is None else [f"{query}-batch-{batch}"]
    if write_id is not None:
        parts.append(write_id if query is None else f"write-{write_id}")
    return f"dead-letters-{'-'.join(parts)}-part-{partition:05d}.jsonl"
