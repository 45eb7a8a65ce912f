"""A file of frames that only grows; the state folder is made of two of them.

A frame is appended, and has reached the operating system, before its change is acknowledged, so it survives
the death of this process. It is not forced to the disk, except when the file is rewritten.

A crash can leave a last frame that is cut short. It was never acknowledged, and is dropped with a warning.
Everything else that cannot be read is damage, and the file is refused as it is. To distinguish them, the head of a
frame has its own checksum, so that a damaged length is noticed. That checksum continues the one of the
frame before, so that a frame missing in the middle is noticed too.

sqlite3 (WAL, `synchronous=OFF`, which promises as much) was measured in its place, by the CPU time that the server
spends on a call with a state folder (medians of 8 runs in turn): batches of 500 records of 1 KiB reach 0.77 of the
rate with frames, single records 0.63. `bench/contenders/server.py` measures the cost of the state folder.
"""

from __future__ import annotations

import errno
import logging
import os
import struct
import time
import zlib
from collections.abc import Callable, Iterable, Iterator
from itertools import zip_longest

from penstock_local.errors import OptionError
from penstock_local.service_errors import RequestRefused
from penstock_local.state_folder import StateFolder

_MAGIC_BEGIN = b"penstock journal "
_MAGIC = _MAGIC_BEGIN + b"2\n"
_HEAD = struct.Struct(">IcI")
_CHECKSUM = struct.Struct(">I")
_HEAD_BYTES = _HEAD.size + _CHECKSUM.size
_PIECE_BYTES = 1 << 20
_RETRY_S = 60.0
_NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)

Frame = tuple[bytes, bytes]
"""Kind (one byte) and payload."""

log = logging.getLogger("penstock_local")


class FrameFile:
    """One file of frames in a state folder; not thread-safe.

    Read it to its end with `frames` first, or `replace` it; then append.

    Attributes:
        size: Bytes of the file, without an incomplete last frame.
    """

    def __init__(self, folder: StateFolder, name: str) -> None:
        self.path = folder.path / name
        self.size = 0
        self._folder = folder
        self._name = name
        self._fd = -1
        self._checksum = 0
        self._has_partial_tail = False
        self._is_failing = False
        self._retry_at_s = 0.0

    # -- reading --------------------------------------------------------------------------------------------

    def create_if_missing(self, new_frames: Callable[[], Iterable[Frame]]) -> bool:
        """Write a new file as `replace` does if there is none; return whether there was none.

        Raises:
            OptionError: It cannot be written.
        """
        if os.path.lexists(self.path):  # also a link or folder, which is refused when it is opened
            return False
        try:
            self.replace(new_frames)
        except OSError as error:
            raise OptionError(f"{self.path} cannot be written: {error}") from error
        return True

    def frames(self) -> Iterator[tuple[int, bytes, bytes]]:
        """Open the file and read it: position, kind and payload of each frame.

        When it has been read to its end, an incomplete last frame is cut off, and frames can be appended.

        Raises:
            OptionError: The file is damaged, or cannot be opened. Nothing was written.
        """
        try:
            self._fd = self._folder.open(self._name, os.O_RDWR | os.O_APPEND)
        except OSError as error:
            raise OptionError(f"{self.path} cannot be opened: {error}") from error
        reader = _FrameReader(self._fd, os.fstat(self._fd).st_size, self.damage_error)
        yield from reader.frames()
        self.size, self._checksum = reader.at, reader.checksum
        if reader.at < reader.size:
            log.warning(
                "%s: its last %d bytes were cut short by a crash and are dropped",
                self.path,
                reader.size - reader.at,
            )
            self._has_partial_tail = True

    def damage_error(self, at: int, why: str) -> OptionError:
        """Return the error that names the damaged place in the file and the way out."""
        size = os.fstat(self._fd).st_size
        ways = ["Put a copy of the file back if there is one"]
        if at:
            ways.append(f"to go on without what follows, keep a copy and run `truncate -s {at} {self.path}`")
        ways.append("to start over, move the state folder away")
        return OptionError(
            f"{self.path} is damaged at byte {at} of {size}: {why}. The first {at} bytes can be read, and nothing was "
            f"changed. {'; '.join(ways)}"
        )

    # -- writing --------------------------------------------------------------------------------------------

    def append(self, kind: bytes, payload: bytes) -> None:
        """Append a frame; it has reached the operating system on return.

        Raises:
            RequestRefused: It cannot be written. The file is unchanged, or is repaired before the next frame.
        """
        frame, checksum = _encode(kind, payload, self._checksum)
        try:
            self._cut_partial_tail()
            self._has_partial_tail = True
            _write(self._fd, frame)
            self._has_partial_tail = False
        except OSError as error:
            if not self._is_failing:
                self._is_failing = True
                log.exception("%s cannot be written: writes are refused until it can", self.path)
            self._try_to_cut_partial_tail()
            raise _refusal(f"{self.path} cannot be written", error) from error
        if self._is_failing:
            self._is_failing = False
            log.warning("%s can be written again", self.path)
        self._checksum = checksum
        self.size += len(frame)

    def replace(self, new_frames: Callable[[], Iterable[Frame]]) -> None:
        """Write a new file beside the old one, read it back, and put it in the old one's place.

        Args:
            new_frames: Returns all frames of the new file, once to be written and once to be compared with those read back.

        Raises:
            OSError: The new file cannot be written. The old file stays.
            OptionError: The file read back differs from the one written. The old file stays.
        """
        new_name = f"{self._name}.new"
        fd = self._folder.create(new_name)
        try:
            size, checksum = _write_all(fd, new_frames())
            os.fsync(fd)
            self._require_same(_FrameReader(fd, size, self._misread_error), new_frames())
            self._folder.rename(new_name, self._name)
        except BaseException:
            os.close(fd)
            raise
        if self._fd >= 0:
            os.close(self._fd)
        self._fd, self.size, self._checksum = fd, size, checksum
        self._has_partial_tail = False
        # last, because the file is the new one already, whether or not this succeeds
        self._folder.sync()

    def compact(self, new_frames: Callable[[], Iterable[Frame]]) -> bool:
        """Rewrite the file as `replace` does, if that is possible now; otherwise the old one stays in use.

        Returns:
            Whether it was done. After a failure, nothing is tried for a minute.
        """
        if time.monotonic() < self._retry_at_s:
            return False
        try:
            self.replace(new_frames)
        except (OSError, OptionError):
            self._retry_at_s = time.monotonic() + _RETRY_S
            log.exception("%s could not be rewritten; it is tried again in a minute", self.path)
            self._discard(f"{self._name}.new")
            return False
        return True

    def _discard(self, name: str) -> None:
        try:
            self._folder.remove(name)
        except OSError:
            log.exception("%s could not be removed", self._folder.path / name)

    def close(self) -> None:
        """Close the file. If an incomplete frame could not be cut off, the next start drops it."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def _cut_partial_tail(self) -> None:
        """Cut off a frame that could not be written whole: every frame after it would be unreadable."""
        if self._has_partial_tail:
            os.ftruncate(self._fd, self.size)
            self._has_partial_tail = False

    def _try_to_cut_partial_tail(self) -> None:
        try:
            self._cut_partial_tail()
        except OSError:
            # the next append tries again first; a start would drop the tail too
            log.exception("%s could not be cut back to its last whole frame", self.path)

    def _require_same(self, reader: _FrameReader, expected: Iterable[Frame]) -> None:
        found = ((kind, payload) for _, kind, payload in reader.frames())
        is_same = all(read == written for read, written in zip_longest(found, expected))
        if not is_same or reader.at != reader.size:
            raise self._misread_error(reader.at, "it does not hold the same frames")

    def _misread_error(self, at: int, why: str) -> OptionError:
        return OptionError(f"{self.path}.new was read back wrongly at byte {at}: {why}")


class _FrameReader:
    """Reads a file of frames from its beginning.

    Attributes:
        at: Bytes that were read as whole frames.
        checksum: Checksum of the last frame's head, which that of the next frame's head continues.
    """

    def __init__(self, fd: int, size: int, damage_error: Callable[[int, str], OptionError]) -> None:
        self.size = size
        self.at = 0
        self.checksum = 0
        self._damage_error = damage_error
        self._file = os.fdopen(os.dup(fd), "rb", _PIECE_BYTES)
        self._file.seek(0)

    def frames(self) -> Iterator[tuple[int, bytes, bytes]]:
        """Yield position, kind and payload of each frame. An incomplete last frame ends the file and is left out."""
        with self._file:
            begin = self._file.read(len(_MAGIC))
            if begin != _MAGIC:
                raise self._damage_error(0, _why_unreadable(begin))
            self.at = len(_MAGIC)
            while self.size - self.at >= _HEAD_BYTES:
                frame = self._next_frame()
                if frame is None:
                    return
                at = self.at
                self.at += _HEAD_BYTES + len(frame[1])
                yield at, *frame

    def _next_frame(self) -> Frame | None:
        """Read a frame; None when it was cut short."""
        head = self._file.read(_HEAD.size)
        (found,) = _CHECKSUM.unpack(self._file.read(_CHECKSUM.size))
        if found != zlib.crc32(head, self.checksum):
            raise self._damage_error(self.at, "the head of a record has the wrong checksum")
        length, kind, checksum = _HEAD.unpack(head)
        if self.at + _HEAD_BYTES + length > self.size:
            return None
        payload = self._file.read(length)
        if zlib.crc32(payload) != checksum:
            raise self._damage_error(self.at, f"a record of {length} bytes has the wrong checksum")
        self.checksum = found
        return kind, payload


def _why_unreadable(begin: bytes) -> str:
    # a file of version 0.1.0 begins with the length of a short record, which has the version
    if begin.startswith(b"\0\0\0") and b'M{"version"' in begin:
        return "version 0.1.0 wrote it, in a format that this version does not read"
    if begin.startswith(_MAGIC_BEGIN):
        return "another version wrote it, in a format that this version does not read: start that one"
    return "it does not begin as a journal of this version does"


def _encode(kind: bytes, payload: bytes, checksum_before: int) -> tuple[bytes, int]:
    """Return a frame and its head's checksum, which continues that of the frame before."""
    head = _HEAD.pack(len(payload), kind, zlib.crc32(payload))
    checksum = zlib.crc32(head, checksum_before)
    return head + _CHECKSUM.pack(checksum) + payload, checksum


def _write_all(fd: int, new_frames: Iterable[Frame]) -> tuple[int, int]:
    """Write a file from its beginning; return its size and the checksum that the next frame continues."""
    size, checksum = len(_MAGIC), 0
    pending = [_MAGIC]
    pending_bytes = size
    for kind, payload in new_frames:
        frame, checksum = _encode(kind, payload, checksum)
        pending.append(frame)
        pending_bytes += len(frame)
        size += len(frame)
        if pending_bytes >= _PIECE_BYTES:
            _write(fd, b"".join(pending))
            pending, pending_bytes = [], 0
    _write(fd, b"".join(pending))
    return size, checksum


def _write(fd: int, data: bytes) -> None:
    rest = memoryview(data)
    while rest:
        rest = rest[os.write(fd, rest) :]


def _refusal(what: str, error: OSError) -> RequestRefused:
    """Return the error for a request whose change could not be stored."""
    if error.errno in _NO_ROOM:
        return RequestRefused(
            "StorageFullException",
            f"penstock-local: {what}: {error.strerror}. Nothing was stored. Writes succeed again once there is room.",
            status=507,
        )
    return RequestRefused(
        "InternalFailure",
        f"penstock-local: {what}: {error.strerror}. Nothing was stored.",
        status=500,
    )
