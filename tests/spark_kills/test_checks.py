"""Every check of a run finds what it is for: a right history passes, and one that is broken in one way does not."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from checks import CHECKS, History, Row, everything_wrong

from penstock.core.batches.offsets import StreamOffset
from penstock.core.position import at_record
from penstock.spark.monitoring.progress import with_report


def offset_text(batch):
    offset = StreamOffset(batch=batch, worker="w", shards={"s1": at_record("5"), "s0": at_record("7", 2)})
    document = offset.to_json()
    return json.dumps(with_report(document, {"records": 3}) if batch == 1 else document)


def right():
    put = [(f"k{number % 2}", f"k{number % 2}/{number // 2}") for number in range(8)]
    rows = [
        Row(0, "parent", 10, 0, *put[0]),
        Row(0, "parent", 11, 0, *put[1]),
        Row(0, "parent", 11, 1, *put[3]),
        Row(1, "parent", 12, 0, *put[2]),
        Row(2, "child", 20, 0, *put[4]),
        Row(2, "child", 21, 0, *put[5]),
        Row(3, "child", 22, 0, *put[6]),
        Row(3, "child", 23, 0, *put[7]),
    ]
    return History(
        put=put,
        rows=rows,
        executions={0: [(3, "a"), (3, "a")], 1: [(1, "b")], 2: [(2, "c")], 3: [(2, "d")]},
        parents={"parent": (), "child": ("parent",)},
        offsets={0: offset_text(1), 1: offset_text(2)},
        copied=[*put, put[0]],
    )


def test_a_run_without_fault_passes_every_check():
    assert everything_wrong(right()) == {}


def other_replay(history):
    history.executions[0].append((3, "z"))
    return {"differing_replays"}


def actions_saw_different_rows(history):
    history.executions[1] = [(2, "b")]
    return {"miscounted_batches"}


def row_lost(history):
    del history.rows[-1]
    history.executions[3] = [(1, "d")]
    return {"lost", "keys_out_of_order"}


def row_twice(history):
    history.rows.append(replace(history.rows[-1], sequence_number=24))
    history.executions[3] = [(3, "d")]
    return {"repeated", "keys_out_of_order"}


def child_in_its_parents_batch(history):
    history.rows[4] = replace(history.rows[4], batch=1)
    history.executions |= {1: [(2, "b")], 2: [(1, "c")]}
    return {"children_too_early"}


def key_out_of_order(history):
    one, other = history.rows[4], history.rows[6]
    history.rows[4], history.rows[6] = replace(one, data=other.data), replace(other, data=one.data)
    return {"keys_out_of_order"}


def offset_not_canonical(history):
    document = json.loads(history.offsets[1])
    history.offsets[1] = json.dumps(dict(reversed(document.items())), separators=(",", ":"))
    return {"bad_offsets"}


def offset_of_somebody_else(history):
    history.offsets[1] = '{"topic":{"0":5}}'
    return {"bad_offsets"}


def batch_number_goes_back(history):
    history.offsets = {0: offset_text(2), 1: offset_text(1)}
    return {"bad_offsets"}


def not_written_by_the_sink(history):
    history.copied = [each for each in history.copied if each != history.put[-1]]
    return {"not_copied", "copied_out_of_order"}


def sink_out_of_order(history):
    history.copied = [history.put[2], history.put[0], *history.put[1:2], *history.put[3:]]
    return {"copied_out_of_order"}


BREAKS = (
    other_replay,
    actions_saw_different_rows,
    row_lost,
    row_twice,
    child_in_its_parents_batch,
    key_out_of_order,
    offset_not_canonical,
    offset_of_somebody_else,
    batch_number_goes_back,
    not_written_by_the_sink,
    sink_out_of_order,
)


@pytest.mark.parametrize("break_it", BREAKS, ids=lambda each: each.__name__)
def test_a_history_that_is_broken_is_found_out(break_it):
    history = right()
    expected = break_it(history)
    assert set(everything_wrong(history)) == expected


def test_every_check_is_shown_to_fail():
    shown = set()
    for break_it in BREAKS:
        shown |= break_it(right())
    assert shown == {check.__name__ for check in CHECKS}
