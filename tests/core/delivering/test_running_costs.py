"""The running costs of a delivery."""

from __future__ import annotations

import pytest

from penstock.core.delivering.definition import parse_delivery
from penstock.core.delivering.running_costs import running_costs
from penstock.sizing.price_table import load_prices


def costs(*, bytes_per_s=1_000_000.0, shards=2, partitions=1, **given):
    delivery = parse_delivery({"stream": "orders", "to": "s3://lake/orders", **given})
    return running_costs(
        delivery,
        shard_count=shards,
        bytes_per_s=bytes_per_s,
        partition_count=partitions,
        prices=load_prices(),
    )


def test_two_shards_each_minute():
    found = costs(freshness="60s")
    assert found.batches_per_day == 1440
    assert found.reads_per_day == 2880
    assert found.lease_writes_per_day == 2 * (24 * 1200 + 1440)
    assert found.files_per_day == 1440
    amounts = {each.item: round(each.amount, 2) for each in found.sums}
    assert amounts == {
        "renewals": 1.09,
        "scans of the table": 0.04,
        "claims of batches": 0.05,
        "reads of leases": 0.02,
        "S3: files": 1.97,
    }


def test_the_page_of_costs_has_the_same_claims():
    found = costs(freshness="10s")
    amounts = {each.item: round(each.amount, 2) for each in found.sums}
    assert (amounts["claims of batches"], amounts["reads of leases"]) == (0.33, 0.13)


@pytest.mark.parametrize(
    ("given", "warning"),
    [
        (
            {},
            "2,880 a day of about 30 MB, below the target of 134 MB; choose freshness 4m, or fewer partitions",
        ),
        ({"partitions": 1}, ""),
        ({"bytes_per_s": None}, ""),
        ({"file-size": "16m"}, ""),
        ({"freshness": "5s", "bytes_per_s": 10.0}, "34,560 a day of about 1 kB"),
    ],
)
def test_small_files_are_foreseen(given, warning):
    found = costs(**{"partitions": 2, **given}).warning
    assert warning in found
    assert bool(found) == bool(warning)


def test_leases_in_a_folder_cost_nothing():
    assert [each.item for each in costs(options={"leaseTable": "/lake/leases"}).sums] == ["S3: files"]
