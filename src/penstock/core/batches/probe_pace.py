"""When an idle shard is probed next: soon after it was read, but never faster than the service's read quota.

A probe is a read by which the driver checks whether a shard has new records. A shard that was read a moment ago is likely
to have more soon, so for one interval it is probed four times as often. The service allows five reads of a shard a second:
beyond that it refuses a probe, and perhaps the task's read that follows. So the query counts its own reads. If a probe is
refused all the same, other consumers read the shard too, and the query probes at the plain interval again.
"""

from __future__ import annotations

from typing import Final

READ_COST_S: Final = 0.2
"""The service grants a shard five reads a second."""
_BURST_S: Final = 1.0  # the five reads may also be made at once
_READS_OF_NEWS: Final = 2  # the probe, and the task's read if it finds records
_QUICK_PROBES: Final = 4  # after a batch, within one interval


class ProbePace:
    """The probes of one shard. Not thread-safe.

    Args:
        read_cost_s: Seconds from one read to the next in the long run, at most half a second; 0 if there is no quota.
    """

    __slots__ = ("_cost_s", "_quick_probes_left", "_quota_used_until_s")

    def __init__(self, read_cost_s: float = READ_COST_S) -> None:
        self._cost_s = read_cost_s
        # The reads so far use up the quota until this moment. The next read may be earlier by `_BURST_S`.
        self._quota_used_until_s = float("-inf")
        self._quick_probes_left = 0

    def on_batch(self, now_s: float) -> None:
        """Handle a batch that has read records of the shard."""
        self._count_read(now_s)
        self._quick_probes_left = _QUICK_PROBES

    def on_probe(self, now_s: float, interval_s: float) -> float:
        """Handle a probe that is sent. Return the moment of the next one if this one finds nothing.

        Args:
            interval_s: Time between two probes of a quiet shard.
        """
        self._count_read(now_s)
        if not self._quick_probes_left:
            return now_s + interval_s
        self._quick_probes_left -= 1
        return now_s + interval_s / _QUICK_PROBES

    def on_refusal(self, now_s: float) -> None:
        """Handle a probe that the service has refused for its rate."""
        self._quota_used_until_s = max(self._quota_used_until_s, now_s + _BURST_S)
        self._quick_probes_left = 0

    @property
    def ready_s(self) -> float:
        """The moment from which the quota has room for a probe and for the read after it."""
        return self._quota_used_until_s - (_BURST_S - _READS_OF_NEWS * self._cost_s)

    def _count_read(self, now_s: float) -> None:
        self._quota_used_until_s = max(self._quota_used_until_s, now_s) + self._cost_s
