"""A folder of small objects with conditional writes, which is all that a lease table needs.

Implemented by `penstock.runtime.file_objects` (a folder of this machine) and `penstock.aws.s3_objects` (a prefix of a bucket).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Final, Protocol

from msgspec import Struct

OBJECT_BYTES_MAX: Final = 1024 * 1024
"""Every lease is far smaller: a row of DynamoDB has at most 400 KB."""


class StoredObject(Struct, frozen=True):
    """An object as it was read.

    Args:
        data: Its content.
        tag: Id of this content. Every write of the object changes the tag.
        is_too_large: The object has more than `OBJECT_BYTES_MAX` bytes, which were not read.
    """

    data: bytes
    tag: str
    is_too_large: bool = False


class ObjectStore(Protocol):
    """Named objects. Safe to call from several threads. Several processes may write at once.

    Raises (every method):
        Throttled, Unavailable: After the last retry; nothing happened.
        NotFound: The bucket does not exist.
        AccessDenied, Rejected: At once.
    """

    @property
    def url(self) -> str:
        """The address of the store, for messages."""

    def prepare(self) -> bool:
        """Make the store usable; return True if it is new.

        Raises:
            OptionError: The store ignores the conditions of writes, so two writers of one object could both succeed.
        """

    def read_all(self, known_tags: Mapping[str, str], suffix: str) -> Mapping[str, StoredObject | None]:
        """Return the objects whose names end in a suffix, by name; None for an object that still has its tag in `known_tags`.

        Objects that are further below (a folder in the folder, a longer prefix) belong to others. They are not read.

        Raises:
            Rejected: The listing does not end.
        """

    def read(self, name: str) -> StoredObject | None:
        """Return one object, or None if no object has this name."""

    def read_many(self, names: Collection[str]) -> Mapping[str, StoredObject]:
        """Return the objects of these names that exist."""

    def write(self, name: str, data: bytes, tag: str | None) -> str | None:
        """Write an object if its current tag equals `tag`. With `tag=None`, write it if no object has this name.

        Returns:
            The new tag, or None if the condition does not hold.

        Raises:
            UnknownOutcome: The write was sent and not answered.
        """

    def delete(self, name: str, tag: str) -> bool:
        """Delete an object if its current tag equals `tag`; return False if it does not.

        Raises:
            UnknownOutcome: The deletion was sent and not answered.
        """
