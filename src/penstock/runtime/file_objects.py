"""Objects as files in a folder of this machine, for several processes at once."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import random
import stat
import time
import uuid
from collections.abc import Collection, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Final

from penstock.core.backoff import Backoff
from penstock.errors import AccessDenied, NotFound, OptionError, Rejected, Unavailable, UnknownOutcome
from penstock.ports.object_store import OBJECT_BYTES_MAX, StoredObject

_LOCK: Final = ".lock"
_MAKE: Final = "make"
_DENIED_ERRNOS: Final = frozenset({errno.EACCES, errno.EPERM, errno.EROFS})
_MISSING_ERRNOS: Final = frozenset({errno.ENOENT, errno.ENOTDIR, errno.ESTALE})
_PAUSES: Final = Backoff(base_s=0.002, cap_s=0.1)


class FileObjects:
    """Implements `penstock.ports.object_store.ObjectStore`.

    A lock on one file of the folder makes a condition and its write one step; the system frees it when a process dies. A
    write is on the disk before it is acknowledged.

    Args:
        folder: An absolute path of a local file system; made when it is missing.
        deadline_s: Time to wait for the lock.

    Raises:
        OptionError: This system has no such locks.
    """

    def __init__(self, folder: str, deadline_s: float) -> None:
        if os.name != "posix":
            raise OptionError("a lease table in a folder needs file locks as Linux and macOS have them")
        self._folder = Path(folder)
        self._deadline_s = deadline_s

    @property
    def url(self) -> str:
        return f"file://{self._folder}"

    def prepare(self) -> bool:
        """Create the folder if it is missing, and check that it can be written; True if it is new.

        Raises:
            OptionError: The path, or a parent of it, is a file, or the path is too long.
        """
        with self._errors(_MAKE):
            is_new = not self._folder.exists()
            try:
                self._folder.mkdir(parents=True, exist_ok=True)
            except (FileExistsError, NotADirectoryError) as error:
                if self._folder.is_symlink() and not self._folder.exists():
                    raise  # it may be mounted, or made, later
                raise OptionError(
                    f"lease table {self.url}: {self._file_in_the_way()} is a file, not a folder. Name another folder, or move the "
                    "file away"
                ) from error
            with self._open_folder() as folder:
                os.close(self._open_lock(folder))
        return is_new

    def read_all(self, known_tags: Mapping[str, str], suffix: str) -> Mapping[str, StoredObject | None]:
        with self._errors("read"), self._open_folder() as folder:
            with os.scandir(folder) as entries:
                names = [
                    each.name
                    for each in entries
                    if each.name.endswith(suffix) and not each.name.startswith(".") and each.is_file()
                ]
            found = self._read_each(folder, names)
        return {name: None if known_tags.get(name) == each.tag else each for name, each in found.items()}

    def read(self, name: str) -> StoredObject | None:
        return self.read_many([name]).get(name)

    def read_many(self, names: Collection[str]) -> Mapping[str, StoredObject]:
        with self._errors("read"), self._open_folder() as folder:
            return self._read_each(folder, names)

    def write(self, name: str, data: bytes, tag: str | None) -> str | None:
        with self._errors("write"), self._open_folder() as folder, self._lock_folder(folder):
            if self._tag(folder, name) != tag:
                return None
            temporary = f".{uuid.uuid4().hex}"
            handle = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600, dir_fd=folder)
            try:
                with os.fdopen(handle, "wb") as file:
                    file.write(data)
                    file.flush()
                    os.fsync(file.fileno())
                os.replace(temporary, name, src_dir_fd=folder, dst_dir_fd=folder)
            except BaseException:
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(temporary, dir_fd=folder)
                raise
            self._sync(folder, "write")
        return _tag_of(data)

    def delete(self, name: str, tag: str) -> bool:
        with self._errors("delete"), self._open_folder() as folder, self._lock_folder(folder):
            if self._tag(folder, name) != tag:
                return False
            os.unlink(name, dir_fd=folder)
            self._sync(folder, "delete")
        return True

    def _sync(self, folder: int, operation: str) -> None:
        """Flush the changes to the disk.

        Raises:
            UnknownOutcome: The disk failed after the write.
        """
        try:
            os.fsync(folder)
        except OSError as error:
            raise UnknownOutcome(
                f"{self.url}: it is not known whether the disk has the {operation}: {error}",
                operation=operation,
                resource=self.url,
            ) from error

    # --- one open folder ----------------------------------------------------------------------------------
    # Each call works in the folder that it opened, by its descriptor: its lock, its reads and its write are in one folder, also if
    # another one is put in the place of the path meanwhile.

    @contextlib.contextmanager
    def _open_folder(self) -> Iterator[int]:
        folder = os.open(self._folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            yield folder
        finally:
            os.close(folder)

    def _check_place(self, folder: int) -> None:
        """Check that the path still leads to the opened folder, which may have been removed and created again.

        Raises:
            OSError: Another folder, or none, is at the path.
        """
        if not os.path.samestat(os.fstat(folder), self._folder.stat()):
            raise OSError(errno.ESTALE, "another folder was put in its place")

    def _read_each(self, folder: int, names: Iterable[str]) -> dict[str, StoredObject]:
        found = {name: self._read(folder, name) for name in names}
        self._check_place(folder)
        return {name: each for name, each in found.items() if each is not None}

    def _read(self, folder: int, name: str) -> StoredObject | None:
        try:
            if not stat.S_ISREG(os.stat(name, dir_fd=folder).st_mode):
                raise Rejected(
                    f"{self.url}: {name} is not a file; remove it or rename it",
                    operation="read",
                    resource=self.url,
                )
            with os.fdopen(os.open(name, os.O_RDONLY, dir_fd=folder), "rb") as file:
                status = os.fstat(file.fileno())
                if status.st_size > OBJECT_BYTES_MAX:
                    tag = f"{status.st_size} bytes at {status.st_mtime_ns}"
                    return StoredObject(b"", tag, is_too_large=True)
                data = file.read()
        except FileNotFoundError:
            return None
        return StoredObject(data, _tag_of(data))

    def _tag(self, folder: int, name: str) -> str | None:
        found = self._read(folder, name)
        return None if found is None else found.tag

    # --- the lock -----------------------------------------------------------------------------------------

    def _open_lock(self, folder: int) -> int:
        return os.open(_LOCK, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666, dir_fd=folder)

    @contextlib.contextmanager
    def _lock_folder(self, folder: int) -> Iterator[None]:
        began_s = time.monotonic()
        failures = 0
        while True:
            lock = self._open_lock(folder)
            try:
                if _try_lock(lock, folder):
                    self._check_place(folder)
                    yield
                    return
            finally:
                os.close(lock)
            failures += 1
            if time.monotonic() - began_s > self._deadline_s:
                raise Unavailable(
                    f"{self.url}: another process has held the lock for {self._deadline_s:g} s; is one of them "
                    "stopped (SIGSTOP)?",
                    operation="lock",
                    resource=self.url,
                )
            time.sleep(_PAUSES.delay_s(failures, random.random()))

    # --- errors -------------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def _errors(self, operation: str) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            message = f"{self.url}: cannot {operation}: {error}"
            if error.errno == errno.ENAMETOOLONG:
                raise OptionError(f"lease table {message}; name a folder with a shorter path") from error
            if error.errno in _DENIED_ERRNOS:
                raise AccessDenied(message, operation=operation, resource=self.url) from error
            if operation != _MAKE and error.errno in _MISSING_ERRNOS and not _is_folder(self._folder):
                found = (
                    "it is a file, not a folder"
                    if error.errno == errno.ENOTDIR
                    else "there is no such folder"
                )
                raise NotFound(
                    f"{self.url}: {found} ({error.strerror})", operation=operation, resource=self.url
                ) from error
            # A full disk may be temporary; the write was not acknowledged.
            raise Unavailable(message, operation=operation, resource=self.url) from error

    def _file_in_the_way(self) -> Path:
        places = (self._folder, *self._folder.parents)
        return next((place for place in places if place.is_file()), self._folder)


def _is_folder(path: Path) -> bool:
    try:
        return stat.S_ISDIR(path.stat().st_mode)
    except OSError:  # gone, below a file, or of a server that has forgotten it
        return False


def _try_lock(lock: int, folder: int) -> bool:
    """Lock the open lock file; return False if another process has the lock, or the file was deleted meanwhile."""
    import fcntl  # not on every system; refused above

    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return os.path.samestat(os.fstat(lock), os.stat(_LOCK, dir_fd=folder))
    except (BlockingIOError, FileNotFoundError):
        return False


def _tag_of(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()
