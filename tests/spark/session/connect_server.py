"""A Spark Connect server on loopback: `python connect_server.py FOLDER PORT`; ends with its standard input."""

from __future__ import annotations

import sys

from pyspark.sql import SparkSession

folder, port = sys.argv[1:3]
(
    SparkSession.builder.master("local[2,4]")
    .config("spark.plugins", "org.apache.spark.sql.connect.SparkConnectPlugin")
    .config("spark.connect.grpc.binding.address", "127.0.0.1")
    .config("spark.connect.grpc.binding.port", port)
    .config("spark.ui.enabled", "false")
    .config("spark.driver.bindAddress", "127.0.0.1")
    .config("spark.driver.host", "127.0.0.1")
    .config("spark.sql.warehouse.dir", f"{folder}/warehouse")
    .getOrCreate()
)
sys.stdout.write("ready\n")
sys.stdout.flush()
sys.stdin.read()
