"""Run a streaming query without Spark: make the reader's calls in the orders in which Spark makes them."""

from __future__ import annotations

import json
import uuid

import pytest

from penstock.core.batches.offsets import INITIAL_OFFSET
from penstock.core.leases.lease_writes import Applied, Take
from penstock.spark.batch_planning import OneStream
from penstock.spark.engine import PASSES_START
from penstock.spark.options.spark_options import parse_source
from penstock.spark.stream_reader import KinesisStreamReader
from penstock.wiring import open_lease_table
from waiting import wait_until


class ReaderWithoutStarts:
    """A reader as Spark 4.0 and 4.1 call it: they name the last offset of their log first, and no start after that.

    It has the methods of a reader that is told the start, so that a test is the same for all of Spark's lines.
    """

    def __init__(self, reader):
        self._reader = reader
        self._is_known = False

    def __getattr__(self, name):
        return getattr(self._reader, name)

    def latestOffset(self, start, limit):  # noqa: N802 - Spark's name
        self._begin(start)
        if self._reader._starts.next_start != start:
            pytest.skip("Spark 4.0 and 4.1 ask for an offset only when the batch of the one before is done")
        return self._reader.latestOffset()

    def partitions(self, start, end):
        self._begin(end)
        return self._reader.partitions(start or INITIAL_OFFSET.to_json(), end)

    def _begin(self, logged):
        if not self._is_known and logged != INITIAL_OFFSET.to_json():
            assert self._reader.partitions(logged, logged) == []
        self._is_known = True


class Query:
    """A query as Spark runs it, one step at a time, with the offsets that Spark would have logged."""

    def __init__(self, server, client, shards=2, stream=None, *, is_told_starts=PASSES_START, **options):
        self.is_told_starts = is_told_starts
        self.stream = stream or f"s-{uuid.uuid4().hex[:10]}"
        self.client = client
        if stream is None:
            server.create_stream(self.stream, shards=shards)
        self.given = {
            "streamName": self.stream,
            "endpointUrl": server.endpoint_url,
            "region": "us-east-1",
            "awsAccessKeyId": "local",
            "awsSecretKey": "local",
            "applicationName": f"app-{self.stream}",
            "startingPosition": "TRIM_HORIZON",
            "leaseDuration": "5s",
            "fetchInterval": "0ms",
            "probeInterval": "200ms",
            "shardsPerTask": "1",  # so that a test can say which shard is read
            **options,
        }
        self.readers = []
        self.done = None  # the offset of the last committed batch
        self.rows = []
        self.last_rows = []  # of the last committed batch
        self.reader = self.fresh()

    @property
    def options(self):
        return parse_source(self.given)[0]

    @property
    def table(self):
        return open_lease_table(self.options.lease_table, self.options.connection)

    @property
    def worker(self):
        """The query's name in the lease table."""
        return self.reader._planner._joined.shards.worker if self.done is None else self.done["worker"]

    def fresh(self):
        """A reader in a new process, as after a restart."""
        reader = KinesisStreamReader(OneStream(self.options))
        self.readers.append(reader)
        return reader if self.is_told_starts else ReaderWithoutStarts(reader)

    def die(self):
        """End the process beside the driver without any farewell; its leases stay as they are."""
        planner = self.reader._planner
        if planner is not None and planner._joined is not None:
            planner._joined.query_worker.abandon()
        self.reader = self.fresh()

    def steal(self, key):
        """Let another worker take a lease by force, between two renewals; gives its row as it was."""
        while True:
            row = self.table.fetch(key)
            if isinstance(self.table.write(Take(key, row.counter, "thief")), Applied):
                return row

    def plan(self):
        """The next offset, logged, or None when there is nothing to read.

        Where a shard's answer takes longer than the reader waits for it, the reader is asked again: what a plan names must
        not depend on how busy the machine is.
        """
        ends = [self._look()]
        waited_for = self._asked()

        def is_probed():
            now = self._asked()
            return not any(now.get(shard) == asked_s for shard, asked_s in waited_for.items())

        if self.is_told_starts or ends[-1] is None:
            wait_until(lambda: is_probed() or ends.append(self._look()), "the answers of the shards")
        return ends[-1]

    def _look(self):
        start = self.reader.initialOffset() if self.done is None else self.done
        end = self.reader.latestOffset(start, None)
        assert json.loads(json.dumps(end)) == end
        return None if end == start else end

    def _asked(self):
        """The query's shards whose answer is under way, and since when."""
        planner = self.reader._planner
        held = planner._joined.shards.shard_ids
        return {shard: asked_s for shard, asked_s in planner._poller._probes.items() if shard in held}

    def next_plan(self, *shards):
        """The next offset, asked for until there is one that names these shards: none may be due for a probe just now."""
        ends = []

        def is_there():
            ends.append(self.plan())
            return ends[-1] is not None and set(shards) <= set(ends[-1]["limit"]["shards"])

        wait_until(is_there, "a batch")
        return ends[-1]

    def execute(self, end):
        """Run a planned batch's tasks, each to its end; gives the rows."""
        start = {} if self.done is None else self.done
        return [row for part in self.reader.partitions(start, end) for row in self.read(part)]

    def read(self, part):
        found = []
        for batch in self.fresh().read(part):
            found += [
                (row["shardId"], int(row["sequenceNumber"]), row["subSequenceNumber"], int(row["data"]))
                for row in batch.to_pylist()
            ]
        return found

    def commit(self, end, rows):
        self.rows += rows
        self.last_rows = rows
        self.done = end

    def batch(self):
        end = self.plan()
        return None if end is None else self._run(end)

    def next_batch(self, *shards):
        """The rows of the next batch, waited for; it reads these shards."""
        return self._run(self.next_plan(*shards))

    def _run(self, end):
        rows = self.execute(end)
        self.commit(end, rows)
        return rows

    def plans(self, batches_max=60, idle_max=10):
        """The next offsets until nothing is left: no shard came or went, and each has told that it has nothing."""
        idle_count = 0
        for _ in range(batches_max):
            if (end := self.plan()) is not None:
                yield end
                continue
            joined = self.reader._planner._joined
            query_worker, shards = joined.query_worker, joined.shards
            held = shards.shard_ids
            if not query_worker.wait_until_at_rest(10):
                continue
            if (end := self.plan()) is not None:  # something came from what was under way
                yield end
                continue
            idle_count += 1
            is_told = all(state.is_probed for state in shards.states.values())
            if (is_told and shards.shard_ids == held) or idle_count > idle_max:
                return
        pytest.fail(f"still reading after {batches_max} batches")

    def drain(self, batches_max=60, idle_max=10):
        """Run batches until nothing is left."""
        for end in self.plans(batches_max, idle_max):
            self._run(end)

    def night(self):
        """Run the query once with AvailableNow, from start to end, in a process of its own; gives the rows.

        Where Spark does not tell starts it runs one batch, and a batch that was repeated is the only one.
        """
        self.reader = self.fresh()
        if self.is_told_starts:
            self.reader.prepareForTriggerAvailableNow()
        before = len(self.rows)
        while (end := self._look()) is not None:
            self._run(end)
            if not self.is_told_starts:
                break
        self.reader.stop()
        return self.rows[before:]

    def numbers(self):
        return sorted(row[3] for row in self.rows)

    def stop(self):
        for reader in self.readers:
            reader.stop()
