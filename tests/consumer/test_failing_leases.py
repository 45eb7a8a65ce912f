"""A worker whose lease writes fail while its reads work: its health, and what becomes of its work."""

from collections import Counter

import pytest
from virtual_world import World

from penstock.errors import AccessDenied, Rejected, Throttled, Unavailable, UnknownOutcome, UnknownRefusal

LEASE_S = 9.0
ERRORS = [
    Unavailable("file:///leases: cannot write: [Errno 28] No space left on device"),
    Unavailable("file:///leases: cannot write: [Errno 30] Read-only file system"),
    Unavailable("file:///leases: cannot write: [Errno 122] Disk quota exceeded"),
    AccessDenied("file:///leases: cannot write: [Errno 13] Permission denied"),
    AccessDenied("UpdateItem on lease table app: KMSAccessDeniedException: the ciphertext refers to a key"),
    AccessDenied("PutObject on lease table s3://b/app: ExpiredToken: The provided token has expired"),
    Throttled("UpdateItem on lease table app: ProvisionedThroughputExceededException: too fast"),
    Unavailable("PutObject on lease table s3://b/app: SlowDown: Please reduce your request rate"),
    UnknownOutcome("UpdateItem on lease table app: InternalServerError: x"),
    UnknownOutcome("UpdateItem on lease table app: sent, and no whole answer came: ReadTimeoutError"),
    Rejected("UpdateItem on lease table app: ValidationException: x"),
    UnknownRefusal("UpdateItem on lease table app: TeapotException: x"),
]


def health(worker):
    return worker.runtime.health("app")


def fail_writes(worker, error):
    """Let every lease write of a worker fail; return how to let them work again."""
    works = worker.table.write

    def write(_):
        raise error

    def heal():
        worker.table.write = works

    worker.table.write = write
    return heal


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: str(error)[-28:])
def test_a_worker_names_the_error_of_its_lease_writes_and_goes_on_when_they_work(error):
    world = World(shard_count=2)
    world.put(20)
    worker = world.worker("a")
    world.run(20)
    assert (health(worker).is_healthy, health(worker).is_ready) == (True, True)
    heal = fail_writes(worker, error)
    world.run(15)
    world.put(20)
    world.run(60)
    sick = health(worker)
    assert (sick.is_healthy, sick.is_ready) == (False, False)
    assert any("renewing leases has failed" in each and str(error) in each for each in sick.problems)
    assert len(worker.data()) == 20  # the leases are lost
    heal()
    world.run(30)
    well = health(worker)
    assert (well.is_healthy, well.is_ready, well.problems) == (True, True, ())
    assert Counter(worker.data()) == {f"r{number}".encode(): 2 for number in range(20)}


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: str(error)[-28:])
def test_a_new_worker_that_cannot_create_or_take_leases_names_the_error(error):
    world = World(shard_count=2)
    world.put(20)
    worker = world.worker("a")
    heal = fail_writes(worker, error)
    world.run(60)
    sick = health(worker)
    assert (sick.is_healthy, sick.is_ready) == (False, False)
    assert any("leases has failed" in each and str(error) in each for each in sick.problems)
    heal()
    world.run(30)
    assert health(worker).problems == ()
    assert len(worker.data()) == len(set(worker.data())) == 20


def test_a_worker_that_cannot_read_is_not_ready_and_says_so_each_minute(caplog):
    world = World(shard_count=1)
    worker = world.worker("a")
    world.run(20)
    works = world.kinesis.fetch_records

    def fail(*_):
        raise Unavailable("GetRecords on stream orders: InternalFailure: x")

    world.kinesis.fetch_records = fail
    world.run(130)
    sick = health(worker)
    assert (sick.is_healthy, sick.is_ready) == (False, False)
    assert [each for each in sick.problems if "cannot be read: GetRecords on stream orders" in each]
    errors = [each.message for each in caplog.records if "cannot be read" in each.message]
    assert len(errors) == 2
    world.kinesis.fetch_records = works
    world.run(60)
    assert (health(worker).is_ready, health(worker).problems) == (True, ())


@pytest.mark.parametrize("duration_s", [1.0, 2.0, 3.0, 4.0])
def test_writes_that_fail_for_a_few_seconds_are_no_problem(duration_s):
    world = World(shard_count=2)
    worker = world.worker("a")
    world.run(20)
    for _ in range(10):
        heal = fail_writes(worker, Throttled("too fast"))
        world.run(duration_s)
        assert health(worker).problems == ()
        heal()
        world.run(2 * LEASE_S)
        assert health(worker).problems == ()
    assert (health(worker).is_ready, worker.runtime.leases.snapshot().held_leases != ()) == (True, True)


def test_another_worker_that_can_write_takes_over_and_the_first_one_is_well_again_beside_it():
    world = World(shard_count=2)
    world.put(20)
    first, second = world.worker("a"), world.worker("b")
    world.run(60)
    heal = fail_writes(first, Unavailable("No space left on device"))
    world.run(15)
    world.put(20)
    world.run(60)
    assert not health(first).is_ready
    assert health(second).problems == ()
    assert len(first.data()) + len(second.data()) == 40
    heal()
    world.run(90)
    assert health(first).problems == health(second).problems == ()
    assert set(world.owners().values()) == {"a", "b"}
