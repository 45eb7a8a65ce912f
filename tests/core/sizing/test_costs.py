"""The bills, and the table of prices."""

import json

import pytest

from penstock.core.sizing.costs import (
    Usage,
    advantage_bill,
    bill_item,
    lease_bill,
    provisioned_bill,
    standard_bill,
)
from penstock.errors import OptionError
from penstock.sizing.price_table import load_prices, own_price_text

PRICES = load_prices()
SMALL = Usage(100, 100_000, 102_400, 100_000)


def rounded(bill):
    return {each.item: round(each.amount + 1e-9, 2) for each in bill.sums}


def test_the_small_job_of_the_page_on_costs():
    assert rounded(provisioned_bill(SMALL, 2, PRICES)) == {"shards": 21.9, "PUT payload units": 3.68}
    fan_out = Usage(100, 100_000, 102_400, 0, consumer_count=1)
    assert rounded(provisioned_bill(fan_out, 2, PRICES))["fan-out: consumers"] == 21.9
    assert rounded(provisioned_bill(fan_out, 2, PRICES))["fan-out: data"] == 3.42
    assert rounded(lease_bill("billing", 2, PRICES, store="DynamoDB")) == {
        "renewals": 1.1,
        "scans of the table": 0.04,
    }
    assert rounded(lease_bill("billing", 2, PRICES, store="S3")) == {"renewals": 1.46}


def test_a_sum_is_the_product_of_the_shown_factors():
    shown = bill_item("x", 1 / 3, 730, 0.015)
    assert shown.terms == "0.333333 \u00d7 730 \u00d7 0.015"
    assert shown.amount == 0.333333 * 730 * 0.015
    assert bill_item("x", 1.5e-9).terms == "0.0000000015"


def test_on_demand_bills_data_and_advantage_its_commitment():
    assert rounded(standard_bill(SMALL, PRICES)) == {
        "stream": 29.2,
        "data in": 21.53,
        "data out by polling": 10.51,
    }
    bill = advantage_bill(SMALL, PRICES)
    assert bill.amount > 3000
    assert "25 MiB/s" in bill.note


def test_kept_data_costs_by_mode():
    week = Usage(100, 100_000, 102_400, 0, retention_hours=168)
    assert rounded(provisioned_bill(week, 2, PRICES))["retention up to 7 days"] == 29.2
    month = Usage(100, 100_000, 102_400, 0, retention_hours=720)
    assert rounded(standard_bill(month, PRICES))["retention beyond 7 days"] == 4.57


def test_prices_come_from_a_file_in_toml_or_json(tmp_path):
    toml = tmp_path / "p.toml"
    toml.write_text(own_price_text().replace("shard_hour = 0.015", "shard_hour = 0.03", 1))
    assert load_prices(str(toml)).shard_hour == 0.03
    fields = {name: getattr(PRICES, name) for name in PRICES.__struct_fields__}
    other = tmp_path / "p.json"
    other.write_text(json.dumps({**fields, "region": "eu-west-1"}))
    assert load_prices(str(other)).region == "eu-west-1"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("shard_hour = 1", "missing required field"),
        (own_price_text().replace("= 0.015", "= -1", 1), "shard_hour"),
        (own_price_text() + "\nshard_our = 1", "shard_our"),
        ("nothing here", "prices "),
    ],
)
def test_a_bad_table_is_refused_with_its_place(tmp_path, text, said):
    path = tmp_path / "p.toml"
    path.write_text(text)
    with pytest.raises(OptionError, match=said):
        load_prices(str(path))


def test_a_missing_file_is_an_option_error(tmp_path):
    with pytest.raises(OptionError, match="No such file"):
        load_prices(str(tmp_path / "none.toml"))
