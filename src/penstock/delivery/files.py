"""File systems of tables: this machine's, and everything that Spark reaches through Hadoop."""

from __future__ import annotations

import errno
import os
import re
import shutil
import uuid
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, Protocol
from urllib.parse import unquote, urlsplit

from penstock.errors import DeliveryFailed, OptionError

_URI: Final = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+:/")
"""The beginning of a place on another file system. One slash is enough: Databricks and Hadoop write `dbfs:/lake`."""
_NO_SYSTEM: Final = re.compile("No FileSystem for scheme|ClassNotFoundException")
_ACCESS_ERROR: Final = re.compile(r"^[\w.]+\.Access(Control|Denied)Exception\b")
"""Errors of Hadoop for a missing permission."""
_NO_CREDENTIALS: Final = re.compile(r"\bNoAuthWithAWSException\b|\(Service: S3, Status Code: 40[013]\b")
"""Errors of S3 for missing or refused credentials. They have no reason: the first call is a HEAD, whose answer has no text."""
_CREDENTIALS: Final = (
    "; Spark's credentials for S3 are missing, wrong, expired or without this permission: renew AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY and "
    "AWS_SESSION_TOKEN, or the machine's role, or name a provider with --conf spark.hadoop.fs.s3a.aws.credentials.provider=…"
)
_CONDITIONAL: Final = "fs.option.create.conditional.overwrite"
"""Hadoop's option for a write that fails if the file exists already. S3A has it since Hadoop 3.4.2."""
_NO_LINKS: Final = (errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS)
"""Errors of a link on a file system that has none, such as FAT and some network shares."""
_GLOB: Final = re.compile(r"[{}\[\]*?\\]")


class Files(Protocol):
    """The calls of a delivery on a file system. Errors are `OSError`s; paths are texts with slashes."""

    def size(self, path: str) -> int | None:
        """Return a file's size in bytes; None if there is no such file."""

    def read(self, path: str) -> bytes | None:
        """Return a file's content; None if there is no such file."""

    def create(self, path: str, content: bytes) -> bool:
        """Write a whole file under a free name; return False if the name is taken. A reader never sees half a file."""

    def replace(self, path: str, content: bytes) -> None:
        """Write a whole file under a name. A file that has the name already is replaced."""

    def rename(self, source: str, target: str) -> None:
        """Move a file. The target's folder is created if it is missing. The caller makes sure that there is no target file."""

    def remove(self, path: str) -> None:
        """Remove a file, or a folder with everything in it; nothing happens if there is neither."""

    def walk(self, folder: str, *, skips_unreadable: bool = False) -> Iterable[tuple[str, int]]:
        """Return path and size of every file below a folder; no files if the folder is missing.

        With `skips_unreadable`, inner folders on this machine that this user may not read are left out.
        """

    def folders(self, folder: str) -> list[str]:
        """Return the names of the folders in a folder; no names if the folder is missing."""


class LocalFiles:
    """Files of this machine."""

    def size(self, path: str) -> int | None:
        try:
            return Path(path).stat().st_size
        except (FileNotFoundError, NotADirectoryError):
            return None

    def read(self, path: str) -> bytes | None:
        try:
            return Path(path).read_bytes()
        except FileNotFoundError:
            return None

    def create(self, path: str, content: bytes) -> bool:
        """Write a new file aside, then link it under its name. The link fails if the name is taken."""
        aside = self._write_aside(path, content)
        try:
            os.link(aside, path)
        except FileExistsError:
            return False
        except OSError as error:
            if error.errno not in _NO_LINKS:
                raise
            folder = Path(path).parent
            reason = (
                f"{folder} is on a file system without hard links, which make a file appear whole and once"
            )
            raise OSError(error.errno, f"{reason}; name a folder on another disk with state") from error
        finally:
            Path(aside).unlink()
        return True

    def replace(self, path: str, content: bytes) -> None:
        Path(self._write_aside(path, content)).replace(path)

    def rename(self, source: str, target: str) -> None:
        """Move a file. To another disk it is copied, under another name until it is whole."""
        Path(target).parent.mkdir(parents=True, exist_ok=True)
        try:
            Path(source).rename(target)
        except OSError as error:
            if error.errno != errno.EXDEV:
                raise
            _copy(source, target)
            Path(source).unlink()

    def remove(self, path: str) -> None:
        if Path(path).is_dir() and not Path(path).is_symlink():
            shutil.rmtree(path)
        else:
            Path(path).unlink(missing_ok=True)

    def walk(self, folder: str, *, skips_unreadable: bool = False) -> Iterable[tuple[str, int]]:
        def on_error(error: OSError) -> None:
            # Without this function `os.walk` would skip the folder silently. A missing folder has no files.
            is_skipped = skips_unreadable and isinstance(error, PermissionError) and error.filename != folder
            if not is_skipped and not isinstance(error, FileNotFoundError | NotADirectoryError):
                raise error

        for at, _, names in os.walk(folder, onerror=on_error):
            for name in names:
                path = f"{at}/{name}"
                size = self.size(path)
                if size is not None:
                    yield path, size

    def folders(self, folder: str) -> list[str]:
        try:
            with os.scandir(folder) as found:
                return sorted(each.name for each in found if each.is_dir())
        except (FileNotFoundError, NotADirectoryError):
            return []

    @staticmethod
    def _write_aside(path: str, content: bytes) -> str:
        folder = Path(path).parent
        folder.mkdir(parents=True, exist_ok=True)
        aside = f"{folder}/.{uuid.uuid4().hex}.tmp"
        try:
            with Path(aside).open("wb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
        except BaseException:
            Path(aside).unlink(missing_ok=True)
            raise
        return aside


def _copy(source: str, target: str) -> None:
    """Copy a file to another disk. Readers ignore the name of the copy until it is whole. A repeat replaces an earlier half copy."""
    aside = Path(target).with_name(f".{Path(target).name}.tmp")
    try:
        shutil.copyfile(source, aside)
        aside.replace(target)
    except BaseException:
        aside.unlink(missing_ok=True)
        raise


class HadoopFiles:
    """Files that Spark reaches through Hadoop: in HDFS, S3 and others.

    Args:
        spark: A classic session.
        place: A path on the file system.

    Raises:
        DeliveryFailed: Spark has no such file system, or cannot open it.
    """

    def __init__(self, spark: Any, place: str) -> None:
        self._jvm = spark._jvm  # noqa: SLF001 - Hadoop's classes have no other way from Python
        configuration = spark._jsc.hadoopConfiguration()  # noqa: SLF001
        try:
            with _java_errors():
                self._system = self._path(place).getFileSystem(configuration)
        except OSError as error:
            has_no_s3 = place.startswith(("s3:", "s3a:")) and _NO_SYSTEM.search(str(error))
            remedy = _way_to_s3(self._jvm) if has_no_s3 else ""
            raise DeliveryFailed(f"{place} cannot be opened: {error}{remedy}") from error

    def size(self, path: str) -> int | None:
        at = self._path(path)
        return int(self._system.getFileStatus(at).getLen()) if self._call("exists", at) else None

    def read(self, path: str) -> bytes | None:
        at = self._path(path)
        if not self._call("exists", at):
            return None
        stream = self._call("open", at)
        with _java_errors():
            try:
                return bytes(stream.readAllBytes())
            finally:
                stream.close()

    def create(self, path: str, content: bytes) -> bool:
        """Write a new file. If the name is taken, S3 refuses the write, and HDFS the rename."""
        at = self._path(path)
        if self._call("exists", at):
            return False
        try:
            if not self._call("hasPathCapability", at, _CONDITIONAL):
                return self._write_and_rename(path, content)
            with _java_errors():
                stream = self._system.createFile(at).must(_CONDITIONAL, True).build()
            self._write_and_close(stream, content)
        except OSError:
            if self._call("exists", at):
                return False
            raise
        return True

    def replace(self, path: str, content: bytes) -> None:
        """Write a file over another one."""
        self._write_and_close(self._call("create", self._path(path), True), content)

    def rename(self, source: str, target: str) -> None:
        at = self._path(target)
        self._call("mkdirs", at.getParent())
        if not self._call("rename", self._path(source), at):
            raise OSError(f"{source} cannot be renamed to {target}")

    def remove(self, path: str) -> None:
        self._call("delete", self._path(path), True)

    def walk(self, folder: str, *, skips_unreadable: bool = False) -> Iterable[tuple[str, int]]:
        """Return path and size of the files below a folder. One call lists them all, so unreadable folders are not skipped."""
        del skips_unreadable
        at = self._path(folder)
        if not self._call("exists", at):
            return
        found = self._call("listFiles", at, True)
        while True:
            with _java_errors():
                if not found.hasNext():
                    return
                status = found.next()
            yield str(status.getPath().toString()), int(status.getLen())

    def folders(self, folder: str) -> list[str]:
        at = self._path(folder)
        if not self._call("exists", at):
            return []
        found = self._call("listStatus", at)
        return sorted(str(each.getPath().getName()) for each in found if each.isDirectory())

    def _write_and_rename(self, path: str, content: bytes) -> bool:
        aside = self._path(f"{path}.{uuid.uuid4().hex}.tmp")
        self._write_and_close(self._call("create", aside, False), content)
        is_renamed = False
        try:
            is_renamed = bool(self._call("rename", aside, self._path(path)))
        finally:
            if not is_renamed:
                self._call("delete", aside, True)
        return is_renamed

    @staticmethod
    def _write_and_close(stream: Any, content: bytes) -> None:
        with _java_errors():
            try:
                stream.write(bytearray(content))
            finally:
                stream.close()

    def _path(self, path: str) -> Any:
        return self._jvm.org.apache.hadoop.fs.Path(path)

    def _call(self, name: str, *arguments: Any) -> Any:
        with _java_errors():
            return getattr(self._system, name)(*arguments)


@contextmanager
def _java_errors() -> Iterator[None]:
    """Raise errors of Hadoop as OSError."""
    from py4j.protocol import Py4JJavaError

    try:
        yield
    except Py4JJavaError as error:
        text = str(error.java_exception)
        text += _CREDENTIALS if _NO_CREDENTIALS.search(text) else ""
        raise (PermissionError(text) if _ACCESS_ERROR.search(text) else OSError(text)) from error


def _way_to_s3(jvm: Any) -> str:
    """Return advice on adding S3 to a Spark that lacks it. EMR and Databricks have it already."""
    return (
        f"; S3 needs --conf spark.jars.packages=org.apache.hadoop:hadoop-aws:{jvm.org.apache.hadoop.util.VersionInfo.getVersion()} and, "
        "for s3:// in place of s3a://, --conf spark.hadoop.fs.s3.impl=org.apache.hadoop.fs.s3a.S3AFileSystem"
    )


def local_path(place: str) -> str | None:
    """Return the absolute path of a place on this machine; None for a place elsewhere.

    Raises:
        OptionError: A `file:` address has a host, as in `file://lake/orders`.
    """
    parts = urlsplit(place)
    if parts.scheme == "file":
        if parts.netloc not in ("", "localhost"):
            raise OptionError(
                f"{place}: a folder on this machine has three slashes, such as file:///lake/orders"
            )
        return _absolute_path(unquote(parts.path))
    # Spark itself would look for a path without a scheme in `fs.defaultFS`.
    return _absolute_path(place) if _URI.match(place) is None else None


def file_system_of(place: str) -> tuple[str, str]:
    """Return the scheme and the host or bucket of a place; `("file", "")` for an absolute path on this machine."""
    parts = urlsplit(place)
    return ("file", "") if place.startswith("/") else (parts.scheme, parts.netloc)


def may_be_same_system(first: tuple[str, str], second: tuple[str, str]) -> bool:
    """Return whether two results of `file_system_of` may mean the same file system.

    A place in HDFS without a host is in the configured system. A host without a port has the default port.
    """
    (scheme, host_port), (other_scheme, other_host_port) = first, second
    if scheme != other_scheme:
        return False
    if not host_port or not other_host_port:
        return True
    host, _, port = host_port.partition(":")
    other_host, _, other_port = other_host_port.partition(":")
    return host.lower() == other_host.lower() and (not port or not other_port or port == other_port)


def _absolute_path(path: str) -> str:
    # pathlib would keep `..` or follow links, and raise an error for an unknown `~user`.
    return os.path.abspath(os.path.expanduser(path))  # noqa: PTH100, PTH111


def spark_uri(place: str) -> str:
    """Return a place as an address for Spark, which would look for a path without a scheme in `fs.defaultFS`."""
    return f"file://{place}" if place.startswith("/") else place


def read_uri(place: str) -> str:
    """Return a place as an address for Spark's readers, which take braces, brackets, `*` and `?` for patterns: these are escaped."""
    return _GLOB.sub(r"\\\g<0>", spark_uri(place))


def open_files(spark: Any, place: str) -> Files:
    """Return the file system of a place."""
    return LocalFiles() if place.startswith("/") else HadoopFiles(spark, place)
