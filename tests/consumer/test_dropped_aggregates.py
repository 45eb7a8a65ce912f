"""Misplaced aggregates are dropped, and so done: checkpoints move with them."""

from __future__ import annotations

import pytest
from test_kclpy import run_sample, sample  # noqa: F401 - the fixture
from virtual_world import World

from penstock.core.aggregation import AggregateBuilder
from penstock.core.hash_key import HASH_KEY_MAX

SHARD = "shardId-000000000000"
DROPS = {"drop_misplaced_aggregates": True}


def key_of(world, shard_id):
    keys = (f"k{n}" for n in range(1000))
    probe = World(shard_count=len(world.kinesis.shards))
    return next(key for key in keys if probe.kinesis.put(key, b"") == shard_id)


class Stream:
    """One of two shards, to which records and aggregates of the other one's keys go."""

    def __init__(self):
        self.world = World(shard_count=2)
        self.key = key_of(self.world, SHARD)

    def put(self, *data):
        for each in data:
            assert self.world.kinesis.put(self.key, each) == SHARD

    def put_misplaced(self, count, of=3):
        for n in range(count):
            builder = AggregateBuilder()
            for part in range(of):
                builder.add(b"%d.%d" % (n, part), self.key, str(HASH_KEY_MAX))
            self.put(builder.build().data)

    def checkpoint(self):
        return str(self.world.table.fetch(SHARD).checkpoint)

    def last(self, sub=2):
        return f"{self.world.kinesis.shards[SHARD].records[-1].sequence_number}.{sub}"


@pytest.fixture
def stream():
    return Stream()


def read_by_a_new_worker(stream, **options):
    worker = stream.world.worker("next", **DROPS, **options)
    stream.world.run(60, until=lambda: stream.world.held_by(worker))
    stream.world.run(20)
    return worker


def end(stream, worker):
    worker.runtime.request_stop()
    stream.world.run(60, until=worker.runtime.has_ended.is_set)


@pytest.mark.parametrize("options", [{}, {"concurrency": 4}], ids=["in order", "by key"])
def test_a_checkpoint_moves_with_aggregates_dropped_behind_the_last_record(stream, options):
    stream.put(b"first")
    worker = stream.world.worker("w", **DROPS, **options)
    stream.world.run(20)
    stream.put_misplaced(50)
    stream.world.run(20)
    assert (worker.data(), stream.checkpoint()) == ([b"first"], stream.last())
    end(stream, worker)
    stream.put(b"second")
    assert read_by_a_new_worker(stream).data() == [b"second"]


def test_a_checkpoint_moves_with_aggregates_dropped_before_the_first_record(stream):
    stream.put_misplaced(3)
    worker = stream.world.worker("w", **DROPS)
    stream.world.run(20)
    assert stream.checkpoint() == stream.last()
    stream.put(b"first")
    stream.world.run(20)
    assert (worker.data(), stream.checkpoint()) == ([b"first"], stream.last(0))


def test_dropped_aggregates_behind_a_record_that_is_not_done_move_nothing(stream):
    stream.put(b"first")
    stream.put_misplaced(3)

    def fail(_batch):
        raise ValueError("not now")

    stream.world.worker("w", fail, on_all_stopped="stay", handler_retries_max=0, **DROPS)
    stream.world.run(20)
    assert stream.checkpoint() == "TRIM_HORIZON"


def test_a_shard_that_ends_with_dropped_aggregates_ends_and_its_children_are_read(stream):
    stream.put(b"first")
    stream.put_misplaced(3)
    stream.world.kinesis.split(SHARD)
    stream.world.kinesis.put(stream.key, b"child")
    worker = stream.world.worker("w", **DROPS)
    stream.world.run(60)
    assert worker.data() == [b"first", b"child"]
    assert stream.checkpoint() == "SHARD_END"


def test_a_whole_shard_of_dropped_aggregates_ends(stream):
    stream.put_misplaced(30)
    stream.world.kinesis.split(SHARD)
    stream.world.worker("w", **DROPS)
    stream.world.run(60)
    assert stream.checkpoint() == "SHARD_END"


def test_a_processor_of_the_kcl_checkpoints_its_last_record_behind_what_is_dropped(stream, sample):  # noqa: F811
    stream.put(b"first")
    worker = run_sample(stream.world, sample.RecordProcessor, **DROPS)
    stream.world.run(20)
    stream.put_misplaced(3)
    stream.world.run(20)
    assert stream.checkpoint() == stream.last()
    end(stream, worker)  # the sample checkpoints when it is asked to stop
    assert ("shutdown_requested",) in sample.EVENTS
    assert stream.checkpoint() == stream.last()
