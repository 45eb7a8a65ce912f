"""The errors of the ports as problems of the lease coordinator."""

from __future__ import annotations

import logging

from penstock.core.leases.coordinator_events import Problem
from penstock.core.safe_text import describe_error
from penstock.errors import (
    NotFound,
    OptionError,
    ServiceError,
    StreamChanged,
    Throttled,
    Unavailable,
    UnknownOutcome,
    UnknownRefusal,
)

log = logging.getLogger("penstock.leases")


def problem_of(error: Exception, missing: Problem = Problem.TABLE_MISSING) -> Problem:
    """Return the problem of a call that raised an error.

    Args:
        error: The error.
        missing: The problem for `NotFound`: a missing table or a missing stream.
    """
    if isinstance(error, Throttled):
        return Problem.THROTTLED
    if isinstance(error, NotFound):
        return missing
    if isinstance(error, Unavailable | UnknownOutcome | UnknownRefusal):
        return Problem.UNAVAILABLE
    if isinstance(error, ServiceError | StreamChanged | OptionError):
        return Problem.REFUSED
    log.error("a call failed in an unexpected way", exc_info=error)
    return Problem.UNAVAILABLE


def detail_of(error: Exception) -> str:
    """Return the error in one line."""
    return describe_error(error)
