"""The meaning of the service's error codes, in the answer to a call or to one entry of PutRecords.

A code means the same in both places. Codes that are not listed here are judged by their name if it is clear enough. All
others are unknown: the call is repeated until the caller's deadline, and the error names the code.

Source:
    The API references' common errors, and those of the operations used; botocore's lists of throttling and transient
    codes (`botocore.retries.standard`); S3's list of error responses.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from penstock.errors import (
    AccessDenied,
    ExpiredIterator,
    NotFound,
    Rejected,
    ResourceBusy,
    ServiceError,
    Throttled,
    Unavailable,
)

_KINDS: Final[Mapping[str, type[ServiceError]]] = {
    "ProvisionedThroughputExceeded": Throttled,
    "LimitExceeded": Throttled,
    "RequestLimitExceeded": Throttled,
    "BandwidthLimitExceeded": Throttled,
    "TooManyRequests": Throttled,
    "PriorRequestNotComplete": Throttled,
    "SlowDown": Throttled,
    "RequestTimeout": Unavailable,
    "TransactionInProgress": Unavailable,
    "TransactionConflict": Unavailable,
    "ReplicatedWriteConflict": Unavailable,
    "OperationAborted": Unavailable,
    "IDPCommunication": Unavailable,
    "ExpiredIterator": ExpiredIterator,
    "OperationTimeout": Unavailable,
    "ResourceNotFound": NotFound,
    "TableNotFound": NotFound,
    "EntityNotFound": NotFound,
    "ResourceInUse": ResourceBusy,
    "ConcurrentModification": ResourceBusy,
    "Conflict": ResourceBusy,
    "ResourceConflict": ResourceBusy,
    "UnrecognizedClient": AccessDenied,
    "InvalidClientTokenId": AccessDenied,
    "InvalidAccessKeyId": AccessDenied,
    "InvalidToken": AccessDenied,
    "InvalidIdentityToken": AccessDenied,
    "InvalidSecurity": AccessDenied,
    "InvalidSignature": AccessDenied,
    "SignatureDoesNotMatch": AccessDenied,
    "IncompleteSignature": AccessDenied,
    "RequestTimeTooSkewed": AccessDenied,
    "RequestExpired": AccessDenied,
    "MissingAuthenticationToken": AccessDenied,
    "ExpiredToken": AccessDenied,
    "TokenRefreshRequired": AccessDenied,
    "AuthFailure": AccessDenied,
    "AccountProblem": AccessDenied,
    "AllAccessDisabled": AccessDenied,
    "NotSignedUp": AccessDenied,
    "RegionDisabled": AccessDenied,
    "IDPRejectedClaim": AccessDenied,
    "OptInRequired": AccessDenied,
    "KMSDisabled": AccessDenied,
    "KmsKeyDisabled": AccessDenied,
    "KMSInvalidState": AccessDenied,
    "KMSNotFound": AccessDenied,
    "KmsKeyNotFound": AccessDenied,
    "KMSOptInRequired": AccessDenied,
    "AlreadyExists": Rejected,
    "AuthorizationHeaderMalformed": Rejected,
    "ConditionalCheckFailed": Rejected,
    "ConditionalRequestConflict": Rejected,
    "DryRunOperation": Rejected,
    "EntityTooLarge": Rejected,
    "ExpiredNextToken": Rejected,
    "ItemCollectionSizeLimitExceeded": Rejected,
    "MethodNotAllowed": Rejected,
    "NoSuchBucket": Rejected,
    "NoSuchKey": Rejected,
    "NotImplemented": Rejected,
    "PermanentRedirect": Rejected,
    "PreconditionFailed": Rejected,
    "RequestEntityTooLarge": Rejected,
    "ResourceNumberLimitExceeded": Rejected,
    "Serialization": Rejected,
    "TransactionCanceled": Rejected,
    "UnknownOperation": Rejected,
}
"""By the code without `Exception` or `Error` at its end: a service may answer with either form."""

_DENIALS: Final = ("AccessDenied", "NotAuthorized", "Unauthorized", "Forbidden")
_MISTAKES: Final = ("Invalid", "Malformed", "Missing", "Unsupported", "Validation")
"""The names of codes that mean a mistake in the request begin with one of these."""
_FAILURES: Final = frozenset(
    {"InternalFailure", "InternalServer", "InternalService", "Internal", "KMSInternal"}
)

EXPIRED_CREDENTIALS: Final = frozenset({"ExpiredTokenException", "ExpiredToken", "TokenRefreshRequired"})
"""These credentials were accepted until their time was over."""
STALE_CREDENTIALS: Final = EXPIRED_CREDENTIALS | {
    "InvalidAccessKeyId",
    "InvalidClientTokenId",
    "InvalidToken",
    "UnrecognizedClientException",
}
"""The service does not, or no longer, accept these credentials. Newer ones may have been issued since."""


def kind_of(code: str) -> type[ServiceError] | None:
    """Return the error that a code means; None for an unknown code.

    Args:
        code: As in the service's answer, without the namespace before `#`.
    """
    name = code.removesuffix("Exception").removesuffix("Error")
    kind = _KINDS.get(name)
    if kind is not None:
        return kind
    if "Throttl" in name:  # Throttling, ThrottlingException, RequestThrottled, KMSThrottlingException, ...
        return Throttled
    if is_denial(name):
        return AccessDenied
    if name.endswith("Unavailable") or name in _FAILURES:
        return Unavailable
    return Rejected if name.startswith(_MISTAKES) else None


def is_denial(code: str) -> bool:
    """Return whether a code means that the policy forbids the call; others of `AccessDenied` mean the credentials or the clock."""
    return any(each in code for each in _DENIALS)


def is_of_kms_key(code: str) -> bool:
    """Return whether a code is of the KMS key that encrypts the resource."""
    return code.upper().startswith("KMS")
