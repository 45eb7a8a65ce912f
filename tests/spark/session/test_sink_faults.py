"""A query that writes while a quarter of all requests fail in every way, and that is restarted many times."""

from __future__ import annotations

from collections import Counter

import pytest

from spark_support import numbered, put
from stream_reading import kcl_reads
from waiting import wait_until

KINDS = ("throttle", "partial", "error", "drop_before", "drop_after", "truncate", "garbage")


@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    "records", [pytest.param(2_000, id="short"), pytest.param(30_000, id="long", marks=pytest.mark.soak)]
)
def test_ten_restarts_while_a_quarter_of_the_requests_fail_lose_nothing(
    spark, job, stream, client, kinesis, tmp_path, records
):
    target = f"out-{stream}"
    kinesis.create_stream(target, shards=2)
    for number, kind in enumerate(KINDS):
        # Each kind hits one request in 25 or so; together it is a quarter.
        arguments = {"count": None, "rate": 0.04, "seed": number, "stream": target}
        if kind == "partial":
            kinesis.faults.partial(**arguments)
        else:
            getattr(kinesis.faults, kind)("PutRecords", **arguments)

    def start():
        reader = spark.readStream.format("kinesis").option("streamName", stream)
        for key, value in {**job.options, "maxRecordsPerTrigger": str(records // 20)}.items():
            reader = reader.option(key, value)
        query = (
            reader.load()
            .select("partitionKey", "data")
            .writeStream.format("kinesis")
            .option("streamName", target)
            .option("aggregation", "true")
            .option("retryInterval", "10ms")
            .option("checkpointLocation", str(tmp_path / "out"))
            .start()
        )
        job.running.append(query)
        return query

    sent = 0
    try:
        for turn in range(1, 12):
            put(client, stream, numbered(sent, turn * records // 11))
            sent = turn * records // 11
            query = start()
            wait_until(lambda query=query: not query.isActive or query.lastProgress, "the query to work")
            assert query.exception() is None
            if turn < 11:
                query.stop()
        put(client, stream, numbered(sent, records))
        expected = {b"%08d" % number for number in range(records)}

        def seen():
            return Counter(data for _, data in kcl_reads(client, target))

        wait_until(
            lambda: query.exception() is not None or expected <= seen().keys(), "everything to arrive", 180
        )
        assert query.exception() is None
        query.stop()
    finally:
        kinesis.faults.clear()
    found = seen()
    assert found.keys() == expected
    print(f"{records} records, {sum(found.values()) - records} delivered again")  # noqa: T201 - the result of a long run
