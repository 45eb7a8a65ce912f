"""The columns that the sink takes."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Final

from penstock.core.keyword_options import did_you_mean
from penstock.errors import OptionError
from penstock.spark.options.spark_options import SinkOptions
from penstock.spark.schema import COLUMNS

if TYPE_CHECKING:
    from pyspark.sql.types import StructField, StructType

_TYPES: Final[Mapping[str, tuple[str, ...]]] = {
    "data": ("binary", "string"),
    "partitionKey": ("string",),
    "explicitHashKey": ("string",),
    "streamName": ("string",),
}
_REQUIRED: Final = {
    "data": "to_json(struct('*')).alias('data')",
    "partitionKey": "col('id').cast('string').alias('partitionKey')",
}
"""The required columns, each with an example of how to make it."""
_NESTED: Final = frozenset({"struct", "array", "map", "variant"})
_SHOWN_MAX: Final = 10
_IGNORED: Final = tuple(name for name in COLUMNS if name not in _TYPES)
"""Columns of the source with a record's position, which have no meaning for the sink."""
_READ_FROM: Final = ("shardId", "sequenceNumber")
_FOREIGN: Final = {
    "key": "partitionKey",
    "value": "data",
    "topic": "streamName",
    "stream": "streamName",
}
"""Columns of Spark's Kafka sink and of other Kinesis sources, and their names here."""


def check_columns(schema: StructType, options: SinkOptions, *, overwrite: bool) -> tuple[str, ...]:
    """Check the columns of the rows before anything runs.

    Returns:
        The names of the columns as the rows spell them, in the order data, partitionKey, explicitHashKey, streamName; an
        empty text for a missing column.

    Raises:
        OptionError: A column is missing, unknown, ambiguous or of a wrong type, the mode would replace the stream, or
            neither an option nor a column names the stream to write to.
    """
    if overwrite:
        raise OptionError(
            "a stream cannot be replaced: use mode append (batch) or outputMode append (streaming); for what an "
            "aggregation changed, use outputMode update with foreachBatch and write each batch"
        )
    found = {name: [each for each in schema.fields if each.name.lower() == name.lower()] for name in _TYPES}
    _refuse_unknown([field.name for field in schema.fields])
    for name, example in _REQUIRED.items():
        if not found[name]:
            raise OptionError(f"the column {name} is missing; add it, for instance with {example}")
    for name, columns in found.items():
        _check_column(name, columns)
    if options.stream is None:
        _check_routing({field.name.lower() for field in schema.fields})
    return tuple(columns[0].name if columns else "" for columns in found.values())


def _refuse_unknown(names: Collection[str]) -> None:
    known = {name.lower() for name in (*_TYPES, *_IGNORED)}
    unknown = sorted(name for name in names if name.lower() not in known)
    if not unknown:
        return
    shown, more_count = unknown[:_SHOWN_MAX], len(unknown) - _SHOWN_MAX
    more = f" and {more_count} more" if more_count > 0 else ""
    foreign = {name.lower(): own for name, own in _FOREIGN.items()}
    hints = "".join(
        f"the column {name} is called {foreign[name.lower()]} here; "
        if name.lower() in foreign
        else did_you_mean(name, _TYPES).replace("did you mean", f"{name}: did you mean")
        for name in unknown
    )
    raise OptionError(
        f"the sink has no column {', '.join(shown)}{more}: {hints}it takes data, partitionKey and, if wanted, "
        f"explicitHashKey and streamName, and ignores the source's other columns ({', '.join(_IGNORED)}). Put the rest into "
        "data, for instance with to_json(struct('*')).alias('data'), or drop it"
    )


def _check_column(name: str, columns: list[StructField]) -> None:
    if len(columns) > 1:
        raise OptionError(
            f"the rows have {len(columns)} columns {name} ({', '.join(each.name for each in columns)}); keep one"
        )
    types = _TYPES[name]
    for column in columns:
        kind = column.dataType.typeName()
        if kind not in types:
            text = f"to_json({name})" if kind in _NESTED else f"cast({name} as string)"
            raise OptionError(
                f"the column {column.name} is {column.dataType.simpleString():.200}; the sink takes {' or '.join(types)}: convert "
                f"it, for instance with {text}"
            )


def _check_routing(names: Collection[str]) -> None:
    if "streamname" not in names:
        raise OptionError(
            "where to write? Set option streamName, or add a column streamName that routes each row"
        )
    if all(name.lower() in names for name in _READ_FROM):
        raise OptionError(
            "where to write? Set option streamName: these rows were read from a stream, and their column streamName names that "
            f"one. If it names other streams, drop {' and '.join(_READ_FROM)}: then it routes each row"
        )
