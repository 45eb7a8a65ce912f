"""Checkers of queries whose records retention has removed: a report if some were unread, and no alarm if none were."""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right
from typing import Final

from penstock.core.position import Position
from penstock_sim.checker import Broken
from penstock_sim.events import leases, processes, queries, reading, streams
from penstock_sim.events.base import name_of
from penstock_sim.loss_checkers import SLACK_MS, LossesReported

_SHARD: Final = re.compile(r"shardId-\d+")
_GOES_ON: Final = ("failOnDataLoss=false", "It goes on, since", "going on with the shards that are left")


class QueryLossesReported(LossesReported):
    """S9: a batch that skips records which left the stream unread reports a loss, unless its driver was at the tip since.

    The plain workers beside the queries are judged as always; they need not repeat a query's report.
    """

    def _begin(self) -> None:
        super()._begin()
        self._trims: dict[str, list[tuple[float, int]]] = {}
        self._probed: dict[tuple[str, str], int] = {}
        """Moment at which a driver last found no more records, by driver and shard."""
        self._starts: dict[tuple[str, int], dict[str, Position]] = {}
        self._planners: dict[tuple[str, int], str] = {}
        """The driver that planned a batch. Another driver may run it, and has none of the first one's probes."""
        self._begun_s: dict[tuple[str, int, str], float] = {}
        self._attempts: dict[str, dict[tuple[str, int, str], None]] = {}
        self._committed: set[tuple[str, int]] = set()

    # --- known positions ----------------------------------------------------------------------------------

    def _on_records_trimmed(self, event: streams.RecordsTrimmed) -> None:
        self._trims.setdefault(event.key, []).append((self.history.now, event.count))

    def _on_tip_probed(self, event: queries.TipProbed) -> None:
        """Remember when a driver was at the tip.

        If the last record has left the stream, an empty answer shows that only to a driver that was at the tip before.
        """
        key, server_ms = event.key, event.server_ms
        shard, retention_ms = self.history.shards[key], self.history.retention_ms or 0
        was_there = self._probed.get((event.who, key), 0) >= server_ms - retention_ms + SLACK_MS
        if was_there or shard.trimmed < bisect_right(shard.arrivals_ms, server_ms):
            self._probed[event.who, key] = server_ms

    def _on_coordinator_reported(self, event: processes.CoordinatorReported) -> None:
        """Forget when a driver was at the tip of a lease that it has lost or released: the next owner begins at the row."""
        super()._on_coordinator_reported(event)
        if event.topic in {"LOST", "RELEASED"}:
            places = [
                place for place in self._probed if place[0] == event.who and event.key in (None, place[1])
            ]
            for place in places:
                del self._probed[place]

    def _on_reader_started(self, event: reading.ReaderStarted) -> None:
        """Forget the probes of a lease: when it returns, its driver has none of their answers."""
        super()._on_reader_started(event)
        self._probed.pop((event.who, event.key), None)

    def _on_batch_planned(self, event: queries.BatchPlanned) -> None:
        who = event.who
        self._starts[name_of(who), event.batch] = dict(event.starts)
        self._planners[name_of(who), event.batch] = who

    def _on_read_task_started(self, event: queries.ReadTaskStarted) -> None:
        self._begun_s.setdefault((name_of(event.who), event.batch, event.key), self.history.now)
        self._attempts.setdefault(event.executor, {})[event.who, event.batch, event.key] = None

    def _on_read_task_ended(self, event: queries.ReadTaskEnded) -> None:
        self._attempts.get(event.executor, {}).pop((event.who, event.batch, event.key), None)

    def _on_lease_deleted(self, event: leases.LeaseDeleted) -> None:
        """Forget when the shard's readers were at the tip: the recreated row does not show it."""
        self._probed = {place: at_ms for place, at_ms in self._probed.items() if place[1] != event.key}

    def _on_batch_unread(self, event: queries.BatchUnread) -> None:
        self._forget_tips(event.query, event.keys)

    def _forget_tips(self, name: str, keys: tuple[str, ...]) -> None:
        for place in [place for place in self._probed if name_of(place[0]) == name and place[1] in keys]:
            del self._probed[place]

    # --- reports ------------------------------------------------------------------------------------------

    def _on_message_logged(self, event: processes.MessageLogged) -> None:
        text = event.text
        key = _SHARD.search(text)
        if key is not None and any(words in text for words in _GOES_ON):
            self._add_reported(key[0], event.who, -1, self._lost(key[0]))
            self._judge(event.who, key[0], text)

    def _on_read_task_failed(self, event: queries.ReadTaskFailed) -> None:
        key = _SHARD.search(event.text)
        if key is not None and event.error == "DataLossError":
            self._judge(event.executor, key[0], event.text)

    def _judge(self, executor: str, key: str, text: str) -> None:
        shard = self.history.shards[key]
        if self.history.retention_ms is None or not (shard.trimmed or shard.is_expired):
            raise Broken(f"{executor} speaks of a loss, and nothing has left {key}: {text}")
        readers = [place for place in self._attempts.get(executor, ()) if place[2] == key]
        if shard.is_expired or self._lost(key) or len(readers) != 1:
            return
        driver, batch, _ = readers[0]
        tip_ms = self._probed.get((driver, key), 0)
        is_own = self._planners.get((name_of(driver), batch)) == driver
        if is_own and (name_of(driver), batch) not in self._committed and tip_ms >= self._enough_ms(key):
            raise Broken(f"{driver} was at the tip of {key} at {tip_ms}, and its task reports a loss: {text}")

    # --- skipped records ----------------------------------------------------------------------------------

    def _on_batch_committed(self, event: queries.BatchCommitted) -> None:
        name, batch = event.query, event.batch
        self._committed.add((name, batch))
        starts = self._starts.get((name, batch), {})
        for key, rows in event.results:
            start = starts.get(key)
            if rows and start is not None and start.is_record and name not in self.history.copied:
                self._judge_gap(name, batch, key, start, rows[0])
        self._forget_tips(name, tuple(key for key, rows in event.results if rows))

    def _judge_gap(self, name: str, batch: int, key: str, start: Position, first: int) -> None:
        shard = self.history.shards[key]
        begin = self.history.index_after(key, start)
        noticed_s = self._begun_s.get((name, batch, key), 0.0)
        trimmed = max((count for at_s, count in self._trims.get(key, ()) if at_s < noticed_s), default=0)
        gap = shard.sequences[begin : min(trimmed, bisect_left(shard.sequences, first))]
        silent = self._first_silent(key, gap)
        if silent is not None:
            raise Broken(
                f"batch {batch} of {name} goes on in {key} at {first} and does not report {silent}, which is gone unread"
            )
