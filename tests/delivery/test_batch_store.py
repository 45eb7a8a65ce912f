"""The commit of a batch into a table of plain files: once, whatever is killed, and whoever else commits it."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from unittest.mock import Mock

import duckdb
import pytest

from killed_batches import MortalFiles, World, run
from penstock.core.delivering.manifest import Identity, Manifest, Move
from penstock.delivery.batch_store import BatchStore
from penstock.delivery.files import LocalFiles, local_path
from penstock.errors import AnotherDriver, DeliveryFailed


def test_each_row_is_there_once_for_pyarrow_and_duckdb_whatever_is_killed(tmp_path):
    kills = sum(run(f"{tmp_path}/{seed}", seed, 3) for seed in range(6))
    assert kills > 10


def test_a_second_driver_adopts_the_batch_of_the_first(tmp_path):
    world = World(tmp_path, 1)
    world.batches.append([1, 2, 3])
    first, second = (BatchStore(LocalFiles(), world.state) for _ in range(2))
    manifests = []
    for store in (first, second):
        folder = store.new_staging("000000000")
        world.stage(f"{folder}/rows", [1, 2, 3])
        staged = store.staged_files(folder, ".parquet")
        moves = tuple(
            Move(path, f"{world.table}/part-{number}-{len(manifests)}.parquet", size)
            for number, (path, size) in enumerate(staged)
        )
        manifests.append(
            Manifest(
                delivery="orders",
                batch="000000000",
                identity=Identity("1", "3", 1, 3),
                row_count=3,
                dead_count=0,
                moves=moves,
            )
        )
    assert first.commit(manifests[0]) == manifests[0]
    assert second.commit(manifests[1]) == manifests[0]
    assert duckdb.sql(f"SELECT id FROM read_parquet('{world.table}/*.parquet') ORDER BY id").fetchall() == [
        (1,),
        (2,),
        (3,),
    ]


def manifest(tmp_path, **changed):
    values = {
        "delivery": "orders",
        "batch": "000000000",
        "identity": Identity("1", "3", 1, 3),
        "row_count": 3,
        "dead_count": 0,
        "moves": (Move(f"{tmp_path}/staged", f"{tmp_path}/lake/file", 3),),
    }
    return Manifest(**{**values, **changed})


def test_other_records_under_the_number_of_a_batch_are_refused(tmp_path):
    store = BatchStore(LocalFiles(), f"{tmp_path}/state")
    (tmp_path / "staged").write_bytes(b"abc")
    store.commit(manifest(tmp_path))
    with pytest.raises(AnotherDriver, match="with other records"):
        store.commit(manifest(tmp_path, identity=Identity("1", "4", 1, 4)))


def test_a_file_of_others_is_never_overwritten(tmp_path):
    store = BatchStore(LocalFiles(), f"{tmp_path}/state")
    (tmp_path / "staged").write_bytes(b"abc")
    (tmp_path / "lake").mkdir()
    (tmp_path / "lake" / "file").write_bytes(b"other")
    with pytest.raises(DeliveryFailed, match="with another size"):
        store.commit(manifest(tmp_path))


def test_a_staged_file_that_has_gone_is_an_error(tmp_path):
    store = BatchStore(LocalFiles(), f"{tmp_path}/state")
    with pytest.raises(DeliveryFailed, match="has gone before it was moved"):
        store.commit(manifest(tmp_path))


def test_a_finished_batch_may_be_compacted_by_others(tmp_path):
    store = BatchStore(LocalFiles(), f"{tmp_path}/state")
    (tmp_path / "staged").write_bytes(b"abc")
    store.commit(manifest(tmp_path))
    (tmp_path / "lake" / "file").unlink()
    assert store.commit(manifest(tmp_path)) == manifest(tmp_path)


@pytest.mark.parametrize(
    ("is_finished", "raised", "seen"),
    [
        (True, OSError("the staged rows have gone"), AnotherDriver),
        (True, DeliveryFailed("the table has it twice"), DeliveryFailed),
        (False, OSError("the staged rows have gone"), OSError),
    ],
)
def test_a_driver_whose_batch_another_one_has_finished_meanwhile_says_so(tmp_path, is_finished, raised, seen):
    state, batch = f"{tmp_path}/state", manifest(tmp_path, moves=(), rows=f"{tmp_path}/rows")

    def fail_late(_manifest):
        if is_finished:
            BatchStore(LocalFiles(), state).finish(batch)
        raise raised

    with pytest.raises(seen) as error:
        BatchStore(LocalFiles(), state, fail_late).commit(batch)
    assert ("another driver has finished it" in str(error.value)) is (seen is AnotherDriver)


def test_manifests_of_old_batches_are_forgotten(tmp_path):
    files = MortalFiles()
    store = BatchStore(files, f"{tmp_path}/state")
    for number in range(103):
        store.commit(manifest(tmp_path, batch=f"{number:09d}", moves=()))
        store.remove_old_manifest(number)
    assert store.labels() == [f"{number:09d}" for number in range(3, 103)]


def test_places_of_this_machine_are_paths(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert local_path("lake/orders") == f"{tmp_path}/lake/orders"
    assert local_path("file:///lake/a%20b") == "/lake/a b"
    assert local_path("s3://lake/orders") is None
    assert local_path("dbfs:/lake/orders") is None
    assert local_path("~/orders") == str(Path.home() / "orders")


def test_a_file_is_moved_to_another_disk(tmp_path, monkeypatch):
    def refuse(self, target):
        if Path(target).parent != self.parent:
            raise OSError(errno.EXDEV, "Invalid cross-device link")
        return replace(self, target)

    replace = Path.replace
    monkeypatch.setattr(Path, "rename", refuse)
    store = BatchStore(LocalFiles(), f"{tmp_path}/state")
    (tmp_path / "staged").write_bytes(b"abc")
    (tmp_path / "lake").mkdir()
    (tmp_path / "lake" / ".file.tmp").write_bytes(b"a")  # of an attempt that was killed
    store.commit(manifest(tmp_path))
    assert [each.name for each in (tmp_path / "lake").iterdir()] == ["file"]
    assert (tmp_path / "lake" / "file").read_bytes() == b"abc"
    assert not (tmp_path / "staged").exists()


def test_a_full_disk_leaves_no_half_file_and_the_batch_goes_on_later(tmp_path, monkeypatch):
    def refuse(_descriptor):
        raise OSError(errno.ENOSPC, "No space left on device")

    store = BatchStore(LocalFiles(), f"{tmp_path}/state")
    (tmp_path / "staged").write_bytes(b"abc")
    with monkeypatch.context() as full:
        full.setattr(os, "fsync", refuse)
        with pytest.raises(OSError, match="No space left"):
            store.commit(manifest(tmp_path))
    assert [each for each in (tmp_path / "state").rglob("*") if each.is_file()] == []
    store.commit(manifest(tmp_path))
    assert (tmp_path / "lake" / "file").read_bytes() == b"abc"


def test_a_disk_without_hard_links_is_answered_with_the_way_to_another(tmp_path, monkeypatch):
    monkeypatch.setattr("os.link", Mock(side_effect=PermissionError(errno.EPERM, "Operation not permitted")))
    with pytest.raises(OSError, match=f"{tmp_path} is on a file system without hard links.* with state"):
        LocalFiles().create(f"{tmp_path}/0.json", b"{}")
    assert not list(tmp_path.iterdir())


def test_a_folder_that_cannot_be_listed_is_not_an_empty_one(tmp_path, monkeypatch):
    def refuse(_folder):
        raise OSError(errno.EIO, "Input/output error")

    assert BatchStore(LocalFiles(), f"{tmp_path}/state").is_empty()
    monkeypatch.setattr(os, "scandir", refuse)
    with pytest.raises(OSError, match="Input/output error"):
        BatchStore(LocalFiles(), f"{tmp_path}/state").is_empty()
