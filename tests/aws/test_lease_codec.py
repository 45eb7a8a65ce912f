"""Rows of the lease table: the attributes, types and spelling that Java KCL workers write and read."""

from __future__ import annotations

import pytest

from item_bytes import item_bytes
from penstock.aws.lease_codec import NotALease, read_item, write_item
from penstock.aws.lease_expressions import update_for
from penstock.core.batches.claims import ClaimNote
from penstock.core.hash_key import FULL_RANGE, HashRange
from penstock.core.leases.lease import BatchClaim, Lease, PastClaim, TipMark, WorkerRun
from penstock.core.leases.lease_writes import End
from penstock.core.position import (
    LATEST,
    SHARD_END,
    TRIM_HORIZON,
    Position,
    Sentinel,
    at_record,
    at_timestamp,
)
from penstock.core.stream_identity import StreamIdentity

NEW = {
    "leaseKey": {"S": "shardId-000000000002"},
    "leaseCounter": {"N": "0"},
    "ownerSwitchesSinceCheckpoint": {"N": "0"},
    "checkpoint": {"S": "TRIM_HORIZON"},
    "checkpointSubSequenceNumber": {"N": "0"},
    "parentShardId": {"SS": ["shardId-000000000000", "shardId-000000000001"]},
    "startingHashKey": {"S": "0"},
    "endingHashKey": {"S": "340282366920938463463374607431768211455"},
}
OF_JAVA_3 = {
    **NEW,
    "leaseCounter": {"N": "41"},
    "leaseOwner": {"S": "host-1:b0"},
    "checkpoint": {"S": "49590338271490256608559692538361571095921575989136588898"},
    "checkpointSubSequenceNumber": {"N": "3"},
    "ownerSwitchesSinceCheckpoint": {"N": "2"},
    "childShardIds": {"SS": ["shardId-000000000003"]},
    "pendingCheckpoint": {"S": "49590338271490256608559692538361571095921575989136588899"},
    "pendingCheckpointSubSequenceNumber": {"N": "1"},
    "pendingCheckpointState": {"B": b"\x00state"},
    "checkpointOwner": {"S": "host-0:a9"},
    "throughputKBps": {"N": "10000000"},
    "entityType": {"S": "LEASE"},
    "somethingNew": {"M": {}},
}


def test_a_new_lease_is_written_as_java_writes_it():
    lease = Lease(
        "shardId-000000000002",
        parents=frozenset({"shardId-000000000001", "shardId-000000000000"}),
        hash_range=FULL_RANGE,
    )
    assert write_item(lease) == NEW
    assert read_item(NEW) == lease


def test_every_attribute_of_a_java_row_is_read():
    assert read_item(OF_JAVA_3) == Lease(
        "shardId-000000000002",
        counter=41,
        owner="host-1:b0",
        checkpoint=at_record("49590338271490256608559692538361571095921575989136588898", 3),
        owner_switches=2,
        parents=frozenset({"shardId-000000000000", "shardId-000000000001"}),
        children=frozenset({"shardId-000000000003"}),
        hash_range=FULL_RANGE,
        pending_checkpoint=at_record("49590338271490256608559692538361571095921575989136588899", 1),
        pending_checkpoint_state=b"\x00state",
        checkpoint_owner="host-0:a9",
        throughput_kbps=10_000_000.0,
    )


@pytest.mark.parametrize(
    ("position", "text", "millis"),
    [
        (TRIM_HORIZON, "TRIM_HORIZON", None),
        (LATEST, "LATEST", None),
        (SHARD_END, "SHARD_END", None),
        (at_timestamp(1700000000123), "AT_TIMESTAMP", "1700000000123"),
        (Position(sentinel=Sentinel.LATEST, timestamp_ms=77), "LATEST", "77"),
    ],
)
def test_a_moment_stands_beside_a_plain_sentinel(position, text, millis):
    item = write_item(Lease("k", checkpoint=position))
    assert item["checkpoint"] == {"S": text}
    assert item.get("penstockStartMillis") == (None if millis is None else {"N": millis})
    assert str(read_item(item).checkpoint) == str(position)


def test_a_moment_that_a_java_checkpoint_left_behind_counts_for_nothing():
    item = {**NEW, "checkpoint": {"S": "5"}, "penstockStartMillis": {"N": "77"}}
    assert str(read_item(item).checkpoint) == "5.0"


def test_what_old_writers_leave_out_has_its_default():
    bare = {"leaseKey": {"S": "k"}, "leaseCounter": {"N": "1"}, "checkpoint": {"S": "10"}}
    assert read_item(bare) == Lease("k", counter=1, checkpoint=at_record("10"))


def test_the_number_that_java_writes_for_the_state_of_a_new_lease_is_no_state():
    assert read_item({**NEW, "pendingCheckpointState": {"N": "0"}}).pending_checkpoint_state is None


def test_an_empty_pending_checkpoint_is_none():
    assert read_item({**NEW, "pendingCheckpoint": {"S": ""}}).pending_checkpoint is None


def test_the_hash_range_of_a_lease_is_read_as_numbers():
    item = {**NEW, "startingHashKey": {"S": "9"}, "endingHashKey": {"S": "10"}}
    assert read_item(item).hash_range == HashRange(9, 10)


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"entityType": {"S": "WORKER_METRIC_STATS"}}, "its entityType is WORKER_METRIC_STATS"),
        ({"leaseCounter": {"S": "7"}}, "its leaseCounter is not a number"),
        (
            {"leaseCounter": {"N": float("inf")}},
            "cannot convert float infinity to integer",
        ),  # 1e400 in a lease's object
        ({"leaseCounter": {"N": "1.5"}}, "invalid literal"),
        ({"checkpoint": {"S": "somewhere"}}, "is not a sequence number"),
        ({"checkpoint": {"NULL": True}}, "its checkpoint is not a text"),
        ({"checkpointSubSequenceNumber": {"N": "-1"}, "checkpoint": {"S": "5"}}, "negative"),
        ({"startingHashKey": {"S": "10"}, "endingHashKey": {"S": "9"}}, "not a hash-key range"),
        ({"parentShardId": {"S": "shardId-0"}}, "its parentShardId is not a set of texts"),
        ({"penstockStopped": {"M": {"worker": {"N": "1"}}}}, "something inside one of its attributes"),
        ({"penstockStopped": {"M": {}}}, "it lacks worker"),
    ],
)
def test_a_row_that_cannot_be_a_lease_says_why(change, why):
    with pytest.raises(NotALease, match=why):
        read_item({**NEW, **change})


def test_a_row_of_another_table_lacks_what_a_lease_has():
    with pytest.raises(NotALease, match=r"^it lacks leaseCounter$"):
        read_item({"leaseKey": {"S": "x"}, "colour": {"S": "red"}})


OF_SEVERAL = {
    **NEW,
    "leaseKey": {"S": "123456789012:orders:1700000000:shardId-000000000002"},
    "childShardIds": {"SS": ["shardId-000000000003"]},
    "streamName": {"S": "123456789012:orders:1700000000"},
    "shardId": {"S": "shardId-000000000002"},
}
"""As `DynamoDBMultiStreamLeaseSerializer` writes it: the stream's id stands under the name streamName, and ids are bare."""


def test_a_row_of_one_of_several_streams_names_bare_shards_and_the_lease_their_keys():
    prefix = "123456789012:orders:1700000000:shardId-"
    lease = Lease(
        f"{prefix}000000000002",
        parents=frozenset({f"{prefix}000000000001", f"{prefix}000000000000"}),
        children=frozenset({f"{prefix}000000000003"}),
        hash_range=FULL_RANGE,
    )
    assert write_item(lease) == OF_SEVERAL
    assert read_item({**OF_SEVERAL, "entityType": {"S": "LEASE"}}) == lease


def test_the_end_of_a_shard_of_one_of_several_streams_names_its_children_as_java_does():
    prefix = "123456789012:orders:1700000000:shardId-"
    end = End(f"{prefix}0", 7, "me", frozenset({f"{prefix}2", f"{prefix}1"}))
    assert {"SS": ["shardId-1", "shardId-2"]} in update_for(end).values.values()


# --- claims -----------------------------------------------------------------------------------------------------

FIRST = 49590338271490256608559692538361571095921575989136588898


def place(batch, sub=0):
    """Where a batch of half a minute begins: record numbers grow by some 2^88 in that time."""
    return at_record(str(FIRST + batch * (2**88 + 12345)), sub)


@pytest.mark.parametrize(
    ("start", "end", "earlier"),
    [
        (
            place(4, 7),
            place(5, 3),
            [(3, place(3), place(4, 7)), (1, place(2), place(3)), (0, TRIM_HORIZON, place(2))],
        ),
        (place(4), place(4), [(3, place(4), place(4))]),
        (place(5), place(4), [(3, place(1), place(2))]),
        (at_record("7"), SHARD_END, [(2, SHARD_END, SHARD_END), (1, at_record("3"), at_record("9", 1))]),
        (TRIM_HORIZON, place(1), [(3, at_timestamp(5), TRIM_HORIZON), (2, LATEST, at_timestamp(5))]),
        (at_record("007"), at_record("9"), [(1, at_record("0006"), at_record("007"))]),
        (place(1), place(2), []),
    ],
    ids=[
        "one after the other",
        "nothing read",
        "backwards",
        "the shard's end",
        "no records",
        "leading zeros",
        "the first",
    ],
)
def test_a_claim_comes_back_with_the_ranges_before_it(start, end, earlier):
    claim = BatchClaim("w", 4, "run", start, end, b"note", 5, tuple(PastClaim(*each) for each in earlier))
    item = write_item(Lease("shard", claims=(claim,)))
    (found,) = read_item(item).claims
    assert found == claim
    texts = [(str(past.start), str(past.end)) for past in (claim, *claim.earlier)]
    assert [(str(past.start), str(past.end)) for past in (found, *found.earlier)] == texts


@pytest.mark.parametrize(
    ("planners", "text"),
    [
        (["run", "run", "run"], "="),
        (["run", "other", "other"], "= other"),
        (["other", "run", None], "other = ?"),
        ([None, None, "first"], "? ? first"),
        (["other"], "other"),
        ([None, None], None),
    ],
)
def test_a_claim_says_who_planned_its_batch_and_those_before(planners, text):
    first, *others = planners
    earlier = tuple(PastClaim(3 - gap, place(1), place(2), planner) for gap, planner in enumerate(others))
    claim = BatchClaim("w", 4, "run", place(3), place(4), b"", 5, earlier, first)
    item = write_item(Lease("shard", claims=(claim,)))
    document = item["penstockClaim:w"]["M"]
    assert document.get("by", {}).get("S") == text
    assert read_item(item).claims == (claim,)


def test_a_run_that_cannot_be_read_is_none():
    item = {
        **write_item(Lease("shard", run=WorkerRun(3, "8f2c01ab12cd"))),
        "penstockRun": {"S": "of a later version"},
    }
    assert read_item(item).run is None


def test_a_query_s_row_costs_one_write_unit_at_its_largest():
    note = ClaimNote(
        has_more=True,
        tip_ms=1767312000000,
        record_count=12_345,
        bytes_count=12_345_678,
        millis_behind_latest=12_345,
        last_arrival_ms=1767312000000,
        query="5f2a90c1-d7be-4d6e-9fcd-0123456789ab",
        process="5f2a90c1d7",
    )
    past = tuple(
        PastClaim(1233 - number, place(4 - number, 44), place(5 - number, 44), "5f2a90c1d7be")
        for number in range(4)
    )
    claim = BatchClaim(
        "spark-5f2a90c1d7be",
        1234,
        "5f2a90c1d7be",
        place(5, 44),
        place(6, 44),
        note.to_bytes(),
        1767312000000,
        past,
        "5f2a90c1d7be",
    )
    lease = Lease(
        "shardId-000000000001",
        counter=123_456,
        owner=claim.worker,
        checkpoint=claim.start,
        hash_range=HashRange(2**127, 2**128 - 1),
        pending_checkpoint=claim.end,
        claims=(claim,),
        mark=TipMark(claim.start, 1767312000000),
        run=WorkerRun(1234, "8f2c01ab12cd"),
        stream=StreamIdentity(
            "arn:aws:kinesis:eu-central-1:123456789012:stream/orders-by-customer", 1767225600000
        ),
    )
    assert item_bytes(write_item(lease)) <= 1024


def test_a_row_with_a_large_attribute_is_reported_in_a_line():
    with pytest.raises(NotALease) as raised:
        read_item(
            {
                "leaseKey": {"S": "k"},
                "leaseCounter": {"N": "9" * 300_000},
                "checkpoint": {"S": "TRIM_HORIZON"},
            }
        )
    assert len(str(raised.value)) < 400
    with pytest.raises(NotALease) as raised:
        read_item({"entityType": {"S": "x" * 300_000}})
    assert len(str(raised.value)) < 400
