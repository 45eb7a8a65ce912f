"""Render the option table for `penstock options` and docs/options.md."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from penstock.core.option_table import Option
from penstock.spark.options.foreign_options import REFUSED, WITHOUT_EFFECT
from penstock.spark.options.spark_options import OPTIONS

_SCOPES: Final = (("source", "streaming read"), ("batch", "batch read"), ("sink", "write"))
_UNBOUNDED: Final = {f"1..{2**53}": "1 or more"}


def option_rows() -> list[dict[str, Any]]:
    """Return one row per option, as plain values."""
    return [
        {
            "name": option.name,
            "form": option.kind.form,
            "default": None if option.default is None else _default_text(option),
            "scopes": [scope for scope, _ in _SCOPES if scope in option.scopes],
            "aliases": [alias.partition("=")[0] for alias in option.aliases],
            "meaning": option.meaning,
        }
        for option in OPTIONS
    ]


def render_markdown() -> str:
    """Return the text of docs/options.md."""
    lines = [
        "# Options of the Spark source and sink",
        "",
        "Generated from the code by `make docs`; `penstock options` prints the same. Names are case-insensitive.",
        "An unknown name is an error that suggests the nearest known one.",
        "",
        "| option | form | for | meaning |",
        "|---|---|---|---|",
    ]
    for row in option_rows():
        where = ", ".join(row["scopes"])
        form = _UNBOUNDED.get(row["form"], row["form"])
        if row["default"] is not None:
            form += f"; default `{row['default']}`"
        meaning = row["meaning"]
        if row["aliases"]:
            meaning += " Also accepted as " + ", ".join(f"`{alias}`" for alias in row["aliases"]) + "."
        lines.append(f"| `{row['name']}` | {form} | {where} | {_as_text(meaning)} |")
    lines += [
        "",
        "`source` is `spark.readStream`, `batch` is `spark.read`, `sink` is `write` and `writeStream`. Write durations as",
        "`200ms`, `1s`, `5m`, or in words as Spark's triggers, `10 seconds`. A bare number is seconds; in an alias that names its unit",
        "(`...Ms`) it has that unit. Write sizes as in Spark: `1048576`, `512k`, `10m`, `1g`; `10MB`, `10MiB` and `10 MiB` are the same,",
        "10,485,760 bytes. The command line and the files of `penstock deliver` read sizes by the same rule.",
        "",
        "## Accepted without effect",
        "",
        "Options of other connectors that are not needed. A query that sets one runs and logs the reason.",
        "",
        "| option | reason |",
        "|---|---|",
    ]
    lines += _rows(WITHOUT_EFFECT)
    lines += [
        "",
        "## Refused options",
        "",
        "Options of other connectors and of Spark's Kafka source without an equivalent. A query that sets one ends with this message.",
        "",
        "| option | instead |",
        "|---|---|",
    ]
    lines += _rows({f"{name}*" if name.endswith(".") else name: remedy for name, remedy in REFUSED.items()})
    return "\n".join(lines) + "\n"


def _as_text(meaning: str) -> str:
    """Escape what Markdown reads as an HTML tag, except in code."""
    parts = meaning.split("`")
    return "`".join(part if place % 2 else part.replace("<", "&lt;") for place, part in enumerate(parts))


def _rows(options: Mapping[str, str]) -> list[str]:
    return [
        f"| `{name}` | {text} |" for name, text in sorted(options.items(), key=lambda each: each[0].lower())
    ]


def _default_text(option: Option) -> str:
    value = option.default
    if isinstance(value, bool):
        return str(value).lower()
    if option.kind.form == "duration":
        return f"{value:g}s" if value >= 1 else f"{value * 1000:g}ms"
    if option.kind.form == "size" and value % 2**20 == 0:
        return f"{value // 2**20}m"
    return str(value)
