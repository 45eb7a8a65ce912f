"""The input and output of delivery: its options, the calls of user code, and the consequences of a failed call.

The machine that uses them is `penstock.core.reading.delivery`.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum
from typing import Final, Literal, TypeAlias

from msgspec import Struct

from penstock.core.keyword_options import check_backoff, check_choice, check_range
from penstock.core.position import Position
from penstock.core.reading.record import Record
from penstock.errors import HandlerFailed

FailurePolicy: TypeAlias = Literal["stop_shard", "stop_worker", "dead_letter"]
QUEUE_MEMORY_BYTES: Final = 1_600
"""Memory of a partition key's queue, if keys run in parallel; measured."""


class DeliveryOptions(Struct, frozen=True):
    """How records reach user code.

    Args:
        concurrency: Calls under way at once for one shard; more than 1 means that order holds per partition key.
        retries_max: Repetitions of a failing call before `on_failure` decides.
        backoff_min_s: Upper bound of the first pause; it doubles.
        backoff_max_s: Largest upper bound.
        checkpointing: `auto`: a returned call acknowledges its records. `manual`: only user code does.
        checkpoint_interval_s: Smallest time between two automatic checkpoints; 0 is after every call.
        window_records_max: No further call while this many records lie between the low watermark and the newest
            delivered one: bounds the records that a crash repeats and the acknowledgements that are remembered.
        is_lifecycle_called: Whether user code is also called at start, end, stop and loss.

    Raises:
        OptionError: A value is out of its range; the message names it.
    """

    concurrency: int = 1
    batch_records_max: int = 10_000
    retries_max: int = 5
    backoff_min_s: float = 0.2
    backoff_max_s: float = 30.0
    on_failure: FailurePolicy = "stop_shard"
    checkpointing: Literal["auto", "manual"] = "auto"
    checkpoint_interval_s: float = 5.0
    window_records_max: int = 1_000_000
    is_lifecycle_called: bool = False

    def __post_init__(self) -> None:
        check_range(self, 1, None, "concurrency", "batch_records_max", "window_records_max")
        check_range(self, 0, None, "retries_max", "checkpoint_interval_s")
        check_backoff(self, "handler_")
        check_choice(self, "on_failure", "stop_shard", "stop_worker", "dead_letter")
        check_choice(self, "checkpointing", "auto", "manual")


# --- calls and verdicts ---------------------------------------------------------------------------------


class CallKind(Enum):
    """The kinds of calls of user code."""

    START = "a shard begins"
    BATCH = "records"
    DEAD_LETTER = "records that failed for good"
    END = "the shard is delivered to its end"
    STOP = "the worker stops, or hands the shard over"
    LOST = "the shard is another worker's, or was released"


class Call(Struct, frozen=True):
    """One call of user code.

    Args:
        id: Names the call in the answers.
        records: In stream order; empty for all but BATCH and DEAD_LETTER.
        ordinals: The place of each record among the added ones.
        attempt: 1 for the first time.
        millis_behind_latest: From the page that was read last.
        error: DEAD_LETTER: why the records failed.
        position: START: the shard's starting position. Else the low watermark.
    """

    id: int
    kind: CallKind
    records: Sequence[Record]
    ordinals: Sequence[int]
    attempt: int
    millis_behind_latest: int
    position: Position
    error: BaseException | None = None


class Repeat(Struct, frozen=True):
    """The call is made again at `at_s`, on the clock of the delivery, as this attempt."""

    at_s: float
    attempt: int


class Halve(Struct, frozen=True):
    """The call is repeated in two parts, to find the record that fails."""


class SendToDeadLetter(Struct, frozen=True):
    """The records go to the dead-letter handler next."""


class StopDelivery(Struct, frozen=True):
    """The policy is to stop the shard, or the whole worker."""

    scope: Literal["shard", "worker"]
    error: HandlerFailed


Verdict: TypeAlias = Repeat | Halve | SendToDeadLetter | StopDelivery


class Phase(Enum):
    """The state of the shard's delivery."""

    RUNNING = "records are delivered"
    STOPPING = "calls under way finish, no record follows"
    FAILED = "user code failed for good"
    LOST = "the shard is not ours any more"
