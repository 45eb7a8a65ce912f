"""The identity of a stream: distinct from another one's, and from a later one's of the same name."""

from __future__ import annotations

from msgspec import Struct


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
