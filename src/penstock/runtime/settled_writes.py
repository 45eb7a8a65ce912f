"""One conditional write whose answer may be lost, for any table.

A write has three outcomes. If the outcome is unknown, the row is read back; if it does not show the write, the write is sent
again, within the bound. The adapters of DynamoDB and of objects and the simulator's table share this.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from penstock.core.backoff import RetryPlan
from penstock.core.leases.lease import Lease
from penstock.core.leases.lease_rules import shows_write
from penstock.core.leases.lease_writes import Applied, LeaseWrite, Outcome, Refusal, Refused, Take
from penstock.errors import UnknownOutcome
from penstock.ports.clock import Chance, Clock

_ATTEMPTS_MAX: Final = 5


def write_settled(
    write: LeaseWrite,
    *,
    fetch: Callable[[str], Lease | None],
    send: Callable[[LeaseWrite, str | None], Outcome],
    retry_plan: RetryPlan,
    clock: Clock,
    chance: Chance,
    table: str,
) -> Outcome:
    """Send one conditional write; if its answer is lost, read the row back.

    Args:
        fetch: Reads one row, strongly consistent.
        send: Sends the write once. Its second argument is the owner in the row as read, for a take or after a lost answer. Raises
            `UnknownOutcome` if there is no answer.
        retry_plan: When to send again.
        table: The table's name, for messages.

    Raises:
        UnknownOutcome: There was no answer, and reading back did not show whether the write was applied.
    """
    lost_answer: UnknownOutcome | None = None
    before: Lease | None = None
    began_s = clock.monotonic_s()
    for attempt in range(1, _ATTEMPTS_MAX + 1):
        if isinstance(write, Take) or lost_answer is not None:
            before = fetch(write.key)
            if lost_answer is not None and shows_write(before, write):
                return Applied(before)
            if isinstance(write, Take) and before is None:
                return Refused(Refusal.MISSING, None)
        try:
            outcome = send(write, None if before is None else before.owner)
        except UnknownOutcome as error:
            lost_answer = error
            delay_s = retry_plan.delay_s(attempt, clock.monotonic_s() - began_s, chance.random())
            if delay_s is None:
                break
            clock.sleep(delay_s)
            continue
        if isinstance(outcome, Refused):
            if lost_answer is not None and shows_write(outcome.row, write):
                return Applied(outcome.row)
            if (
                isinstance(write, Take)
                and outcome.reason is Refusal.COUNTER
                and outcome.row is not None
                and outcome.row.counter == write.counter
            ):
                continue  # only the owner changed since it was read: a hand-over began
        return outcome
    raise UnknownOutcome(
        f"lease table {table}, row {write.key}: {type(write).__name__} was sent and could not be settled; "
        f"read the row before acting on it. The last error: {lost_answer}",
        operation="write" if lost_answer is None else lost_answer.operation,
        resource=write.key,
    ) from lost_answer
