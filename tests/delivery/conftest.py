"""Deliveries of batches that a test makes itself, without a stream."""

from __future__ import annotations

import datetime as dt

import pytest

from penstock.core.delivering.definition import parse_delivery

ARRIVED = dt.datetime(2026, 11, 25, 12, tzinfo=dt.UTC)


class Batches:
    """One delivery into a new table, batch by batch."""

    def __init__(self, spark, delivery, texts):
        from penstock.delivery.files import open_files
        from penstock.delivery.opening import (
            OpenDelivery,
            check_folders,
            open_record_texts,
            parse_schema,
        )
        from penstock.delivery.targets.opening import open_target

        self._spark = spark
        self._count = 0
        self.reports = []
        texts = texts or open_record_texts(delivery)
        self._opened = OpenDelivery(
            delivery=delivery,
            files=open_files(spark, delivery.state),
            schema=parse_schema(delivery, texts),
            texts=texts,
            target=open_target(spark, delivery, ""),
            record=None,
            old_record=None,
            backfill_range=None,
            opened_ms=0,
        )
        check_folders(spark, self._opened)
        self._writer = self._new_writer()
        self.table, self.letters = f"{delivery.to}/**/*.parquet", delivery.dead_letter_folder

    def _new_writer(self):
        from penstock.delivery.table_writer import TableWriter

        opened = self._opened
        return TableWriter(
            opened.delivery,
            opened.files,
            opened.schema,
            opened.target,
            texts=opened.texts,
            report=self.reports.append,
        )

    def write(self, records):
        from penstock.delivery.table_writer import batch_label
        from penstock.spark.schema import SCHEMA_DDL

        row = {"streamName": "orders", "shardId": "shardId-000000000000", "subSequenceNumber": 0}
        row |= {"partitionKey": "p", "approximateArrivalTimestamp": ARRIVED}
        rows = [
            row | {"sequenceNumber": str(1000 * self._count + at), "data": record}
            for at, record in enumerate(records)
        ]
        self._writer.write(self._spark.createDataFrame(rows, SCHEMA_DDL), batch_label(self._count))
        self._count += 1

    def redeliver(self):
        from penstock.delivery import json_rows
        from penstock.delivery.redelivery import redeliver

        # A redelivery is another process. The columns of this one hold the registry's versions of before, if it is in memory.
        json_rows._added_columns.cache_clear()
        redeliver(self._spark, self._opened, self._new_writer())


@pytest.fixture
def batches(running_spark, tmp_path):
    """Opens a delivery; its arguments are the keys of a file."""
    from penstock.delivery.running import check_deliveries

    def open_batches(texts=None, **given):
        text = {"stream": "orders", "to": f"{tmp_path}/orders", **given}
        delivery, _ = check_deliveries([parse_delivery(text)])[0]
        return Batches(running_spark, delivery, texts)

    return open_batches
