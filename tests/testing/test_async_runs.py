"""Coroutine functions in runs of `penstock.testing`."""

from __future__ import annotations

import asyncio

import pytest

from penstock import testing
from penstock.consumer import AsyncBatch
from penstock.errors import HandlerFailed, LeaseLost, Unavailable, UsageError


def data_of(records):
    return [record.data for record in records]


async def do_nothing(batch):
    """A handler."""


def test_a_coroutine_function_is_run_on_the_loop_of_the_test():
    loops = []

    async def handle(batch):
        assert isinstance(batch, AsyncBatch)
        loops.append(asyncio.get_running_loop())
        await asyncio.sleep(0)

    async def test():
        run = await testing.run_async(handle, testing.records("a", "b"), max_records=1)
        assert (run.checkpoint, run.left, len(run.batches)) == (run.records[-1], [], 2)
        assert loops == [asyncio.get_running_loop()] * 2

    asyncio.run(test())


def test_retries_and_dead_letters_cost_no_time():
    async def handle(batch):
        await asyncio.sleep(0)
        if b"b" in data_of(batch):
            raise ValueError("no")

    run = asyncio.run(
        testing.run_async(
            handle,
            testing.records("a", "b", "c"),
            on_failure="dead_letter",
            handler_backoff_min_s=30.0,
        )
    )
    assert (run.dead_letters, run.checkpoint) == ([run.records[1]], run.records[2])
    assert {call.wait_s for call in run.retries} == {30.0}
    with pytest.raises(HandlerFailed):
        asyncio.run(testing.run_async(handle, testing.records("b")))
    failed = asyncio.run(testing.run_async(handle, testing.records("b"), may_fail=True))
    assert (failed.ended_by, failed.left) == ("failure", failed.records)


def test_a_checkpoint_is_awaited():
    async def handle(batch):
        await batch.checkpoint(batch[0])
        batch.acknowledge(batch[1])

    run = asyncio.run(testing.run_async(handle, testing.records("a", "b"), checkpointing="manual"))
    assert run.checkpoints == run.records


@pytest.mark.parametrize(
    ("faults", "kind"),
    [
        (testing.Faults(lease_lost_during=1), LeaseLost),
        (testing.Faults(refused_checkpoints=1), Unavailable),
    ],
)
def test_a_checkpoint_that_is_not_stored_raises(faults, kind):
    errors = []

    async def handle(batch):
        try:
            await batch.checkpoint()
        except (LeaseLost, Unavailable) as error:
            errors.append(type(error))

    asyncio.run(testing.run_async(handle, testing.records("a"), checkpointing="manual", faults=faults))
    assert errors == [kind]


def test_calls_for_different_keys_are_under_way_at_the_same_time():
    async def test():
        both = asyncio.Barrier(2)

        async def handle(batch):
            await both.wait()

        return await testing.run_async(handle, testing.records("a", "b"), concurrency=2)

    run = asyncio.run(test())
    assert run.checkpoint == run.records[-1]


def test_a_processor_of_coroutines_learns_of_the_whole_life_of_its_shard():
    class Store:
        async def on_start(self, shard_id, position):
            """It begins."""

        async def on_batch(self, batch):
            """It does nothing."""

        async def on_end(self, shard):
            shard.acknowledge_through(shard.last_delivered)
            await shard.store_checkpoint()

        async def on_stop(self, shard):
            """It stops."""

        async def on_lost(self):
            """It has ended."""

    run = asyncio.run(
        testing.run_async(
            None,
            testing.records("a"),
            processor_factory=Store,
            checkpointing="manual",
            shard_ends=True,
        )
    )
    assert ([call.kind for call in run.calls], run.ended_by) == (["start", "records", "end"], "shard_end")


def test_a_plain_function_is_refused():
    with pytest.raises(UsageError, match=r"penstock\.Consumer"):
        asyncio.run(testing.run_async(lambda batch: None, testing.records("a")))


def test_a_failure_of_the_test_itself_ends_it():
    async def handle(batch):
        pytest.fail("the test says so")

    with pytest.raises(pytest.fail.Exception, match="the test says so"):
        asyncio.run(testing.run_async(handle, testing.records("a"), may_fail=True))


def test_nothing_is_left_behind_on_the_loop():
    async def test():
        await testing.run_async(do_nothing, testing.records("a"))
        return asyncio.all_tasks() - {asyncio.current_task()}

    assert asyncio.run(test()) == set()
