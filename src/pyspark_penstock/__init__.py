"""Entry point for Spark: a module `pyspark_*` with a `DefaultSource`, so that `format("kinesis")` needs no `register`.

Spark imports this in every session on the machine, for any query. So it is small, imports the source only as far as the
class itself, and if that cannot be imported (an older Spark without Python data sources) it offers nothing rather than
failing other people's queries.
"""

from __future__ import annotations

try:
    from penstock.spark.source import KinesisDataSource as DefaultSource
except Exception:  # noqa: BLE001 - whatever is missing here is no reason to stop a query that never asked for Kinesis
    __all__: list[str] = []
else:
    __all__ = ["DefaultSource"]
