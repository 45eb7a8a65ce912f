"""One run of a source in a real Spark session, beside the calls that the kit makes itself."""

from __future__ import annotations

import time
from collections.abc import Hashable, Mapping
from pathlib import Path
from typing import Any, Final

from penstock.testing.stream_source.outcomes import PromiseBroken
from penstock.testing.stream_source.promises import ONCE, RESTART
from penstock.testing.stream_source.query import describe_difference
from penstock.testing.stream_source.source_under_test import SourceUnderTest

_PAUSE_S: Final = 0.1
_END_S: Final = 120.0


class StreamSourceSessionChecks:
    """A test in a Spark session: inherit it beside `StreamSourceChecks`, and write the fixtures `source` and `spark`."""

    def test_in_a_session(self, source: SourceUnderTest, spark: Any, tmp_path: Path) -> None:
        """Run a query twice with availableNow and once until it is stopped, from one checkpoint location."""
        run_in_spark(source, spark, tmp_path)


def run_in_spark(source: SourceUnderTest, spark: Any, folder: Path) -> None:
    """Run a query three times from one checkpoint location, and compare the ids that its batches hold.

    Args:
        source: The source, with a place of its own.
        spark: A session that can call back (no Spark Connect).
        folder: Place of the checkpoint location.
    """
    spark.dataSource.register(source.data_source)
    batches: dict[int, list[Hashable]] = {}
    ids: list[Hashable] = []

    def collect(frame: Any, batch: int) -> None:
        batches[batch] = [source.id_of(row.asDict()) for row in frame.collect()]

    def start(trigger: Mapping[str, Any]) -> Any:
        reader = spark.readStream.format(source.data_source.name()).options(**source.options())
        if source.schema is not None:
            reader = reader.schema(source.schema)
        writer = reader.load().writeStream.foreachBatch(collect).trigger(**trigger)
        return writer.option("checkpointLocation", str(folder / "checkpoint")).start()

    for count in (6, 4):
        ids += source.put(count) or []
        query = start({"availableNow": True})
        if not query.awaitTermination(_END_S):
            query.stop()
            raise PromiseBroken(ONCE, f"an availableNow query did not end within {_END_S:g} s")
    query = start({"processingTime": "0 seconds"})
    try:
        ids += source.put(5) or []
        deadline_s = time.monotonic() + source.visible_s
        while query.isActive and sum(map(len, batches.values())) < len(ids) and time.monotonic() < deadline_s:
            time.sleep(_PAUSE_S)
        failure = query.exception()
    finally:
        query.stop()
    if failure is not None:
        raise PromiseBroken(RESTART, f"the third run failed: {failure}")
    found = [each for batch in sorted(batches) for each in batches[batch]]
    difference = describe_difference(ids or set(found), found)
    if difference is not None:
        raise PromiseBroken(
            ONCE, f"three runs in a session, {len(batches)} batches with {len(found)} rows: {difference}"
        )
