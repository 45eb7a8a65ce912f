"""Handlers and processors run over records, and the values to assert on."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Literal, Unpack

from penstock.consumer.async_calls import AsyncDeadLetterHandler, AsyncHandler, AsyncProcessorFactory
from penstock.consumer.async_consumer import AsyncConsumer
from penstock.consumer.consumer import Consumer
from penstock.consumer.consumer_options import ConsumerOptions
from penstock.consumer.kclpy import consumer_for
from penstock.consumer.processor import DeadLetterHandler, Handler, ProcessorFactory
from penstock.consumer.records import Batch
from penstock.core.keyword_options import merge_options
from penstock.core.position import Position
from penstock.core.reading.record import Record
from penstock.errors import PenstockError
from penstock.runtime.user_code import UnusableHandlerError
from penstock.testing.memory_stream import MemoryStream
from penstock.testing.recorder import Call
from penstock.testing.virtual_worker import Faults, VirtualDriver

if TYPE_CHECKING:
    from penstock.consumer.keywords import AsyncConsumerKeywords, ConsumerKeywords

_APPLICATION: Final = "testing"
_NO_FAULTS: Final = Faults()
_POLLING: Final = ConsumerOptions()


@dataclass(frozen=True, slots=True)
class Run:
    """The result of a run.

    Attributes:
        records: The records of the shard.
        calls: Each call of user code, in order.
        checkpoints: The record of each checkpoint that was stored, in order: everything up to and including it is done.
        dead_letters: Records that the dead-letter handler took.
        ended_by: `stop`, after everything was delivered, or when it was asked for; `shard_end`, whose checkpoint is stored;
            `lease_lost`; or `failure`.
        failure: Why the shard stopped; its `__cause__` is the error of user code.
    """

    records: list[Record]
    calls: list[Call]
    checkpoints: list[Record]
    dead_letters: list[Record]
    ended_by: Literal["stop", "shard_end", "lease_lost", "failure"]
    failure: PenstockError | None

    @property
    def checkpoint(self) -> Record | None:
        """The record up to which everything is done and stored, itself included; None: nothing is stored."""
        return self.checkpoints[-1] if self.checkpoints else None

    @property
    def left(self) -> list[Record]:
        """Records after the checkpoint: the next worker gets them."""
        if self.checkpoint is None:
            return self.records
        return self.records[self.records.index(self.checkpoint) + 1 :]

    @property
    def batches(self) -> list[list[Record]]:
        """The records of each call of the handler, repetitions included."""
        return [call.records for call in self.calls if call.kind == "records"]

    @property
    def retries(self) -> list[Call]:
        """Calls that were repeated after a pause. Each `wait_s` is the longest pause that the consumer may make."""
        return [call for call in self.calls if call.wait_s > 0]


def run(
    handler: Handler,
    records: Sequence[Record],
    *,
    dead_letter: DeadLetterHandler | None = None,
    shard_ends: bool = False,
    faults: Faults = _NO_FAULTS,
    may_fail: bool = False,
    options: ConsumerOptions | None = None,
    **single_options: Unpack[ConsumerKeywords],
) -> Run:
    """Run a handler of `Consumer` over the records of one shard, without service, threads or waiting.

    The consumer's own code reads, delivers, repeats and checkpoints, in virtual time. It begins with the first record, and
    stops gracefully when all are done. Calls of the handler never overlap. With `concurrency`, they run in the order in
    which the consumer begins them.

    Args:
        handler: As for `Consumer`.
        records: From `penstock.testing.records` and `aggregate`, or `left` of another run.
        dead_letter: As for `Consumer`. With `on_failure="dead_letter"` it may be left out: the run has the records.
        shard_ends: Whether the shard was split after the records.
        faults: Faults during the run.
        may_fail: Return the run when the handler has failed for good, instead of raising `HandlerFailed`.
        options: As for `Consumer`. `starting_position` and `retrieval` have no effect.
        single_options: Single options by name, for instance `max_records=1`.

    Raises:
        HandlerFailed: User code failed for good, and `may_fail` is not set.
        UsageError: The arguments do not fit together, the handler cannot be used with `Consumer`, or a call was not made at
            which a fault was to happen.
    """
    return run_stream(
        partial(Consumer, handler=handler),
        MemoryStream(records, is_closed=shard_ends),
        records,
        dead_letter=dead_letter,
        faults=faults,
        may_fail=may_fail,
        options=merge_options(options or ConsumerOptions(), single_options),
    )


def run_stream(
    open_consumer: Callable[..., Consumer],
    stream: MemoryStream,
    records: Sequence[Record],
    *,
    options: ConsumerOptions,
    dead_letter: DeadLetterHandler | None = None,
    faults: Faults = _NO_FAULTS,
    may_fail: bool = False,
) -> Run:
    """Run a consumer over a stream in memory to its end, as `run` does.

    Args:
        open_consumer: Makes the consumer; called with the stream, application, dead-letter handler, options and ports.

    Raises:
        HandlerFailed, UsageError: As for `run`.
    """
    driver = VirtualDriver(stream, faults)
    options = _read_from_start(options)
    open_consumer(
        stream=stream.name,
        application=_APPLICATION,
        dead_letter=dead_letter or (_take if options.on_failure == "dead_letter" else None),
        options=options,
        ports=driver.ports,
    ).start()
    driver.drive()
    return _result(driver, records, may_fail)


def run_processor(
    processor_factory: ProcessorFactory,
    records: Sequence[Record],
    *,
    dead_letter: DeadLetterHandler | None = None,
    shard_ends: bool = False,
    faults: Faults = _NO_FAULTS,
    may_fail: bool = False,
    options: ConsumerOptions | None = None,
    **single_options: Unpack[ConsumerKeywords],
) -> Run:
    """Run a processor over records, as `run` does with a handler. The shard's start and end are reported to it, too.

    Args:
        processor_factory: As for `Consumer`.

    Raises:
        HandlerFailed, UsageError: As for `run`.
    """
    return run_stream(
        partial(Consumer, processor_factory=processor_factory),
        MemoryStream(records, is_closed=shard_ends),
        records,
        dead_letter=dead_letter,
        faults=faults,
        may_fail=may_fail,
        options=merge_options(options or ConsumerOptions(), single_options),
    )


def run_kclpy(
    processor_class: Callable[[], Any],
    records: Sequence[Record],
    *,
    dead_letter: DeadLetterHandler | None = None,
    shard_ends: bool = False,
    faults: Faults = _NO_FAULTS,
    may_fail: bool = False,
    options: ConsumerOptions | None = None,
    **single_options: Unpack[ConsumerKeywords],
) -> Run:
    """Run a processor that was written for amazon_kclpy v3 over records; as `run`.

    Args:
        processor_class: The class, or anything that makes a processor.

    Raises:
        HandlerFailed, UsageError: As for `run`.
    """
    return run_stream(
        partial(consumer_for, processor_class),
        MemoryStream(records, is_closed=shard_ends),
        records,
        dead_letter=dead_letter,
        faults=faults,
        may_fail=may_fail,
        options=merge_options(options or ConsumerOptions(), single_options),
    )


async def run_async(
    handler: AsyncHandler | None,
    records: Sequence[Record],
    *,
    processor_factory: AsyncProcessorFactory | None = None,
    dead_letter: AsyncDeadLetterHandler | None = None,
    shard_ends: bool = False,
    faults: Faults = _NO_FAULTS,
    may_fail: bool = False,
    options: ConsumerOptions | None = None,
    **single_options: Unpack[AsyncConsumerKeywords],
) -> Run:
    """Run a coroutine function of `AsyncConsumer` over records on the running event loop, as `run` runs a handler.

    The consumer's own pauses cost no time; awaits of user code take their real time. With `concurrency`, calls for
    different keys are under way at the same time.

    Args:
        handler: As for `AsyncConsumer`; None with `processor_factory`.
        processor_factory: As for `AsyncConsumer`.
        dead_letter: As for `AsyncConsumer`; it may be left out, as for `run`.

    Raises:
        HandlerFailed, UsageError: As for `run`.
    """
    driver = VirtualDriver(MemoryStream(records, is_closed=shard_ends), faults)
    whole = _read_from_start(merge_options(options or ConsumerOptions(), single_options))
    consumer = AsyncConsumer(
        driver.stream.name,
        _APPLICATION,
        handler,
        processor_factory=processor_factory,
        dead_letter=dead_letter or (_take_later if whole.on_failure == "dead_letter" else None),
        options=whole,
        ports=driver.ports,
    )
    await consumer.start()
    try:
        await driver.drive_on_loop()
    finally:
        driver.worker.finish()
        with suppress(PenstockError):  # `_result` raises it
            await consumer.stop()
    return _result(driver, records, may_fail)


def _read_from_start(options: ConsumerOptions) -> ConsumerOptions:
    """Return the options of a run: those for the starting position and the retrieval are replaced."""
    return dataclasses.replace(
        options,
        starting_position="TRIM_HORIZON",
        retrieval=_POLLING.retrieval,
        consumer_name=None,
        fan_out_after_s=_POLLING.fan_out_after_s,
        polling_after_s=_POLLING.polling_after_s,
    )


def _take(_batch: Batch, _error: BaseException) -> None:
    """Take dead letters: the run has recorded them."""


async def _take_later(_batch: object, _error: BaseException) -> None:
    """Take dead letters on an event loop."""


def _result(driver: VirtualDriver, records: Sequence[Record], may_fail: bool) -> Run:
    failure = driver.failure
    if failure is not None and (not may_fail or isinstance(failure, UnusableHandlerError)):
        raise failure
    driver.check_faults()
    calls = driver.recorder.calls
    lease = driver.table.lease
    ended_by: Literal["stop", "shard_end", "lease_lost", "failure"] = "stop"
    if failure is not None:
        ended_by = "failure"
    elif lease is not None and lease.is_ended:
        ended_by = "shard_end"
    elif driver.is_lease_lost:
        ended_by = "lease_lost"
    return Run(
        records=list(records),
        calls=calls,
        checkpoints=_records_at(driver.table.checkpoints, records),
        dead_letters=[
            record
            for call in calls
            if call.kind == "dead_letter" and call.error is None
            for record in call.records
        ],
        ended_by=ended_by,
        failure=failure,
    )


def _records_at(checkpoints: Sequence[Position], records: Sequence[Record]) -> list[Record]:
    """Return the records at which checkpoints were written; for the end of the shard its last record."""
    by_position = {record.position: record for record in records}
    found: list[Record] = []
    for position in checkpoints:
        if position.is_shard_end and not records:
            continue
        record = records[-1] if position.is_shard_end else by_position[position]
        if not found or found[-1] != record:
            found.append(record)
    return found
