"""Writes a batch into its target: stages the rows beside the target, then commits the manifest."""

from __future__ import annotations

import functools
import json
import time
from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple

from msgspec import Struct
from pyspark.sql import Column, DataFrame, Observation, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - its name everywhere
from pyspark.sql.types import StructType

from penstock.core.delivering.definition import Delivery
from penstock.core.delivering.manifest import Identity, Manifest, Move, batch_label, plan_moves
from penstock.core.delivering.new_names import column_name_rule
from penstock.delivery import json_rows
from penstock.delivery.batch_store import BatchStore
from penstock.delivery.compaction import Compaction
from penstock.delivery.files import Files, spark_uri
from penstock.delivery.folder_checks import check_table_folder
from penstock.delivery.record_texts import RecordTexts
from penstock.delivery.table_rows import (
    check_columns,
    columns_for_unsampled_fields,
    with_inner_fields,
    with_newer_columns,
    with_verdict,
    with_wider_types,
)
from penstock.delivery.targets.target import Target

_ROUNDS_MAX: Final = 10
"""Most rounds in which one batch is searched for new fields. Each round finds the fields of a sample of its records."""
_PROPAGATES_EMPTY: Final = "org.apache.spark.sql.execution.adaptive.AQEPropagateEmptyRelation"
_DO_NOTHING: Final[Callable[[str], None]] = lambda _step: None  # noqa: E731


class BatchReport(Struct, frozen=True):
    """A batch that was delivered.

    Args:
        delivery: Name of the delivery.
        batch: Label of the batch.
        row_count: Rows that the batch put into the table.
        dead_count: Its dead letters.
        file_count: Its files, with those of dead letters.
        duration_s: Time that the delivery of the batch took.
        is_repeated: Whether the batch was committed by an earlier attempt.
        new_columns: Names of the columns that were added or widened.
        last_arrival_ms: Arrival of the newest record; None if unknown.
        failed_compactions: Compactions of the table that failed in this program.
    """

    delivery: str
    batch: str
    row_count: int
    dead_count: int
    file_count: int
    duration_s: float
    is_repeated: bool
    new_columns: tuple[str, ...] = ()
    last_arrival_ms: int | None = None
    failed_compactions: int = 0


class _StagedBatch(NamedTuple):
    """A batch whose rows are staged beside the table; the manifest makes it part of the table."""

    manifest: Manifest
    new_columns: tuple[str, ...]
    last_arrival_ms: int | None


class TableWriter:
    """Writes the batches of one delivery.

    Args:
        delivery: The definition.
        files: The file system of the table.
        schema: Schema of the records; None for `raw`.
        texts: Makes JSON texts of the records; None if the data of a record is its text, or is not parsed.
        target: Takes the rows.
        report: Called after each batch.
        at_step: Called with the name of each step before it begins; for tests.
    """

    def __init__(
        self,
        delivery: Delivery,
        files: Files,
        schema: StructType | None,
        target: Target,
        *,
        texts: RecordTexts | None = None,
        report: Callable[[BatchReport], None],
        at_step: Callable[[str], None] = _DO_NOTHING,
    ) -> None:
        self._delivery = delivery
        self._files = files
        self._schema = schema
        self._target = target
        self._texts = texts
        self._name_rule = column_name_rule(delivery, target.unreadable_columns())
        self._report = report
        self._at_step = at_step
        self.store = BatchStore(files, delivery.state, target.commit)
        self._compaction = Compaction(delivery, files, target.compact)

    def write_batch(self, batch: DataFrame, batch_id: int) -> BatchReport:
        """Deliver a batch of the query."""
        report = self.write(batch, batch_label(batch_id))
        self.store.remove_old_manifest(batch_id)
        # No batch of this delivery is open here: Spark plans the next one after this function returns.
        self._compaction.run_if_due()
        return report

    def write(self, batch: DataFrame, label: str, removes: Sequence[str] = ()) -> BatchReport:
        """Deliver rows of the source as one batch. A batch that was committed before is finished, and not delivered again.

        Args:
            batch: The rows. Every attempt with the same label must have the same rows.
            label: Label of the batch.
            removes: Files to remove when the rows are in the table.
        """
        began_s = time.monotonic()
        self._at_step("begin")
        check_table_folder(self._delivery, self.store)
        earlier = self.store.read(label)
        if earlier is not None:
            self.store.check_same_records(
                earlier, _identity_of(batch.agg(*_identity_columns()).collect()[0].asDict())
            )
            self.store.finish(earlier)
            return self._report_batch(earlier, began_s, is_repeated=True)
        set_session_options(batch.sparkSession, self._delivery)
        with self.store.detect_another_driver(label):
            staged = self._stage(batch, label, tuple(removes))
        self._at_step("commit")
        manifest = self.store.commit(staged.manifest)
        self._at_step("end")
        return self._report_batch(
            manifest,
            began_s,
            new_columns=staged.new_columns,
            last_arrival_ms=staged.last_arrival_ms,
        )

    def _report_batch(self, manifest: Manifest, began_s: float, **more: Any) -> BatchReport:
        report = BatchReport(
            delivery=self._delivery.name,
            batch=manifest.batch,
            row_count=manifest.row_count,
            dead_count=manifest.dead_count,
            file_count=len(manifest.moves) + manifest.staged_count,
            duration_s=time.monotonic() - began_s,
            failed_compactions=self._compaction.failure_count,
            **{"is_repeated": False, **more},
        )
        self._report(report)
        return report

    def _stage(self, batch: DataFrame, label: str, removes: tuple[str, ...]) -> _StagedBatch:
        """Write the rows and dead letters of a batch beside the table. If its records add columns, the rows are written again."""
        delivery = self._delivery
        added: list[str] = []
        if self._has_no_columns:
            added += self._grow_schema(with_verdict(batch, delivery, self._schema, self._texts))
        for _ in range(_ROUNDS_MAX):
            folder = self.store.new_staging(label)
            verdicts = with_verdict(batch, delivery, self._schema, self._texts)
            counts = self._write_rows(verdicts, f"{folder}/rows")
            may_fit_later = counts["unknown"] or (self._texts is not None and counts["dead"])
            columns = self._grow_schema(verdicts) if may_fit_later else ()
            if not columns:
                break
            added += columns
            self._files.remove(folder)
        has_rows = counts["count"] > counts["dead"]
        staged = self.store.staged_files(f"{folder}/rows", self._target.ending) if has_rows else []
        placement = self._target.plan(label, staged, f"{folder}/rows")
        letter_moves: tuple[Move, ...] = ()
        if counts["dead"]:
            self._at_step("dead letters")
            letters = json_rows.dead_letters(
                json_rows.rows_where(verdicts, ~_is_row()),
                self._schema,
                self._name_rule,
                delivery.name,
                label,
            )
            letters.coalesce(1).write.json(spark_uri(f"{folder}/dead"))
            letter_moves = plan_moves(
                delivery.name,
                label,
                self.store.staged_files(f"{folder}/dead", ".json"),
                root=f"{folder}/dead",
                to=delivery.dead_letter_folder,
                ending="jsonl",
            )
        manifest = Manifest(
            delivery=delivery.name,
            batch=label,
            identity=_identity_of(counts),
            row_count=counts["count"] - counts["dead"],
            dead_count=counts["dead"],
            moves=placement.moves + letter_moves,
            removes=removes,
            rows=placement.rows,
            state_before=placement.state_before,
            staged_count=placement.staged_count,
        )
        return _StagedBatch(manifest, tuple(added), counts["last_ms"])

    @property
    def _has_no_columns(self) -> bool:
        """Whether no column is known yet."""
        return self._schema is not None and not self._schema.fields

    def _write_rows(self, verdicts: DataFrame, folder: str) -> dict[str, Any]:
        """Stage the rows that fit the schema; return the aggregates of `_counts`."""
        self._at_step("write")
        if self._has_no_columns:  # no record has a field, so there is no row to write
            return dict(verdicts.agg(*_counts()).collect()[0].asDict())
        observation = Observation()
        observed = verdicts.observe(observation, *_counts())
        self._target.stage(observed.where(_is_row()), self._schema, folder)
        return dict(observation.get)

    def _grow_schema(self, verdicts: DataFrame) -> tuple[str, ...]:
        """Add and widen columns, if `evolve` is `add` or there are no columns yet; return the names of the new and widened ones."""
        assert self._schema is not None
        if self._delivery.evolve != "add" and not self._has_no_columns:
            return ()
        before = self._schema
        if self._texts is not None:
            self._schema = with_newer_columns(
                self._schema,
                self._texts.columns(),
                self._name_rule,
                in_structs=self._delivery.adds_to_structs,
            )
        # Another run of the delivery, such as a redelivery, may have added or widened columns meanwhile.
        saved = saved_schema(self._files, self._delivery)
        if saved is not None:
            known_names = {name.lower() for name in self._schema.names}
            further = [field for field in saved.fields if field.name.lower() not in known_names]
            columns = {field.name: field.dataType.simpleString() for field in further}
            self._schema = json_rows.with_added_columns(self._schema, columns)
            if self._delivery.adds_to_structs:
                wider = with_wider_types(self._schema, saved, in_structs=True)
                self._schema = with_inner_fields(wider, saved)
        columns = json_rows.new_columns(verdicts, self._schema, self._name_rule)
        if columns:
            if self._has_no_columns:
                columns |= columns_for_unsampled_fields(self._delivery, columns)
            self._schema = json_rows.with_added_columns(self._schema, columns)
        if self._delivery.adds_to_structs:
            self._schema = json_rows.with_new_fields(verdicts, self._schema, self._name_rule)
        if self._schema == before:
            return ()
        check_columns(self._delivery, self._schema)
        save_schema(self._files, self._delivery, self._schema)
        known = {each.name: each.dataType for each in before.fields}
        return tuple(each.name for each in self._schema.fields if known.get(each.name) != each.dataType)


def schema_place(delivery: Delivery) -> str:
    """Return the path of the schema that batches save when they add columns."""
    return f"{delivery.state}/schema.json"


def saved_schema(files: Files, delivery: Delivery) -> StructType | None:
    """Return the schema that the last batches have saved; None if none was saved yet."""
    text = files.read(schema_place(delivery))
    return None if text is None else StructType.fromJson(json.loads(text))


def save_schema(files: Files, delivery: Delivery, schema: StructType) -> None:
    """Save a schema for later batches. It is called before the first file with this schema is written."""
    files.replace(schema_place(delivery), schema.json().encode())


def set_session_options(spark: SparkSession, delivery: Delivery) -> None:
    """Set the Spark options that a delivery's files need. Each batch has a session of its own."""
    conf = spark.conf
    conf.set("spark.sql.session.timeZone", delivery.time_zone)
    conf.set("spark.sql.parquet.outputTimestampType", "TIMESTAMP_MICROS")
    conf.set("spark.sql.adaptive.enabled", "true")
    conf.set("spark.sql.adaptive.advisoryPartitionSizeInBytes", str(delivery.file_bytes))
    conf.set("spark.sql.caseSensitive", "false")
    # A partition expression without a value for a record must not end the delivery; `with_verdict` makes a dead letter of it.
    conf.set("spark.sql.ansi.enabled", "false")
    # This rule would remove the observation from a batch in which no record fits, and the counts with it.
    conf.set("spark.sql.adaptive.optimizer.excludedRules", _PROPAGATES_EMPTY)


@functools.cache
def _is_row() -> Column:
    return F.col(json_rows.VERDICT) == json_rows.FITS


@functools.cache
def _counts() -> tuple[Column, ...]:
    """Return the aggregates of a batch with verdicts: its positions, numbers of records, and the newest arrival."""
    return (
        *_identity_columns(),
        F.count(F.lit(1)).alias("count"),
        F.count_if(~_is_row()).alias("dead"),
        F.count_if(F.col(json_rows.VERDICT) == json_rows.UNKNOWN).alias("unknown"),
        F.max(F.unix_millis("approximateArrivalTimestamp")).alias("last_ms"),
    )


@functools.cache
def _identity_columns() -> tuple[Column, ...]:
    """Return the aggregates of a batch's positions. They are equal for two attempts with the same records."""
    number = F.lpad("sequenceNumber", 60, "0")  # texts of equal length are in the order of their numbers
    position = F.xxhash64("shardId", "sequenceNumber", "subSequenceNumber")
    return (
        F.min(number).alias("first"),
        F.max(number).alias("last"),
        F.min(position).alias("hash_min"),
        F.max(position).alias("hash_max"),
    )


def _identity_of(aggregates: dict[str, Any]) -> Identity:
    return Identity(
        first=None if aggregates["first"] is None else aggregates["first"].lstrip("0"),
        last=None if aggregates["last"] is None else aggregates["last"].lstrip("0"),
        hash_min=aggregates["hash_min"],
        hash_max=aggregates["hash_max"],
    )
