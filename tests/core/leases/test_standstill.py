"""When a worker can move none of its leases."""

import pytest

from penstock.core.leases.held_lease_phases import (
    HeldLeaseStatus,
    LeasePhase,
    describe_stop,
    is_standstill,
    stop_reason,
)
from penstock.errors import (
    AccessDenied,
    DataLossError,
    HandlerFailed,
    NotFound,
    Rejected,
    StreamChanged,
)


def lease(key, phase, *parents):
    return HeldLeaseStatus(key, 1, phase, 0.0, frozenset(parents))


@pytest.mark.parametrize(
    ("held", "expected"),
    [
        ([], False),
        ([lease("a", LeasePhase.READING)], False),
        ([lease("a", LeasePhase.PARKED)], True),
        ([lease("a", LeasePhase.PARKED), lease("b", LeasePhase.PARKED)], True),
        ([lease("a", LeasePhase.PARKED), lease("b", LeasePhase.READING)], False),
        ([lease("a", LeasePhase.PARKED), lease("b", LeasePhase.DRAINED)], False),
        ([lease("a", LeasePhase.PARKED), lease("b", LeasePhase.STOPPED)], False),
        # A child of the stopped shard, and its child.
        (
            [
                lease("c", LeasePhase.WAITING, "b"),
                lease("b", LeasePhase.WAITING, "a", "x"),
                lease("a", LeasePhase.PARKED),
            ],
            True,
        ),
        # A child of a shard that another worker reads.
        ([lease("a", LeasePhase.PARKED), lease("b", LeasePhase.WAITING, "x")], False),
        ([lease("b", LeasePhase.WAITING, "a")], False),
    ],
)
def test_a_worker_stands_still_when_nothing_that_it_holds_can_move(held, expected):
    assert is_standstill(held) is expected


@pytest.mark.parametrize(
    ("error", "word"),
    [
        (HandlerFailed("x"), "handler_failed"),
        (DataLossError("x"), "data_loss"),
        (StreamChanged("x"), "stream_changed"),
        (NotFound("x"), "not_found"),
        (AccessDenied("x"), "access_denied"),
        (Rejected("x"), "read_failed"),
    ],
)
def test_a_reason_is_one_of_few_words(error, word):
    assert stop_reason(error) == word


def test_a_stop_is_described_in_one_short_line_with_the_failure_behind_it():
    error = HandlerFailed("shard s: user code failed 6 times on 3 records ...")
    error.__cause__ = ValueError("no such customer")
    assert describe_stop(error) == "handler_failed: ValueError: no such customer"
    assert describe_stop(NotFound("the stream is gone")) == "not_found: the stream is gone"
    long = describe_stop(DataLossError("x" * 1000))
    assert len(long) == 200
    assert long.endswith("xxx...")
