"""The running costs of a delivery, before its first batch: calls and files a day, their price, and files that are too small."""

from __future__ import annotations

from typing import Final

from msgspec import Struct

from penstock.core.delivering.definition import FILE_FORMATS, Delivery
from penstock.core.sizing.costs import RENEWALS_PER_HOUR, BillItem, bill_item, claim_sums, lease_bill
from penstock.core.sizing.prices import HOURS_PER_MONTH, Prices

_DAY_S: Final = 86_400
_SMALL: Final = 4
"""A file is small if its size times this is less than the target size."""
_STATE_PUTS: Final = 7
"""S3 requests of a batch for files other than its rows: the manifest and Spark's two checkpoint files are each written and then copied
to their final names; an empty file marks the end."""
_MB: Final = 1_000_000


class RunningCosts(Struct, frozen=True, kw_only=True):
    """Upper bounds for a stream whose shards all have records in each batch; batches without records are not counted.

    Args:
        shard_count: Open shards.
        batches_per_day: At the delivery's freshness.
        reads_per_day: `GetRecords` calls, which have no price on a provisioned stream.
        lease_writes_per_day: Renewals of leases, and claims of batches.
        file_bytes: Mean size of a file, before compression; None if the stream's rate is unknown.
        sums: Items of the bill of one month.
        warning: Why files will be too small; empty if they will not, or it is unknown.
    """

    shard_count: int
    batches_per_day: int
    reads_per_day: int
    lease_writes_per_day: int
    files_per_day: int
    file_bytes: int | None
    sums: tuple[BillItem, ...]
    currency: str
    warning: str


def running_costs(
    delivery: Delivery, *, shard_count: int, bytes_per_s: float | None, partition_count: int, prices: Prices
) -> RunningCosts:
    """Estimate a delivery's calls and files per day, and its bill per month.

    Args:
        shard_count: Open shards.
        bytes_per_s: Bytes per second that arrive in the whole stream; None if unknown.
        partition_count: Number of partition folders into which one batch writes.
    """
    shards = max(1, shard_count)
    batches = round(_DAY_S / delivery.freshness_s)
    per_hour = 3600 / delivery.freshness_s
    table = dict(delivery.options).get("leaseTable", "")
    store = "S3" if table.startswith("s3") else "DynamoDB"
    sums: list[BillItem] = []
    if "/" not in table or store == "S3":
        sums += lease_bill(delivery.name, shards, prices, store=store).sums
        sums += claim_sums(shards, per_hour, prices, store=store)
    renewals = 24 * RENEWALS_PER_HOUR[store]
    files = batches * max(1, partition_count) if delivery.format != "stream" else 0
    if delivery.to.startswith("s3") or (delivery.state_folder or "").startswith("s3"):
        # Each file is two requests: a write, and a copy to its place. Tables with transactions add at least three files per commit.
        each = 2 * max(1, partition_count) + _STATE_PUTS + (0 if delivery.format in FILE_FORMATS else 3)
        sums.append(
            bill_item("S3: files", each, per_hour, HOURS_PER_MONTH, prices.s3_put_million, over=1_000_000)
        )
    size = (
        None
        if bytes_per_s is None or not files
        else round(bytes_per_s * delivery.freshness_s / max(1, partition_count))
    )
    return RunningCosts(
        shard_count=shards,
        batches_per_day=batches,
        reads_per_day=batches * shards,
        lease_writes_per_day=(renewals + batches) * shards,
        files_per_day=files,
        file_bytes=size,
        sums=tuple(sums),
        currency=prices.currency,
        warning="" if size is None else _warning_of_small_files(delivery, size, files, partition_count),
    )


def _warning_of_small_files(delivery: Delivery, size: int, files: int, partition_count: int) -> str:
    if size * _SMALL >= delivery.file_bytes:
        return ""
    wanted_s = delivery.freshness_s * delivery.file_bytes / max(1, size)
    ways = [f"freshness {_format_duration(wanted_s)}" if wanted_s <= _DAY_S else "a longer freshness"]
    if partition_count > 1:
        ways.append("fewer partitions")
    ways.append(
        "a compaction by your engine"
        if delivery.format in FILE_FORMATS
        else "compact, which merges them between batches"
    )
    return (
        f"small files: up to {files:,} a day of about {_format_size(size)}, below the target of {_format_size(delivery.file_bytes)}; "
        f"choose {', or '.join(ways)}"
    )


def _format_size(count: float) -> str:
    return f"{count / _MB:.0f} MB" if count >= _MB else f"{max(1, count / 1000):.0f} kB"


def _format_duration(seconds: float) -> str:
    return (
        f"{seconds / 3600:.0f}h"
        if seconds >= 2 * 3600
        else f"{seconds / 60:.0f}m"
        if seconds >= 120
        else f"{seconds:.0f}s"
    )
