"""Run a streaming query of several streams without Spark, as `reader_query` does for one stream."""

from __future__ import annotations

from penstock.spark.options.several_streams import parse_several_source
from penstock.spark.stream_reader import KinesisStreamReader
from penstock.spark.streams.several_source import SeveralStreams
from penstock.wiring import open_lease_table
from reader_query import Query, ReaderWithoutStarts
from waiting import wait_until


class SeveralReaderWithoutStarts(ReaderWithoutStarts):
    """As Spark 4.0 and 4.1 call it."""

    def latestOffset(self, start, limit):  # noqa: N802 - Spark's name
        if not self._is_known and start != self._reader.initialOffset():
            assert self._reader.partitions(start, start) == []
        self._is_known = True
        return self._reader.latestOffset()


class SeveralQuery(Query):
    """A query of several streams, driven as Spark drives it."""

    @property
    def options(self):
        return parse_several_source(self.given)[0]

    @property
    def table(self):
        return open_lease_table(self.options.shared.lease_table, self.options.shared.connection)

    def fresh(self):
        reader = KinesisStreamReader(SeveralStreams(self.options))
        self.readers.append(reader)
        return reader if self.is_told_starts else SeveralReaderWithoutStarts(reader)

    def die(self):
        for stream in self.planned():
            stream.planner._joined.query_worker.abandon()
        self.reader = self.fresh()

    def planned(self):
        planner = self.reader._planner
        return [] if planner is None else list(planner._streams.values())

    def plan(self):
        return self._look()

    def read(self, part):
        found = []
        for batch in self.fresh().read(part):
            found += [(row["streamName"], row["shardId"], int(row["data"])) for row in batch.to_pylist()]
        return found

    def execute(self, end):
        start = self.reader.initialOffset() if self.done is None else self.done
        return [row for part in self.reader.partitions(start, end) for row in self.read(part)]

    def numbers(self):
        return sorted(row[2] for row in self.rows)

    def read_until(self, count):
        """Run batches until so many records are read."""
        wait_until(lambda: (self.batch(), len(self.rows) >= count)[1], f"{count} records")
