"""`format("kinesis")`: the data source that Spark finds, and its readers and writers."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, MutableMapping
from typing import TYPE_CHECKING, Final, TypeVar

from pyspark.sql.datasource import DataSource

from penstock.spark.engine import check_version
from penstock.spark.options.several_streams import check_read, names_several, parse_several_batch
from penstock.spark.options.spark_options import parse_batch, parse_sink
from penstock.spark.schema import SCHEMA_DDL, check_schema
from penstock.spark.spark_errors import with_plain_errors

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

    from penstock.spark.batch import KinesisBatchReader
    from penstock.spark.options.spark_options import SinkOptions
    from penstock.spark.sink.writers import KinesisBatchWriter, KinesisStreamWriter
    from penstock.spark.stream_reader import KinesisStreamReader

_log: Final = logging.getLogger("penstock.spark")
_Options = TypeVar("_Options")


class KinesisDataSource(DataSource):
    """Amazon Kinesis Data Streams as a streaming source, a batch source and a sink.

    Spark makes one per query and sends it to other processes, so it holds only the options' texts. They are checked when
    Spark requests a reader or a writer.
    """

    def __init__(self, options: MutableMapping[str, str]) -> None:
        # A plain dictionary travels between processes whatever class Spark hands in.
        self.options: dict[str, str] = dict(options.items())

    def __repr__(self) -> str:
        """Show the names of the options that are set, never their values: some are secret."""
        return f"KinesisDataSource({', '.join(sorted(self.options))})"

    @classmethod
    def name(cls) -> str:
        """Return the format's name."""
        return "kinesis"

    @with_plain_errors
    def schema(self) -> str:
        """Return the schema of the rows; a wrong option is reported here, at `load()`."""
        check_read(self._own_options())
        return SCHEMA_DDL

    @with_plain_errors
    def reader(self, schema: StructType) -> KinesisBatchReader:
        """Return the batch reader."""
        from penstock.spark.batch import KinesisBatchReader

        check_schema(schema.simpleString())
        if names_several(self.options):
            return KinesisBatchReader(*self._parsed(parse_several_batch))
        return KinesisBatchReader(self._parsed(parse_batch))

    @with_plain_errors
    def streamReader(self, schema: StructType) -> KinesisStreamReader:  # noqa: N802 - Spark's signature
        """Return the streaming reader."""
        from penstock.spark.batch_planning import batch_source_of
        from penstock.spark.stream_reader import KinesisStreamReader

        check_schema(schema.simpleString())
        return KinesisStreamReader(self._parsed(batch_source_of))

    @with_plain_errors
    def writer(self, schema: StructType, overwrite: bool) -> KinesisBatchWriter:
        """Return the batch writer."""
        from penstock.spark.sink.writers import KinesisBatchWriter

        return KinesisBatchWriter(*self._sink_of(schema, overwrite))

    @with_plain_errors
    def streamWriter(self, schema: StructType, overwrite: bool) -> KinesisStreamWriter:  # noqa: N802 - Spark's name
        """Return the streaming writer."""
        from penstock.spark.sink.writers import KinesisStreamWriter

        return KinesisStreamWriter(*self._sink_of(schema, overwrite))

    def _sink_of(self, schema: StructType, overwrite: bool) -> tuple[SinkOptions, tuple[str, ...]]:
        from penstock.spark.sink.columns import check_columns

        options = self._parsed(parse_sink)
        return options, check_columns(schema, options, overwrite=overwrite)

    def _own_options(self) -> Mapping[str, str]:
        check_version()
        return self.options

    def _parsed(self, parse: Callable[[Mapping[str, str]], tuple[_Options, tuple[str, ...]]]) -> _Options:
        options, notes = parse(self._own_options())
        for note in notes:
            _log.warning(note)
        return options
