"""Which columns the sink takes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

from penstock.errors import OptionError
from penstock.spark.spark_options import SinkOptions

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

_TYPES: Final[Mapping[str, tuple[str, ...]]] = {
    "data": ("binary", "string"),
    "partitionKey": ("string",),
    "explicitHashKey": ("string",),
    "streamName": ("string",),
}
_REQUIRED: Final = ("data", "partitionKey")


def check_columns(schema: StructType, options: SinkOptions, *, overwrite: bool) -> tuple[str, ...]:
    """Check the columns of the rows before anything runs.

    Returns:
        Their names as the rows spell them, in the order data, partitionKey, explicitHashKey, streamName; an empty text
        for a missing one.

    Raises:
        OptionError: A column is missing, unknown or of a wrong type, or the mode would replace the stream.
    """
    if overwrite:
        raise OptionError(
            "a stream cannot be replaced: use mode append (batch) or outputMode append (streaming); for what an "
            "aggregation changed, use outputMode update with foreachBatch and write each batch"
        )
    found = {field.name.lower(): field for field in schema.fields}
    known = {name.lower() for name in _TYPES}
    unknown = sorted(field.name for key, field in found.items() if key not in known)
    if unknown:
        raise OptionError(
            f"the sink does not know the column {', '.join(unknown)}: it takes data, partitionKey and, if wanted, "
            "explicitHashKey and streamName; put the rest into data, for instance with "
            "to_json(struct('*')).alias('data')"
        )
    for name in _REQUIRED:
        if name.lower() not in found:
            raise OptionError(
                f"the column {name} is missing; add it, for instance with "
                + (
                    "to_json(struct('*')).alias('data')"
                    if name == "data"
                    else "col('id').cast('string').alias('partitionKey')"
                )
            )
    for name, types in _TYPES.items():
        column = found.get(name.lower())
        if column is not None and column.dataType.typeName() not in types:
            raise OptionError(
                f"the column {column.name} is {column.dataType.simpleString()}; the sink takes {' or '.join(types)}"
            )
    if options.stream is None and "streamname" not in found:
        raise OptionError(
            "where to write? Set option streamName, or add a column streamName that routes each row"
        )
    return tuple(found[name.lower()].name if name.lower() in found else "" for name in _TYPES)
