"""Rows and writes of the lease table, and what each write may do to each row."""

from __future__ import annotations

from msgspec.structs import replace

from penstock.aws.lease_codec import write_item
from penstock.core.hash_key import FULL_RANGE
from penstock.core.leases.lease import (
    BatchClaim,
    Lease,
    LeaseTerm,
    PastClaim,
    SeenClaim,
    StopNote,
    TipMark,
    WorkerRun,
)
from penstock.core.leases.lease_rules import apply_write
from penstock.core.leases.lease_writes import (
    Applied,
    Checkpoint,
    Claim,
    Create,
    Delete,
    End,
    LateCheckpoint,
    Promote,
    Release,
    Renew,
    RequestHandover,
    Reset,
    Take,
)
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

ME, OTHER, KEY = "me", "other", "shardId-0"
PINNED = Position(sentinel=Sentinel.LATEST, timestamp_ms=77)
CHECKPOINTS = [
    TRIM_HORIZON,
    LATEST,
    PINNED,
    at_timestamp(5),
    at_record("9"),
    at_record("9", 4),
    at_record("10"),
    at_record("99"),
    at_record("100", 2),
    SHARD_END,
]
STREAM, ANOTHER = StreamIdentity("arn:one", 5), StreamIdentity("arn:one", 6)
TIP = TipMark(at_record("10", 1), 123)
RUN = WorkerRun(3, "8f2c000000aa")


def claim(batch, end, sub=0, *, start="10", worker=ME, run="r1", note=b"\x01note"):
    places = [place if isinstance(place, Position) else at_record(place, sub) for place in (start, end)]
    earlier = (PastClaim(batch - 1, TRIM_HORIZON, PINNED, "r0"),)
    return BatchClaim(worker, batch, run, *places, note, 7, earlier, planned_by=run)


BASE = Lease(KEY, counter=7, owner=ME, checkpoint=at_record("10", 1), owner_switches=2, hash_range=FULL_RANGE)
ROWS = [
    None,
    *[replace(BASE, checkpoint=checkpoint) for checkpoint in CHECKPOINTS],
    replace(BASE, owner=None),
    replace(BASE, owner=OTHER, parents=frozenset({"a", "b"}), children=frozenset({"c"})),
    replace(BASE, owner=OTHER, checkpoint_owner=ME),
    replace(BASE, owner=ME, checkpoint_owner=OTHER),
    replace(BASE, counter=8, run=RUN),
    replace(BASE, run=WorkerRun(2, "8f2c000000bb")),
    replace(
        BASE,
        pending_checkpoint=at_record("11", 3),
        pending_checkpoint_state=b"\x00\xff",
        claims=(claim(4, "11", 3),),
    ),
    replace(BASE, pending_checkpoint=PINNED, claims=(claim(4, PINNED),), checkpoint=PINNED),
    replace(BASE, claims=(claim(4, "11", 3), claim(5, "12", worker=OTHER)), throughput_kbps=1.5),
    replace(BASE, claims=(claim(5, "12", worker="a:b/c#1"), claim(4, "11", run="r2"))),
    replace(BASE, claims=(claim(6, "50", 2),), stream=STREAM, mark=TipMark(at_record("10", 1), 99)),
    replace(BASE, stop_note=StopNote(ME, "handler_failed: ValueError: no"), term=LeaseTerm(ME, 60_000)),
    replace(BASE, owner=OTHER, stop_note=StopNote(OTHER, "data_loss: gone"), checkpoint_owner=ME),
    replace(BASE, stream=ANOTHER, mark=TipMark(at_record("9"))),
    replace(BASE, pending_checkpoint=at_record("9"), claims=(claim(4, "9"),)),
    replace(BASE, pending_checkpoint=SHARD_END, claims=(claim(4, SHARD_END),)),
    replace(
        BASE,
        owner=OTHER,
        checkpoint_owner=ME,
        pending_checkpoint=at_record("11", 3),
        claims=(claim(4, "11", 3),),
    ),
]
WRITES = [
    Create(Lease(KEY, checkpoint=at_timestamp(9), parents=frozenset({"p"}), hash_range=FULL_RANGE)),
    Create(Lease(KEY)),
    Take(KEY, 7, ME),
    Take(KEY, 7, "third"),
    Take(KEY, 6, ME),
    Take(KEY, 7, ME, run=RUN),
    Take(KEY, 7, ME, pin_ms=88),
    Take(KEY, 7, "third", stream=STREAM),
    Renew(KEY, 7, ME, tip=TIP, stream=STREAM),
    Renew(KEY, 7, ME, tip=TipMark(at_record("11"))),
    Checkpoint(KEY, 7, ME, at_record("11"), tip_ms=55),
    Release(KEY, 7, ME, at_record("11"), tip=TipMark(at_record("11"), 55)),
    Release(KEY, 7, ME, at_record("11"), tip=TIP),
    Release(KEY, 7, ME, tip=TIP),
    Renew(KEY, 7, ME),
    Renew(KEY, 7, ME, stopped_reason="read_failed: no", term_ms=45_000),
    Renew(KEY, 7, OTHER),
    Renew(KEY, 7, ME, run=RUN),
    Renew(KEY, 6, ME),
    Renew(KEY, 7, ME, throughput_kbps=2.25),
    Renew(KEY, 7, ME, during_handover=True),
    Renew(KEY, 7, OTHER, during_handover=True),
    *[Checkpoint(KEY, 7, ME, position) for position in CHECKPOINTS],
    Checkpoint(KEY, 7, OTHER, at_record("11")),
    Checkpoint(KEY, 6, ME, at_record("100")),
    *[LateCheckpoint(KEY, position) for position in CHECKPOINTS],
    *[
        LateCheckpoint(KEY, at_record("11"), SeenClaim(worker, identity))
        for worker, identity in ((ME, (4, "r1")), (ME, (4, "r2")), (ME, None), ("a:b/c#1", (5, "r1")))
    ],
    End(KEY, 7, ME),
    End(KEY, 7, ME, frozenset({"x", "y"})),
    End(KEY, 7, OTHER),
    End(KEY, 8, ME),
    *[
        Release(KEY, 7, ME, position)
        for position in (None, at_record("10", 1), at_record("10"), at_record("11"), SHARD_END, TRIM_HORIZON)
    ],
    Release(KEY, 7, ME, at_record("11"), next_owner="third"),
    Release(KEY, 7, ME, next_owner="third"),
    Release(KEY, 7, ME, next_owner=ME),
    Release(KEY, 7, "third"),
    RequestHandover(KEY, ME, "third"),
    RequestHandover(KEY, OTHER, "third"),
    *[
        Claim(KEY, written, seen, before, tip_ms, dropped, stream)
        for written, seen, before, tip_ms, dropped, stream in [
            (claim(5, "50", 2, start=at_record("10", 1)), at_record("10", 1), None, None, (), None),
            (claim(5, "50", start="20"), at_record("10", 1), (4, "r1"), None, (), STREAM),
            (claim(5, "50", start="20"), at_record("10", 1), (4, "r1"), 77, ((OTHER, 5),), None),
            (claim(5, "50", start="20"), at_record("10", 1), (4, "r2"), 77, (("a:b/c#1", 5),), None),
            (claim(4, "50", start="20"), at_record("10", 1), None, 77, (), STREAM),
            (claim(6, SHARD_END, start="9"), at_record("10", 1), None, None, (), None),
            (claim(6, TRIM_HORIZON, start=TRIM_HORIZON), TRIM_HORIZON, None, None, (), None),
            (claim(6, PINNED, start=PINNED), PINNED, (4, "r1"), None, (), None),
            (claim(6, "50", start=PINNED), PINNED, None, None, (), None),
            (claim(6, "50", start="20"), at_timestamp(5), None, 66, (), None),
            (claim(6, "50", worker=OTHER), at_record("10", 1), None, None, (), None),
            (claim(6, "50", start="50", worker=OTHER, note=b""), TRIM_HORIZON, (5, "r1"), None, (), None),
            (claim(6, "50", start="50", note=b""), TRIM_HORIZON, None, 66, ((OTHER, 5),), ANOTHER),
        ]
    ],
    *[
        Promote(KEY, worker, batch, position)
        for worker, batch, position in [
            (ME, 4, at_record("11", 3)),
            (ME, 4, at_record("11", 2)),
            (ME, 4, at_record("9")),
            (ME, 4, PINNED),
            (ME, 4, SHARD_END),
            (ME, 5, at_record("11", 3)),
            (OTHER, 4, at_record("11", 3)),
        ]
    ],
    *[Delete(KEY, 7, position) for position in CHECKPOINTS],
    Delete(KEY, 6, at_record("10", 1)),
    *[Reset(KEY, 7, position) for position in CHECKPOINTS],
    Reset(KEY, 6, TRIM_HORIZON),
    Reset(KEY, 7, TRIM_HORIZON, claim_worker=ME),
    Reset(KEY, 7, at_record("9"), claim_worker=ME, claim=claim(3, "10", start="9")),
    Reset(KEY, 7, at_record("9"), claim_worker=ME, has_later_records=True),
    Reset(KEY, 7, TRIM_HORIZON, claim_worker=ME, has_later_records=True),
]


def lay(server, table, row):
    """Let exactly this row stand."""
    client = server.client("dynamodb")
    if row is None:
        client.delete_item(TableName=table.name, Key={"leaseKey": {"S": KEY}})
    else:
        client.put_item(TableName=table.name, Item={**write_item(row), "unknown": {"S": "stays"}})


def same(lease, other):
    """Whether two rows agree in everything, also the moments that equality of positions leaves out."""
    return lease == other and (
        lease is None
        or (str(lease.checkpoint), str(lease.pending_checkpoint))
        == (str(other.checkpoint), str(other.pending_checkpoint))
    )


def differences(dynamo, pairs):
    """Return what the table did otherwise than the pure rule, for pairs of a row and a write."""
    server, table = dynamo
    differing, standing = [], object()  # nothing stands yet
    for row, write in pairs:
        if row is not standing:
            lay(server, table, row)
        expected, got = apply_write(row, write), table.write(write)
        if isinstance(expected, Applied):
            # The row after an update comes back with its answer; after a put or a delete it is read.
            after = table.fetch(KEY) if isinstance(write, Create | Delete) else got.lease
            fits = isinstance(got, Applied) and same(after, expected.lease)
        else:
            fits = got == expected
        if not fits:
            differing.append((row, write, expected, got))
        standing = object() if isinstance(got, Applied) else row
    return differing
