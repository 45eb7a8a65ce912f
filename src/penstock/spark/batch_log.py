"""The checkpoint of micro-batches that the user's program drives: the planned and the committed batches.

Its files are in any location that Spark can write (local, HDFS, S3, ...), through Hadoop's file systems in Spark's JVM. A
file appears whole or not at all, and is never replaced: a second program on the same checkpoint fails at the first batch
that both plan.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from penstock.errors import UsageError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_FOLDER: Final = "penstock-batches"
_FORMAT: Final = 1
_KEPT_COUNT: Final = 100


class BatchLog:
    """The planned and the finished batches of one checkpoint.

    Args:
        location: Path or URI, as Spark takes it.

    Raises:
        UsageError: It is the checkpoint of a streaming query, or of a later version.
    """

    def __init__(self, spark: SparkSession, location: str) -> None:
        try:
            self._jvm: Any = spark._jvm  # noqa: SLF001 - Spark offers no other way to its file systems
            self._conf: Any = spark._jsc.hadoopConfiguration()  # noqa: SLF001
            self._gateway: Any = spark.sparkContext._gateway  # noqa: SLF001
        except AttributeError:
            raise UsageError(
                "micro_batches keeps its checkpoint through the driver's JVM, which Spark Connect does not reach: use a "
                "classic session"
            ) from None
        self.location = location
        self._root = self._path(location)
        self._system = self._root.getFileSystem(self._conf)
        if self._system.exists(self._path(f"{location}/offsets")):
            raise UsageError(
                f"checkpoint {location} belongs to a streaming query: give micro_batches a location of its own"
            )
        found = self._read_file("format")
        if found is None:
            self._create_file("format", {"v": _FORMAT})
        elif found.get("v") != _FORMAT:
            raise UsageError(
                f"checkpoint {location} has format {found.get('v')!r}, and this version of Penstock reads {_FORMAT}"
            )

    def read_offset(self, number: int) -> Mapping[str, Any] | None:
        """Return the offset of a planned batch; None if its file is not there."""
        return self._read_file(f"offsets/{number}")

    def last_number(self) -> int | None:
        """Return the number of the last planned batch; None before the first."""
        return max(self._numbers("offsets"), default=None)

    def is_committed(self, number: int) -> bool:
        """Return whether a batch is done."""
        return self._exists(f"commits/{number}")

    def add_plan(self, number: int, offset: Mapping[str, Any]) -> None:
        """Write a batch's offset, before it runs.

        Raises:
            UsageError: Another program has planned this batch.
        """
        self._create_file(f"offsets/{number}", offset)

    def commit(self, number: int) -> None:
        """Commit a batch, and delete the files of long past ones."""
        self._create_file(f"commits/{number}", {})
        for folder in ("offsets", "commits"):
            for old in self._numbers(folder):
                if old <= number - _KEPT_COUNT:
                    self._system.delete(self._file(f"{folder}/{old}"), False)

    # --- files ----------------------------------------------------------------------------------------------

    def _path(self, text: str) -> Any:
        return self._jvm.org.apache.hadoop.fs.Path(text)

    def _file(self, name: str) -> Any:
        return self._path(f"{self.location}/{_FOLDER}/{name}")

    def _exists(self, name: str) -> bool:
        return bool(self._system.exists(self._file(name)))

    def _numbers(self, folder: str) -> list[int]:
        if not self._exists(folder):
            return []
        names = (str(status.getPath().getName()) for status in self._system.listStatus(self._file(folder)))
        return [int(name) for name in names if name.isdecimal()]

    def _read_file(self, name: str) -> Mapping[str, Any] | None:
        if not self._exists(name):
            return None
        stream = self._system.open(self._file(name))
        try:
            text = bytes(self._jvm.org.apache.commons.io.IOUtils.toByteArray(stream))
        finally:
            stream.close()
        found: Mapping[str, Any] = json.loads(text)
        return found

    def _create_file(self, name: str, content: Mapping[str, Any]) -> None:
        final = self._file(name)
        draft = self._path(f"{final.getParent()}/.{final.getName()}.{uuid.uuid4().hex}.draft")
        stream = self._system.create(draft, False)
        try:
            stream.write(bytearray(json.dumps(content, sort_keys=True).encode()))
            stream.hsync()
        finally:
            stream.close()
        # One atomic step that refuses an existing name, if the file system has one.
        files = self._jvm.org.apache.hadoop.fs
        context = files.FileContext.getFileContext(self._root.toUri(), self._conf)
        no_options = self._gateway.new_array(files.Options.Rename, 0)
        try:
            context.rename(draft, final, no_options)
        except Exception as error:
            self._system.delete(draft, False)
            if self._system.exists(final):
                raise UsageError(
                    f"checkpoint {self.location}: {name} exists already: another program works from the same checkpoint. Stop one "
                    "of the two"
                ) from error
            raise
