"""Compaction between batches: its rate, which outlives the program, and its failures."""

from __future__ import annotations

import logging

import pytest
from pyspark.errors import PySparkRuntimeError

from penstock.core.delivering.definition import parse_delivery
from penstock.delivery.compaction import Compaction
from penstock.delivery.files import LocalFiles
from penstock.errors import OptionError


@pytest.fixture
def compaction(tmp_path):
    """Opens the compaction of a delivery with `compact: every 1h`, as each run of the program does."""
    given = {"stream": "orders", "to": f"{tmp_path}/t", "format": "delta", "compact": "every 1h"}
    delivery = parse_delivery(given)

    def open_at(hours, compact):
        return Compaction(delivery, LocalFiles(), compact, lambda: round(hours * 3_600_000))

    return open_at


def test_it_runs_once_an_hour_whatever_program_runs(compaction):
    calls = []
    hours = [0, 0.5, 1, 1.5, 1.99, 2, 7]
    tried = [compaction(each, lambda: calls.append(None)).run_if_due() for each in hours]
    assert tried == [False, False, True, False, False, True, True]
    assert len(calls) == 3


def test_a_failure_is_a_counted_warning_and_waits_for_the_next_hour(compaction, caplog):
    def fail():
        raise PySparkRuntimeError("no space\nat line 2")

    assert not compaction(0, fail).run_if_due()
    later = compaction(1, fail)
    with caplog.at_level(logging.WARNING):
        assert later.run_if_due()
    assert later.failure_count == 1
    assert "compaction" in caplog.text
    assert "for the 1. time in this program" in caplog.text
    assert not later.run_if_due()


def test_only_lake_tables_are_compacted():
    with pytest.raises(OptionError, match="compact has no effect with format=parquet"):
        parse_delivery({"stream": "orders", "to": "/t", "compact": "1h"})
