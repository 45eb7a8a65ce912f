"""Results of `penstock sql` on a terminal and in files."""

from __future__ import annotations

import io
from pathlib import Path

import pytest

pytest.importorskip("pyarrow")

import pyarrow as pa

from penstock.cli.sql_output import _TableWriter, format_of, open_writer
from penstock.errors import OptionError


class Terminal(io.StringIO):
    def isatty(self):
        return True


def table_of(rows, columns, monkeypatch, file=None):
    monkeypatch.setenv("COLUMNS", str(columns))
    file = Terminal() if file is None else file
    writer = _TableWriter(file, lambda: None)
    batch = pa.RecordBatch.from_pylist(rows)
    writer.write(batch.slice(0, 0))
    writer.write(batch)
    writer.close()
    return file.getvalue().splitlines()


def test_a_table_is_cut_to_the_terminal(monkeypatch):
    rows = [{"n": 1, "text": "x" * 100}, {"n": 22, "text": "y"}]
    assert table_of(rows, 20, monkeypatch) == [
        " n  text",
        f"--  {'-' * 16}",
        f" 1  {'x' * 15}…",
        "22  y",
    ]


def test_columns_without_room_are_below_each_other(monkeypatch):
    row = {f"column{n}": "x" * 30 for n in range(10)}
    assert table_of([row], 80, monkeypatch) == [*(f"column{n}  {'x' * 30}" for n in range(10)), ""]


def test_a_table_in_a_file_is_whole(monkeypatch):
    rows = [{"text": "x" * 300}]
    assert table_of(rows, 20, monkeypatch, io.StringIO()) == [
        "text".ljust(300).rstrip(),
        "-" * 300,
        "x" * 300,
    ]


def test_a_result_without_rows_shows_its_columns(monkeypatch):
    writer = _TableWriter(file := io.StringIO(), lambda: None)
    writer.write(pa.RecordBatch.from_pylist([], pa.schema([("a", pa.int64()), ("bb", pa.string())])))
    writer.close()
    assert file.getvalue() == "a  bb\n-  --\n"


@pytest.mark.parametrize(
    ("given", "output", "expected"),
    [(None, None, "table"), ("json", None, "json"), (None, "x.CSV", "csv"), ("csv", "x.txt", "csv"), (None, "x.jsonl", "json")],
)  # fmt: skip
def test_the_format_follows_the_name_of_the_file(given, output, expected):
    assert format_of(given, output) == expected


def test_a_type_that_parquet_does_not_have_is_a_clear_error(tmp_path):
    writer = open_writer("parquet", tmp_path / "x.parquet")
    schema = pa.schema([("i", pa.month_day_nano_interval())])
    with pytest.raises(OptionError, match="cast the column"):
        writer.write(pa.RecordBatch.from_arrays([pa.nulls(0, schema.field(0).type)], schema=schema))


@pytest.mark.parametrize(("given", "output"), [("parquet", None), (None, "x.txt"), (None, str(Path("x")))])
def test_a_format_that_cannot_be_chosen_is_refused(given, output):
    with pytest.raises(OptionError):
        format_of(given, output)
