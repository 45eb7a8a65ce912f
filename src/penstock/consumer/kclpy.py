"""The classes and functions of `penstock.kclpy`.

Source:
    amazon_kclpy's v3 interface: the class, method and attribute names, and the error codes of the KCL's checkpointer.
"""

from __future__ import annotations

import base64
import json
import sys
import types
from collections.abc import Callable
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final, Unpack

from penstock.consumer.consumer import Consumer
from penstock.consumer.records import Batch, ShardCheckpointer
from penstock.core.position import Position, at_record, parse_checkpoint
from penstock.core.reading.record import Record as PenstockRecord
from penstock.errors import LeaseLost, PenstockError, ServiceError, Throttled, UsageError

if TYPE_CHECKING:
    from penstock.consumer.keywords import ConsumerArguments
    from penstock.consumer.stream_argument import StreamArgument


class CheckpointError(Exception):
    """A checkpoint was not stored.

    Attributes:
        value: The name of the KCL's exception: `ShutdownException` (the lease is lost: stop), `ThrottlingException`
            (try again), `InvalidStateException` (the table gives no answer), `IllegalArgumentException` (the position
            was not delivered, or lies before the checkpoint).
    """

    def __init__(self, value: str) -> None:
        super().__init__(value)
        self.value = value

    def __str__(self) -> str:
        return repr(self.value)


class RecordProcessorBase:
    """Base class of processors for amazon_kclpy v3; one object per shard."""

    version = 3

    def initialize(self, initialize_input: InitializeInput) -> None:
        """The shard begins."""
        raise NotImplementedError

    def process_records(self, process_records_input: ProcessRecordsInput) -> None:
        """Records, in order, with a checkpointer."""
        raise NotImplementedError

    def lease_lost(self, lease_lost_input: LeaseLostInput) -> None:
        """The shard is another worker's; checkpointing is over."""
        raise NotImplementedError

    def shard_ended(self, shard_ended_input: ShardEndedInput) -> None:
        """Everything was delivered: checkpoint, or the shard's children never start."""
        raise NotImplementedError

    def shutdown_requested(self, shutdown_requested_input: ShutdownRequestedInput) -> None:
        """The worker stops; the last chance to checkpoint."""


class KclpyRecord:
    """A record with the attributes of amazon_kclpy's class `Record`."""

    def __init__(self, record: PenstockRecord) -> None:
        self._record = record

    @property
    def binary_data(self) -> bytes:
        """The payload."""
        return self._record.data

    @property
    def data(self) -> str:
        """The payload in Base64, as the daemon's protocol carries it."""
        return base64.b64encode(self._record.data).decode("ascii")

    @property
    def sequence_number(self) -> str:
        """The service's text."""
        return self._record.sequence_number

    @property
    def sub_sequence_number(self) -> int:
        """Place inside the aggregate."""
        return self._record.sub_sequence_number

    @property
    def partition_key(self) -> str | None:
        """The key that the producer set."""
        return self._record.partition_key

    @property
    def timestamp_millis(self) -> int:
        """When the service took it in, milliseconds since the epoch."""
        return round(self._record.approximate_arrival_timestamp.timestamp() * 1000)

    @property
    def approximate_arrival_timestamp(self) -> datetime:
        """When the service took it in: local time without a zone, as in the original."""
        return self._record.approximate_arrival_timestamp.astimezone().replace(tzinfo=None)

    @property
    def json_dict(self) -> dict[str, Any]:
        """The fields of the daemon's protocol."""
        return {
            "action": "record",
            "data": self.data,
            "partitionKey": self.partition_key,
            "sequenceNumber": self._record.sequence_number,
            "subSequenceNumber": self.sub_sequence_number,
            "approximateArrivalTimestamp": self.timestamp_millis,
        }

    def get(self, field: str) -> Any:
        """Return a field of the daemon's protocol by its name."""
        return self.json_dict[field]

    def __str__(self) -> str:
        return json.dumps(self.json_dict)


Record = KclpyRecord


class Checkpointer:
    """Stores how far a shard is done."""

    def __init__(self, shard: ShardCheckpointer) -> None:
        self._shard = shard

    def checkpoint(
        self, sequence_number: str | int | None = None, sub_sequence_number: int | None = None
    ) -> None:
        """Store that everything up to a record is done, and wait until that is durable.

        Args:
            sequence_number: None: everything that was delivered.
            sub_sequence_number: Place inside an aggregate; None is its first record, as in the KCL.

        Raises:
            CheckpointError: Nothing was stored; `value` has the reason.
        """
        try:
            self._shard.acknowledge_through(self._position(sequence_number, sub_sequence_number))
            self._shard.store_checkpoint()
        except PenstockError as error:
            value = next(name for kind, name in _ERROR_NAMES if isinstance(error, kind))
            raise _checkpoint_error(value) from error

    def _position(self, sequence_number: str | int | None, sub_sequence_number: int | None) -> Position:
        if sequence_number is None:
            return self._shard.last_delivered
        text = str(sequence_number)
        if not text.isdigit():
            return parse_checkpoint(text)
        return at_record(text, sub_sequence_number or 0)


_ERROR_NAMES: Final = (
    (LeaseLost, "ShutdownException"),
    (Throttled, "ThrottlingException"),
    (ServiceError, "InvalidStateException"),
    (UsageError, "IllegalArgumentException"),
    (PenstockError, "KinesisClientLibNonRetryableException"),
)


def _checkpoint_error(value: str) -> Exception:
    """Return an error of the class that the processor catches: amazon_kclpy's if that package is loaded, else ours."""
    kcl = sys.modules.get("amazon_kclpy.kcl")
    kind = CheckpointError if kcl is None else kcl.CheckpointError
    error: Exception = kind(value)
    return error


class InitializeInput:
    """The input of `initialize`."""

    def __init__(self, shard_id: str, position: Position) -> None:
        self.shard_id = shard_id
        self.sequence_number: str | None = position.sequence_number or (
            position.sentinel.value if position.sentinel else None
        )
        self.sub_sequence_number: int = position.sub_sequence_number


class ProcessRecordsInput:
    """The input of `process_records`."""

    def __init__(self, batch: Batch, checkpointer: Checkpointer) -> None:
        self.records: list[KclpyRecord] = [KclpyRecord(record) for record in batch]
        self.millis_behind_latest: int = batch.millis_behind_latest
        self.checkpointer = checkpointer


class LeaseLostInput:
    """The input of `lease_lost`: nothing."""


class ShardEndedInput:
    """The input of `shard_ended`."""

    def __init__(self, checkpointer: Checkpointer) -> None:
        self.checkpointer = checkpointer


class ShutdownRequestedInput:
    """The input of `shutdown_requested`."""

    def __init__(self, checkpointer: Checkpointer) -> None:
        self.checkpointer = checkpointer


class KclpyProcessor:
    """Adapts a processor of amazon_kclpy to the interface that the consumer's runtime calls."""

    def __init__(self, processor: Any) -> None:
        self._processor = processor

    def on_start(self, shard_id: str, position: Position) -> None:
        """Call `initialize`."""
        self._processor.initialize(InitializeInput(shard_id, position))

    def on_batch(self, batch: Batch) -> None:
        """Call `process_records`."""
        self._processor.process_records(ProcessRecordsInput(batch, Checkpointer(batch.shard)))

    def on_end(self, shard: ShardCheckpointer) -> None:
        """Call `shard_ended`."""
        self._processor.shard_ended(ShardEndedInput(Checkpointer(shard)))

    def on_stop(self, shard: ShardCheckpointer) -> None:
        """Call `shutdown_requested`."""
        self._processor.shutdown_requested(ShutdownRequestedInput(Checkpointer(shard)))

    def on_lost(self) -> None:
        """Call `lease_lost`."""
        self._processor.lease_lost(LeaseLostInput())


def consumer_for(
    processor_class: Callable[[], Any],
    stream: StreamArgument,
    application: str,
    **arguments: Unpack[ConsumerArguments],
) -> Consumer:
    """Return a consumer that runs one processor of amazon_kclpy per shard.

    Args:
        processor_class: The class, or anything that makes a processor.
        stream: As for `Consumer`.
        application: As for `Consumer`.
        arguments: More of `Consumer`'s, options by name included. Checkpointing is always manual here, and one
            batch of a shard is under way at a time.
    """
    arguments["checkpointing"] = "manual"
    arguments["concurrency"] = 1
    return Consumer(
        stream, application, processor_factory=lambda: KclpyProcessor(processor_class()), **arguments
    )


_MODULES: Final = (
    "amazon_kclpy",
    "amazon_kclpy.kcl",
    "amazon_kclpy.messages",
    "amazon_kclpy.v3",
    "amazon_kclpy.v3.processor",
)


class KCLProcess:
    """Stands for the class of amazon_kclpy that serves a Java daemon. There is no daemon here, so `run` raises an error."""

    def __init__(self, record_processor: Any, *_: Any, **__: Any) -> None:
        self._class_name = type(record_processor).__name__

    def run(self) -> None:
        """Raise an error with the way to run the processor instead.

        Raises:
            UsageError: Always.
        """
        raise UsageError(
            f"KCLProcess(...).run() talks to the Java daemon, which Penstock does without: run consumer_for("
            f"{self._class_name}, stream=..., application=...).run() of penstock.kclpy"
        )


def install_amazon_kclpy() -> None:
    """Make the classes of this module importable as `amazon_kclpy`, if that package is not installed.

    Raises:
        UsageError: The package is installed, or its name is taken.
    """
    if "amazon_kclpy" in sys.modules:
        raise UsageError("amazon_kclpy is imported already; its processors work as they are")
    made = {name: types.ModuleType(name) for name in _MODULES}
    for name in ("kcl", "messages", "v3"):
        setattr(made["amazon_kclpy"], name, made[f"amazon_kclpy.{name}"])
    made["amazon_kclpy.v3"].processor = made["amazon_kclpy.v3.processor"]  # type: ignore[attr-defined] # a module made here
    made["amazon_kclpy.v3.processor"].RecordProcessorBase = RecordProcessorBase  # type: ignore[attr-defined] # as above
    for name in ("CheckpointError", "Checkpointer", "KCLProcess"):
        setattr(made["amazon_kclpy.kcl"], name, globals()[name])
    for name in (
        "Record",
        "InitializeInput",
        "ProcessRecordsInput",
        "LeaseLostInput",
        "ShardEndedInput",
        "ShutdownRequestedInput",
    ):
        setattr(made["amazon_kclpy.messages"], name, globals()[name])
    sys.modules.update(made)
