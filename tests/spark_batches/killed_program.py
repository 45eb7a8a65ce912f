"""A program that reads a stream in micro-batches into files, until it is killed: `killed_program.py OPTIONS CHECKPOINT OUT`."""

import json
import os
import sys
from pathlib import Path

from pyspark.sql import SparkSession

from penstock.spark import micro_batches

options, checkpoint, out = json.loads(sys.argv[1]), sys.argv[2], Path(sys.argv[3])
os.environ["PYSPARK_PYTHON"] = sys.executable
spark = (
    SparkSession.builder.master("local[2,4]")
    .config("spark.ui.enabled", "false")
    .config("spark.driver.bindAddress", "127.0.0.1")
    .config("spark.driver.host", "127.0.0.1")
    .getOrCreate()
)
spark.sparkContext.setLogLevel("ERROR")


def write(rows, number):
    """Write a batch as a file under its number; note when a repeat differs from what stands there."""
    found = sorted([row.shardId, int(row.sequenceNumber), bytes(row.data).decode()] for row in rows.collect())
    file = out / f"{number}.json"
    if file.exists() and json.loads(file.read_text()) != found:
        (out / f"differs-{number}").write_text(json.dumps(found))
    draft = out / f".{number}.draft"
    draft.write_text(json.dumps(found))
    draft.replace(file)
    sys.stdout.write(f"written {number}\n")
    sys.stdout.flush()


micro_batches(spark, options, checkpoint=checkpoint).foreach_batch(write)
