"""A queue in memory for tests, with faults, and what became of its records."""

from __future__ import annotations

import threading
from collections import Counter

from memory_queues import MemoryQueues
from penstock.core.queueing.queue_events import EntryOutcome
from penstock.ports.queues import DeadLetterRule, EntryResult, QueueStart
from penstock.queues import QueueConsumerPorts


class QueueWorld:
    """One stream with one queue."""

    def __init__(self, visibility_s=30, receive_count_max=6, name="invoices"):
        self.service = FaultyQueues()
        self.stream_arn = self.service.create_stream("orders")
        self.queue = self.service.create_queue(
            name,
            self.stream_arn,
            QueueStart("TRIM_HORIZON"),
            visibility_s=visibility_s,
            dead_letters=DeadLetterRule(receive_count_max),
        )
        self.ports = QueueConsumerPorts(self.service)

    def put(self, *texts, key="key"):
        return [self.service.put(self.stream_arn, text.encode(), key) for text in texts]

    @property
    def left(self):
        """Records that are neither acknowledged nor dead."""
        deliveries = self.service._queues[self.queue.arn].deliveries.values()
        return [
            each.record.data.decode(errors="backslashreplace")
            for each in list(deliveries)
            if not each.is_dead
        ]

    @property
    def visible(self):
        """Records that another consumer could receive now."""
        now_s = self.service._clock.monotonic_s()
        deliveries = self.service._queues[self.queue.arn].deliveries.values()
        return sorted(
            each.record.data.decode()
            for each in list(deliveries)
            if not each.is_dead and each.visible_s <= now_s
        )

    def dead(self):
        found = self.service.receive(self.queue.arn, 10, 1, 0, is_dead=True)
        return sorted(each.data.decode() for each in found)


class FaultyQueues(MemoryQueues):
    """Queues in memory whose next calls fail as a test says, and that counts calls. Long polls are short: a stop waits for them."""

    poll_s = 0.1

    def __init__(self):
        super().__init__()
        self.faults = {"receive": [], "acknowledge": [], "set_visibility": []}
        self.calls = Counter()
        self.sizes = []
        self.seconds = []
        self.lock = threading.Lock()

    def _fault(self, name):
        with self.lock:
            self.calls[name] += 1
            return self.faults[name].pop(0) if self.faults[name] else None

    def receive(self, queue_arn, limit, wait_s, *arguments, **more):
        fault = self._fault("receive")
        if isinstance(fault, Exception):
            raise fault
        return super().receive(queue_arn, limit, min(wait_s, self.poll_s), *arguments, **more)

    def acknowledge(self, queue_arn, handles, **more):
        self.sizes.append(len(handles))
        return self._on_fault(
            "acknowledge", handles, lambda: super(FaultyQueues, self).acknowledge(queue_arn, handles, **more)
        )

    def set_visibility(self, queue_arn, handles, seconds, **more):
        self.seconds += seconds
        return self._on_fault(
            "set_visibility",
            handles,
            lambda: super(FaultyQueues, self).set_visibility(queue_arn, handles, seconds, **more),
        )

    def _on_fault(self, name, handles, call):
        fault = self._fault(name)
        if isinstance(fault, Exception):
            raise fault
        if fault == "refuse":
            return [EntryResult(EntryOutcome.REFUSED, "ThrottlingException", "slow down")] * len(handles)
        answer = call()
        if isinstance(fault, tuple):  # applied, and the answer is lost
            raise fault[0]
        return answer
