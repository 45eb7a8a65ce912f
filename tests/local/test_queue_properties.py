"""Deliveries and queues against a plain model: a dictionary of records that is searched from end to end."""

from __future__ import annotations

import base64
import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock_local.faults import FaultBook
from penstock_local.operations import dispatch
from penstock_local.operations.call import Service, ServiceCall
from penstock_local.queues.deliveries import Deliveries, Delivery
from penstock_local.queues.long_polls import LongPolls
from penstock_local.quotas import Quotas
from penstock_local.store import Store, StoreOptions
from penstock_local.stream_metrics import StreamMetrics
from penstock_local.subscriptions import Subscriptions
from penstock_local.tokens import Tokens
from penstock_local.virtual_clock import VirtualClock
from penstock_local.wire import JSON
from queue_rig import knows_queues

pytestmark = knows_queues
RETENTION_MS = 24 * 3_600_000


class World:
    """A store with one queue, and what a plain model says of each of its records."""

    def __init__(self, receive_count_max: int | None) -> None:
        store = Store(StoreOptions(settle_ms=0))
        clock, metrics = VirtualClock(0), StreamMetrics()
        self.service = Service(
            store,
            Quotas(enforced=False),
            Tokens(b"key"),
            FaultBook(),
            Subscriptions(store, clock, metrics, limits=False),
            metrics,
            LongPolls(store.queues, clock),
        )
        self.now_ms = 1_700_000_000_000
        self.limit = receive_count_max
        self.call("CreateStream", StreamName="s", StreamModeDetails={"StreamMode": "ON_DEMAND"})
        dead_letters: dict[str, Any] = {"TargetType": "NONE"}
        if receive_count_max is not None:
            dead_letters = {"TargetType": "BUILT_IN", "MaxReceiveCount": receive_count_max}
        made = self.call(
            "CreateQueue",
            QueueName="q",
            StreamConfigurationList=[{"StreamARN": store.streams["us-east-1", "s"].arn}],
            QueueAttributes={"DeadLetterConfiguration": dead_letters},
        )
        self.arn = made["QueueDescription"]["QueueARN"]
        # by data: arrival, receives, end of the flight, whether it is a dead letter, its last handle
        self.records: dict[bytes, dict[str, Any]] = {}
        self.handles: list[tuple[str, bytes, bool]] = []
        self.count = 0

    def call(self, operation: str, **request: Any) -> Any:
        call = ServiceCall(self.service, operation, JSON, self.now_ms)
        answer = dispatch.answer(call, json.dumps(request).encode())
        return json.loads(answer) if isinstance(answer, bytes) else None

    def put(self, count: int) -> None:
        for _ in range(count):
            data = b"%d" % self.count
            self.count += 1
            self.call(
                "PutRecord", StreamName="s", Data=base64.b64encode(data).decode(), PartitionKey=str(data)
            )
            self.records[data] = {"at": self.now_ms, "n": 0, "until": 0, "dead": False, "handle": None}

    def advance(self, seconds: int) -> None:
        self.now_ms += seconds * 1000
        self.service.store.settle_all(self.now_ms)
        for data in [d for d, r in self.records.items() if r["at"] < self.now_ms - RETENTION_MS]:
            del self.records[data]
        self.land()

    def land(self) -> None:
        for record in self.records.values():
            if record["until"] <= self.now_ms and self.limit is not None and record["n"] >= self.limit:
                record["dead"] = True

    def visible(self, *, dead: bool) -> set[bytes]:
        return {d for d, r in self.records.items() if r["dead"] == dead and r["until"] <= self.now_ms}

    def receive(self, limit: int, seconds: int, *, dead: bool) -> None:
        operation = "ReceiveDeadLetterQueueRecords" if dead else "ReceiveQueueRecords"
        visible = self.visible(dead=dead)
        answer = self.call(operation, QueueARN=self.arn, Limit=limit, VisibilityTimeoutSeconds=seconds)
        found = [] if answer is None else answer["QueueRecords"]
        assert len(found) == min(limit, len(visible))
        for each in found:
            data = base64.b64decode(each["Data"])
            assert data in visible
            visible.remove(data)
            record = self.records[data]
            record["n"] += 1
            assert each["ReceiveCount"] == record["n"]
            record["until"] = self.now_ms + seconds * 1000
            record["handle"] = each["ReceiptHandle"]
            self.handles.append((each["ReceiptHandle"], data, dead))
        self.land()

    def by_handle(self, operation: str, which: int, seconds: int) -> None:
        if not self.handles:
            return
        handle, data, dead = self.handles[which % len(self.handles)]
        middle = "DeadLetter" if dead else ""
        name = {
            "acknowledge": f"Acknowledge{middle}QueueRecords",
            "visibility": f"Update{middle}QueueRecordsVisibility",
            "restore": "RestoreDeadLetterQueueRecords",
        }[operation]
        entry: dict[str, Any] = {"ReceiptHandle": handle}
        if operation == "visibility":
            entry["VisibilityTimeoutSeconds"] = seconds
        record = self.records.get(data)
        is_current = record is not None and record["handle"] == handle and record["dead"] == dead
        is_of_kind = operation != "restore" or dead
        answer = self.call(name, QueueARN=self.arn, Entries=[entry])
        if not is_current or not is_of_kind:
            (failure,) = answer["Failed"]
            wrong = "ResourceNotFoundException" if is_of_kind else "InvalidArgumentException"
            assert failure["ErrorCode"] == wrong
            return
        assert answer == {"Successful": [{"ReceiptHandle": handle}], "Failed": []}
        assert record is not None
        if operation == "acknowledge":
            del self.records[data]
        elif operation == "visibility":
            record["until"] = self.now_ms + seconds * 1000
        else:
            record.update(n=0, until=self.now_ms, dead=False, handle=None)
        self.land()

    def check(self) -> None:
        store = self.service.store
        (queue,) = store.queues.by_id.values()
        flying = sum(record["until"] > self.now_ms for record in self.records.values())
        assert queue.counts(store.queues.stream_of(queue), self.now_ms) == {
            "visible": len(self.visible(dead=False)),
            "in_flight": flying,
            "dead_letters": len(self.visible(dead=True)),
        }


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("put"), st.integers(1, 12)),
        st.tuples(st.just("advance"), st.sampled_from([0, 1, 5, 30, 3600, 50_000])),
        st.tuples(
            st.just("receive"), st.integers(1, 10), st.sampled_from([0, 1, 5, 30, 43_200]), st.booleans()
        ),
        st.tuples(
            st.sampled_from(["acknowledge", "visibility", "restore"]),
            st.integers(0, 1000),
            st.sampled_from([0, 5, 43_200]),
        ),
    ),
    max_size=60,
)


@settings(max_examples=150, deadline=None)
@given(STEPS, st.sampled_from([None, 1, 2, 6]))
def test_a_queue_is_as_a_plain_model_of_it(steps, receive_count_max):
    world = World(receive_count_max)
    for kind, *arguments in steps:
        match kind:
            case "put":
                world.put(*arguments)
            case "advance":
                world.advance(*arguments)
            case "receive":
                world.receive(*arguments[:2], dead=arguments[2])
            case _:
                world.by_handle(kind, *arguments)
        world.check()


def test_entries_that_were_replaced_do_not_pile_up():
    deliveries = Deliveries(None)
    for turn in range(20_000):
        deliveries.put(Delivery(0, turn % 10 + 1, turn, 1, 0, 1000 + turn))
    assert deliveries.in_flight == 10
    assert len(deliveries._flights) <= 1001
    deliveries.settle(10**6)
    for turn in range(20_000):
        deliveries.put(Delivery(0, turn % 10 + 1, turn, 1, 0, 0))
    assert len(deliveries._visible) <= 1001
    assert deliveries.visible_counts() == (10, 0)


@pytest.mark.parametrize("dead", [False, True])
def test_deliveries_past_the_retention_are_forgotten_shard_by_shard(dead):
    deliveries = Deliveries(1 if dead else None)
    for ordinal in range(1, 6):
        deliveries.put(Delivery(0, ordinal, ordinal, 1, 0, ordinal))
        deliveries.put(Delivery(1, ordinal, ordinal + 5, 1, 0, 10**9))
    deliveries.settle(3)
    deliveries.forget_before(0, 3)
    assert (deliveries.in_flight, deliveries.visible_counts()) == (7, (0, 1) if dead else (1, 0))
    deliveries.forget_before(1, 10**9)
    assert (len(deliveries), deliveries.in_flight) == (3, 2)
    assert deliveries.next_visible_ms() == 4
