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

_CODES: Final[Mapping[type[ServiceError], str]] = {
    Throttled: (
        "ProvisionedThroughputExceeded LimitExceeded RequestLimitExceeded BandwidthLimitExceeded "
        "TooManyRequests PriorRequestNotComplete SlowDown"
    ),
    Unavailable: (
        "RequestTimeout TransactionInProgress TransactionConflict ReplicatedWriteConflict "
        "OperationAborted IDPCommunication OperationTimeout"
    ),
    ExpiredIterator: "ExpiredIterator",
    NotFound: "ResourceNotFound TableNotFound EntityNotFound",
    ResourceBusy: "ResourceInUse ConcurrentModification Conflict ResourceConflict",
    AccessDenied: (
        "UnrecognizedClient InvalidClientTokenId InvalidAccessKeyId InvalidToken InvalidIdentityToken "
        "InvalidSecurity InvalidSignature SignatureDoesNotMatch IncompleteSignature RequestTimeTooSkewed "
        "RequestExpired MissingAuthenticationToken ExpiredToken TokenRefreshRequired AuthFailure "
        "AccountProblem AllAccessDisabled NotSignedUp RegionDisabled IDPRejectedClaim OptInRequired "
        "KMSDisabled KmsKeyDisabled KMSInvalidState KMSNotFound KmsKeyNotFound KMSOptInRequired"
    ),
    Rejected: (
        "AlreadyExists AuthorizationHeaderMalformed ConditionalCheckFailed ConditionalRequestConflict "
        "DryRunOperation EntityTooLarge ExpiredNextToken ItemCollectionSizeLimitExceeded MethodNotAllowed "
        "NoSuchBucket NoSuchKey NotImplemented PermanentRedirect PreconditionFailed RequestEntityTooLarge "
        "ResourceNumberLimitExceeded Serialization TransactionCanceled UnknownOperation"
    ),
}
"""Codes without `Exception` or `Error` at their end: a service may answer with either form."""
_KINDS: Final = {code: kind for kind, codes in _CODES.items() for code in codes.split()}

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
    """Return whether a code means that the policy forbids the call. `AccessDenied` has also codes about credentials and clock."""
    return any(each in code for each in _DENIALS)


def is_of_kms_key(code: str) -> bool:
    """Return whether a code is of the KMS key that encrypts the resource."""
    return code.upper().startswith("KMS")
