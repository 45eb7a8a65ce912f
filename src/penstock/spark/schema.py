"""The source's rows, as Spark and as Arrow spell them."""

from __future__ import annotations

from typing import Final

from penstock.errors import OptionError

SCHEMA_DDL: Final = (
    "streamName STRING, shardId STRING, sequenceNumber STRING, subSequenceNumber BIGINT, "
    "partitionKey STRING, explicitHashKey STRING, approximateArrivalTimestamp TIMESTAMP_LTZ, data BINARY"
)
"""The type of a plain TIMESTAMP depends on the session (`spark.sql.timestampType`). `explicitHashKey` is null for records
that have none, or were not put as part of an aggregate;
`partitionKey` is null only on streams whose record distribution the service manages."""

COLUMNS: Final = tuple(column.split()[0] for column in SCHEMA_DDL.split(", "))


def check_schema(simple: str) -> None:
    """Raise OptionError for another schema than the source's own. Spark asks the source only when the query is planned.

    Args:
        simple: Spark's `simpleString()` of the requested schema.
    """
    columns = [column.split() for column in SCHEMA_DDL.replace("TIMESTAMP_LTZ", "TIMESTAMP").split(", ")]
    own = f"struct<{','.join(f'{name}:{kind.lower()}' for name, kind in columns)}>"
    if simple != own:
        raise OptionError(
            f"schema {simple}: the source has columns of its own ({SCHEMA_DDL}); leave out .schema(...), and parse the column "
            "data instead, for instance with from_json(col('data').cast('string'), 'a INT')"
        )
