"""Calls that the lease table refuses for good: a policy without one of them, for instance.

A worker that may read the table and not write it looks like one that has nothing to do. So it tells, again and again, but
not for each of a thousand leases.
"""

from __future__ import annotations

import math
from typing import Final

from penstock.core.leases.coordinator_events import Problem
from penstock.core.leases.turn import Turn

_AGAIN_S: Final = 60.0


class RefusedCalls:
    """Reports refused calls, the first one of each kind a minute. Not thread-safe.

    Args:
        turn: Where the reports go.
    """

    def __init__(self, turn: Turn) -> None:
        self._turn = turn
        self._quiet_until_s: dict[str, float] = {}

    def on_failed_call(self, what: str, key: str, problem: Problem, detail: str, now_s: float) -> None:
        """Observe that a call was not done.

        Args:
            what: The kind of call; bounded.
            key: The lease.
            problem: Only what is refused for good is reported: everything else is tried again, and passes.
            detail: The service's words.
            now_s: Monotonic seconds.
        """
        if problem is not Problem.REFUSED or now_s < self._quiet_until_s.get(what, -math.inf):
            return
        self._quiet_until_s[what] = now_s + _AGAIN_S
        self._turn.report_failed_call(f"{what} lease {key}", problem, detail)
