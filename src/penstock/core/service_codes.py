"""The meaning of the service's error codes, in the answer to a call or to one entry of PutRecords.

A code means the same in both places. Codes that are not listed here are judged by their name if it says enough. Of
all others nothing is known, and the caller decides how long to go on trying.

Source:
    The API references' common errors, and those of the operations used; botocore's lists of throttling and transient
    codes (`botocore.retries.standard`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from penstock.errors import (
    AccessDenied,
    ExpiredIterator,
    NotFound,
    ResourceBusy,
    ServiceError,
    Throttled,
    Unavailable,
)

_KINDS: Final[Mapping[str, type[ServiceError]]] = {
    "ProvisionedThroughputExceededException": Throttled,
    "ProvisionedThroughputExceeded": Throttled,
    "LimitExceededException": Throttled,
    "RequestLimitExceeded": Throttled,
    "BandwidthLimitExceeded": Throttled,
    "TooManyRequestsException": Throttled,
    "PriorRequestNotComplete": Throttled,
    "SlowDown": Throttled,
    "RequestTimeout": Unavailable,
    "RequestTimeoutException": Unavailable,
    "TransactionInProgressException": Unavailable,
    "ExpiredIteratorException": ExpiredIterator,
    "OperationTimeoutException": Unavailable,
    "ResourceNotFoundException": NotFound,
    "EntityNotFoundException": NotFound,
    "ResourceInUseException": ResourceBusy,
    "ConcurrentModificationException": ResourceBusy,
    "AccessDeniedException": AccessDenied,
    "AccessDenied": AccessDenied,
    "UnrecognizedClientException": AccessDenied,
    "InvalidClientTokenId": AccessDenied,
    "InvalidSignatureException": AccessDenied,
    "SignatureDoesNotMatch": AccessDenied,
    "IncompleteSignature": AccessDenied,
    "RequestTimeTooSkewed": AccessDenied,
    "RequestExpired": AccessDenied,
    "MissingAuthenticationToken": AccessDenied,
    "MissingAuthenticationTokenException": AccessDenied,
    "ExpiredTokenException": AccessDenied,
    "ExpiredToken": AccessDenied,
    "OptInRequired": AccessDenied,
    "KMSAccessDeniedException": AccessDenied,
    "KMSDisabledException": AccessDenied,
    "KMSInvalidStateException": AccessDenied,
    "KMSNotFoundException": AccessDenied,
    "KMSOptInRequired": AccessDenied,
}

STALE_CREDENTIALS: Final = frozenset(
    {"ExpiredTokenException", "ExpiredToken", "UnrecognizedClientException", "InvalidClientTokenId"}
)
"""The service does not accept these credentials, or no longer; others may have been issued since."""


def kind_of(code: str) -> type[ServiceError] | None:
    """Return the error that a code means; None for an unknown code.

    Args:
        code: As in the service's answer, without the namespace before `#`.
    """
    kind = _KINDS.get(code)
    if kind is not None:
        return kind
    name = code.removesuffix("Exception").removesuffix("Error")
    if "Throttl" in name:  # Throttling, ThrottlingException, RequestThrottled, KMSThrottlingException, ...
        return Throttled
    if name.endswith("Unavailable") or name in {
        "InternalFailure",
        "InternalServer",
        "InternalService",
        "Internal",
        "KMSInternal",
    }:
        return Unavailable
    return None
