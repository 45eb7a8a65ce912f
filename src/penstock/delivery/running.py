"""Run deliveries in one Spark session, until they are stopped or have read all records that had arrived at their start."""

from __future__ import annotations

import locale
import logging
import os
import re
import sys
import time
import traceback
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from itertools import zip_longest
from typing import Any, Final

from py4j.protocol import Py4JJavaError
from pyspark import SparkConf, SparkContext
from pyspark import __version__ as pyspark_version
from pyspark.errors import PySparkException
from pyspark.java_gateway import launch_gateway
from pyspark.sql import DataFrame, SparkSession

from penstock.core.delivering.definition import Delivery, LeasePlace, check_together
from penstock.core.delivering.lake_packages import lake_settings, spark_line
from penstock.core.delivering.manifest import range_label
from penstock.core.delivering.record import check_streams
from penstock.core.moments import describe_moment
from penstock.delivery.files import spark_uri
from penstock.delivery.opening import (
    TOO_BUSY,
    OpenDelivery,
    batch_options,
    check_folders,
    check_options,
    error_reason,
    lock_run,
    open_delivery,
    save_query_id,
    save_record,
    source_options,
    with_absolute_paths,
)
from penstock.delivery.redelivery import redeliver
from penstock.delivery.run_lock import RunLock
from penstock.delivery.schema_file import is_submitted
from penstock.delivery.table_writer import BatchReport, TableWriter
from penstock.errors import DeliveryFailed, OptionError, PenstockError, UsageError
from penstock.runtime.threads import begin_on_daemon
from penstock.spark.engine import PASSES_START, check_version
from penstock.spark.options.spark_options import SourceOptions
from penstock.spark.options.table_properties import UNTIL_MS

_log: Final = logging.getLogger("penstock.delivery")
_POLL_S: Final = 0.2
_STOP_PATIENCE_S: Final = 60.0
"""Longest time that a stop waits for the batches under way."""
_STARTS_MAX: Final = 5
_JAVA_OPTIONS: Final = (
    "-XX:Tier4InvocationThreshold=50000 -XX:Tier4MinInvocationThreshold=6000 "
    "-XX:Tier4CompileThreshold=150000 -XX:Tier4BackEdgeThreshold=400000"
)
"""Ten times HotSpot's thresholds of calls and loops after which C2 compiles a method.

Most of a session's code runs a few hundred times: with the usual thresholds, C2 took a third of the CPU time of a backlog of 20 MB. The
code of each record passes the higher ones within seconds: a backlog of 400 MB takes no longer. Spark's JVMs ignore unknown options.
"""


_INTERRUPTION: Final = re.compile(
    r"py4j\.protocol\.Py4JJavaError: An error occurred while calling.*?"
    r"(java\.lang\.InterruptedException|java\.io\.InterruptedIOException|java\.nio\.channels\.ClosedByInterruptException)",
    re.DOTALL,
)
"""Found by Spark in the text of a batch's error if the query was stopped: then it does not fail."""


def open_session(
    master: str | None, settings: Mapping[str, str], *, is_verbose: bool, formats: Collection[str] = ()
) -> SparkSession:
    """Return a Spark session: the one of spark-submit, or a new one on this machine or a cluster.

    Args:
        master: Spark's master; None: the one of spark-submit, or all cores of this machine.
        settings: Further settings of Spark.
        is_verbose: Whether Spark logs more than errors.
        formats: Formats of the deliveries' tables.

    Raises:
        OptionError: For a format there is no package for this Spark, and the settings name none.
    """
    check_version()
    if not is_verbose:
        logging.getLogger().addFilter(_is_no_interruption)
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)
    conf = SparkConf()
    chosen = {
        "spark.app.name": "penstock deliver",
        "spark.ui.showConsoleProgress": "false",
        # Else each call that makes a column also sends the line of Python from which it is called.
        "spark.python.sql.dataFrameDebugging.enabled": "false",
    }
    submitted = is_submitted()
    if master is not None or not submitted:
        chosen["spark.master"] = master or "local[*,4]"  # a task may fail three times
    if not submitted and chosen.get("spark.master", "").startswith("local"):
        chosen |= {
            "spark.ui.enabled": "false",
            "spark.sql.shuffle.partitions": "16",
            "spark.driver.host": "127.0.0.1",
            "spark.driver.bindAddress": "127.0.0.1",
            # Spark's worker daemon, with Penstock loaded before it forks. Local workers run this Python, which has the module.
            "spark.python.daemon.module": "penstock.spark.daemon",
        }
    given = {**dict(conf.getAll()), **settings}
    # spark-submit has fetched its packages before this program began.
    lake = lake_settings(formats, None if submitted else spark_line(pyspark_version), given)
    for name, value in {**chosen, **settings, **lake}.items():
        conf.set(name, value)
    if SparkContext._active_spark_context is None and not submitted:  # noqa: SLF001 - it has no public name
        use_utf8_names()
        set_java_options()
        # Ctrl-C reaches a whole process group. Spark's processes get another session, so they finish the batch under way.
        # Signals interrupt the main thread. In the middle of a launch this would leave a Java process that never ends. A context that is
        # created there also takes over Ctrl-C: its handler calls Java in the middle of another call.
        with ThreadPoolExecutor(1) as pool:
            gateway = pool.submit(launch_gateway, conf, {"start_new_session": True}).result()
        # A cluster may accept it late. This wait ends at once by a signal, and Java ends with this process.
        begin_on_daemon("spark-start", partial(SparkContext, conf=conf, gateway=gateway)).result()
    spark = SparkSession.builder.config(conf=conf).getOrCreate()
    if not is_verbose:
        # An error that ends a query is raised here. Spark would also log it several times, with the traces of two languages.
        spark.sparkContext.setLogLevel("OFF")
        for name in ("py4j", "SQLQueryContextLogger"):
            logging.getLogger(name).setLevel(logging.CRITICAL)
    return spark


def _is_no_interruption(record: logging.LogRecord) -> bool:
    """Return whether a log record is shown: all but the traceback of a Ctrl-C, which py4j logs on the root logger."""
    return not (record.exc_info and isinstance(record.exc_info[1], KeyboardInterrupt))


def close_session(spark: SparkSession) -> None:
    """Stop the session, on a new thread with a new connection to Java.

    A signal may have ended a call of the main thread before its answer was read. The next call on that connection would read the old answer.
    """
    with ThreadPoolExecutor(1) as pool:
        pool.submit(spark.stop).result()


def check_deliveries(deliveries: Sequence[Delivery]) -> list[tuple[Delivery, SourceOptions]]:
    """Return each delivery with absolute paths, and its source's options, after all checks that need no service.

    Raises:
        OptionError, PositionError: A wrong value.
    """
    placed = [with_absolute_paths(each) for each in deliveries]
    found = []
    for each in placed:
        with named_errors(each, placed):
            found.append((each, check_options(each)))
    check_together([(each, _source_place(options)) for each, options in found])
    return found


def _source_place(options: SourceOptions) -> LeasePlace:
    """Return the account and the lease table of a source. Two deliveries in the same place would share the shards."""
    connection = options.connection
    return LeasePlace(
        (
            connection.region,
            connection.endpoint_url,
            connection.profile,
            connection.access_key_id,
            connection.role_arn,
        ),
        options.lease_table,
    )


def use_utf8_names() -> None:
    """Choose UTF-8 for the names of files that Java writes, if this machine's locale has another encoding.

    With LC_ALL=C, or a locale that is not installed, Spark would fail at the first partition with a letter beyond ASCII.
    """
    if locale.getencoding().upper() not in ("UTF-8", "UTF8"):
        os.environ["LC_ALL"] = "C.UTF-8"


def set_java_options() -> None:
    """Add options for a JVM on this machine. They stand before the user's options, so the user's win."""
    os.environ["SPARK_SUBMIT_OPTS"] = f"{_JAVA_OPTIONS} {os.environ.get('SPARK_SUBMIT_OPTS', '')}"


@contextmanager
def named_errors(delivery: Delivery, deliveries: Sequence[Any]) -> Iterator[None]:
    """Name the delivery in a usage error if the program has several."""
    try:
        yield
    except UsageError as error:
        if len(deliveries) == 1:
            raise
        raise OptionError(f"delivery {delivery.name} into {delivery.to}: {error}") from error


@contextmanager
def spark_errors(delivery: Delivery) -> Iterator[None]:
    """Raise errors of Spark and of file systems as DeliveryFailed, in one line."""
    try:
        yield
    except BrokenPipeError:
        raise  # the program that reads the reports has ended
    except OSError as error:
        raise DeliveryFailed(f"{delivery.name} into {delivery.to}: {error}") from error
    except (PySparkException, Py4JJavaError) as error:
        raise DeliveryFailed(f"{delivery.name}: {error_reason(error)}") from error


def _text_for_spark(error: BaseException) -> str:
    """Return a short text for a batch's error, with the words by which Spark recognises an interruption.

    Spark searches the text by a regular expression that needs the stack for each letter. A long trace of Java overflows it.
    """
    found = _INTERRUPTION.search("".join(traceback.format_exception(error)))
    if found is None:
        return error_reason(error)
    return f"py4j.protocol.Py4JJavaError: An error occurred while calling Java: {found[1]}"


class DeliveryRun:
    """Opens deliveries in one Spark session, and runs them.

    Args:
        spark: The session.
        deliveries: The result of `check_deliveries`.
        report: Called after each batch, on another thread.
        at_step: Called before each step of a batch; for tests.
        is_redelivery: Whether only `redeliver` will be called.
    """

    def __init__(
        self,
        spark: SparkSession,
        deliveries: Sequence[tuple[Delivery, SourceOptions]],
        report: Callable[[BatchReport], None],
        at_step: Callable[[str], None] = lambda _step: None,
        *,
        is_redelivery: bool = False,
    ) -> None:
        self._spark = spark
        self._report = report
        self._at_step = at_step
        self.is_cut = False
        """Whether `stop` ended a run before everything was delivered."""
        self._is_stopping = False  # a plain flag: a signal handler must not take an Event's lock
        self._error: BaseException | None = None
        self._writers: dict[str, TableWriter] = {}  # by the state folders of the deliveries
        self._states_with_batch: set[str] = set()  # of the deliveries whose last query had a batch
        self._is_redelivery = is_redelivery
        self._locks: dict[str, RunLock] = {}
        try:
            self.opened: list[OpenDelivery] = []
            for each, options in deliveries:
                with spark_errors(each), named_errors(each, deliveries):
                    self.opened.append(
                        open_delivery(spark, each, options, self._lock, is_redelivery=is_redelivery)
                    )
            check_streams([(each.delivery, each.record, each.backfill_range) for each in self.opened])
            for opened in self.opened:
                check_folders(spark, opened)
            for opened in self.opened:
                self._lock(opened.delivery)
                save_record(opened)
        except BaseException:
            self.close()
            raise

    def _lock(self, delivery: Delivery) -> None:
        if delivery.state not in self._locks:
            self._locks[delivery.state] = lock_run(delivery, is_redelivery=self._is_redelivery)

    def close(self) -> None:
        """Release the locks of the deliveries. A second call does nothing."""
        for each in self._locks.values():
            each.release()

    def stop(self) -> None:
        """Request the end of `run` after the batch under way. Safe in a signal handler."""
        self._is_stopping = True

    def redeliver(self) -> None:
        """Deliver the dead letters again, and close."""
        try:
            for each in self.opened:
                if self._is_stopping:
                    self.is_cut = True
                    return
                with spark_errors(each.delivery):
                    redeliver(self._spark, each, self._writer(each))
        finally:
            self.close()

    def run(self, *, once: bool) -> None:
        """Deliver until `stop` is called, then close. With `once`, also end when all records are read that had arrived at the start.

        Raises:
            PenstockError: A delivery failed. The others were stopped after their batch under way.
        """
        running = [each for each in self.opened if each.backfill_range is None]
        try:
            for each in self.opened:
                if each.backfill_range is not None and self._is_stopping:
                    self.is_cut = True
                elif each.backfill_range is not None:
                    with spark_errors(each.delivery):
                        self._backfill(each)
            if once:
                self._run_once(running)
            elif running:
                self._run_until_stopped(running)
        finally:
            self.close()

    def _run_until_stopped(self, running: Sequence[OpenDelivery]) -> None:
        """Run queries until `stop` is called, or one of them ends."""
        with self._queries() as queries:
            self._start_queries(running, queries)
            while all(each.isActive for each in queries) and not self._is_stopping:
                time.sleep(_POLL_S)
        self._raise_failure(queries)

    def _run_once(self, running: Sequence[OpenDelivery]) -> None:
        """Run queries until each has read all records that had arrived, or `stop` is called, or a query has failed."""
        left = list(running)
        while left and not self._is_stopping:
            with self._queries() as queries:
                self._start_queries(left, queries, once=True)
                while any(each.isActive for each in queries) and not self._must_end(queries):
                    time.sleep(_POLL_S)
                self.is_cut |= any(each.isActive for each in queries)
            self._raise_failure(queries)
            left = [
                each
                for each, query in zip_longest(left, queries)
                if query is None  # it was not started
                or self._may_have_left_records(each)
            ]
        self.is_cut |= bool(left)

    def _may_have_left_records(self, opened: OpenDelivery) -> bool:
        """Return whether a query that has ended may have left records that had arrived before the checks; forget its last batch.

        With Spark 4.0 and 4.1 a query ends after one batch. This may be an empty batch that a killed run had begun, and the records
        of new shards, or of shards for which a limit had no room, are in a later batch. A query without a batch has found no such records.
        """
        if PASSES_START or opened.delivery.state not in self._states_with_batch:
            return False
        self._states_with_batch.remove(opened.delivery.state)
        return True

    @contextmanager
    def _queries(self) -> Iterator[list[Any]]:
        """Yield an empty list for the caller's queries, and end these queries afterwards.

        After a KeyboardInterrupt, which a second signal raises, they are not ended: this thread may no longer call Spark.
        """
        queries: list[Any] = []
        try:
            yield queries
        except Exception:
            self._end_queries(queries)
            raise
        self._end_queries(queries)

    def _start_queries(
        self, deliveries: Sequence[OpenDelivery], queries: list[Any], *, once: bool = False
    ) -> None:
        """Start queries and add them to a list. End early if `stop` is called or a query has failed."""
        for each in deliveries:
            if self._must_end(queries):
                return
            interval = f"{each.delivery.freshness_s} seconds"
            queries.append(
                self._start_query(each, {"availableNow": True} if once else {"processingTime": interval})
            )

    def _writer(self, opened: OpenDelivery) -> TableWriter:
        # A query that is started again goes on with the columns that the one before has added.
        if opened.delivery.state not in self._writers:
            self._writers[opened.delivery.state] = TableWriter(
                opened.delivery,
                opened.files,
                opened.schema,
                opened.target,
                texts=opened.texts,
                report=self._report,
                at_step=self._at_step,
            )
        return self._writers[opened.delivery.state]

    def _start_query(self, opened: OpenDelivery, trigger: dict[str, Any]) -> Any:
        """Start a query, and return it when its source runs, when it has failed, or when `stop` is called.

        Each source starts a Python process. Many of them at once would exceed the time that Spark gives each. A query whose process
        was too slow has done nothing, and is started again.
        """
        for starts_left in reversed(range(_STARTS_MAX)):
            query = self._try_start(opened, trigger)
            while query.isActive and query.status["message"].startswith("Initializing"):
                if self._is_stopping:
                    return query
                time.sleep(_POLL_S)
            if query.isActive or not starts_left or TOO_BUSY not in str(query.exception()):
                break
            _log.warning("%s: this machine is too busy to start Python in time; starting again", query.name)
        return query

    def _try_start(self, opened: OpenDelivery, trigger: dict[str, Any]) -> Any:
        delivery = opened.delivery
        reader = self._spark.readStream.format("kinesis")
        for name, value in {
            **source_options(delivery, opened.record.application),
            "startingPosition": opened.record.start or "",
        }.items():
            reader = reader.option(name, value)
        if "availableNow" in trigger and not PASSES_START:
            reader = reader.option(UNTIL_MS, opened.opened_ms)
        writer = self._writer(opened)

        def write(batch: DataFrame, batch_id: int) -> None:
            try:
                writer.write_batch(batch, batch_id)
                self._states_with_batch.add(delivery.state)
            except BaseException as error:  # noqa: BLE001 - raised again in other words
                self._error = self._error or error
                raise RuntimeError(_text_for_spark(error)) from None

        # If a run is killed while Spark writes its first offset, the next run finds a half-written file. Spark would then refuse the
        # checkpoint location as another query's. Penstock checks by the delivery's record whose location it is.
        self._spark.conf.set("spark.sql.streaming.verifyCheckpointDirectoryEmptyOnStart", "false")
        query = (
            reader.load()
            .writeStream.foreachBatch(write)
            .queryName(delivery.name if len(self.opened) == 1 else f"{delivery.name} to {delivery.to}")
            .option("checkpointLocation", spark_uri(delivery.checkpoint_location))
            .trigger(**trigger)
            .start()
        )
        save_query_id(opened, str(query.id))
        return query

    def _backfill(self, opened: OpenDelivery) -> None:
        delivery, backfill_range = opened.delivery, opened.backfill_range
        assert backfill_range is not None
        writer = self._writer(opened)
        label = range_label(backfill_range.since_ms, backfill_range.until_ms)
        if writer.store.is_done(label):
            _log.warning(
                "%s: the records from %s to %s are in the table already",
                delivery.name,
                describe_moment(backfill_range.since_ms),
                describe_moment(backfill_range.until_ms),
            )
            return
        reader = self._spark.read.format("kinesis")
        for name, value in batch_options(delivery).items():
            reader = reader.option(name, value)
        rows = (
            reader.option("startingPosition", f"AT_TIMESTAMP {describe_moment(backfill_range.since_ms)}")
            .option("endingPosition", f"AT_TIMESTAMP {describe_moment(backfill_range.until_ms)}")
            .load()
        )
        writer.write(rows, label)

    def _end_queries(self, queries: Sequence[Any]) -> None:
        """Stop each query when its batch is done, or when `_STOP_PATIENCE_S` has passed."""
        end_s = time.monotonic() + _STOP_PATIENCE_S
        for query in queries:
            while query.isActive and query.status["isTriggerActive"] and time.monotonic() < end_s:
                time.sleep(_POLL_S)
            if query.isActive:
                query.stop()

    def _must_end(self, queries: Sequence[Any]) -> bool:
        """Return whether the queries must end before they have read everything: one has failed, or `stop` was called."""
        has_failed = any(not each.isActive and each.exception() is not None for each in queries)
        return self._is_stopping or has_failed

    def _raise_failure(self, queries: Sequence[Any]) -> None:
        """Raise the error of a failed query, if any. An error that a batch has raised is preferred: Spark's error has it only as text."""
        errors = [(query.name, query.exception()) for query in queries]
        failed = [(name, error) for name, error in errors if error is not None]
        if not failed:
            return
        name, error = failed[0]
        if isinstance(self._error, PenstockError):
            raise self._error
        raise DeliveryFailed(f"{name}: {error_reason(self._error or error)}") from error
