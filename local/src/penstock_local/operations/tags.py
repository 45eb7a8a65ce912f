"""Operations on tags."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace

from penstock_local.operations.call import Document, ServiceCall
from penstock_local.service_errors import invalid_argument
from penstock_local.stream import Stream

_TAGS_MAX = 50
# The API reference (Tag) has no colon among the characters; tags of AWS have it, so it is accepted.
_NO_TAG_CHARACTER = re.compile(r"[^\w\s.:/=+\-%@]")


def check_tags(tags: dict[str, str]) -> None:
    """Refuse tags that a resource cannot have."""
    reserved = sorted(key for key in tags if key.lower().startswith("aws:"))
    if reserved:
        raise invalid_argument(f"Tag keys that begin with aws: are reserved: {', '.join(reserved)}.")
    if any(_NO_TAG_CHARACTER.search(text) for pair in tags.items() for text in pair):
        raise invalid_argument(
            "Some tags contain invalid characters. Valid characters: Unicode letters, digits, white space, _ . / = + - % @."
        )
    if len(tags) > _TAGS_MAX:
        raise invalid_argument(f"A resource may have at most {_TAGS_MAX} tags, not {len(tags)}.")


class _TagSet:
    """A resource of a stream, or the stream itself, and its tags.

    Args:
        tags: The resource's tags.
        put: Replaces them.
    """

    def __init__(
        self, call: ServiceCall, stream: Stream, tags: dict[str, str], put: Callable[[dict[str, str]], object]
    ) -> None:
        self.tags = tags
        self._put = put
        call.admit(stream)

    def add(self, tags: dict[str, str]) -> None:
        """Add or change tags, if it may have these."""
        merged = {**self.tags, **tags}
        check_tags(merged)
        self._put(merged)

    def remove(self, keys: list[str]) -> None:
        """Remove tags."""
        self._put({key: value for key, value in self.tags.items() if key not in keys})


def _stream_tags(call: ServiceCall, request: Document) -> _TagSet:
    stream = call.stream(request)

    def put(tags: dict[str, str]) -> None:
        stream.tags = tags
        call.service.store.journal.stream_changed(stream)

    return _TagSet(call, stream, stream.tags, put)


def _resource_tags(call: ServiceCall, arn: str) -> _TagSet:
    """Return the tags of a queue, channel, consumer or stream, with the function that replaces them."""
    store = call.service.store
    if ":queue/" in arn:
        queue = call.queue(arn)
        return _TagSet(
            call,
            store.queues.stream_of(queue),
            queue.settings.tags,
            lambda tags: store.queues.put_settings(queue, replace(queue.settings, tags=tags)),
        )
    if ":channel/" in arn:
        channel, stream = call.channel(arn)
        return _TagSet(
            call,
            stream,
            channel.tags,
            lambda tags: store.channels.put(replace(channel, tags=tags), call.now_ms),
        )
    if "/consumer/" in arn:
        stream, consumer = call.consumer({"ConsumerARN": arn})
        return _TagSet(
            call,
            stream,
            consumer.tags,
            lambda tags: store.put_consumer(stream, replace(consumer, tags=tags), call.now_ms),
        )
    return _stream_tags(call, {"StreamARN": arn})


def _tag_list(tags: list[tuple[str, str]]) -> list[Document]:
    return [{"Key": key, "Value": value} for key, value in tags]


def AddTagsToStream(call: ServiceCall, request: Document) -> Document:
    """Add or change tags."""
    _stream_tags(call, request).add(request["Tags"])
    return {}


def RemoveTagsFromStream(call: ServiceCall, request: Document) -> Document:
    """Remove tags."""
    _stream_tags(call, request).remove(request["TagKeys"])
    return {}


def ListTagsForStream(call: ServiceCall, request: Document) -> Document:
    """List tags by key, a page at a time."""
    tags = _stream_tags(call, request).tags
    after = request.get("ExclusiveStartTagKey", "")
    limit = request.get("Limit", _TAGS_MAX)
    found = sorted((key, value) for key, value in tags.items() if key > after)
    return {"Tags": _tag_list(found[:limit]), "HasMoreTags": len(found) > limit}


def TagResource(call: ServiceCall, request: Document) -> Document:
    """Add or change tags of a stream, consumer, queue or channel, by ARN."""
    _resource_tags(call, request["ResourceARN"]).add(request["Tags"])
    return {}


def UntagResource(call: ServiceCall, request: Document) -> Document:
    """Remove tags of a stream, consumer, queue or channel, by ARN."""
    _resource_tags(call, request["ResourceARN"]).remove(request["TagKeys"])
    return {}


def ListTagsForResource(call: ServiceCall, request: Document) -> Document:
    """List all tags of a stream, consumer, queue or channel, by ARN."""
    return {"Tags": _tag_list(sorted(_resource_tags(call, request["ResourceARN"]).tags.items()))}
