"""Operations on the records of a queue: receive, acknowledge, change visibility, restore."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Generator
from typing import Any

from penstock_local.operations.call import Document, ServiceCall
from penstock_local.queues.deliveries import Delivery
from penstock_local.queues.queue import Queue
from penstock_local.queues.registry import IN_FLIGHT_MAX
from penstock_local.service_errors import RequestRefused, invalid_argument, not_found
from penstock_local.tokens import Receipt
from penstock_local.wire import QueueRecord

_RECEIVE_LIMIT = 10
_WAIT_S = 9
Apply = Callable[[ServiceCall, Queue, list[tuple[Document, Delivery]]], None]


# -- receive ------------------------------------------------------------------------------------------------


class WaitingReceive(Awaitable[bytes]):
    """A receive that found nothing at once and waits; await it for the answer's body."""

    def __init__(self, call: ServiceCall, request: Document, queue: Queue) -> None:
        self._call = call
        self._request = request
        self._queue = queue
        self._until_ms = call.now_ms + request.get("WaitTimeSeconds", _WAIT_S) * 1000

    def __await__(self) -> Generator[Any, None, bytes]:
        return self._answer().__await__()

    async def _answer(self) -> bytes:
        polls = self._call.service.polls
        found = await polls.wait(
            self._queue, self._until_ms, self.attempt, dead=self._call.is_for_dead_letters
        )
        return found or _empty_answer(self._call, self._queue)

    def attempt(self, now_ms: int) -> bytes | None:
        """Return the answer with the records that are visible now; None if none is.

        Raises:
            RequestRefused: The queue is being deleted, or its records cannot be delivered.
        """
        call, queue = self._call, self._queue
        call.now_ms = now_ms
        call.delivering_queue(queue.arn)
        received = call.service.store.queues.receive(
            queue,
            now_ms,
            self._request.get("Limit", _RECEIVE_LIMIT),
            self._request.get("VisibilityTimeoutSeconds"),
            dead=call.is_for_dead_letters,
            in_flight_max=IN_FLIGHT_MAX if call.service.quotas.enforced else None,
        )
        if not received:
            return None
        if not call.is_for_dead_letters:
            call.service.metrics.add_queue(queue, {"ReceivedQueueRecords": len(received)}, now_ms)
        return call.wire.queue_records_answer(
            [
                QueueRecord(text, _receipt_handle(call, queue, each), each.first_ms, each.receives)
                for each, text in received
            ]
        )


def _empty_answer(call: ServiceCall, queue: Queue) -> bytes:
    """Return the answer without records."""
    if not call.is_for_dead_letters:
        call.service.metrics.add_queue(queue, {"EmptyReceives": 1}, call.now_ms)
    return call.wire.queue_records_answer([])


def _receipt_handle(call: ServiceCall, queue: Queue, delivery: Delivery) -> str:
    receipt = Receipt(queue.uid, delivery.shard_index, delivery.ordinal, delivery.number)
    return call.service.tokens.receipt(receipt, dead=call.is_for_dead_letters)


def ReceiveQueueRecords(call: ServiceCall, request: Document) -> bytes | WaitingReceive:
    """Deliver visible records; wait if there are none."""
    queue = call.delivering_queue(request["QueueARN"])
    call.admit(call.service.store.queues.stream_of(queue))
    if call.find_hit("empty"):
        return _empty_answer(call, queue)
    receive = WaitingReceive(call, request, queue)
    return receive.attempt(call.now_ms) or receive


ReceiveDeadLetterQueueRecords = ReceiveQueueRecords


# -- by receipt handle --------------------------------------------------------------------------------------


def AcknowledgeQueueRecords(call: ServiceCall, request: Document) -> Document:
    """Forget records whose processing is done, or dead letters; each handle is answered by itself."""
    return _apply_by_handle(call, request, _acknowledge)


def UpdateQueueRecordsVisibility(call: ServiceCall, request: Document) -> Document:
    """Set for how long records or dead letters stay in flight from now on; each handle is answered by itself."""
    return _apply_by_handle(call, request, _set_visibility)


def RestoreDeadLetterQueueRecords(call: ServiceCall, request: Document) -> Document:
    """Return dead letters to the normal receive path; each handle is answered by itself."""
    return _apply_by_handle(call, request, _restore)


AcknowledgeDeadLetterQueueRecords = AcknowledgeQueueRecords
UpdateDeadLetterQueueRecordsVisibility = UpdateQueueRecordsVisibility


def _acknowledge(call: ServiceCall, queue: Queue, found: list[tuple[Document, Delivery]]) -> None:
    call.service.store.queues.acknowledge(queue, [delivery for _, delivery in found], call.now_ms)
    alive = sum(not delivery.is_dead for _, delivery in found)
    if alive:
        call.service.metrics.add_queue(queue, {"AcknowledgedQueueRecords": alive}, call.now_ms)


def _set_visibility(call: ServiceCall, queue: Queue, found: list[tuple[Document, Delivery]]) -> None:
    changed_deliveries = [
        delivery._replace(visible_ms=call.now_ms + entry["VisibilityTimeoutSeconds"] * 1000)
        for entry, delivery in found
    ]
    call.service.store.queues.change(queue, changed_deliveries, call.now_ms)


def _restore(call: ServiceCall, queue: Queue, found: list[tuple[Document, Delivery]]) -> None:
    changed_deliveries = [
        # a number that no handle has: the handles of the dead letter end here
        delivery._replace(number=queue.number_last + i, receives=0, visible_ms=call.now_ms, is_dead=False)
        for i, (_, delivery) in enumerate(found, 1)
    ]
    call.service.store.queues.change(queue, changed_deliveries, call.now_ms)


def _apply_by_handle(call: ServiceCall, request: Document, apply: Apply) -> Document:
    """Carry out an operation on the deliveries that receipt handles name; return which entries succeeded and failed."""
    queue = call.delivering_queue(request["QueueARN"])
    stream = call.service.store.queues.stream_of(queue)
    call.admit(stream)
    queue.deliveries.settle(call.now_ms)
    failed: list[Document] = []
    found: list[tuple[Document, Delivery]] = []
    places: set[tuple[int, int]] = set()  # shard and record, so that one record is not named twice
    for entry in request["Entries"]:
        handle = entry["ReceiptHandle"]
        try:
            delivery = _delivery_of_handle(call, queue, handle)
            place = (delivery.shard_index, delivery.ordinal)
            if place in places:
                raise invalid_argument("ReceiptHandle is in the request twice.")
        except RequestRefused as refusal:
            failed.append(
                {"ReceiptHandle": handle, "ErrorCode": refusal.code, "ErrorMessage": refusal.message}
            )
            continue
        places.add(place)
        found.append((entry, delivery))
    if call.find_hit("redeliver"):
        apply = _redeliver
    failures, is_applied = _scripted_failures(call, found)
    carried_out = [each for each in found if is_applied or each[0]["ReceiptHandle"] not in failures]
    if carried_out:
        apply(call, queue, carried_out)
    handles = (entry["ReceiptHandle"] for entry, _ in found)
    successful = [{"ReceiptHandle": handle} for handle in handles if handle not in failures]
    return {"Successful": successful, "Failed": [*failed, *failures.values()]}


def _scripted_failures(
    call: ServiceCall, found: list[tuple[Document, Delivery]]
) -> tuple[dict[str, Document], bool]:
    """Return the entries that a `partial` fault fails, by handle, and whether they are carried out all the same."""
    hit = call.find_hit("partial")
    if hit is None or not found:
        return {}, False
    fault = hit.fault
    error = {
        "ErrorCode": fault.code or "InternalFailureException",
        "ErrorMessage": fault.message or "Internal service failure.",
    }
    handles = [entry["ReceiptHandle"] for entry, _ in hit.choose_fraction(found)]
    return {handle: {"ReceiptHandle": handle, **error} for handle in handles}, fault.applied


def _redeliver(call: ServiceCall, queue: Queue, found: list[tuple[Document, Delivery]]) -> None:
    """Make records that were acknowledged visible, under a number that no handle has."""
    limit = queue.deliveries.receive_count_max
    changed_deliveries = [
        delivery._replace(
            number=queue.number_last + i,
            # the record comes again, and does not become a dead letter by its acknowledgement
            receives=delivery.receives
            if limit is None or delivery.is_dead
            else min(delivery.receives, limit - 1),
            visible_ms=call.now_ms,
        )
        for i, (_, delivery) in enumerate(found, 1)
    ]
    call.service.store.queues.change(queue, changed_deliveries, call.now_ms)


def _delivery_of_handle(call: ServiceCall, queue: Queue, handle: str) -> Delivery:
    """Return the delivery that a handle names.

    Raises:
        RequestRefused: It is none of this queue's handles, or its delivery is over.
    """
    receipt_and_kind = call.service.tokens.read_receipt(handle)
    if receipt_and_kind is None or receipt_and_kind[0].queue_uid != queue.uid:
        raise invalid_argument(f"ReceiptHandle is not one of queue {queue.name}.")
    receipt, is_of_dead = receipt_and_kind
    if is_of_dead != call.is_for_dead_letters:
        kind, other = ("dead-letter", "normal") if is_of_dead else ("normal", "dead-letter")
        raise invalid_argument(
            f"ReceiptHandle is of a {kind} receive, and {call.operation} is for {other} records."
        )
    delivery = queue.deliveries.get(receipt.shard_index, receipt.ordinal)
    stream = call.service.store.queues.stream_of(queue)
    if delivery is None or queue.record(stream, delivery, call.now_ms) is None:
        raise not_found("The record is acknowledged, or past the stream's retention.")
    if delivery.number != receipt.number:
        raise not_found("The record was received again with another handle.")
    if delivery.is_dead != call.is_for_dead_letters:
        raise not_found("The record has become a dead letter.")
    return delivery
