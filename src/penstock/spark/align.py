"""`penstock.spark.align_to_shards`: one Spark task per shard, so that a task owns a shard's write rate.

Rows are partitioned as the service places them: by the explicit hash key, else by the MD5 of the partition key. It
takes only Spark's own expressions, so it works in this process, on a cluster and through Spark Connect, and no row
passes through Python. Hash keys are compared as texts of equal length: 32 hexadecimal digits, as `md5` returns them, and
39 decimal digits, since Spark's decimals end at 38.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, TypeAlias, Unpack

from penstock.core.hash_key import HASH_KEY_MAX
from penstock.errors import OptionError, StreamChanged
from penstock.ports.kinesis import ShardFilter
from penstock.spark.options.spark_options import parse_sink
from penstock.wiring import open_kinesis

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

    from penstock.spark.options.keywords import SinkKeywords

    Order: TypeAlias = str | Column | Sequence[str | Column]

_DECIMAL_DIGITS: Final = len(str(HASH_KEY_MAX))
_HEX_DIGITS: Final = 32


def align_to_shards(
    df: DataFrame,
    stream: str,
    *,
    order_by: Order | None = None,
    **options: Unpack[SinkKeywords],
) -> DataFrame:
    """Repartition rows by the shard that will hold them: one partition for each open shard.

    One task at a time then writes a shard's rows. It knows the shard's rate exactly and packs dense aggregates.

    The shards are listed once, now. When the stream is resharded later, all rows still reach the right shards, but not
    with one task per shard; in `foreachBatch` the shards are listed for every batch.

    Args:
        df: Rows for the sink, with `partitionKey` and optionally `explicitHashKey`.
        stream: Name or ARN of the stream that they will be written to.
        order_by: Column or columns by which each shard's rows are sorted, so that every key keeps that order. Spark cannot
            sort a streaming DataFrame: use it in `foreachBatch`.
        options: How to reach the service, as the sink's options: `region="eu-west-1"`, `endpointUrl=...`.

    Returns:
        The same rows and columns, in as many partitions as the stream has open shards.

    Raises:
        OptionError: A column is missing, an option is unknown, or a streaming DataFrame would have to be sorted.
        NotFound, AccessDenied: The shards cannot be listed.
    """
    from pyspark.sql import functions as f

    from penstock.spark.engine import repartition_by_id

    columns = {name.lower(): name for name in df.columns}
    if "partitionkey" not in columns:
        raise OptionError("align_to_shards: the column partitionKey is missing")
    if order_by is not None and df.isStreaming:
        raise OptionError(
            "align_to_shards: Spark cannot sort a streaming DataFrame; call align_to_shards(..., order_by=...) in "
            "foreachBatch, or leave order_by out"
        )
    starts = _fetch_range_starts(stream, options)
    hex_starts = f.array(*[f.lit(f"{start:0{_HEX_DIGITS}x}") for start in starts])
    shard = _count_up_to(hex_starts, f.md5(f.col(columns["partitionkey"]).cast("binary")))
    if "explicithashkey" in columns:
        given = f.col(columns["explicithashkey"])
        decimal_starts = f.array(*[f.lit(f"{start:0{_DECIMAL_DIGITS}d}") for start in starts])
        by_hash_key = _count_up_to(decimal_starts, f.lpad(given, _DECIMAL_DIGITS, "0"))
        shard = f.when(given.isNotNull(), by_hash_key).otherwise(shard)
    # The sink refuses a row without a key and names it; here it only needs some partition.
    place = f.greatest(f.coalesce(shard, f.lit(1)) - 1, f.lit(0)).cast("int")
    aligned = repartition_by_id(df, len(starts), place)
    if order_by is None:
        return aligned
    order: list[str | Column] = list(order_by) if isinstance(order_by, list | tuple) else [order_by]  # type: ignore[list-item]  # one column otherwise
    return aligned.sortWithinPartitions(*order)


def _count_up_to(starts: Column, key: Column) -> Column:
    """Count the ranges that begin at or before a key: the number, from 1, of the range that holds it."""
    from pyspark.sql import functions as f

    return f.size(f.filter(starts, lambda start: start <= key))


def _fetch_range_starts(stream: str, options: Mapping[str, Any]) -> list[int]:
    named = {"streamARN" if stream.startswith("arn:") else "streamName": stream}
    parsed, _ = parse_sink({**options, **named})
    kinesis = open_kinesis(parsed.connection)
    listing = kinesis.fetch_shards(stream, ShardFilter("AT_LATEST"))
    starts = sorted(shard.hash_range.start for shard in listing.shards if shard.is_open)
    if not starts or starts[0] != 0:
        raise StreamChanged(f"stream {stream}: the listing names no open shard for hash key 0; try again")
    return starts
