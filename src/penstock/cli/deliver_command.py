"""`penstock deliver`: deliver a stream into a table by Spark, each record once."""

from __future__ import annotations

import argparse
import contextlib
import json
import signal
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from msgspec import to_builtins

from penstock.cli.exit_on_signals import exit_on_signals, shell_statuses
from penstock.cli.pairs import pairs_of
from penstock.cli.service_options import add_connection_arguments, connection_of
from penstock.cli.terminal import Output, counted, escape_text, safe_json, warn
from penstock.core.keyword_options import json_object, repeated_name
from penstock.errors import OptionError, UsageError

if TYPE_CHECKING:
    from penstock.core.delivering.definition import Delivery
    from penstock.core.delivering.running_costs import RunningCosts
    from penstock.delivery.table_writer import BatchReport

DESCRIPTION = "Deliver a stream into a table (Parquet, JSON, Delta Lake, Iceberg), each record once."
_FLAGS: Final = {
    "to": ("PLACE", "the table's folder, or the name of an Iceberg or Delta table, or of a stream"),
    "format": ("NAME", "parquet (default), json, delta, iceberg or stream"),
    "schema": (
        "TEXT",
        "raw, sample (default), glue, columns (`id BIGINT, price DOUBLE`), or a file with them or a JSON Schema",
    ),
    "evolve": ("POLICY", "new fields: add a column (default), or refuse the record"),
    "start": ("POSITION", "TRIM_HORIZON (default), LATEST or a moment; for the first run"),
    "since": ("MOMENT", "deliver a range that ends, instead of running on"),
    "until": ("MOMENT", "end of that range; default: begin of the running delivery, or now"),
    "freshness": ("DURATION", "time between two batches: 5s or more (default 60s)"),
    "compact": ("DURATION", "time between two compactions of a Delta or Iceberg table (default: none)"),
    "checkpoint": ("PATH", "Spark's checkpoint location; default: beside the table"),
    "dead-letters": ("PATH", "folder for records that fit no row; default: beside the table"),
    "state": ("PATH", "folder for checkpoint, batches and dead letters; default: beside the table"),
    "application": ("NAME", "name of the leases"),
    "name": ("NAME", "name of the delivery, part of its files' names; default: the stream's"),
    "time-zone": ("ZONE", "of dates, and of moments without one (default UTC)"),
    "file-size": ("SIZE", "size at which a file is large enough (default 128m)"),
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("stream", nargs="?", default=None, metavar="STREAM", help="name or ARN")
    parser.add_argument(
        "-f", "--file", metavar="FILE", help="read deliveries from a file: YAML, JSON or TOML"
    )
    for name, (metavar, text) in _FLAGS.items():
        parser.add_argument(f"--{name}", metavar=metavar, help=text)
    parser.add_argument(
        "--partition-by",
        action="append",
        metavar="EXPRESSION",
        help="partition column: `date(arrived)`, `country`, `substr(id, 1, 2) AS head`; may be repeated",
    )
    parser.add_argument(
        "--metadata", action="append", metavar="COLUMN", help="further column of the source, such as shardId"
    )
    parser.add_argument(
        "--option",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="option of the Spark source; may be repeated",
    )
    parser.add_argument("--once", action="store_true", help="deliver the records that have arrived, and end")
    parser.add_argument("--json", action="store_true", help="print a JSON document for each batch")
    parser.add_argument(
        "--dry-run", action="store_true", help="show columns, partitions and the first rows; write nothing"
    )
    parser.add_argument(
        "--redeliver",
        action="store_true",
        help="put dead letters into the table, after a correction of the schema",
    )
    parser.add_argument(
        "--print-submit", action="store_true", help="print the lines that run the file on a cluster"
    )
    group = parser.add_argument_group("Spark")
    group.add_argument("--master", metavar="URL", help="default: all cores of this machine")
    group.add_argument(
        "--conf", action="append", default=[], metavar="NAME=VALUE", help="setting of Spark; may be repeated"
    )
    add_connection_arguments(parser)


_CONTINUE_ADVICE: Final = "the same command goes on where it stopped, and delivers each record once"


def run(args: argparse.Namespace) -> int:
    """Deliver; return 0, or 128 plus the number of a signal that ended the run before all was delivered.

    Raises:
        UsageError: A wrong option or file; nothing is written.
        PenstockError: A delivery failed.
    """
    if args.print_submit:
        print(_submit_lines(args))
        return 0
    try:
        with exit_on_signals(shell_statuses(signal.SIGTERM)):
            return _run_deliveries(args)
    except (KeyboardInterrupt, SystemExit):
        if not args.dry_run:
            warn(f"penstock deliver: interrupted; {_CONTINUE_ADVICE}")
        raise


def _run_deliveries(args: argparse.Namespace) -> int:
    deliveries = _parse_deliveries(args)
    from penstock.delivery.running import DeliveryRun, check_deliveries, close_session, open_session
    from penstock.runtime.stop_signals import StopSignals, received_signal

    try:
        checked_deliveries = check_deliveries(deliveries)
    except UsageError as error:
        if args.file is None:
            raise
        raise OptionError(f"{args.file}: {error}") from error
    spark = open_session(
        args.master,
        pairs_of(args.conf, "--conf"),
        is_verbose=args.verbose,
        formats={each.format for each in deliveries},
    )
    lock = threading.Lock()
    letter_folders: dict[str, list[str]] = {}  # two tables may have deliveries of one name
    for delivery in deliveries:
        letter_folders.setdefault(delivery.name, []).append(delivery.dead_letter_folder)

    def report(batch: BatchReport) -> None:
        with lock:
            print(safe_json(to_builtins(batch)) if args.json else escape_text(_batch_text(batch)), flush=True)
            if batch.dead_count and (folders := letter_folders.pop(batch.delivery, None)):
                warn(
                    f"penstock deliver: the dead letters of {batch.delivery}, with reasons, are in "
                    + " and ".join(folders)
                )

    try:
        if args.dry_run:
            _show_previews(spark, checked_deliveries, as_json=args.json)
            return 0
        deliver = DeliveryRun(spark, checked_deliveries, report, is_redelivery=args.redeliver)
        for each in deliver.opened:
            warn(
                f"penstock deliver: {each.delivery.stream} to {each.delivery.to} (leases: {each.record.application})"
            )
        with StopSignals(deliver.stop):
            if args.redeliver:
                deliver.redeliver()
            else:
                deliver.run(once=args.once)
    finally:
        close_session(spark)
    number = received_signal()
    if not deliver.is_cut or number is None:
        return 0
    warn(f"penstock deliver: stopped before all was delivered; {_CONTINUE_ADVICE}")
    return 128 + number


def _submit_lines(args: argparse.Namespace) -> str:
    """Return the shell's lines that run a file of deliveries on a cluster."""
    from importlib.metadata import PackageNotFoundError, version

    from penstock.core.delivering.lake_packages import has_packages, lake_settings, newest_line, spark_line
    from penstock.core.delivering.submission import submit_lines
    from penstock.delivery.schema_file import schema_file

    if args.file is None:
        raise UsageError("--print-submit needs a file of deliveries: -f FILE")
    deliveries = _parse_deliveries(args)
    formats = {each.format for each in deliveries}
    has_schemas = any(each.glue_schema is not None or each.schema.endswith(".json") for each in deliveries)
    files = [each.schema for each in deliveries if schema_file(each.schema) is not None]
    further_arguments = [f"--{name}" for name in ("once", "json", "redeliver") if getattr(args, name)]
    for name, value in connection_of(args).items():
        further_arguments += [f"--{name.replace('_', '-')}", value]
    settings = pairs_of(args.conf, "--conf")
    spark_release = newest_line(formats)
    with contextlib.suppress(PackageNotFoundError):
        installed_release = spark_line(version("pyspark"))
        if spark_release and has_packages(formats, installed_release):
            spark_release = installed_release
    settings |= lake_settings(formats, spark_release or None, settings)
    return submit_lines(
        args.file,
        tuple(further_arguments),
        args.master,
        settings,
        spark_release,
        has_schemas=has_schemas,
        schema_files=files,
    )


def _show_previews(spark: Any, checked_deliveries: Any, *, as_json: bool) -> None:
    from penstock.delivery.preview import preview
    from penstock.delivery.running import named_errors, spark_errors

    for delivery, options in checked_deliveries:
        with spark_errors(delivery), named_errors(delivery, checked_deliveries):
            shown = preview(spark, delivery, options)
        if as_json:
            print(safe_json(to_builtins(shown)))
            continue
        out = Output()
        out.line(f"{shown.stream} to {shown.to}", style="bold")
        out.line(f"checkpoint {shown.checkpoint}")
        parts = set(shown.partitions)
        if shown.columns:
            out.table(
                ["column", "type", ""],
                [[name, kind, "partition" if name in parts else ""] for name, kind in shown.columns],
            )
        if shown.rows:
            names = list(shown.rows[0])
            out.table(names, [[row[name] or "" for name in names] for row in shown.rows])
        for change in shown.changes:
            out.line(change)
        for reason in shown.dead:
            out.line(f"dead letter: {reason}")
        if shown.note:
            out.line(shown.note)
        _show_costs(out, shown.costs)


def _show_costs(out: Output, costs: RunningCosts) -> None:
    out.line(
        f"a day, at most: {costs.batches_per_day:,} batches of {counted(costs.shard_count, 'shard')}, "
        f"{costs.reads_per_day:,} reads, {costs.lease_writes_per_day:,} lease writes, {costs.files_per_day:,} files"
    )
    if costs.sums:
        out.table(
            [f"{costs.currency} a month, at most", "sum", ""],
            [[each.item, each.terms, f"{each.amount:.2f}"] for each in costs.sums],
        )
    if costs.warning:
        out.line(f"warning: {costs.warning}")


def _parse_deliveries(args: argparse.Namespace) -> list[Delivery]:
    """Return the deliveries of the file, or else the one that the options describe."""
    from penstock.core.delivering.definition import parse_delivery

    typed_values: dict[str, Any] = {
        name: value for name in _FLAGS if (value := getattr(args, name.replace("-", "_"))) is not None
    }
    typed_values |= {
        name.replace("_", "-"): value
        for name in ("stream", "partition_by", "metadata")
        if (value := getattr(args, name)) is not None
    }
    if args.option:
        typed_values["options"] = pairs_of(args.option, "--option")
    connection = {name.replace("_", "-"): value for name, value in connection_of(args).items()}
    if args.file is None:
        if args.stream is None:
            raise UsageError("name a stream, or a file of deliveries with -f")
        return [parse_delivery({**typed_values, **connection})]
    if typed_values:
        raise UsageError(
            f"-f names a file of deliveries; {', '.join(sorted(typed_values))} belongs into it, not onto the command line"
        )
    documents = _documents_of(args.file)
    deliveries = []
    for number, document in enumerate(documents, 1):
        if not isinstance(document, Mapping):
            raise OptionError(f"{args.file}: delivery {number} is not a mapping of names and values")
        try:
            deliveries.append(parse_delivery(document, defaults=connection))
        except OptionError as error:
            place = f"{args.file}: delivery {number}" if len(documents) > 1 else args.file
            raise OptionError(f"{place}: {error}") from error
    return deliveries


def _documents_of(file: str) -> list[Any]:
    """Return the documents of a file's list `deliveries`; without the list, the whole file is the only document."""
    document = _read_file(file)
    several = document.get("deliveries")
    if several is None:
        return [document]
    if len(document) > 1 or not isinstance(several, list) or not several:
        raise OptionError(f"{file}: `deliveries` is a list and stands alone")
    return several


def _read_file(file: str) -> Mapping[str, Any]:
    path = Path(file)
    if file == "-":
        raise UsageError(
            "-f -: standard input has no ending that names its form; give a file, or -f /dev/stdin for YAML"
        )
    try:
        text = path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{path} cannot be read: {error}") from error
    try:
        document = _parse_text(text, path.suffix.lower())
    except ValueError as error:
        raise UsageError(f"{path}: {error}") from error
    if not isinstance(document, Mapping):
        raise UsageError(
            f"{path}: expected names and values of a delivery, such as `stream: orders`; several are a list under `deliveries`"
        )
    return document


def _parse_text(text: str, ending: str) -> Any:
    if ending == ".json":
        return json.loads(text, object_pairs_hook=json_object)
    if ending == ".toml":
        import tomllib

        return tomllib.loads(text)
    import yaml

    try:
        return yaml.load(text, Loader=_yaml_loader(yaml))  # noqa: S506 - derived from the safe loader
    except yaml.MarkedYAMLError as error:
        # A missing quotation mark is found at the end of the text; the context is where the quotation begins.
        parts = ((error.problem, error.problem_mark), (error.context, error.context_mark))
        places = [
            f"line {at.line + 1}, column {at.column + 1}: {text}" for text, at in parts if at is not None
        ]
        raise ValueError(f"no YAML: {'; '.join(places)}") from error
    except yaml.YAMLError as error:
        raise ValueError(f"no YAML: {error}") from error


def _yaml_loader(yaml: Any) -> Any:
    """Return a loader that keeps numbers, dates and times as texts, and refuses a key that is there twice.

    So a value means the same as on the command line: YAML would read `007` as 7, `1e3` as 1000 and `12:30` as 750.
    """

    class Loader(yaml.SafeLoader):  # type: ignore[misc]  # loaded late
        def construct_mapping(self, node: Any, deep: bool = False) -> Any:
            repeated_key = repeated_name([key.value for key, _ in node.value])
            if repeated_key is not None:
                last = [key for key, _ in node.value if key.value == repeated_key][-1]
                raise yaml.MarkedYAMLError(
                    problem=f"{repeated_key} is there twice", problem_mark=last.start_mark
                )
            return super().construct_mapping(node, deep)

    Loader.yaml_implicit_resolvers = {
        first: [
            (tag, pattern)
            for tag, pattern in resolvers
            if tag.rpartition(":")[2] in ("bool", "null", "merge")
        ]
        for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
    }
    return Loader


def _batch_text(batch: BatchReport) -> str:
    parts = [counted(batch.row_count, "row")]
    if batch.dead_count:
        parts.append(counted(batch.dead_count, "dead letter"))
    parts += [counted(batch.file_count, "file"), f"{batch.duration_s:.1f} s"]
    if batch.new_columns:
        parts.append(f"new columns {', '.join(batch.new_columns)}")
    if batch.failed_compactions:
        parts.append(f"{batch.failed_compactions} failed compactions")
    if batch.is_repeated:
        parts.append("was in the table already")
    return f"{batch.delivery} batch {batch.batch.lstrip('0') or '0'}: {', '.join(parts)}"
