"""The channels of a store: their settings and states. Nothing is delivered.

Pure given a clock reading.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, field, replace
from hashlib import md5
from typing import Any

from penstock_local.service_errors import RequestRefused

CREATING, ACTIVE, UPDATING, DELETING = "CREATING", "ACTIVE", "UPDATING", "DELETING"
Document = dict[str, Any]

log = logging.getLogger("penstock_local")


@dataclass(frozen=True, slots=True)
class Channel:
    """A channel; replaced as a whole.

    Attributes:
        name: Its name, unique among the channels of the region.
        uid: Its number, never given to another stream, queue or channel of the store.
        id: Resource identifier, also in the ARN.
        stream_uid: The `uid` of its stream.
        role_arn: The role that the service would assume.
        record: Its `RecordConfiguration`.
        destination_type: `S3` or `S3_TABLES`.
        destination: Its destination, as descriptions show it.
        encryption: Its `EncryptionConfiguration`; None if it has none.
        logging: Its `LoggingConfiguration`.
        status: `CREATING`, `ACTIVE`, `UPDATING` or `DELETING`.
        due_ms: When a status other than `ACTIVE` ends, in virtual time.
    """

    name: str
    uid: int
    id: str
    arn: str
    region: str
    stream_uid: int
    created_ms: int
    role_arn: str
    record: Document
    destination_type: str
    destination: Document
    encryption: Document | None
    logging: Document
    status: str
    due_ms: int
    tags: dict[str, str] = field(default_factory=dict)


def channel_id(stream_arn: str, name: str, uid: int) -> str:
    """Return the identifier of a new channel."""
    return md5(f"{stream_arn} channel {name} {uid}".encode(), usedforsecurity=False).hexdigest()


class ChannelJournal:
    """Records every change of a channel before the change takes effect.

    Each method raises `RequestRefused` if the change cannot be stored.
    """

    def channel_changed(self, channel: Channel) -> None:
        """Record a channel as it is about to be."""

    def channel_deleted(self, channel: Channel) -> None:
        """Record that this channel is gone."""


class Channels:
    """All channels of one store; not thread-safe, owned by the server's loop.

    Args:
        journal: Receives every change.
        settle_ms: How long CREATING, UPDATING and DELETING last, in virtual milliseconds.

    Attributes:
        by_id: The channels by identifier.
    """

    def __init__(self, journal: ChannelJournal, settle_ms: int) -> None:
        self.by_id: dict[str, Channel] = {}
        self._journal = journal
        self._settle_ms = settle_ms

    def get(self, identifier: str, now_ms: int) -> Channel | None:
        """Return a channel by its identifier after applying its due change; None if there is none."""
        channel = self.by_id.get(identifier)
        if channel is not None:
            self._settle(channel, now_ms)
        return self.by_id.get(identifier)

    def of_region(self, region: str, now_ms: int) -> list[Channel]:
        """Return the channels of a region by name, after applying their due changes."""
        self.settle_all(now_ms)
        return sorted(
            (c for c in self.by_id.values() if c.region == region), key=lambda channel: channel.name
        )

    def of_stream(self, stream_uid: int, now_ms: int) -> list[Channel]:
        """Return the channels of a stream after applying their due changes."""
        self.settle_all(now_ms)
        return [channel for channel in self.by_id.values() if channel.stream_uid == stream_uid]

    def settle_all(self, now_ms: int) -> None:
        """Apply the due changes of all channels."""
        for channel in list(self.by_id.values()):
            self._settle(channel, now_ms)

    def put(self, channel: Channel, now_ms: int, status: str | None = None) -> Channel:
        """Add or replace a channel. A given status lasts for `settle_ms` from now.

        Returns:
            The channel as it is stored.
        """
        if status is not None:
            channel = replace(channel, status=status, due_ms=now_ms + self._settle_ms)
        self._journal.channel_changed(channel)
        self.by_id[channel.id] = channel
        self._settle(channel, now_ms)
        return self.by_id.get(channel.id, channel)

    def _settle(self, channel: Channel, now_ms: int) -> None:
        """Apply the channel's due change, if any. A change that the journal refuses stays due."""
        if channel.status == ACTIVE or channel.due_ms > now_ms:
            return
        try:
            if channel.status == DELETING:
                self._journal.channel_deleted(channel)
                del self.by_id[channel.id]
            else:
                active_channel = replace(channel, status=ACTIVE)
                self._journal.channel_changed(active_channel)
                self.by_id[channel.id] = active_channel
        except RequestRefused as refusal:
            log.debug("the change of channel %s stays due: %s", channel.name, refusal)
