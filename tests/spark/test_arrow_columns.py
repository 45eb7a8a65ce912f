"""Columns made of buffers are those that pyarrow makes of the same values."""

from __future__ import annotations

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.spark.tasks.arrow_columns import (
    binaries,
    booleans,
    constant_number,
    constant_text,
    floats,
    integers,
    repeat_values,
    texts,
)


@given(st.lists(st.none() | st.text(st.characters(exclude_categories=["Cs"])), max_size=20))
def test_texts_are_those_of_pyarrow(values: list[str | None]) -> None:
    column = texts(values)
    column.validate(full=True)
    assert column.equals(pa.array(values, pa.string()))


@given(st.lists(st.binary(), max_size=20))
def test_bytes_are_those_of_pyarrow(values: list[bytes]) -> None:
    column = binaries(values)
    column.validate(full=True)
    assert column.equals(pa.array(values, pa.binary()))


def test_a_column_longer_than_a_block_keeps_each_text() -> None:
    values = [f"key-{number}" for number in range(2_500)]
    assert texts(values).to_pylist() == values
    assert texts([*values, "schlüssel", None]).to_pylist() == [*values, "schlüssel", None]


def test_numbers_and_truth_values_are_those_of_pyarrow() -> None:
    assert integers([1, -(2**63), 2**63 - 1]).equals(pa.array([1, -(2**63), 2**63 - 1], pa.int64()))
    assert floats([1.5, -0.25]).equals(pa.array([1.5, -0.25]))
    assert booleans([True, False, True]).equals(pa.array([True, False, True]))
    assert booleans([]).equals(pa.array([], pa.bool_()))


def test_one_value_fills_a_column() -> None:
    assert constant_text("straße", 3).equals(pa.array(["straße"] * 3))
    assert constant_text("", 2).equals(pa.array(["", ""]))
    assert constant_text("x", 0).equals(pa.array([], pa.string()))
    assert constant_number(7, pa.int64(), 2).equals(pa.array([7, 7], pa.int64()))


@pytest.mark.parametrize("counts", [[2, 0, 1], [0, 0, 0], [1, 1, 1]])
def test_each_value_is_repeated(counts: list[int]) -> None:
    expected = [value for value, count in zip("abc", counts, strict=True) for _ in range(count)]
    assert repeat_values(texts(["a", "b", "c"]), counts).to_pylist() == expected


def test_more_than_arrow_s_texts_can_hold_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("penstock.spark.tasks.arrow_columns._BYTES_MAX", 10)
    with pytest.raises(OverflowError, match="11 bytes"):
        binaries([b"x" * 11])
