"""Packing: what waits becomes Kinesis records of an allowed size, in order."""

from __future__ import annotations

import subprocess
import sys
from collections import deque
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.core.aggregation import deaggregate
from penstock.core.hash_key import HashRange
from penstock.core.writing.batcher import Batcher
from penstock.core.writing.batcher_steps import BatcherSettings
from penstock.core.writing.packing import (
    HASH_KEY_BYTES,
    RECORD_OVERHEAD_BYTES,
    PendingRecord,
    check_record,
    pack_one,
    take_aggregate,
)
from penstock.errors import RecordError

MIB = 2**20


def waiting(*records):
    return deque(PendingRecord(data, key, None) for key, data in records)


def check(data=b"x", key="k", hash_key=None):
    check_record("orders", data, key, hash_key, MIB)


@pytest.mark.parametrize(
    ("data", "key", "hash_key"),
    [
        (b"", "k", None),
        (b"x" * (MIB - 1), "k", None),
        (b"x" * (MIB - 2), "é", None),
        (b"x", "\U0001f680" * 256, None),
        (b"x", "k", "0"),
        (b"x", "k", str(2**128 - 1)),
    ],
)
def test_what_lies_at_a_limit_is_taken(data, key, hash_key):
    check(data, key, hash_key)


@pytest.mark.parametrize(
    ("data", "key", "hash_key", "message"),
    [
        (
            b"x" * MIB,
            "k",
            None,
            "have 1048577 bytes, and the stream takes 1048576.*raise the stream's MaxRecordSize",
        ),
        (b"x" * 10 * MIB, "k", None, "have 10485761 bytes.*into S3.*: no stream takes more than 10 MiB"),
        (b"x" * (MIB - 1), "é", None, "have 1048577 bytes"),
        (b"x", "", None, "the partition key has 0 characters; 1 to 256"),
        (b"x", "é" * 257, None, "the partition key has 257 characters"),
        (b"x", "k", str(2**128), "over the largest one"),
        (b"x", "k", "007", "not a decimal number"),
        (b"x", "\ud83d", None, "not Unicode text"),
    ],
)
def test_what_is_over_a_limit_is_refused_by_name(data, key, hash_key, message):
    with pytest.raises(RecordError, match=message):
        check(data, key, hash_key)


def test_one_record_alone_goes_as_it_is():
    entry = take_aggregate(waiting(("k", b"x")), "shard", 1000, 1000)
    assert (entry.data, entry.partition_key, entry.explicit_hash_key) == (
        b"x",
        "k",
        None,
    )
    assert (entry.size_bytes, entry.is_aggregate) == (2, False)


def test_an_aggregate_always_carries_the_hash_key_of_its_first_record():
    entry = take_aggregate(waiting(("k", b"x"), ("l", b"y")), "shard", 1000, 1000)
    assert entry.partition_key == "a"
    assert entry.explicit_hash_key == str(0x8CE4B16B22B58894AA86C421E8759DF3)
    assert entry.size_bytes == len(entry.data) + 1


def test_a_record_that_must_go_alone_ends_an_aggregate_before_it():
    queue = waiting(("k", b"1"), ("k", b"2"), ("k", b"3"), ("k", b"4"))
    queue[2].is_solo = True
    taken = []
    while queue:
        taken.append([record.data for record in take_aggregate(queue, "shard", 1000, 1000).records])
    assert taken == [[b"1", b"2"], [b"3"], [b"4"]]


def test_an_aggregate_that_is_put_goes_alone_so_that_readers_open_it():
    inner = take_aggregate(waiting(("a", b"x"), ("b", b"y")), "shard", 1000, 1000).data
    queue = waiting(("k", b"1"), ("k", inner), ("k", b"2"), ("k", b"3"))
    taken = []
    while queue:
        taken.append([record.data for record in take_aggregate(queue, "shard", 1000, 1000).records])
    assert taken == [[b"1"], [inner], [b"2", b"3"]]


def test_a_record_larger_than_an_aggregate_goes_alone():
    queue = waiting(("k", b"x" * 2000), ("k", b"1"), ("k", b"2"))
    assert [len(take_aggregate(queue, "shard", 1000, 1000).records) for _ in range(2)] == [1, 2]


@given(
    st.lists(
        st.tuples(st.sampled_from(["a", "bb", "ключ"]), st.binary(max_size=120)), min_size=1, max_size=40
    ),
    st.integers(64, 400),
    st.integers(1, 12),
)
def test_packed_records_come_out_in_order_and_no_aggregate_is_over_its_limits(records, bytes_max, count_max):
    queue = waiting(*records)
    found = []
    while queue:
        entry = take_aggregate(queue, "shard", bytes_max, count_max)
        if entry.is_aggregate:
            assert len(entry.data) <= bytes_max
            assert len(entry.records) <= count_max
            found += [(each.partition_key, each.data) for each in deaggregate(entry.data)]
        else:
            found.append((entry.partition_key, entry.data))
    assert found == records


def test_memory_counts_more_than_the_bytes_of_tiny_records():
    batcher = Batcher(BatcherSettings(), extra_bytes=5)
    batcher.add(b"x", "k", None, 0.0)
    assert batcher.waiting_bytes == 2 + RECORD_OVERHEAD_BYTES + 5
    batcher.add(b"x", "k", "7", 0.0)
    assert batcher.waiting_bytes == 2 * (2 + RECORD_OVERHEAD_BYTES + 5) + HASH_KEY_BYTES


@pytest.mark.parametrize("packing", ["aggregated", "plain"])
@pytest.mark.parametrize("key_count", [1, 10_000])
@pytest.mark.parametrize("hash_key", ["", str(2**127)])
def test_what_tiny_records_count_is_at_least_what_they_take(packing, key_count, hash_key):
    program = Path(__file__).with_name("batcher_memory.py")
    command = [sys.executable, program, packing, str(key_count), hash_key]
    printed = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True).stdout
    counted_bytes, taken_bytes = map(int, printed.split())
    assert 0.7 * counted_bytes < taken_bytes < counted_bytes


def test_a_record_lies_where_its_hash_key_is():
    low = HashRange(0, 2**127 - 1)
    assert PendingRecord(b"", "k", "5").lies_in(low)
    assert not PendingRecord(b"", "k", str(2**128 - 1)).lies_in(low)
    assert pack_one(PendingRecord(b"", "ключ", None), None).size_bytes == 8
