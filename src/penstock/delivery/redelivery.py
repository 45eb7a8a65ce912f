"""Deliver dead letters to the table again; those that still do not fit it become dead letters again."""

from __future__ import annotations

from typing import Final

from pyspark.sql import SparkSession

from penstock.core.delivering.manifest import next_redelivery_number, redelivery_label
from penstock.core.delivering.record import has_files_of
from penstock.delivery import json_rows
from penstock.delivery.files import read_uri
from penstock.delivery.opening import OpenDelivery
from penstock.delivery.table_writer import TableWriter

_ENDING: Final = ".jsonl"


def redeliver(spark: SparkSession, opened: OpenDelivery, writer: TableWriter) -> None:
    """Deliver the dead letters of a delivery again, as one batch that also removes their files.

    The delivery itself may run meanwhile: it only adds files of dead letters. If two redeliveries run at the same time, the second
    one adopts the batch of the first. Dead letters of other deliveries in the same folder stay there.
    """
    delivery = opened.delivery
    # The label is chosen before the files are listed. If another redelivery ends in between, it has used this label, and its batch
    # is adopted.
    label = redelivery_label(next_redelivery_number(writer.store.labels()))
    paths = [
        path
        for path, _ in opened.files.walk(delivery.dead_letter_folder)
        if path.endswith(_ENDING) and has_files_of(delivery.name, [path.rpartition("/")[2]])
    ]
    if not paths:
        return
    letters = spark.read.schema(json_rows.DEAD_LETTER_DDL).json([read_uri(path) for path in paths])
    writer.write(json_rows.source_rows(letters), label, removes=paths)
