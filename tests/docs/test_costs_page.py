"""Every sum on docs/costs.md gives the price beside it."""

import ast
import operator
import re
from decimal import ROUND_HALF_UP, Decimal

from docs_blocks import ROOT

_ROW = re.compile(r"^\| .+ \| ([\d. \u00d7/]+) \| \$(\d+\.\d\d) \|$", re.MULTILINE)
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
