"""What a failed call means for the reading of a shard."""

import pytest

from penstock.core.reading.reader_steps import FailureMeaning, judge_failure
from penstock.errors import (
    AccessDenied,
    ExpiredIterator,
    NotFound,
    PenstockError,
    Rejected,
    ResourceBusy,
    Throttled,
    Unavailable,
    UnknownOutcome,
    UnknownRefusal,
)


@pytest.mark.parametrize(
    ("error", "meaning"),
    [
        (ExpiredIterator("old"), FailureMeaning.ITERATOR_EXPIRED),
        (NotFound("no"), FailureMeaning.UNKNOWN_SHARD),
        (Rejected("no"), FailureMeaning.ITERATOR_REFUSED),
        (Throttled("slow"), FailureMeaning.TRANSIENT),
        (Unavailable("500"), FailureMeaning.TRANSIENT),
        (UnknownOutcome("reset"), FailureMeaning.TRANSIENT),
        (ResourceBusy("updating"), FailureMeaning.TRANSIENT),
        (UnknownRefusal("SomethingNew", code="SomethingNew"), FailureMeaning.TRANSIENT),
        (AccessDenied("no", code="NotAuthorized"), FailureMeaning.REFUSED),
        (AccessDenied("old", code="ExpiredTokenException"), FailureMeaning.TRANSIENT),
        (AccessDenied("no", code="AccessDeniedException"), FailureMeaning.REFUSED),
        (PenstockError("a defect"), FailureMeaning.FINAL),
    ],
)
def test_each_error_has_one_meaning(error, meaning):
    assert judge_failure(error, requested_iterator=False) is meaning


def test_a_refused_sequence_number_is_about_the_position():
    error = Rejected("its SequenceNumber did not come from this stream", code="InvalidArgumentException")
    assert judge_failure(error, requested_iterator=True) is FailureMeaning.POSITION_REFUSED


@pytest.mark.parametrize(
    "error",
    [
        Rejected("the StreamARN cannot be one", code="InvalidArgumentException"),
        Rejected("Value at 'shardId' failed to satisfy constraint", code="ValidationException"),
        Rejected("no such parameter"),
    ],
)
def test_another_mistake_is_not_about_the_position(error):
    assert judge_failure(error, requested_iterator=True) is FailureMeaning.REQUEST_REFUSED
