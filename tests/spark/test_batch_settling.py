"""Promotions between batches, and a batch whose leases another driver has reset."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from msgspec import Struct
from msgspec.structs import replace

from penstock.core.batches.offsets import StreamOffset
from penstock.core.batches.query_shards import QueryShards
from penstock.core.batches.rewind import plan_rewind
from penstock.core.leases.coordinator_effects import StartReader
from penstock.core.leases.lease import BatchClaim, Lease
from penstock.core.leases.lease_rules import apply_write
from penstock.core.leases.lease_writes import Applied, Promote, Refusal, Refused
from penstock.core.position import TRIM_HORIZON, at_record
from penstock.errors import AnotherDriver, Unavailable
from penstock.runtime.system_clock import SystemClock
from penstock.runtime.threads import SYSTEM_THREADS
from penstock.spark.driver.batch_settling import BatchSettler
from penstock.spark.driver.batch_tasks import PlannedBatch
from penstock.spark.options.spark_options import parse_source

AT5, AT7, AT9 = (at_record(number) for number in ("5", "7", "9"))
CLAIM = BatchClaim("q", 1, "run", TRIM_HORIZON, AT9)
ROW = Lease("s", 3, "q", claims=(CLAIM,))
WRITE = Promote("s", "q", 1, AT9)
LATER = Promote("s", "q", 2, at_record("12"))


class Standing:
    """A clock that stands still."""

    now_s = 0.0

    def monotonic_s(self):
        return self.now_s


class Answering:
    """A lease table that gives one answer to every write."""

    def __init__(self, answer):
        self.answer = answer

    def write(self, write):
        assert write in (WRITE, LATER)
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer


class Shards:
    """A query's shards with one promotion."""

    def __init__(self):
        self.done = []
        self.write = WRITE

    def promotions(self):
        return [self.write]

    def on_promoted(self, keys):
        self.done = [key for key in keys if key]


def open_settler(table, clock, *, read_shard=lambda *_: (), tasks=()):
    options, _ = parse_source({"streamName": "s", "applicationName": "app", "region": "r"})
    return BatchSettler(
        options,
        table,
        SimpleNamespace(recreate_missing=lambda *_: False),
        clock=clock,
        threads=SYSTEM_THREADS,
        read_shard=read_shard,
        parts_of=lambda *_: iter(tasks),
    )


@pytest.mark.parametrize(
    ("answer", "is_done"),
    [
        (Applied(ROW), True),
        (Refused(Refusal.CLAIM_GONE, Lease("s", 3, "q")), True),
        (Refused(Refusal.OWNER, Lease("s", 4, "other", claims=(CLAIM,))), True),
        (Refused(Refusal.BACKWARDS, Lease("s", 4, "q", at_record("12"), claims=(CLAIM,))), True),
        (Refused(Refusal.MISSING, None), True),
        (Refused(Refusal.COUNTER, ROW), False),
        (Unavailable("no answer"), False),
    ],
    ids=[
        "applied",
        "no claim",
        "another owner",
        "further on",
        "no row",
        "a row that would take it",
        "no answer",
    ],
)
def test_a_promotion_is_given_up_only_where_the_row_says_why(answer, is_done):
    settler = open_settler(Answering(answer), SystemClock())
    shards = Shards()
    try:
        settler.promote(shards, at_once=True)
    finally:
        settler.close()
    assert shards.done == (["s"] if is_done else [])


def test_a_shard_is_promoted_after_a_third_of_a_lease_duration_without_a_batch():
    clock = Standing()
    settler, shards = open_settler(Answering(Applied(ROW)), clock), Shards()
    done = []
    try:
        for clock.now_s, write in ((0.0, WRITE), (3.0, LATER), (6.3, LATER), (6.4, LATER)):
            shards.write = write
            settler.promote(shards, at_once=False)
            done.append(shards.done)
    finally:
        settler.close()
    assert done == [[], [], [], ["s"]]


# --- a paused driver, and one on an older copy of its checkpoint location ------------------------------------------

FIRST = BatchClaim("q", 1, "one", AT5, AT7, planned_by="one")
SECOND = BatchClaim("q", 2, "one", AT7, AT9, earlier=FIRST.past_claims(1), planned_by="one")


class Row:
    """A lease table of one row."""

    def __init__(self, row):
        self.row = row

    def scan(self):
        return SimpleNamespace(leases=(self.row,), skipped_rows=())

    def fetch_many(self, _):
        return self.scan()


class Task(Struct):
    """A task of a batch in the shard."""

    shard_id: str = "s"
    until_ms: int | None = None


def row_with(*claims):
    return Lease("s", 3, "q", claims[0].start if claims else AT5, claims=claims)


def offset(batch, position):
    return StreamOffset(batch=batch, worker="q", shards={"s": position}, runs=((1, "one"),))


def reset_by_another(row, known):
    """Return a row after a driver on an older copy of the location has reset and taken it."""
    outcome = apply_write(row, plan_rewind({"s": row}, known, "q", {}, "two")["s"])
    return replace(outcome.lease, owner="q")


def settle_second_batch(row, *, seen):
    """Settle batch 2, of which the driver planned the tasks at the first row. Return the shards whose end it claims."""
    shards, claimed = QueryShards("q"), []
    shards.on_start_reader(StartReader("s", 1, AT5, seen, 0.0), 1)
    shards.settle(offset(1, AT5), {"s": seen}, 1, 1.0)
    planned = PlannedBatch(offset(2, shards.states["s"].position), 1)
    shards.on_batch_start()
    settler = open_settler(
        Row(row),
        SystemClock(),
        read_shard=lambda task, _: claimed.append(task.shard_id) or (),
        tasks=[Task()],
    )
    try:
        settler.settle(planned.offset, planned, SimpleNamespace(shards=shards, stream=None))
    finally:
        settler.close()
    return claimed


OLDER_COPIES = pytest.mark.parametrize(
    "known",
    [
        offset(1, AT5),  # whose last batch has an end in the claim
        replace(offset(1, AT5), shards={}),  # whose last batch did not read the shard
    ],
    ids=["with the end of its last batch", "without"],
)


@OLDER_COPIES
def test_a_paused_driver_claims_no_end_again_if_another_one_has_reset_the_lease(known):
    row = reset_by_another(row_with(SECOND), known)
    with pytest.raises(AnotherDriver, match=r"shard s: .* during batch 2"):
        settle_second_batch(row, seen=row_with(FIRST))


def test_a_lease_that_was_reset_and_not_taken_ends_the_paused_driver_too():
    row = replace(reset_by_another(row_with(SECOND), offset(1, AT5)), owner=None)
    with pytest.raises(AnotherDriver, match=r"shard s: .* during batch 2"):
        settle_second_batch(row, seen=row_with(FIRST))


@pytest.mark.parametrize("claims", [(FIRST,), ()], ids=["as it was", "created again"])
def test_a_driver_claims_the_end_of_a_batch_that_no_action_read(claims):
    assert settle_second_batch(row_with(*claims), seen=row_with(FIRST)) == ["s"]
