"""Objects as files in a folder of this machine, for several processes at once."""

from __future__ import annotations

import contextlib
import hashlib
import os
import random
import stat
import tempfile
import time
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Final

from penstock.core.backoff import Backoff
from penstock.errors import AccessDenied, OptionError, Rejected, Unavailable
from penstock.ports.object_store import OBJECT_BYTES_MAX, StoredObject

_LOCK: Final = ".lock"
_PAUSES: Final = Backoff(base_s=0.002, cap_s=0.1)


class FileObjects:
    """Implements `penstock.ports.object_store.ObjectStore`.

    A lock on one file of the folder makes a condition and its write one step; the system frees it when a process dies. A
    write is on the disk before it is acknowledged.

    Args:
        folder: An absolute path of a local file system; made when it is missing.
        deadline_s: Time to wait for the lock.

    Raises:
        OptionError: The path is not absolute, or this system has no such locks.
    """

    def __init__(self, folder: str, deadline_s: float) -> None:
        if not Path(folder).is_absolute():
            raise OptionError(
                f"the folder of lease table file://{folder} must be absolute: file:///path/to/folder"
            )
        if os.name != "posix":
            raise OptionError("a lease table in a folder needs file locks as Linux and macOS have them")
        self._folder = Path(folder)
        self._deadline_s = deadline_s

    @property
    def url(self) -> str:
        """Where it is."""
        return f"file://{self._folder}"

    def prepare(self) -> bool:
        """Make the folder; True when it was new."""
        with self._errors("make"):
            is_new = not self._folder.exists()
            self._folder.mkdir(parents=True, exist_ok=True)
        return is_new

    def read_all(self, known: Mapping[str, str], suffix: str) -> Mapping[str, StoredObject | None]:
        """Return the files of a suffix by name; None for one whose tag is the known one."""
        with self._errors("read"):
            if not self._folder.exists():
                return {}
            with os.scandir(self._folder) as entries:
                names = [
                    each.name
                    for each in entries
                    if each.name.endswith(suffix) and not each.name.startswith(".") and each.is_file()
                ]
        found = self.read_many(names)
        return {name: None if known.get(name) == each.tag else each for name, each in found.items()}

    def read(self, name: str) -> StoredObject | None:
        """Return one object, or None."""
        with self._errors("read"):
            try:
                if not stat.S_ISREG((self._folder / name).stat().st_mode):
                    raise Rejected(
                        f"{self.url}: {name} is no file; remove it or rename it",
                        operation="read",
                        resource=self.url,
                    )
                with (self._folder / name).open("rb") as file:
                    data = file.read(OBJECT_BYTES_MAX + 1)
            except FileNotFoundError:
                return None
        return StoredObject(data, _tag_of(data))

    def read_many(self, names: Collection[str]) -> Mapping[str, StoredObject]:
        """Return the objects of these names that exist."""
        found = ((name, self.read(name)) for name in names)
        return {name: each for name, each in found if each is not None}

    def write(self, name: str, data: bytes, tag: str | None) -> str | None:
        """Write an object if its tag is still this one; None when it is not."""
        with self._errors("write"), self._locked():
            if self._tag(name) != tag:
                return None
            handle, temporary = tempfile.mkstemp(prefix=".", dir=self._folder)
            try:
                with os.fdopen(handle, "wb") as file:
                    file.write(data)
                    file.flush()
                    os.fsync(file.fileno())
                Path(temporary).replace(self._folder / name)
            except BaseException:
                Path(temporary).unlink(missing_ok=True)
                raise
            self._sync()
        return _tag_of(data)

    def delete(self, name: str, tag: str) -> bool:
        """Delete an object if its tag is still this one."""
        with self._errors("delete"), self._locked():
            if self._tag(name) != tag:
                return False
            (self._folder / name).unlink()
            self._sync()
        return True

    def _tag(self, name: str) -> str | None:
        found = self.read(name)
        return None if found is None else found.tag

    def _sync(self) -> None:
        folder = os.open(self._folder, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        import fcntl  # not on every system; refused above

        with (self._folder / _LOCK).open("ab") as lock:
            began_s = time.monotonic()
            failures = 0
            while True:
                try:
                    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    break
                except BlockingIOError:
                    failures += 1
                    if time.monotonic() - began_s > self._deadline_s:
                        raise Unavailable(
                            f"{self.url}: another process has held the lock for {self._deadline_s:g} s; is one of them "
                            "stopped (SIGSTOP)?",
                            operation="lock",
                            resource=self.url,
                        ) from None
                    time.sleep(_PAUSES.delay_s(failures, random.random()))
            yield

    @contextlib.contextmanager
    def _errors(self, what: str) -> Iterator[None]:
        try:
            yield
        except PermissionError as error:
            raise AccessDenied(
                f"{self.url}: cannot {what}: {error}", operation=what, resource=self.url
            ) from error
        except (FileExistsError, NotADirectoryError) as error:
            raise Rejected(
                f"{self.url}: cannot {what}: {error}; the location of leases must be a folder",
                operation=what,
                resource=self.url,
            ) from error
        except OSError as error:  # a full disk passes; nothing was acknowledged
            raise Unavailable(
                f"{self.url}: cannot {what}: {error}", operation=what, resource=self.url
            ) from error


def _tag_of(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()
