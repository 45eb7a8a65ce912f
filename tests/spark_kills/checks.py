"""What must hold over a whole run, whatever was killed: each check takes a history and returns what is wrong with it."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from dataclasses import dataclass, field

from penstock.core.batches.offsets import parse_offset
from penstock.errors import PositionError


@dataclass(frozen=True)
class Row:
    """One row of one batch."""

    batch: int
    shard: str
    sequence_number: int
    sub_sequence_number: int
    key: str
    data: str


@dataclass
class History:
    """A run.

    Attributes:
        put: (key, data) in the order in which they were put.
        rows: What the batches hold in the end.
        executions: Of each batch, count and hash of every execution, also of those that died later.
        parents: Shard id to its parents' ids.
        offsets: The lines that Spark logged, by batch number.
        copied: (key, data) of the copy, by shard, in the order in which they stand there.
    """

    put: list[tuple[str, str]] = field(default_factory=list)
    rows: list[Row] = field(default_factory=list)
    executions: dict[int, list[tuple[int, str]]] = field(default_factory=dict)
    parents: dict[str, tuple[str, ...]] = field(default_factory=dict)
    offsets: dict[int, str] = field(default_factory=dict)
    copied: list[tuple[str, str]] = field(default_factory=list)


def differing_replays(history):
    """Batches of which two executions held different rows."""
    return sorted(batch for batch, told in history.executions.items() if len(set(told)) > 1)


def miscounted_batches(history):
    """Batches that hold another number of rows than the first action on them saw."""
    counts = Counter(row.batch for row in history.rows)
    return sorted(
        batch for batch, told in history.executions.items() if {count for count, _ in told} != {counts[batch]}
    )


def lost(history):
    """Records that were put and are in no batch."""
    return sorted(Counter(history.put) - Counter((row.key, row.data) for row in history.rows))


def repeated(history):
    """Records that are in the batches more often than they were put."""
    return sorted(Counter((row.key, row.data) for row in history.rows) - Counter(history.put))


def children_too_early(history):
    """Shards of which a record comes in the batch of a parent's last record, or before it."""
    first, last = {}, {}
    for row in history.rows:
        first[row.shard] = min(first.get(row.shard, row.batch), row.batch)
        last[row.shard] = max(last.get(row.shard, row.batch), row.batch)
    return sorted(
        shard
        for shard, parents in history.parents.items()
        if any(shard in first and parent in last and first[shard] <= last[parent] for parent in parents)
    )


def keys_out_of_order(history):
    """Keys whose records come in another order than they were put."""
    wanted, found = defaultdict(list), defaultdict(list)
    for key, data in history.put:
        wanted[key].append(data)
    for row in sorted(
        history.rows, key=lambda row: (row.batch, row.sequence_number, row.sub_sequence_number)
    ):
        found[row.key].append(row.data)
    return sorted(key for key in wanted if found[key] != wanted[key])


def bad_offsets(history):
    """Batches whose logged offset is not canonical, or whose number does not rise."""
    bad, before = [], -1
    for number, text in sorted(history.offsets.items()):
        try:
            document = json.loads(text)
            offset = parse_offset(document)
        except (ValueError, PositionError):
            bad.append(number)
            continue
        document.pop("report", None)  # what Spark 4.0 and 4.1 do not ask for by itself
        if json.dumps(document) != json.dumps(offset.to_json()) or offset.batch < before:
            bad.append(number)
        before = offset.batch
    return bad


def not_copied(history):
    """Records that the sink did not write."""
    return sorted(set(history.put) - set(history.copied))


def copied_out_of_order(history):
    """Keys whose first copies come in another order than the records were put."""
    wanted, found = defaultdict(list), defaultdict(dict)
    for key, data in history.put:
        wanted[key].append(data)
    for key, data in history.copied:
        found[key].setdefault(data)
    return sorted(key for key in wanted if list(found[key]) != wanted[key])


CHECKS = (
    differing_replays,
    miscounted_batches,
    lost,
    repeated,
    children_too_early,
    keys_out_of_order,
    bad_offsets,
    not_copied,
    copied_out_of_order,
)


def everything_wrong(history, checks=CHECKS):
    """Return each check that found something, with the first few of it."""
    found = {check.__name__: check(history) for check in checks}
    return {name: (len(wrong), wrong[:5]) for name, wrong in found.items() if wrong}
