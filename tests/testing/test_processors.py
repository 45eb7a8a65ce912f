"""Processors with a lifecycle, those written for amazon_kclpy among them, in runs of `penstock.testing`."""

from __future__ import annotations

import pytest

from penstock import testing
from penstock.consumer import kclpy
from penstock.errors import HandlerFailed


class Store:
    """A processor as a user writes it: it checkpoints every second record, and at the end."""

    def __init__(self):
        self.count = 0

    def on_start(self, shard_id, position):
        self.started = (shard_id, str(position))

    def on_batch(self, batch):
        for record in batch:
            self.count += 1
            if self.count % 2 == 0:
                batch.checkpoint(record)

    def on_end(self, shard):
        shard.acknowledge_through(shard.last_delivered)
        shard.store_checkpoint()

    def on_stop(self, shard):
        """Nothing is left to do."""

    def on_lost(self):
        """Nothing is left to do."""


def kinds_of(run):
    return [call.kind for call in run.calls]


def test_a_processor_learns_of_the_whole_life_of_its_shard():
    made = []

    def make():
        made.append(Store())
        return made[-1]

    run = testing.run_processor(make, testing.records("a", "b", "c"), checkpointing="manual")
    assert (kinds_of(run), run.checkpoint) == (["start", "records", "stop", "lost"], run.records[1])
    assert [each.started for each in made] == [("shardId-000000000000", "TRIM_HORIZON")]
    run = testing.run_processor(make, testing.records("a", "b", "c"), checkpointing="manual", shard_ends=True)
    assert (kinds_of(run), run.checkpoint) == (["start", "records", "end"], run.records[-1])
    run = testing.run_processor(
        make,
        testing.records("a", "b"),
        max_records=1,
        checkpointing="manual",
        faults=testing.Faults(lease_lost_after=1),
    )
    assert (kinds_of(run), run.checkpoint) == (["start", "records", "lost"], None)


def test_a_shard_that_begins_with_no_records_is_told_so_too():
    run = testing.run_processor(Store, testing.records(), shard_ends=True)
    assert (kinds_of(run), run.ended_by) == (["start", "end"], "shard_end")


def test_a_beginning_that_fails_is_repeated():
    class Late(Store):
        attempts = 0

        def on_start(self, shard_id, position):
            Late.attempts += 1
            if Late.attempts < 3:
                raise ConnectionError("not yet")

    run = testing.run_processor(Late, testing.records("a"))
    assert [(call.kind, call.attempt, call.wait_s) for call in run.calls[:3]] == [
        ("start", 1, 0.0),
        ("start", 2, 0.2),
        ("start", 3, 0.4),
    ]
    assert run.checkpoint == run.records[0]


class Orders(kclpy.RecordProcessorBase):
    """A processor as amazon_kclpy's sample has it."""

    checkpoint_error = None

    def __init__(self):
        self.said = []

    def initialize(self, initialize_input):
        self.said.append(("initialize", initialize_input.shard_id, initialize_input.sequence_number))

    def process_records(self, process_records_input):
        for record in process_records_input.records:
            if record.binary_data == b"bad":
                raise ValueError("bad")
        last = process_records_input.records[-1]
        try:
            process_records_input.checkpointer.checkpoint(last.sequence_number, last.sub_sequence_number)
        except kclpy.CheckpointError as error:
            self.said.append(("refused", error.value))

    def lease_lost(self, lease_lost_input):
        self.said.append("lease_lost")

    def shard_ended(self, shard_ended_input):
        shard_ended_input.checkpointer.checkpoint()

    def shutdown_requested(self, shutdown_requested_input):
        shutdown_requested_input.checkpointer.checkpoint()


def test_a_processor_of_kclpy_runs_unchanged():
    processor = Orders()
    run = testing.run_kclpy(lambda: processor, testing.records("a") + testing.aggregate("b", "c"))
    assert kinds_of(run) == ["start", "records", "stop", "lost"]
    assert run.checkpoint == run.records[2]
    assert processor.said == [("initialize", "shardId-000000000000", "TRIM_HORIZON"), "lease_lost"]
    ended = testing.run_kclpy(Orders, testing.records("a"), shard_ends=True)
    assert (kinds_of(ended), ended.ended_by) == (["start", "records", "end"], "shard_end")


def test_a_processor_of_kclpy_that_does_not_checkpoint_the_end_of_its_shard_fails():
    class Forgets(Orders):
        def process_records(self, process_records_input):
            """It stores nothing."""

        def shard_ended(self, shard_ended_input):
            """It forgets the checkpoint."""

    with pytest.raises(HandlerFailed, match="not checkpointed"):
        testing.run_kclpy(Forgets, testing.records("a"), shard_ends=True)


@pytest.mark.parametrize(
    ("faults", "value"),
    [
        (testing.Faults(lease_lost_during=1), "ShutdownException"),
        (testing.Faults(refused_checkpoints=1), "InvalidStateException"),
    ],
)
def test_a_refused_checkpoint_has_the_name_of_the_kcl(faults, value):
    processor = Orders()
    testing.run_kclpy(lambda: processor, testing.records("a"), faults=faults)
    assert ("refused", value) in processor.said


def test_a_record_that_a_processor_of_kclpy_cannot_take_goes_to_the_dead_letters():
    run = testing.run_kclpy(Orders, testing.records("a", "bad", "b"), on_failure="dead_letter")
    assert (run.dead_letters, run.checkpoint) == ([run.records[1]], run.records[2])
