"""What is sent next, and what an answer means: the state batcher behind the producer and the Spark sink.

It is fed with records, shard maps and answers, and says what to do: send this request, fetch the shard map, wait. It
does nothing itself; time and chance are arguments. One batcher serves one stream.

Records wait in one queue per predicted shard. With `ordering="key"` a queue has at most one request in flight, and a
request holds of each queue only what the service may accept in any order: one aggregate, or one record of each key.
What was refused goes back to the front, so the later records of its key stay behind it. With `ordering="none"` neither
rule holds.

A changed shard map moves records to other queues. It is taken over only while nothing is in flight, and everything that
waits is dealt out again in the order of arrival; so order per key survives a reshard.

Source:
    Kinesis API reference, PutRecords: entries of one call are accepted or refused one by one, in no promised order.
    The KCL drops an aggregate as a whole when one of its user records lies outside the shard's hash range.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from penstock.core.backoff import Backoff
from penstock.core.hash_key import HashRange
from penstock.core.limits import RECORD_DEFAULT_BYTES_MAX
from penstock.core.put_entry import PutAnswer
from penstock.core.service_codes import kind_of
from penstock.core.shard import Shard
from penstock.core.shard_graph import HashRouter
from penstock.core.writing.batcher_steps import (
    BatcherSettings,
    DeliveredEntry,
    Failure,
    FetchShards,
    PutRequest,
    PutResult,
    RefusedEntry,
    Step,
    Stuck,
    WaitUntil,
)
from penstock.core.writing.flow_control import ShardFlow
from penstock.core.writing.packing import PackedEntry, PendingRecord
from penstock.core.writing.shard_queue import ShardQueue
from penstock.errors import ResourceBusy, Throttled, Unavailable

_NO_ANSWER: Final = "NoAnswer"
"""Stands for the code of an entry that was neither accepted nor refused."""
_RETRIED: Final = (Throttled, Unavailable, ResourceBusy)
_UNKNOWN_CODES_MAX: Final = 8
"""An entry that is refused with codes that nobody has heard of is sent so often; then the refusal is final."""
_MAP_PAUSES: Final = Backoff(base_s=0.2, cap_s=30.0)
_UNPREDICTED: Final = ""
_MISPLACED_COUNT_MAX: Final = 2
_UNEXPLAINED_MAX: Final = 4
"""A listing may lag behind a reshard: so often it is asked again what shard took an aggregate, for three seconds in all,
before the aggregate counts as misplaced."""
_ROUTES_COUNT_MAX: Final = 16_384
"""Keys whose shard is remembered, of each kind."""


class Batcher:
    """One stream's waiting records. Not thread-safe: its owner holds a lock.

    Args:
        settings: How to work.
        predicts: Whether shards can be predicted; False where the service places records itself.
        record_bytes_max: The stream's limit on data and partition key.
        shard_count: Open shards, as far as they are known; counts where nothing can be predicted.
        ticket_bytes: What a ticket takes in memory; it counts with its record.
    """

    def __init__(
        self,
        settings: BatcherSettings,
        *,
        predicts: bool = True,
        record_bytes_max: int = RECORD_DEFAULT_BYTES_MAX,
        shard_count: int = 1,
        ticket_bytes: int = 0,
    ) -> None:
        self.settings = settings
        self._ticket_bytes = ticket_bytes
        self._aggregate_bytes_max = min(settings.aggregate_bytes_max, record_bytes_max - 1)
        self._predicts = predicts
        self._shard_count = max(1, shard_count)
        self._aggregates = settings.aggregates and predicts
        self._router: HashRouter | None = None
        self._ranges: dict[str, HashRange] = {}
        self._queues: dict[str, ShardQueue] = {}
        self._active: dict[str, ShardQueue] = {}
        self._routes: dict[str, ShardQueue] = {}
        self._hash_key_routes: dict[str, ShardQueue] = {}
        self._unrouted: deque[PendingRecord] = deque()
        self._unjudged: list[tuple[PackedEntry, str, str]] = []
        self._map_wish: FetchShards | None = (
            FetchShards("no shard map yet", is_whole=False) if predicts else None
        )
        self._map_asked = False
        self._map_failures = 0
        self._map_failing_s: float | None = None
        self._map_ready_s = float("-inf")
        self._map_s = float("-inf")
        self._missing: set[str] = set()
        self._unexplained_count = 0
        self._in_flight = 0
        self._number = 0
        self.waiting_count = 0
        self.waiting_bytes = 0
        self._full_bytes = 0
        self.last_error = ""

    # --- records in ---------------------------------------------------------------------------------------

    def add(
        self,
        data: bytes,
        partition_key: str,
        explicit_hash_key: str | None,
        now_s: float,
        ticket: Any = None,
    ) -> bool:
        """Take one checked record; says whether a queue was empty before it, or has become full.

        Args:
            data: The payload.
            partition_key: Its key.
            explicit_hash_key: Decimal text, or None.
            now_s: When it came.
            ticket: Given back with its acknowledgement.
        """
        self._number += 1
        record = PendingRecord(data, partition_key, explicit_hash_key, self._number, now_s, ticket)
        self.waiting_count += 1
        self.waiting_bytes += record.memory_bytes + self._ticket_bytes
        return self._place(record, now_s)

    def _place(self, record: PendingRecord, now_s: float) -> bool:
        queue = self._queue_of(record)
        if queue is None:
            self._unrouted.append(record)
            return len(self._unrouted) == 1
        was_empty, was_full = not queue.count, queue.is_full
        queue.add(record)
        if was_empty:
            queue.waits_since_s = now_s
            if not queue.in_flight:
                queue.progress_s = now_s
            self._active[queue.shard_id] = queue
        if was_full:
            self._full_bytes += record.size_bytes
            return False
        if queue.is_full:
            self._full_bytes += queue.size_bytes
            return True
        return was_empty

    def _queue_of(self, record: PendingRecord) -> ShardQueue | None:
        """Give the queue of a record's shard; None before the first shard map."""
        if not self._predicts:
            return self._queue(_UNPREDICTED)
        if self._router is None:
            return None
        # Most streams have few keys beside their records: half of what a record costs is finding its shard.
        keys = record.explicit_hash_key or record.partition_key
        routes = self._routes if record.explicit_hash_key is None else self._hash_key_routes
        queue = routes.get(keys)
        if queue is None:
            shard_id = self._router.predict_shard(record.partition_key, record.explicit_hash_key)
            if len(routes) >= _ROUTES_COUNT_MAX:
                routes.clear()
            queue = routes[keys] = self._queue(shard_id or _UNPREDICTED)
        return queue

    def _queue(self, shard_id: str) -> ShardQueue:
        queue = self._queues.get(shard_id)
        if queue is None:
            settings = self.settings
            # Where the shard is not known an aggregate could lie in no shard's range: its records go alone.
            queue = self._queues[shard_id] = ShardQueue(
                shard_id,
                ShardFlow(settings.rate_max, float(1 if shard_id else self._shard_count)),
                aggregates=self._aggregates and shard_id != _UNPREDICTED,
                keeps_key_order=settings.keeps_key_order,
                aggregate_bytes_max=self._aggregate_bytes_max,
                aggregate_count_max=settings.aggregate_count_max,
            )
        return queue

    @property
    def last_number(self) -> int:
        """The number of the record that came last."""
        return self._number

    @property
    def full_bytes(self) -> int:
        """Bytes that wait in queues with at least one full aggregate; without aggregation, all that wait."""
        return self._full_bytes

    @property
    def in_flight_count(self) -> int:
        """Requests that were given out and not answered."""
        return self._in_flight

    @property
    def aggregates(self) -> bool:
        """Whether records are packed into aggregates."""
        return self._aggregates

    # --- what to do next ----------------------------------------------------------------------------------

    def plan_step(self, now_s: float, *, flushes: bool = False) -> Step:
        """Say what to do now.

        Args:
            now_s: Now.
            flushes: Send also what could still wait for company.
        """
        if self._map_wish is None and self._predicts and now_s - self._map_s > self.settings.map_age_max_s:
            self._map_wish = FetchShards("the shard map is old", is_whole=False)
        if self._map_wish is not None:
            step = self._plan_map(self._map_wish, now_s)
            if step is not None:
                return step
        return self._plan_request(now_s, flushes=flushes)

    def _plan_map(self, wish: FetchShards, now_s: float) -> Step | None:
        if self.waiting_count == 0:
            return WaitUntil(None, "nothing waits")
        if self._map_asked:
            return WaitUntil(None, "the shard map is being fetched")
        is_needed = self._router is None or bool(self._unjudged)
        failing_s = 0.0 if self._map_failing_s is None else now_s - self._map_failing_s
        if is_needed and failing_s > self.settings.no_progress_deadline_s:
            return Stuck(f"the shards could not be listed for {failing_s:.0f} s; last: {self.last_error}")
        if now_s < self._map_ready_s:
            return (
                WaitUntil(self._map_ready_s, "the shard map is asked for again later") if is_needed else None
            )
        if self._in_flight:
            return WaitUntil(None, "the shard map changes when nothing is in flight")
        self._map_asked = True
        return wish

    def _plan_request(self, now_s: float, *, flushes: bool) -> Step:
        settings = self.settings
        entries: list[PackedEntry] = []
        size_bytes = 0
        until_s: float | None = None
        takes_all = flushes or (not self._aggregates and self._is_request_full())
        used: list[ShardQueue] = []
        for queue in self._active.values():
            if len(entries) >= settings.request_record_count_max:
                break
            if queue.in_flight and settings.keeps_key_order:
                continue
            if now_s - queue.progress_s > settings.no_progress_deadline_s:
                return Stuck(
                    f"nothing was acknowledged by shard {queue.shard_id or '(unknown)'} for "
                    f"{now_s - queue.progress_s:.0f} s; last: {self.last_error or 'no answer yet'}"
                )
            due_s = queue.due_s(now_s, settings.linger_s, takes_all=takes_all)
            if due_s > now_s:
                until_s = due_s if until_s is None else min(until_s, due_s)
                continue
            taken = queue.take(
                settings.request_record_count_max - len(entries), settings.request_bytes_max - size_bytes
            )
            if taken:
                size_bytes += sum(entry.size_bytes for entry in taken)
                entries += taken
                used.append(queue)
                queue.in_flight += 1
                queue.waits_since_s = now_s
                queue.flow.note_sent(sum(entry.cost_s for entry in taken), now_s)
        if not entries:
            return WaitUntil(until_s, "every shard is in flight, paused or lingering")
        # Whoever was served goes to the end: no queue starves where a request cannot take all.
        for queue in used:
            del self._active[queue.shard_id]
            if queue:
                self._active[queue.shard_id] = queue
        self._recount_full()
        self._in_flight += 1
        return PutRequest(entries)

    def _is_request_full(self) -> bool:
        ready = 0
        for queue in self._active.values():
            ready += queue.ready_count
            if ready >= self.settings.request_record_count_max:
                return True
        return False

    def _recount_full(self) -> None:
        self._full_bytes = sum(queue.size_bytes for queue in self._active.values() if queue.is_full)

    # --- answers ------------------------------------------------------------------------------------------

    def on_answers(
        self, request: PutRequest, answers: Sequence[PutAnswer], now_s: float, u: float
    ) -> PutResult:
        """Learn what the service said of each entry.

        Args:
            request: What `plan_step` gave.
            answers: One for each entry, in order.
            now_s: When the answer came.
            u: Drawn evenly from [0, 1), for the pauses.
        """
        request.is_settled = True
        result = PutResult()
        by_shard: dict[str, _QueueResult] = {}
        for entry, answer in zip(request.entries, answers, strict=True):
            shard_id = entry.shard_id or _UNPREDICTED
            tally = by_shard.get(shard_id)
            if tally is None:
                tally = by_shard[shard_id] = _QueueResult()
            if answer.error_code is not None or answer.shard_id is None or answer.sequence_number is None:
                self._on_entry_error(entry, answer, tally, result)
            else:
                tally.accepted_cost += entry.cost_s
                self._on_accepted(entry, answer.shard_id, answer.sequence_number, result)
        for shard_id, tally in by_shard.items():
            queue = self._release(shard_id)
            if tally.accepted_cost:
                queue.progress_s = now_s
                queue.flow.note_accepted(tally.accepted_cost, now_s)
            if tally.throttled:
                result.pauses[shard_id] = queue.flow.note_refused(now_s, u)
            elif tally.back:
                result.pauses[shard_id] = queue.flow.note_failed(now_s, u)
            self._put_back(queue, tally.back)
        self._in_flight -= 1
        self._recount_full()
        return result

    def on_failed_call(
        self, request: PutRequest, failure: Failure, why: str, now_s: float, u: float
    ) -> PutResult:
        """Learn that the whole request got no answer for its entries; all of it is sent again."""
        request.is_settled = True
        result = PutResult(retried={failure.name.lower(): len(request.entries)})
        self.last_error = why
        if failure is Failure.UNKNOWN:
            result.possible_duplicate_count = request.user_record_count
        for shard_id, entries in _by_shard(request.entries).items():
            queue = self._release(shard_id)
            note = queue.flow.note_refused if failure is Failure.THROTTLED else queue.flow.note_failed
            result.pauses[shard_id] = note(now_s, u)
            self._put_back(queue, entries)
        self._in_flight -= 1
        self._recount_full()
        return result

    def drop_request(self, request: PutRequest) -> list[PendingRecord]:
        """Learn that a request was refused for good; give its records back (none when its answers are known)."""
        if request.is_settled:
            return []
        request.is_settled = True
        for shard_id in _by_shard(request.entries):
            self._release(shard_id)
        for entry in request.entries:
            self._forget(entry)
        self._in_flight -= 1
        return [record for entry in request.entries for record in entry.records]

    def drop_all(self) -> list[PendingRecord]:
        """Give up everything that waits (not what is in flight), in the order of arrival."""
        records = self._drain() + [record for entry, _, _ in self._unjudged for record in entry.records]
        self._unjudged.clear()
        for record in records:
            self.waiting_count -= 1
            self.waiting_bytes -= record.memory_bytes + self._ticket_bytes
        return records

    def drop_expired(self, came_before_s: float) -> list[PendingRecord]:
        """Give up what has waited since before a moment (not what is in flight), in the order of arrival.

        Every record that waits is looked at, so ask at ease.
        """
        kept: list[PendingRecord] = []
        expired: list[PendingRecord] = []
        progress_s = {shard_id: queue.progress_s for shard_id, queue in self._active.items()}
        waits_since_s = {shard_id: queue.waits_since_s for shard_id, queue in self._active.items()}
        for record in self._drain():
            (expired if record.came_s < came_before_s else kept).append(record)
        for record in kept:
            self._place(record, record.came_s)
        for shard_id, queue in self._active.items():
            queue.progress_s = progress_s.get(shard_id, queue.progress_s)
            queue.waits_since_s = waits_since_s.get(shard_id, queue.waits_since_s)
        for record in expired:
            self.waiting_count -= 1
            self.waiting_bytes -= record.memory_bytes + self._ticket_bytes
        return expired

    def _on_entry_error(
        self, entry: PackedEntry, answer: PutAnswer, tally: _QueueResult, result: PutResult
    ) -> None:
        code = answer.error_code or _NO_ANSWER
        self.last_error = f"{code} {answer.error_message}".strip()
        kind = kind_of(code)
        if kind is None:
            entry.unknown_code_count += 1
        if kind not in _RETRIED and (kind is not None or entry.unknown_code_count >= _UNKNOWN_CODES_MAX):
            self._forget(entry)
            result.refused.append(RefusedEntry(entry, self.last_error))
            return
        if code == _NO_ANSWER:
            result.possible_duplicate_count += len(entry.records)
        tally.back.append(entry)
        tally.throttled = tally.throttled or kind is Throttled
        result.retried[code] = result.retried.get(code, 0) + 1

    def _on_accepted(
        self, entry: PackedEntry, shard_id: str, sequence_number: str, result: PutResult
    ) -> None:
        if self._predicts and shard_id != entry.shard_id:
            known = self._ranges.get(shard_id)
            if known is None or entry.is_aggregate:
                self._wish_map(f"shard {shard_id} answered for {entry.shard_id or 'an unknown one'}")
                self._missing.add(shard_id)
            if entry.is_aggregate:
                # Its records stay counted as waiting until the map tells whether readers will see them.
                self._unjudged.append((entry, shard_id, sequence_number))
                return
        self._forget(entry)
        result.delivered.append(DeliveredEntry(entry, shard_id, sequence_number))

    def _wish_map(self, why: str) -> None:
        if self._map_wish is None:
            self._map_wish = FetchShards(why, is_whole=True)

    def _release(self, shard_id: str) -> ShardQueue:
        queue = self._queues[shard_id]
        queue.in_flight -= 1
        return queue

    def _put_back(self, queue: ShardQueue, entries: list[PackedEntry]) -> None:
        if entries:
            queue.put_back(entries)
            self._active[queue.shard_id] = queue

    def _forget(self, entry: PackedEntry) -> None:
        for record in entry.records:
            self.waiting_count -= 1
            self.waiting_bytes -= record.memory_bytes + self._ticket_bytes

    # --- the shard map ------------------------------------------------------------------------------------

    def learn_shards(
        self, shards: Iterable[Shard], now_s: float, *, aggregates: bool | None = None
    ) -> PutResult:
        """Take over a shard map; only after `FetchShards`, when nothing is in flight.

        Args:
            shards: As listed; closed ones may be among them.
            now_s: Now.
            aggregates: False switches aggregation off for good, for a stream that places records itself since.

        Returns:
            Aggregates that landed elsewhere and whose readers see them whole are delivered; the others wait again, all
            of their records, and count as possible duplicates.
        """
        if self._in_flight:
            raise AssertionError("the shard map changed under a request")
        listed = list(shards)
        self._ranges.update((shard.shard_id, shard.hash_range) for shard in listed)
        self._router = HashRouter(shard for shard in listed if shard.is_open)
        self._map_s = now_s
        self._map_asked = False
        self._map_wish = None
        self._map_failing_s = None
        self._missing |= {shard_id for _, shard_id, _ in self._unjudged}
        self._missing -= self._ranges.keys()
        # A listing may lag behind a reshard: what it does not explain is asked again, ever more rarely.
        self._map_failures = self._map_failures + 1 if self._missing else 0
        if self._missing:
            self._map_ready_s = now_s + _MAP_PAUSES.bound_s(self._map_failures)
            self._missing.clear()
        if aggregates is False:
            self._aggregates = False
        unlisted = next((shard_id for _, shard_id, _ in self._unjudged if shard_id not in self._ranges), None)
        if unlisted is not None and self._unexplained_count < _UNEXPLAINED_MAX:
            self._unexplained_count += 1
            self._map_wish = FetchShards(f"shard {unlisted} is in no listing yet", is_whole=True)
            return PutResult()
        self._unexplained_count = 0
        return self._deal_out(now_s, set(self._router.shard_ids))

    def forgo_map(self, now_s: float) -> PutResult:
        """Go on without a shard map, where listing is not permitted: no aggregates, one queue for all shards."""
        self._predicts = self._aggregates = self._map_asked = False
        self._router = self._map_wish = None
        return self._deal_out(now_s, set())

    def _deal_out(self, now_s: float, shard_ids: set[str]) -> PutResult:
        result = self._judge()
        progress_s = {shard_id: queue.progress_s for shard_id, queue in self._active.items()}
        records = self._drain()
        keep = shard_ids | {_UNPREDICTED}
        old = {shard_id: queue for shard_id, queue in self._queues.items() if shard_id in keep}
        self._queues.clear()
        self._routes.clear()
        self._hash_key_routes.clear()
        for shard_id, queue in old.items():
            self._queue(shard_id).flow = queue.flow
        for record in records:
            self._place(record, now_s)
        for shard_id in progress_s.keys() & self._active.keys():
            # A shard that accepted nothing for long does not get a new deadline by a new listing.
            self._active[shard_id].progress_s = progress_s[shard_id]
        return result

    def note_map_failure(self, why: str, now_s: float, u: float) -> None:
        """Learn that the shard map could not be fetched; it is asked for again after a pause."""
        self._map_asked = False
        self._map_failures += 1
        self._map_failing_s = now_s if self._map_failing_s is None else self._map_failing_s
        self.last_error = why
        self._map_ready_s = now_s + _MAP_PAUSES.delay_s(self._map_failures, u)

    def _judge(self) -> PutResult:
        result = PutResult()
        again: list[PendingRecord] = []
        for entry, shard_id, sequence_number in self._unjudged:
            hash_range = self._ranges.get(shard_id)
            if hash_range is not None and all(record.lies_in(hash_range) for record in entry.records):
                self._forget(entry)
                result.delivered.append(DeliveredEntry(entry, shard_id, sequence_number))
                continue
            for record in entry.records:
                # Where the map cannot explain the answer, twice at the latest, a plain record cannot go wrong.
                record.misplaced_count += 1
                record.is_solo = hash_range is None or record.misplaced_count >= _MISPLACED_COUNT_MAX
            again += entry.records
        self._unjudged.clear()
        if again:
            result.possible_duplicate_count = len(again)
            result.retried["misplaced"] = len(again)
            self._unrouted.extendleft(reversed(again))
        return result

    def _drain(self) -> list[PendingRecord]:
        records = list(self._unrouted)
        self._unrouted.clear()
        for queue in self._queues.values():
            records += queue.drain()
        self._active.clear()
        self._full_bytes = 0
        records.sort(key=lambda record: record.number)
        return records


@dataclass(slots=True)
class _QueueResult:
    """What one request did to one queue."""

    accepted_cost: float = 0.0
    throttled: bool = False
    back: list[PackedEntry] = field(default_factory=list)


def _by_shard(entries: Collection[PackedEntry]) -> dict[str, list[PackedEntry]]:
    queues: dict[str, list[PackedEntry]] = {}
    for entry in entries:
        queues.setdefault(entry.shard_id or _UNPREDICTED, []).append(entry)
    return queues
