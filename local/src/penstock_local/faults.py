"""Scripted faults: what goes wrong, in which calls, how often.

A fault is a value. `FaultBook` holds the active ones, draws random numbers from each fault's own seed, and
returns the faults that fire for a call. The operations apply those that change an answer's content, the transport those
that change how it is sent.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any, TypeVar

from penstock_local.errors import OptionError
from penstock_local.option_checks import plain_number

KINDS = {
    "throttle": "refuse for the rate; in PutRecords the entries (of the shard) fail, the call succeeds",
    "partial": "fail a fraction of the entries of PutRecords (of the shard) or of a call on queue records, each with `code`",
    "error": "answer `status` with `code` (500 InternalFailure); nothing is applied unless `applied`",
    "drop_before": "close the connection without applying or answering",
    "drop_after": "apply, then close the connection without an answer",
    "truncate": "apply, then send half of the body and close",
    "garbage": "apply, then answer 200 with bytes that are not a document",
    "delay": "apply, then answer after `delay_s` real seconds",
    "stale": "ListShards and DescribeStream show the shards as before the last change of topology",
    "shuffle": "ListShards returns its shards in random order",
    "omit": "ListShards leaves out the shard named by `shard`",
    "empty": "GetRecords, or a receive from a queue, returns no records though there are some",
    "redeliver": "an acknowledgement of queue records succeeds, and the records come again",
}
EVENT_KINDS = {
    "end": "SubscribeToShard ends in order after `after_events` events",
    "exception": "SubscribeToShard ends with `code` in its stream after `after_events` events",
    "silence": "SubscribeToShard sends nothing more after `after_events` events, and stays open",
    "reset": "SubscribeToShard breaks off after `after_events` events",
    "goaway": "SubscribeToShard ends the connection after `after_events` events, with a GOAWAY in HTTP/2",
    "corrupt": "the event behind `after_events` others has a wrong checksum",
    "cut": "the event behind `after_events` others comes in half, and the stream ends in order",
    "repeat": "the event behind `after_events` others comes twice",
}
KINDS |= EVENT_KINDS
_ACKNOWLEDGEMENTS = ("AcknowledgeQueueRecords", "AcknowledgeDeadLetterQueueRecords")
_OPERATIONS_OF = dict.fromkeys(EVENT_KINDS, ("SubscribeToShard",)) | {
    "partial": (
        "PutRecords",
        *_ACKNOWLEDGEMENTS,
        "UpdateQueueRecordsVisibility",
        "UpdateDeadLetterQueueRecordsVisibility",
        "RestoreDeadLetterQueueRecords",
    ),
    "stale": ("ListShards", "DescribeStream"),
    "shuffle": ("ListShards",),
    "omit": ("ListShards",),
    "empty": ("GetRecords", "ReceiveQueueRecords", "ReceiveDeadLetterQueueRecords"),
    "redeliver": _ACKNOWLEDGEMENTS,
}
ACTIVE_MAX = 1000
_Candidate = TypeVar("_Candidate")
_SENDING_KINDS = {"drop_after", "truncate", "garbage"}
_TEXTS = ("kind", "operation", "stream", "queue", "shard", "table", "code", "message")
_NUMBERS: dict[str, tuple[int, int | None, bool]] = {
    # lowest, highest, whether it is a whole number
    "count": (1, None, True),
    "skip": (0, None, True),
    "rate": (0, 1, False),
    "status": (400, 599, True),
    "delay_s": (0, None, False),
    "fraction": (0, 1, False),
    "after_events": (0, None, True),
}


@dataclass(frozen=True, slots=True)
class Fault:
    """One scripted fault.

    Attributes:
        kind: One of `KINDS`.
        operation: Name of the operation, for instance `PutRecords` or `dynamodb.UpdateItem`; `*` for all that the kind has an
            effect on.
        count: How many calls it hits; None for all until it is cleared.
        skip: How many matching calls pass before the first hit.
        rate: Probability that a matching call is hit.
        seed: Makes `rate`, `partial` and `shuffle` repeatable.
        stream: Only calls to this stream, or to a queue on it.
        queue: Only calls to the queue of this name.
        shard: Only calls that touch this shard.
        table: Only DynamoDB calls that touch this table.
        code: Error code, if the kind has one; its default depends on the kind.
        status: HTTP status of `error`.
        message: Text of the error.
        delay_s: Real seconds of `delay`.
        fraction: Share of entries that `partial` fails, over 0 and up to 1.
        applied: Whether `partial` carries out the entries that it reports as failed, and `error` the call.
        after_events: How many events of a subscription precede the fault.
    """

    kind: str
    operation: str
    count: int | None = 1
    skip: int = 0
    rate: float = 1.0
    seed: int = 0
    stream: str | None = None
    queue: str | None = None
    shard: str | None = None
    table: str | None = None
    code: str | None = None
    status: int = 500
    message: str | None = None
    delay_s: float = 0.0
    fraction: float = 0.5
    applied: bool = False
    after_events: int = 0

    def __post_init__(self) -> None:
        self._check_types()
        if self.kind not in KINDS:
            raise OptionError(f"unknown fault kind {self.kind!r}; known are {', '.join(KINDS)}")
        if not self.operation:
            raise OptionError("a fault needs an operation, for instance 'PutRecords', or '*'")
        if not self.rate or not self.fraction:
            raise OptionError(
                f"rate and fraction must be over 0 and up to 1, not {self.rate} and {self.fraction}"
            )
        operations = None if self.operation == "*" else _OPERATIONS_OF.get(self.kind)
        if operations is not None and self.operation.rpartition(".")[2] not in operations:
            raise OptionError(
                f"{self.kind} faults are for {' and '.join(operations)}, not for {self.operation}"
            )
        if self.kind == "omit" and self.shard is None:
            raise OptionError("an omit fault needs the shard to leave out")

    def _check_types(self) -> None:
        for name in _TEXTS:
            if not isinstance(getattr(self, name), str | None):
                raise OptionError(f"{name} of a fault must be a text, not {getattr(self, name)!r}")
        for name, (low, high, is_whole) in _NUMBERS.items():
            given = getattr(self, name)
            if name != "count" or given is not None:
                number = plain_number(f"{name} of a fault", given, low, high, is_whole=is_whole)
                object.__setattr__(self, name, number)
        if not isinstance(self.seed, int) or not isinstance(self.applied, bool):
            raise OptionError(
                "seed and applied of a fault must be a whole number and true or false, "
                f"not {self.seed!r} and {self.applied!r}"
            )

    @classmethod
    def from_document(cls, document: dict[str, Any]) -> Fault:
        """Build a fault from its JSON form.

        Raises:
            OptionError: A field is unknown, missing or out of its range.
        """
        known = {field.name for field in fields(cls)}
        unknown = set(document) - known
        if unknown:
            raise OptionError(f"unknown fields of a fault: {sorted(unknown)}; known are {sorted(known)}")
        missing = [name for name in ("kind", "operation") if name not in document]
        if missing:
            raise OptionError(f"a fault needs {' and '.join(missing)}")
        return cls(**document)


class _ActiveFault:
    """An active fault, with the numbers of its matching calls and of its hits."""

    __slots__ = ("chance", "fault", "hits", "matching_count", "number")

    def __init__(self, number: int, fault: Fault) -> None:
        self.number = number
        self.fault = fault
        self.chance = random.Random(fault.seed)
        self.matching_count = 0
        self.hits = 0

    def fires(self) -> bool:
        """Count a matching call and decide whether this one is hit."""
        self.matching_count += 1
        if self.matching_count <= self.fault.skip:
            return False
        if self.fault.rate < 1 and self.chance.random() >= self.fault.rate:
            return False
        self.hits += 1
        return True

    @property
    def is_spent(self) -> bool:
        return self.fault.count is not None and self.hits >= self.fault.count


@dataclass(frozen=True, slots=True)
class Hit:
    """A fault that fires for one call, with its own source of chance."""

    fault: Fault
    chance: random.Random

    @property
    def is_sending(self) -> bool:
        """Return whether the fault changes how the answer is sent, and leaves its content."""
        return self.fault.kind in _SENDING_KINDS

    def choose_fraction(self, candidates: Sequence[_Candidate]) -> list[_Candidate]:
        """Return the fault's fraction of the candidates, at least one, in their order."""
        count = max(1, round(len(candidates) * self.fault.fraction)) if candidates else 0
        return [candidates[i] for i in sorted(self.chance.sample(range(len(candidates)), count))]


class FaultBook:
    """The faults that are active; owned by the server's loop."""

    def __init__(self) -> None:
        self._active: list[_ActiveFault] = []
        self._number = 0

    def add(self, fault: Fault) -> int:
        """Activate a fault; returns its number."""
        if len(self._active) >= ACTIVE_MAX:
            raise OptionError(
                f"there are {ACTIVE_MAX} active faults already; clear those that are not needed"
            )
        self._number += 1
        self._active.append(_ActiveFault(self._number, fault))
        return self._number

    def clear(self, number: int | None = None) -> None:
        """Remove one fault, or all."""
        self._active = [a for a in self._active if number is not None and a.number != number]

    def describe(self) -> list[dict[str, Any]]:
        """Return the active faults with how often each has fired."""
        return [{"number": a.number, "hits": a.hits, **asdict(a.fault)} for a in self._active]

    def hits(
        self,
        service: str,
        operation: str,
        *,
        stream: str | None = None,
        queue: str | None = None,
        shards: Sequence[str] = (),
        tables: Sequence[str] = (),
    ) -> list[Hit]:
        """Return the faults that fire for a call, and count the call against each."""
        if not self._active:
            return []
        names = {"*", operation, f"{service}.{operation}"}
        found = []
        for active in self._active:
            fault = active.fault
            is_match = fault.stream in (None, stream) and fault.queue in (None, queue)
            if fault.table is not None and fault.table not in tables:
                is_match = False
            # An omit fault names a shard to leave out of an answer, not one of the call.
            if fault.shard is not None and fault.kind != "omit" and fault.shard not in shards:
                is_match = False
            has_effect = operation in _OPERATIONS_OF.get(fault.kind, (operation,))
            if fault.operation in names and is_match and has_effect and active.fires():
                found.append(Hit(fault, active.chance))
        self._active = [active for active in self._active if not active.is_spent]
        return found
