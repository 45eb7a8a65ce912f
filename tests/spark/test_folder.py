"""Files of the sink: complete or absent, readable by their owner only, and never where a planted link points."""

from __future__ import annotations

import io
import os
import stat
import subprocess
import sys

import pytest
from pyarrow import fs

from penstock.spark.sink.folder import Folder


def mode_of(path):
    return stat.S_IMODE(path.lstat().st_mode)


@pytest.mark.parametrize("form", ["{}", "file:{}", "file://{}"])
def test_a_file_replaces_the_one_of_its_name_and_nothing_else_is_left(tmp_path, form):
    folder = Folder(form.format(tmp_path))
    folder.replace("letters", io.BytesIO(b"first, and longer"))
    folder.replace("letters", io.BytesIO(b"second"))
    assert [path.name for path in tmp_path.iterdir()] == ["letters"]
    assert folder.read("letters") == b"second"


def test_what_is_made_is_for_its_owner_alone_and_what_was_there_stays_as_it_was(tmp_path):
    tmp_path.chmod(0o755)
    umask = os.umask(0)
    try:
        Folder(str(tmp_path / "a" / "b")).replace("letters", io.BytesIO(b"x"))
    finally:
        os.umask(umask)
    assert mode_of(tmp_path) == 0o755
    assert mode_of(tmp_path / "a") == mode_of(tmp_path / "a" / "b") == 0o700
    assert mode_of(tmp_path / "a" / "b" / "letters") == 0o600


def test_a_planted_link_is_replaced_and_not_followed(tmp_path):
    victim = tmp_path / "victim"
    victim.write_text("precious")
    (tmp_path / "dead").mkdir()
    (tmp_path / "dead" / "letters").symlink_to(victim)
    Folder(str(tmp_path / "dead")).replace("letters", io.BytesIO(b"x"))
    assert victim.read_text() == "precious"
    assert not (tmp_path / "dead" / "letters").is_symlink()


def test_a_folder_that_is_ones_own_link_is_used(tmp_path):
    (tmp_path / "real").mkdir()
    (tmp_path / "dead").symlink_to(tmp_path / "real")
    Folder(str(tmp_path / "dead")).replace("letters", io.BytesIO(b"x"))
    assert (tmp_path / "real" / "letters").read_bytes() == b"x"


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can make another user's link")
def test_a_folder_that_is_another_users_link_is_refused(tmp_path):
    (tmp_path / "real").mkdir()
    (tmp_path / "dead").symlink_to(tmp_path / "real")
    os.lchown(tmp_path / "dead", 12345, 12345)
    with pytest.raises(PermissionError, match="symbolic link that belongs to user 12345"):
        Folder(str(tmp_path / "dead")).replace("letters", io.BytesIO(b"x"))
    assert list((tmp_path / "real").iterdir()) == []


FULL_DISK = """
import io, resource, signal, sys
from penstock.spark.sink.folder import Folder
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))
try:
    Folder(sys.argv[1]).replace("letters", io.BytesIO(b"x" * 3_000_000))
except OSError as error:
    print(type(error).__name__)
"""


def test_a_file_that_finds_no_room_leaves_the_old_one_whole_and_no_rest(tmp_path):
    Folder(str(tmp_path)).replace("letters", io.BytesIO(b"old"))
    ran = subprocess.run(
        [sys.executable, "-c", FULL_DISK, str(tmp_path)],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert ran.stdout == "OSError\n"
    assert [path.name for path in tmp_path.iterdir()] == ["letters"]
    assert (tmp_path / "letters").read_bytes() == b"old"


class MovesOnlyToFreeNames:
    """A remote file system in a local folder; as HDFS does, it refuses to move a file over another."""

    type_name = "hdfs"

    def __init__(self, root):
        self._inner = fs.SubTreeFileSystem(str(root), fs.LocalFileSystem())

    def __getattr__(self, name):
        return getattr(self._inner, name)

    def move(self, draft, final):
        if self._inner.get_file_info(final).type != fs.FileType.NotFound:
            raise OSError(f"{final} exists")
        self._inner.move(draft, final)


@pytest.fixture
def remote(tmp_path):
    folder = Folder(str(tmp_path))
    folder._system, folder._path = MovesOnlyToFreeNames(tmp_path), "dead"
    return folder


def test_a_file_is_replaced_on_a_file_system_that_moves_only_to_free_names(remote, tmp_path):
    remote.replace("letters", io.BytesIO(b"first"))
    remote.replace("letters", io.BytesIO(b"second"))
    assert remote.read("letters") == b"second"
    assert [path.name for path in (tmp_path / "dead").iterdir()] == ["letters"]
