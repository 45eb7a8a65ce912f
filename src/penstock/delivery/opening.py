"""Opening of a delivery: all checks before the first write, and the record that later runs are compared with."""

from __future__ import annotations

import hashlib
import json
import logging
import os
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from msgspec import Struct, structs
from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812 - its name everywhere
from pyspark.sql.types import ArrayType, MapType, NullType, StructType

from penstock import wiring
from penstock.core.delivering.definition import FILE_FORMATS, LAKES, NEW_TABLE, RAW, SAMPLE, Delivery
from penstock.core.delivering.json_schema_columns import is_json_schema
from penstock.core.delivering.lake_table import check_batches
from penstock.core.delivering.manifest import ArrivalRange
from penstock.core.delivering.record import (
    DeliveryRecord,
    check_retention,
    check_same_delivery,
    parse_record,
    plan_backfill,
    plan_start,
    record_of,
    with_layout,
)
from penstock.core.delivering.sql_names import quote_name
from penstock.core.moments import parse_moment
from penstock.core.reading.service_clock import service_bound_ms, service_now_ms
from penstock.core.shard import StreamSummary
from penstock.core.starting import check_not_in_future, parse_starting
from penstock.core.time_zones import read_time_zone
from penstock.delivery.batch_store import BatchStore
from penstock.delivery.files import Files, file_system_of, local_path, may_be_same_system, open_files
from penstock.delivery.folder_checks import (
    check_checkpoint,
    check_first_run,
    check_other_names,
    check_table_folder,
    check_writable,
)
from penstock.delivery.json_rows import columns_of
from penstock.delivery.record_texts import CheckedTexts, GlueTexts, RecordTexts, decoder_of
from penstock.delivery.run_lock import QUERY, RANGE, REDELIVERY, RunLock, is_locked, kind_of_batch, try_lock
from penstock.delivery.schema_file import schema_file
from penstock.delivery.table_rows import (
    check_columns,
    may_retype,
    table_rows,
    with_inner_fields,
    with_verdict,
    with_wider_types,
)
from penstock.delivery.table_writer import save_schema, saved_schema, schema_place
from penstock.delivery.targets.opening import open_target
from penstock.delivery.targets.target import Target
from penstock.errors import DeliveryFailed, OptionError, SchemaError
from penstock.runtime.system_clock import SystemClock
from penstock.schemas.registry_opening import open_registry
from penstock.spark.options.spark_options import OPTIONS, SourceOptions, parse_source
from penstock.spark.tasks.query_stream import NEW_QUERY

_log: Final = logging.getLogger("penstock.delivery")
_NEW_STREAM: Final = (
    "Deliver the new stream under another name, with start TRIM_HORIZON: it may fill the same table"
)
TOO_BUSY: Final = "Python worker failed to connect back"
"""Part of Spark's error if a Python process does not start within ten seconds."""
_CAUSED_BY: Final = "Caused by: "
_TRACEBACK: Final = "Traceback (most recent call last):"
_APPLICATION_HASH_LENGTH: Final = 8


def with_absolute_paths(delivery: Delivery) -> Delivery:
    """Return a delivery whose folders on this machine are absolute paths."""

    def absolute(place: str | None) -> str | None:
        return None if place is None else local_path(place) or place

    places = (delivery.to, delivery.checkpoint, delivery.dead_letters, delivery.state_folder)
    for key, place in zip(("to", "checkpoint", "dead-letters", "state"), places, strict=True):
        if place is not None and ("${" in place or os.path.expandvars(place) != place):
            meant = os.path.expandvars(place)
            way = "the address itself" if "${" in meant else meant  # a variable may not be set here
            raise OptionError(f"{key}={place}: variables are not replaced here; write {way}")
    to = delivery.to
    if delivery.is_folder:
        to = local_path(to) or to
    if to == "/":
        raise OptionError(f"to={delivery.to}: a table needs a folder of its own")
    found = structs.replace(
        delivery,
        to=to,
        checkpoint=absolute(delivery.checkpoint),
        dead_letters=absolute(delivery.dead_letters),
        state_folder=absolute(delivery.state_folder),
    )
    _check_file_systems(found)
    return found


def _check_file_systems(delivery: Delivery) -> None:
    """Refuse folders that are in another file system than the state: finished files could not be moved there."""
    state = file_system_of(delivery.state)
    moved = {"dead-letters": delivery.dead_letter_folder}
    if delivery.format in FILE_FORMATS:
        moved["to"] = delivery.to
    for key, place in moved.items():
        other = file_system_of(place)
        if not may_be_same_system(other, state):
            raise OptionError(
                f"{key}={place} and the state in {delivery.state} are in different file systems or buckets, and finished files are moved from "
                f"one to the other: name folders of the same one"
            )


def new_application(delivery: Delivery, now_ms: int) -> str:
    """Return the application name under which a delivery's first run creates its leases.

    Without the option `application` the name depends on the stream, the state folder and the moment. So two deliveries never divide
    shards between them, and a delivery that begins again after its table was removed does not go on from the old leases.
    """
    if delivery.application is not None:
        return delivery.application
    run = f"{delivery.stream}\n{delivery.state}\n{now_ms}".encode()
    return f"penstock-deliver-{delivery.name}-{hashlib.sha256(run).hexdigest()[:_APPLICATION_HASH_LENGTH]}"


def source_options(delivery: Delivery, application: str) -> dict[str, str]:
    """Return the options of the source, except its starting position."""
    named = {"streamARN" if delivery.stream.startswith("arn:") else "streamName": delivery.stream}
    return {
        **named,
        "applicationName": application,
        **dict(delivery.connection),
        **dict(delivery.options),
    }


def check_options(delivery: Delivery) -> SourceOptions:
    """Return the parsed options of a delivery's source, after all checks that need neither the service nor Spark.

    Raises:
        OptionError, PositionError: A wrong value.
    """
    zone = time_zone_of(delivery)
    for name in ("startingPosition", "startingTimestamp", "streamName", "streamARN", "applicationName"):
        if any(name.lower() == key.lower() for key, _ in delivery.options):
            raise OptionError(f"options: {name} is set by stream, start and application of the delivery")
    application = new_application(delivery, now_ms=0)  # stands for the name of the run: it has the same form
    options, _ = parse_source(source_options(delivery, application))
    parse_starting(delivery.start, "start", zone)
    if delivery.glue_schema is None:
        _schema_text(delivery)
    given = (("since", delivery.since), ("until", delivery.until))
    moments = [parse_moment(text, name, zone) for name, text in given if text is not None]
    if len(moments) == 2 and moments[0] >= moments[1]:
        raise OptionError(f"since={delivery.since} is not before until={delivery.until}")
    return options


def batch_options(delivery: Delivery) -> dict[str, str]:
    """Return those options of the delivery's source that a batch read accepts."""
    known = {key.lower() for option in OPTIONS if "batch" in option.scopes for key, _ in option.spellings()}
    return {name: value for name, value in source_options(delivery, "").items() if name.lower() in known}


def lock_run(delivery: Delivery, *, is_redelivery: bool) -> RunLock:
    """Lock a delivery against a second run of the same kind: both would append the same batch to an Iceberg table.

    The kinds of runs are the query, a backfill and a redelivery.

    Raises:
        DeliveryFailed: Another run of this kind holds the lock, or the state folder cannot be made.
    """
    kind = _run_kind_of(delivery, is_redelivery=is_redelivery)
    try:
        lock = try_lock(delivery.state, kind)
    except NotADirectoryError as error:
        file = next((each for each in Path(delivery.state).parents if each.is_file()), None)
        raise DeliveryFailed(
            f"{delivery.state} is below {file}, which is a file; choose another folder"
        ) from error
    except OSError as error:
        raise DeliveryFailed(f"{delivery.state} cannot be written: {error}") from error
    if lock is None:
        what = {QUERY: "delivery", RANGE: "backfill", REDELIVERY: "redelivery"}[kind]
        raise DeliveryFailed(
            f"a {what} {delivery.name} into {delivery.to} runs already on this machine: stop it first"
        )
    return lock


def _run_kind_of(delivery: Delivery, *, is_redelivery: bool) -> str:
    if is_redelivery:
        return REDELIVERY
    return QUERY if delivery.since is None else RANGE


def is_other_run_under_way(delivery: Delivery, own_kind: str) -> bool:
    """Return whether a run of the delivery of another kind is under way on this machine."""
    return any(is_locked(delivery.state, kind) for kind in {QUERY, RANGE, REDELIVERY} - {own_kind})


def _finish_batches(delivery: Delivery, store: BatchStore, own_kind: str) -> None:
    """Finish the batches that killed runs have left. Batches of a run that is under way stay as they are."""
    if store.is_empty():
        return
    for kind in (QUERY, RANGE, REDELIVERY):
        # This run holds the lock of its own kind.
        lock = RunLock(None) if kind == own_kind else try_lock(delivery.state, kind)
        if lock is None:  # a run of this kind is under way
            continue
        try:
            for manifest in store.unfinished_manifests():
                if kind_of_batch(manifest.batch) == kind:
                    store.finish(manifest)
        finally:
            lock.release()


class OpenDelivery(Struct, frozen=True, kw_only=True):
    """A delivery that has passed the checks of `open_delivery`.

    Args:
        delivery: The definition.
        files: The file system of the table.
        schema: Schema of the records; None for `raw`.
        texts: Makes JSON texts of the records; None if the data of a record is its text, or is not parsed.
        target: Takes the rows.
        record: The record that `save_record` writes.
        old_record: The record that earlier runs have saved; None if there were none.
        backfill_range: The range of a backfill; None if this is not a backfill.
        opened_ms: A moment by the service's clock at or after the checks: records that had arrived by then are older.
    """

    delivery: Delivery
    files: Any
    schema: Any
    texts: Any
    target: Any
    record: DeliveryRecord
    old_record: DeliveryRecord | None
    backfill_range: ArrivalRange | None
    opened_ms: int


def open_delivery(
    spark: SparkSession,
    delivery: Delivery,
    options: SourceOptions,
    lock: Callable[[Delivery], None],
    *,
    is_redelivery: bool = False,
    is_dry_run: bool = False,
) -> OpenDelivery:
    """Check a delivery against the service, the table and its earlier runs.

    Args:
        spark: A session.
        delivery: The definition.
        options: The source's options.
        lock: Locks the delivery's runs of this kind; called if there were earlier runs. After a first run's checks the caller locks.
        is_redelivery: Whether only dead letters are delivered.
        is_dry_run: Whether nothing is written: no unfinished batch is finished, and no folder is tested by a write.

    Raises:
        OptionError: The delivery contradicts an earlier run, its schema cannot be parsed, or its range has no records.
        NotFound: There is no such stream.
        DeliveryFailed: The table or the checkpoint location is another delivery's, or cannot be written.
    """
    kinesis = wiring.open_kinesis(options.connection)
    summary = kinesis.fetch_summary(delivery.stream)
    files = open_files(spark, delivery.state)
    old_record = saved_record = read_record(files, delivery)
    kind = _run_kind_of(delivery, is_redelivery=is_redelivery)
    if old_record is not None:
        lock(delivery)
    delivery_id = uuid.uuid4().hex if old_record is None else old_record.id
    target = open_target(spark, delivery, delivery_id)
    texts = open_record_texts(delivery)
    store = BatchStore(files, delivery.state, target.commit)
    # Another run that is in its first batch has saved the schema already, and writes files by its layout.
    has_no_batch = store.is_empty() and not is_other_run_under_way(delivery, "" if is_dry_run else kind)
    if has_no_batch and not is_dry_run:  # the schema of a run that ended before its first batch
        files.remove(schema_place(delivery))
    last_schema = None if has_no_batch else saved_schema(files, delivery)
    schema = checked_schema(spark, delivery, target, texts, last_schema)
    local_ms, server_ms = SystemClock().wall_ms(), kinesis.fetch_shards(delivery.stream).server_ms
    now_ms = service_now_ms(local_ms, server_ms)
    if old_record is None:
        check_first_run(spark, files, delivery, store, kind)
    else:
        old_record = _check_later_run(delivery, old_record, store, target, has_no_batch=has_no_batch)
    identity = str(summary.identity)
    record = old_record or record_of(delivery, new_application(delivery, now_ms), delivery_id, identity)
    backfill_range = None
    if delivery.since is not None:
        backfill_range = _plan_range(
            files, delivery, store, record=record, old_record=old_record, summary=summary, now_ms=now_ms
        )
    elif record.start is None and not is_redelivery:
        record = _with_start(files, delivery, store, record, now_ms)
    if backfill_range is None and not is_redelivery:
        is_first = old_record is None or old_record.start is None
        location = open_files(spark, delivery.checkpoint_location)
        check_checkpoint(location, delivery, record, store, is_first=is_first)
    if not is_dry_run:
        _finish_batches(delivery, store, kind)
    return OpenDelivery(
        delivery=delivery,
        files=files,
        schema=schema,
        texts=texts,
        target=target,
        record=record,
        old_record=saved_record,
        backfill_range=backfill_range,
        opened_ms=service_bound_ms(local_ms, server_ms),
    )


def _check_later_run(
    delivery: Delivery, old_record: DeliveryRecord, store: BatchStore, target: Target, *, has_no_batch: bool
) -> DeliveryRecord:
    """Check the delivery and its table against the record of earlier runs, and return the record.

    Args:
        has_no_batch: Whether no batch was begun yet. If so, the record gets the layout of the definition.
    """
    now = record_of(delivery, delivery.application or old_record.application)
    if has_no_batch:
        old_record = with_layout(old_record, now)
    check_same_delivery(delivery, old_record, now)
    check_table_folder(delivery, store)
    if delivery.format in LAKES:
        if store.has_rows():
            target.check_filled()
        # The table is read before the manifests: a batch that is committed in between has its manifest by then.
        in_table = target.batches()
        check_batches(delivery, in_table, store.labels())
    return old_record


def _with_start(
    files: Files, delivery: Delivery, store: BatchStore, record: DeliveryRecord, now_ms: int
) -> DeliveryRecord:
    """Return a record with the start of the delivery's query, after its checks."""
    position = parse_starting(delivery.start, "start", time_zone_of(delivery))
    check_not_in_future(position, now_ms, f"start={delivery.start}")
    check_other_names(files, delivery, record, position)
    start, start_ms = plan_start(position, now_ms, store.backfill_ranges())
    return structs.replace(record, start=start or delivery.start, start_ms=start_ms)


def _plan_range(
    files: Files,
    delivery: Delivery,
    store: BatchStore,
    *,
    record: DeliveryRecord,
    old_record: DeliveryRecord | None,
    summary: StreamSummary,
    now_ms: int,
) -> ArrivalRange:
    """Return the range of a backfill, after its checks."""
    zone, ranges = time_zone_of(delivery), store.backfill_ranges()
    assert delivery.since is not None
    since_ms = parse_moment(delivery.since, "since", zone)
    until_ms = None if delivery.until is None else parse_moment(delivery.until, "until", zone)
    planned = plan_backfill((since_ms, until_ms), now_ms, old_record, ranges)
    check_other_names(files, delivery, record, planned)
    if planned not in ranges:
        warning = check_retention(planned, now_ms - summary.retention_ms, summary.created_ms)
        if warning is not None:
            _log.warning("%s: %s", delivery.name, warning)
    return planned


def read_record(files: Files, delivery: Delivery) -> DeliveryRecord | None:
    """Return the record of a delivery's earlier runs; None if there were none."""
    place = _record_place(delivery)
    text = files.read(place)
    return None if text is None else parse_record(text, place)


def checked_schema(
    spark: SparkSession,
    delivery: Delivery,
    target: Target,
    texts: RecordTexts | None,
    last_schema: StructType | None,
) -> StructType | None:
    """Return the delivery's schema with the table's further columns, after checking it against the table.

    Args:
        last_schema: The schema that the last batches have saved; None if no batch has saved a schema.

    Raises:
        OptionError: The columns do not fit the table.
        DeliveryFailed: The table cannot be read.
    """
    schema = parse_schema(delivery, texts)
    try:
        known = target.known_columns()
        if schema is not None and (not schema.fields or delivery.evolve == "add"):
            names = {name.lower() for name in schema.names}
            schema = _with_further_columns(
                schema, StructType([field for field in known.fields if field.name.lower() not in names])
            )
        schema = _with_saved_columns(delivery, schema, last_schema)
        _check_partition_expressions(spark, delivery, schema)
        target.check(schema)
    except (PySparkException, Py4JJavaError) as error:
        raise DeliveryFailed(f"to={delivery.to}: {error_reason(error)}") from error
    return schema


def _with_saved_columns(
    delivery: Delivery, schema: StructType | None, last_schema: StructType | None
) -> StructType | None:
    """Return a schema with the further columns of the saved `last_schema`, None without a schema; refuse two columns with one name."""
    if last_schema is not None and schema is not None:
        if delivery.glue_schema:
            schema = with_wider_types(schema, last_schema, in_structs=delivery.adds_to_structs)
        schema = _merged_schema(schema, last_schema, delivery)
    check_columns(delivery, schema)
    return schema


def check_folders(spark: SparkSession, opened: OpenDelivery) -> None:
    """Raise DeliveryFailed if the folder of the state, the dead letters or the table cannot be written. Missing ones are made."""
    delivery = opened.delivery
    check_writable(opened.files, delivery.state)
    if delivery.dead_letters is not None:
        check_writable(opened.files, delivery.dead_letters)
    if delivery.is_folder:
        check_writable(open_files(spark, delivery.to), delivery.to)


def save_record(opened: OpenDelivery) -> None:
    """Write the delivery's record and schema. It is called after the checks of all deliveries, before the first batch.

    Raises:
        DeliveryFailed: Another run has written the first record since the checks.
        OptionError: Another run has added a column since the checks that does not fit the schema.
    """
    place = _record_place(opened.delivery)
    if opened.old_record is None:
        if not opened.files.create(place, opened.record.to_json()):
            raise DeliveryFailed(
                f"another run of delivery {opened.delivery.name} into {opened.delivery.to} has begun at the same time: start this one again"
            )
    elif opened.record != opened.old_record:
        opened.files.replace(place, opened.record.to_json())
    if opened.schema is not None and opened.schema.fields:
        # A run of another kind may have added columns since the checks.
        newest = saved_schema(opened.files, opened.delivery)
        schema = _with_saved_columns(opened.delivery, opened.schema, newest)
        assert schema is not None
        save_schema(opened.files, opened.delivery, schema)


def _record_place(delivery: Delivery) -> str:
    return f"{delivery.state}/delivery.json"


def save_query_id(opened: OpenDelivery, query_id: str) -> None:
    """Save the id of Spark's query in the record; later runs recognise the checkpoint location by it."""
    if opened.record.query_id != query_id:
        record = structs.replace(opened.record, query_id=query_id)
        opened.files.replace(_record_place(opened.delivery), record.to_json())


def open_record_texts(delivery: Delivery) -> RecordTexts | None:
    """Return the `RecordTexts` of a delivery with a Glue schema or a JSON Schema; None for other deliveries.

    Raises:
        OptionError: A package is missing, or the file of a JSON Schema cannot be read.
    """
    texts: RecordTexts | None = None
    if delivery.glue_schema is not None:
        registry_name, schema_name = delivery.glue_schema
        fields = {name: value for name, value in delivery.connection if name in ("region", "profile")}
        registry = open_registry(
            None, registry_name=registry_name, region=None, endpoint_url=None, connection=fields
        )
        texts = GlueTexts(registry, schema_name)
    elif delivery.schema not in (RAW, SAMPLE):
        text, _ = _schema_text(delivery)
        if _is_json_schema(text):
            texts = CheckedTexts(text)
    if texts is not None:
        decoder_of(texts)  # fails if a package is missing
    return texts


def parse_schema(delivery: Delivery, texts: RecordTexts | None = None) -> StructType | None:
    """Return the schema of a delivery's records: None for `raw`, empty for `sample`. Spark's parser needs a session.

    Args:
        texts: Makes JSON texts of the records by a schema, which has the columns. None: the option `schema` has or names the columns.

    Raises:
        OptionError: The text, or the file that it names, is not a schema.
        ServiceError: The registry of schemas gives no answer.
    """
    if delivery.schema == RAW:
        return None
    if delivery.schema == SAMPLE:
        return StructType([])
    try:
        if texts is not None:
            return texts.columns()
    except (SchemaError, ValueError) as error:
        raise OptionError(f"schema={delivery.schema}: {error}") from error
    text, shown = _schema_text(delivery)
    try:
        return _read_schema(text)
    except (PySparkException, ValueError, KeyError, TypeError) as error:
        raise OptionError(
            f"{shown} is not a schema: {str(error).strip().splitlines()[0]}; expected columns as in SQL (`id BIGINT, price DOUBLE`), "
            "an object of names and types, a JSON Schema, Spark's own JSON, or one of the words raw, sample and glue"
        ) from error


def _schema_text(delivery: Delivery) -> tuple[str, str]:
    """Return the text of a delivery's schema, and its source for messages."""
    text = delivery.schema
    path = schema_file(text)
    if path is not None:
        try:
            return path.read_text(encoding="utf-8-sig").strip(), f"schema file {text}"
        except (OSError, UnicodeDecodeError) as error:
            raise OptionError(f"schema file {text} cannot be read: {error}") from error
    if "/" in text or text.endswith((".json", ".ddl", ".sql", ".txt")):
        raise OptionError(f"schema={text}: there is no file {Path(text).absolute()}")
    return text.strip(), "schema"


def _is_json_schema(text: str) -> bool:
    try:
        return text.startswith("{") and is_json_schema(json.loads(text))
    except ValueError:
        return False


def _read_schema(text: str) -> StructType:
    if not text.startswith("{"):
        schema = columns_of(text)
    else:
        document = json.loads(text)
        if isinstance(document.get("fields"), list):
            schema = StructType.fromJson(document)
        else:
            schema = columns_of(", ".join(f"{quote_name(name)} {kind}" for name, kind in document.items()))
    if not schema.fields:
        raise ValueError("it has no columns")
    return schema


def _merged_schema(schema: StructType, last_schema: StructType, delivery: Delivery) -> StructType:
    """Return the schema's columns, then the further ones of the saved schema; refuse types that the table's files do not allow."""
    known = {field.name: field.dataType for field in last_schema.fields}
    saved_names = {name.lower(): name for name in known}
    if delivery.adds_to_structs:
        schema = with_inner_fields(schema, last_schema)
    for field in schema.fields:
        name = saved_names.get(field.name.lower(), field.name)
        if name != field.name:
            raise OptionError(
                f"schema: column {field.name} is {name} in the table, and only its case differs: write {name}"
            )
        before = known.get(field.name, field.dataType)
        if delivery.format == "parquet" and not may_retype(before, field.dataType):
            raise OptionError(
                f"schema: column {field.name} is {before.simpleString().upper()} in the table's files, and cannot "
                f"become {field.dataType.simpleString().upper()}: keep its type, or {NEW_TABLE}"
            )
    return _with_further_columns(schema, last_schema)


def _with_further_columns(schema: StructType, other: StructType) -> StructType:
    """Return a schema's columns, then those that only another schema has."""
    names = set(schema.names)
    return StructType([*schema.fields, *(field for field in other.fields if field.name not in names)])


def _check_partition_expressions(spark: SparkSession, delivery: Delivery, schema: StructType | None) -> None:
    from penstock.spark.schema import SCHEMA_DDL

    if not delivery.partitions:
        return
    if schema is not None and not schema.fields:
        _check_expressions_without_fields(spark, delivery)
        return
    rows = spark.createDataFrame([], SCHEMA_DDL)
    try:
        rows = with_verdict(rows, delivery, schema, None)
        columns = table_rows(rows, delivery, schema).schema
    except PySparkException as error:
        raise OptionError(f"partition-by: {str(error).strip().splitlines()[0]}") from error
    kinds = {each.name.lower(): each.dataType for each in columns.fields}
    for each in delivery.partitions:
        kind = kinds[each.name.lower()]
        if isinstance(kind, StructType | ArrayType | MapType | NullType):
            raise OptionError(
                f"partition-by={each.expression}: its values are {kind.simpleString().upper()}, which cannot be the name of a folder; name "
                "an expression of one value"
            )
    if len(columns) == len(delivery.partitions):
        raise OptionError(
            "partition-by: no column is left for the files; partition by expressions of columns"
        )


def _check_expressions_without_fields(spark: SparkSession, delivery: Delivery) -> None:
    """Refuse a partition expression that cannot be parsed or calls an unknown function. Its fields are not checked."""
    from penstock.spark.schema import COLUMNS, SCHEMA_DDL

    known = {name.lower() for name in (*COLUMNS, "arrived")}
    for part in delivery.partitions:
        fields = {name.partition(".")[0].lower() for name in part.column_names} - known
        rows = spark.createDataFrame([], SCHEMA_DDL).withColumn(
            "arrived", F.col("approximateArrivalTimestamp")
        )
        rows = rows.select("*", *(F.lit("").alias(name) for name in sorted(fields)))
        try:
            rows.select(F.expr(part.expression))
        except PySparkException as error:
            # Other errors may be due to the fields' types, which are not known yet.
            if (error.getCondition() or "").startswith(("UNRESOLVED_ROUTINE", "PARSE_")):
                raise OptionError(
                    f"partition-by={part.expression}: {str(error).strip().splitlines()[0]}"
                ) from error


def error_reason(error: Any) -> str:
    """Return the reason in an error of Spark, as one line. Advice to begin a new query becomes advice for a delivery.

    For a failed task the line also has the error that ended the task, such as a full disk; of a traceback of Python only the error is left.
    """
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    of_penstock = [line for line in lines if line.startswith("penstock.errors.")]
    if of_penstock:
        return of_penstock[-1].partition(": ")[2].replace(NEW_QUERY, _NEW_STREAM)
    if not lines:
        return type(error).__name__
    is_call = lines[0].startswith("An error occurred while calling ") and len(lines) > 1
    first = lines[1].removeprefix(": ") if is_call else lines[0]
    trace = f"{error}\n{getattr(error, '_stackTrace', '')}"
    causes = [
        line.strip().removeprefix(_CAUSED_BY)
        for line in trace.splitlines()
        if line.strip().startswith(_CAUSED_BY)
    ]
    reason = first if not causes or causes[-1] in first else f"{first}; caused by {causes[-1]}"
    reason = reason.replace(_TRACEBACK, _python_error(trace)).removesuffix(": ")  # a cut trace has no error
    if TOO_BUSY in reason:
        reason += " The machine was too busy to start Python in time: run the command again when it is less busy, or on more cores"
    return reason


def _python_error(trace: str) -> str:
    """Return the line of the error below Python's last traceback in a text. The lines of the traceback are indented."""
    below = trace.rpartition(_TRACEBACK)[2].splitlines()
    return next((line for line in below if line[:1].strip()), "")


def time_zone_of(delivery: Delivery) -> Any:
    """Return the time zone of a delivery's dates.

    Raises:
        OptionError: There is no time zone of this name.
    """
    try:
        return read_time_zone(delivery.time_zone)
    except ValueError as error:
        raise OptionError(f"time-zone={delivery.time_zone}: {error}") from error
