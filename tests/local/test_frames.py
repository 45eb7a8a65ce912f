"""The file of frames under the state folder: torn tails, damage, and rewriting."""

from __future__ import annotations

import itertools
import os

import pytest

from penstock_local import frames
from penstock_local.errors import OptionError
from penstock_local.frames import FrameFile
from penstock_local.service_errors import RequestRefused
from penstock_local.state_folder import StateFolder

FRAMES = [(b"M", b"begin"), (b"R", b"x" * 9), (b"C", b""), (b"R", bytes(range(8))), (b"S", b"the last")]
FLIPS = 8
"""Bits of a byte."""


@pytest.fixture
def folder(tmp_path):
    opened = StateFolder(tmp_path / "state")
    yield opened
    opened.close()


def written(folder, name="file", content=FRAMES) -> bytes:
    file = FrameFile(folder, name)
    file.replace(lambda: content[:1])
    for kind, payload in content[1:]:
        file.append(kind, payload)
    file.close()
    return file.path.read_bytes()


def read(folder, name="file") -> list[tuple[bytes, bytes]]:
    file = FrameFile(folder, name)
    try:
        return [(kind, payload) for _, kind, payload in file.frames()]
    finally:
        file.close()


def starts(folder) -> list[int]:
    file = FrameFile(folder, "file")
    found = [at for at, _, _ in file.frames()]
    file.close()
    return found


def test_frames_are_read_as_they_were_written(folder):
    written(folder)
    assert read(folder) == FRAMES
    file = FrameFile(folder, "file")
    for _ in file.frames():
        pass
    file.append(b"R", b"later")
    file.close()
    assert read(folder) == [*FRAMES, (b"R", b"later")]


def test_every_flipped_bit_is_refused_and_nothing_is_written(folder):
    whole = written(folder)
    path = folder.path / "file"
    frame_starts = starts(folder)
    for at, bit in itertools.product(range(len(whole)), range(FLIPS)):
        damaged = bytearray(whole)
        damaged[at] ^= 1 << bit
        path.write_bytes(damaged)
        with pytest.raises(OptionError, match="is damaged at byte") as caught:
            read(folder)
        named = max((start for start in frame_starts if start <= at), default=0)
        assert f"damaged at byte {named} of {len(whole)}" in str(caught.value)
        assert path.read_bytes() == damaged


def test_a_file_of_another_version_is_named_as_such(folder):
    (folder.path / "file").write_bytes(written(folder).replace(b"journal 2", b"journal 3"))
    with pytest.raises(OptionError, match=r"another version wrote it, .*: start that one"):
        read(folder)


def test_a_file_cut_anywhere_in_its_last_frame_loses_that_frame_only(folder, caplog):
    whole = written(folder)
    path = folder.path / "file"
    last = starts(folder)[-1]
    for size in range(last + 1, len(whole)):
        path.write_bytes(whole[:size])
        assert read(folder) == FRAMES[:-1]
        assert f"its last {size - last} bytes were cut short by a crash and are dropped" in caplog.text
    path.write_bytes(whole[: last + 7])
    file = FrameFile(folder, "file")
    for _ in file.frames():
        pass
    assert path.read_bytes() == whole[: last + 7], "reading changes nothing"
    file.append(b"R", b"instead")
    file.close()
    assert read(folder) == [*FRAMES[:-1], (b"R", b"instead")]


@pytest.mark.parametrize(
    "change",
    [
        lambda raw, at: raw[: at[1]] + raw[at[2] :],
        lambda raw, at: raw[: at[1]] + raw[at[2] : at[3]] + raw[at[1] : at[2]] + raw[at[3] :],
        lambda raw, at: raw + raw[at[-1] :],
        lambda raw, _: raw + bytes(64),
        lambda raw, at: raw[: at[3]] + bytes(len(raw) - at[3]),
        lambda raw, _: b"",
        lambda raw, _: raw[:5],
    ],
    ids=[
        "one is missing",
        "two changed places",
        "one twice",
        "zeros behind",
        "zeros at the end",
        "empty",
        "a stump",
    ],
)
def test_what_no_crash_leaves_behind_is_refused(folder, change):
    whole = written(folder)
    damaged = change(whole, starts(folder))
    path = folder.path / "file"
    path.write_bytes(damaged)
    with pytest.raises(OptionError, match="is damaged at byte"):
        read(folder)
    assert path.read_bytes() == damaged


def writes_other():
    """Return frames that are written as another one."""
    return iter([[(b"M", b"other")], FRAMES]).__next__


def test_a_file_is_not_replaced_by_one_that_reads_back_as_something_else(folder):
    whole = written(folder)
    file = FrameFile(folder, "file")
    for _ in file.frames():
        pass
    with pytest.raises(OptionError, match="read back wrongly"):
        file.replace(writes_other())
    assert not file.compact(writes_other())
    file.append(b"R", b"goes on")
    file.close()
    assert file.path.read_bytes().startswith(whole)
    assert read(folder) == [*FRAMES, (b"R", b"goes on")]


class Crash(BaseException):
    """Stands for the death of the process at one system call."""


@pytest.mark.parametrize("fails", [Crash, OSError], ids=["crash", "error"])
@pytest.mark.parametrize("call", ["write", "fsync", "rename", "unlink", "open", "fstat"])
def test_whatever_step_of_writing_anew_is_the_last_everything_is_there(folder, monkeypatch, call, fails):
    original = getattr(os, call)
    content = [(b"M", b"begin"), *((b"R", bytes([i]) * 400_000) for i in range(8))]
    for number in itertools.count():
        written(folder, content=content)
        file = FrameFile(folder, "file")
        for _ in file.frames():
            pass
        left = iter(range(number))

        def fail(*args, left=left, **options):
            if next(left, None) is None:
                raise fails(28, "No space left on device")
            return original(*args, **options)

        with monkeypatch.context() as patch:
            patch.setattr(frames.os, call, fail)
            try:
                done = file.compact(lambda: content)
            except Crash:
                done = False
        over = next(left, None) is not None
        assert read(folder) == content
        if fails is OSError:
            file.append(b"R", b"later")
            assert read(folder) == [*content, (b"R", b"later")]
        file.close()
        if over:
            assert done
            break
    assert number > 0


def test_a_write_that_fails_leaves_no_trace(folder, monkeypatch):
    """Short writes, then an error: the frame is not there, and those after it are."""
    whole = written(folder)
    original = os.write
    for room in range(0, 30, 3):
        file = FrameFile(folder, "file")
        for _ in file.frames():
            pass
        left = [room]

        def write(fd, data, left=left):
            if not left[0]:
                raise OSError(28, "No space left on device")
            count = original(fd, data[: min(left[0], 7)])
            left[0] -= count
            return count

        with monkeypatch.context() as patch:
            patch.setattr(frames.os, "write", write)
            with pytest.raises(
                RequestRefused, match=r"StorageFullException.*cannot be written: No space left on device"
            ):
                file.append(b"R", b"not acknowledged")
            assert file.path.read_bytes() == whole
            # nor can the half frame be cut off
            left[0] = room
            patch.setattr(frames.os, "ftruncate", write)
            with pytest.raises(RequestRefused):
                file.append(b"R", b"not acknowledged")
        file.append(b"R", b"acknowledged")
        file.close()
        assert read(folder) == [*FRAMES, (b"R", b"acknowledged")]
        file.path.write_bytes(whole)


# -- the folder ---------------------------------------------------------------------------------------------


def test_files_are_for_their_owner_only(folder):
    written(folder)
    assert folder.path.stat().st_mode & 0o777 == 0o700
    assert {path.name: path.stat().st_mode & 0o777 for path in folder.path.iterdir()} == {
        "file": 0o600,
        "lock": 0o600,
    }
    (folder.path / "file").chmod(0o644)
    read(folder)
    assert (folder.path / "file").stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize("name", ["file", "file.new", "lock"])
def test_a_planted_link_is_refused_and_what_it_points_to_is_left_alone(tmp_path, name):
    path = tmp_path / "state"
    folder = StateFolder(path)
    written(folder)
    folder.close()
    target = tmp_path / "target"
    target.write_bytes(b"somebody's")
    (path / name).unlink(missing_ok=True)
    (path / name).symlink_to(target)
    with pytest.raises(OptionError, match=rf"{name} is a symbolic link, and the server follows none"):
        again(path)
    (path / name).unlink()
    (path / name).symlink_to(tmp_path / "new")
    with pytest.raises(OptionError, match=rf"{name} is a symbolic link, and the server follows none"):
        again(path)
    assert target.read_bytes() == b"somebody's"
    assert not (tmp_path / "new").exists()


def again(path) -> None:
    folder = StateFolder(path)
    try:
        read(folder)
        FrameFile(folder, "file").replace(lambda: FRAMES)
    finally:
        folder.close()


@pytest.mark.parametrize("name", ["file", "lock"])
def test_a_planted_pipe_is_refused(tmp_path, name):
    path = tmp_path / "state"
    path.mkdir()
    os.mkfifo(path / name)
    with pytest.raises(OptionError, match=rf"{name} is not a file"):
        again(path)
