"""All errors of Penstock, sorted by the caller's next step.

::

    PenstockError
    ├── UsageError                   change the call: nothing was sent
    │   ├── OptionError              an option is unknown or has a bad value
    │   ├── PositionError            not a sequence number, sentinel or timestamp
    │   └── RecordError              a record can never be accepted (size, key, hash key)
    ├── ServiceError                 the service refused, or did not answer
    │   ├── Throttled                wait and try again
    │   ├── Unavailable              5xx or no connection: nothing happened; try again
    │   ├── UnknownOutcome           sent, but there was no answer: it may have happened; read back before acting
    │   ├── ExpiredIterator          fetch a new iterator at the last position
    │   ├── NotFound                 the stream, shard or table does not exist
    │   ├── ResourceBusy             being created, updated or used; wait
    │   ├── AccessDenied             credentials or policy; trying again cannot help
    │   ├── Rejected                 the request itself is wrong; trying again cannot help
    │   └── UnknownRefusal           refused with an unknown code, or by a proxy; it may pass: try again for a while
    ├── SchemaError                  a payload and its schema do not go together: trying again cannot help
    │   ├── NoSchemaHeader           the data does not begin with the header of a schema registry's serializer
    │   ├── UnknownSchema            the registry has no such schema or version; check region and account first
    │   ├── UnsupportedSchema        the schema cannot be used: its format, or a type in it
    │   ├── SchemaMismatch           the payload or the value does not fit its schema
    │   └── SchemaRefused            the registry does not take the schema's new version
    ├── DataLossError                records between two positions are gone from the stream
    ├── DamagedRecording             a file is not a whole recording; the message has the place: copy it or record again
    ├── StreamChanged                the stream was deleted and created again under its name
    ├── ClaimConflict                another attempt of the same batch fixed another end
    ├── AnotherDriver                a second query runs from the same checkpoint location; stop one of them
    ├── WorkerIdInUse                another living process has the worker's id: give each one its own
    ├── LeaseLost                    another worker owns the lease now
    ├── BufferFull                   a producer has no room, the record was not put: put it later, or more slowly
    ├── DeliveryFailed               records were not acknowledged; names them and the reason
    │   ├── RecordExpired            its time to live passed first; put it again if it still matters
    │   └── DeadLetterFailed         a dead-letter target did not take the records, which the error holds
    ├── Reject                       raised by your handler: the record becomes a dead letter of its queue
    ├── HandlerFailed                the user's handler raised, and the policy is to stop
    └── ShardsStopped                every shard of a consumer has stopped; names them and the reasons
"""

from __future__ import annotations

from collections.abc import Mapping


class PenstockError(Exception):
    """The base class of every error that Penstock raises on purpose."""


class UsageError(PenstockError, ValueError):
    """The call is wrong; nothing was sent."""


class OptionError(UsageError):
    """An option is unknown, missing or has a value that cannot be used."""


class PositionError(UsageError):
    """A text is not a sequence number, a sentinel or a timestamp."""


class RecordError(UsageError):
    """The service can never accept a record: it is too large or has a bad key."""


class ServiceError(PenstockError):
    """A call to the service failed.

    Attributes:
        operation: The service's name of the call, for instance `GetRecords`.
        code: The service's error code, or an empty text when there was no answer.
        resource: The stream, shard or table that the call was about.
    """

    def __init__(self, message: str, *, operation: str = "", code: str = "", resource: str = "") -> None:
        super().__init__(message)
        self.operation = operation
        self.code = code
        self.resource = resource

    def __reduce__(self) -> tuple[object, ...]:
        """Keep the fields, and notes that were added, when the error travels between processes."""
        return type(self), (str(self),), vars(self)


class Throttled(ServiceError):
    """The service refused because of the rate. Nothing happened; wait and try again."""


class Unavailable(ServiceError):
    """The service failed (5xx) or could not be reached before the request was sent."""


class UnknownOutcome(ServiceError):
    """The request was sent and there was no answer: it may have been applied."""


class ExpiredIterator(ServiceError):
    """A shard iterator is older than five minutes; fetch a new one at the last position."""


class NotFound(ServiceError):
    """The stream, shard or table does not exist."""


class ResourceBusy(ServiceError):
    """The resource is being created or changed, or is in use."""


class AccessDenied(ServiceError):
    """Credentials are missing or wrong, or the policy forbids the call."""


class Rejected(ServiceError):
    """The service found a mistake in the request; sending it again cannot help."""


class UnknownRefusal(ServiceError):
    """A refusal with an unknown code, or without a code, perhaps by a proxy. As far as known, nothing happened; try again."""


class SchemaError(PenstockError):
    """A payload and its schema do not go together; trying again cannot help."""


class NoSchemaHeader(SchemaError):
    """The data does not begin with the header of a schema registry's serializer."""


class UnknownSchema(SchemaError):
    """The registry has no such schema or version: it is in another region or account, or was deleted."""


class UnsupportedSchema(SchemaError):
    """A schema cannot be used: its format is not supported, or its definition cannot be read."""


class SchemaMismatch(SchemaError):
    """A payload or a value does not fit its schema."""


class SchemaRefused(SchemaError):
    """The registry does not take a new version of a schema, or has found it incompatible."""


class DataLossError(PenstockError):
    """Records that were not read yet have expired in the stream (retention)."""


class DamagedRecording(PenstockError):
    """A file is not a whole recording; the message has the place of the damage."""


class StreamChanged(PenstockError):
    """The stream was deleted and created again; old positions have no meaning in the new one."""


class ClaimConflict(PenstockError):
    """Another attempt of the same batch claimed another end; this attempt must be repeated."""


class AnotherDriver(PenstockError):
    """Another driver runs from the same checkpoint location; this one must stop."""


class WorkerIdInUse(PenstockError):
    """Another living process, which began later, works under the same worker id; this one stops."""


class LeaseLost(PenstockError):
    """Another worker owns the lease now."""


class BufferFull(PenstockError):
    """A producer's memory for unacknowledged records is used up; the record was not put."""


class DeliveryFailed(PenstockError):
    """Records were not acknowledged by the service."""


class RecordExpired(DeliveryFailed):
    """A record's time to live passed before the service acknowledged it."""


class DeadLetterFailed(DeliveryFailed):
    """A dead-letter target did not take a record. The consumer repeats the call; if it keeps failing, the shard stops there.

    Attributes:
        records: The records whose letters were not written.
    """

    def __init__(self, message: str, records: tuple[object, ...] = ()) -> None:
        super().__init__(message)
        self.records = records


class Reject(PenstockError):
    """Raised by the handler of a `QueueConsumer`: the record can never be processed, and becomes a dead letter of its queue."""


class HandlerFailed(PenstockError):
    """The user's handler failed, and the configured policy is to stop."""


class ShardsStopped(PenstockError):
    """Every shard of a consumer has stopped because of a failure, and none is left to read.

    Attributes:
        failures: Why each shard stopped.
    """

    def __init__(self, message: str, failures: Mapping[str, PenstockError] | None = None) -> None:
        super().__init__(message)
        self.failures: dict[str, PenstockError] = dict(failures or {})
