"""An on-demand stream grows by its load, with a clock that moves only when the test moves it."""

from __future__ import annotations

from contextlib import contextmanager
from itertools import pairwise
from typing import Any

import pytest
from tests.local.conftest import Rig

from penstock_local import LocalKinesis
from penstock_local.growth import SPLIT_AT, WINDOW_S, grow, used_fraction
from penstock_local.journal import _STREAM, FileJournal
from penstock_local.service_errors import RequestRefused
from penstock_local.shard import Shard
from penstock_local.state_folder import StateFolder
from penstock_local.store import Store, StoreOptions
from queue_rig import QueueRig, knows_queues

MIB = 1024 * 1024
QUARTERS = [i << 126 for i in range(4)]
SETTLE_S = 0.2


@contextmanager
def started(**options):
    with LocalKinesis(time_factor=0, **options) as server, Rig(server) as rig:
        yield rig


def create(rig: Rig, mode: str = "ON_DEMAND") -> str:
    """Create a stream whose four shards are old enough to be measured."""
    shards = {} if mode == "ON_DEMAND" else {"ShardCount": 4}
    rig.kinesis.create_stream(StreamName="s", StreamModeDetails={"StreamMode": mode}, **shards)
    rig.clock.advance(WINDOW_S + 1)
    return rig.summary("s")["StreamARN"]


def load(rig: Rig, seconds: int, *hash_keys: int, size: int = MIB - 1) -> int:
    """Write a record to each hash key each second; return how many were refused."""
    refused = 0
    for _ in range(seconds):
        records = [
            {"Data": bytes(size), "PartitionKey": "k", "ExplicitHashKey": str(key)} for key in hash_keys
        ]
        refused += rig.kinesis.put_records(StreamName="s", Records=records)["FailedRecordCount"]
        rig.clock.advance(1)
    return refused


def test_a_shard_at_half_of_its_quota_is_split_in_the_middle(limited):
    create(limited)
    load(limited, 4, QUARTERS[1])
    assert limited.open_shards("s") == [f"shardId-{i:012}" for i in range(4)]
    limited.kinesis.put_record(
        StreamName="s", Data=bytes(MIB - 1), PartitionKey="k", ExplicitHashKey=str(QUARTERS[1])
    )
    summary = limited.summary("s")
    assert (summary["StreamStatus"], summary["OpenShardCount"]) == ("UPDATING", 4)
    limited.clock.advance(SETTLE_S)
    summary = limited.summary("s")
    assert (summary["StreamStatus"], summary["OpenShardCount"]) == ("ACTIVE", 5)
    children = limited.shards("s")[4:]
    assert [each["ParentShardId"] for each in children] == ["shardId-000000000001"] * 2
    assert [each["HashKeyRange"]["StartingHashKey"] for each in children] == [
        str(QUARTERS[1]),
        str(QUARTERS[1] + (1 << 125)),
    ]
    assert limited.read("s", "shardId-000000000001") == [bytes(MIB - 1)] * 5


def test_records_count_as_bytes_do(limited):
    create(limited)
    records = [{"Data": b"", "PartitionKey": "k", "ExplicitHashKey": "0"}] * 500
    for _ in range(WINDOW_S):
        limited.kinesis.put_records(StreamName="s", Records=records)
        limited.clock.advance(1)
    assert len(limited.open_shards("s")) == 5


def test_a_split_takes_the_records_that_were_refused_before():
    # the same twice: the shards depend on nothing but the calls and the clock
    lineages = []
    for _ in range(2):
        with started() as rig:
            create(rig)
            both = [QUARTERS[0], 1 << 125]
            assert load(rig, 5, *both) == 5
            assert len(rig.open_shards("s")) == 5
            assert load(rig, 2, *both) == 0
            lineages.append([(each["ShardId"], each.get("ParentShardId")) for each in rig.shards("s")])
    assert lineages[0] == lineages[1]
    assert [parent for _, parent in lineages[0][4:]] == ["shardId-000000000000"] * 2


class Stored:
    """An on-demand stream in a store of its own, written without quotas from the end of its first window on."""

    def __init__(self, journal: FileJournal | None = None, *, settle_ms: int = 0, **options: Any) -> None:
        self.now_ms = 1_000_000
        self.store = Store(StoreOptions(settle_ms=settle_ms, **options), journal)
        if journal is not None:
            journal.load(self.store)
        self.stream = self.store.create("s", 4, self.now_ms, mode="ON_DEMAND")
        self.now_ms += settle_ms
        self.store.settle(self.stream, self.now_ms)
        self.now_ms += WINDOW_S * 1000

    def write(self, *sizes: int) -> None:
        """Write a record to each of the first open shards, and let a second pass."""
        batches = [
            (shard, [b"r"], [size]) for shard, size in zip(self.stream.open_shards, sizes, strict=False)
        ]
        self.store.add_records(self.stream, batches, self.now_ms)
        grow(self.store, self.stream, batches, self.now_ms)
        self.now_ms += 1000

    def lineage(self) -> list[tuple[str, ...]]:
        return [shard.parents for shard in self.stream.shards.values()]


def test_load_below_half_of_the_quota_splits_nothing():
    stored = Stored()
    for _ in range(3 * WINDOW_S):
        stored.write(*[MIB // 2 - 1] * 4)
    assert stored.lineage() == [()] * 4


def test_a_short_burst_splits_nothing():
    stored = Stored()
    for _ in range(3):
        for _ in range(4):
            stored.write(*[MIB] * 4)
        stored.now_ms += WINDOW_S * 1000
    assert stored.lineage() == [()] * 4


def test_the_shard_that_is_used_most_is_split_first():
    stored = Stored()
    for _ in range(WINDOW_S - 1):
        stored.write(MIB // 2, MIB // 2, MIB // 2 + 100, MIB // 2)
    assert stored.lineage() == [()] * 4
    stored.write(MIB // 2, MIB // 2, MIB // 2 + 100, MIB // 2)
    assert stored.lineage()[4:] == [("shardId-000000000002",)] * 2


def test_one_shard_is_split_at_a_time():
    stored = Stored(settle_ms=1500)
    counts = []
    for _ in range(9):
        stored.store.settle(stored.stream, stored.now_ms)
        stored.write(*[MIB] * 4)
        counts.append(len(stored.stream.open_shards))
    assert counts == [4, 4, 4, 4, 4, 4, 5, 5, 6]


def test_the_children_are_split_after_a_window_of_their_own():
    stored = Stored()
    opened = {}
    for _ in range(3 * WINDOW_S):
        stored.write(MIB)
        opened.setdefault(len(stored.stream.open_shards), stored.now_ms)
    assert list(opened) == [4, 5, 6, 7]
    moments = list(opened.values())[1:]
    assert [later - earlier for earlier, later in pairwise(moments)] == [(WINDOW_S + 1) * 1000] * 2


def test_a_shard_of_a_few_hash_keys_is_not_split():
    stored = Stored()
    for shard in stored.stream.open_shards:
        shard.hash_end = shard.hash_start + 3
    for _ in range(WINDOW_S):
        stored.write(MIB)
    assert stored.lineage() == [()] * 4


def test_no_shard_is_added_beyond_the_limit_of_the_account():
    stored = Stored(shard_count_max=4)
    for _ in range(WINDOW_S):
        stored.write(MIB)
    assert stored.lineage() == [()] * 4


def test_a_split_that_the_state_folder_refuses_fails_no_write_and_is_tried_again(tmp_path, monkeypatch):
    folder = StateFolder(tmp_path)
    journal = FileJournal(folder)
    stored = Stored(journal)
    append = journal._file.append

    def append_all_but_streams(kind: int, *pieces: bytes) -> None:
        if kind == _STREAM:
            raise RequestRefused("StorageFullException", "full", status=507)
        append(kind, *pieces)

    monkeypatch.setattr(journal._file, "append", append_all_but_streams)
    for _ in range(WINDOW_S):
        stored.write(MIB)
    assert (stored.lineage(), stored.stream.change, stored.stream.status) == ([()] * 4, None, "ACTIVE")
    monkeypatch.undo()
    stored.write(MIB)
    assert len(stored.stream.open_shards) == 5
    journal.close(None)
    folder.close()


def test_a_young_shard_is_not_split():
    shard = Shard(0, 0, 99, created_s=0, opened_ms=1000)
    shard.extend([b"r"], [WINDOW_S * MIB], 1000)
    assert used_fraction(shard, 1000 + WINDOW_S * 1000 - 1) == 0
    # the window has the last ten seconds without their first moment
    assert used_fraction(shard, 1000 + WINDOW_S * 1000) == 0
    shard.extend([b"r"], [WINDOW_S * MIB // 2], 1001)
    assert used_fraction(shard, 1000 + WINDOW_S * 1000) == SPLIT_AT


@pytest.mark.parametrize("options", [{"on_demand_growth": False}, {"limits": False}])
def test_growth_can_be_switched_off(options):
    with started(**options) as rig:
        create(rig)
        load(rig, 5, QUARTERS[0])
        assert len(rig.shards("s")) == 4


def test_a_provisioned_stream_does_not_grow(limited):
    create(limited, "PROVISIONED")
    load(limited, 5, QUARTERS[0])
    assert len(limited.shards("s")) == 4


def test_records_in_turn_are_counted_by_the_shards_that_took_them(limited):
    arn = create(limited)
    limited.kinesis.update_stream_record_distribution_strategy(
        StreamARN=arn, RecordDistributionStrategy="AUTO"
    )
    for _ in range(6):
        limited.kinesis.put_records(StreamName="s", Records=[{"Data": bytes(MIB - 1)}] * 4)
        limited.clock.advance(1)
    assert len(limited.open_shards("s")) > 4


@knows_queues
def test_a_queue_delivers_the_records_of_all_shards(limited):
    queues = QueueRig(limited)
    arn = queues.create()
    limited.clock.advance(WINDOW_S)
    name = limited.kinesis.list_streams()["StreamNames"][0]
    for i in range(6):
        limited.kinesis.put_record(
            StreamName=name,
            Data=bytes([i]) * (MIB - 1),
            PartitionKey="k",
            ExplicitHashKey="0",
        )
        limited.clock.advance(1)
    assert len(limited.open_shards(name)) == 5
    received = set()
    while len(received) < 6:
        records = queues.receive(arn)
        received |= {record["Data"][0] for record in records}
        queues.acknowledge(arn, *records)
    assert received == set(range(6))


def test_the_splits_and_the_measured_load_survive_a_restart(tmp_path):
    with started(state_dir=tmp_path) as rig:
        create(rig)
        load(rig, 6, QUARTERS[0])
        load(rig, 3, QUARTERS[1])
        lineage = rig.shards("s")
        assert len(lineage) == 6
    with started(state_dir=tmp_path) as rig:
        assert rig.shards("s") == lineage
        load(rig, 2, QUARTERS[1])
        assert [each.get("ParentShardId") for each in rig.shards("s")[6:]] == ["shardId-000000000001"] * 2
