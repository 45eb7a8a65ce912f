"""Reports of calls that the lease table refuses for good, for instance by a policy.

A worker that may read the table and not write it would look idle. So it reports refused calls, repeatedly, but not for each
of a thousand leases.
"""

from __future__ import annotations

import math
from typing import Final

from penstock.core.leases.coordinator_events import Problem
from penstock.core.leases.turn import Turn

_AGAIN_S: Final = 60.0


class RefusedCalls:
    """Reports refused calls, at most one of each kind a minute. Not thread-safe.

    Args:
        turn: Where the reports go.
    """

    def __init__(self, turn: Turn) -> None:
        self._turn = turn
        self._quiet_until_s: dict[str, float] = {}

    def on_failed_call(self, what: str, key: str, problem: Problem, detail: str, now_s: float) -> None:
        """Handle a failed call.

        Args:
            what: The kind of call; bounded.
            key: The lease.
            problem: Only REFUSED is reported: every other problem is temporary, and the call is tried again.
            detail: The service's message.
            now_s: Monotonic seconds.
        """
        if problem is not Problem.REFUSED or now_s < self._quiet_until_s.get(what, -math.inf):
            return
        self._quiet_until_s[what] = now_s + _AGAIN_S
        self._turn.report_failed_call(f"{what} lease {key}", problem, detail)
