"""Small files in a folder that the user names: a local one, or a URI that pyarrow opens.

A file appears whole or not at all: it is written under another name and renamed. Object stores show an object only when all
of it is uploaded, so nothing is renamed there. A local file, and every folder made for it, is readable by its owner only,
since it may hold records of a stream. A symbolic link that another user planted is not followed: in place of a file it is
replaced, in place of the folder it is an error.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import stat
from pathlib import Path
from typing import IO, Any, Final, Protocol

_CHUNK_BYTES: Final = 2**20
_OBJECT_STORES: Final = frozenset({"s3", "gcs", "abfs"})
_FILE_MODE: Final = 0o600
_FOLDER_MODE: Final = 0o700


class FileFolder(Protocol):
    """A folder of small files. Implemented by `Folder` and by the simulator."""

    def read(self, name: str) -> bytes:
        """Return a file's content. Raises FileNotFoundError if the file is missing, another OSError if it cannot be read."""

    def replace(self, name: str, content: IO[bytes]) -> None:
        """Write a whole file. Raises OSError if that fails; then an old file of this name is unchanged."""


class Folder:
    """A folder of files.

    Args:
        location: A path or a URI; Hadoop's schemes for S3 are accepted.

    Raises:
        OSError, pyarrow.ArrowException: The URI cannot be opened.
    """

    def __init__(self, location: str) -> None:
        self._system: Any = None
        if location.startswith("file:"):
            location = "/" + location.removeprefix("file:").lstrip("/")
        self._path = location
        if "://" in location:
            from pyarrow import fs

            # pyarrow takes only the scheme s3.
            for scheme in ("s3a://", "s3n://"):
                location = location.replace(scheme, "s3://", 1) if location.startswith(scheme) else location
            self._system, self._path = fs.FileSystem.from_uri(location)

    def read(self, name: str) -> bytes:
        """Return a file's content.

        Raises:
            FileNotFoundError: There is no such file.
            OSError, pyarrow.ArrowException: The file cannot be read.
        """
        if self._system is None:
            return (Path(self._path) / name).read_bytes()
        with self._system.open_input_stream(f"{self._path}/{name}") as file:
            return bytes(file.read())

    def replace(self, name: str, content: IO[bytes]) -> None:
        """Write a whole file. It replaces an old file of the same name.

        Raises:
            OSError, pyarrow.ArrowException: The file cannot be written; the old one is unchanged.
        """
        content.seek(0)
        if self._system is None:
            self._replace_local(name, content)
        else:
            self._replace_remote(name, content)

    def _replace_local(self, name: str, content: IO[bytes]) -> None:
        path = Path(self._path)
        _make_folders(path)
        _refuse_planted_link(path)
        # The file is written by the descriptor of the checked folder. If another user puts a link in the folder's place, the
        # file still goes to the checked folder.
        folder = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
        draft = f".{name}.{secrets.token_hex(8)}.draft"
        try:
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW
            try:
                with os.fdopen(os.open(draft, flags, _FILE_MODE, dir_fd=folder), "wb") as file:
                    shutil.copyfileobj(content, file, _CHUNK_BYTES)
                    file.flush()
                    os.fsync(file.fileno())
                os.rename(draft, name, src_dir_fd=folder, dst_dir_fd=folder)
                os.fsync(folder)
            except BaseException:
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(draft, dir_fd=folder)
                raise
        finally:
            os.close(folder)

    def _replace_remote(self, name: str, content: IO[bytes]) -> None:
        system, final = self._system, f"{self._path}/{name}"
        system.create_dir(self._path, recursive=True)
        if system.type_name in _OBJECT_STORES:
            with system.open_output_stream(final) as file:
                shutil.copyfileobj(content, file, _CHUNK_BYTES)
            return
        draft = f"{self._path}/.{name}.{secrets.token_hex(8)}.draft"
        try:
            with system.open_output_stream(draft) as file:
                shutil.copyfileobj(content, file, _CHUNK_BYTES)
            _move_over(system, draft, final)
        except BaseException:
            with contextlib.suppress(OSError):
                system.delete_file(draft)
            raise


def _make_folders(path: Path) -> None:
    """Make a folder and the folders above it, readable by their owner only. Existing folders are left unchanged."""
    missing = [each for each in (path, *path.parents) if not each.is_dir()]
    for each in reversed(missing):
        each.mkdir(_FOLDER_MODE, exist_ok=True)  # another task may be first


def _refuse_planted_link(path: Path) -> None:
    """Raise PermissionError for a folder that is another user's symbolic link: it may lead anywhere."""
    found = path.lstat()
    if stat.S_ISLNK(found.st_mode) and found.st_uid not in (0, os.geteuid()):
        raise PermissionError(
            f"{path} is a symbolic link that belongs to user {found.st_uid}, not to the one who writes here; "
            "name the folder itself"
        )


def _move_over(system: Any, draft: str, final: str) -> None:
    """Rename the file `draft` to `final`, and replace a file of that name. HDFS moves a file only to a free name."""
    try:
        system.move(draft, final)
    except OSError:
        with contextlib.suppress(OSError):
            system.delete_file(final)
        system.move(draft, final)
