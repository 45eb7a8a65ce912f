"""Between the put batcher and the port: requests as entries, errors as what the batcher makes of them."""

from __future__ import annotations

from typing import Final

from penstock.core.writing.batcher_steps import Failure
from penstock.errors import ResourceBusy, ServiceError, Throttled, Unavailable, UnknownOutcome

RETRIED_ERRORS: Final = (Throttled, Unavailable, ResourceBusy, UnknownOutcome)
"""After these a request is sent again; every other error of the service is final."""


def failure_of(error: ServiceError) -> Failure:
    """Give what one of `RETRIED_ERRORS` means to the batcher."""
    if isinstance(error, UnknownOutcome):
        return Failure.UNKNOWN
    return Failure.THROTTLED if isinstance(error, Throttled) else Failure.UNAVAILABLE
