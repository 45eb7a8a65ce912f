"""What the service's error codes mean, wherever they stand: as the answer to a call, or beside one entry of PutRecords.

A code that is named here means the same in both places. One that is not is judged by its name where that says enough;
else nothing is known of it, and whoever met it decides how long to go on trying.

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
    "ResourceNotFoundException": NotFound,
    "ResourceInUseException": ResourceBusy,
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
"""The service does not take these credentials, or takes them no more; others may have been issued since."""


def kind_of(code: str) -> type[ServiceError] | None:
    """Return what a code means; None where nothing is known of it.

    Args:
        code: As the service gives it, without the namespace before `#`.
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
        "Internal",
        "KMSInternal",
    }:
        return Unavailable
    return None
