"""One reader's use of a shard's quota, and whether that explains a refused read.

Source:
    Kinesis API reference, GetRecords: five calls a second and 2 MiB a second for each shard, over all readers.
"""

from __future__ import annotations

from collections import deque
from typing import Final

from penstock.core.limits import GET_RECORDS_PER_S_MAX, SHARD_READ_BYTES_PER_S_MAX
from penstock.errors import PenstockError, Throttled

_ARRIVAL_SLACK_S: Final = 0.1  # calls are timed here and counted there
_REFUSAL_CODE: Final = "ProvisionedThroughputExceededException"


def is_quota_refusal(error: PenstockError) -> bool:
    """Whether a read was refused because the shard's quota is used up, by whomever."""
    return isinstance(error, Throttled) and error.code == _REFUSAL_CODE


class OwnReads:
    """One reader's use of a shard's quota. Not thread-safe."""

    def __init__(self) -> None:
        self._calls: deque[float] = deque()
        self._busy_until_s = float("-inf")

    def on_call(self, started_s: float) -> None:
        """Count a call, whatever its outcome."""
        self._calls.append(started_s)
        while self._calls[0] <= started_s - 1.0:
            self._calls.popleft()

    def on_bytes(self, started_s: float, read_bytes: int) -> None:
        """Count the bytes of an answer."""
        begin_s = max(self._busy_until_s, started_s)
        self._busy_until_s = begin_s + read_bytes / SHARD_READ_BYTES_PER_S_MAX

    def explain_refusal(self, started_s: float) -> bool:
        """Return whether the last call, which began then, would have been refused without other readers too."""
        is_over_count = len(self._calls) > GET_RECORDS_PER_S_MAX
        return is_over_count or started_s < self._busy_until_s + _ARRIVAL_SLACK_S
