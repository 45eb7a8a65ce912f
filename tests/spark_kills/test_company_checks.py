"""Every check of a run in company finds what it is for: a right history passes, and one that is broken in one way does not."""

from __future__ import annotations

import dataclasses

import pytest
from checks import History, Row
from company_checks import CHECKS, CompanyHistory, Processed, Taken, everything_wrong
from msgspec.structs import replace

from penstock.core.leases.lease import BatchClaim, Lease
from penstock.core.position import SHARD_END, TRIM_HORIZON, at_record

PUT = [("k", f"k/{number}") for number in range(8)]


def claim(batch, start, end):
    return BatchClaim("first", batch, "run", start, end)


def right():
    """`first` reads 0 to 2 of the parent in two batches; a worker takes it by force behind 1 and reads on.

    `second` reads the child.
    """
    at = [at_record(str(number)) for number in range(10)]
    zero = claim(0, TRIM_HORIZON, at[1])
    one = claim(1, at[1], at[2])
    parent = Lease("parent")
    child = Lease("child", parents=frozenset({"parent"}))
    log = [
        parent,
        replace(parent, counter=1, owner="first"),
        replace(parent, counter=1, owner="first", claims=(zero,)),
        replace(parent, counter=2, owner="first", checkpoint=at[1], claims=(one,)),
        replace(parent, counter=2, owner="second", checkpoint_owner="first", checkpoint=at[1], claims=(one,)),
        replace(parent, counter=3, owner="kcl2-0", checkpoint=at[1], claims=(one,)),
        child,
        replace(parent, counter=4, owner="kcl2-0", checkpoint=SHARD_END, claims=(one,)),
        replace(child, counter=1, owner="second"),
        replace(
            child,
            counter=1,
            owner="second",
            claims=(replace(claim(0, TRIM_HORIZON, at[7]), worker="second"),),
        ),
        None,
    ]
    keys = [("parent" if row is None else row.key) for row in log]
    rows = [Row(0, "parent", n, 0, *PUT[n]) for n in (0, 1)] + [Row(1, "parent", 2, 0, *PUT[2])]
    return CompanyHistory(
        put=list(PUT),
        queries={
            "first": History(rows=rows, executions={0: [(2, "a")], 1: [(1, "b"), (1, "b")]}),
            "second": History(
                rows=[Row(0, "child", n, 0, *PUT[n]) for n in (6, 7)], executions={0: [(2, "c")]}
            ),
        },
        workers={
            "kcl2-0": [
                Taken("parent", "first", 3),
                *(Processed("parent", n, 0, *PUT[n]) for n in (2, 3, 4, 5)),
            ]
        },
        log=list(zip(keys, log, strict=True)),
    )


def test_a_run_in_company_without_fault_passes_every_check():
    assert everything_wrong(right()) == {}


def test_a_worker_that_takes_its_own_lease_again_may_repeat_what_is_behind_the_checkpoint():
    history = right()
    did = history.workers["kcl2-0"]
    key, row = history.log[5]
    history.log.insert(6, (key, replace(row, counter=9)))
    did[2:2] = [Taken("parent", "kcl2-0", 9), did[1]]
    assert everything_wrong(history) == {}


def other_execution(history):
    history.queries["first"].executions[1].append((1, "z"))
    return {"differing_executions"}


def actions_saw_different_rows(history):
    history.queries["second"].executions[0] = [(3, "c")]
    return {"miscounted"}


def record_lost(history):
    del history.workers["kcl2-0"][-1]
    return {"nowhere"}


def record_of_nobody(history):
    history.workers["kcl2-0"].append(Processed("parent", 6, 0, "k", "k/6"))
    history.workers["kcl2-0"].append(Processed("parent", 7, 0, "k", "other/7"))
    return {"invented"}


def repeated_what_was_checkpointed(history):
    did = history.workers["kcl2-0"]
    did.insert(1, Processed("parent", 1, 0, *PUT[1]))
    return {"too_often"}


def read_by_somebody_who_never_took_it(history):
    history.workers["kcl2-1"] = [Processed("parent", 5, 0, *PUT[5])]
    history.workers["kcl2-2"] = [Processed("parent", 5, 0, *PUT[5])]
    return {"too_often"}


def repeated_after_the_request_of_a_handover(history):
    history.workers["kcl2-1"] = [Processed("parent", 2, 0, *PUT[2])]
    return {"too_often"}


def worker_skipped_a_record(history):
    did = history.workers["kcl2-0"]
    did[3], did[4] = did[4], did[3]
    return {"out_of_order"}


def query_skipped_a_record(history):
    first = history.queries["first"]
    first.rows = [row for row in first.rows if row.data != "k/1"]
    first.executions[0] = [(1, "a")]
    return {"out_of_order", "nowhere"}


def rows_without_claim(history):
    history.queries["second"].rows[1] = dataclasses.replace(
        history.queries["second"].rows[1], sequence_number=8
    )
    return {"unclaimed"}


def child_before_its_parents_end(history):
    history.log[7] = ("parent", replace(history.log[7][1], checkpoint=at_record("5")))
    return {"children_before_parents"}


BREAKS = (
    other_execution,
    actions_saw_different_rows,
    record_lost,
    record_of_nobody,
    repeated_what_was_checkpointed,
    read_by_somebody_who_never_took_it,
    repeated_after_the_request_of_a_handover,
    worker_skipped_a_record,
    query_skipped_a_record,
    rows_without_claim,
    child_before_its_parents_end,
)


@pytest.mark.parametrize("break_it", BREAKS, ids=lambda each: each.__name__)
def test_a_history_in_company_that_is_broken_is_found_out(break_it):
    history = right()
    expected = break_it(history)
    assert set(everything_wrong(history)) == expected


def test_every_check_in_company_is_shown_to_fail():
    shown = set()
    for break_it in BREAKS:
        shown |= break_it(right())
    assert shown == {check.__name__ for check in CHECKS}
