"""Shards that are pushed, and not read for longer than the stream keeps records, in virtual time: a loss is never silent."""

import pytest
from tiny_fan_out import TinyFanOut
from virtual_world import HeldPool, World

from penstock.errors import DataLossError
from penstock.ports.kinesis import IteratorType

FIRST = "shardId-000000000000"
LOST = ("possible_data_loss", (("shard", FIRST),))
FAN_OUT = {"retrieval": "fan-out"}
AUTO = {"retrieval": "auto", "fan_out_after_s": 6.0}

in_both_ways = pytest.mark.parametrize("options", [FAN_OUT, AUTO], ids=["fan-out", "auto"])


class Pushed:
    """A worker that has read everything of the one shard, by a subscription."""

    def __init__(self, **options):
        self.world = world = World(shard_count=1)
        world.fan_out = TinyFanOut(world.kinesis, world.clock)
        world.kinesis.contended = {FIRST}  # with `auto`, only such a shard is pushed
        self.worker = world.worker("a", **options)
        self.sent = []
        while not self.is_subscribed:
            assert world.clock.now_s < 2000.0, "the shard is still polled"
            self.sent += world.put(5, f"r{len(self.sent)}-")
            world.run(5)
        world.run(10)
        assert self.worker.data() == self.sent

    @property
    def is_subscribed(self) -> bool:
        return any(each.is_open for each in self.world.fan_out.streams)

    @property
    def failures(self):
        return self.worker.runtime.delivery.stopped.failures

    @property
    def losses(self) -> float:
        return self.world.metrics.snapshot().counters.get(LOST, 0)

    def set_paused(self, is_paused: bool) -> None:
        self.worker.runtime.delivery.set_paused((), is_paused=is_paused)
        self.world.run(10)

    def outlast_the_connection(self) -> None:
        self.world.run(400)
        assert not self.is_subscribed

    def trim_to(self, count: int) -> list[bytes]:
        """Make all but the newest records leave the stream; return the rest."""
        records = self.world.kinesis.shards[FIRST].records
        self.world.kinesis.trim(FIRST, len(records) - count)
        return [record.data for record in records]


def paused_beyond_retention(**options):
    """All records that were read, and some that were not, have left the stream during a pause."""
    pushed = Pushed(retention_s=200.0, **options)
    pushed.set_paused(True)
    pushed.world.put(50, "later")
    pushed.outlast_the_connection()
    return pushed, pushed.trim_to(15)


@in_both_ways
def test_records_that_left_the_stream_during_a_pause_stop_the_shard(options):
    pushed, _ = paused_beyond_retention(**options)
    pushed.set_paused(False)
    pushed.world.run(60, until=lambda: FIRST in pushed.failures)
    assert isinstance(pushed.failures[FIRST], DataLossError)
    assert pushed.worker.data() == pushed.sent
    assert pushed.losses == 1


@in_both_ways
def test_where_losses_are_allowed_they_are_counted_and_what_is_left_is_delivered(options):
    pushed, left = paused_beyond_retention(on_data_loss="warn", **options)
    pushed.set_paused(False)
    pushed.world.run(60, until=lambda: pushed.worker.data() == pushed.sent + left)
    assert pushed.failures == {}
    assert pushed.losses == 1


def test_records_that_left_the_stream_while_a_handler_blocked_stop_the_shard():
    pool = HeldPool()
    pushed = Pushed(retention_s=200.0, handler_pool=pool, prefetch_bytes_max=1, **FAN_OUT)
    pool.is_open = False
    later = pushed.world.put(50, "later")
    pushed.outlast_the_connection()
    pushed.trim_to(15)
    pool.let_go()
    pushed.world.run(60, until=lambda: FIRST in pushed.failures)
    assert isinstance(pushed.failures[FIRST], DataLossError)
    delivered = pushed.worker.data()
    assert delivered == (pushed.sent + later)[: len(delivered)]
    assert pushed.losses == 1


@in_both_ways
def test_a_shard_that_was_quiet_during_a_pause_goes_on_without_its_last_record(options):
    pushed = Pushed(retention_s=2000.0, **options)
    pushed.set_paused(True)
    pushed.outlast_the_connection()
    assert pushed.trim_to(0) == []
    pushed.set_paused(False)
    pushed.world.run(60)
    sent = pushed.sent + pushed.world.put(5, "new")
    pushed.world.run(60, until=lambda: pushed.worker.data() == sent)
    assert (pushed.failures, pushed.losses) == ({}, 0)


def test_a_pause_shorter_than_an_iterators_life_goes_on_behind_the_last_event():
    pushed = Pushed(**FAN_OUT)
    pushed.world.run(290 - pushed.world.clock.now_s + pushed.world.fan_out.streams[0].opened_s)
    pushed.set_paused(True)
    pushed.world.run(200)
    assert not pushed.is_subscribed
    sent = pushed.sent + pushed.world.put(5, "new")
    pushed.set_paused(False)
    pushed.world.run(60, until=lambda: pushed.worker.data() == sent)
    assert [start.type for _, _, start in pushed.world.fan_out.subscribed] == [
        IteratorType.TRIM_HORIZON,
        IteratorType.AFTER_SEQUENCE_NUMBER,
    ]


def test_a_shard_that_is_quiet_for_long_is_never_begun_at_its_last_record_again():
    pushed = Pushed(retention_s=200.0, **FAN_OUT)
    pushed.world.run(2000)
    _, *later = pushed.world.fan_out.subscribed
    assert len(later) == 6
    assert {start.type for _, _, start in later} == {IteratorType.AFTER_SEQUENCE_NUMBER}
    sent = pushed.sent + pushed.world.put(5, "new")
    pushed.world.run(60, until=lambda: pushed.worker.data() == sent)
    assert (pushed.failures, pushed.losses) == ({}, 0)
