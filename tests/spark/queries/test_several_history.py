"""Random histories of a query of several streams: no record is lost or repeated, and a batch holds one set of rows.

Each seed is one history: puts, reshards, executions cut short, drivers that die or stop, and lists of streams that change.
"""

from __future__ import annotations

import json
import random
import uuid

import pytest

from penstock.errors import ClaimConflict, OptionError
from several_query import SeveralQuery
from spark_support import numbered, put
from stream_reshards import reshard
from waiting import wait_until

STEPS_MAX = 24


class History:
    """One query of up to three streams, driven by chance; keeps what must hold."""

    def __init__(self, server, seed):
        self.chance = random.Random(seed)
        self.server = server
        self.client = server.client("kinesis")
        self.names = [f"s{number}-{uuid.uuid4().hex[:8]}" for number in range(self.chance.choice([2, 3]))]
        for name in self.names:
            server.create_stream(name, shards=self.chance.choice([1, 2, 3]))
        self.query = SeveralQuery(
            server,
            self.client,
            stream=",".join(self.names),
            applicationName=f"app-{self.names[0]}",
            leaseDuration="3s",
            maxRecordsPerTrigger=str(self.chance.choice([1, 7, 25, 1000])),
        )
        self.sent = dict.fromkeys(self.names, 0)
        self.planned = None
        self.held = {}  # (batch, task) -> the rows that every execution of it holds

    def put(self):
        place = self.chance.randrange(len(self.names))
        name, count = self.names[place], self.chance.randrange(1, 25)
        first = 1000 * place + self.sent[name]
        put(self.client, name, numbered(first, first + count))
        self.sent[name] += count

    def plan(self):
        if self.planned is None:
            self.planned = self.query.plan()

    def execute_some(self):
        for part in self._parts():
            if self.chance.random() < 0.5:
                self._read(part)

    def finish(self):
        if self.planned is None:
            return
        rows = [row for part in self._parts() for row in self._read(part)]
        self.query.commit(self.planned, rows)
        self.planned = None

    def die(self):
        self.query.die()

    def restart(self):
        self.query.reader.stop()
        self.query.reader = self.query.fresh()

    def reshard(self):
        reshard(self.client, self.chance.choice(self.names), self.chance)

    def change_list(self):
        kept = self.chance.sample(self.names, self.chance.randrange(1, len(self.names) + 1))
        self.query.given["streamName"] = ",".join(kept) + ("," if len(kept) == 1 else "")
        self.restart()
        if self.planned is not None:
            try:
                self._parts()
            except OptionError:  # the batch reads a stream that was left out
                self.all_again()

    def all_again(self):
        self.query.given["streamName"] = ",".join(self.names)
        self.restart()

    def end(self):
        self.all_again()
        total = sum(self.sent.values())

        def is_all_read():
            self.plan()
            self.finish()
            return len(self.query.rows) >= total

        wait_until(is_all_read, "every record")
        self.plan()
        self.finish()
        expected = [
            1000 * place + number
            for place, name in enumerate(self.names)
            for number in range(self.sent[name])
        ]
        assert self.query.numbers() == expected

    def _parts(self):
        if self.planned is None:
            return []
        start = self.query.reader.initialOffset() if self.query.done is None else self.query.done
        return self.query.reader.partitions(start, self.planned)

    def _read(self, part):
        rows = []
        for _ in range(5):
            try:
                rows = self.query.read(part)
                break
            except ClaimConflict:
                continue
        # One shard in each task, so a task of a batch is the same in every execution.
        name = part.parts[0].stream.stream_id
        key = (json.dumps(self.planned), name, tuple(task.shard_id for task in part.parts))
        assert self.held.setdefault(key, rows) == rows
        return rows


@pytest.mark.parametrize("seed", range(4))
def test_a_history_of_several_streams_loses_and_repeats_nothing(server, seed):
    history = History(server, seed)
    steps = {
        history.put: 6,
        history.plan: 5,
        history.execute_some: 3,
        history.finish: 5,
        history.die: 1,
        history.restart: 1,
        history.reshard: 1,
        history.change_list: 2,
    }
    try:
        for step in history.chance.choices(list(steps), list(steps.values()), k=STEPS_MAX):
            step()
        history.end()
    finally:
        history.query.stop()
