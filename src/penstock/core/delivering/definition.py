"""The definition of a delivery: options of the command line or keys of a file, checked once."""

from __future__ import annotations

import itertools
import re
from collections.abc import Mapping, Sequence
from typing import Any, Final

from msgspec import Struct

from penstock.core.delivering.partitions import PartitionColumn, parse_partitions
from penstock.core.keyword_options import check_names, check_unicode, repeated_name
from penstock.core.option_table import SIZE, TEXT, Kind, duration, one_of
from penstock.errors import OptionError

FRESHNESS_MIN_S: Final = 5.0
RAW: Final = "raw"
GLUE: Final = "glue"
SAMPLE: Final = "sample"
METADATA: Final = {
    "arrived": "approximateArrivalTimestamp",
    "streamName": "streamName",
    "shardId": "shardId",
    "sequenceNumber": "sequenceNumber",
    "subSequenceNumber": "subSequenceNumber",
    "partitionKey": "partitionKey",
    "explicitHashKey": "explicitHashKey",
}
"""Metadata columns that a table of JSON records may have besides the fields: the source's column by name."""
NEW_TABLE: Final = (
    "deliver into a new table (under another name the delivery begins at its start, and would put the stream's records into this table "
    "again)"
)
"""The way out of a delivery that cannot go on, for messages."""
_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.]{0,63}(-[A-Za-z0-9_.]{1,63}){0,7}")
FILE_FORMATS: Final = ("parquet", "json")
"""Formats of tables that are plain files in a folder."""
LAKES: Final = ("delta", "iceberg")
"""Formats of tables with transactions."""
_STREAM_OF_RECORDS: Final = "stream"
_TABLE_NAME: Final = re.compile(r"[A-Za-z0-9_-]+(\.[A-Za-z0-9_-]+)+")


def _rate_kind(kind: Kind) -> Kind:
    """Return the kind of a rate: a duration, with or without `every` before it."""
    return Kind(kind.form, lambda text: kind.read(text.removeprefix("every ")))


_KINDS: Final[dict[str, Kind]] = {
    "stream": TEXT,
    "to": TEXT,
    "name": TEXT,
    "format": one_of(*FILE_FORMATS, *LAKES, _STREAM_OF_RECORDS),
    "schema": TEXT,
    "evolve": one_of("add", "refuse"),
    "start": TEXT,
    "since": TEXT,
    "until": TEXT,
    "freshness": duration(FRESHNESS_MIN_S, 86_400),
    "compact": _rate_kind(duration(60, 30 * 86_400)),
    "checkpoint": TEXT,
    "application": TEXT,
    "time-zone": TEXT,
    "file-size": SIZE,
    "dead-letters": TEXT,
    "state": TEXT,
    "region": TEXT,
    "endpoint-url": TEXT,
    "profile": TEXT,
}
_FIELDS: Final = {
    **{key: key for key in ("format", "evolve", "start", "since", "until", "application")},
    "freshness": "freshness_s",
    "compact": "compact_s",
    "time-zone": "time_zone",
    "file-size": "file_bytes",
}
"""Fields of `Delivery` that have the value of a key as it is read."""
_FOLDERS: Final = {"checkpoint": "checkpoint", "dead-letters": "dead_letters", "state": "state_folder"}
_LISTS: Final = ("partition-by", "metadata")
KEYS: Final = (*_KINDS, *_LISTS, "options")
_ROOT: Final = re.compile(r"(?!file:)[\w.+-]+://[^/]*")
_RELATIVE_STEP: Final = re.compile(r"(?!file:)[\w.+-]+:/.*/\.{1,2}(/.*)?")
"""An address elsewhere with a step `.` or `..`. Of a path on this machine, the steps are taken when it is made absolute."""
_FOLDERS_OF_DELTA: Final = ("_delta_log", "_change_data")
"""Folders of Delta's own files in the folder of a table."""


class Delivery(Struct, frozen=True, kw_only=True):
    """The definition of one delivery: a stream, its table, and how records become rows.

    Args:
        name: Part of the names of its files.
        stream: Name or ARN.
        to: The table's folder, without a slash at its end; or the name of a table of a catalog, or of a stream.
        format: `parquet`, `json`, `delta`, `iceberg` or `stream`.
        schema: `raw`, `sample`, or the text of a schema.
        evolve: `add` new fields as columns, or `refuse` records that have them.
        partitions: The table's partition columns, in order.
        metadata: Columns beside the fields of a JSON record.
        start: A starting position as typed.
        is_start_given: Whether it was typed; else it is the default.
        since: Begin of a backfill as typed.
        until: End of a backfill as typed.
        freshness_s: Time between two batches.
        compact_s: Time between two compactions of a lake table; None for none.
        checkpoint: Spark's checkpoint location; None is the default beside the table.
        application: Name of the leases; None is the default.
        time_zone: Of dates and of timestamps without one.
        file_bytes: Target size of a file.
        dead_letters: Folder of dead letters; None is the default beside the table.
        state_folder: Folder for everything that is not the table; None is the default beside the table.
        connection: Connection options that are set, under the source's names for them.
        options: Further options of the source.
    """

    name: str
    stream: str
    to: str
    format: str = "parquet"
    schema: str = SAMPLE
    evolve: str = "add"
    partitions: tuple[PartitionColumn, ...] = ()
    metadata: tuple[str, ...] = ()
    start: str = "TRIM_HORIZON"
    is_start_given: bool = False
    since: str | None = None
    until: str | None = None
    freshness_s: float = 60.0
    compact_s: float | None = None
    checkpoint: str | None = None
    application: str | None = None
    time_zone: str = "UTC"
    file_bytes: int = 128 * 2**20
    dead_letters: str | None = None
    state_folder: str | None = None
    connection: tuple[tuple[str, str], ...] = ()
    options: tuple[tuple[str, str], ...] = ()

    @property
    def state(self) -> str:
        """The folder beside the table for everything that is not the table."""
        return f"{self.state_folder or f'{self.to}.penstock'}/{self.name}"

    @property
    def is_folder(self) -> bool:
        """Whether `to` is a folder, not the name of a table in a catalog or of a stream."""
        if self.format == "delta":
            return _TABLE_NAME.fullmatch(self.to) is None
        return self.format in FILE_FORMATS

    @property
    def adds_to_structs(self) -> bool:
        """Whether a new field inside a struct becomes a field of the column. In a lake table only the user can add it."""
        return self.format not in LAKES

    @property
    def glue_schema(self) -> tuple[str, str] | None:
        """Registry and name of the schema of `glue`, `glue:NAME` or `glue:REGISTRY/NAME`; None for other schemas."""
        word, _, name = self.schema.partition(":")
        if word != GLUE:
            return None
        registry, _, last = name.strip().rpartition("/")
        return registry or "default-registry", last or self.stream.rpartition("/")[2]

    @property
    def checkpoint_location(self) -> str:
        """Spark's checkpoint location."""
        return self.checkpoint or f"{self.state}/checkpoint"

    @property
    def dead_letter_folder(self) -> str:
        """The folder of dead letters."""
        return self.dead_letters or f"{self.state}/dead-letters"


def parse_delivery(document: Mapping[str, Any], defaults: Mapping[str, Any] | None = None) -> Delivery:
    """Return the definition from a mapping of keys, as a file or the command line gives it.

    Args:
        document: By key; dashes and underscores in a key are the same.
        defaults: Values for keys that are not given, written with dashes.

    Raises:
        OptionError: Anything unknown, missing or out of range.
    """
    keys = [str(key).replace("_", "-") for key in document]
    twice = repeated_name(keys)
    if twice is not None:
        raise OptionError(f"{twice} is there twice, once with an underscore")
    document = {**(defaults or {}), **dict(zip(keys, document.values(), strict=True))}
    check_names(document, KEYS, "key")
    values = {
        key: _read_value(key, kind, document[key])
        for key, kind in _KINDS.items()
        if document.get(key) is not None
    }
    for key, what in (("stream", "the stream that is read"), ("to", "the table's folder")):
        if key not in values:
            raise OptionError(f"{key} is missing: {what}")
    for key in ("to", *_FOLDERS):
        if key in values:
            values[key] = _without_end_slashes(key, values[key])
    name = values.get("name") or values["stream"].rpartition("/")[2]
    if _NAME.fullmatch(name) is None:
        raise OptionError(
            f"name={name}: it is part of file names: letters, digits, dots, underscores and single dashes"
            + ("" if "name" in values else "; the stream's does not fit, so choose another one with `name`")
            + ("; variables are not replaced here" if "$" in name else "")
        )
    if values.get("until") is not None and values.get("since") is None:
        raise OptionError("until needs since: a backfill has a beginning")
    if values.get("since") is not None and values.get("start") is not None:
        raise OptionError("start and since exclude each other: a backfill begins at since")
    schema = values.get("schema", RAW if values.get("format") == _STREAM_OF_RECORDS else SAMPLE)
    metadata = _read_texts("metadata", document.get("metadata"))
    check_names(metadata, METADATA, "column in metadata")
    if schema == RAW and metadata:
        raise OptionError("metadata has no effect with schema=raw, whose table has all columns of the source")
    fields = {field: values[key] for key, field in _FIELDS.items() if key in values}
    fields |= {field: values[key] for key, field in _FOLDERS.items() if key in values}
    delivery = Delivery(
        name=name,
        stream=values["stream"],
        to=values["to"],
        schema=schema,
        partitions=parse_partitions(_read_texts("partition-by", document.get("partition-by"))),
        metadata=metadata,
        is_start_given="start" in values,
        connection=tuple(
            (source, values[key])
            for key, source in (("region", "region"), ("endpoint-url", "endpointUrl"), ("profile", "profile"))
            if key in values
        ),
        options=_read_options(document.get("options")),
        **fields,
    )
    _check_target(delivery)
    return delivery


def _without_end_slashes(key: str, place: str) -> str:
    """Return a place without slashes at its end.

    Raises:
        OptionError: It is the root of a file system: without its slashes it would be the name of a folder. Or it has a step `.` or `..`.
    """
    found = place.rstrip("/")
    if not found or found.endswith(":"):
        raise OptionError(f"{key}={place} is the root of a file system: name a folder in it")
    if _RELATIVE_STEP.fullmatch(found):
        raise OptionError(f"{key}={place}: write the address without a step . or ..")
    return found


def _check_root(delivery: Delivery) -> None:
    """Refuse a table at the root of a bucket, beside which its state cannot be.

    Delta moves no files from the state into the table, so its state may be in another bucket, or in a folder that Delta's readers skip.
    """
    if not delivery.is_folder or _ROOT.fullmatch(delivery.to) is None:
        return
    advice = f"to={delivery.to}: a table needs a folder of its own, such as {delivery.to}/{delivery.name}, since its state"
    if delivery.format != "delta":
        raise OptionError(f"{advice} is outside of it in the same file system or bucket")
    if not delivery.state_folder:
        raise OptionError(f"{advice} cannot be beside it; or name a folder with state")


def _check_target(delivery: Delivery) -> None:
    shown = f"to={delivery.to}"
    _check_root(delivery)
    if delivery.format == "iceberg" and _TABLE_NAME.fullmatch(delivery.to) is None:
        raise OptionError(f"{shown}: an Iceberg table is named by its catalog, such as lake.sales.orders")
    if not delivery.is_folder and delivery.state_folder is None:
        raise OptionError(
            f"state is missing: {shown} is not a folder, so name one for the checkpoint, the batches and the dead letters"
            + (f"; if it is one, write ./{delivery.to}" if delivery.format == "delta" else "")
        )
    if delivery.compact_s is not None and delivery.format not in LAKES:
        raise OptionError(
            f"compact has no effect with format={delivery.format}, whose files others may merge; it is for delta and iceberg"
        )
    if delivery.format == _STREAM_OF_RECORDS:
        for key, value in (("partition-by", delivery.partitions), ("metadata", delivery.metadata)):
            if value:
                raise OptionError(
                    f"{key} has no effect with format=stream, which writes the records as they are"
                )
        if delivery.to in (delivery.stream, delivery.stream.rpartition("/")[2]):
            raise OptionError(f"{shown} is the stream that is read")


class LeasePlace(Struct, frozen=True):
    """Identifies the place of a delivery's leases.

    Args:
        connection: Values of the options that choose the account, the region and the endpoint.
        lease_table: Name or location of the lease table.
    """

    connection: tuple[str | None, ...]
    lease_table: str


def check_together(deliveries: Sequence[tuple[Delivery, LeasePlace]]) -> None:
    """Refuse deliveries that would write the same files, or divide the shards of a stream between them.

    Whether two put one stream into one table is known when the service has described the streams: `check_streams`.

    Raises:
        OptionError: Two have the same name and table, or share leases, a checkpoint location, or files of dead letters; or the folder of
            a table has another folder of a delivery inside.
    """
    for (table, _), (each, _) in itertools.product(deliveries, repeat=2):
        _check_outside(table, each)
    seen: set[str | tuple[str, str]] = set()
    for each, _ in deliveries:
        if each.state in seen or (each.to, each.name) in seen:
            raise OptionError(f"two deliveries {each.name} into {each.to}: give one another name")
        seen |= {each.state, (each.to, each.name)}
    claimed: set[tuple[str, object]] = set()
    for each, place in deliveries:
        for claim, where, consequence in _exclusive_options(each, place):
            if (claim, where) in claimed:
                raise OptionError(f"two deliveries have {claim}: {consequence}")
            claimed.add((claim, where))


def _check_outside(table: Delivery, delivery: Delivery) -> None:
    """Refuse a delivery with a folder inside the folder of a table, whose readers would read its files."""
    if not table.is_folder:
        return
    places = [("to", delivery.to)] if delivery.to != table.to else []
    places += [
        ("state", delivery.state),
        ("checkpoint", delivery.checkpoint_location),
        ("dead-letters", delivery.dead_letter_folder),
    ]
    for key, place in places:
        is_inside = f"{place}/".startswith(f"{table.to}/")
        first = place[len(table.to) + 1 :].partition("/")[0]
        # Delta's readers and VACUUM skip such folders, so Delta's own manual has checkpoint locations there.
        is_skipped = table.format == "delta" and first.startswith("_") and first not in _FOLDERS_OF_DELTA
        if is_inside and not is_skipped:
            raise OptionError(
                f"{key}={place} is in the folder of the table {table.to}, whose readers would read these files too: name a folder outside"
            )


def _exclusive_options(delivery: Delivery, place: LeasePlace) -> list[tuple[str, object, str]]:
    """Return the options that two deliveries cannot share: as text, the place if it matters, and the consequence if they did."""
    claims: list[tuple[str, object, str]] = []
    if delivery.application is not None:
        claim = f"application={delivery.application}"
        claims.append((claim, place, "they would divide the shards between them"))
    if delivery.checkpoint is not None:
        claims.append((f"checkpoint={delivery.checkpoint}", None, "each needs its own"))
    if delivery.dead_letters is not None:
        claim = f"dead-letters={delivery.dead_letters} and name={delivery.name}"
        # Another name would begin a new delivery.
        claims.append((claim, None, "give one another dead-letters folder"))
    return claims


def _read_value(key: str, kind: Kind, value: Any) -> Any:
    if isinstance(value, bool):
        none = "" if value else f"; for none, leave {key} out"
        raise OptionError(
            f"{key}={str(value).lower()}: expected one value ({kind.form}); YAML reads yes, no, on and off as truth values: put such a "
            f"name between quotes{none}"
        )
    if isinstance(value, list | dict):
        raise OptionError(f"{key}={value}: expected one value ({kind.form})")
    check_unicode(key, str(value))
    try:
        return kind.read(str(value))
    except ValueError as error:
        raise OptionError(f"{key}={value}: {error}") from error


def _read_texts(key: str, value: Any) -> tuple[str, ...]:
    if value is None:
        return ()
    values = value if isinstance(value, list | tuple) else [value]
    if any(not isinstance(each, str) or not each.strip() for each in values):
        raise OptionError(f"{key}={value}: expected a text or a list of texts")
    for each in values:
        check_unicode(key, each)
    return tuple(each.strip() for each in values)


def _read_options(value: Any) -> tuple[tuple[str, str], ...]:
    if value is None:
        return ()
    if not isinstance(value, Mapping):
        raise OptionError(f"options={value}: expected names and values of the source's options")
    for key, each in value.items():
        if each is None or isinstance(each, list | dict):
            raise OptionError(f"options: {key}={each}: expected one value")
        check_unicode("options", f"{key}={each}")
    return tuple(
        (str(key), str(each).lower() if isinstance(each, bool) else str(each)) for key, each in value.items()
    )
