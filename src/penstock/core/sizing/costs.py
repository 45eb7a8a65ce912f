"""The cost of a stream for a month: each item with its sum, in each mode. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from msgspec import Struct

from penstock.core.limits import MIB
from penstock.core.sizing.prices import HOURS_PER_MONTH, Prices

GB: Final = 1_000_000_000
RENEWALS_PER_HOUR: Final = {"DynamoDB": 1200, "S3": 200}
"""Renewals of one lease: every 3 s with the default lease duration of 10 s, in a bucket every 18 s with that of 60 s."""
_SCANS_PER_HOUR: Final = 450


class BillItem(Struct, frozen=True):
    """One item of a bill.

    Args:
        terms: The sum as it is shown, for instance two shards times 730 hours times a price.
        amount: The value of the sum: the cost of a month.
    """

    item: str
    terms: str
    amount: float


def bill_item(item: str, *factors: float, over: float = 1) -> BillItem:
    """Return an item of a bill: the product of the factors, rounded as they are shown, divided by `over`."""
    texts = [_amount_text(each) for each in factors]
    amount = 1.0
    for text in texts:
        amount *= float(text)
    return BillItem(item, " \u00d7 ".join(texts) + ("" if over == 1 else f" / {over:.0f}"), amount / over)


def _amount_text(value: float) -> str:
    text = f"{value:.6g}"
    return f"{value:.12f}".rstrip("0").rstrip(".") if "e" in text else text


class Usage(Struct, frozen=True):
    """The mean traffic of a stream over a month, and its settings.

    Args:
        put_units_per_s: PUT payload units, each up to 25 KB of a record.
        rounded_bytes_per_s: With each record rounded up to a KB, as on-demand bills it.
        polled_bytes_per_s: Read by polling, all readers together.
        consumer_count: Registered consumers; each receives everything.
    """

    put_units_per_s: float
    written_bytes_per_s: float
    rounded_bytes_per_s: float
    polled_bytes_per_s: float
    consumer_count: int = 0
    retention_hours: float = 24


class Bill(Struct, frozen=True):
    """The costs of a month.

    Args:
        mode: The mode of the stream or the store of the leases, in a few words.
        note: A condition of the sums; empty if there is none.
    """

    mode: str
    sums: Sequence[BillItem]
    note: str = ""

    @property
    def amount(self) -> float:
        """The total."""
        return sum(each.amount for each in self.sums)


def provisioned_bill(usage: Usage, shards: float, prices: Prices, mode: str = "provisioned") -> Bill:
    """Return the bill of a provisioned stream that has `shards` shards on average."""
    hours, seconds = HOURS_PER_MONTH, 3600
    sums = [
        bill_item("shards", shards, hours, prices.shard_hour),
        bill_item(
            "PUT payload units",
            usage.put_units_per_s,
            seconds,
            hours,
            prices.put_units_million,
            over=1_000_000,
        ),
    ]
    if usage.retention_hours > 24:
        sums.append(bill_item("retention up to 7 days", shards, hours, prices.shard_hour_extended))
    sums += _long_retention(usage, prices.long_retention_gb_month)
    if usage.consumer_count:
        sums.append(
            bill_item("fan-out: consumers", usage.consumer_count, shards, hours, prices.consumer_shard_hour)
        )
        sums.append(
            _gb_item("fan-out: data", usage.consumer_count * usage.written_bytes_per_s, prices.consumer_gb)
        )
    return Bill(mode, sums)


def standard_bill(usage: Usage, prices: Prices) -> Bill:
    """Return the bill of an On-demand Standard stream."""
    sums = [
        bill_item("stream", HOURS_PER_MONTH, prices.on_demand_stream_hour),
        _gb_item("data in", usage.rounded_bytes_per_s, prices.on_demand_in_gb),
        _gb_item("data out by polling", usage.polled_bytes_per_s, prices.on_demand_out_gb),
    ]
    if usage.consumer_count:
        sent = usage.consumer_count * usage.written_bytes_per_s
        sums.append(_gb_item("data out by fan-out", sent, prices.on_demand_consumer_gb))
    sums += _extended_retention(usage, prices.on_demand_extended_gb_month)
    sums += _long_retention(usage, prices.long_retention_gb_month)
    return Bill("on-demand standard", sums)


def advantage_bill(usage: Usage, prices: Prices) -> Bill:
    """Return the bill of an On-demand Advantage stream. Data in and out each count at least as the account's commitment."""
    out = usage.polled_bytes_per_s + usage.consumer_count * usage.written_bytes_per_s
    committed_bytes_per_s = prices.advantage_commitment_mibps * MIB
    sums = [
        _gb_item("data in", max(usage.rounded_bytes_per_s, committed_bytes_per_s), prices.advantage_in_gb),
        _gb_item("data out", max(out, committed_bytes_per_s), prices.advantage_out_gb),
        *_extended_retention(usage, prices.advantage_extended_gb_month),
        *_long_retention(usage, prices.long_retention_gb_month),
    ]
    note = (
        f"an account pays for {prices.advantage_commitment_mibps:g} MiB/s in and out at least; its other on-demand streams share this"
        if min(usage.rounded_bytes_per_s, out) < committed_bytes_per_s
        else ""
    )
    return Bill("on-demand advantage", sums, note)


def lease_bill(application: str, shards: int, prices: Prices, *, store: str) -> Bill:
    """Return the bill of an application's leases.

    Args:
        shards: One lease for each.
        store: `DynamoDB`, with a lease duration of 10 s, or `S3`, with 60 s.
    """
    hours, renewals = HOURS_PER_MONTH, RENEWALS_PER_HOUR[store]
    if store == "S3":
        sums = [bill_item("renewals", shards, renewals, hours, prices.s3_put_million, over=1_000_000)]
        return Bill(
            f"leases of {application} in S3", sums, "60 s until the shards of a dead worker are read again"
        )
    units = max(1, round(shards / 20))  # a row has about 200 bytes, a read unit 4 KiB
    return Bill(
        f"leases of {application} in DynamoDB",
        [
            bill_item("renewals", shards, renewals, hours, prices.lease_write_million, over=1_000_000),
            bill_item(
                "scans of the table", units, _SCANS_PER_HOUR, hours, prices.lease_read_million, over=1_000_000
            ),
        ],
        f"about {shards * renewals / 3600:.2g} write units and {units * _SCANS_PER_HOUR / 3600:.2g} read units a second",
    )


def claim_sums(
    shards: int, batches_per_hour: float, prices: Prices, *, store: str = "DynamoDB"
) -> list[BillItem]:
    """Return the items of a query's batches: for each shard a claim, and two reads of its lease.

    Args:
        shards: With records in each batch.
        store: `DynamoDB` or `S3`.
    """
    batches = (shards, batches_per_hour, HOURS_PER_MONTH)
    if store == "S3":
        return [bill_item("claims of batches", *batches, prices.s3_put_million, over=1_000_000)]
    return [
        bill_item("claims of batches", *batches, prices.lease_write_million, over=1_000_000),
        bill_item("reads of leases", 2, *batches, prices.lease_read_million, over=1_000_000),
    ]


def _gb_item(item: str, bytes_per_s: float, price: float) -> BillItem:
    return bill_item(item, bytes_per_s / GB, 3600, HOURS_PER_MONTH, price)


def _extended_retention(usage: Usage, price: float) -> list[BillItem]:
    hours = min(usage.retention_hours, 168) - 24
    if hours <= 0:
        return []
    return [bill_item("retention up to 7 days", usage.rounded_bytes_per_s / GB, 3600, hours, price)]


def _long_retention(usage: Usage, price: float) -> list[BillItem]:
    hours = usage.retention_hours - 168
    if hours <= 0:
        return []
    return [bill_item("retention beyond 7 days", usage.written_bytes_per_s / GB, 3600, hours, price)]
