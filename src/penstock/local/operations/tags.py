"""Operations on tags."""

from __future__ import annotations

from typing import Any

from penstock.local.operations.call import ServiceCall
from penstock.local.service_errors import invalid_argument
from penstock.local.stream import Stream

_TAGS_MAX = 50

Document = dict[str, Any]


def check_tags(tags: dict[str, str]) -> None:
    """Refuse tags that a stream or consumer cannot have."""
    reserved = sorted(key for key in tags if key.lower().startswith("aws:"))
    if reserved:
        raise invalid_argument(f"Tag keys that begin with aws: are reserved: {', '.join(reserved)}.")
    if len(tags) > _TAGS_MAX:
        raise invalid_argument(f"A resource may have at most {_TAGS_MAX} tags, not {len(tags)}.")


def _add_tags(call: ServiceCall, stream: Stream, tags: dict[str, str]) -> None:
    merged = {**stream.tags, **tags}
    check_tags(merged)
    stream.tags = merged
    call.service.store.journal.stream_changed(stream)


def _remove_tags(call: ServiceCall, stream: Stream, keys: list[str]) -> None:
    stream.tags = {key: value for key, value in stream.tags.items() if key not in keys}
    call.service.store.journal.stream_changed(stream)


def _tag_list(tags: list[tuple[str, str]]) -> list[Document]:
    return [{"Key": key, "Value": value} for key, value in tags]


def AddTagsToStream(call: ServiceCall, request: Document) -> Document:
    """Add or change tags."""
    stream = call.stream(request)
    call.admit(stream)
    _add_tags(call, stream, request["Tags"])
    return {}


def RemoveTagsFromStream(call: ServiceCall, request: Document) -> Document:
    """Remove tags."""
    stream = call.stream(request)
    call.admit(stream)
    _remove_tags(call, stream, request["TagKeys"])
    return {}


def ListTagsForStream(call: ServiceCall, request: Document) -> Document:
    """List tags by key, a page at a time."""
    stream = call.stream(request)
    call.admit(stream)
    after = request.get("ExclusiveStartTagKey", "")
    limit = request.get("Limit", _TAGS_MAX)
    found = sorted((key, value) for key, value in stream.tags.items() if key > after)
    return {"Tags": _tag_list(found[:limit]), "HasMoreTags": len(found) > limit}


def TagResource(call: ServiceCall, request: Document) -> Document:
    """Add or change tags, by ARN."""
    stream = call.stream({"StreamARN": request["ResourceARN"]})
    call.admit(stream)
    _add_tags(call, stream, request["Tags"])
    return {}


def UntagResource(call: ServiceCall, request: Document) -> Document:
    """Remove tags, by ARN."""
    stream = call.stream({"StreamARN": request["ResourceARN"]})
    call.admit(stream)
    _remove_tags(call, stream, request["TagKeys"])
    return {}


def ListTagsForResource(call: ServiceCall, request: Document) -> Document:
    """List all tags, by ARN."""
    stream = call.stream({"StreamARN": request["ResourceARN"]})
    call.admit(stream)
    return {"Tags": _tag_list(sorted(stream.tags.items()))}
