"""The options of two other connectors, unchanged: awslabs' `aws-kinesis` and Databricks' `kinesis`.

    python examples/other_connectors.py --local

Penstock accepts their option names. A warning names each option that has no meaning here; none is silently different. Only the
format's name changes, from `aws-kinesis` to `kinesis`. Positions are not taken over, so begin with a new checkpoint location.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

import where

AWSLABS = {
    "kinesis.region": "us-east-1",
    "kinesis.streamName": "orders",
    "kinesis.consumerType": "GetRecords",
    "kinesis.endpointUrl": "",  # set below, as a job would
    "kinesis.startingposition": "TRIM_HORIZON",
    "kinesis.metadataCommitterType": "HDFS",
    "kinesis.client.numRetries": "5",
    "kinesis.failOnDataLoss": "true",
}

DATABRICKS = {
    "streamName": "orders",
    "region": "us-east-1",
    "initialPosition": "trim_horizon",
    "consumerMode": "polling",
    "consumerNamePrefix": "databricks_",
    "consumerRefreshInterval": "300s",
    "requireConsumerDeregistration": "true",
    "shardsPerTask": "5",
    "maxRecordsPerFetch": "10000",
    "maxFetchRate": "1.0",
    "coalesceThresholdBlockSize": "10000000",
}


def main() -> int:
    parser = where.arguments(__doc__)
    args = parser.parse_args()
    with where.kinesis(args, orders=2) as server, tempfile.TemporaryDirectory() as scratch:
        if server is not None:
            where.put_orders(args.stream, range(50))
            AWSLABS["kinesis.endpointUrl"] = server.endpoint_url
        with where.session("other connectors") as spark:
            for name, options in {"awslabs": AWSLABS, "databricks": DATABRICKS}.items():
                counts: list[int] = []
                reader = spark.readStream.format("kinesis").options(
                    **{key: text for key, text in options.items() if text}
                )
                query = (
                    reader.option("applicationName", f"from-{name}")
                    .load()
                    .writeStream.foreachBatch(lambda batch, _, counts=counts: counts.append(batch.count()))
                    .option("checkpointLocation", str(Path(scratch) / name))
                    .trigger(availableNow=True)
                    .start()
                )
                query.awaitTermination()
                print(f"{name}: {sum(counts)} records")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
