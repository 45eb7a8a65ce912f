"""Which calls about leases keep failing: every write of a lease, every read of the table, every listing.

One rule for all of them. A call keeps failing if failures follow each other for `patience_s` with no success between them, or if a lease
was lost because of it. A single failure, or a blip of a few seconds, is no problem: the coordinator tries again.

| when | log | `problems` |
|---|---|---|
| the service refuses a call for good (access, a wrong request) | at once, then each minute | |
| a call keeps failing | when that is known, then each minute | until it succeeds, or is not needed any more |
| nothing keeps failing any more | once | |
"""

from __future__ import annotations

import math
from collections.abc import Callable
from enum import Enum
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from penstock.core.leases.coordinator_effects import Level, Topic, Turn
from penstock.core.leases.coordinator_events import (
    Event,
    FetchFailed,
    FindOwnLeasesFailed,
    FleetFetched,
    FleetFetchFailed,
    LeaseFetched,
    ListingDone,
    ListingFailed,
    NotDone,
    OwnLeasesFound,
    Problem,
    ScanDone,
    ScanFailed,
    TableFailed,
    TableReady,
    Unknown,
    WorkerReported,
    WriteDone,
)
from penstock.core.leases.lease_writes import (
    Checkpoint,
    Create,
    Delete,
    End,
    LateCheckpoint,
    LeaseWrite,
    Release,
    Renew,
    RequestHandover,
    Take,
)

_REPORT_INTERVAL_S: Final = 60.0
_PATIENCE: Final = 0.6  # of the lease duration: a lease is lost after nine tenths
_RARE_CALL_INTERVAL_S: Final = 300.0


class LeaseCall(Enum):
    """A kind of call about leases, as messages name it."""

    ENSURE = "creating or finding the lease table"
    SCAN = "scanning the lease table"
    FETCH = "reading leases"
    LIST = "listing the shards"
    CREATE = "creating leases"
    TAKE = "taking leases"
    ASK = "asking for leases"
    RENEW = "renewing leases"
    CHECKPOINT = "writing checkpoints"
    END = "finishing leases"
    RELEASE = "releasing leases"
    DELETE = "deleting leases"
    FETCH_FLEET = "reading the rows of KCL 3 workers"
    REPORT = "reporting this worker's metrics to the leader"
    FIND_OWN = "finding this worker's leases by the index"


_WRITES: Final[dict[type[LeaseWrite], LeaseCall]] = {
    Create: LeaseCall.CREATE,
    Take: LeaseCall.TAKE,
    RequestHandover: LeaseCall.ASK,
    Renew: LeaseCall.RENEW,
    Checkpoint: LeaseCall.CHECKPOINT,
    LateCheckpoint: LeaseCall.CHECKPOINT,
    End: LeaseCall.END,
    Release: LeaseCall.RELEASE,
    Delete: LeaseCall.DELETE,
}
"""The writes that the coordinator makes."""


def call_of(write: LeaseWrite) -> LeaseCall:
    """Return the kind of call that makes a write."""
    return _WRITES[type(write)]


class CallAnswer(Struct, frozen=True):
    """The answer to a call, from its event.

    Args:
        problem: Why the call failed; None if it succeeded.
        detail: The error's text, if there is one.
        key: The call's lease; None if the call was not about one lease.
        stream_id: The stream of a listing, if the table has several streams; else empty.
    """

    call: LeaseCall
    problem: Problem | None = None
    detail: str = ""
    key: str | None = None
    stream_id: str = ""

    @property
    def kind(self) -> tuple[LeaseCall, str]:
        """The call and its stream: the failures of one kind are counted together."""
        return (self.call, self.stream_id)


def answer_of(event: Event) -> CallAnswer | None:
    """Return the answer that an event carries; None if it answers no call that can fail."""
    match event:
        case WriteDone():
            return _answer_of_write(event)
        case TableReady() | TableFailed():
            call = LeaseCall.ENSURE
        case ScanDone() | ScanFailed():
            call = LeaseCall.SCAN
        case LeaseFetched() | FetchFailed():
            call = LeaseCall.FETCH
        case ListingDone() | ListingFailed():
            call = LeaseCall.LIST
        case FleetFetched() | FleetFetchFailed():
            call = LeaseCall.FETCH_FLEET
        case WorkerReported():
            call = LeaseCall.REPORT
        case OwnLeasesFound() | FindOwnLeasesFailed():
            call = LeaseCall.FIND_OWN
        case _:
            return None
    return CallAnswer(
        call,
        getattr(event, "problem", None),  # only the answers of failed calls have one
        getattr(event, "detail", ""),
        getattr(event, "key", None),
        getattr(event, "stream_id", ""),
    )


def _answer_of_write(event: WriteDone) -> CallAnswer:
    call, key, outcome = call_of(event.write), event.write.key, event.outcome
    if isinstance(outcome, NotDone):
        return CallAnswer(call, outcome.problem, outcome.detail, key)
    if isinstance(outcome, Unknown):
        return CallAnswer(call, Problem.UNAVAILABLE, event.detail or outcome.value, key)
    return CallAnswer(call, key=key)


class FailingCall(Struct):
    """One kind of call that has failed since its last success.

    Args:
        answer: The last failure.
        since_s: When the first failure was seen, monotonic.
        last_s: When the last failure was seen, monotonic.
        is_lasting: Whether the call keeps failing, by the rule of this module.
    """

    answer: CallAnswer
    since_s: float
    last_s: float
    is_lasting: bool = False
    is_reported: bool = False

    @property
    def call(self) -> LeaseCall:
        """The kind of the call."""
        return self.answer.call

    def describe(self, now_s: float) -> str:
        """Return what fails, for how long, and the last error."""
        answer = self.answer
        what = f"{self.call.value} of stream {answer.stream_id}" if answer.stream_id else self.call.value
        for_s = now_s - self.since_s
        fails = f"has failed for {for_s:.0f} s" if for_s >= 1 else "fails"
        lease = f" (lease {answer.key})" if answer.key is not None else ""
        problem = "" if answer.problem is None else answer.problem.value
        return f"{what} {fails}{lease}: {answer.detail or problem}"


class FailingCalls:
    """The failing calls of one worker. Not thread-safe.

    Args:
        delivery_s: How long a lease may be read after the write that renewed it was sent.
    """

    def __init__(self, turn: Turn, lease_duration_s: float, delivery_s: float) -> None:
        self._turn = turn
        self._lease_duration_s = lease_duration_s
        self._patience_s = _PATIENCE * lease_duration_s
        # Each renewal is sent after the previous one is answered, so two answers in a row must both arrive within `delivery_s`.
        self._answer_due_s = delivery_s / 2
        self._failing: dict[tuple[LeaseCall, str], FailingCall] = {}  # by call and stream id
        self._quiet_until_s: dict[tuple[LeaseCall, str], float] = {}  # no second report until then
        # Reported calls that work again while others fail, each with the moment of its first failure.
        self._recovered: dict[LeaseCall, float] = {}

    def lasting_calls(self) -> tuple[FailingCall, ...]:
        """Return the calls that keep failing."""
        return tuple(each for each in self._failing.values() if each.is_lasting)

    def on_event(self, event: Event, now_s: float, sent_s: Callable[[int], float | None]) -> None:
        """Handle an event; most are answers to calls.

        Args:
            sent_s: Returns when a write in flight was sent.
        """
        answer = answer_of(event)
        if answer is None:
            return
        if answer.problem is None and isinstance(event, WriteDone):
            answer = self._fail_if_late(answer, sent_s(event.write_id), now_s)
        if answer.problem is None:
            failure = self._failing.pop(answer.kind, None)
            if failure is not None:
                self._on_recovered(failure, now_s)
        else:
            self._on_failed(answer, now_s)

    def _fail_if_late(self, answer: CallAnswer, sent_s: float | None, now_s: float) -> CallAnswer:
        """Return the answer to a write, or a failure in its place if the answer was too late to keep a lease."""
        if sent_s is None or now_s - sent_s < self._answer_due_s:
            return answer
        slow = (
            f"the answer came after {now_s - sent_s:.1f} s, and a lease is lost if two of them take longer than "
            f"{2 * self._answer_due_s:.1f} s"
        )
        return replace(answer, problem=Problem.UNAVAILABLE, detail=slow)

    def on_unanswered_write(self, write: LeaseWrite, sent_s: float, now_s: float) -> None:
        """Handle a write that is still in flight: it counts as failed if it was sent long ago."""
        self._on_unanswered(CallAnswer(call_of(write), key=write.key), sent_s, now_s)

    def on_unanswered_listing(self, stream_id: str, sent_s: float, now_s: float) -> None:
        """Handle a listing of a stream's shards that is still in flight, in the same way."""
        self._on_unanswered(CallAnswer(LeaseCall.LIST, stream_id=stream_id), sent_s, now_s)

    def _on_unanswered(self, call: CallAnswer, sent_s: float, now_s: float) -> None:
        age_s = now_s - sent_s
        if age_s < self._patience_s:
            return
        answer = replace(call, problem=Problem.UNAVAILABLE, detail=f"no answer for {age_s:.0f} s")
        failure = self._failing.get(answer.kind)
        if failure is not None and not failure.answer.detail.startswith("no answer"):
            answer = failure.answer  # an error is more specific
        self._on_failed(answer, now_s)

    def on_lost_lease(self, key: str, error: str, now_s: float) -> None:
        """Handle a lease that was lost because writing it failed."""
        answer = CallAnswer(LeaseCall.RENEW, Problem.UNAVAILABLE, error, key)
        failure = self._failure_of(answer, now_s)
        failure.is_lasting = True
        self._report_if_due(failure, now_s)

    def _failure_of(self, answer: CallAnswer, now_s: float) -> FailingCall:
        return self._failing.setdefault(answer.kind, FailingCall(answer, since_s=now_s, last_s=now_s))

    def _on_failed(self, answer: CallAnswer, now_s: float) -> None:
        failure = self._failure_of(answer, now_s)
        failure.answer, failure.last_s = answer, now_s
        failure.is_lasting |= now_s - failure.since_s >= self._patience_s
        self._report_if_due(failure, now_s)

    def _report_if_due(self, failure: FailingCall, now_s: float) -> None:
        answer = failure.answer
        if failure.is_lasting:
            self._recovered.pop(failure.call, None)
        is_loud = failure.is_lasting or answer.problem is Problem.REFUSED
        if is_loud and now_s >= self._quiet_until_s.get(answer.kind, -math.inf):
            self._quiet_until_s[answer.kind] = now_s + _REPORT_INTERVAL_S
            failure.is_reported = True
            reason = "" if answer.problem is None else answer.problem.name.lower()
            self._turn.report(Topic.CALL_FAILED, Level.ERROR, failure.describe(now_s), answer.key, reason)

    def forget_old_calls(self, now_s: float, round_s: float) -> None:
        """Forget failing calls that are not made any more, for instance because other workers have the leases now."""
        writes_pause_s = 3 * max(self._lease_duration_s, round_s)
        for kind, failure in list(self._failing.items()):
            is_write = failure.call in _WRITES.values()
            if now_s - failure.last_s > max(writes_pause_s, 0.0 if is_write else _RARE_CALL_INTERVAL_S):
                del self._failing[kind]
                self._on_recovered(failure, now_s)

    def _on_recovered(self, failure: FailingCall, now_s: float) -> None:
        """Handle a failing call that works again or is not needed any more; report it once no call keeps failing."""
        if not failure.is_lasting:
            return
        if failure.is_reported:
            self._recovered[failure.call] = failure.since_s
        if self.lasting_calls() or not self._recovered:
            return
        what = ", ".join(call.value for call in self._recovered)
        for_s = now_s - min(self._recovered.values())
        self._recovered.clear()
        self._turn.report(
            Topic.CALLS_WORK,
            Level.WARNING,
            f"no call about leases fails any more; for {for_s:.0f} s these did: {what}",
        )
