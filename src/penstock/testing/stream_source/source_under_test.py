"""The interface through which the kit reaches a source; the source's author implements it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Hashable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

if TYPE_CHECKING:
    from pyspark.sql.datasource import DataSource
    from pyspark.sql.types import StructType


class SourceUnderTest(ABC):
    """A source, and a place of its own with no records yet. Each check takes a new one.

    Attributes:
        data_source: The class that Spark registers.
        schema: The schema that a query gives by `readStream.schema(...)`: a `StructType`, or DDL of plain types. None for the
            source's own. A source whose own schema is DDL with nested types needs a `StructType` here.
        visible_s: Seconds within which a reader must offer a record that was put.
        stop_s: Seconds within which threads and connections must end after `stop`.
    """

    data_source: type[DataSource]
    schema: StructType | str | None = None
    visible_s: float = 30.0
    stop_s: float = 10.0
    wrong_options: ClassVar[Mapping[str, str]] = {}
    """Names of options, each with a value that the source must refuse; tried one at a time."""

    @abstractmethod
    def options(self) -> Mapping[str, str]:
        """Return the options of a query that reads all records of this object's place; every call returns the same options."""

    @abstractmethod
    def put(self, count: int) -> Sequence[Hashable] | None:
        """Put `count` new records and return their ids; None if the source makes records by itself."""

    @abstractmethod
    def id_of(self, row: Mapping[str, Any]) -> Hashable:
        """Return the id of a record from its row, by column."""

    def limited(self, rows: int) -> Mapping[str, str] | None:
        """Return the options that limit a batch to this many rows, to be added; None if the source has no such option."""
        del rows
        return None

    def reshard(self) -> bool:
        """Change how the records are distributed (a split, a new file, a rebalance); return whether the source has such a thing."""
        return False

    def kill(self, reader: Any) -> None:  # noqa: B027 - most readers need nothing
        """End a reader's threads as the death of its process would: without `stop`, and without a message to the service."""
