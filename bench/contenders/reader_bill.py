"""Count the calls of one reader in the simulator, in virtual time, and their price a month.

The figures are those of `python bench/bill.py --virtual`, and the same on any machine. Prices are those of `penstock plan`
(`src/penstock/sizing/prices.toml`, which has their source and date).
"""

from __future__ import annotations

import sys
from argparse import Namespace
from pathlib import Path

from program import Figures, run

sys.path.insert(0, str(Path(__file__).parent.parent))

import bill

from penstock.core.sizing.prices import HOURS_PER_MONTH
from penstock.sizing.price_table import load_prices


def measured(
    shards: int,
    per_s: float,
    *,
    is_consumer: bool = False,
    trigger_s: float = 0.0,
    option: tuple[str, ...] = (),
) -> Figures:
    """Run a reader for some virtual seconds."""
    is_pushed = "consumerType=fan-out" in option
    row = bill.simulate(
        Namespace(
            shards=shards,
            per_s=per_s,
            seconds=40.0,
            consumer=is_consumer,
            trigger_s=trigger_s,
            option=option,
            cycle_s=0.25,
            fan_out=is_pushed,
            virtual=True,
        )
    )
    month = row["leases a month, $"]
    if is_pushed:
        month += shards * HOURS_PER_MONTH * load_prices().consumer_shard_hour
    found = {
        "month_usd": month,
        "lease_writes_per_s": row["lease writes/s"],
        "reads_per_shard_and_s": row["reads per shard and s"],
    }
    return found | ({"median_s": row["p50 s"], "p99_s": row["p99 s"]} if per_s else {})


def query(shards: int, per_s: float, trigger_s: float = 0.0, option: tuple[str, ...] = ()) -> Figures:
    return measured(shards, per_s, trigger_s=trigger_s, option=option)


def consumer(shards: int, per_s: float) -> Figures:
    return measured(shards, per_s, is_consumer=True)


if __name__ == "__main__":
    run({"query": query, "consumer": consumer})
