"""How soon a shard is asked for news again: often just after it was read, and never beyond the reads that the service grants.

A shard that was read a moment ago is likely to have more soon: for one interval it is asked four times as often. And a query
with three batches a second reads a shard as often as the service allows, five times a second, with its probes and its tasks
together. A probe beyond that is refused, and so may be the read of the task that follows. So the query counts what it has read
itself. A refusal all the same means that others read the shard too: they get their turn, and the interval counts.
"""

from __future__ import annotations

from typing import Final

READ_COST_S: Final = 0.2
"""The service grants a shard five reads a second."""
_BURST_S: Final = 1.0  # it grants them also at once
_READS_OF_NEWS: Final = 2  # the probe, and the task that reads what it found
_SOON_COUNT: Final = 4


class ProbePace:
    """The probes of one shard. Not thread-safe.

    Args:
        read_cost_s: A read may follow another one after so many seconds in the long run, at most half a second; 0 where there
            is no quota.
    """

    __slots__ = ("_cost_s", "_soon_left", "_spent_s")

    def __init__(self, read_cost_s: float = READ_COST_S) -> None:
        self._cost_s = read_cost_s
        self._spent_s = float(
            "-inf"
        )  # until then the quota would be needed for what was read, without its burst
        self._soon_left = 0

    def on_batch(self, now_s: float) -> None:
        """Observe that a batch has read records of the shard."""
        self._spend(now_s)
        self._soon_left = _SOON_COUNT

    def on_probe(self, now_s: float, interval_s: float) -> float:
        """Observe that a probe is sent; return the moment of the next one, should this one find nothing.

        Args:
            now_s: Monotonic seconds.
            interval_s: Between two probes of a shard that is quiet.
        """
        self._spend(now_s)
        if not self._soon_left:
            return now_s + interval_s
        self._soon_left -= 1
        return now_s + interval_s / _SOON_COUNT

    def on_refusal(self, now_s: float) -> None:
        """Observe that the service has refused a probe for its rate."""
        self._spent_s = max(self._spent_s, now_s + _BURST_S)
        self._soon_left = 0

    @property
    def ready_s(self) -> float:
        """The moment from which the quota has room for a probe and for what it leads to."""
        return self._spent_s - (_BURST_S - _READS_OF_NEWS * self._cost_s)

    def _spend(self, now_s: float) -> None:
        self._spent_s = max(self._spent_s, now_s) + self._cost_s
