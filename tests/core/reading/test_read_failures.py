"""What a failed call means for the reading of a shard."""

import pytest

from penstock.core.reading.read_failures import FailureMeaning, judge_failure
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
)


@pytest.mark.parametrize(
    ("error", "meaning"),
    [
        (ExpiredIterator("old"), FailureMeaning.ITERATOR_EXPIRED),
        (NotFound("no"), FailureMeaning.UNKNOWN_SHARD),
        (Rejected("no"), FailureMeaning.ITERATOR_REFUSED),
        (Throttled("slow"), FailureMeaning.PASSES),
        (Unavailable("500"), FailureMeaning.PASSES),
        (UnknownOutcome("reset"), FailureMeaning.PASSES),
        (ResourceBusy("updating"), FailureMeaning.PASSES),
        (AccessDenied("old", code="ExpiredTokenException"), FailureMeaning.PASSES),
        (AccessDenied("no", code="AccessDeniedException"), FailureMeaning.STUBBORN),
        (PenstockError("a defect"), FailureMeaning.FINAL),
    ],
)
def test_each_error_has_one_meaning(error, meaning):
    assert judge_failure(error, has_iterator=True) is meaning


def test_a_refusal_without_an_iterator_is_about_the_position():
    assert judge_failure(Rejected("no"), has_iterator=False) is FailureMeaning.POSITION_REFUSED
