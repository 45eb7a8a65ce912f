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
from typing import Final

from msgspec import Struct

from penstock.core.leases.coordinator_effects import Level, Topic, Turn
from penstock.core.leases.coordinator_events import (
    CallFailed,
    Event,
    FleetFetched,
    LeaseCall,
    LeaseFetched,
    ListingDone,
    NotDone,
    OwnLeasesFound,
    Problem,
    ScanDone,
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
_SUCCESSES: Final[dict[type, LeaseCall]] = {
    TableReady: LeaseCall.ENSURE,
    ScanDone: LeaseCall.SCAN,
    LeaseFetched: LeaseCall.FETCH,
    ListingDone: LeaseCall.LIST,
    FleetFetched: LeaseCall.FETCH_FLEET,
    WorkerReported: LeaseCall.REPORT,
    OwnLeasesFound: LeaseCall.FIND_OWN,
}
"""The answers to the other calls if they succeed."""


def call_of(write: LeaseWrite) -> LeaseCall:
    """Return the kind of call that makes a write."""
    return _WRITES[type(write)]


class FailingCall(Struct):
    """One kind of call that has failed since its last success.

    Args:
        answer: The last failure.
        since_s: When the first failure was seen, monotonic.
        last_s: When the last failure was seen, monotonic.
        is_lasting: Whether the call keeps failing, by the rule of this module.
    """

    answer: CallFailed
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
        return f"{what} {fails}{lease}: {answer.detail or answer.problem.value}"


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
        if isinstance(event, CallFailed):
            self._on_failed(event, now_s)
        elif isinstance(event, WriteDone):
            failed = self._failure_of_write(event, sent_s(event.write_id), now_s)
            if failed is None:
                self._on_success(call_of(event.write), "", now_s)
            else:
                self._on_failed(failed, now_s)
        elif type(event) in _SUCCESSES:
            stream_id = event.stream_id if isinstance(event, ListingDone) else ""
            self._on_success(_SUCCESSES[type(event)], stream_id, now_s)

    def _failure_of_write(self, event: WriteDone, sent_s: float | None, now_s: float) -> CallFailed | None:
        """Return the failure of a write; None if it was answered, and soon enough to keep a lease."""
        call, key, outcome = call_of(event.write), event.write.key, event.outcome
        if isinstance(outcome, NotDone):
            return CallFailed(call, outcome.problem, outcome.detail, key)
        if isinstance(outcome, Unknown):
            return CallFailed(call, Problem.UNAVAILABLE, event.detail or outcome.value, key)
        if sent_s is None or now_s - sent_s < self._answer_due_s:
            return None
        slow = (
            f"the answer came after {now_s - sent_s:.1f} s, and a lease is lost if two of them take longer than "
            f"{2 * self._answer_due_s:.1f} s"
        )
        return CallFailed(call, Problem.UNAVAILABLE, slow, key)

    def on_unanswered_write(self, write: LeaseWrite, sent_s: float, now_s: float) -> None:
        """Handle a write that is still in flight: it counts as failed if it was sent long ago."""
        self._on_unanswered(call_of(write), sent_s, now_s, key=write.key)

    def on_unanswered_listing(self, stream_id: str, sent_s: float, now_s: float) -> None:
        """Handle a listing of a stream's shards that is still in flight, in the same way."""
        self._on_unanswered(LeaseCall.LIST, sent_s, now_s, stream_id=stream_id)

    def _on_unanswered(
        self, call: LeaseCall, sent_s: float, now_s: float, *, key: str | None = None, stream_id: str = ""
    ) -> None:
        age_s = now_s - sent_s
        if age_s < self._patience_s:
            return
        answer = CallFailed(call, Problem.UNAVAILABLE, f"no answer for {age_s:.0f} s", key, stream_id)
        failure = self._failing.get(answer.kind)
        if failure is not None and not failure.answer.detail.startswith("no answer"):
            answer = failure.answer  # an error is more specific
        self._on_failed(answer, now_s)

    def on_lost_lease(self, key: str, error: str, now_s: float) -> None:
        """Handle a lease that was lost because writing it failed."""
        answer = CallFailed(LeaseCall.RENEW, Problem.UNAVAILABLE, error, key)
        failure = self._failure_of(answer, now_s)
        failure.is_lasting = True
        self._report_if_due(failure, now_s)

    def _failure_of(self, answer: CallFailed, now_s: float) -> FailingCall:
        return self._failing.setdefault(answer.kind, FailingCall(answer, since_s=now_s, last_s=now_s))

    def _on_success(self, call: LeaseCall, stream_id: str, now_s: float) -> None:
        failure = self._failing.pop((call, stream_id), None)
        if failure is not None:
            self._on_recovered(failure, now_s)

    def _on_failed(self, answer: CallFailed, now_s: float) -> None:
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
            reason = answer.problem.name.lower()
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
