"""The lines for spark-submit: the packages and settings that the formats of the deliveries need."""

from __future__ import annotations

import pytest

from penstock.core.delivering.lake_packages import has_packages, lake_settings, newest_line
from penstock.core.delivering.submission import submit_lines
from penstock.errors import OptionError


def test_plain_files_need_no_packages():
    lines = submit_lines("lake/orders.yml", ("--once",), None, lake_settings({"parquet"}, None, {}))
    assert "--packages" not in lines
    assert lines.endswith("deliver.py deliver -f orders.yml --once")


def test_a_lake_has_its_package_and_its_settings():
    line = newest_line({"iceberg", "delta", "parquet"})
    assert line == "4.1"
    settings = lake_settings({"delta"}, line, {})
    lines = submit_lines("orders.yml", (), "yarn", settings, line).splitlines()
    assert lines[0] == "# the packages are for Spark 4.1"
    assert "--master yarn" in lines[-2]
    assert (
        "--packages io.delta:delta-spark_4.1_2.13:4.4.0 --conf spark.sql.extensions=io.delta.sql" in lines[-2]
    )
    assert not has_packages({"iceberg"}, "4.2")


def test_a_registry_of_schemas_needs_its_packages():
    lines = submit_lines("orders.yml", (), None, {}, has_schemas=True)
    assert "pip install 'penstock[schemas]' 'pyarrow" in lines


def test_two_files_of_one_name_cannot_be_shipped():
    lines = submit_lines("orders.yml", (), None, {}, schema_files=("a/id.json", "a/id.json"))
    assert "--files orders.yml,a/id.json " in lines
    with pytest.raises(OptionError, match=r"a/id\.json and b/id\.json have the same name"):
        submit_lines("orders.yml", (), None, {}, schema_files=("a/id.json", "b/id.json"))
