"""The errors that the service answers with."""

from __future__ import annotations

THROUGHPUT_EXCEEDED = "ProvisionedThroughputExceededException"


class RequestRefused(Exception):  # noqa: N818 - it is an answer of the service, not a fault of this program
    """A request is answered with an error of the service.

    Attributes:
        code: The service's error code, for instance `ResourceNotFoundException`.
    """

    def __init__(self, code: str, message: str, status: int = 400) -> None:
        super().__init__(f"{code}: {message}")
        self.code = code
        self.message = message
        self.status = status


def invalid_argument(message: str) -> RequestRefused:
    """Return the error for a parameter of the right form whose value cannot be used."""
    return RequestRefused("InvalidArgumentException", message)


def validation(message: str) -> RequestRefused:
    """Return the error for a parameter that violates the model: length, range, pattern or presence."""
    return RequestRefused("ValidationException", message)


def not_found(message: str) -> RequestRefused:
    """Return the error for a stream, shard or other resource that does not exist."""
    return RequestRefused("ResourceNotFoundException", message)


def in_use(message: str) -> RequestRefused:
    """Return the error for a resource that exists already, or is not in the state that the operation needs."""
    return RequestRefused("ResourceInUseException", message)


def limit_exceeded(message: str) -> RequestRefused:
    """Return the error for a control operation over its rate or over an account quota."""
    return RequestRefused("LimitExceededException", message)


def throughput_exceeded(message: str) -> RequestRefused:
    """Return the error for a data operation over the rate of its shard."""
    return RequestRefused(THROUGHPUT_EXCEEDED, message)


def throttling(message: str) -> RequestRefused:
    """Return the error for a call on a queue's records over its rate."""
    return RequestRefused("ThrottlingException", message)


def serialization(message: str) -> RequestRefused:
    """Return the error for a body that is not a document of the expected types."""
    return RequestRefused("SerializationException", message)


def not_served(message: str) -> RequestRefused:
    """Return the error for a feature of the service that this server lacks; clients do not retry HTTP 501."""
    return RequestRefused("NotImplementedException", message, status=501)
