"""Whether one shard is polled or has its records pushed, if the reader decides (`retrieval="auto"`).

A shard is polled first. The machine gets the outcome of each call, and decides when to change, and why. Its driver makes the change
between two calls: the reader then begins in the new way at the last record that it read, so no record is left out or read twice.

| event | answer |
|---|---|
| every fifth of the last reads is refused, though the quota had room for this reader alone | after `contended_s`: fan-out |
| reads are refused that this reader's own rate explains | nothing: the reader slows down by itself |
| a few refusals among many reads | nothing |
| fan-out for `hold_s`, and near the tip | polling, on trial |
| the same refusals while on trial | fan-out after a third of `contended_s`, and for twice as long as before |
| fan-out is denied, or fails twice without an event between | polling; fan-out again after a minute, then ever more rarely |

While records are pushed the reader cannot see whether others still poll. So polling is tried.

Source:
    Kinesis API reference, GetRecords: five calls a second and 2 MiB a second for each shard, over all readers.
"""

from __future__ import annotations

from collections import deque
from enum import Enum
from typing import Final

from msgspec import Struct

from penstock.core.keyword_options import check_above_zero
from penstock.core.limits import GET_RECORDS_PER_S_MAX, SHARD_READ_BYTES_PER_S_MAX
from penstock.core.reading.lag import NEAR_TIP_MS_MAX
from penstock.core.reading.reader_options import ReaderOptions
from penstock.errors import ExpiredIterator, PenstockError, Throttled, Unavailable

_ARRIVAL_SLACK_S: Final = 0.1  # calls are timed here and counted there
_REFUSAL_CODE: Final = "ProvisionedThroughputExceededException"


def is_quota_refusal(error: PenstockError) -> bool:
    """Whether a read was refused because the shard's quota is used up, by this or other readers."""
    return isinstance(error, Throttled) and error.code == _REFUSAL_CODE


class OwnReads:
    """One reader's use of a shard's quota, and whether that explains a refused read. Not thread-safe."""

    def __init__(self) -> None:
        self._calls: deque[float] = deque()
        self._busy_until_s = float("-inf")

    def on_call(self, started_s: float) -> None:
        """Count a call, whatever its outcome."""
        self._calls.append(started_s)
        while self._calls[0] <= started_s - 1.0:
            self._calls.popleft()

    def on_bytes(self, started_s: float, read_bytes: int) -> None:
        """Handle the bytes of an answer: for a time they use up the shard's read quota."""
        begin_s = max(self._busy_until_s, started_s)
        self._busy_until_s = begin_s + read_bytes / SHARD_READ_BYTES_PER_S_MAX

    def explains_refusal(self, started_s: float) -> bool:
        """Return whether this reader's own use of the quota explains the refusal of its last call, which began at `started_s`."""
        is_over_count = len(self._calls) > GET_RECORDS_PER_S_MAX
        return is_over_count or started_s < self._busy_until_s + _ARRIVAL_SLACK_S


_CALLS_MAX: Final = 20  # the last calls count, not those of a period: after refusals few are made
_CALLS_MIN: Final = 5
_REFUSED_SHARE_MIN: Final = 0.2
_FORGOTTEN_S: Final = 60.0  # older calls do not count; no pause after a refusal is longer
_TRIAL_SHARE: Final = 1 / 3  # of the time before a change, while on trial
_HOLD_GROWTH_MAX: Final = 8
_PUSH_FAILURES_MAX: Final = 2
_RETRY_S: Final = 60.0


class Retrieval(Enum):
    """How a shard is read."""

    POLLING = "polling"
    FAN_OUT = "fan-out"


class ChangeReason(Enum):
    """Reason for a change of retrieval."""

    CONTENDED = "reads are refused because others read the shard too"
    TRIAL = "the shard may have room for polling again"
    PUSH_FAILED = "its subscription does not work"


class RetrievalChange(Struct, frozen=True):
    """Change to another retrieval, and the reason."""

    to: Retrieval
    why: ChangeReason


class AutoRetrieval(Struct, frozen=True):
    """The options of a reader that chooses between polling and fan-out.

    Args:
        polling: How a polled shard is read.
        fan_out: How a shard is read whose records are pushed.
        contended_s: Fan-out begins when reads were refused because of other readers for this time, plus up to half of it by chance.
        hold_s: Fan-out lasts for this time, plus up to a quarter of it by chance, before polling is tried again.

    Raises:
        OptionError: A time is not above 0.
    """

    polling: ReaderOptions
    fan_out: ReaderOptions
    contended_s: float = 30.0
    hold_s: float = 900.0

    def __post_init__(self) -> None:
        check_above_zero(self, "contended_s", "hold_s")

    def options_of(self, retrieval: Retrieval) -> ReaderOptions:
        """Return the reader's options for a retrieval."""
        return self.polling if retrieval is Retrieval.POLLING else self.fan_out


class RetrievalChoice:
    """Decides for one shard when to change its retrieval. Not thread-safe: one caller at a time.

    Args:
        chance: In [0, 1), so that not all readers of a shard change at the same time: one that leaves may be enough.
    """

    def __init__(self, options: AutoRetrieval, chance: float) -> None:
        self._options = options
        self.retrieval: Retrieval = Retrieval.POLLING
        """How the shard is read now."""
        self._own_reads = OwnReads()
        self._hold_s = options.hold_s  # of fan-out; doubled after a trial of polling that failed
        self._trial_until_s = float("-inf")  # polling is on trial: a change back needs less contention
        self._not_before_s = float("-inf")  # of the next change
        self._retry_pause_s = _RETRY_S  # pause before fan-out is tried again after it failed
        self._behind_ms = 0  # as of the last event
        self._event_s = 0.0  # when that was
        self._push_failures = 0
        self._has_push_failed = False  # for good, or too often in a row: polling is due
        self._begin_count(chance)

    def _begin_count(self, chance: float) -> None:
        """Forget the refusals so far, and draw how long further ones must last before fan-out begins."""
        self._needed_s = self._options.contended_s * (1 + chance / 2)
        self._called_s = 0.0
        self._are_refused: deque[bool] = deque(maxlen=_CALLS_MAX)
        self._contended_since_s: float | None = None

    def plan_change(self, now_s: float) -> RetrievalChange | None:
        """Return the change to the other retrieval if it is due, or None. The call changes nothing."""
        if self.retrieval is Retrieval.FAN_OUT:
            if self._has_push_failed:
                return RetrievalChange(Retrieval.POLLING, ChangeReason.PUSH_FAILED)
            # If a handler delays the next event, the lag grows although no event shows it.
            behind_ms = self._behind_ms + (now_s - self._event_s) * 1000
            if now_s >= self._not_before_s and behind_ms <= NEAR_TIP_MS_MAX:
                return RetrievalChange(Retrieval.POLLING, ChangeReason.TRIAL)
            return None
        since_s = self._contended_since_s
        needed_s = self._needed_s * (_TRIAL_SHARE if now_s < self._trial_until_s else 1.0)
        if since_s is not None and self._called_s >= since_s + needed_s and now_s >= self._not_before_s:
            return RetrievalChange(Retrieval.FAN_OUT, ChangeReason.CONTENDED)
        return None

    def on_changed(self, change: RetrievalChange, now_s: float, chance: float) -> None:
        """Handle the change, once it was made."""
        assert change.to is not self.retrieval, "a change to the current retrieval"
        self.retrieval = change.to
        if change.to is Retrieval.FAN_OUT:
            is_trial_failed = now_s < self._trial_until_s
            longest_s = self._options.hold_s * _HOLD_GROWTH_MAX
            self._hold_s = min(self._hold_s * 2, longest_s) if is_trial_failed else self._options.hold_s
            self._not_before_s = now_s + self._hold_s * (1 + chance / 4)
            self._push_failures = self._behind_ms = 0
            self._event_s = now_s
            self._has_push_failed = False
        elif change.why is ChangeReason.PUSH_FAILED:
            self._not_before_s = now_s + self._retry_pause_s * (1 + chance / 4)
            self._retry_pause_s = min(self._retry_pause_s * 2, max(_RETRY_S, self._options.hold_s))
        else:
            self._not_before_s = now_s
            self._trial_until_s = now_s + self._hold_s
        self._begin_count(chance)

    # --- polling ---

    def on_polled(self, started_s: float, read_bytes: int) -> None:
        """Handle a call that returned a page."""
        self._own_reads.on_call(started_s)
        self._own_reads.on_bytes(started_s, read_bytes)
        self._count_call(started_s, is_refused=False)

    def on_poll_failed(self, error: PenstockError, started_s: float) -> None:
        """Handle a failed call for a page."""
        self._own_reads.on_call(started_s)
        if is_quota_refusal(error):
            self._count_call(started_s, is_refused=not self._own_reads.explains_refusal(started_s))

    def _count_call(self, started_s: float, *, is_refused: bool) -> None:
        if started_s - self._called_s > _FORGOTTEN_S:
            self._are_refused.clear()
        self._called_s = started_s
        self._are_refused.append(is_refused)
        calls = len(self._are_refused)
        if calls < _CALLS_MIN or sum(self._are_refused) < _REFUSED_SHARE_MIN * calls:
            self._contended_since_s = None
        elif self._contended_since_s is None:
            self._contended_since_s = started_s

    # --- fan-out ---

    def on_event(self, millis_behind_latest: int, now_s: float) -> None:
        """Handle a pushed event."""
        self._behind_ms, self._event_s = millis_behind_latest, now_s
        self._push_failures = 0
        self._retry_pause_s = _RETRY_S

    def on_push_failed(self, error: PenstockError) -> None:
        """Handle a subscription that failed, or could not begin: polling is due if that is final, or the second time in a row."""
        self._push_failures += 1
        is_final = not isinstance(error, Unavailable | Throttled | ExpiredIterator)
        self._has_push_failed = is_final or self._push_failures >= _PUSH_FAILURES_MAX
