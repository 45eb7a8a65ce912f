import ast
import re
from itertools import pairwise
from pathlib import Path

from penstock.core import limits

SOURCE = Path(limits.__file__).read_text()
NAMES = [name for name in vars(limits) if name.isupper() and name not in {"KIB", "MIB"}]


def test_every_limit_says_its_unit_last():
    units = r"_(BYTES|COUNT|CHARS|DIGITS|KIB|HOURS|PER_S|PER_DAY|S)(_MAX|_MIN)?$"
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
    assert [
        name for name, text in told.items() if not re.search(r"API\s+reference|developer\s+guide", text)
    ] == []


def test_the_limits_fit_together():
    assert limits.RECORD_DEFAULT_BYTES_MAX == limits.RECORD_SETTING_KIB_MIN * limits.KIB == 1_048_576
    assert limits.RECORD_BYTES_MAX == limits.RECORD_SETTING_KIB_MAX * limits.KIB == 10_485_760
    assert limits.PUT_RECORDS_BYTES_MAX >= limits.RECORD_BYTES_MAX
    # A full answer is what a shard gives in the time that it then refuses to give more.
    assert limits.GET_RECORDS_BYTES_MAX == limits.SHARD_READ_BYTES_PER_S_MAX * limits.GET_RECORDS_FULL_PAUSE_S
    assert len(str(2**128 - 1)) == limits.EXPLICIT_HASH_KEY_DIGITS_MAX
