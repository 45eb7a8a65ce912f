"""Every sum on docs/costs.md gives the price beside it."""

import ast
import operator
import re
from decimal import ROUND_HALF_UP, Decimal

from docs_blocks import ROOT
from penstock.sizing.price_table import load_prices

_ROW = re.compile(r"^\| .+ \| ([\d. \u00d7/]+) \| \$(\d+\.\d\d) \|$", re.MULTILINE)
NOT_PRICES = ("dated", "region", "currency", "advantage_commitment_mibps")
_OPERATORS = {ast.Mult: operator.mul, ast.Div: operator.truediv}


def value_of(sum_):
    def compute(node):
        if isinstance(node, ast.BinOp):
            return _OPERATORS[type(node.op)](compute(node.left), compute(node.right))
        return Decimal(str(node.value))

    return compute(ast.parse(sum_.replace("\u00d7", "*"), mode="eval").body)


def test_each_sum_is_right():
    page = (ROOT / "docs" / "costs.md").read_text(encoding="utf-8")
    rows = _ROW.findall(page)
    assert len(rows) == sum(line.startswith("| ") and "$" in line for line in page.splitlines())
    assert [str(value_of(sum_).quantize(Decimal("0.01"), ROUND_HALF_UP)) for sum_, _ in rows] == [
        price for _, price in rows
    ]


def test_the_prices_are_those_of_the_plan():
    page = (ROOT / "docs" / "costs.md").read_text(encoding="utf-8")
    prices = load_prices()
    last_factors = {re.sub(r" / 1000000$", "", sum_).rpartition(" ")[2] for sum_, _ in _ROW.findall(page)}
    known = {f"{getattr(prices, name):g}" for name in prices.__struct_fields__ if name not in NOT_PRICES}
    assert last_factors - {"0"} <= known
    assert "November 2026" in page
    assert prices.dated.startswith("2026-11")
