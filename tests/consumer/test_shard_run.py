"""One shard's run: its next step when a record cannot be taken apart just now."""

import random

import pytest

from moved_clock import MovedClock
from penstock.aws.data_plane import WireRecord
from penstock.consumer.processor import HandlerProcessor
from penstock.consumer.raw_records import DeaggregatedPage
from penstock.consumer.shard_run import Deaggregate, ShardRun
from penstock.core.hash_key import FULL_RANGE
from penstock.core.leases.coordinator_effects import StartReader, StopWhy
from penstock.core.leases.lease import Lease
from penstock.core.position import TRIM_HORIZON
from penstock.core.reading.delivery_calls import DeliveryOptions
from penstock.core.reading.reader_options import ReaderOptions
from penstock.core.shard import ChildShard
from penstock.errors import ResourceBusy
from penstock.ports.kinesis import RecordPage
from penstock.ports.metrics import NoMetrics

SHARD = "shardId-0"
CHILD = ChildShard("shardId-1", (SHARD,), FULL_RANGE)


def running(clock: MovedClock) -> ShardRun:
    run = ShardRun(
        "orders",
        StartReader(SHARD, 1, TRIM_HORIZON, Lease(SHARD), clock.monotonic_s() + 1e6),
        reader_options=ReaderOptions(),
        delivery_options=DeliveryOptions(),
        is_checkpoint_urgent=False,
        clock=clock,
        chance=random.Random(1),
        metrics=NoMetrics(),
        processor=HandlerProcessor(lambda _: None),
    )
    run.on_iterator("first")
    return run


@pytest.mark.parametrize("children", [(), (CHILD,)], ids=["open", "at its end"])
@pytest.mark.parametrize("is_expected", [True, False], ids=["expected", "a defect"])
def test_a_record_that_cannot_be_deaggregated_just_now_is_tried_again_after_a_pause(children, is_expected):
    clock = MovedClock(1000.0)
    run = running(clock)
    page = RecordPage([WireRecord("1", b"x", "k", 0.0)], None if children else "next", 0, children)
    run.on_page(page, clock.monotonic_s())
    failure = ResourceBusy("the stream is being changed", operation="ListShards")
    if is_expected:
        run.on_deaggregated(DeaggregatedPage([], [], failure))
    else:
        run.on_fetch_failed(failure)
    now_s = clock.monotonic_s()
    assert run.advance(now_s, True).fetch is None
    assert run.wake_s is not None
    assert run.wake_s > now_s
    assert run.advance(run.wake_s, True).fetch == Deaggregate()


@pytest.mark.parametrize("why", StopWhy)
def test_a_page_that_comes_when_the_run_is_over_is_not_kept(why):
    clock = MovedClock(1000.0)
    run = running(clock)
    assert run.advance(clock.monotonic_s(), True).fetch is not None
    run.stop(why)
    assert run.advance(clock.monotonic_s(), True).is_over
    run.on_page(RecordPage([WireRecord("1", b"x" * 1000, "k", 0.0)], "next", 0), clock.monotonic_s())
    assert run.waiting_bytes == 0
    run.on_deaggregated(DeaggregatedPage([], [], None))
    assert run.waiting_bytes == 0


def test_an_answer_that_arrives_late_does_not_make_its_records_younger():
    clock = MovedClock(1000.0)
    run = running(clock)
    started_s, answered_ms = clock.monotonic_s(), clock.wall_ms()
    clock.sleep(6.0)  # between the service's answer and its arrival
    page = RecordPage([WireRecord("1", b"x", "k", answered_ms / 1000)], "next", 0, server_ms=answered_ms)
    run.on_page(page, started_s)
    assert run.lag_ms(clock.monotonic_s()) == 6_000
