import ast
import re
from itertools import pairwise
from pathlib import Path

from penstock.core import limits

SOURCE = Path(limits.__file__).read_text()
NAMES = [name for name in vars(limits) if name.isupper() and name not in {"KIB", "MIB"}]


def test_every_limit_says_its_unit_last():
    units = r"_(BYTES|COUNT|CHARS|DIGITS|PER_S|S|MS)(_MAX|_MIN)?$"
    assert [name for name in NAMES if not re.search(units, name)] == []


def test_every_limit_names_its_source():
    body = ast.parse(SOURCE).body
    told = {
        statement.target.id: following.value.value
        for statement, following in pairwise(body)
        if isinstance(statement, ast.AnnAssign)
        and isinstance(following, ast.Expr)
        and isinstance(following.value, ast.Constant)
    }
    assert set(told) == set(NAMES)
    assert [name for name, text in told.items() if not re.search(r"API\s+reference", text)] == []


def test_the_largest_record_fits_into_a_request():
    assert limits.RECORD_DEFAULT_BYTES_MAX <= limits.RECORD_BYTES_MAX <= limits.PUT_RECORDS_BYTES_MAX
