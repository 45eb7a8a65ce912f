"""Operations on tags."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from penstock_local.operations.call import ServiceCall
from penstock_local.queues.queue import Queue
from penstock_local.service_errors import invalid_argument
from penstock_local.stream import Consumer, Stream

_TAGS_MAX = 50

Document = dict[str, Any]


def check_tags(tags: dict[str, str]) -> None:
    """Refuse tags that a resource cannot have."""
    reserved = sorted(key for key in tags if key.lower().startswith("aws:"))
    if reserved:
        raise invalid_argument(f"Tag keys that begin with aws: are reserved: {', '.join(reserved)}.")
    if len(tags) > _TAGS_MAX:
        raise invalid_argument(f"A resource may have at most {_TAGS_MAX} tags, not {len(tags)}.")


class _Tagged:
    """A stream, or a consumer or queue of one, and its tags."""

    def __init__(
        self,
        call: ServiceCall,
        stream: Stream,
        consumer: Consumer | None = None,
        queue: Queue | None = None,
    ) -> None:
        self._call = call
        self._stream = stream
        self._consumer = consumer
        self._queue = queue
        self.tags = stream.tags if consumer is None else consumer.tags
        if queue is not None:
            self.tags = queue.settings.tags
        call.admit(stream)

    def add(self, tags: dict[str, str]) -> None:
        """Add or change tags, if it may have these."""
        merged = {**self.tags, **tags}
        check_tags(merged)
        self._replace(merged)

    def remove(self, keys: list[str]) -> None:
        """Remove tags."""
        self._replace({key: value for key, value in self.tags.items() if key not in keys})

    def _replace(self, tags: dict[str, str]) -> None:
        store = self._call.service.store
        if self._queue is not None:
            store.queues.tag(self._queue, tags)
        elif self._consumer is None:
            self._stream.tags = tags
            store.journal.stream_changed(self._stream)
        else:
            store.put_consumer(self._stream, replace(self._consumer, tags=tags), self._call.now_ms)


def _named(call: ServiceCall, arn: str) -> _Tagged:
    if ":queue/" in arn:
        queue = call.queue(arn)
        return _Tagged(call, call.service.store.queues.stream_of(queue), queue=queue)
    if "/consumer/" in arn:
        return _Tagged(call, *call.consumer({"ConsumerARN": arn}))
    return _Tagged(call, call.stream({"StreamARN": arn}))


def _tag_list(tags: list[tuple[str, str]]) -> list[Document]:
    return [{"Key": key, "Value": value} for key, value in tags]


def AddTagsToStream(call: ServiceCall, request: Document) -> Document:
    """Add or change tags."""
    _Tagged(call, call.stream(request)).add(request["Tags"])
    return {}


def RemoveTagsFromStream(call: ServiceCall, request: Document) -> Document:
    """Remove tags."""
    _Tagged(call, call.stream(request)).remove(request["TagKeys"])
    return {}


def ListTagsForStream(call: ServiceCall, request: Document) -> Document:
    """List tags by key, a page at a time."""
    tags = _Tagged(call, call.stream(request)).tags
    after = request.get("ExclusiveStartTagKey", "")
    limit = request.get("Limit", _TAGS_MAX)
    found = sorted((key, value) for key, value in tags.items() if key > after)
    return {"Tags": _tag_list(found[:limit]), "HasMoreTags": len(found) > limit}


def TagResource(call: ServiceCall, request: Document) -> Document:
    """Add or change tags of a stream, consumer or queue, by ARN."""
    _named(call, request["ResourceARN"]).add(request["Tags"])
    return {}


def UntagResource(call: ServiceCall, request: Document) -> Document:
    """Remove tags of a stream, consumer or queue, by ARN."""
    _named(call, request["ResourceARN"]).remove(request["TagKeys"])
    return {}


def ListTagsForResource(call: ServiceCall, request: Document) -> Document:
    """List all tags of a stream, consumer or queue, by ARN."""
    return {"Tags": _tag_list(sorted(_named(call, request["ResourceARN"]).tags.items()))}
