"""Three consumers and a query on one stream that is written at its full rate: who keeps up, in real processes."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = Path(__file__).parents[3] / "bench" / "fourth_reader.py"
WRITTEN_S = 40


@pytest.mark.soak
@pytest.mark.timeout(900)
def test_a_query_and_three_consumers_keep_up_with_fan_out_and_do_not_by_polling():
    command = [sys.executable, str(PROGRAM), "--seconds", str(WRITTEN_S), "--json"]
    # It ends with an error where a reader does not get each record once.
    polling, pushed = json.loads(subprocess.run(command, check=True, capture_output=True).stdout)
    # Of the four, two share the quota of polling readers.
    assert sum(polling["behind_at_end_s"].values()) > WRITTEN_S
    behind_s = pushed["behind_at_end_s"]
    query_s = behind_s.pop("query")
    assert max(behind_s.values()) < WRITTEN_S / 8
    # Records that arrived while a batch is under way are in none.
    assert query_s < WRITTEN_S / 3
