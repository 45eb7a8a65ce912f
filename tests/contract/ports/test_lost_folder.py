"""A folder of leases that is lost, replaced, full or not to be written: each error has the type that its reader acts on."""

import errno
import os
import shutil
import stat
import threading

import pytest

from penstock.aws.object_lease_table import ObjectLeaseTable
from penstock.core.backoff import Backoff, RetryPlan
from penstock.core.leases.coordinator_events import Problem
from penstock.core.leases.lease import Lease
from penstock.core.leases.lease_writes import Applied, Create, Refused, Renew
from penstock.errors import AccessDenied, NotFound, OptionError, Unavailable, UnknownOutcome
from penstock.runtime.file_objects import FileObjects
from penstock.runtime.lease_calls import problem_of

PLAN = RetryPlan(Backoff(0.001, 0.01), 20, 5.0)
KEY = "shardId-000000000000"
ME = "me"


@pytest.fixture
def folder(tmp_path):
    return tmp_path / "leases"


@pytest.fixture
def table(folder):
    made = ObjectLeaseTable(FileObjects(str(folder), 1.0), PLAN)
    assert made.ensure_exists() is True
    assert isinstance(made.write(Create(Lease(KEY, owner=ME))), Applied)
    return made


CALLS = {
    "scan": lambda table: table.scan(),
    "fetch": lambda table: table.fetch(KEY),
    "fetch_many": lambda table: table.fetch_many([KEY]),
    "write": lambda table: table.write(Renew(KEY, 0, ME)),
    "delete": lambda table: table._store.delete(f"{KEY}.json", "tag"),
}


@pytest.mark.parametrize("call", CALLS)
def test_a_folder_that_is_gone_is_a_table_that_is_gone_and_is_made_again(table, folder, call):
    shutil.rmtree(folder)
    with pytest.raises(NotFound, match="there is no such folder") as lost:
        CALLS[call](table)
    assert problem_of(lost.value) is Problem.TABLE_MISSING
    assert not folder.exists()
    assert table.ensure_exists() is True
    assert table.scan().leases == ()
    assert isinstance(table.write(Create(Lease(KEY, owner=ME))), Applied)


@pytest.mark.parametrize("call", CALLS)
def test_a_file_in_the_place_of_the_folder_ends_the_worker(table, folder, call):
    shutil.rmtree(folder)
    folder.write_text("no folder")
    with pytest.raises(NotFound, match="it is a file, not a folder"):
        CALLS[call](table)
    with pytest.raises(OptionError, match=r"leases is a file, not a folder\. Name another folder"):
        table.ensure_exists()
    assert folder.read_text() == "no folder"


def test_a_file_in_the_place_of_a_parent_is_named(tmp_path):
    (tmp_path / "file").write_text("no folder")
    with pytest.raises(OptionError, match=rf"{tmp_path}/file is a file, not a folder"):
        FileObjects(str(tmp_path / "file" / "leases"), 1.0).prepare()


def test_a_folder_that_is_renamed_away_and_back_is_the_same_table(table, folder, tmp_path):
    folder.rename(tmp_path / "away")
    with pytest.raises(NotFound):
        table.write(Renew(KEY, 0, ME))
    (tmp_path / "away").rename(folder)
    assert isinstance(table.write(Renew(KEY, 0, ME)), Applied)
    assert table.fetch(KEY).counter == 1


def test_a_symlink_is_followed_to_where_it_leads_now(table, folder, tmp_path):
    folder.rename(tmp_path / "first")
    folder.symlink_to(tmp_path / "first")
    assert isinstance(table.write(Renew(KEY, 0, ME)), Applied)
    (tmp_path / "second").mkdir()
    folder.unlink()
    folder.symlink_to(tmp_path / "second")
    assert isinstance(table.write(Renew(KEY, 1, ME)), Refused)
    assert table.scan().leases == ()
    folder.unlink()
    folder.symlink_to(tmp_path / "nowhere")
    with pytest.raises(NotFound):
        table.scan()
    with pytest.raises(Unavailable, match="cannot make"):
        table.ensure_exists()  # it leads somewhere when that is mounted


def test_a_read_does_not_take_a_folder_that_is_just_removed_for_an_empty_one(table, folder, monkeypatch):
    scandir = os.scandir

    def remove_then_scan(place):
        monkeypatch.undo()
        shutil.rmtree(folder)
        return scandir(place)

    monkeypatch.setattr(os, "scandir", remove_then_scan)
    with pytest.raises(NotFound):
        table.scan()


def test_a_write_never_goes_to_another_folder_than_the_one_that_was_locked(table, folder, monkeypatch):
    """Its lock would be another one there, and another worker may hold it."""
    begun, may_go_on = threading.Event(), threading.Event()
    read = FileObjects._tag

    def slow(self, *asked):
        begun.set()
        assert may_go_on.wait(60)
        return read(self, *asked)

    monkeypatch.setattr(FileObjects, "_tag", slow)
    outcomes = []
    writer = threading.Thread(target=lambda: outcomes.append(table.write(Renew(KEY, 0, ME))))
    writer.start()
    assert begun.wait(60)
    folder.rename(f"{folder}-away")
    monkeypatch.setattr(FileObjects, "_tag", read)
    other = ObjectLeaseTable(FileObjects(str(folder), 1.0), PLAN)
    other.ensure_exists()
    other.write(Create(Lease(KEY, owner="other")))
    may_go_on.set()
    writer.join(60)
    assert other.fetch(KEY) == Lease(KEY, owner="other")


def test_a_lock_file_that_is_deleted_while_it_is_held_locks_nobody_out_and_lets_nobody_in(table, folder):
    store = table._store
    with store._open_folder() as opened, store._lock_folder(opened):
        (folder / ".lock").unlink()
    for _ in range(2):
        row = table.fetch(KEY)
        assert isinstance(table.write(Renew(KEY, row.counter, ME)), Applied)
    assert (folder / ".lock").exists()


@pytest.mark.parametrize(
    ("number", "kind", "problem"),
    [
        (errno.ENOSPC, Unavailable, Problem.UNAVAILABLE),
        (errno.EDQUOT, Unavailable, Problem.UNAVAILABLE),
        (errno.EIO, Unavailable, Problem.UNAVAILABLE),
        (errno.ESTALE, Unavailable, Problem.UNAVAILABLE),
        (errno.EROFS, AccessDenied, Problem.REFUSED),
        (errno.EACCES, AccessDenied, Problem.REFUSED),
    ],
    ids=lambda value: errno.errorcode.get(value, "") if isinstance(value, int) else "",
)
def test_a_disk_that_cannot_be_written_is_named_with_the_systems_words(
    table, folder, monkeypatch, number, kind, problem
):
    def fail(*_, **__):
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "replace", fail)
    with pytest.raises(kind, match=os.strerror(number)) as failure:
        table.write(Renew(KEY, 0, ME))
    assert problem_of(failure.value) is problem
    monkeypatch.undo()
    assert table.fetch(KEY) == Lease(KEY, owner=ME)
    assert sorted(each.name for each in folder.iterdir()) == [".lock", f"{KEY}.json"]


def test_a_server_that_has_forgotten_the_folder_has_lost_the_table(table, monkeypatch):
    """As NFS answers: every use of the path is ESTALE."""
    store, opened, path_stat = table._store, os.open, type(table._store._folder).stat

    def stale(path, *given, **named):
        if path == store._folder:
            raise OSError(errno.ESTALE, os.strerror(errno.ESTALE))
        return opened(path, *given, **named)

    def stale_stat(path, **named):
        if path == store._folder:
            raise OSError(errno.ESTALE, os.strerror(errno.ESTALE))
        return path_stat(path, **named)

    monkeypatch.setattr(os, "open", stale)
    monkeypatch.setattr(type(store._folder), "stat", stale_stat)
    with pytest.raises(NotFound):
        table.scan()
    with pytest.raises(Unavailable, match="cannot make"):
        table.ensure_exists()


def test_a_disk_that_fails_behind_a_write_leaves_its_outcome_unknown(table, monkeypatch):
    fsync = os.fsync

    def fail(handle):
        if stat.S_ISDIR(os.fstat(handle).st_mode):
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        fsync(handle)

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(UnknownOutcome, match="it is not known whether the disk has the write"):
        table._store.write("another.json", b"{}", None)
    assert isinstance(table.write(Renew(KEY, 0, ME)), Applied)  # it is read back


def test_a_folder_on_a_read_only_disk_is_refused_when_a_worker_starts(table, monkeypatch):
    opened = os.open

    def read_only(path, flags, *given, **named):
        if flags & os.O_WRONLY:
            raise OSError(errno.EROFS, os.strerror(errno.EROFS))
        return opened(path, flags, *given, **named)

    monkeypatch.setattr(os, "open", read_only)
    with pytest.raises(AccessDenied, match=r"cannot make: .*Read-only file system"):
        table.ensure_exists()
    assert [lease.key for lease in table.scan().leases] == [KEY]  # the commands read it
