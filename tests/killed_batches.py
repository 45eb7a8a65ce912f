"""Batches that are killed at every call to the file system, without Spark: the commit is the production's."""

from __future__ import annotations

import random

import duckdb
import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq

from penstock.core.delivering.manifest import Identity, Manifest, plan_moves
from penstock.delivery.batch_store import BatchStore
from penstock.delivery.files import LocalFiles


class Killed(BaseException):
    """The process ends at a call."""


class MortalFiles(LocalFiles):
    """Files whose user is killed before or after the n-th call that changes something."""

    def __init__(self):
        self.left = None
        self.is_after = False
        self.count = 0

    def _die(self, call):
        self.count += 1
        if self.left is None:
            return call()
        self.left -= 1
        if self.left > 0:
            return call()
        if self.is_after:
            call()
        raise Killed

    def create(self, path, content):
        return self._die(lambda: LocalFiles.create(self, path, content))

    def replace(self, path, content):
        return self._die(lambda: LocalFiles.replace(self, path, content))

    def rename(self, source, target):
        return self._die(lambda: LocalFiles.rename(self, source, target))

    def remove(self, path):
        return self._die(lambda: LocalFiles.remove(self, path))


class World:
    """One table and a query that repeats a batch until it is committed.

    Every attempt of a batch has the same rows, in another order and in other files, as a repeated batch of the source may have.
    """

    def __init__(self, folder, seed):
        self.chance = random.Random(seed)
        self.table = f"{folder}/orders"
        self.state = f"{self.table}.penstock/orders"
        self.files = MortalFiles()
        self.kill_count = 0
        self.batches = []

    def deliver(self, rows):
        """Deliver a new batch, killed at random calls; afterwards it is in the table."""
        label = f"{len(self.batches):09d}"
        self.batches.append(rows)
        while True:
            self.files.left = self.chance.randrange(1, 9) if self.chance.random() < 0.7 else None
            self.files.is_after = self.chance.random() < 0.5
            try:
                self.attempt(label, rows)
            except Killed:
                self.kill_count += 1
                self.check(is_whole=False)
                continue
            if self.chance.random() < 0.8:  # else killed before Spark's own commit: the batch runs again
                return

    def attempt(self, label, rows):
        store = BatchStore(self.files, self.state)
        for manifest in store.unfinished_manifests():
            store.finish(manifest)
        identity = Identity(str(min(rows)), str(max(rows)), min(rows), max(rows))
        earlier = store.read(label)
        if earlier is not None:
            store.check_same_records(earlier, identity)
            store.finish(earlier)
            return
        folder = store.new_staging(label)
        self.stage(f"{folder}/rows", rows)
        staged = store.staged_files(f"{folder}/rows", ".parquet")
        moves = plan_moves("orders", label, staged, root=f"{folder}/rows", to=self.table, ending="parquet")
        store.commit(
            Manifest(
                delivery="orders",
                batch=label,
                identity=identity,
                row_count=len(rows),
                dead_count=0,
                moves=moves,
            )
        )

    def stage(self, folder, rows):
        rows = list(rows)
        self.chance.shuffle(rows)
        for part in range(2):
            for number in range(self.chance.randrange(1, 3)):
                LocalFiles.replace(self.files, f"{folder}/part={part}/x", b"")
                LocalFiles.remove(self.files, f"{folder}/part={part}/x")
                mine = [row for row in rows if row % 2 == part]
                half = mine if number == 0 else []
                pq.write_table(
                    pa.table({"id": pa.array(half, pa.int64())}),
                    f"{folder}/part={part}/{number}-{self.chance.random()}.parquet",
                )

    def check(self, *, is_whole):
        """Compare the table with the records; before the end of a batch a part of it may be there, once."""
        expected = sorted(row for rows in self.batches for row in rows)
        try:
            found = sorted(ds.dataset(self.table, partitioning="hive").to_table()["id"].to_pylist())
        except FileNotFoundError:
            found = []
        assert len(found) == len(set(found)), "a row is there twice"
        assert found == expected if is_whole else set(found) <= set(expected)
        if found:
            query = f"SELECT id FROM read_parquet('{self.table}/**/*.parquet') ORDER BY id"
            assert [row[0] for row in duckdb.sql(query).fetchall()] == found


def run(folder, seed, batch_count):
    """Deliver batches that are killed at random; return the number of kills."""
    world = World(folder, seed)
    first = 0
    for _ in range(batch_count):
        count = world.chance.randrange(2, 40)
        world.deliver(list(range(first, first + count)))
        first += count
        world.check(is_whole=True)
    return world.kill_count
