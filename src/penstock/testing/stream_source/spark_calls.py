"""The calls that Spark's Python processes make on a data source, with its own serializer and conversion of rows.

Source:
    PySpark's `sql.worker.create_data_source`, `sql.worker.plan_data_source_read` and
    `sql.streaming.python_streaming_source_runner` (4.0.2 to 4.3.0).
"""

from __future__ import annotations

import inspect
import json
import re
from collections.abc import Generator, Iterator, Mapping
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Final

from penstock.testing.stream_source.outcomes import NotTried, PromiseBroken
from penstock.testing.stream_source.promises import JSON, PICKLING
from penstock.testing.stream_source.source_under_test import SourceUnderTest

if TYPE_CHECKING:
    from pyspark.sql.datasource import DataSource
    from pyspark.sql.types import StructType

__tracebackhide__ = True  # pytest shows the frames of the source, not those of the kit
Row = dict[str, Any]
_ROWS_PER_ARROW_BATCH: Final = 2  # Spark takes 10,000; few, so that an attempt can end in the middle
_DDL_COLUMN: Final = re.compile(
    r"\s*(`[^`]+`|\w+)\s*(?::|\s)\s*([a-z_]+(?:\(\s*\d+\s*(?:,\s*\d+\s*)?\))?)\s*(not null)?\s*",
    re.IGNORECASE,
)
_JSON_TYPES: Final = {
    "int": "integer",
    "bigint": "long",
    "smallint": "short",
    "tinyint": "byte",
    "real": "float",
    "timestamp_ltz": "timestamp",
}


def passes_start() -> bool:
    """Return whether this Spark calls `latestOffset` with a start and a limit (4.2 and later)."""
    return find_spec("pyspark.sql.streaming.datasource") is not None


def pickled(value: Any, what: str) -> bytes:
    """Return a value as Spark sends it; the error names it as `what`."""
    from pyspark.serializers import CPickleSerializer

    try:
        serializer: Any = CPickleSerializer()
        data: bytes = serializer.dumps(value)
        serializer.loads(data)
    except Exception as error:
        raise PromiseBroken(PICKLING, f"{what}: {type(error).__name__}: {error}") from error
    return data


def unpickled(data: bytes) -> Any:
    """Return the value that Spark receives."""
    from pyspark.serializers import CPickleSerializer

    serializer: Any = CPickleSerializer()
    return serializer.loads(data)


def offset_text(offset: Any) -> str:
    """Return an offset as Spark keeps it."""
    try:
        return json.dumps(offset)
    except (TypeError, ValueError) as error:
        raise PromiseBroken(JSON, f"{offset!r}: {type(error).__name__}: {error}") from error


def create_data_source(source: SourceUnderTest, options: Mapping[str, str]) -> tuple[bytes, StructType]:
    """Make the data source of a query; return it pickled, with the schema of its rows."""
    from pyspark.sql.datasource import CaseInsensitiveDict

    given = CaseInsensitiveDict()
    for name, value in options.items():
        given[name] = str(value)
    data_source = source.data_source(given)
    schema = source.schema if source.schema is not None else data_source.schema()
    return pickled(data_source, "the data source"), struct_of(schema)


def struct_of(schema: StructType | str) -> StructType:
    """Return a schema as a `StructType`: Spark's own parser of DDL needs a JVM.

    Raises:
        NotTried: The text has other than plain types.
    """
    from pyspark.sql.types import StructType

    if not isinstance(schema, str):
        return schema
    fields: list[dict[str, Any]] = []
    at = 0
    while at < len(schema):
        found = _DDL_COLUMN.match(schema, at)
        if found is None or schema[found.end() : found.end() + 1] not in {"", ","}:
            raise NotTried(
                f"the schema {schema!r} has other than plain types: give it as a StructType in `schema`"
            )
        name, kind, required = found.groups()
        kind = kind.lower().replace(" ", "")
        kind = {"decimal": "decimal(10,0)"}.get(kind, _JSON_TYPES.get(kind, kind))
        fields.append({"name": name.strip("`"), "type": kind, "nullable": not required, "metadata": {}})
        at = found.end() + 1
    return StructType.fromJson({"type": "struct", "fields": fields})


def stream_reader(data_source: bytes, schema: StructType) -> Any:
    """Return the reader that a new process of Spark makes; a simple reader is in Spark's own wrapper."""
    from pyspark.sql.datasource_internal import _streamReader

    return _streamReader(unpickled(data_source), schema)


class Driver:
    """The Python process beside Spark's driver: one reader and Spark's calls on it. Offsets are texts."""

    def __init__(self, data_source: bytes, schema: StructType) -> None:
        self.data_source = data_source
        self.schema = schema
        self.reader = stream_reader(data_source, schema)

    def initial(self) -> str:
        """Return the offset before the first batch."""
        return offset_text(self.reader.initialOffset())

    def latest(self, start: str, limit: Any = None) -> str:
        """Return the next offset. Without a limit the source's default one applies, as with a plain trigger."""
        if not passes_start() or not self.takes_limits():
            return offset_text(self.reader.latestOffset())
        if limit is None:
            limit = self.reader.getDefaultReadLimit()
        return offset_text(self.reader.latestOffset(json.loads(start), limit))

    def takes_limits(self) -> bool:
        """Return whether the reader takes the start of a batch and a limit."""
        return bool(inspect.signature(self.reader.latestOffset).parameters)

    def has_available_now(self) -> bool:
        """Return whether the reader takes part in AvailableNow."""
        if not passes_start():
            return False
        from pyspark.sql.streaming.datasource import SupportsTriggerAvailableNow

        return isinstance(self._own_reader(), SupportsTriggerAvailableNow)

    def prepare_available_now(self) -> None:
        """Make the reader fix the end of an AvailableNow query."""
        self._own_reader().prepareForTriggerAvailableNow()

    def _own_reader(self) -> Any:
        return getattr(self.reader, "simple_reader", self.reader)

    def tasks(self, start: str, end: str) -> list[Task]:
        """Return the batch's tasks."""
        begin, until = json.loads(start), json.loads(end)
        parts = self.reader.partitions(begin, until)
        fetched = self.reader.getCache(begin, until) if hasattr(self.reader, "getCache") else None
        if fetched is not None:
            # Spark takes the rows that a simple reader has fetched for its offset, and none of its partitions.
            return [FetchedTask(self.data_source, self.schema, list(fetched))]
        return [
            Task(self.data_source, self.schema, pickled(each, f"partition {number}"))
            for number, each in enumerate(parts)
        ]

    def commit(self, end: str) -> None:
        """Commit a batch at the source."""
        self.reader.commit(json.loads(end))

    def stop(self) -> None:
        """End the reader."""
        self.reader.stop()


class Task:
    """One partition of a batch; each attempt has a reader of its own."""

    def __init__(self, data_source: bytes, schema: StructType, partition: bytes) -> None:
        self.data_source = data_source
        self.schema = schema
        self.partition = partition

    def rows(self) -> Generator[Row]:
        """Begin an attempt and yield its rows."""
        from pyspark.sql.datasource import InputPartition

        reader = unpickled(pickled(stream_reader(self.data_source, self.schema), "the reader"))
        partition = unpickled(self.partition)
        if not isinstance(partition, InputPartition):
            raise PromiseBroken(
                PICKLING, f"a partition is a {type(partition).__name__}, and Spark takes an InputPartition"
            )
        found = reader.read(partition)
        if not isinstance(found, Iterator):
            raise TypeError(
                f"read returned a {type(found).__name__}, and Spark takes an iterator: write yield, or iter(...)"
            )
        yield from self.convert_rows(found)

    def convert_rows(self, found: Any) -> Iterator[Row]:
        """Yield rows as Spark converts them."""
        from pyspark.sql.worker.plan_data_source_read import records_to_arrow_batches

        source: DataSource = unpickled(self.data_source)
        for batch in records_to_arrow_batches(found, _ROWS_PER_ARROW_BATCH, self.schema, source):
            yield from batch.to_pylist()


class FetchedTask(Task):
    """The rows that a simple reader returned with their offset."""

    def __init__(self, data_source: bytes, schema: StructType, found: list[Any]) -> None:
        super().__init__(data_source, schema, b"")
        self.found = found

    def rows(self) -> Generator[Row]:
        """Yield the rows."""
        yield from self.convert_rows(iter(self.found))
