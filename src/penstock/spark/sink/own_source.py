"""A warning for a query that writes to a stream that it reads: normally it reads its own output again, without end.

The offset of a batch in the query's checkpoint location has the ARN of each stream that the batch reads.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Collection
from typing import TYPE_CHECKING, Final

from penstock.core.batches.offsets import parse_offset
from penstock.core.stream_identity import StreamIdentity
from penstock.errors import PenstockError
from penstock.spark.sink.folder import Folder

if TYPE_CHECKING:
    from penstock.core.shard import StreamSummary

_log: Final = logging.getLogger("penstock.spark")


def warn_of_own_source(
    streams: Collection[str],
    location: str,
    batch: int,
    fetch_summary: Callable[[str], StreamSummary],
) -> None:
    """Warn if a batch has written to a stream that it has read. Never raises.

    Args:
        streams: Names or ARNs of the streams that the batch has written to.
        batch: Spark's number of the batch.
        fetch_summary: Describes a stream; called only for streams with the name of a stream that was read.
    """
    try:
        sources = _find_sources(Folder(location).read(f"offsets/{batch}").decode())
        for stream in streams:
            name = stream.rpartition("/")[2]
            has_its_name = any(source.arn.rpartition("/")[2] == name for source in sources)
            if has_its_name and fetch_summary(stream).identity in sources:
                _log.warning(
                    "stream %s: this query writes to the stream that it reads, so it reads its own output again, without end "
                    "unless it filters that out. Is option streamName of the sink correct?",
                    stream,
                )
    except FileNotFoundError:
        return
    except Exception as error:  # noqa: BLE001 - a warning is never worth a batch
        _log.info("whether batch %d writes to a stream that it reads is not known: %s", batch, error)


def _find_sources(text: str) -> set[StreamIdentity]:
    """Return the streams of Penstock's sources in a file of Spark's log of offsets."""
    found = set()
    for line in text.splitlines():
        try:
            offset = parse_offset(json.loads(line))
        except (ValueError, PenstockError):
            continue  # the format's version, Spark's metadata, a source of another kind
        found.add(StreamIdentity(offset.stream_arn, offset.stream_created_ms))
    return found
