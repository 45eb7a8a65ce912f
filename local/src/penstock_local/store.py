"""The state of the embedded Kinesis: streams by name, their records, and what changes them.

Pure given a clock reading: no sockets, no waiting. The journal receives every change before the
caller is answered.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from hashlib import md5
from typing import Any

from penstock_local.channels import Channel, ChannelJournal, Channels
from penstock_local.queues.queue import Queue
from penstock_local.queues.registry import QueueJournal, Queues
from penstock_local.sequence import TAG_MAX
from penstock_local.service_errors import RequestRefused, in_use, invalid_argument, limit_exceeded, not_found
from penstock_local.shard import Shard
from penstock_local.stream import Change, Consumer, Stream

ACCOUNT = "123456789012"
GIB = 1024**3
_ARN = re.compile(r"arn:(aws[^:]*):kinesis:([^:]*):(\d{12}):stream/([a-zA-Z0-9_.-]+)")


@dataclass(frozen=True, slots=True)
class AccountSettings:
    """The minimum throughput billing commitment of an account in a region; replaced as a whole.

    Attributes:
        started_ms: When it was last enabled; None when it never was.
        disabled_ms: When it was disabled after that; None while it is enabled.
    """

    started_ms: int | None = None
    disabled_ms: int | None = None


Batch = tuple[Shard, Sequence[bytes], Sequence[int]]
"""Records for one shard: the shard, the records' texts, and the bytes that each counts for."""


OnChange = Callable[[Stream, Sequence[Shard]], None]
"""Called after records were added to shards of a stream or, with no shards, after the stream itself changed."""


log = logging.getLogger("penstock_local")


class Journal(QueueJournal, ChannelJournal):
    """Records every change. `FileJournal` does; this base class keeps nothing, for the server without a state folder.

    Each method raises `RequestRefused` if the change cannot be stored. A stream that was stored before is then
    restored to its stored state.
    """

    def stream_changed(self, stream: Stream) -> None:
        """Record that something of this stream changed, other than its records."""

    def stream_deleted(self, stream: Stream) -> None:
        """Record that this stream is gone."""

    def records_added(self, stream: Stream, batches: Sequence[Batch], arrival_ms: int) -> None:
        """Record the records that are about to be appended to shards, all with one arrival."""

    def account_changed(self, region: str, settings: AccountSettings) -> None:
        """Record the settings that the account is about to have in a region."""

    def clock_moved(self, now_ms: int) -> None:
        """Record that the virtual clock was moved to this time."""


@dataclass(frozen=True, slots=True)
class StoreOptions:
    """The settings of a store.

    Attributes:
        region: Region of calls that name none.
        settle_ms: How long CREATING, UPDATING and DELETING last, in virtual milliseconds.
        memory_bytes_max: Stored record texts at most; a write beyond it is refused.
        shard_count_max: Open shards of the account at most.
        on_demand_growth: Whether the shards of on-demand streams are split by their load.
    """

    region: str = "us-east-1"
    settle_ms: int = 200
    memory_bytes_max: int = 4 * GIB
    shard_count_max: int = 20_000
    on_demand_growth: bool = False


class Store:
    """All streams of one account; not thread-safe, owned by the server's loop.

    Attributes:
        streams: By region and name.
        accounts: The account's settings, by region.
        queues: The queues on the streams.
        channels: The channels of the streams.
        on_change: Called after each change, as `OnChange` describes.
    """

    def __init__(self, options: StoreOptions | None = None, journal: Journal | None = None) -> None:
        self.options = options or StoreOptions()
        self.journal = journal or Journal()
        self.streams: dict[tuple[str, str], Stream] = {}
        self.by_uid: dict[int, Stream] = {}
        self.accounts: dict[str, AccountSettings] = {}
        self.stored_bytes = 0
        self.channels = Channels(self.journal, self.options.settle_ms)
        self.queues = Queues(self.by_uid, self.journal, self.options.settle_ms)
        self.on_change: OnChange = lambda _stream, _shards: None
        self._uid_last = 0
        self._last_stamps_s: dict[tuple[str, str], int] = {}

    # -- finding --------------------------------------------------------------------------------------------

    def find(self, name: str | None, arn: str | None, now_ms: int, region: str = "") -> Stream:
        """Return a stream by name or ARN after applying its due changes; in the store's own region if none is named.

        Raises:
            RequestRefused: Neither is given, both disagree, or there is no such stream.
        """
        region = region or self.options.region
        if arn is not None:
            parts = _ARN.fullmatch(arn)
            if parts is None:
                raise invalid_argument(f"StreamARN {arn} is not the ARN of a stream.")
            if name is not None and name != parts[4]:
                raise invalid_argument(f"StreamARN {arn} and StreamName {name} do not name the same stream.")
            name = parts[4]
            if parts[3] != ACCOUNT or parts[2] != region or parts[1] != _partition(region):
                raise not_found(f"Stream {name} under account {parts[3]} in region {parts[2]} not found.")
        if name is None:
            raise invalid_argument("Either StreamName or StreamARN must be given.")
        stream = self.get(region, name, now_ms)
        if stream is None:
            elsewhere = sorted(where for where, its_name in self.streams if its_name == name)
            hint = (
                f" The call is for region {region}; there is one in {', '.join(elsewhere)}."
                if elsewhere
                else ""
            )
            raise not_found(f"Stream {name} under account {ACCOUNT} not found.{hint}")
        return stream

    def get(self, region: str, name: str, now_ms: int) -> Stream | None:
        """Return a stream of a region by name after applying its due changes; None if there is none."""
        stream = self.streams.get((region, name))
        if stream is not None:
            self.settle(stream, now_ms)
        return self.streams.get((region, name))

    def of_region(self, region: str, now_ms: int) -> list[Stream]:
        """Return the streams of a region after applying their due changes."""
        for stream in list(self.streams.values()):
            self.settle(stream, now_ms)
        return [stream for stream in self.streams.values() if stream.region == region]

    def settle(self, stream: Stream, now_ms: int) -> None:
        """Apply a stream's due changes; a deleted stream is forgotten.

        No caller waits for this change: if the journal cannot take it, it stays due, and reads go on.
        """
        if not stream.settle(now_ms):
            return
        try:
            if stream.status == "DELETED":
                self._remove(stream)
            else:
                self.journal.stream_changed(stream)
        except RequestRefused as refusal:
            log.debug("the change of %s stays due: %s", stream.name, refusal)
        else:
            self.on_change(stream, ())

    def settle_all(self, now_ms: int) -> None:
        """Apply the due changes of all streams, and trim all records (the server calls this now and then)."""
        for stream in list(self.streams.values()):
            self.settle(stream, now_ms)
            if stream.status != "DELETED":
                for shard in stream.shards.values():
                    self.trim(stream, shard, now_ms)
                self.forget_expired(stream, now_ms)
        self.queues.settle_all(now_ms)
        self.channels.settle_all(now_ms)

    def forget_expired(self, stream: Stream, now_ms: int) -> None:
        """Drop the closed shards of a stream that are past its retention, unless the journal refuses."""
        expired_shards = stream.forget_expired(now_ms)
        if not expired_shards:
            return
        try:
            self.journal.stream_changed(stream)
        except RequestRefused as refusal:
            log.debug("closed shards of %s stay: %s", stream.name, refusal)
            return
        self.stored_bytes -= sum(shard.stored_bytes for shard in expired_shards)

    def trim(self, stream: Stream, shard: Shard, now_ms: int) -> None:
        """Drop a shard's records past the retention."""
        self.stored_bytes -= shard.trim(now_ms - stream.retention_ms)

    def open_shard_count(self, region: str) -> int:
        """Return how many shards of a region's streams are open or being created."""
        total = 0
        for stream in self.streams.values():
            if stream.region != region:
                continue
            change = stream.change
            creating = change is not None and change.kind == "create"
            total += change.args[0] if change is not None and creating else len(stream.open_shards)
        return total

    def require_shard_room(self, added: int, region: str) -> None:
        """Refuse a change that would exceed the account's quota of open shards in a region.

        Raises:
            RequestRefused: `LimitExceededException`.
        """
        present, limit = self.open_shard_count(region), self.options.shard_count_max
        if present + added > limit:
            raise limit_exceeded(
                f"This request would exceed the shard limit for the account {ACCOUNT} in region {region}. "
                f"Current shard count for the account: {present}. Limit: {limit}. Number of additional shards that "
                f"would have resulted from this request: {added}."
            )

    # -- changing -------------------------------------------------------------------------------------------

    def create(
        self,
        name: str,
        shard_count: int,
        now_ms: int,
        *,
        mode: str = "PROVISIONED",
        region: str = "",
        **attributes: Any,
    ) -> Stream:
        """Begin to create a stream.

        Args:
            shard_count: Shards that it begins with.
            mode: `PROVISIONED` or `ON_DEMAND`.
            region: Its region; the store's own if none is named.
            attributes: More attributes of the stream that do not have their default.

        Raises:
            RequestRefused: `ResourceInUseException` when there is one of that name.
        """
        region = region or self.options.region
        if self.get(region, name, now_ms) is not None:
            raise in_use(f"Stream {name} under account {ACCOUNT} already exists.")
        uid = self.next_uid(now_ms)
        stamp_s = max(now_ms // 1000, self._last_stamps_s.get((region, name), 0) + 1)
        stream = self.blank_stream(name, uid, now_ms, stamp_s, mode, region=region)
        stream.tag = self._free_tag(stream)
        for attribute, value in attributes.items():
            setattr(stream, attribute, value)
        self.streams[region, name] = stream
        self.by_uid[stream.uid] = stream
        try:
            self.begin_change(stream, "create", (shard_count,), "CREATING", now_ms)
        except RequestRefused:
            del self.streams[region, name], self.by_uid[stream.uid]
            raise
        return stream

    def next_uid(self, now_ms: int) -> int:
        """Return a number that no stream, queue or channel of this store has had."""
        self._uid_last = max(self._uid_last + 1, now_ms)
        return self._uid_last

    def blank_stream(
        self, name: str, uid: int, created_ms: int, stamp_s: int, mode: str, *, region: str = ""
    ) -> Stream:
        """Return a new stream without shards; it is not added to the store."""
        region = region or self.options.region
        return Stream(
            name=name,
            arn=f"arn:{_partition(region)}:kinesis:{region}:{ACCOUNT}:stream/{name}",
            account=ACCOUNT,
            region=region,
            uid=uid,
            created_ms=created_ms,
            stamp_s=stamp_s,
            mode=mode,
        )

    def _free_tag(self, stream: Stream) -> int:
        """Return a tag that no stream of this store has, and that is unlikely in another server."""
        taken = {other.tag for other in self.streams.values()}
        identity = md5(f"{stream.arn} {stream.uid}".encode(), usedforsecurity=False).digest()
        tag = int.from_bytes(identity[:3], "big")
        while tag in taken or tag == 0:
            tag = (tag + 1) & TAG_MAX
        return tag

    def create_active(self, name: str, shard_count: int, now_ms: int, region: str = "") -> Stream:
        """Create a stream that is ACTIVE on return.

        Raises:
            RequestRefused: There is one of that name, or there is no room for so many shards.
        """
        self.require_shard_room(shard_count, region or self.options.region)
        stream = self.create(name, shard_count, now_ms, region=region)
        if stream.change is not None:
            stream.change.due_ms = now_ms
            self.settle(stream, now_ms)
            self.require_active(stream)
        return stream

    def begin_change(
        self, stream: Stream, kind: str, args: tuple[int, ...], status: str, now_ms: int
    ) -> None:
        """Start a change that takes `settle_ms`; with 0 it has taken effect on return."""
        stream.begin_change(Change(now_ms + self.options.settle_ms, kind, args), status)
        self.journal.stream_changed(stream)
        self.on_change(stream, ())
        self.settle(stream, now_ms)

    def put_consumer(self, stream: Stream, consumer: Consumer, now_ms: int) -> None:
        """Add or replace a consumer of a stream; a change of state that is due now is made on return."""
        stream.consumers = {**stream.consumers, consumer.name: consumer}
        self.journal.stream_changed(stream)
        self.on_change(stream, ())
        self.settle(stream, now_ms)

    def require_active(self, stream: Stream) -> None:
        """Refuse a control operation on a stream that is being changed."""
        if stream.status != "ACTIVE":
            raise in_use(not_active(f"Stream {stream.name}", stream.status))

    def adopt(self, stream: Stream) -> None:
        """Add a stream that was loaded from a state folder."""
        self.streams[stream.region, stream.name] = stream
        self.by_uid[stream.uid] = stream
        self._uid_last = max(self._uid_last, stream.uid)
        self.stored_bytes += sum(shard.stored_bytes for shard in stream.shards.values())

    def adopt_queue(self, queue: Queue) -> None:
        """Add a queue that was loaded from a state folder."""
        self._uid_last = max(self._uid_last, queue.uid)
        self.queues.adopt(queue)

    def adopt_channel(self, channel: Channel) -> None:
        """Add a channel that was loaded from a state folder."""
        self._uid_last = max(self._uid_last, channel.uid)
        self.channels.by_id[channel.id] = channel

    def set_account(self, region: str, settings: AccountSettings) -> None:
        """Change the account's settings in a region, journal first."""
        self.journal.account_changed(region, settings)
        self.accounts[region] = settings

    def add_records(
        self,
        stream: Stream,
        batches: Sequence[Batch],
        arrival_ms: int,
    ) -> None:
        """Append the records of one call to their shards, journal first.

        Args:
            stream: The stream that owns the shards.
            batches: Per shard its record texts and the bytes that each counts for.
            arrival_ms: The arrival of all of them.

        Raises:
            RequestRefused: The memory limit of this server would be exceeded; nothing was stored.
        """
        added = sum(sum(map(len, texts)) for _, texts, _ in batches)
        if self.stored_bytes + added > self.options.memory_bytes_max:
            raise RequestRefused(
                "StorageFullException",
                f"penstock-local holds {self.stored_bytes} bytes of records and {added} more would pass "
                f"memory_bytes_max={self.options.memory_bytes_max}; raise it, or let time pass the retention of "
                f"{stream.retention_h} h.",
                status=507,
            )
        self.journal.records_added(stream, batches, arrival_ms)
        for shard, texts, sizes in batches:
            self.stored_bytes += shard.extend(texts, sizes, arrival_ms)
        shards = [shard for shard, _, _ in batches]
        self.queues.on_stream_change(stream, shards)
        self.on_change(stream, shards)

    def _remove(self, stream: Stream) -> None:
        self.journal.stream_deleted(stream)
        del self.streams[stream.region, stream.name]
        del self.by_uid[stream.uid]
        self._last_stamps_s[stream.region, stream.name] = max(
            (shard.created_s for shard in stream.shards.values()), default=stream.stamp_s
        )
        self.stored_bytes -= sum(shard.stored_bytes for shard in stream.shards.values())


def _partition(region: str) -> str:
    """Return the partition that a region's ARNs name."""
    if region.startswith("cn-"):
        return "aws-cn"
    return "aws-us-gov" if region.startswith("us-gov-") else "aws"


def not_active(what: str, status: str) -> str:
    """Return the sentence about a stream, queue or channel in another state than ACTIVE."""
    return f"{what} under account {ACCOUNT} not ACTIVE, instead in state {status}"


def hash_key_of(partition_key: str) -> int:
    """Return the 128-bit MD5 of a partition key, as the service uses it."""
    return int.from_bytes(md5(partition_key.encode()).digest(), "big")
