"""Two processes of one worker id, on a copied configuration or while a deployment overlaps."""

import pytest
from virtual_world import World

from penstock.errors import WorkerIdInUse

LEASE_S = 9.0


def delivered(world) -> list[bytes]:
    return [data for worker in world.workers for data in worker.data()]


def put_while(world, duration_s: float, *, first: int = 0) -> int:
    """Put a record each half a second; return the number of the next one."""
    for number in range(first, first + int(2 * duration_s)):
        world.kinesis.put(f"key{number}", b"%d" % number)
        world.run(0.5)
    world.run(3)
    return first + int(2 * duration_s)


def test_the_earlier_of_two_workers_with_one_id_ends_with_an_error_and_the_way_out():
    world = World(shard_count=2)
    first = world.worker("a")
    world.run(20)
    second = world.worker("a")
    count = put_while(world, 40)
    assert isinstance(first.runtime.failure, WorkerIdInUse)
    text = str(first.runtime.failure)
    assert "another process works under this worker's id, a," in text
    assert "lease table app" in text
    assert "Give each process an id of its own" in text
    assert first.runtime.has_ended.is_set()
    assert second.runtime.failure is None
    assert second.runtime.health("app").is_healthy
    assert world.owners() == dict.fromkeys(world.owners(), "a")
    assert set(delivered(world)) == {b"%d" % number for number in range(count)}


def test_of_three_workers_with_one_id_the_last_goes_on():
    world = World(shard_count=3)
    for _ in range(3):
        world.worker("a")
        world.run(1)
    put_while(world, 60)
    assert [type(worker.runtime.failure) for worker in world.workers] == [
        WorkerIdInUse,
        WorkerIdInUse,
        type(None),
    ]


def test_a_worker_that_was_killed_has_its_leases_back_at_once():
    world = World(shard_count=4)
    killed = world.worker("a")
    world.run(20)
    killed.is_paused = True
    world.workers.remove(killed)
    again = world.worker("a")
    world.run(0.1)
    assert len(world.held_by(again)) == 4
    assert len(again.runtime.health("app").shards) == 4
    count = put_while(world, 60)
    assert again.runtime.failure is None
    assert sorted(again.data(), key=int) == [b"%d" % number for number in range(count)]


@pytest.mark.parametrize("pause_s", [0.3 * LEASE_S, 5 * LEASE_S])
def test_a_worker_that_was_stopped_for_a_while_finds_its_successor_and_ends(pause_s):
    world = World(shard_count=2)
    stopped = world.worker("a")
    count = put_while(world, 20)
    stopped.is_paused = True
    successor = world.worker("a")
    count = put_while(world, pause_s, first=count)
    stopped.is_paused = False
    count = put_while(world, 40, first=count)
    assert isinstance(stopped.runtime.failure, WorkerIdInUse)
    assert successor.runtime.failure is None
    records = [b"%d" % number for number in range(count)]
    assert set(delivered(world)) == set(records)
    assert pause_s < LEASE_S or sorted(delivered(world), key=int) == records


def test_a_worker_that_was_cut_off_from_its_table_finds_its_successor_and_ends():
    world = World(shard_count=2)
    first = world.worker("a")
    count = put_while(world, 20)
    first.table.is_cut = True
    successor = world.worker("a")
    count = put_while(world, 3 * LEASE_S, first=count)
    first.table.is_cut = False
    count = put_while(world, 40, first=count)
    assert isinstance(first.runtime.failure, WorkerIdInUse)
    assert successor.runtime.failure is None
    assert set(delivered(world)) == {b"%d" % number for number in range(count)}


def test_a_worker_beside_others_whose_id_is_taken_leaves_no_shard_unread():
    world = World(shard_count=4)
    world.worker("a")
    world.worker("b")
    world.run(60)
    world.worker("a")
    count = put_while(world, 60)
    failures = [worker.runtime.failure for worker in world.workers]
    assert [type(failure) for failure in failures] == [WorkerIdInUse, type(None), type(None)]
    assert sorted(world.owners().values()) == ["a", "a", "b", "b"]
    assert set(delivered(world)) == {b"%d" % number for number in range(count)}


def test_a_successor_that_dies_at_once_leaves_the_leases_to_the_worker_that_lives():
    world = World(shard_count=2)
    first = world.worker("a")
    world.run(20)
    successor = world.worker("a")
    world.run(0.1)
    successor.is_paused = True
    count = put_while(world, 60)
    assert first.runtime.failure is None
    assert set(first.data()) == {b"%d" % number for number in range(count)}
    assert first.runtime.health("app").is_healthy
