"""The folder that a server keeps its state in: private, used by one server at a time, links not followed.

Everything in it is opened relative to the folder itself, so that the meaning of a path cannot change between
two calls.
"""

from __future__ import annotations

import fcntl
import os
import stat
from pathlib import Path

from penstock_local.errors import OptionError

_FOLDER_MODE = 0o700
_FILE_MODE = 0o600
# a pipe that was put in the place of a file must not hold the server up
_SAFELY = os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK


class StateFolder:
    """An open state folder, locked until `close`.

    Args:
        path: The folder. If it is missing, it is created for its owner only. An existing folder keeps its mode.

    Raises:
        OptionError: The folder cannot be used, or another server uses it.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lock = self._folder = -1
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.mkdir(mode=_FOLDER_MODE, exist_ok=True)
            self._folder = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            self._lock = self.open("lock", os.O_RDWR | os.O_CREAT)
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            self.close()
            raise OptionError(f"the state folder {path} is in use by another server") from error
        except OSError as error:
            self.close()
            raise OptionError(f"the state folder {path} cannot be used: {error}") from error
        except OptionError:
            self.close()
            raise

    @property
    def is_in_place(self) -> bool:
        """Whether the path still leads to this folder."""
        try:
            found = self.path.stat()
        except FileNotFoundError:
            return False
        except OSError:
            return True  # unknown: a parent that may not be searched, for instance
        return os.path.samestat(found, os.fstat(self._folder))

    def open(self, name: str, flags: int) -> int:
        """Open a file of the folder, readable by its owner only.

        Returns:
            The file descriptor.

        Raises:
            OptionError: It is a symbolic link, or not a regular file.
            OSError: It cannot be opened.
        """
        if self._is_link(name):
            raise OptionError(
                f"{self.path / name} is a symbolic link, and the server follows none in its state folder: "
                "remove the link, or put the file that it points to in its place"
            )
        fd = os.open(name, flags | _SAFELY, _FILE_MODE, dir_fd=self._folder)
        found = os.fstat(fd)
        if not stat.S_ISREG(found.st_mode):
            os.close(fd)
            raise OptionError(f"{self.path / name} is not a file: move it out of the state folder")
        if found.st_uid == os.geteuid() and stat.S_IMODE(found.st_mode) != _FILE_MODE:
            os.fchmod(fd, _FILE_MODE)
        return fd

    def create(self, name: str) -> int:
        """Open a new, empty file for reading and writing; one that a crash left half written is removed first."""
        if not self._is_link(name):
            self.remove(name)
        return self.open(name, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_APPEND)

    def remove(self, name: str) -> None:
        """Remove a file; does nothing when there is none."""
        try:
            os.unlink(name, dir_fd=self._folder)
        except FileNotFoundError:
            return

    def rename(self, old: str, new: str) -> None:
        """Put one file in the place of another."""
        os.rename(old, new, src_dir_fd=self._folder, dst_dir_fd=self._folder)

    def sync(self) -> None:
        """Force the folder's list of files to the disk."""
        os.fsync(self._folder)

    def close(self) -> None:
        """Close the folder; another server may use it then."""
        for fd in (self._lock, self._folder):
            if fd >= 0:
                os.close(fd)
        self._lock = self._folder = -1

    def _is_link(self, name: str) -> bool:
        try:
            return stat.S_ISLNK(os.stat(name, dir_fd=self._folder, follow_symlinks=False).st_mode)
        except FileNotFoundError:
            return False
