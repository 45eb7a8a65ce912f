"""Plan requests and handle their answers: the state machine behind the producer and the Spark sink.

A batcher serves one stream. It is fed records, listings of the shards and answers, and plans the next step: send this
request, list the shards, wait. It does nothing itself; time and chance are arguments.

Records wait in one queue per predicted shard. With `ordering="key"` a queue has at most one request in flight. A
request takes from a queue only records that the service may accept in any order: one aggregate, or one record of each key.
Refused entries return to the front, so later records of their keys stay after them. With `ordering="none"` neither
rule holds.

A changed shard map moves records to other queues. It is applied only while nothing is in flight; all pending
records are then distributed again in the order of arrival, so the order per key survives a reshard.

Source:
    Kinesis API reference, PutRecords: entries of one call are accepted or refused one by one, in no promised order.
    The KCL drops an aggregate as a whole when one of its user records lies outside the shard's hash range.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Final

from msgspec import Struct, field

from penstock.core.limits import RECORD_DEFAULT_BYTES_MAX
from penstock.core.put_entry import EntryAnswer
from penstock.core.service_codes import kind_of
from penstock.core.shard import Shard
from penstock.core.writing.batcher_steps import (
    BatcherSettings,
    DeliveredEntry,
    NoProgress,
    PutRequest,
    PutResult,
    RefusedEntry,
    RequestFailure,
    Step,
    WaitUntil,
)
from penstock.core.writing.flow_control import ShardFlow
from penstock.core.writing.packing import HASH_KEY_BYTES, RECORD_OVERHEAD_BYTES, PackedEntry, PendingRecord
from penstock.core.writing.shard_map import ShardMap
from penstock.core.writing.shard_queue import ShardQueue
from penstock.errors import ResourceBusy, Throttled, Unavailable

_NO_ANSWER: Final = "NoAnswer"
"""Used as the error code of an entry that was neither accepted nor refused."""
_RETRIED_ERRORS: Final = (Throttled, Unavailable, ResourceBusy)
_UNKNOWN_CODES_MAX: Final = 8
"""An entry that is refused with unknown error codes is sent this often; then the refusal is final."""
_UNPREDICTED: Final = ""
_MISPLACED_COUNT_MAX: Final = 2
_ROUTES_COUNT_MAX: Final = 16_384
"""Most remembered partition keys, and most remembered explicit hash keys, each with the queue of its shard."""


class Batcher:
    """One stream's pending records. Not thread-safe: its owner holds a lock.

    Args:
        predicts: Whether shards can be predicted; False if the service places records itself.
        record_bytes_max: The stream's limit on data and partition key.
        shard_count: Open shards, as far as they are known; used if shards cannot be predicted.
        extra_bytes: Memory that the owner keeps for each record, which counts with the record.
    """

    def __init__(
        self,
        settings: BatcherSettings,
        *,
        predicts: bool = True,
        record_bytes_max: int = RECORD_DEFAULT_BYTES_MAX,
        shard_count: int = 1,
        extra_bytes: int = 0,
    ) -> None:
        self.settings = settings
        self._overhead_bytes = RECORD_OVERHEAD_BYTES + extra_bytes
        self._aggregate_bytes_max = min(settings.aggregate_bytes_max, record_bytes_max - 1)
        self._shard_count = max(1, shard_count)
        self.aggregates: bool = settings.aggregates and predicts
        """Whether records are packed into aggregates."""
        self._map = ShardMap(
            predicts=predicts,
            age_max_s=settings.map_age_max_s,
            deadline_s=settings.no_progress_deadline_s,
        )
        self._queues: dict[str, ShardQueue] = {}  # by shard
        self._active: dict[str, ShardQueue] = {}  # those with records, the next to be served in front
        self._routes: dict[str, ShardQueue] = {}  # by partition key
        self._hash_key_routes: dict[str, ShardQueue] = {}  # by explicit hash key
        self._unrouted: deque[PendingRecord] = deque()  # records that wait for the first listing
        self._misrouted: list[DeliveredEntry] = []
        """Aggregates that were accepted by a shard other than the predicted one; the next listing decides whether they are sent again."""
        self._in_flight = 0
        self.last_number: int = 0
        """The number of the latest record."""
        self.waiting_count = 0
        self.waiting_bytes = 0
        self.full_bytes: int = 0
        """Bytes that wait in queues with at least one full aggregate; without aggregation, all that wait."""
        self._planned_s = -math.inf  # the last request
        self.last_error = ""

    # --- records in ---------------------------------------------------------------------------------------

    def add(self, data: bytes, partition_key: str, explicit_hash_key: str | None, now_s: float) -> bool:
        """Add one checked record; return whether its queue was empty before, or has become full: then a step may be due.

        Args:
            explicit_hash_key: Decimal text, or None.
            now_s: When the record was put.
        """
        return self.add_record(PendingRecord(data, partition_key, explicit_hash_key), now_s)

    def add_record(self, record: PendingRecord, now_s: float) -> bool:
        """Add a record that the caller has created, and set its number and its time; return as `add`."""
        self.last_number += 1
        record.number = self.last_number
        record.put_s = now_s
        self.waiting_count += 1
        self.waiting_bytes += record.size_bytes + self._overhead_bytes
        if record.explicit_hash_key is not None:
            self.waiting_bytes += HASH_KEY_BYTES
        return self._place(record, now_s)

    def take_back(self, record: PendingRecord, requests: Iterable[PutRequest]) -> None:
        """Undo an `add_record` that was interrupted at any point.

        Args:
            record: The record, which is not sent any more unless a request has taken it.
            requests: All planned requests; those that have ended are ignored.
        """
        kept, _ = self._drop_matching(lambda each: each is record)
        entries = [entry for request in requests if not request.is_ended for entry in request.entries]
        entries += [each.entry for each in self._misrouted]
        # Whether it is counted is not known, so all are counted again.
        self.waiting_count = self.waiting_bytes = 0
        self._count([*kept, *(each for entry in entries for each in entry.records)])
        self._check_counts()

    def _place(self, record: PendingRecord, now_s: float) -> bool:
        """Add a record to the queue of its shard; return as `add`."""
        # The queue of each key is kept: most streams have many records per key, and to predict the shard for each record would
        # double its cost.
        if record.explicit_hash_key is None:
            key, routes = record.partition_key, self._routes
        else:
            key, routes = record.explicit_hash_key, self._hash_key_routes
        queue = routes.get(key)
        if queue is None:
            if self._map.predicts and self._map.router is None:
                self._unrouted.append(record)
                return len(self._unrouted) == 1
            if len(routes) >= _ROUTES_COUNT_MAX:
                routes.clear()
            queue = routes[key] = self._queue_of(self._predict_shard(record))
        was_empty, was_full = not queue.count, queue.aggregates and queue.is_full
        queue.add(record)
        if was_empty:
            queue.waits_since_s = now_s
            if not queue.in_flight:
                queue.tried_s = None
            self._active[queue.shard_id] = queue
        if was_full or not queue.aggregates:
            self.full_bytes += record.size_bytes
        elif queue.is_full:
            self.full_bytes += queue.size_bytes
            return True
        return was_empty

    def _predict_shard(self, record: PendingRecord) -> str:
        router = self._map.router
        if router is None:
            return _UNPREDICTED
        return router.predict_shard(record.partition_key, record.explicit_hash_key) or _UNPREDICTED

    def _queue_of(self, shard_id: str) -> ShardQueue:
        queue = self._queues.get(shard_id)
        if queue is None:
            settings = self.settings
            # If the shard is not known, an aggregate might fit into no shard's range: its records are sent one by one.
            queue = self._queues[shard_id] = ShardQueue(
                shard_id,
                ShardFlow(settings.rate_max, float(1 if shard_id else self._shard_count), settings.is_brief),
                aggregates=self.aggregates and shard_id != _UNPREDICTED,
                keeps_key_order=settings.keeps_key_order,
                aggregate_bytes_max=self._aggregate_bytes_max,
                aggregate_count_max=settings.aggregate_count_max,
            )
        return queue

    # --- planning -----------------------------------------------------------------------------------------

    def plan_step(self, now_s: float, *, flushes: bool = False) -> Step:
        """Plan the next step.

        Args:
            flushes: Send also records that could still linger.
        """
        if not self.waiting_count:
            return WaitUntil(None, "no record waits")
        step = self._map.plan_listing(now_s, self._in_flight, is_needed=bool(self._misrouted))
        if step is not None:
            return step
        gather_until_s = self._planned_s + self.settings.gather_s
        if now_s < gather_until_s and self._has_pause_and_room(now_s):
            return WaitUntil(gather_until_s, "some shards pause, and the rest fills no request")
        return self._plan_request(now_s, flushes=flushes)

    def _plan_request(self, now_s: float, *, flushes: bool) -> Step:
        """Plan a request from the queues that are due, in turn; if none is, wait. If a queue made no progress, return that."""
        settings = self.settings
        entries: list[PackedEntry] = []
        size_bytes = 0
        until_s: float | None = None
        takes_all = flushes or (not self.aggregates and self._can_fill_request())
        used: list[ShardQueue] = []
        for queue in self._active.values():
            if len(entries) >= settings.request_record_count_max:
                break
            if queue.in_flight and settings.keeps_key_order:
                continue
            if queue.failing_s > settings.no_progress_deadline_s:
                return NoProgress(
                    f"nothing was acknowledged by shard {queue.shard_id or '(unknown)'} for "
                    f"{queue.failing_s:.0f} s; last: {self.last_error}"
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
                queue.on_taken(now_s)
                queue.flow.on_sent(sum(entry.cost_s for entry in taken), now_s)
        if not entries:
            return WaitUntil(until_s, "every shard is in flight, paused or lingering")
        assert len(entries) <= settings.request_record_count_max
        assert size_bytes <= settings.request_bytes_max
        # Queues that were served go to the end: none starves if a request cannot take all.
        for queue in used:
            del self._active[queue.shard_id]
            if queue:
                self._active[queue.shard_id] = queue
        self._recount_full_bytes()
        self._in_flight += 1
        self._planned_s = now_s
        return PutRequest(entries, now_s)

    def _has_pause_and_room(self, now_s: float) -> bool:
        """Return whether a shard pauses and the others do not fill a request."""
        settings = self.settings
        count = size_bytes = 0.0
        has_pause = False
        for queue in self._active.values():
            if queue.flow.ready_s > now_s:
                has_pause = True
                continue
            count_here, bytes_here = queue.estimate_next_take()
            count += count_here
            size_bytes += bytes_here
            if count >= settings.request_record_count_max or size_bytes >= settings.request_bytes_max:
                return False
        return has_pause

    def _can_fill_request(self) -> bool:
        ready = 0
        for queue in self._active.values():
            ready += queue.ready_count
            if ready >= self.settings.request_record_count_max:
                return True
        return False

    def _recount_full_bytes(self) -> None:
        self.full_bytes = sum(queue.size_bytes for queue in self._active.values() if queue.is_full)

    # --- answers ------------------------------------------------------------------------------------------

    def on_answers(
        self, request: PutRequest, answers: Sequence[EntryAnswer], now_s: float, chance: float
    ) -> PutResult:
        """Handle the service's answer to each entry.

        Args:
            answers: One for each entry, in order.
        """
        assert len(answers) == len(request.entries), "each entry has an answer"
        self._end_request(request)
        result = PutResult()
        by_shard = self._sort_answers(request, answers, result)
        for shard_id, found in by_shard.items():
            queue = self._end_queue_request(shard_id)
            if found.accepted_cost_s:
                queue.tried_s = None
                queue.flow.on_accepted(found.accepted_cost_s, now_s)
            if found.is_throttled:
                result.pauses[shard_id] = queue.flow.on_refused(now_s, chance)
            elif found.entries_to_retry:
                result.pauses[shard_id] = queue.flow.on_failed(now_s, chance)
            if found.entries_to_retry:
                queue.failed_s = request.planned_s
            self._put_back(queue, found.entries_to_retry)
        self._check_counts()
        return result

    def on_failed_call(
        self, request: PutRequest, failure: RequestFailure, why: str, now_s: float, chance: float
    ) -> PutResult:
        """Handle a request without an answer; all of it is sent again."""
        self._end_request(request)
        result = PutResult(retry_counts={failure.name.lower(): len(request.entries)})
        self.last_error = why
        if failure is RequestFailure.UNKNOWN:
            result.possible_duplicate_count = request.user_record_count
        for shard_id, entries in _group_by_shard(request.entries).items():
            queue = self._end_queue_request(shard_id)
            on_failure = (
                queue.flow.on_refused if failure is RequestFailure.THROTTLED else queue.flow.on_failed
            )
            result.pauses[shard_id] = on_failure(now_s, chance)
            queue.failed_s = request.planned_s
            self._put_back(queue, entries)
        self._check_counts()
        return result

    def drop_request(self, request: PutRequest) -> list[PendingRecord]:
        """Handle a request that was refused finally; return its records, or none if its answers were handled before."""
        if request.is_ended:
            # Its answers were handled before its owner failed: its records have left the batcher, or they wait again.
            return []
        self._end_request(request)
        for shard_id in _group_by_shard(request.entries):
            self._end_queue_request(shard_id)
        records = [record for entry in request.entries for record in entry.records]
        self._uncount(records)
        self._check_counts()
        return records

    def drop_all(self) -> list[PendingRecord]:
        """Drop all waiting records; return them in the order of arrival. Records in flight stay."""
        records = self._drain_queues() + [record for each in self._misrouted for record in each.entry.records]
        self._misrouted.clear()
        self._uncount(records)
        self._check_counts()
        return records

    def drop_expired(self, put_before_s: float) -> list[PendingRecord]:
        """Drop waiting records that were put before a moment; return them in the order of arrival. Records in flight stay.

        Visits every waiting record, so it is too slow for every step.
        """
        _, expired = self._drop_matching(lambda record: record.put_s < put_before_s)
        self._uncount(expired)
        self._check_counts()
        return expired

    def _drop_matching(
        self, is_dropped: Callable[[PendingRecord], bool]
    ) -> tuple[list[PendingRecord], list[PendingRecord]]:
        """Drop records from the queues; return the remaining records, then the dropped ones, both in the order of arrival."""
        kept: list[PendingRecord] = []
        dropped: list[PendingRecord] = []
        # If some records of a silent shard expire, the others are placed again: that must not give them a new deadline.
        failing = {shard_id: (queue.tried_s, queue.failed_s) for shard_id, queue in self._active.items()}
        waits_since_s = {shard_id: queue.waits_since_s for shard_id, queue in self._active.items()}
        for record in self._drain_queues():
            (dropped if is_dropped(record) else kept).append(record)
        for record in kept:
            self._place(record, record.put_s)
        for shard_id, queue in self._active.items():
            queue.tried_s, queue.failed_s = failing.get(shard_id, (queue.tried_s, queue.failed_s))
            queue.waits_since_s = waits_since_s.get(shard_id, queue.waits_since_s)
        return kept, dropped

    def _end_request(self, request: PutRequest) -> None:
        assert not request.is_ended, "a request is answered once"
        request.is_ended = True
        self._in_flight -= 1

    def _on_entry_error(
        self, entry: PackedEntry, answer: EntryAnswer, queue_result: _QueueResult, result: PutResult
    ) -> None:
        """Handle an entry that was refused or not answered: it is sent again, or refused finally by its error code."""
        code = answer.error_code or _NO_ANSWER
        self.last_error = f"{code} {answer.error_message or ''}".strip()
        kind = kind_of(code)
        if kind is None:
            entry.unknown_code_count += 1
        if kind not in _RETRIED_ERRORS and (
            kind is not None or entry.unknown_code_count >= _UNKNOWN_CODES_MAX
        ):
            self._uncount(entry.records)
            result.refused_entries.append(RefusedEntry(entry, self.last_error))
            return
        if code == _NO_ANSWER:
            result.possible_duplicate_count += len(entry.records)
        queue_result.entries_to_retry.append(entry)
        queue_result.is_throttled = queue_result.is_throttled or kind is Throttled
        result.retry_counts[code] = result.retry_counts.get(code, 0) + 1

    def _sort_answers(
        self, request: PutRequest, answers: Sequence[EntryAnswer], result: PutResult
    ) -> dict[str, _QueueResult]:
        """Put the outcome of each entry into `result`; return the outcomes of each shard's queue."""
        by_shard: dict[str, _QueueResult] = {}
        delivered, predicts = result.delivered_entries, self._map.predicts
        new = tuple.__new__  # a third of what DeliveredEntry(...) costs, and this is done for every entry
        for entry, answer in zip(request.entries, answers, strict=True):
            predicted_id = entry.shard_id
            queue_result = by_shard.get(predicted_id or _UNPREDICTED)
            if queue_result is None:
                queue_result = by_shard[predicted_id or _UNPREDICTED] = _QueueResult()
            shard_id, sequence_number = answer.shard_id, answer.sequence_number
            if answer.error_code is not None or shard_id is None or sequence_number is None:
                self._on_entry_error(entry, answer, queue_result, result)
                continue
            queue_result.accepted_cost_s += entry.cost_s
            if shard_id == predicted_id:
                # Receipts keep the id: the predicted text is the same object for all answers of a shard.
                delivered.append(new(DeliveredEntry, (entry, predicted_id, sequence_number)))
                continue
            accepted = DeliveredEntry(entry, shard_id, sequence_number)
            stays_pending = predicts and self._on_misrouted(accepted)
            if not stays_pending:
                delivered.append(accepted)
        self._uncount([record for each in delivered for record in each.entry.records])
        return by_shard

    def _on_misrouted(self, accepted: DeliveredEntry) -> bool:
        """Handle an entry that was accepted by a shard other than the predicted one; return whether its records stay pending."""
        entry, shard_id, _ = accepted
        if entry.is_aggregate or shard_id not in self._map.ranges:
            self._map.on_misrouted(shard_id, entry.shard_id)
        if entry.is_aggregate:
            # The shard was split while the aggregate was on its way, and a child accepted it. If the child does not own all of
            # its records, readers drop the aggregate. So the records stay pending until the next listing.
            self._misrouted.append(accepted)
        return entry.is_aggregate

    def _end_queue_request(self, shard_id: str) -> ShardQueue:
        queue = self._queues[shard_id]
        assert queue.in_flight > 0
        queue.in_flight -= 1
        return queue

    def _put_back(self, queue: ShardQueue, entries: list[PackedEntry]) -> None:
        # Later records of the same keys may have been added in between, so the refused ones go to the front.
        if entries:
            queue.put_back(entries)
            self._active[queue.shard_id] = queue

    def _uncount(self, records: Collection[PendingRecord]) -> None:
        self._count(records, -1)

    def _count(self, records: Collection[PendingRecord], sign: int = 1) -> None:
        self.waiting_count += sign * len(records)
        self.waiting_bytes += sign * (
            sum([record.size_bytes for record in records])
            + len(records) * self._overhead_bytes
            + HASH_KEY_BYTES * sum([record.explicit_hash_key is not None for record in records])
        )

    def _check_counts(self) -> None:
        """Assert the invariants after every event, and recount the waiting records of full queues."""
        assert self._in_flight >= 0
        assert self.waiting_count >= 0
        assert (self.waiting_count == 0) == (self.waiting_bytes == 0)
        self._recount_full_bytes()

    # --- the shard map ------------------------------------------------------------------------------------

    def on_shards(
        self, shards: Iterable[Shard], now_s: float, *, aggregates: bool | None = None
    ) -> PutResult:
        """Handle a listing of the shards; only while nothing is in flight.

        Args:
            shards: As listed; closed ones may be among them.
            aggregates: False switches aggregation off finally, for a stream that has begun to place records itself.

        Returns:
            Aggregates that landed elsewhere count as delivered if their readers see them whole. All records of the
            others wait again, and count as possible duplicates.
        """
        assert not self._in_flight, "the shard map changed under a request"
        if aggregates is False:
            self.aggregates = False
        if not self._map.on_shards(shards, now_s, [each.shard_id for each in self._misrouted]):
            return PutResult()
        return self._distribute(now_s)

    def on_listing_denied(self, now_s: float) -> PutResult:
        """Handle a listing that is not permitted: without the shards, all records wait in one queue, and none is aggregated.

        Returns:
            As `on_shards`.
        """
        self.aggregates = False
        self._map.on_listing_denied()
        return self._distribute(now_s)

    def on_listing_failed(self, why: str, now_s: float, chance: float) -> None:
        """Handle a failed listing of the shards; they are listed again after a pause."""
        self.last_error = why
        self._map.on_listing_failed(why, now_s, chance)

    def _distribute(self, now_s: float) -> PutResult:
        """Move every pending record to its queue by the present map, in the order of arrival; return as `on_shards`."""
        result = self._settle_misrouted()
        failing = {shard_id: (queue.tried_s, queue.failed_s) for shard_id, queue in self._active.items()}
        records = self._drain_queues()
        router = self._map.router
        shard_ids = {_UNPREDICTED, *(() if router is None else router.shard_ids)}
        flows = {shard_id: queue.flow for shard_id, queue in self._queues.items() if shard_id in shard_ids}
        self._queues.clear()
        self._routes.clear()
        self._hash_key_routes.clear()
        for shard_id, flow in flows.items():
            self._queue_of(shard_id).flow = flow
        for record in records:
            self._place(record, now_s)
        for shard_id in failing.keys() & self._active.keys():
            # A shard that accepted nothing for long does not get a new deadline by a new listing.
            queue = self._active[shard_id]
            queue.tried_s, queue.failed_s = failing[shard_id]
        self._check_counts()
        return result

    def _settle_misrouted(self) -> PutResult:
        """Decide by the present map which misrouted aggregates count as delivered; queue the records of the others again."""
        result = PutResult()
        records_to_resend: list[PendingRecord] = []
        for each in self._misrouted:
            records = each.entry.records
            hash_range = self._map.ranges.get(each.shard_id)
            if hash_range is not None and all(record.lies_in(hash_range) for record in records):
                self._uncount(records)
                result.delivered_entries.append(each)
                continue
            for record in records:
                # The record is sent alone if the map does not have the shard that answered, or after the second misplaced
                # aggregate: a plain record is delivered from any shard.
                record.misplaced_count += 1
                record.is_solo = hash_range is None or record.misplaced_count >= _MISPLACED_COUNT_MAX
            records_to_resend += records
        self._misrouted.clear()
        if records_to_resend:
            result.possible_duplicate_count = len(records_to_resend)
            result.retry_counts["misplaced"] = len(records_to_resend)
            self._unrouted.extendleft(reversed(records_to_resend))
        return result

    def _drain_queues(self) -> list[PendingRecord]:
        records = list(self._unrouted)
        self._unrouted.clear()
        for queue in self._queues.values():
            records += queue.drain()
        self._active.clear()
        self.full_bytes = 0
        records.sort(key=lambda record: record.number)
        return records


class _QueueResult(Struct):
    """The outcome of one request's entries from one queue.

    Args:
        accepted_cost_s: Seconds of the shard's capacity that the accepted entries used.
    """

    accepted_cost_s: float = 0.0
    is_throttled: bool = False
    entries_to_retry: list[PackedEntry] = field(default_factory=list)


def _group_by_shard(entries: Collection[PackedEntry]) -> dict[str, list[PackedEntry]]:
    found: dict[str, list[PackedEntry]] = {}
    for entry in entries:
        found.setdefault(entry.shard_id or _UNPREDICTED, []).append(entry)
    return found
