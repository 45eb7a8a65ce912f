"""File systems of tables: this machine's, and everything that Spark reaches through Hadoop."""

from __future__ import annotations

import os
import shutil
import uuid
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import unquote, urlsplit


class Files(Protocol):
    """The calls of a delivery on a file system. Errors are `OSError`s; paths are texts with slashes."""

    def size(self, path: str) -> int | None:
        """Return a file's size in bytes; None if there is none."""

    def read(self, path: str) -> bytes | None:
        """Return a file's content; None if there is none."""

    def create(self, path: str, content: bytes) -> bool:
        """Write a whole file under a name that is free; return False if it is taken. A reader never sees a part."""

    def replace(self, path: str, content: bytes) -> None:
        """Write a whole file under a name, taken or not."""

    def rename(self, source: str, target: str) -> None:
        """Move a file; the target's folder is made, and no file has the target's name."""

    def remove(self, path: str) -> None:
        """Remove a file or a folder with all that is in it; nothing happens if there is none."""

    def walk(self, folder: str) -> Iterable[tuple[str, int]]:
        """Return path and size of every file below a folder; none if it is missing."""


class LocalFiles:
    """Files of this machine."""

    def size(self, path: str) -> int | None:
        """Return a file's size."""
        try:
            return Path(path).stat().st_size
        except (FileNotFoundError, NotADirectoryError):
            return None

    def read(self, path: str) -> bytes | None:
        """Return a file's content."""
        try:
            return Path(path).read_bytes()
        except FileNotFoundError:
            return None

    def create(self, path: str, content: bytes) -> bool:
        """Write a new file: aside, then linked under its name, which fails if the name is taken."""
        aside = self._write_aside(path, content)
        try:
            os.link(aside, path)
        except FileExistsError:
            return False
        finally:
            Path(aside).unlink()
        return True

    def replace(self, path: str, content: bytes) -> None:
        """Write a file aside and give it its name."""
        Path(self._write_aside(path, content)).replace(path)

    def rename(self, source: str, target: str) -> None:
        """Move a file."""
        Path(target).parent.mkdir(parents=True, exist_ok=True)
        Path(source).rename(target)

    def remove(self, path: str) -> None:
        """Remove a file or a folder."""
        if Path(path).is_dir() and not Path(path).is_symlink():
            shutil.rmtree(path)
        else:
            Path(path).unlink(missing_ok=True)

    def walk(self, folder: str) -> Iterable[tuple[str, int]]:
        """Return the files below a folder."""
        for at, _, names in os.walk(folder):
            for name in names:
                path = f"{at}/{name}"
                size = self.size(path)
                if size is not None:
                    yield path, size

    @staticmethod
    def _write_aside(path: str, content: bytes) -> str:
        folder = Path(path).parent
        folder.mkdir(parents=True, exist_ok=True)
        aside = f"{folder}/.{uuid.uuid4().hex}.tmp"
        with Path(aside).open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        return aside


class HadoopFiles:
    """Files behind Hadoop's file systems: HDFS, S3 and others.

    Args:
        spark: A classic session.
        place: A path on the file system.
    """

    def __init__(self, spark: Any, place: str) -> None:
        self._jvm = spark._jvm  # noqa: SLF001 - Hadoop's classes have no other way from Python
        configuration = spark._jsc.hadoopConfiguration()  # noqa: SLF001
        self._system = self._path(place).getFileSystem(configuration)

    def size(self, path: str) -> int | None:
        """Return a file's size."""
        at = self._path(path)
        return int(self._system.getFileStatus(at).getLen()) if self._call("exists", at) else None

    def read(self, path: str) -> bytes | None:
        """Return a file's content."""
        at = self._path(path)
        if not self._call("exists", at):
            return None
        stream = self._call("open", at)
        try:
            return bytes(stream.readAllBytes())
        finally:
            stream.close()

    def create(self, path: str, content: bytes) -> bool:
        """Write a new file: aside, then renamed, which HDFS refuses if the name is taken."""
        if self._call("exists", self._path(path)):
            return False
        aside = self._write_aside(path, content)
        try:
            is_renamed = bool(self._call("rename", aside, self._path(path)))
        except OSError:
            self._call("delete", aside, True)
            if self._call("exists", self._path(path)):
                return False
            raise
        if not is_renamed:
            self._call("delete", aside, True)
        return is_renamed

    def replace(self, path: str, content: bytes) -> None:
        """Write a file over another one."""
        stream = self._call("create", self._path(path), True)
        stream.write(bytearray(content))
        stream.close()

    def rename(self, source: str, target: str) -> None:
        """Move a file."""
        at = self._path(target)
        self._call("mkdirs", at.getParent())
        if not self._call("rename", self._path(source), at):
            raise OSError(f"{source} cannot be renamed to {target}")

    def remove(self, path: str) -> None:
        """Remove a file or a folder."""
        self._call("delete", self._path(path), True)

    def walk(self, folder: str) -> Iterable[tuple[str, int]]:
        """Return the files below a folder."""
        at = self._path(folder)
        if not self._call("exists", at):
            return
        found = self._call("listFiles", at, True)
        while found.hasNext():
            status = found.next()
            yield str(status.getPath().toString()), int(status.getLen())

    def _write_aside(self, path: str, content: bytes) -> Any:
        aside = self._path(f"{path}.{uuid.uuid4().hex}.tmp")
        stream = self._call("create", aside, False)
        stream.write(bytearray(content))
        stream.close()
        return aside

    def _path(self, path: str) -> Any:
        return self._jvm.org.apache.hadoop.fs.Path(path)

    def _call(self, name: str, *arguments: Any) -> Any:
        from py4j.protocol import Py4JJavaError

        try:
            return getattr(self._system, name)(*arguments)
        except Py4JJavaError as error:
            raise OSError(str(error.java_exception)) from error


def local_path(place: str) -> str | None:
    """Return the absolute path of a place on this machine; None for a place elsewhere."""
    parts = urlsplit(place)
    if parts.scheme == "file":
        return _absolute(unquote(parts.path))
    # Spark would resolve a path without a scheme by `fs.defaultFS`.
    return _absolute(place) if "://" not in place else None


def _absolute(path: str) -> str:
    return os.path.abspath(path)  # noqa: PTH100 - it takes `..` away and leaves links alone


def spark_uri(place: str) -> str:
    """Return a place as Spark reads it: a path without a scheme would be one of `fs.defaultFS`."""
    return f"file://{place}" if place.startswith("/") else place


def open_files(spark: Any, place: str) -> Files:
    """Return the file system of a place."""
    return LocalFiles() if place.startswith("/") else HadoopFiles(spark, place)
