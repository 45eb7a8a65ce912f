"""Where an example runs: on AWS as boto3 finds it, or with `--local` on an embedded Kinesis that ends with it."""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import sys
from collections.abc import Iterable, Iterator
from typing import Any

from pyspark.sql import SparkSession

os.environ.setdefault("PYSPARK_PYTHON", sys.executable)  # executors run the same Python as this program


def arguments(about: str, **more: str) -> argparse.ArgumentParser:
    """Return a parser with the arguments of every example; `more` are further arguments with their defaults."""
    parser = argparse.ArgumentParser(description=about.partition("\n")[0])
    parser.add_argument("--local", action="store_true", help="run on an embedded Kinesis with sample data")
    parser.add_argument("--stream", default="orders", help="name of the stream (default: orders)")
    for name, default in more.items():
        parser.add_argument(f"--{name.replace('_', '-')}", default=default, help=f"default: {default}")
    return parser


@contextlib.contextmanager
def kinesis(args: argparse.Namespace, **shards: int) -> Iterator[Any]:
    """With `--local` start a server with these streams and let everything here find it; else give None."""
    if not args.local:
        yield None
        return
    from penstock_local import LocalKinesis

    with LocalKinesis() as server:
        os.environ.update(server.environ())
        for name, count in shards.items():
            server.create_stream(name, shards=count)
        yield server


@contextlib.contextmanager
def session(name: str) -> Iterator[SparkSession]:
    """Start Spark on this machine; on a cluster `spark-submit` says where instead."""
    spark = (
        SparkSession.builder.master(os.environ.get("EXAMPLE_MASTER", "local[2,4]"))
        .appName(name)
        .config("spark.ui.enabled", "false")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.python.daemon.module", "penstock.spark.daemon")
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.sql.shuffle.partitions", "2")
        .getOrCreate()
    )
    spark.sparkContext.setLogLevel("ERROR")
    try:
        yield spark
    finally:
        spark.stop()


def order(number: int) -> dict[str, Any]:
    """Return a sample order."""
    return {
        "order": number,
        "customer": f"customer-{number % 7}",
        "country": ("DE", "FR", "PL")[number % 3],
        "cents": 100 * (number % 10 + 1),
    }


def put_orders(stream: str, numbers: Iterable[int]) -> int:
    """Put sample orders, each customer's in order; returns when the service has all of them."""
    from penstock import Producer

    count = 0
    with Producer(stream=stream) as producer:
        for number in numbers:
            document = order(number)
            producer.put(json.dumps(document).encode(), partition_key=document["customer"])
            count += 1
    return count


ORDER = "order BIGINT, customer STRING, country STRING, cents BIGINT"
