"""Results of a query as a table for people, CSV, JSON lines or Parquet."""

from __future__ import annotations

import base64
import csv
import json
import shutil
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, BinaryIO, Final, Protocol
from zoneinfo import ZoneInfo

from penstock.cli.record_lines import data_text
from penstock.cli.terminal import escape_text, safe_json_text, warn
from penstock.errors import OptionError

if TYPE_CHECKING:
    import pyarrow as pa

_BY_SUFFIX: Final[Mapping[str, str]] = {
    ".csv": "csv",
    ".json": "json",
    ".jsonl": "json",
    ".ndjson": "json",
    ".parquet": "parquet",
}
_JSON_MARK: Final = b"penstock.type"
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_CELL_MIN: Final = 12
_VALUE_LINES_MAX: Final = 5
_GAP: Final = "  "


class ResultWriter(Protocol):
    """Writes batches of one result, the first of which has no rows and shows the columns."""

    def write(self, rows: pa.RecordBatch) -> None:
        """Write a batch."""

    def close(self) -> None:
        """Write the rest; close the file, but not stdout."""


def format_of(name: str | None, output: str | None) -> str:
    """Return the named format, or that of the file's name, or `table` if there is no file.

    Raises:
        OptionError: The file's name shows no format, or the format is written to files only.
    """
    if name == "parquet" and output is None:
        raise OptionError("--format parquet: name a file with --output")
    if name is not None or output is None:
        return name or "table"
    found = _BY_SUFFIX.get(Path(output).suffix.lower())
    if found is None:
        raise OptionError(
            f"--output {output}: its name shows no format; end it in {', '.join(_BY_SUFFIX)}, or add --format"
        )
    return found


def open_writer(name: str, path: Path | None) -> ResultWriter:
    """Open a writer to a file, or to stdout.

    Args:
        name: `table`, `csv`, `json` or `parquet`.
        path: The file; None: stdout.
    """
    if name == "parquet":
        assert path is not None, "format_of has checked it"
        return _ParquetWriter(path)
    kind = _TEXT_WRITERS[name]
    if path is None:
        return kind(sys.stdout, sys.stdout.flush)
    file = path.open("w", encoding="utf-8", newline="")
    return kind(file, file.close)


@contextmanager
def whole_file(name: str, path: Path | None) -> Iterator[ResultWriter]:
    """Open a writer as `open_writer` does. A file gets its name only when it is complete, and is removed after an error."""
    part_path = None if path is None else path.with_name(f"{path.name}.part")
    writer = open_writer(name, part_path)
    try:
        yield writer
        writer.close()
    except BaseException:
        if part_path is not None:
            part_path.unlink(missing_ok=True)
        raise
    if path is not None and part_path is not None:
        part_path.replace(path)


def print_not_utf8(count: int) -> None:
    """Print how many records are not UTF-8, if there are any."""
    if count:
        warn(f"penstock sql: {count} of the records read are not UTF-8: their text and json are null")


class _TextWriter:
    def __init__(self, file: IO[str], close: Callable[[], None]) -> None:
        self._file = file
        self._close = close

    def close(self) -> None:
        self._close()


class _TableWriter(_TextWriter):
    """Columns under their names, as wide as the first rows need; on a terminal cut to its width.

    If a terminal has too little room for the columns, each has a line of its own.
    """

    def __init__(self, file: IO[str], close: Callable[[], None]) -> None:
        super().__init__(file, close)
        self._names: list[str] = []
        self._widths: list[int] | None = None
        self._is_right_aligned: list[bool] = []
        self._is_vertical = False

    def write(self, rows: pa.RecordBatch) -> None:
        if not self._names:
            self._names = [escape_text(name) for name in rows.schema.names]
            self._is_right_aligned = [_is_number(field.type) for field in rows.schema]
        if rows.num_rows == 0:
            return
        cells = [list(map(_cell, _values(column))) for column in rows.columns]
        if self._widths is None:
            self._begin(
                [max(map(len, [name, *column])) for name, column in zip(self._names, cells, strict=True)]
            )
        for row in zip(*cells, strict=True):
            (self._print_vertical if self._is_vertical else self._print_line)(row)
        self._file.flush()

    def close(self) -> None:
        if self._widths is None:
            self._begin([len(name) for name in self._names])
        self._close()

    def _begin(self, widths: list[int]) -> None:
        """Choose by the widths of the columns whether a row is one line or several, and write the head of the table."""
        if self._file.isatty():
            room = shutil.get_terminal_size().columns - len(_GAP) * (len(widths) - 1)
            self._is_vertical = sum(min(width, _CELL_MIN) for width in widths) > room
            if not self._is_vertical:
                _narrow_columns(widths, room)
        self._widths = widths
        if self._is_vertical:
            return
        self._print_line(self._names)
        self._print_line(["-" * width for width in widths])

    def _print_vertical(self, row: Sequence[str]) -> None:
        """Print each value of a row on a line of its own, after its column's name."""
        width = max(map(len, self._names))
        room = _VALUE_LINES_MAX * max(_CELL_MIN, shutil.get_terminal_size().columns - width - len(_GAP))
        for name, text in zip(self._names, row, strict=True):
            shown = text if len(text) <= room else f"{text[: room - 1]}…"
            self._file.write(f"{name.ljust(width)}{_GAP}{shown}".rstrip() + "\n")
        self._file.write("\n")

    def _print_line(self, row: Sequence[str]) -> None:
        assert self._widths is not None, "the first rows have set the widths"
        is_cut = self._file.isatty()
        cells = []
        for text, width, is_right_aligned in zip(row, self._widths, self._is_right_aligned, strict=True):
            shown = text if len(text) <= width or not is_cut else f"{text[: width - 1]}…"
            cells.append(shown.rjust(width) if is_right_aligned else shown.ljust(width))
        self._file.write(_GAP.join(cells).rstrip() + "\n")


def _narrow_columns(widths: list[int], room: int) -> None:
    """Take from the widest columns, down to `_CELL_MIN` each, until all have room."""
    while sum(widths) > room and max(widths) > _CELL_MIN:
        widest = widths.index(max(widths))
        second = sorted(widths)[-2] if len(widths) > 1 else 0
        excess = sum(widths) - room
        # To the second widest at most: then both are narrowed in turn.
        step = max(1, min(widths[widest] - second, excess))
        widths[widest] = max(_CELL_MIN, widths[widest] - step)


class _CsvWriter(_TextWriter):
    """RFC 4180; a null is an empty field, bytes are Base64, nested values JSON."""

    def __init__(self, file: IO[str], close: Callable[[], None]) -> None:
        super().__init__(file, close)
        self._csv = csv.writer(file, lineterminator="\n")
        self._has_names = False

    def write(self, rows: pa.RecordBatch) -> None:
        if not self._has_names:
            self._csv.writerow(rows.schema.names)
            self._has_names = True
        columns = [map(_csv_field, _values(column)) for column in rows.columns]
        self._csv.writerows(zip(*columns, strict=True))
        self._file.flush()


class _JsonWriter(_TextWriter):
    """One JSON document to a line; bytes are Base64, and values of the type JSON are embedded."""

    def write(self, rows: pa.RecordBatch) -> None:
        for text in json_rows(rows):
            self._file.write(text + "\n")
        self._file.flush()


def json_rows(rows: pa.RecordBatch | pa.Table) -> Iterator[str]:
    """Yield each row as a JSON document on one line."""
    names = [json.dumps(name, ensure_ascii=False) for name in rows.schema.names]
    columns = [
        map(_document_text if _is_json(field) else _json_text, _values(column))
        for field, column in zip(rows.schema, rows.columns, strict=True)
    ]
    for row in zip(*columns, strict=True):
        pairs = ", ".join(f"{name}: {value}" for name, value in zip(names, row, strict=True))
        yield safe_json_text(f"{{{pairs}}}")


class _ParquetWriter:
    def __init__(self, path: Path) -> None:
        self._path = path
        self._file: BinaryIO | None = None  # Arrow refuses a path that is not UTF-8, so it gets the open file
        self._writer: Any = None

    def write(self, rows: pa.RecordBatch) -> None:
        import pyarrow as pa
        import pyarrow.parquet as pq

        if self._writer is None:
            self._file = self._path.open("wb")
            try:
                self._writer = pq.ParquetWriter(self._file, rows.schema.remove_metadata())
            except pa.ArrowNotImplementedError as error:
                self._file.close()
                raise OptionError(
                    f"--format parquet: cast the column that Parquet has no type for, for instance to VARCHAR: {error}"
                ) from error
        if rows.num_rows:
            self._writer.write_batch(rows)

    def close(self) -> None:
        if self._writer is not None:
            self._writer.close()
        if self._file is not None:
            self._file.close()


def _values(column: pa.Array) -> list[Any]:
    """Return a column's values.

    Timestamps and dates are converted here: Arrow would import pandas for timestamps (half a second), and refuses infinite ones of both.

    Raises:
        OptionError: Inside a value there is a moment that Python does not have.
    """
    kind = column.type
    if str(kind) == "date32[day]":
        return [None if days is None else _date(days) for days in column.cast("int32").to_pylist()]
    if hasattr(kind, "tz") and kind.unit == "us":
        zone = None if kind.tz is None else ZoneInfo(kind.tz)
        return [
            None if micros is None else _moment(micros, zone, kind)
            for micros in column.cast("int64").to_pylist()
        ]
    try:
        return list(column.to_pylist())
    except OverflowError as error:
        raise OptionError(
            f"a {kind} has a moment outside the years 1 to 9999: cast it to VARCHAR ({error})"
        ) from error


def _date(days: int) -> date | str:
    try:
        return _EPOCH.date() + timedelta(days)
    except OverflowError:
        import pyarrow as pa

        return _far_text(days, pa.int32(), pa.date32())


def _moment(micros: int, zone: ZoneInfo | None, kind: pa.DataType) -> datetime | str:
    try:
        moment = _EPOCH + timedelta(microseconds=micros)
        return moment.replace(tzinfo=None) if zone is None else moment.astimezone(zone)
    except OverflowError:
        import pyarrow as pa

        return _far_text(micros, pa.int64(), kind)


def _far_text(distance: int, stored: pa.DataType, kind: pa.DataType) -> str:
    """Return the text of a moment that Python does not have: DuckDB's infinity, or a year before 1 or after 9999."""
    import pyarrow as pa

    if abs(distance) == 2 ** (stored.bit_width - 1) - 1:
        return "infinity" if distance > 0 else "-infinity"
    return str(pa.scalar(distance, stored).cast(kind).cast(pa.string())).replace(" ", "T")


_TEXT_WRITERS: Final[Mapping[str, Callable[[IO[str], Callable[[], None]], ResultWriter]]] = {
    "table": _TableWriter,
    "csv": _CsvWriter,
    "json": _JsonWriter,
}


def _is_json(field: pa.Field) -> bool:
    return bool(field.metadata and _JSON_MARK in field.metadata)


def _is_number(kind: pa.DataType) -> bool:
    import pyarrow as pa

    types = pa.types
    return bool(types.is_integer(kind) or types.is_floating(kind) or types.is_decimal(kind))


def _cell(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, bytes):
        return escape_text(data_text(value))
    return escape_text(str(_csv_field(value)))


def _csv_field(value: Any) -> Any:
    if value is None:
        return ""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str | int | float):
        return value
    if isinstance(value, dict | list):
        return _json_text(value)
    return _plain_text(value)


def _document_text(text: str | None) -> str:
    # Line ends in a JSON document are space between its parts.
    return "null" if text is None else text.replace("\n", " ").replace("\r", " ")


def _json_text(value: Any) -> str:
    if isinstance(value, str | int) or value is None:
        return json.dumps(value, ensure_ascii=False)
    if isinstance(value, float):
        return json.dumps(value) if value - value == 0 else "null"  # JSON has neither infinity nor NaN
    if isinstance(value, Decimal):
        return str(value)
    if isinstance(value, dict):
        pairs = ", ".join(
            f"{json.dumps(str(key), ensure_ascii=False)}: {_json_text(each)}" for key, each in value.items()
        )
        return f"{{{pairs}}}"
    is_interval = hasattr(value, "months")  # Arrow's tuple of months, days and nanoseconds
    if isinstance(value, list | tuple) and not is_interval:
        return f"[{', '.join(map(_json_text, value))}]"
    return json.dumps(_plain_text(value), ensure_ascii=False)


def _plain_text(value: Any) -> str:
    if isinstance(value, bytes):
        return base64.b64encode(value).decode("ascii")
    if isinstance(value, datetime | time):
        return value.isoformat(timespec="microseconds" if value.microsecond % 1000 else "milliseconds")
    if isinstance(value, date):
        return value.isoformat()
    if isinstance(value, tuple):  # Arrow's months, days and nanoseconds
        return _interval(*value)
    return str(value)


def _interval(months: int, days: int, nanoseconds: int) -> str:
    """Return an interval as DuckDB writes it: `1 year 2 months 3 days 04:05:06.5`."""
    years, months = divmod(months, 12)
    counts = ((years, "year"), (months, "month"), (days, "day"))
    parts = [f"{count} {word}{'' if count == 1 else 's'}" for count, word in counts if count]
    micros = abs(nanoseconds) // 1000
    if micros or not parts:
        seconds, fraction = divmod(micros, 1_000_000)
        sign = "-" if nanoseconds < 0 else ""
        text = f"{sign}{seconds // 3600:02}:{seconds // 60 % 60:02}:{seconds % 60:02}"
        parts.append(f"{text}.{fraction:06}".rstrip("0") if fraction else text)
    return " ".join(parts)
