"""Checkers of readers whose records retention has removed: a report if some were unread, and no alarm if none were."""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from collections.abc import Iterable
from typing import Final

from msgspec import Struct

from penstock.core.leases.lease_writes import Checkpoint, Release, Renew
from penstock.core.position import Position
from penstock_sim.checker import Broken, Checker
from penstock_sim.events import leases, processes, reading
from penstock_sim.events.base import name_of

_LATE_WRITE_S: Final = 8.0  # a write may arrive so long after it was sent
SLACK_MS: Final = 9_000  # clocks in whole seconds, and calls that take a while
_DOUBTED_TIPS_MAX: Final = 3  # empty pages that a reader treats as unverified if a record must follow


class _Tip(Struct, frozen=True):
    seen_s: float
    server_ms: int
    index: int


class LossesReported(Checker):
    """S9: a loss is reported if unread records have left the stream, and not otherwise.

    If the record at a reader's position is missing, and no reader was at the tip within the retention, other records may be
    missing too. If the reader was at the tip since, or the row shows that another reader was, it must not report a loss. A
    loss is reported once: a reader that reports it and goes on writes the tip after the loss to the row, and the next reader
    starts from there. If the reader stops at the loss, the next one reports it.
    """

    invariant = "S9"

    def _begin(self) -> None:
        self._tips: dict[tuple[str, str], deque[_Tip]] = {}
        self._tip_in_row: dict[str, tuple[Position, int]] = {}
        self._reported: dict[str, dict[tuple[str, int], set[int]]] = {}
        """Records that left the stream unread, by shard and by the reader that reported them or skipped them as possibly lost."""
        self._doubtful: set[tuple[str, str, int]] = set()
        self._away: set[tuple[str, str, int]] = set()
        """Readers that were so far from the trim horizon that no unread record was about to leave the stream."""
        self._doubted: dict[tuple[str, str], int] = {}
        """Empty pages in a row after which a reader read again, because its last record had left the stream."""
        self._written_within_s = 1.1 * self.options.renew_interval_s + _LATE_WRITE_S

    def _on_reader_started(self, event: reading.ReaderStarted) -> None:
        key = event.key
        self._tips.pop((event.who, key), None)
        self._doubted.pop((event.who, key), None)
        row = self.history.rows.get(key)
        if self.history.kcl_workers and row is not None and row.has_foreign_checkpoint:
            self._doubtful.add(event.reader)

    def _on_tip_reached(self, event: reading.TipReached) -> None:
        who, key = event.who, event.key
        reader = self.history.readers.get(event.reader)
        shard = self.history.shards[key]
        count = len(shard.sequences)
        if reader is not None and event.reader in self._doubtful:
            # It has passed possibly lost records, and writes the tip after them.
            self._add_reported(key, who, event.epoch, shard.sequences[reader.next_index : shard.trimmed])
        if reader is None or not count or not reader.done_index == reader.next_index == count:
            return
        if self._is_unverified(who, key, reader.next_index):
            return
        # A reader that finds nothing at its starting place cannot rule out a loss yet.
        if reader.deliveries or (who, key) in self._tips or shard.trimmed < reader.start_index:
            tips = self._tips.setdefault((who, key), deque(maxlen=20))
            tips.append(_Tip(self.history.now, event.server_ms, count))

    def _is_unverified(self, who: str, key: str, next_index: int) -> bool:
        """Return whether a reader treats an empty page as unverified and reads again.

        It does so if its last record has left the stream, and it was not at the tip within the retention.
        """
        tips = self._tips.get((who, key))
        is_place_gone = self.history.shards[key].trimmed >= next_index
        count = self._doubted.pop((who, key), 0)
        last_ms = tips[-1].server_ms if tips else 0
        if not is_place_gone or last_ms >= self._enough_ms(key) or count >= _DOUBTED_TIPS_MAX:
            return False
        self._doubted[who, key] = count + 1
        return True

    def _enough_ms(self, key: str) -> int:
        """Return the moment since which certainly no record has left the shard's stream."""
        retention_ms = self.history.shards[key].stream.retention_ms or 0
        return self.history.now_ms - retention_ms + SLACK_MS

    def _lost(self, key: str, begin: int = 0) -> list[int]:
        """Return the unread records that have left a shard, from an index on."""
        shard = self.history.shards[key]
        return [number for number in shard.sequences[begin : shard.trimmed] if number not in shard.done]

    def _add_reported(self, key: str, who: str, epoch: int, numbers: Iterable[int]) -> None:
        self._reported.setdefault(key, {}).setdefault((who, epoch), set()).update(numbers)

    def _first_silent(self, key: str, gap: Iterable[int]) -> int | None:
        """Return the first record of a gap that was neither read nor reported."""
        passed = self.history.shards[key].done.union(*self._reported.get(key, {}).values())
        return next((number for number in gap if number not in passed), None)

    def _on_coordinator_reported(self, event: processes.CoordinatorReported) -> None:
        """Forget the tips of a lease that is lost: they were not written to its row."""
        if event.topic == "LOST":  # without a key it is all that the worker held
            self._tips = {
                at: tips
                for at, tips in self._tips.items()
                if at[0] != event.who or event.key not in (None, at[1])
            }

    def _on_lease_written(self, event: leases.LeaseWritten) -> None:
        """Remember the tip that a row must have: the next renewal writes it."""
        write, after = event.write, event.after
        if after is None or event.before is None or event.before.checkpoint != after.checkpoint:
            self._tip_in_row.pop(write.key, None)
        if after is None or not isinstance(write, Renew | Checkpoint | Release):
            return
        if not after.checkpoint.is_record or name_of(event.who) in self.history.kcl_workers:
            return
        done = self.history.index_after(write.key, after.checkpoint)
        for tip in reversed(self._tips.get((event.who, write.key), ())):
            if tip.seen_s <= self.history.now - self._written_within_s and tip.index <= done:
                self._tip_in_row[write.key] = (after.checkpoint, tip.server_ms)
                break

    def _on_loss_reported(self, event: reading.LossReported) -> None:
        """Raise if no unread record has left the stream, and the worker or the row shows that a reader was at the tip since."""
        who, key = event.who, event.key
        history = self.history
        shard = history.shards[key]
        reader = history.readers.get(event.reader)
        self._doubted[who, key] = _DOUBTED_TIPS_MAX  # from now on it accepts an empty page
        if reader is None or shard.stream.is_deleted or shard.stream.retention_ms is None:
            return
        lost = self._lost(key, reader.next_index)
        if lost:
            self._add_reported(key, who, event.epoch, lost)
            return
        if shard.is_expired:
            return
        enough_ms = self._enough_ms(key)
        tips = self._tips.get((who, key))
        if tips and tips[-1].server_ms >= enough_ms:
            raise Broken(f"{who} reports a loss in {key}, and was at its tip at {tips[-1].seen_s:.1f} s")
        position, row_tip_ms = self._tip_in_row.get(key, (None, 0))
        if position == reader.position and row_tip_ms >= enough_ms and not reader.deliveries:
            raise Broken(f"{who} reports a loss in {key} at {position}; its row has the tip at {row_tip_ms}")

    def _on_shard_stopped(self, event: reading.ShardStopped) -> None:
        """Drop the losses that a reader has stopped at: it has not passed them."""
        if event.reason.startswith("data_loss"):
            self._reported.get(event.key, {}).pop((event.who, event.epoch), None)

    def _on_records_delivered(self, event: reading.RecordsDelivered) -> None:
        self._judge_delivery(event)
        shard = self.history.shards[event.key]
        after = bisect_right(shard.sequences, event.numbers[-1])
        if after == len(shard.sequences) or shard.arrivals_ms[after] >= self._enough_ms(event.key):
            self._away.add(event.reader)

    def _judge_delivery(self, event: reading.RecordsDelivered) -> None:
        key, sequences = event.key, event.numbers
        reader = self.history.readers.get(event.reader)
        if reader is None or not (reader.deliveries or reader.position.is_record):
            return
        shard, row = self.history.shards[key], self.history.rows.get(key)
        begins_in_doubt = not reader.deliveries and event.reader in self._doubtful
        if begins_in_doubt or (self.history.kcl_workers and row is not None and row.has_foreign_checkpoint):
            return  # no row shows that a reader was at the tip since: an empty shard is then a possible loss
        if not reader.position.is_record and event.reader not in self._away:
            return  # it warns, since it began with the oldest records and has not got away from the trim horizon
        gap = [
            number for number in shard.sequences[reader.next_index : shard.trimmed] if number < sequences[-1]
        ]
        silent = self._first_silent(key, sorted(set(gap).difference(sequences)))
        if silent is not None:
            raise Broken(
                f"{event.who} goes on in {key} at {sequences[0]} and does not report {silent}, which is gone unread"
            )


class OnlyFailuresAreGivenUp(Checker):
    """S1: a record goes to the dead letters only after the handler failed on it alone."""

    invariant = "S1"

    def _begin(self) -> None:
        self._failed_alone: set[tuple[str, str, int]] = set()

    def _on_handler_raised(self, event: reading.HandlerRaised) -> None:
        if len(event.numbers) == 1:
            self._failed_alone.add((event.who, event.key, event.numbers[0]))

    def _on_records_dead_lettered(self, event: reading.RecordsDeadLettered) -> None:
        for number in event.numbers:
            if (event.who, event.key, number) not in self._failed_alone:
                raise Broken(f"{event.who} gives up {number} of {event.key}, which did not fail alone")
