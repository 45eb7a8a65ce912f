"""Processors written for amazon_kclpy v3 run unchanged."""

import sys
import textwrap
import types
from datetime import datetime

import pytest
from virtual_world import World

from penstock.consumer import kclpy
from penstock.errors import UsageError

# Shaped as that package's documentation has it: its own imports, checkpoints by sequence number with retries, the
# checkpointer's error distinguished by its value.
SAMPLE = textwrap.dedent(
    """
    import time
    from amazon_kclpy import kcl
    from amazon_kclpy.v3 import processor

    EVENTS = []

    class RecordProcessor(processor.RecordProcessorBase):
        def __init__(self):
            self._largest_seq = (None, None)
            self._checkpoint_error_retries = 3

        def initialize(self, initialize_input):
            EVENTS.append(("initialize", initialize_input.shard_id, initialize_input.sequence_number))
            self._largest_seq = (None, None)

        def checkpoint(self, checkpointer, sequence_number=None, sub_sequence_number=None):
            for n in range(self._checkpoint_error_retries):
                try:
                    checkpointer.checkpoint(sequence_number, sub_sequence_number)
                    EVENTS.append(("checkpointed", sequence_number, sub_sequence_number))
                    return
                except kcl.CheckpointError as e:
                    EVENTS.append(("refused", e.value))
                    if "ShutdownException" == e.value:
                        return

        def process_records(self, process_records_input):
            for record in process_records_input.records:
                data = record.binary_data
                seq = int(record.sequence_number)
                sub_seq = record.sub_sequence_number
                key = record.partition_key
                EVENTS.append(("record", data, key))
                if self._largest_seq == (None, None) or (seq, sub_seq) > self._largest_seq:
                    self._largest_seq = (seq, sub_seq)
            self.checkpoint(process_records_input.checkpointer, str(self._largest_seq[0]), self._largest_seq[1])

        def lease_lost(self, lease_lost_input):
            EVENTS.append(("lease_lost",))

        def shard_ended(self, shard_ended_input):
            EVENTS.append(("shard_ended",))
            shard_ended_input.checkpointer.checkpoint()

        def shutdown_requested(self, shutdown_requested_input):
            EVENTS.append(("shutdown_requested",))
            shutdown_requested_input.checkpointer.checkpoint()

    if __name__ == "__main__":
        kcl_process = kcl.KCLProcess(RecordProcessor())
        kcl_process.run()
    """
)


@pytest.fixture
def sample():
    kclpy.install_amazon_kclpy()
    module = types.ModuleType("sample")
    try:
        exec(compile(SAMPLE, "sample.py", "exec"), module.__dict__)
        yield module
    finally:
        for name in [name for name in sys.modules if name.partition(".")[0] == "amazon_kclpy"]:
            del sys.modules[name]


def run_sample(world, processor_class, **options):
    return world.worker(
        "a", lifecycle=lambda: kclpy.KclpyProcessor(processor_class()), checkpointing="manual", **options
    )


def test_the_sample_is_told_its_whole_life_and_its_checkpoints_stand(sample):
    world = World(shard_count=1)
    world.put(3)
    worker = run_sample(world, sample.RecordProcessor)
    world.run(20)
    last = world.kinesis.shards["shardId-000000000000"].records[-1].sequence_number
    assert [str(lease.checkpoint) for lease in world.table.scan().leases] == [f"{last}.0"]
    worker.runtime.request_stop()
    world.run(20, until=worker.runtime.has_ended.is_set)
    assert [
        ("initialize", "shardId-000000000000", "TRIM_HORIZON"),
        ("record", b"r0", "key0"),
        ("record", b"r1", "key1"),
        ("record", b"r2", "key2"),
        ("checkpointed", last, 0),
        ("shutdown_requested",),
        ("lease_lost",),
    ] == sample.EVENTS


def test_the_end_of_a_shard_is_checkpointed_by_the_processor_and_its_children_start(sample):
    world = World(shard_count=1)
    world.put(3)
    world.kinesis.split("shardId-000000000000")
    world.put(6, "child")
    run_sample(world, sample.RecordProcessor)
    world.run(30)
    kinds = [event[0] for event in sample.EVENTS]
    assert kinds[:6] == ["initialize", "record", "record", "record", "checkpointed", "shard_ended"]
    assert kinds.count("initialize") == 3
    assert {event[1] for event in sample.EVENTS if event[0] == "record"} == {
        b"r0",
        b"r1",
        b"r2",
        *(f"child{n}".encode() for n in range(6)),
    }


def test_a_processor_that_forgets_to_checkpoint_the_end_stops_its_shard_loudly(sample):
    class Forgetful(sample.RecordProcessor):
        def process_records(self, process_records_input):
            pass

        def shard_ended(self, shard_ended_input):
            pass

    world = World(shard_count=1)
    world.put(3)
    world.kinesis.split("shardId-000000000000")
    worker = run_sample(world, Forgetful, handler_retries_max=0)
    world.run(30)
    assert "3 records are not checkpointed" in str(
        worker.runtime.delivery.stopped.failures["shardId-000000000000"]
    )


def test_a_checkpoint_of_a_lost_lease_is_a_shutdown_exception(sample):
    inputs = []

    class Keeping(sample.RecordProcessor):
        def process_records(self, process_records_input):
            inputs.append(process_records_input)

    world = World(shard_count=1)
    world.put(3)
    worker = run_sample(world, Keeping)
    world.run(15)
    worker.table.is_cut = True
    world.run(30)
    sample.RecordProcessor().checkpoint(inputs[0].checkpointer)
    assert sample.EVENTS[-1] == ("refused", "ShutdownException")


def test_a_checkpoint_beyond_what_was_delivered_is_an_illegal_argument(sample):
    inputs = []

    class Keeping(sample.RecordProcessor):
        def process_records(self, process_records_input):
            inputs.append(process_records_input)

    world = World(shard_count=1)
    world.put(3)
    run_sample(world, Keeping)
    world.run(15)
    sample.RecordProcessor().checkpoint(inputs[0].checkpointer, "99999999", 0)
    assert sample.EVENTS[-1] == ("refused", "IllegalArgumentException")


def test_records_have_what_the_original_gives():
    world = World(shard_count=1)
    world.put(1)
    got = []

    class Plain:
        def initialize(self, given):
            assert given.sub_sequence_number == 0

        def process_records(self, given):
            got.extend(given.records)
            assert given.millis_behind_latest == 0

    run_sample(world, Plain)
    world.run(15)
    (record,) = got
    assert record.binary_data == b"r0"
    assert record.data == "cjA="
    assert record.sequence_number == "107"
    assert (record.sub_sequence_number, record.partition_key, record.timestamp_millis) == (
        0,
        "key0",
        1_000_000,
    )
    assert record.approximate_arrival_timestamp == datetime.fromtimestamp(1000)  # noqa: DTZ006 - without a zone, as there
    assert record.get("partitionKey") == "key0"


def test_a_program_that_waits_for_the_java_daemon_is_told_what_to_do(sample):
    from amazon_kclpy import kcl

    with pytest.raises(UsageError, match="consumer_for\\(RecordProcessor"):
        kcl.KCLProcess(sample.RecordProcessor()).run()


def test_the_error_is_the_installed_packages_own_where_it_is_loaded(sample):
    class TheirError(Exception):
        def __init__(self, value):
            self.value = value

    sys.modules["amazon_kclpy.kcl"].CheckpointError = TheirError
    assert isinstance(kclpy._checkpoint_error("X"), TheirError)
