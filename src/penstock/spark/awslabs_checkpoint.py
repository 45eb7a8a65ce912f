"""Reads the positions of a stopped query of awslabs' connector (`format("aws-kinesis")`).

The starts of a batch are in Spark's log of offsets in the checkpoint location. The ends are in a folder for each batch, with a
file for each shard. Spark reads the files, from any location that it can read.

Source:
    awslabs/spark-sql-kinesis-connector 2.1: KinesisV2SourceOffset, HDFSMetadataCommitter.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from msgspec import Struct

from penstock.errors import UsageError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_ENDS: Final = "shard-source"
_HEAD: Final = 2
"""Lines of an offset file before those of the sources: the format's version and the batch's metadata."""


class LoggedBatch(Struct, frozen=True):
    """One source's part of a batch in the log.

    Args:
        source: Index of the source in its query.
        number: The batch's number, as the connector counts.
        starts: Each shard's start, in the connector's format.
    """

    source: int
    number: int
    starts: Mapping[str, Mapping[str, Any]]


def saved_positions(
    spark: SparkSession,
    checkpoint: str,
    *,
    stream: str | None = None,
    metadata_path: str | None = None,
    repeat_last_batch: bool = False,
) -> str:
    """Return the positions at which a stopped query of awslabs' connector would go on, for option `startingPosition`.

    Args:
        spark: A session that can read the checkpoint location.
        checkpoint: The old query's checkpoint location. It is only read.
        stream: The stream, if the query read several.
        metadata_path: The old query's option `kinesis.metadataPath`, if it had one.
        repeat_last_batch: Return the start of the last batch, even if it is done. For queries that kept their positions in
            DynamoDB (`kinesis.metadataCommitterType`).

    Returns:
        JSON. If the last batch was not committed, its start.

    Raises:
        UsageError: There are no such positions; the message has the folders that were searched.
    """
    offsets = _read_log(spark, f"{checkpoint}/offsets")
    if not offsets:
        raise UsageError(
            f"{checkpoint} is not a checkpoint location of a query that has run: it has no folder offsets"
        )
    last = max(offsets)
    batch = parse_batch(offsets[last], stream, f"{checkpoint}/offsets/{last}")
    is_repeated = repeat_last_batch or last not in _read_log(spark, f"{checkpoint}/commits")
    if is_repeated or not batch.starts:
        return join_positions(batch, {})
    folder = f"{metadata_path or f'{checkpoint}/sources/{batch.source}'}/{_ENDS}/{batch.number}"
    ends = _read_files(spark, folder)
    if not ends:
        raise UsageError(
            f"batch {last} of {checkpoint} is done, and {folder} does not say where it ended: name the query's "
            "kinesis.metadataPath with metadata_path, or, where it kept its positions in DynamoDB, read the last batch again "
            "with repeat_last_batch=True"
        )
    return join_positions(batch, {shard: json.loads(text) for shard, text in ends.items()})


def parse_batch(text: str, stream: str | None, place: str) -> LoggedBatch:
    """Return a stream's part of an offset file.

    Args:
        stream: The stream's name, or None if the query read only one.
        place: The file, for messages.

    Raises:
        UsageError: There is no such stream, or several and none was named.
    """
    found: dict[str, LoggedBatch] = {}
    for source, line in enumerate(text.splitlines()[_HEAD:]):
        try:
            document = json.loads(line)
            metadata = document.pop("metadata")
            found[metadata["streamName"]] = LoggedBatch(source, int(metadata["batchId"]), document)
        except (ValueError, TypeError, KeyError, AttributeError):
            continue  # a source of another kind
    if stream is None and len(found) == 1:
        return next(iter(found.values()))
    if stream is None or stream not in found:
        wanted = "a stream; name one with stream" if stream is None else f"stream {stream}"
        raise UsageError(
            f"{place} has no positions of {wanted} (streams that awslabs' connector read there: "
            f"{', '.join(sorted(found)) or 'none'})"
        )
    return found[stream]


def join_positions(batch: LoggedBatch, ends: Mapping[str, Mapping[str, Any]]) -> str:
    """Return each shard's position after a batch: its end there, or its start."""
    return json.dumps({**batch.starts, **ends}, sort_keys=True)


def _read_log(spark: SparkSession, folder: str) -> dict[int, str]:
    """Return the texts of a log by the numbers of their batches. Like Spark, skip files whose name is no number, such as a copy."""
    return {
        int(name): text for name, text in _read_files(spark, folder, "[0-9]*").items() if name.isdecimal()
    }


def _read_files(spark: SparkSession, folder: str, pattern: str = "*") -> dict[str, str]:
    """Return the files of a folder by name; none if there is no such folder."""
    from pyspark.errors import AnalysisException

    try:
        files = spark.read.format("binaryFile").option("pathGlobFilter", pattern).load(folder)
        rows = files.select("path", "content").collect()
    except AnalysisException as error:
        if "PATH_NOT_FOUND" not in str(error):
            raise
        return {}
    return {row.path.rpartition("/")[2]: bytes(row.content).decode() for row in rows}
