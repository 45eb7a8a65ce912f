"""The identity of a stream: distinct from another one's, and from a later one's of the same name; and the region in an ARN."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

from msgspec import Struct

_REGION_PART: Final = 3  # of an ARN: arn, partition, service, region
_NAME_OR_ARN: Final = re.compile(r"(arn:[^:]+:kinesis:[^:]*:[^:]*:stream/)?[a-zA-Z0-9_.-]{1,128}")


class StreamIdentity(Struct, frozen=True):
    """One stream, distinguished from a later one of the same name.

    Args:
        created_ms: Its creation, milliseconds since the epoch.
    """

    arn: str
    created_ms: int

    def __str__(self) -> str:
        """Show as a lease table spells it."""
        return f"{self.arn}@{self.created_ms}"

    @property
    def stream_id(self) -> str:
        """The prefix of the stream's lease keys in a table of several streams: `account:stream:epoch`, in whole seconds.

        Source:
            KCL's `StreamIdentifier.serialize`. Its users pass the creation time of DescribeStreamSummary in seconds.
        """
        account, _, name = self.arn.split(":", 4)[4].partition(":stream/")
        return f"{account}:{name}:{self.created_ms // 1000}"


def parse_identity(text: str) -> StreamIdentity:
    """Parse the text of an identity, as `str` shows it.

    Raises:
        ValueError: The text is not that of an identity.
    """
    arn, found, created = text.rpartition("@")
    if not (found and arn and created.isascii() and created.isdigit()):
        raise ValueError(f"{text!r} names no stream: expected <ARN>@<creation in milliseconds>")
    return StreamIdentity(arn, int(created))


def is_name_or_arn(text: str) -> bool:
    """Whether a text has the form of a stream's name or ARN.

    Source:
        Kinesis API reference, StreamName and StreamARN.
    """
    return _NAME_OR_ARN.fullmatch(text) is not None


def with_region_of_arns(connection: Mapping[str, Any], *names: str | None) -> dict[str, Any]:
    """Return the fields of a connection; if they lack the region, add the one that all ARNs among some names have.

    Args:
        names: Names or ARNs of streams or queues; None is left out.
    """
    region = region_of_arns(*names)
    if region is None or connection.get("region") is not None:
        return dict(connection)
    return {**connection, "region": region}


def region_of_arns(*names: str | None) -> str | None:
    """Return the region that all ARNs among some names have; None if there is no ARN, or if they differ."""
    regions = all_regions_of(*names)
    return (regions.pop() or None) if len(regions) == 1 else None


def all_regions_of(*names: str | None) -> set[str]:
    """Return the regions of the ARNs among some names."""
    arns = [name.split(":") for name in names if name is not None and name.startswith("arn:")]
    return {parts[_REGION_PART] for parts in arns if len(parts) > _REGION_PART}
