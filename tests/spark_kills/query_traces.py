"""The trace of a query of a kill run, for `model/Batches.tla`: from its lease table, its checkpoint location and its notes."""

from __future__ import annotations

import json
from contextlib import suppress

from lease_logs import parents_of, timed_lease_log
from penstock.core.aggregation import deaggregate
from penstock.core.batches.offsets import parse_offset
from penstock.core.position import at_record
from penstock_sim.model_batch_log import Changed, Committed, Failed, Planned, ReadByAction, trace_of_query
from stream_reading import raw_records

STREAM = "numbers"


def query_trace(folder, server, query, table):
    """Return the trace of a query.

    Args:
        folder: Of the run.
        server: With the stream and the lease table.
        query: Its worker id, which is the name of its files, too.
        table: The lease table.
    """
    entries = [Changed(*change) for change in timed_lease_log(server, table)]
    entries += [*location_entries(folder / "checkpoints" / query), *noted_entries(folder, query)]
    parents, records = parents_of(server, STREAM), records_of(server.client("kinesis"))
    return trace_of_query("a run", query, entries, parents, records)


def numbered_files(folder):
    return {int(file.name): file for file in folder.iterdir() if file.name.isdigit()}


def offsets_of(location):
    """Return the offset of each of Spark's batches, with the number of Penstock's; those that only repeat one are left out."""
    found, before = {}, 0
    for number, file in sorted(numbered_files(location / "offsets").items()):
        offset = parse_offset(json.loads(file.read_text().splitlines()[2]))
        if offset.batch > before:
            found[number] = (file.stat().st_mtime, offset)
            before = offset.batch
    return found


def location_entries(location):
    offsets = offsets_of(location)
    yield from (Planned(at_s, offset) for at_s, offset in offsets.values())
    for number, file in numbered_files(location / "commits").items():
        if number in offsets:
            yield Committed(file.stat().st_mtime, offsets[number][1].batch)


def noted_entries(folder, query):
    offsets = offsets_of(folder / "checkpoints" / query)
    for line in lines_of(folder / f"{query}.jsonl"):
        if line["batch"] in offsets:
            ranges = {
                shard: tuple(at_record(sequence, sub) for sequence, sub in ends)
                for shard, ends in line["shards"].items()
            }
            yield ReadByAction(line["at_s"], offsets[line["batch"]][1].batch, ranges)
    for line in lines_of(folder / "failures.jsonl"):
        if line["query"] == query:
            yield Failed(line["at_s"], line["text"])


def lines_of(path):
    for line in path.read_text().splitlines() if path.exists() else ():
        with suppress(ValueError):  # cut off by a kill
            yield json.loads(line)


def records_of(client):
    """Return the place of every user record, by shard."""
    found = {}
    for shard, records in raw_records(client, STREAM):
        found[shard["ShardId"]] = [
            at_record(record["SequenceNumber"], sub)
            for record in records
            for sub in range(len(deaggregate(record["Data"]) or [record]))
        ]
    return found
