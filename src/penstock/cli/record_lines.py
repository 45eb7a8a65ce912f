"""Records as lines: one JSON document each, or columns for people."""

from __future__ import annotations

import base64
import json
import sys
import threading
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from penstock.consumer import Batch, Record


def record_document(record: Record) -> dict[str, Any]:
    """Give a record as a JSON document; `data` where it is UTF-8 text, else `data_base64`."""
    document: dict[str, Any] = {
        "shard_id": record.shard_id,
        "sequence_number": record.sequence_number,
        "sub_sequence_number": record.sub_sequence_number,
        "partition_key": record.partition_key,
        "explicit_hash_key": record.explicit_hash_key,
        "approximate_arrival_timestamp": record.approximate_arrival_timestamp.isoformat(
            timespec="milliseconds"
        ),
    }
    try:
        document["data"] = record.data.decode("utf-8")
    except UnicodeDecodeError:
        document["data_base64"] = base64.b64encode(record.data).decode("ascii")
    return document


def record_text(record: Record) -> str:
    """Give a record as one line for people: shard, arrival, key, data (not UTF-8: as Base64)."""
    shard = record.shard_id.removeprefix("shardId-").lstrip("0") or "0"
    arrival = record.approximate_arrival_timestamp.astimezone().strftime("%H:%M:%S.%f")[:-3]
    document = record_document(record)
    data = document.get("data", document.get("data_base64", ""))
    line = str(data).replace("\r", "\\r").replace("\n", "\\n")
    return f"{shard:>4}  {arrival}  {record.partition_key or '-'}  {line}"


class RecordPrinter:
    """Prints batches, one at a time, and counts.

    Args:
        is_json: One JSON document per line.
        count_max: Stop printing after so many; None prints all.
    """

    def __init__(self, is_json: bool, count_max: int | None = None) -> None:
        self._is_json = is_json
        self._count_max = count_max
        self._lock = threading.Lock()
        self.count = 0

    @property
    def is_full(self) -> bool:
        """Whether everything that was asked for is printed."""
        return self._count_max is not None and self.count >= self._count_max

    def print_batch(self, batch: Batch) -> None:
        """Print a batch and hand it to the operating system before it counts as done."""
        with self._lock:
            for record in batch:
                if self.is_full:
                    break
                line = (
                    json.dumps(record_document(record), ensure_ascii=False)
                    if self._is_json
                    else record_text(record)
                )
                sys.stdout.write(line + "\n")
                self.count += 1
            sys.stdout.flush()
