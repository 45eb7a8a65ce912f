"""The state folder's file of streams and records: an append-only journal, replayed at the next start.

Every change is written (to the operating system, not forced to the disk) before the caller is answered,
so an acknowledged change survives the death of this process. A change that cannot be written is not
acknowledged, and the stream is restored from the journal. `frames` describes the
file and what counts as damage.
"""

from __future__ import annotations

import logging
import os
import struct
from collections.abc import Iterator, Sequence
from typing import Any

import msgspec

from penstock_local.channels import Channel
from penstock_local.frames import Frame, FrameFile
from penstock_local.queues import queue_frames
from penstock_local.queues.deliveries import Delivery
from penstock_local.queues.queue import Queue, QueueSettings
from penstock_local.queues.queue_frames import QueueReplay
from penstock_local.service_errors import RequestRefused
from penstock_local.shard import Shard, shard_id
from penstock_local.state_folder import StateFolder
from penstock_local.store import AccountSettings, Batch, Journal, Store
from penstock_local.stream import Change, Consumer, SavedStream, Stream, StreamSettings

_RECORDS = struct.Struct(">QqI")
_BATCH = struct.Struct(">IQI")
_SIZES = struct.Struct(">II")
_CLOCK_READING = struct.Struct(">q")
_META, _STREAM, _DELETED, _ADDED, _CLOCK, _ACCOUNT = b"M", b"S", b"D", b"R", b"C", b"A"
_CHANNEL, _CHANNEL_DELETED = b"N", b"n"
_FILE = "kinesis.journal"
_COMPACT_BYTES_MIN = 64 * 1024 * 1024
_REWRITE_RECORDS = 1000

log = logging.getLogger("penstock_local")


class FileJournal(Journal):
    """Keeps a store in a state folder; the store calls it for every change.

    Attributes:
        clock_ms: Latest reading of the clock in the file.
        key: Signs iterators and tokens, so that they outlive a restart.
    """

    def __init__(self, folder: StateFolder) -> None:
        self._file = FrameFile(folder, _FILE)
        self._saved_streams: dict[int, SavedStream] = {}
        self._live_bytes = 0
        self.clock_ms = 0
        self.key = os.urandom(32)

    def load(self, store: Store) -> None:
        """Fill an empty store from the folder.

        Raises:
            OptionError: The journal is damaged, or cannot be read or written.
        """
        if self._file.create_if_missing(lambda: self._frames(store)):
            return
        replay = _Replay(store)
        for at, kind, payload in self._file.frames():
            try:
                replay.apply(kind, payload)
            except (struct.error, ValueError, LookupError, TypeError, msgspec.MsgspecError) as error:
                raise self._file.damage_error(
                    at, f"a record does not fit those before it ({error})"
                ) from error
        # a file that was truncated as the error of a damaged file advises may have no key left
        self.key = replay.key or self.key
        self.clock_ms = max(replay.clock_ms, replay.queues.clock_ms)
        for stream in replay.streams.values():
            store.adopt(stream)
            self._saved_streams[stream.uid] = stream.saved_state()
        for queue in replay.queues.queues.values():
            queue.deliveries.settle(self.clock_ms)
            store.adopt_queue(queue)
        for channel in replay.channels.values():
            store.adopt_channel(channel)

    def close(self, now_ms: int | None) -> None:
        """Write the clock unless the reading is None, and close the file."""
        if now_ms is not None:
            self.save_clock(now_ms)
        self._file.close()

    def save_clock(self, now_ms: int) -> None:
        """Write the clock if that is possible. If not, the next start goes on from the time of the last change."""
        try:
            self.clock_moved(now_ms)
        except RequestRefused as refusal:
            log.debug("the clock is not saved: %s", refusal)

    # -- called by the store ----------------------------------------------------------------------------------

    def stream_changed(self, stream: Stream) -> None:
        try:
            self._file.append(_STREAM, msgspec.json.encode(_stream_document(stream)))
        except RequestRefused:
            self._restore(stream)
            raise
        self._saved_streams[stream.uid] = stream.saved_state()

    def stream_deleted(self, stream: Stream) -> None:
        try:
            self._file.append(_DELETED, struct.pack(">Q", stream.uid))
        except RequestRefused:
            self._restore(stream)
            raise
        del self._saved_streams[stream.uid]

    def records_added(self, stream: Stream, batches: Sequence[Batch], arrival_ms: int) -> None:
        pieces = [_RECORDS.pack(stream.uid, arrival_ms, len(batches))]
        for shard, texts, sizes in batches:
            pieces.append(_BATCH.pack(shard.index, shard.next_ordinal, len(texts)))
            pieces.extend(_SIZES.pack(size, len(text)) for size, text in zip(sizes, texts, strict=True))
            pieces.extend(texts)
        self._file.append(_ADDED, b"".join(pieces))

    def account_changed(self, region: str, settings: AccountSettings) -> None:
        self._file.append(_ACCOUNT, msgspec.json.encode((region, settings)))

    def clock_moved(self, now_ms: int) -> None:
        self._file.append(_CLOCK, _CLOCK_READING.pack(now_ms))
        self.clock_ms = now_ms

    def queue_changed(self, queue: Queue, settings: QueueSettings) -> None:
        self._file.append(queue_frames.QUEUE, queue_frames.queue_payload(queue, settings))

    def queue_deleted(self, queue: Queue) -> None:
        self._file.append(queue_frames.QUEUE_DELETED, queue_frames.deletion_payload(queue))

    def deliveries_changed(self, queue: Queue, deliveries: Sequence[Delivery], now_ms: int) -> None:
        self._file.append(queue_frames.DELIVERED, queue_frames.deliveries_payload(queue, deliveries, now_ms))

    def deliveries_acknowledged(self, queue: Queue, deliveries: Sequence[Delivery], now_ms: int) -> None:
        self._file.append(
            queue_frames.ACKNOWLEDGED, queue_frames.acknowledgement_payload(queue, deliveries, now_ms)
        )

    def channel_changed(self, channel: Channel) -> None:
        self._file.append(_CHANNEL, msgspec.json.encode(channel))

    def channel_deleted(self, channel: Channel) -> None:
        self._file.append(_CHANNEL_DELETED, struct.pack(">Q", channel.uid))

    def _restore(self, stream: Stream) -> None:
        # a stream that was never written is forgotten by the store
        if stream.uid in self._saved_streams:
            stream.restore_saved(self._saved_streams[stream.uid])

    # -- rewriting the file ---------------------------------------------------------------------------------

    def compact_if_large(self, store: Store) -> None:
        """Rewrite the journal if most of it is for records that the store has dropped."""
        if self._file.size > max(_COMPACT_BYTES_MIN, 3 * max(store.stored_bytes, self._live_bytes)):
            self.compact(store)

    def compact(self, store: Store) -> None:
        """Rewrite the journal from the store; if that fails, the old one stays in use."""
        if self._file.compact(lambda: self._frames(store)):
            self._live_bytes = self._file.size

    def _frames(self, store: Store) -> Iterator[Frame]:
        yield _META, msgspec.json.encode({"key": self.key.hex()})
        yield _CLOCK, _CLOCK_READING.pack(self.clock_ms)
        for region, settings in store.accounts.items():
            yield _ACCOUNT, msgspec.json.encode((region, settings))
        for stream in store.streams.values():
            yield _STREAM, msgspec.json.encode(_stream_document(stream))
            for shard in stream.shards.values():
                for payload in _record_payloads(stream, shard):
                    yield _ADDED, payload
        for queue in store.queues.by_id.values():
            yield from queue_frames.frames(queue)
        for channel in store.channels.by_id.values():
            yield _CHANNEL, msgspec.json.encode(channel)


class _Replay:
    """Builds streams from the frames of a journal.

    Attributes:
        streams: By uid.
        clock_ms: Latest moment in any frame.
        key: The key in the first frame; None before it.
        queues: Builds the queues.
        channels: By uid.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self.streams: dict[int, Stream] = {}
        self.clock_ms = 0
        self.key: bytes | None = None
        self.queues = QueueReplay()
        self.channels: dict[int, Channel] = {}

    def apply(self, kind: bytes, payload: bytes) -> None:
        """Apply one frame.

        Raises:
            ValueError: It contradicts the frames before it. Other errors of its parsers mean the same.
        """
        if kind == _META:
            self.key = bytes.fromhex(msgspec.json.decode(payload)["key"])
        elif kind == _CLOCK:
            self.clock_ms = max(self.clock_ms, *_CLOCK_READING.unpack(payload))
        elif kind == _ACCOUNT:
            region, settings = _decode_account(payload)
            self._store.accounts[region] = settings
        elif kind == _DELETED:
            del self.streams[struct.unpack(">Q", payload)[0]]
        elif kind == _STREAM:
            document = msgspec.json.decode(payload)
            stream = _build_stream(document, self.streams.get(document["uid"]), self._store)
            self.streams[stream.uid] = stream
            self.clock_ms = max(self.clock_ms, document["at_ms"])
        elif kind == _ADDED:
            self._add_records(payload)
        elif kind in QueueReplay.KINDS:
            self.queues.apply(kind, payload)
        elif kind == _CHANNEL:
            channel = msgspec.json.decode(payload, type=Channel)
            self.channels[channel.uid] = channel
        elif kind == _CHANNEL_DELETED:
            del self.channels[struct.unpack(">Q", payload)[0]]
        else:
            raise ValueError(f"unknown kind {kind!r}")

    def _add_records(self, payload: bytes) -> None:
        uid, arrival_ms, batches = _unpack_records(payload)
        stream = self.streams[uid]
        for index, ordinal, texts, sizes in batches:
            shard = stream.shards[shard_id(index)]
            shard.restart_at(ordinal)  # if it is empty: the records before are past the retention
            if shard.next_ordinal != ordinal:
                raise ValueError(
                    f"{shard.id} of {stream.name} goes on with record {ordinal} after {shard.next_ordinal - 1}"
                )
            shard.extend(texts, sizes, arrival_ms)
        self.clock_ms = max(self.clock_ms, arrival_ms)


def _decode_account(payload: bytes) -> tuple[str, AccountSettings]:
    return msgspec.json.decode(payload, type=tuple[str, AccountSettings])


def _unpack_records(payload: bytes) -> tuple[int, int, list[tuple[int, int, list[bytes], list[int]]]]:
    """Return uid, arrival and batches of a frame of records: shard index, first ordinal, texts and sizes."""
    uid, arrival_ms, batch_count = _RECORDS.unpack_from(payload)
    at = _RECORDS.size
    batches = []
    for _ in range(batch_count):
        index, ordinal, count = _BATCH.unpack_from(payload, at)
        at += _BATCH.size
        pairs = list(_SIZES.iter_unpack(payload[at : at + count * _SIZES.size]))
        at += count * _SIZES.size
        texts = []
        for _, length in pairs:
            texts.append(payload[at : at + length])
            at += length
        batches.append((index, ordinal, texts, [size for size, _ in pairs]))
    return uid, arrival_ms, batches


def _record_payloads(stream: Stream, shard: Shard) -> Iterator[bytes]:
    """Yield the records of a shard as payloads of frames, each with one arrival."""
    ordinal, texts, sizes, arrivals = shard.all_records()
    begin = 0
    while begin < len(texts):
        end = begin + 1
        while end < len(texts) and end - begin < _REWRITE_RECORDS and arrivals[end] == arrivals[begin]:
            end += 1
        pieces = [
            _RECORDS.pack(stream.uid, arrivals[begin], 1),
            _BATCH.pack(shard.index, ordinal + begin, end - begin),
        ]
        pieces.extend(_SIZES.pack(sizes[i], len(texts[i])) for i in range(begin, end))
        pieces.extend(texts[begin:end])
        yield b"".join(pieces)
        begin = end


# the fields of a stream that are stored as they are
_CREATION_FIELDS = ("name", "uid", "created_ms", "stamp_s", "tag", "region", "mode")
_CHANGEABLE_FIELDS = ("status", "retention_h", "record_kib_max", "tags", "rescaled_ms", "mode_switched_ms")


def _stream_document(stream: Stream) -> dict[str, Any]:
    change = stream.change
    moments = [shard.closed_ms or shard.opened_ms for shard in stream.shards.values()]
    return {name: getattr(stream, name) for name in _CREATION_FIELDS + _CHANGEABLE_FIELDS} | {
        "settings": stream.settings,
        "change": None if change is None else [change.due_ms, change.kind, [str(a) for a in change.args]],
        "next_index": stream.next_index,
        "consumers": list(stream.consumers.values()),
        "consumers_gone": stream.consumers_gone,
        "at_ms": max([stream.created_ms, *moments]),
        "shards": [
            {
                "index": shard.index,
                "range": [str(shard.hash_start), str(shard.hash_end)],
                "created_s": shard.created_s,
                "opened_ms": shard.opened_ms,
                "closed_ms": shard.closed_ms,
                "parents": shard.parents,
                "children": shard.children,
                "first": shard.first_ordinal if len(shard) else shard.next_ordinal,
            }
            for shard in stream.shards.values()
        ],
    }


def _build_stream(document: dict[str, Any], known_stream: Stream | None, store: Store) -> Stream:
    """Build a stream; the shards that it had in the frames before keep their records."""
    stream = store.blank_stream(
        document["name"],
        document["uid"],
        document["created_ms"],
        document["stamp_s"],
        document["mode"],
        region=document.get("region", ""),
    )
    stream.tag = document.get("tag", 0)
    stream.settings = msgspec.convert(document.get("settings", {}), StreamSettings)
    for name in _CHANGEABLE_FIELDS:
        setattr(stream, name, document[name])
    consumers = msgspec.convert(document.get("consumers", []), list[Consumer])
    stream.consumers = {consumer.name: consumer for consumer in consumers}
    stream.consumers_gone = document.get("consumers_gone", {})
    if document["change"] is not None:
        due_ms, kind, args = document["change"]
        stream.change = Change(due_ms, kind, tuple(int(a) for a in args))
    shards = []
    for each in document["shards"]:
        start, end = (int(bound) for bound in each["range"])
        shard = Shard(
            each["index"],
            start,
            end,
            created_s=each["created_s"],
            opened_ms=each["opened_ms"],
            parents=each["parents"],
            stream_tag=stream.tag,
        )
        known_shard = None if known_stream is None else known_stream.shards.get(shard.id)
        if known_shard is not None:
            shard = known_shard
            # records trimmed since must not reappear under a longer retention
            shard.forget_before(each["first"])
        shard.closed_ms = each["closed_ms"]
        shard.children = tuple(each["children"])
        shard.restart_at(each["first"])
        shards.append(shard)
    stream.restore(shards, document["next_index"])
    return stream
