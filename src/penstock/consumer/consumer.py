"""`Consumer`: one worker of an application, from start to graceful stop.

::

    def handle(batch):
        for record in batch:
            ...

    Consumer(stream="orders", application="billing", handler=handle).run()
"""

from __future__ import annotations

import dataclasses
import logging
import random
from collections.abc import Callable
from functools import partial
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Unpack, cast

from penstock.consumer.consumer_options import ConsumerOptions
from penstock.consumer.consumer_ports import ConsumerPorts
from penstock.consumer.health import Health, health_before_start
from penstock.consumer.processor import (
    DeadLetterHandler,
    Handler,
    HandlerProcessor,
    ProcessorFactory,
    StreamProcessorFactory,
    with_spans,
)
from penstock.consumer.records import Batch
from penstock.consumer.stream_argument import StreamArgument, parse_streams
from penstock.consumer.worker import ThreadDriver, Worker, WorkerDriver
from penstock.core.keyword_options import merge_connection, merge_options
from penstock.core.stream_consumer import check_consumer_name
from penstock.core.stream_identity import with_region_of_arns
from penstock.errors import OptionError, PenstockError, UsageError
from penstock.ports.clock import Chance, Clock
from penstock.ports.metrics import Metrics, MetricsOfConsumers, NoMetrics, check_metrics
from penstock.runtime.consumer_registration import ConsumerRegistration
from penstock.runtime.consumer_run import ThreadedConsumer
from penstock.runtime.guarded_metrics import guard_metrics
from penstock.runtime.home_process import random_worker_id
from penstock.runtime.own_loggers import warn_if_disabled
from penstock.runtime.system_clock import SystemClock
from penstock.runtime.thread_pull import ThreadPull
from penstock.runtime.user_code import check_are_callable, check_is_factory, check_is_plain
from penstock.runtime.worker_ports import WorkerPorts

if TYPE_CHECKING:
    from opentelemetry.trace import TracerProvider

    from penstock.consumer.keywords import ConsumerKeywords
    from penstock.ports.fan_out import FanOut

log: logging.Logger = logging.getLogger("penstock.consumer")


class Consumer(ThreadedConsumer[Worker, Batch]):
    """One worker. Several of them, in any processes, with one `application` share the shards of a stream, or of several.

    Make it in the process that runs it: after a fork the child is refused.

    Every record is delivered at least once; records of one shard in order. When a worker dies,
    the others take its shards after `lease_duration_s`; when it stops gracefully, at once.

    Args:
        stream: Name or ARN. Or several of them: a list, or a mapping to the starting position of each. Their leases then share
            one table, in the form of the KCL's multi-stream mode; one stream in a list has that form too. Java workers'
            `account:stream:epoch` may replace a name.
        application: Names the lease table; all workers of the application give the same.
        handler: Called with a `Batch` of one shard's records. Not with `processor_factory`, and not when the
            consumer is iterated.
        processor_factory: Makes one object per shard, which is also called at the shard's start and end. Called without arguments;
            with several streams, with the name or ARN of the shard's stream.
        dead_letter: Called with records that failed for good and the last error; with `on_failure="dead_letter"`.
        options: How to work. Single options may also be given by name: `Consumer(..., concurrency=10)`.
        metrics: Where metrics go. `penstock.metrics.PrometheusMetrics` serves `/health` and
            `/ready` too.
        tracer_provider: OpenTelemetry's; each call of the handler becomes a span. None makes no spans and loads nothing.
        region: AWS region; None: that of an ARN, or as boto3 finds it.
        endpoint_url: For instance that of `penstock local`; None: as boto3 finds it.
        connection: Further connection options (docs/api.md), for instance `{"profile": "test"}`, and
            `lease_table_name`.
        ports: The service, the lease table and the clock; None opens the service. Excludes region, endpoint_url and connection.

    Raises:
        OptionError: An option is unknown or out of its range.
        UsageError: The arguments do not fit together. Later, from every method: this is a forked child of the process
            in which the consumer was made.
    """

    def __init__(
        self,
        stream: StreamArgument,
        application: str,
        handler: Handler | None = None,
        *,
        processor_factory: ProcessorFactory | StreamProcessorFactory | None = None,
        dead_letter: DeadLetterHandler | None = None,
        options: ConsumerOptions | None = None,
        region: str | None = None,
        endpoint_url: str | None = None,
        connection: dict[str, Any] | None = None,
        metrics: Metrics | None = None,
        tracer_provider: TracerProvider | None = None,
        ports: ConsumerPorts | None = None,
        **single_options: Unpack[ConsumerKeywords],
    ) -> None:
        if not stream or not application:
            raise UsageError(f"stream={stream!r}, application={application!r}: both must be named")
        if not isinstance(application, str):
            raise UsageError(f"application={application!r}: expected a name")
        if handler is not None and processor_factory is not None:
            raise UsageError("give a handler or a processor_factory, not both")
        check_are_callable(1, handler=handler)
        check_are_callable(2, dead_letter=dead_letter)
        check_is_plain(handler, "handler")
        check_is_plain(dead_letter, "dead_letter")
        check_metrics(metrics)
        self.application = application
        self.options: ConsumerOptions = merge_options(options or ConsumerOptions(), single_options)
        self._streams = parse_streams(stream, self.options.starting_position)
        self.streams: tuple[str, ...] = self._streams.names
        self.stream: str = ", ".join(self.streams)
        check_is_factory(processor_factory, int(self._streams.are_several))
        if self.options.on_failure == "dead_letter" and dead_letter is None:
            raise UsageError(
                "on_failure='dead_letter' needs a dead_letter handler: Consumer(..., dead_letter=...)"
            )
        if dead_letter is not None and self.options.on_failure != "dead_letter":
            raise UsageError(
                f"a dead_letter handler is given, and on_failure={self.options.on_failure!r} never calls it: set "
                "on_failure='dead_letter'"
            )
        is_pulled = handler is None and processor_factory is None
        worker_id = self.options.worker_id or random_worker_id()
        super().__init__(
            worker_id,
            self.options.shutdown_timeout_s,
            ThreadPull(attrgetter("is_owned")) if is_pulled else None,
            name=f"worker {worker_id} of stream {self.stream} and application {application}",
            leftover=f"its leases run out by themselves after {self.options.lease_duration_s} s",
            log=log,
        )
        self._handler = handler
        self._processor_factory = processor_factory
        self._dead_letter = dead_letter
        self._metrics: Metrics = NoMetrics() if metrics is None else metrics
        self._tracer_provider = tracer_provider
        self._ports = ports
        self._connection = merge_connection(connection, region=region, endpoint_url=endpoint_url)
        is_read_by = getattr(type(dead_letter), "is_read_by", None)  # only `DeadLetterStream` has it
        if (
            ports is None
            and is_read_by is not None
            and is_read_by(dead_letter, self.streams, self._connection)
        ):
            raise UsageError(
                f"{dead_letter} is a stream that this consumer reads: each letter would be read, fail and become a letter again. "
                "Name another stream, or give the ARNs of both if they are in two accounts"
            )
        if ports is not None and self._connection:
            raise UsageError(
                f"ports are given, so {', '.join(sorted(self._connection))} would have no effect"
            )
        if self.options.retrieval != "polling":
            if ports is not None and ports.fan_out is None:
                raise UsageError(
                    f"retrieval={self.options.retrieval!r} needs the port of fan-out: ConsumerPorts(..., fan_out=...)"
                )
            check_consumer_name(self.options.consumer_name or application, "consumer_name")

    def __repr__(self) -> str:
        return (
            f"Consumer(stream={self.stream!r}, application={self.application!r}, worker_id={self.worker_id!r}, "
            f"is_running={self.is_running})"
        )

    # --- starting and stopping ------------------------------------------------------------------------

    def run(self) -> None:
        """Work until SIGTERM, SIGINT or `stop()`; then stop gracefully.

        After a first signal, calls under way are finished, checkpoints stored and leases released, within
        `shutdown_timeout_s`; a second one raises KeyboardInterrupt at once, unless it is the same signal within half a second.
        Signals are handled only in the main thread, and only until the end.

        Raises:
            HandlerFailed: User code failed for good and `on_failure="stop_worker"`.
            ShardsStopped: Every shard that the worker held has stopped for a failure; not with `on_all_stopped="stay"`.
            OptionError: The application's lease table belongs to another stream, or its location cannot hold leases.
            NotFound, AccessDenied, Rejected: The stream or the lease table cannot be used.
        """
        super().run()

    def _start(self) -> None:
        warn_if_disabled(log, "which shards stop, and why")
        self._begin(on_threads=self._ports is None or self._ports.driver is None)
        log.info(
            "worker %s consumes stream %s as application %s", self.worker_id, self.stream, self.application
        )

    def _prepare(self) -> tuple[Worker, Callable[[], None]]:
        ports = self._ports or open_ports(
            self.application,
            with_region_of_arns(self._connection, *self.streams),
            self.options.lease_duration_s,
            may_push=self.options.retrieval != "polling",
        )
        driver = ports.driver or ThreadDriver(self.options)
        worker = self._open_worker(ports, driver)
        return worker, partial(driver.start, worker)

    def pause(self, *shard_ids: str) -> None:
        """Read and deliver nothing more of these shards, or of all if none is named, until `resume`.

        Calls of the handler that have begun are finished, and their checkpoints stored. The leases stay this worker's and are
        renewed. Fetched records stay in memory, and are delivered after `resume` without another read. A pause applies
        to this worker only, until it resumes or ends, and also to shards that it acquires later. Another worker that acquires
        a paused shard reads it.

        The stream's retention goes on: records that leave it during the pause are lost, and `on_data_loss` applies.

        Args:
            shard_ids: Of this stream, whether held or not. Of several streams, the keys of their leases, as in `health()`.

        Raises:
            UsageError: The consumer was not started, or a name cannot be that of a shard of these streams.
        """
        self._set_paused(shard_ids, is_paused=True)

    def resume(self, *shard_ids: str) -> None:
        """Continue these shards, or all if none is named, where they were paused.

        Args:
            shard_ids: As for `pause`.

        Raises:
            UsageError: As for `pause`.
        """
        self._set_paused(shard_ids, is_paused=False)

    def _set_paused(self, shard_ids: tuple[str, ...], *, is_paused: bool) -> None:
        self._home.refuse_fork()
        if self._running is None:
            raise UsageError("this consumer was not started: start it, then pause it")
        self._running.set_paused(shard_ids, is_paused=is_paused)
        named = ", ".join(shard_ids) or "all shards"
        log.info("worker %s: %s %s", self.worker_id, named, "paused" if is_paused else "resumed")

    @property
    def failures(self) -> dict[str, PenstockError]:
        """Shards that this worker holds and stopped delivering, and why."""
        self._home.refuse_fork()
        return {} if self._running is None else self._running.delivery.stopped.failures

    def health(self) -> Health:
        """Return whether the consumer is healthy, each shard's state and lag, and the stopped shards with the reasons.

        Costs no call to any service. With `PrometheusMetrics` the same is served as `/health` and `/ready`.
        """
        self._home.refuse_fork()
        if self._running is None:
            return health_before_start(self.stream, self.application, self.worker_id)
        return self._running.health(self.application)

    # --- inside ---------------------------------------------------------------------------------------

    def _open_worker(self, ports: ConsumerPorts, driver: WorkerDriver) -> Worker:
        clock, chance = ports.clock or SystemClock(), ports.chance or random.SystemRandom()
        self._streams.check_starts(clock.wall_ms(), ports.kinesis.fetch_shards)
        streams = self._streams.fetch_descriptions(
            ports.kinesis.fetch_summary, lambda arn: self._register(ports.fan_out, arn, clock, chance)
        )
        metrics = self._metrics
        if isinstance(metrics, MetricsOfConsumers):
            metrics = metrics.of_consumer(self.stream, self.application, self.worker_id, self.health)
        factory, dead_letter = driver.wrap_user_code(self._make_factory(), self._dead_letter)
        if self._tracer_provider is not None:
            from penstock.runtime.open_telemetry import BatchTraces

            traces = BatchTraces(self._tracer_provider, self.application, self.worker_id)
            factory, dead_letter = with_spans(factory, dead_letter, traces.span)
        return Worker(
            streams=streams,
            worker_id=self.worker_id,
            options=self.options,
            ports=WorkerPorts(
                kinesis=ports.kinesis,
                table=ports.lease_table,
                clock=clock,
                chance=chance,
                metrics=guard_metrics(metrics),
                kcl3=ports.kcl3,
            ),
            pools=driver.pools,
            home=self._home,
            on_checkpoint_begun=driver.on_checkpoint_begun,
            processor_factory=factory,
            dead_letter=dead_letter,
            is_lifecycle_called=self._processor_factory is not None,
        )

    def _make_factory(self) -> StreamProcessorFactory:
        given = self._processor_factory
        if given is not None:
            if self._streams.are_several:
                return cast("StreamProcessorFactory", given)
            plain = cast("ProcessorFactory", given)
            return lambda _: plain()
        handler = self._handler if self._pull is None else self._pull.offer
        assert handler is not None
        processor = HandlerProcessor(handler)
        return lambda _: processor  # a function is one processor for all shards

    def _register(
        self, fan_out: FanOut | None, stream_arn: str, clock: Clock, chance: Chance
    ) -> ConsumerRegistration | None:
        if self.options.retrieval == "polling" or fan_out is None:
            return None
        name = self.options.consumer_name or self.application
        registration = ConsumerRegistration(fan_out, stream_arn, name, clock, chance)
        if self.options.retrieval == "fan-out":
            registration.fetch_arn()  # fails here, before a lease is taken
        return registration


def open_ports(
    application: str, connection: dict[str, Any], lease_duration_s: float, *, may_push: bool = False
) -> ConsumerPorts:
    """Open the service for a consumer whose ports were not given.

    Args:
        application: Names the lease table.
        connection: Connection options (docs/api.md), and `lease_table_name` if that is not the
            application's.
        lease_duration_s: A call to the lease table may last for a third of this.
        may_push: Whether shards may be read by enhanced fan-out. If not, HTTP/2 is not loaded.

    Raises:
        OptionError: A field is unknown or has a bad value.
    """
    from penstock import wiring  # here, so that the SDK is loaded only if it is used

    fields = dict(connection)
    table_name = fields.pop("lease_table_name", None) or application
    if not isinstance(table_name, str):
        raise OptionError(f"lease_table_name={table_name!r}: expected a text; for a folder file:///folder")
    options = wiring.with_environment(wiring.parse_connection(fields, taken_names=("lease_table_name",)))
    table_options = dataclasses.replace(
        options,
        connect_timeout_s=min(options.connect_timeout_s, lease_duration_s / 3),
        read_timeout_s=min(options.read_timeout_s, lease_duration_s / 3),
        # The coordinator makes failed calls again. With a short deadline it can report the error before a lease is lost.
        deadline_s=min(options.deadline_s, lease_duration_s / 3),
    )
    table = wiring.open_lease_table(table_name, table_options)
    ports = ConsumerPorts(
        kinesis=wiring.open_kinesis(options),
        lease_table=table,
        kcl3=wiring.open_kcl3_tables(table_name, table_options, table),
        fan_out=wiring.open_fan_out(options) if may_push else None,
    )
    # The table is opened on a thread while the stream is described; each takes about as long as the other.
    # The adapters are loaded before that: pytest rewrites modules, and until CPython 3.11.8 parsing on two threads at once may fail.
    wiring.begin_opening(table)
    return ports
