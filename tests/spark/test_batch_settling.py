"""Promotions between batches: a claim that cannot become the checkpoint now, and one that never will."""

from __future__ import annotations

import pytest

from penstock.core.leases.lease import BatchClaim, Lease
from penstock.core.leases.lease_writes import Applied, Promote, Refusal, Refused
from penstock.core.position import TRIM_HORIZON, at_record
from penstock.errors import Unavailable
from penstock.runtime.system_clock import SystemClock
from penstock.runtime.threads import SYSTEM_THREADS
from penstock.spark.driver.batch_settling import BatchSettler
from penstock.spark.options.spark_options import parse_source

AT9 = at_record("9")
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


def open_settler(table, clock):
    options, _ = parse_source({"streamName": "s", "applicationName": "a", "region": "r"})
    return BatchSettler(
        options,
        table,
        None,
        clock=clock,
        threads=SYSTEM_THREADS,
        read=lambda *_: (),
        tasks_of=lambda *_: iter(()),
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
