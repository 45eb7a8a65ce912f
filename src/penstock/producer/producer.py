"""`Producer`: puts records from any thread, returns a future for each, and keeps to the rate that each shard accepts.

::

    with Producer(stream="orders") as producer:
        future = producer.put(b"...", partition_key="customer-7")
        print(future.result().sequence_number)
"""

from __future__ import annotations

import logging
import os
import random
import threading
import time
from collections.abc import Iterable
from concurrent.futures import Future
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Literal, NoReturn, Self, Unpack
from weakref import WeakKeyDictionary

from penstock.core.keyword_options import check_range, check_types, merge_connection, merge_options
from penstock.core.sparse_reports import is_reported
from penstock.core.stream_identity import with_region_of_arns
from penstock.core.writing.batcher import Batcher
from penstock.core.writing.packing import as_bytes_and_str, check_record
from penstock.errors import BufferFull, DeliveryFailed, UsageError
from penstock.ports.clock import Chance, Clock
from penstock.ports.kinesis import Kinesis
from penstock.ports.metrics import Metrics, check_metrics
from penstock.producer.engine import Engine
from penstock.producer.placement import Placement, fetch_placement
from penstock.producer.process_end import EndHook, refuse_open_end, warn_of_open_end
from penstock.producer.receipts import RECEIPT_BYTES, Acknowledgement
from penstock.producer.sender import SenderPorts
from penstock.producer.writer_options import (
    AGGREGATE_BYTES_DEFAULT,
    AGGREGATE_COUNT_DEFAULT,
    batcher_settings_of,
    check_shared_options,
)
from penstock.runtime.guarded_metrics import guard_metrics
from penstock.runtime.home_process import HomeProcess
from penstock.runtime.metrics_tally import LabelledMetrics, MetricsTally
from penstock.runtime.own_loggers import warn_if_disabled
from penstock.runtime.system_clock import SystemClock
from penstock.runtime.threads import living_objects

if TYPE_CHECKING:
    from penstock.producer.keywords import ProducerKeywords

_log: Final = logging.getLogger("penstock.producer")
_JOIN_S: Final = 30.0
_END_S: Final = 60.0
"""How long the end of a process waits for the records of an open producer."""
_MANY_OPEN: Final = 32
"""Number of open producers in one process from which a warning is logged: most programs need one for each stream."""


@dataclass(frozen=True, slots=True)
class ProducerOptions:
    """How a producer works.

    Args:
        aggregation: Pack user records into KPL aggregates, per predicted shard.
        force_aggregation: Aggregate also if it is unknown how the stream places records.
        ordering: `key` keeps the order of each partition key; `none` does not, and is faster on few shards.
        rate_limit_percent: Percent of each shard's capacity that this producer may use, or None for no limit before
            the service refuses.
        linger_s: How long a record waits at most for others to share a request with.
        buffer_bytes_max: Bytes of memory for records that are not acknowledged and their futures; each takes about
            750 bytes beside data and key.
        put_timeout_s: How long `put` waits for room in that memory; 0 raises at once.
        no_progress_deadline_s: When a shard acknowledged nothing for this long, all waiting records fail.
        record_ttl_s: A record that is not acknowledged after this long is dropped, and its future fails with
            `RecordExpired`; a request in flight is waited for first. None: records do not expire.
        request_count_max: Requests in flight at once, each on its own thread.
        request_record_count_max: Kinesis records in one request, 1 to 500.
        aggregate_bytes_max: Size of one aggregate.
        aggregate_count_max: User records in one aggregate.
        map_age_max_s: The shards are listed again after this long; an unexpected answer lists them at once.
    """

    aggregation: bool = True
    force_aggregation: bool = False
    ordering: Literal["key", "none"] = "key"
    rate_limit_percent: int | None = None
    linger_s: float = 0.1
    buffer_bytes_max: int = 64 * 2**20
    put_timeout_s: float = 60.0
    no_progress_deadline_s: float = 300.0
    record_ttl_s: float | None = None
    request_count_max: int = 4
    request_record_count_max: int = 500
    aggregate_bytes_max: int = AGGREGATE_BYTES_DEFAULT
    aggregate_count_max: int = AGGREGATE_COUNT_DEFAULT
    map_age_max_s: float = 300.0

    def __post_init__(self) -> None:
        check_types(self)
        check_shared_options(self)
        check_range(self, 0, 60, "linger_s")
        check_range(self, 0, 86_400, "put_timeout_s")
        check_range(self, 1, 64, "request_count_max")
        check_range(self, 1, 86_400, "map_age_max_s")
        check_range(self, 0.01, 604_800, "record_ttl_s")


class Producer:
    """Writes records to one stream. Safe to use from several threads, and across a fork: a child's first put begins anew there.

    Delivery is at least once: a future's result means that the service has the record. With `ordering="key"` records
    of one partition key are first accepted in the order in which they were put, also when requests are refused or
    shards are split meanwhile.

    Args:
        stream: Name or ARN.
        options: How to work. Single options may also be given by name: `Producer(..., linger_s=0.5)`.
        region: AWS region; None: that of an ARN, or as boto3 finds it.
        endpoint_url: For instance that of `penstock local`; None: as boto3 finds it.
        connection: Further connection options (docs/api.md), for instance `{"profile": "test"}`.
        metrics: Where metrics go.
        kinesis: The service, instead of region, endpoint_url and connection; None opens it.
        clock: Time; None for the system's.
        chance: Jitter; None for the system's.

    Raises:
        OptionError: An option is unknown or out of its range.
        UsageError: The arguments do not fit together.
    """

    def __init__(
        self,
        stream: str,
        *,
        options: ProducerOptions | None = None,
        region: str | None = None,
        endpoint_url: str | None = None,
        connection: dict[str, Any] | None = None,
        metrics: Metrics | None = None,
        kinesis: Kinesis | None = None,
        clock: Clock | None = None,
        chance: Chance | None = None,
        **single_options: Unpack[ProducerKeywords],
    ) -> None:
        if not stream or not isinstance(stream, str):
            raise UsageError(f"stream={stream!r}: expected a name or ARN")
        check_metrics(metrics)
        self.stream = stream
        self.options: ProducerOptions = merge_options(options or ProducerOptions(), single_options)
        fields = merge_connection(connection, region=region, endpoint_url=endpoint_url)
        if kinesis is not None and fields:
            raise UsageError(f"kinesis is given, so {', '.join(sorted(fields))} would have no effect")
        # Not in `put`: with `-W error` it would raise there.
        warn_if_disabled(_log, "which records failed", stacklevel=3)
        self._follows_environment = False
        if kinesis is None:
            from penstock import wiring  # here, so that the SDK is loaded only if it is used

            kinesis = wiring.open_kinesis(
                wiring.parse_connection(with_region_of_arns(fields, stream)), stays_off_aws=True
            )
            self._follows_environment = "endpoint_url" not in fields
        self._kinesis = kinesis
        self._clock = clock or SystemClock()
        self._chance = chance or random.SystemRandom()
        self._metrics = guard_metrics(metrics)
        self._has_own_metrics = isinstance(metrics, MetricsTally | LabelledMetrics)
        self._lock = threading.RLock()  # a signal or log handler may call while its thread holds it
        self._engine: Engine | None = None
        self._record_bytes_max = 0
        self._is_closed = False
        self._has_ended = False
        self._is_entered = False
        self._make_home()
        _producers[self] = None

    def __reduce__(self) -> NoReturn:
        """Refuse to be sent to another process: threads and records that wait would stay behind.

        Raises:
            TypeError: Always.
        """
        raise TypeError(
            f"stream {self.stream}: a Producer works in the process that made it and cannot be pickled; make one where records are "
            "put, in a Spark job inside the function that runs in the task"
        )

    def __repr__(self) -> str:
        state = "closed" if self._is_closed else f"waiting_count={self.waiting_count}"
        return f"Producer(stream={self.stream!r}, {state})"

    # --- putting ------------------------------------------------------------------------------------------

    def put(
        self,
        data: bytes,
        partition_key: str,
        explicit_hash_key: str | None = None,
        *,
        timeout_s: float | None = None,
    ) -> Future[Acknowledgement]:
        """Put one record; it is sent soon, on another thread.

        Args:
            data: The payload. A KPL aggregate is sent alone, and consumers get its records.
            partition_key: 1 to 256 characters.
            explicit_hash_key: Decimal text from 0 to 2^128-1 that places the record, or None.
            timeout_s: How long to wait for room in memory; None: `put_timeout_s`.

        Returns:
            A future whose result is an `Acknowledgement`, or whose exception is `DeliveryFailed`. Its callbacks run on
            one of the producer's threads and should be short. It cannot be cancelled.

        Raises:
            RecordError: The service can never accept the record, or data or key are of another type; it was not put.
            BufferFull: There was no room in time; the record was not put.
            DeliveryFailed: The producer was closed.
            ServiceError: Only for the first record: the stream cannot be described.
            UsageError: A signal handler, a log handler or a `__del__` calls this in the middle of another call on its thread.
        """
        # The order matters: in a forked child another thread may restart the producer now, which drops the parent's engine first.
        is_open = self._home.is_here and not self._is_closed
        engine = self._engine if is_open else None
        if engine is None:
            engine = self._open()
        if type(data) is not bytes or type(partition_key) is not str:
            data, partition_key = as_bytes_and_str(self.stream, data, partition_key)
        if explicit_hash_key is not None and isinstance(explicit_hash_key, str):
            explicit_hash_key = str.__str__(explicit_hash_key)
        check_record(self.stream, data, partition_key, explicit_hash_key, self._record_bytes_max)
        future = engine.put(
            data,
            partition_key,
            explicit_hash_key,
            self.options.put_timeout_s if timeout_s is None else timeout_s,
        )
        if future is None:
            raise BufferFull(
                f"stream {self.stream}: {engine.waiting_count} records with {engine.waiting_bytes} bytes of memory wait "
                f"for acknowledgement, and buffer_bytes_max is {self.options.buffer_bytes_max}; put more slowly, add "
                "shards, or raise put_timeout_s or buffer_bytes_max"
            )
        return future

    def put_many(
        self, records: Iterable[tuple[bytes, str] | tuple[bytes, str, str | None]]
    ) -> list[Future[Acknowledgement]]:
        """Put records in order: (data, partition key) or (data, partition key, explicit hash key) each.

        For the first record that cannot be put it raises the error of `put`; those before it were put.
        """
        return [self.put(*record) for record in records]

    def flush(self, timeout_s: float | None = None) -> None:
        """Send without lingering, and wait until every record put before is acknowledged.

        Args:
            timeout_s: How long to wait; None waits as long as the service makes progress.

        Raises:
            DeliveryFailed: The timeout passed, or records failed since the last flush.
            UsageError: A future's callback calls it, or a signal handler in the middle of another call; it would wait for itself.
        """
        self._check_home()
        self._check_may_wait("flush")
        self._flush(timeout_s, fate_of_rest="they go on being sent")

    def _flush(self, timeout_s: float | None, *, fate_of_rest: str) -> None:
        """Wait until all records are acknowledged. `fate_of_rest` is the error's text about records that are late."""
        engine = self._engine
        if engine is None:
            return
        if not engine.flush(timeout_s):
            raise DeliveryFailed(
                f"stream {self.stream}: {engine.waiting_count} records were not acknowledged within {timeout_s} s; "
                f"{fate_of_rest}"
            )
        failed_count, cause = engine.take_failures()
        if failed_count:
            raise DeliveryFailed(
                f"stream {self.stream}: {failed_count} records failed; first: {cause}"
            ) from cause

    def close(self, timeout_s: float | None = None) -> None:
        """Flush, then end the threads. May be called again; while another thread closes it, each call waits for the records.

        Raises:
            DeliveryFailed: Records were not acknowledged in time, or failed since the last flush. The futures of
                the remaining records fail.
            UsageError: A future's callback calls it, or a signal handler in the middle of another call; it would wait for itself.
        """
        self._check_home()
        with self._lock:
            if self._has_ended or (self._is_closed and self._is_own_thread):
                return
            self._check_may_wait("close")
            self._is_closed = True
        try:
            self._flush(timeout_s, fate_of_rest="they fail")
        finally:
            if self._engine is not None:
                self._engine.stop(_JOIN_S)
            self._has_ended = True
            self._end_hook.cancel()  # only now: if the process ends while a thread closes, the hook waits for that

    @property
    def waiting_count(self) -> int:
        """Records that are not acknowledged yet."""
        engine = self._engine if self._home.is_here else None
        return 0 if engine is None else engine.waiting_count

    def __enter__(self) -> Self:
        self._restart_in_child()  # in a forked child: a restart at the first put would reset `_is_entered`
        self._is_entered = True
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if not self._home.is_here:
            return  # this is a forked child that has put nothing: the waiting records are the parent's
        if error is None:
            self.close()
            return
        try:  # records put before the block's error are delivered; then that error is raised
            self.close()
        except DeliveryFailed as failure:
            _log.error(str(failure))

    @property
    def is_open(self) -> bool:
        """Whether records are accepted without describing the stream first."""
        return self._home.is_here and not self._is_closed and self._engine is not None

    def open(self) -> None:
        """Describe the stream and start the threads. Without this call the first `put` does it.

        Raises:
            DeliveryFailed: The producer was closed.
            ServiceError: The stream cannot be described.
        """
        self._open()

    # --- inside -------------------------------------------------------------------------------------------

    def _make_home(self) -> None:
        """Make this process the one in which the producer works."""
        self._is_opening = False
        self._home = HomeProcess("producer")
        self._end_hook = _close_at_end(self, self._home)

    def _restart_in_child(self) -> None:
        """In a forked child, drop the threads and waiting records, which are the parent's, and begin anew."""
        if self._home.is_here or self._has_own_metrics:
            return  # before the lock: a flush would wait for it while another thread opens the producer
        with self._lock:
            if not self._home.is_here:
                self._engine = None
                self._is_entered = False  # the end of the parent's block may never be reached here
                self._make_home()

    def _check_home(self) -> None:
        """Restart the producer in a forked child.

        Raises:
            UsageError: In the child, if the producer has metrics of `penstock.metrics`: the parent's thread serves or sends them,
                and the child's would begin with the parent's counts.
        """
        self._restart_in_child()
        self._home.refuse_fork()

    @property
    def _is_own_thread(self) -> bool:
        return self._engine is not None and self._engine.is_own_thread

    def _check_may_wait(self, name: str) -> None:
        if self._engine is not None:
            self._engine.check_not_interrupted()
        if self._is_own_thread:
            raise UsageError(
                f"stream {self.stream}: {name}() waits for records, and is called in a future's callback, on one of the threads that "
                "send them: set an event there, and call it on a thread of the program"
            )

    def _open(self) -> Engine:
        """Return the engine. At the first call, describe the stream and create the engine."""
        self._check_home()
        with self._lock:
            self._check_not_closed()
            if self._engine is not None:
                return self._engine
            if self._is_opening:
                raise UsageError(
                    f"stream {self.stream}: a record is put while its thread opens the producer: by a log handler that puts the lines "
                    "of boto3 or of Penstock (give it a filter that leaves out the loggers botocore, urllib3 and penstock), or by a signal "
                    "handler (call open() before you set it)"
                )
            self._is_opening = True
            try:
                self._engine = self._make_engine()
            finally:
                self._is_opening = False
            _warn_of_many()
            if self._follows_environment:
                _engines_of_environment[self._engine] = None
            return self._engine

    def _check_not_closed(self) -> None:
        if self._is_closed:
            raise DeliveryFailed(f"stream {self.stream}: the producer is closed; the record was not taken")

    def _make_engine(self) -> Engine:
        self._end_hook.add_pool_hooks()
        if not self._is_entered:  # without a `with` block, only a hook at the process's end closes it
            refuse_open_end(self.stream)
            warn_of_open_end(self.stream)
        options = self.options
        placement = self._fetch_placement()
        self._record_bytes_max = placement.record_bytes_max
        self._check_not_closed()  # a signal handler on this thread may have closed the producer meanwhile
        batcher = Batcher(
            batcher_settings_of(
                options,
                aggregates=options.aggregation and placement.may_aggregate,
                linger_s=options.linger_s,
                map_age_max_s=options.map_age_max_s,
            ),
            predicts=placement.predicts,
            record_bytes_max=placement.record_bytes_max,
            shard_count=placement.shard_count,
            extra_bytes=RECEIPT_BYTES,
        )
        return Engine(
            self.stream,
            batcher,
            SenderPorts(self._kinesis, self._clock, self._chance, self._metrics),
            fetch_placement=self._fetch_placement,
            thread_count=options.request_count_max,
            buffer_bytes_max=options.buffer_bytes_max,
            record_ttl_s=options.record_ttl_s,
        )

    def _fetch_placement(self) -> Placement:
        return fetch_placement(
            self._kinesis,
            self.stream,
            wants_aggregation=self.options.aggregation,
            is_forced=self.options.force_aggregation,
        )


_producers: Final[WeakKeyDictionary[Producer, None]] = WeakKeyDictionary()
_engines_of_environment: Final[WeakKeyDictionary[Engine, None]] = WeakKeyDictionary()
"""The engines of producers whose endpoint comes from the environment."""


def _on_forked() -> None:
    """In a forked child, forget the parent's engines, and replace the locks that a thread of the parent may hold."""
    _engines_of_environment.clear()
    for producer in living_objects(_producers):
        producer._lock = threading.RLock()  # noqa: SLF001 - of this module


os.register_at_fork(after_in_child=_on_forked)


def _warn_of_many() -> None:
    count = sum(producer.is_open for producer in living_objects(_producers))
    if is_reported(count, _MANY_OPEN):
        _log.warning(
            "%d producers are open in this process, each with threads and connections of its own: make one for the process, not one "
            "for each request, and close those that are no longer used",
            count,
        )


def flush_environment_producers(timeout_s: float) -> None:
    """Send the waiting records of producers whose endpoint comes from the environment; wait until they are acknowledged.

    The fixture `local_kinesis` calls this before it restores the environment.
    """
    until_s = time.monotonic() + timeout_s
    for engine in living_objects(_engines_of_environment):
        engine.flush(max(0.0, until_s - time.monotonic()))


def _close_at_end(producer: Producer, home: HomeProcess) -> EndHook:
    """Close a producer that is still open when its process ends, so that its records are not lost."""

    def close() -> None:
        if home.is_here and producer.waiting_count:
            if producer.is_open:
                _log.warning(
                    "stream %s: the process ends with an open producer; closing it (use `with Producer(...)`)",
                    producer.stream,
                )
            try:
                producer.close(_END_S)
            except DeliveryFailed as error:
                _log.error(str(error))

    return EndHook(close)
