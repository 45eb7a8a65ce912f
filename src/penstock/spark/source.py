"""`format("kinesis")`: the data source that Spark finds, and its readers and writers."""

from __future__ import annotations

import logging
from collections.abc import Mapping, MutableMapping
from typing import TYPE_CHECKING, Final

from pyspark.sql.datasource import DataSource

from penstock.spark.engine import check_version
from penstock.spark.options.several_streams import (
    check_several,
    names_several,
    parse_several_batch,
    parse_several_source,
)
from penstock.spark.options.spark_options import check_read, parse_batch, parse_sink, parse_source
from penstock.spark.schema import SCHEMA_DDL, check_schema
from penstock.spark.spark_errors import explained

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

    from penstock.spark.batch import KinesisBatchReader
    from penstock.spark.sink.writers import KinesisBatchWriter, KinesisStreamWriter
    from penstock.spark.stream_reader import KinesisStreamReader
    from penstock.spark.streams.several_reader import SeveralStreamsReader

_log: Final = logging.getLogger("penstock.spark")


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

    @explained
    def schema(self) -> str:
        """Return the schema of the rows; a wrong option is reported here, at `load()`."""
        options = self._own_options()
        if names_several(options):
            check_several(options)
        else:
            check_read(options)
        return SCHEMA_DDL

    @explained
    def reader(self, schema: StructType) -> KinesisBatchReader:
        """Return the batch reader."""
        from penstock.spark.batch import KinesisBatchReader

        check_schema(schema.simpleString())
        if names_several(self.options):
            from penstock.spark.streams.several_batch import SeveralBatchReader

            several, notes = parse_several_batch(self._own_options())
            _log_notes(notes)
            return SeveralBatchReader(several)
        options, notes = parse_batch(self._own_options())
        _log_notes(notes)
        return KinesisBatchReader(options)

    @explained
    def streamReader(self, schema: StructType) -> KinesisStreamReader | SeveralStreamsReader:  # noqa: N802 - Spark's signature
        """Return the streaming reader."""
        from penstock.spark.stream_reader import KinesisStreamReader

        check_schema(schema.simpleString())
        if names_several(self.options):
            from penstock.spark.streams.several_reader import SeveralStreamsReader

            several, notes = parse_several_source(self._own_options())
            _log_notes(notes)
            return SeveralStreamsReader(several)
        options, notes = parse_source(self._own_options())
        _log_notes(notes)
        return KinesisStreamReader(options)

    @explained
    def writer(self, schema: StructType, overwrite: bool) -> KinesisBatchWriter:
        """Return the batch writer."""
        from penstock.spark.sink.columns import check_columns
        from penstock.spark.sink.writers import KinesisBatchWriter

        options, notes = parse_sink(self._own_options())
        _log_notes(notes)
        return KinesisBatchWriter(options, check_columns(schema, options, overwrite=overwrite))

    @explained
    def streamWriter(self, schema: StructType, overwrite: bool) -> KinesisStreamWriter:  # noqa: N802 - Spark's name
        """Return the streaming writer."""
        from penstock.spark.sink.columns import check_columns
        from penstock.spark.sink.writers import KinesisStreamWriter

        options, notes = parse_sink(self._own_options())
        _log_notes(notes)
        return KinesisStreamWriter(options, check_columns(schema, options, overwrite=overwrite))

    def _own_options(self) -> Mapping[str, str]:
        check_version()
        return self.options


def _log_notes(notes: tuple[str, ...]) -> None:
    for note in notes:
        _log.warning(note)
