"""Prices of the services: a dated table that the user can replace."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Final

import msgspec
from msgspec import Meta, Struct

from penstock.errors import OptionError

HOURS_PER_MONTH: Final = 730
Price = Annotated[float, Meta(ge=0)]


class Prices(Struct, frozen=True, forbid_unknown_fields=True):
    """Prices of one region.

    A GB has 1,000,000,000 bytes here; a month has 730 hours.

    Args:
        dated: When they were read, as year-month-day.
        shard_hour: Provisioned: a shard.
        put_units_million: Provisioned: a million PUT payload units of 25 KB.
        shard_hour_extended: Provisioned: a shard whose records are kept for more than a day, up to 7 days.
        consumer_shard_hour: Provisioned: a registered consumer on a shard.
        consumer_gb: Provisioned: a GB that registered consumers receive.
        long_retention_gb_month: Provisioned and on-demand: a GB kept for longer than 7 days.
        on_demand_stream_hour: On-demand Standard: a stream.
        on_demand_in_gb: On-demand Standard: a GB written, each record rounded up to a KB.
        on_demand_out_gb: On-demand Standard: a GB read by polling.
        on_demand_consumer_gb: On-demand Standard: a GB that registered consumers receive.
        on_demand_extended_gb_month: On-demand Standard: a GB kept for more than a day, up to 7 days.
        advantage_in_gb: On-demand Advantage: a GB written, each record rounded up to a KB.
        advantage_out_gb: On-demand Advantage: a GB read, by polling or fan-out.
        advantage_extended_gb_month: On-demand Advantage: a GB kept for more than a day.
        advantage_commitment_mibps: On-demand Advantage: the MiB a second that an account pays at least, written and read.
        lease_write_million: DynamoDB on-demand: a million write request units.
        lease_read_million: DynamoDB on-demand: a million read request units.
        s3_put_million: S3: a million PUT requests.
    """

    dated: str
    region: str
    currency: str
    shard_hour: Price
    put_units_million: Price
    shard_hour_extended: Price
    consumer_shard_hour: Price
    consumer_gb: Price
    long_retention_gb_month: Price
    on_demand_stream_hour: Price
    on_demand_in_gb: Price
    on_demand_out_gb: Price
    on_demand_consumer_gb: Price
    on_demand_extended_gb_month: Price
    advantage_in_gb: Price
    advantage_out_gb: Price
    advantage_extended_gb_month: Price
    advantage_commitment_mibps: Price
    lease_write_million: Price
    lease_read_million: Price
    s3_put_million: Price


def parse_prices(document: Mapping[str, Any], where: str) -> Prices:
    """Return the prices of a document.

    Args:
        document: The value of every field of `Prices`, by name.
        where: Its source, for messages.

    Raises:
        OptionError: A price is missing, unknown, negative or not a number.
    """
    try:
        return msgspec.convert(document, Prices)
    except msgspec.ValidationError as error:
        raise OptionError(f"{where}: {error}; `penstock plan --show-prices` prints a whole table") from error
