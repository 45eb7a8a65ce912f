"""The state folder's file of streams and records: an append-only journal, replayed at the next start.

Every change is written (to the operating system, not forced to the disk) before the caller is answered,
so what was acknowledged survives the death of this process. Each frame carries its length and checksum:
a frame that was cut short at the end of the file was never acknowledged and is dropped with a warning;
damage anywhere else is an error, because acknowledged records would be lost.
"""

from __future__ import annotations

import fcntl
import logging
import os
import struct
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec

from penstock.errors import OptionError
from penstock.local.shard import Shard, shard_id
from penstock.local.store import Batch, Store
from penstock.local.stream import Change, Stream

_HEAD = struct.Struct(">IIc")
_RECORDS = struct.Struct(">QqI")
_BATCH = struct.Struct(">IQI")
_SIZES = struct.Struct(">II")
_META, _STREAM, _DELETED, _ADDED, _CLOCK = b"M", b"S", b"D", b"R", b"C"
_VERSION = 1
_COMPACT_BYTES_MIN = 64 * 1024 * 1024
_REWRITE_RECORDS = 1000

log = logging.getLogger("penstock.local")


class FileJournal:
    """Keeps a store in a folder; the store tells it of every change.

    Args:
        folder: Made when it does not exist.

    Raises:
        OptionError: The folder cannot be used, another server uses it, or its journal is damaged.
    """

    def __init__(self, folder: Path) -> None:
        self._path = folder / "kinesis.journal"
        self._replaying = False
        self.clock_ms = 0
        self.key = os.urandom(32)
        try:
            folder.mkdir(parents=True, exist_ok=True)
            self._lock = os.open(folder / "lock", os.O_RDWR | os.O_CREAT, 0o600)
        except OSError as error:
            raise OptionError(f"the state folder {folder} cannot be used: {error}") from error
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            os.close(self._lock)
            raise OptionError(f"the state folder {folder} is in use by another server") from error
        self._fd = -1
        self._size = 0

    def load(self, store: Store) -> None:
        """Fill an empty store from the folder, then write the journal anew without what is gone."""
        self._replaying = True
        try:
            streams: dict[int, Stream] = {}
            if self._path.exists():
                for kind, payload in self._frames():
                    self._replay(kind, payload, streams, store)
            for stream in streams.values():
                store.adopt(stream)
        finally:
            self._replaying = False
        self.compact(store)

    def close(self, now_ms: int) -> None:
        """Write the clock, and let the folder go."""
        if self._fd >= 0:
            self._append(_CLOCK, struct.pack(">q", now_ms))
            os.close(self._fd)
            self._fd = -1
        os.close(self._lock)

    # -- told by the store ----------------------------------------------------------------------------------

    def stream_changed(self, stream: Stream) -> None:
        """Write everything about a stream but its records."""
        if not self._replaying:
            self._append(_STREAM, msgspec.json.encode(_stream_document(stream)))

    def stream_deleted(self, stream: Stream) -> None:
        """Write that a stream is gone."""
        if not self._replaying:
            self._append(_DELETED, struct.pack(">Q", stream.uid))

    def records_added(self, stream: Stream, batches: Sequence[Batch], arrival_ms: int) -> None:
        """Write the records of one call."""
        pieces = [_RECORDS.pack(stream.uid, arrival_ms, len(batches))]
        for shard, texts, sizes in batches:
            pieces.append(_BATCH.pack(shard.index, shard.next_ordinal, len(texts)))
            pieces.extend(_SIZES.pack(size, len(text)) for size, text in zip(sizes, texts, strict=True))
            pieces.extend(texts)
        self._append(_ADDED, b"".join(pieces))

    def clock_moved(self, now_ms: int) -> None:
        """Write that the clock was moved, so that it does not fall back at the next start."""
        self._append(_CLOCK, struct.pack(">q", now_ms))

    def compact_if_large(self, store: Store) -> None:
        """Write the journal anew when most of it is about records that are gone."""
        if self._size > max(_COMPACT_BYTES_MIN, 3 * store.stored_bytes):
            self.compact(store)

    # -- the file -------------------------------------------------------------------------------------------

    def compact(self, store: Store) -> None:
        """Write the journal anew from the store, and put it in the place of the old one."""
        fresh = self._path.with_suffix(".new")
        old = self._fd
        self._fd = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND, 0o600)
        self._size = 0
        self._append(_META, msgspec.json.encode({"version": _VERSION, "key": self.key.hex()}))
        self._append(_CLOCK, struct.pack(">q", self.clock_ms))
        for stream in store.streams.values():
            self.stream_changed(stream)
            for shard in stream.shards.values():
                for payload in _kept_frames(stream, shard):
                    self._append(_ADDED, payload)
        fresh.rename(self._path)
        if old >= 0:
            os.close(old)

    def _append(self, kind: bytes, payload: bytes) -> None:
        frame = memoryview(_HEAD.pack(len(payload), zlib.crc32(payload), kind) + payload)
        written = 0
        try:
            while written < len(frame):
                written += os.write(self._fd, frame[written:])
        except OSError:
            # half a frame in the middle would make everything after it unreadable
            os.ftruncate(self._fd, self._size)
            raise
        self._size += len(frame)

    def _frames(self) -> Iterator[tuple[bytes, bytes]]:
        size = self._path.stat().st_size
        at = 0
        with self._path.open("rb") as file:
            while at < size:
                head = file.read(_HEAD.size)
                length, checksum, kind = _HEAD.unpack(head) if len(head) == _HEAD.size else (0, 0, b"")
                end = at + _HEAD.size + length
                payload = file.read(length) if kind and end <= size else b""
                if not kind or len(payload) != length:
                    log.warning(
                        "%s: the last %d bytes were cut short by a crash and are dropped",
                        self._path,
                        size - at,
                    )
                    return
                if zlib.crc32(payload) != checksum:
                    raise OptionError(
                        f"{self._path} is damaged at byte {at} of {size}; move the state folder away to start anew"
                    )
                yield kind, payload
                at = end

    def _replay(self, kind: bytes, payload: bytes, streams: dict[int, Stream], store: Store) -> None:
        if kind == _META:
            meta = msgspec.json.decode(payload)
            if meta["version"] != _VERSION:
                raise OptionError(f"{self._path} has version {meta['version']}; this server reads {_VERSION}")
            self.key = bytes.fromhex(meta["key"])
        elif kind == _CLOCK:
            self.clock_ms = max(self.clock_ms, *struct.unpack(">q", payload))
        elif kind == _DELETED:
            streams.pop(struct.unpack(">Q", payload)[0], None)
        elif kind == _STREAM:
            document = msgspec.json.decode(payload)
            stream = _stream_from(document, streams.get(document["uid"]), store)
            streams[stream.uid] = stream
            self.clock_ms = max(self.clock_ms, document["at_ms"])
        elif kind == _ADDED:
            self.clock_ms = max(self.clock_ms, _replay_records(payload, streams))


def _replay_records(payload: bytes, streams: dict[int, Stream]) -> int:
    uid, arrival_ms, batch_count = _RECORDS.unpack_from(payload)
    at = _RECORDS.size
    stream = streams.get(uid)
    for _ in range(batch_count):
        index, ordinal, count = _BATCH.unpack_from(payload, at)
        at += _BATCH.size
        sizes = list(_SIZES.iter_unpack(payload[at : at + count * _SIZES.size]))
        at += count * _SIZES.size
        texts = []
        for _, length in sizes:
            texts.append(payload[at : at + length])
            at += length
        shard = None if stream is None else stream.shards.get(shard_id(index))
        if shard is not None:
            shard.restart_at(ordinal)
            if shard.next_ordinal != ordinal:
                raise OptionError(
                    f"the journal is damaged: {shard.id} goes on with record {ordinal} after {shard.next_ordinal - 1}"
                )
            shard.extend(texts, [size for size, _ in sizes], arrival_ms)
    return int(arrival_ms)


def _kept_frames(stream: Stream, shard: Shard) -> Iterator[bytes]:
    """The records that a shard keeps, as frames of one arrival each."""
    ordinal, texts, sizes, arrivals = shard.kept()
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


def _stream_document(stream: Stream) -> dict[str, Any]:
    change = stream.change
    moments = [shard.closed_ms or shard.opened_ms for shard in stream.shards.values()]
    return {
        "name": stream.name,
        "uid": stream.uid,
        "created_ms": stream.created_ms,
        "stamp_s": stream.stamp_s,
        "tag": stream.tag,
        "mode": stream.mode,
        "status": stream.status,
        "retention_h": stream.retention_h,
        "record_kib_max": stream.record_kib_max,
        "tags": stream.tags,
        "change": None if change is None else [change.due_ms, change.kind, [str(a) for a in change.args]],
        "next_index": stream.next_index,
        "rescaled_ms": stream.rescaled_ms,
        "mode_switched_ms": stream.mode_switched_ms,
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
                "first": shard.first if len(shard) else shard.next_ordinal,
            }
            for shard in stream.shards.values()
        ],
    }


def _stream_from(document: dict[str, Any], known: Stream | None, store: Store) -> Stream:
    """Build a stream; shards that were known already keep their records."""
    stream = store.blank_stream(
        document["name"], document["uid"], document["created_ms"], document["stamp_s"], document["mode"]
    )
    stream.tag = document.get("tag", 0)
    stream.status = document["status"]
    stream.retention_h = document["retention_h"]
    stream.record_kib_max = document["record_kib_max"]
    stream.tags = document["tags"]
    stream.rescaled_ms = document["rescaled_ms"]
    stream.mode_switched_ms = document["mode_switched_ms"]
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
        before = None if known is None else known.shards.get(shard.id)
        if before is not None:
            shard = before
        shard.closed_ms = each["closed_ms"]
        shard.children = tuple(each["children"])
        shard.restart_at(each["first"])
        shards.append(shard)
    stream.restore(shards, document["next_index"])
    return stream
