"""The service's errors and the two values that both wire formats write in their own way."""

from __future__ import annotations


class Timestamp:
    """A moment in milliseconds since the epoch: seconds with a fraction in JSON, tagged milliseconds in CBOR.

    Not a dataclass, because the JSON encoder would write one as an object.
    """

    __slots__ = ("ms",)

    def __init__(self, ms: int) -> None:
        self.ms = ms

    def __repr__(self) -> str:
        return f"Timestamp({self.ms})"


class Refusal(Exception):  # noqa: N818 - it is an answer of the service, not a fault of this program
    """An operation is answered with an error.

    Attributes:
        code: The service's error code, for instance `ResourceNotFoundException`.
        message: Its text.
        status: HTTP status.
    """

    def __init__(self, code: str, message: str, status: int = 400) -> None:
        super().__init__(f"{code}: {message}")
        self.code = code
        self.message = message
        self.status = status


def invalid_argument(message: str) -> Refusal:
    """A parameter has the right form and a value that cannot be used."""
    return Refusal("InvalidArgumentException", message)


def validation(message: str) -> Refusal:
    """A parameter violates the model: length, range, pattern or presence."""
    return Refusal("ValidationException", message)


def not_found(message: str) -> Refusal:
    """The stream, shard or resource does not exist."""
    return Refusal("ResourceNotFoundException", message)


def in_use(message: str) -> Refusal:
    """The resource exists already, or is not in the state that the operation needs."""
    return Refusal("ResourceInUseException", message)


def limit_exceeded(message: str) -> Refusal:
    """A control operation is over its rate or over an account quota."""
    return Refusal("LimitExceededException", message)


def throughput_exceeded(message: str) -> Refusal:
    """A data operation is over the rate of its shard."""
    return Refusal("ProvisionedThroughputExceededException", message)


def serialization(message: str) -> Refusal:
    """The body is not a document of the expected types."""
    return Refusal("SerializationException", message)


def not_served(message: str) -> Refusal:
    """The service has something that this server does not have; clients do not retry HTTP 501."""
    return Refusal("NotImplementedException", message, status=501)
