"""What an error of a port means to the lease coordinator."""

from __future__ import annotations

import logging

from penstock.core.leases.coordinator_events import Problem
from penstock.core.safe_text import describe_error
from penstock.errors import NotFound, ServiceError, StreamChanged, Throttled, Unavailable, UnknownOutcome

log = logging.getLogger("penstock.leases")


def problem_of(error: Exception, missing: Problem = Problem.TABLE_MISSING) -> Problem:
    """Return why a call that raised this gave no answer.

    Args:
        error: What it raised.
        missing: What there is not where the service knows nothing of the name.
    """
    if isinstance(error, Throttled):
        return Problem.THROTTLED
    if isinstance(error, NotFound):
        return missing
    if isinstance(error, Unavailable | UnknownOutcome):
        return Problem.UNAVAILABLE
    if isinstance(error, ServiceError | StreamChanged):
        return Problem.REFUSED
    log.error("a call failed in an unexpected way", exc_info=error)
    return Problem.UNAVAILABLE


def detail_of(error: Exception) -> str:
    """Return the error in one line."""
    return describe_error(error)
