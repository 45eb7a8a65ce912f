"""Every example runs as its first lines say, and shows what it says."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"

SHOWS = {
    "windowed_aggregation": (r"\d\d:\d\d DE 10 orders 5500 cents\n\d\d:\d\d FR 10 orders", 4),
    "enrichment": (r"billed: 200 records .*\n200 orders billed, 22719 cents VAT", 1),
    "exactly_once_sqlite": (r"a first run ended: True\n300 orders, 300 different ones, 165000 cents", 1),
    "two_queries": (
        (
            r"each query has 2 of 4 shards\nthe first query stopped; the second one has 4 of 4 shards\n"
            r"400 orders, 0 of them twice"
        ),
        1,
    ),
    "fleet_of_three": (
        r"spark-1 killed: plain 8, spark-2 8\nits shards were taken within a lease time and a round",
        1,
    ),
    "from_kcl": (r"the KCL had done 50 records, Spark the other 50\na plain worker went on with 10 more", 1),
    "queue_of_invoices": (r"39 invoices billed, number 7 at attempt 2\ndead letters: \[13\]", 1),
    "other_connectors": (r"awslabs: 50 records\ndatabricks: 50 records", 1),
}


def test_every_example_is_shown_here_and_in_the_list():
    scripts = {path.stem for path in EXAMPLES.glob("*.py")} - {"where"}
    listed = set(re.findall(r"\[(\w+)\.py\]", (EXAMPLES / "README.md").read_text(encoding="utf-8")))
    assert scripts == set(SHOWS) == listed


@pytest.mark.timeout(300)
@pytest.mark.parametrize("name", sorted(SHOWS))
def test_an_example_shows_what_it_says(name, tmp_path):
    environ = {key: value for key, value in os.environ.items() if not key.startswith("AWS_")}
    done = subprocess.run(
        [sys.executable, str(EXAMPLES / f"{name}.py"), "--local"],
        capture_output=True,
        text=True,
        timeout=280,
        cwd=tmp_path,
        env={**environ, "PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1"},
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr[-3000:]
    pattern, count = SHOWS[name]
    assert len(re.findall(pattern, done.stdout)) == count, done.stdout
    left = {path.name for path in tmp_path.iterdir()} - {"spark-warehouse", "artifacts"}
    assert left == set()
