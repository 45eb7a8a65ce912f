"""Random histories of a query, its drivers and another worker: no record is lost, and a batch holds one set of rows.

Each seed is one history. What other threads do meanwhile (renewals, hand-overs, expiry) is not controlled.
"""

from __future__ import annotations

import json
import random

import pytest

from lease_hands import Hands
from penstock.core.leases.lease_writes import (
    Applied,
    Checkpoint,
    Release,
    Take,
)
from penstock.core.position import at_record
from penstock.errors import AnotherDriver, ClaimConflict
from reader_query import Query
from spark_support import numbered, put
from stream_reshards import reshard
from waiting import wait_until

STEPS_MAX = 26


class History:
    """One query and one thief, driven by chance; keeps what must hold."""

    def __init__(self, server, seed):
        self.chance = random.Random(seed)
        self.server = server
        self.client = server.client("kinesis")
        self.query = Query(
            server,
            self.client,
            shards=self.chance.choice([1, 2, 3]),
            leaseDuration="3s",
            maxRecordsPerTrigger=str(self.chance.choice([7, 25, 1000])),
        )
        self.sent = 0
        self.planned = None
        self.held = {}  # (batch, shard) -> the rows that every execution of it holds
        self.zombies = []  # executions that are under way, as (batch, shard, rows so far, generator)
        self.copies = [
            (None, None, 0)
        ]  # the checkpoint location after each batch: committed, planned, rows by then
        self.done_by_thief = set()
        self.log = []

    # --- steps ------------------------------------------------------------------------------------------

    def put(self):
        count = self.chance.randrange(1, 25)
        put(self.client, self.query.stream, numbered(self.sent, self.sent + count))
        self.sent += count

    def plan(self):
        if self.planned is None:
            self.planned = self.query.plan()
            if self.planned is not None:
                self.copies.append((self.query.done, self.planned, len(self.query.rows)))

    def execute_some(self):
        for part in self._parts():
            if self.chance.random() < 0.5:
                self._try(part)

    def begin_slowly(self):
        for part in self._parts()[:1]:
            running = self.query.fresh().read(part)
            rows = []
            try:
                rows += next(running).to_pylist()
            except (StopIteration, ClaimConflict):
                continue
            self.zombies.append((self._key(part), rows, running))

    def end_slowly(self):
        if not self.zombies:
            return
        key, rows, running = self.zombies.pop(self.chance.randrange(len(self.zombies)))
        try:
            for more in running:
                rows += more.to_pylist()
        except (ClaimConflict, AnotherDriver):
            return
        self._hold(
            key,
            [(r["shardId"], int(r["sequenceNumber"]), r["subSequenceNumber"], int(r["data"])) for r in rows],
        )

    def commit(self):
        if self.planned is None:
            return
        rows = []
        for part in self._parts():
            found = self._try(part)
            while found is None:
                found = self._try(part)
            rows += found
        self.query.commit(self.planned, rows)
        self.planned = None
        self.copies.append((self.query.done, None, len(self.query.rows)))

    def die(self):
        self.query.die()

    def stop(self):
        self.query.reader.stop()
        self.query.reader = self.query.fresh()

    def steal(self):
        row = self._some_row(lambda row: row.owner != "thief" and not row.is_ended)
        if row is not None:
            self.query.table.write(Take(row.key, row.counter, "thief"))

    def checkpoint_as_thief(self):
        row = self._some_row(lambda row: row.reader == "thief")
        if row is None:
            return
        records = Hands(self.server, self.query, row.key).records()
        ahead = [number for number in records if row.checkpoint < at_record(number)]
        if not ahead:
            return
        place = self.chance.choice(ahead)
        write = Checkpoint(row.key, row.counter, "thief", at_record(place))
        if isinstance(self.query.table.write(write), Applied):
            self.done_by_thief |= {(row.key, int(number)) for number in records if int(number) <= int(place)}

    def release_as_thief(self):
        row = self._some_row(lambda row: row.reader == "thief")
        if row is not None:
            self.query.table.write(Release(row.key, row.counter, "thief"))

    def reshard(self):
        reshard(self.client, self.query.stream, self.chance)

    def restore_an_old_copy(self):
        if len(self.copies) == 1:
            return
        self.query.die()
        at = self.chance.randrange(1, len(self.copies))  # a new location would be another worker
        self.query.done, self.planned, count = self.copies[at]
        del self.copies[at + 1 :]
        theirs = {row.key for row in self.query.table.scan().leases if row.reader == "thief"}
        # The thief's leases are left as they are, with a warning: their rows are not read again.
        after = self.query.rows[count:]
        self.query.rows = self.query.rows[:count] + [row for row in after if row[0] in theirs]
        self.copies[at] = (self.query.done, self.planned, len(self.query.rows))
        self.held, self.zombies = {}, []
        if self.planned is None:
            self.plan()
        else:
            self._parts()  # the query starts: now it sees who holds what

    # --- what must hold -----------------------------------------------------------------------------------

    def _parts(self):
        if self.planned is None:
            return []
        parts = self.query.reader.partitions(self.query.done or {}, self.planned)
        self.chance.shuffle(parts)
        return parts

    def _key(self, part):
        return json.dumps(self.planned, sort_keys=True), part.parts[0].shard_id

    def _try(self, part):
        try:
            rows = self.query.read(part)
        except ClaimConflict:
            return None
        self._hold(self._key(part), rows)
        return rows

    def _hold(self, key, rows):
        assert self.held.setdefault(key, rows) == rows, key

    def _some_row(self, fits):
        rows = [row for row in self.query.table.scan().leases if fits(row)] if self.query.done else []
        return self.chance.choice(rows) if rows else None

    def finish(self):
        for row in self.query.table.scan().leases:
            if row.reader == "thief":
                self.query.table.write(Release(row.key, row.counter, "thief"))
        self.die()  # a new driver scans all leases before it reads
        self.commit()
        wait_until(lambda: not self.lost(), "every record", 60)

    def lost(self):
        """Read the rest, and return the records that neither the query nor the thief has done."""
        self.query.drain(200)
        seen = {row[3] for row in self.query.rows}
        for shard in self.client.list_shards(StreamName=self.query.stream)["Shards"]:
            numbers = read_all(self.client, self.query.stream, shard["ShardId"])
            seen |= {
                number for number, sequence in numbers if (shard["ShardId"], sequence) in self.done_by_thief
            }
        return sorted(set(range(self.sent)) - seen)


def read_all(client, stream, shard):
    iterator = client.get_shard_iterator(StreamName=stream, ShardId=shard, ShardIteratorType="TRIM_HORIZON")[
        "ShardIterator"
    ]
    answer = client.get_records(ShardIterator=iterator)
    return [(int(record["Data"]), int(record["SequenceNumber"])) for record in answer["Records"]]


STEPS = {
    History.put: 5,
    History.plan: 6,
    History.execute_some: 4,
    History.begin_slowly: 2,
    History.end_slowly: 2,
    History.commit: 4,
    History.die: 2,
    History.stop: 1,
    History.steal: 2,
    History.checkpoint_as_thief: 2,
    History.release_as_thief: 1,
    History.reshard: 1,
    History.restore_an_old_copy: 1,
}


@pytest.mark.parametrize("seed", range(6))
def test_no_history_loses_a_record_or_gives_a_batch_two_sets_of_rows(server, seed):
    history = History(server, seed)
    try:
        run(history)
    except BaseException as error:
        error.add_note(f"seed {seed}: {', '.join(history.log)}")
        raise
    finally:
        history.query.stop()


def run(history):
    history.put()
    for _ in range(STEPS_MAX):
        step = history.chance.choices(list(STEPS), list(STEPS.values()))[0]
        history.log.append(step.__name__)
        step(history)
    history.finish()
