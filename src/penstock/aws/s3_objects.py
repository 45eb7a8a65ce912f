"""Objects under a prefix of an S3 bucket, written with the conditions that S3 has had since 2024."""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import Callable, Collection, Mapping
from typing import Any, Final, TypeVar

from penstock.aws.aws_options import AwsOptions
from penstock.aws.connection import client_for
from penstock.aws.service_calls import call
from penstock.errors import NotFound, OptionError, Rejected, ServiceError, Throttled, Unavailable
from penstock.ports.object_store import OBJECT_BYTES_MAX, StoredObject
from penstock.runtime.threads import map_on_daemons

_THREADS_MAX: Final = 16
_REFUSED_CODES: Final = frozenset({"PreconditionFailed", "ConditionalRequestConflict", "412", "409"})
_MISSING_CODES: Final = frozenset({"NoSuchKey", "404"})
_NOT_IMPLEMENTED: Final = frozenset({"NotImplemented", "501"})
_RETRIED_ERRORS: Final = (Throttled, Unavailable)
"""UnknownRefusal is not among them: some S3-compatible servers report a missing or changed object without an error code."""
_Answer = TypeVar("_Answer")
_PROBE: Final = "penstock-probe-"


class S3Objects:
    """Implements `penstock.ports.object_store.ObjectStore`.

    The endpoint in the options is that of the stream and is not used here; boto3's `AWS_ENDPOINT_URL_S3` is.

    Args:
        bucket: Its name; it must exist.
        prefix: Prefix of the objects' names, without a slash at either end; may be empty.
    """

    def __init__(self, bucket: str, prefix: str, options: AwsOptions) -> None:
        self._bucket = bucket
        self._prefix = f"{prefix}/" if prefix else ""
        self._options = options

    @property
    def url(self) -> str:
        return f"s3://{self._bucket}/{self._prefix}".rstrip("/")

    @property
    def _client(self) -> Any:
        return client_for("s3", self._options)

    def _call(
        self, operation: str, send: Callable[[], _Answer], name: str = "", *, is_write: bool = False
    ) -> _Answer:
        place = f"lease table {self.url}"
        if name:
            place += f", object {name}"
        try:
            return call(send, operation, place, self._options, is_write=is_write, retried=_RETRIED_ERRORS)
        except ServiceError as error:
            if error.code == "NoSuchBucket":
                raise NotFound(
                    f"lease table {self.url}: bucket {self._bucket} does not exist: create it, or name another one",
                    operation=operation,
                    code=error.code,
                    resource=self._bucket,
                ) from error
            raise

    def prepare(self) -> bool:
        """Make sure that the bucket exists and honours conditional writes; return True if it holds nothing under the prefix yet.

        The probe runs even if the prefix holds objects: they may be leases that were written without conditions, or the folder
        marker of the S3 console.

        Raises:
            OptionError: The server does not honour conditional writes.
        """
        # The console marks a folder by an object without a name. A probe stays behind if a start is cut off.
        is_new = not any(name and not name.startswith(_PROBE) for name in self._list_objects())
        name = f"{_PROBE}{uuid.uuid4().hex}"
        ignored = self._find_ignored_condition(name)
        if ignored is not None:
            raise OptionError(
                f"lease table {self.url}: the server of bucket {self._bucket} does not honour conditional writes: {ignored}. "
                "Two workers could own one lease there. Choose a bucket of Amazon S3, or of another server that honours "
                "If-None-Match and If-Match on PutObject and DeleteObject, or name a DynamoDB table for the leases"
                f"{self._remove_probe(name)}"
            )
        return is_new

    def _find_ignored_condition(self, name: str) -> str | None:
        """Write and delete a probe under each condition. Return a text that names the first condition that is not honoured and its effect; None if all are."""
        other_tag = '"00000000000000000000000000000000"'
        create, change = "PutObject with If-None-Match", "PutObject with If-Match"
        delete = "DeleteObject with If-Match"
        asked = create
        try:
            tag = self.write(name, b"first", None)
            if tag is None:
                return f"{create} refuses a new object"
            checks: tuple[tuple[str, str, Callable[[], bool]], ...] = (
                (create, "replaces an object", lambda: self.write(name, b"second", None) is not None),
                (
                    change,
                    "replaces an object that has another tag",
                    lambda: self.write(name, b"third", other_tag) is not None,
                ),
                (delete, "deletes an object that has another tag", lambda: self.delete(name, other_tag)),
                (delete, "refuses the object's own tag", lambda: not self.delete(name, tag)),
            )
            for asked, failure, has_failed in checks:
                if has_failed():
                    return f"{asked} {failure}"
        except ServiceError as error:
            if error.code in _NOT_IMPLEMENTED:
                return f"{asked} is not implemented ({error.code})"
            raise
        return None

    def _remove_probe(self, name: str) -> str:
        """Delete a probe without a condition; return a text that names it if that fails."""
        arguments = {"Bucket": self._bucket, "Key": self._prefix + name}
        try:
            self._call("DeleteObject", lambda: self._client.delete_object(**arguments), is_write=True)
        except ServiceError as error:
            return f". Object {arguments['Key']} could not be removed: {error}"
        return ""

    def read_all(self, known_tags: Mapping[str, str], suffix: str) -> Mapping[str, StoredObject | None]:
        """Return the objects whose names end in a suffix, by name; None for an object that still has its tag in `known_tags`.

        This costs one listing, and a read for each object that has changed.
        """
        listed = self._list_objects()
        tags = {name: tag for name, (tag, _) in listed.items() if name.endswith(suffix) and name != suffix}
        changed = [name for name, tag in tags.items() if known_tags.get(name) != tag]
        large = {name for name in changed if listed[name][1] > OBJECT_BYTES_MAX}
        found = dict(self.read_many([name for name in changed if name not in large]))
        found |= {name: StoredObject(b"", tags[name], is_too_large=True) for name in large}
        # An object that was deleted since the listing is in neither.
        kept = [name for name, tag in tags.items() if name in found or known_tags.get(name) == tag]
        return {name: found.get(name) for name in kept}

    def _list_objects(self) -> dict[str, tuple[str, int]]:
        """List the tags and sizes of the objects right below the prefix, by name."""
        listed: dict[str, tuple[str, int]] = {}
        token_argument: dict[str, Any] = {}
        while True:
            page = self._page(token_argument)
            for each in page.get("Contents", ()):
                name = each["Key"].removeprefix(self._prefix)
                if "/" not in name:  # a server may not know the delimiter
                    listed[name] = each["ETag"], int(each.get("Size", 0))
            if not page.get("IsTruncated"):
                return listed
            token = page.get("NextContinuationToken")
            if token in (None, token_argument.get("ContinuationToken")):
                raise Rejected(
                    f"the listing of {self.url} does not go on: its pages name no next one",
                    operation="ListObjectsV2",
                    resource=self.url,
                )
            token_argument = {"ContinuationToken": token}

    def _page(self, arguments: dict[str, Any]) -> Any:
        wanted = {"Bucket": self._bucket, "Prefix": self._prefix, "Delimiter": "/", **arguments}
        return self._call("ListObjectsV2", lambda: self._client.list_objects_v2(**wanted))

    def read(self, name: str) -> StoredObject | None:
        def fetch() -> StoredObject:
            answer = self._client.get_object(Bucket=self._bucket, Key=self._prefix + name)
            with contextlib.closing(answer["Body"]) as body:
                if answer["ContentLength"] > OBJECT_BYTES_MAX:
                    return StoredObject(b"", answer["ETag"], is_too_large=True)
                return StoredObject(body.read(), answer["ETag"])

        try:
            return self._call("GetObject", fetch, name)
        except ServiceError as error:
            if error.code in _MISSING_CODES:
                return None
            raise

    def read_many(self, names: Collection[str]) -> Mapping[str, StoredObject]:
        if not names:
            return {}
        found = map_on_daemons("penstock-fetch", _THREADS_MAX, self.read, names)
        return {name: each for name, each in zip(names, found, strict=True) if each is not None}

    def write(self, name: str, data: bytes, tag: str | None) -> str | None:
        condition = {"IfNoneMatch": "*"} if tag is None else {"IfMatch": tag}
        arguments = {"Bucket": self._bucket, "Key": self._prefix + name, "Body": data, **condition}
        arguments["ContentType"] = "application/json"
        answer = self._call_conditionally("PutObject", name, lambda: self._client.put_object(**arguments))
        return None if answer is None else str(answer["ETag"])

    def delete(self, name: str, tag: str) -> bool:
        arguments = {"Bucket": self._bucket, "Key": self._prefix + name, "IfMatch": tag}
        answer = self._call_conditionally(
            "DeleteObject", name, lambda: self._client.delete_object(**arguments)
        )
        return answer is not None

    def _call_conditionally(self, operation: str, name: str, send: Callable[[], Any]) -> Any | None:
        try:
            return self._call(operation, send, name, is_write=True)
        except ServiceError as error:
            if error.code in _REFUSED_CODES or error.code in _MISSING_CODES:
                return None
            raise
