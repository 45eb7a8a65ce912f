import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

import penstock.core.leases.lease_writes as writes
from penstock.core.hash_key import FULL_RANGE
from penstock.core.leases.lease import (
    BatchClaim,
    Lease,
    LeaseTerm,
    SeenClaim,
    StopNote,
    TipMark,
    new_lease,
)
from penstock.core.leases.lease_rules import apply_write, may_move
from penstock.core.leases.lease_writes import (
    Applied,
    Checkpoint,
    Claim,
    Create,
    Delete,
    End,
    LateCheckpoint,
    Promote,
    Refusal,
    Refused,
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
    at_record,
    at_timestamp,
    parse_checkpoint,
)
from penstock.core.shard import Shard
from penstock.core.stream_identity import StreamIdentity

SCENARIOS = json.loads((Path(__file__).parents[2] / "scenarios" / "lease_writes.json").read_text())


# --- the cases as data ------------------------------------------------------------------------------------


def a_position(text):
    name, _, rest = text.replace(".", ":").partition(":")
    if name.isdigit():
        return at_record(name, int(rest))
    return parse_checkpoint(name, timestamp_ms=int(rest) if rest else None)


def a_claim(document):
    return BatchClaim(**{name: a_value(name, value) for name, value in document.items()})


READERS = {
    **dict.fromkeys(
        ("checkpoint", "pending_checkpoint", "position", "end", "start", "checkpoint_seen"), a_position
    ),
    **dict.fromkeys(("parents", "children"), frozenset),
    **dict.fromkeys(("pending_checkpoint_state", "note"), str.encode),
    **dict.fromkeys(("mark", "tip"), lambda value: TipMark(a_position(value["position"]), value["tip_ms"])),
    "stop_note": lambda value: StopNote(**value),
    "term": lambda value: LeaseTerm(**value),
    "claim": a_claim,
    "claims": lambda value: tuple(a_claim(claim) for claim in value),
    "stream": lambda value: StreamIdentity(**value),
    "claim_seen": tuple,
    "seen_claim": lambda value: SeenClaim(value["worker"], tuple(value["identity"])),
    "dropped_claims": lambda value: tuple(tuple(claim) for claim in value),
}


def a_value(name, value):
    return READERS[name](value) if value is not None and name in READERS else value


def a_lease(document):
    return Lease(**{name: a_value(name, value) for name, value in document.items()})


def a_write(kind, document):
    if kind == "Create":
        return Create(a_lease(document["lease"]))
    return getattr(writes, kind)(**{name: a_value(name, value) for name, value in document.items()})


@pytest.mark.parametrize("case", SCENARIOS["cases"], ids=lambda case: case["says"])
def test_a_write_gives_exactly_this_answer(case):
    row = None
    if case["from"] is not None:
        row = a_lease({**SCENARIOS["rows"][case["from"]], **case.get("but", {})})
    outcome = apply_write(row, a_write(*case["write"]))
    if "refused" in case:
        assert outcome == Refused(Refusal[case["refused"]], row)
    elif case["becomes"] == "deleted":
        assert outcome == Applied(None)
    else:
        changes = {name: a_value(name, value) for name, value in case["becomes"].items()}
        assert outcome == Applied(Lease(**changes) if row is None else replace(row, **changes))
        # Each attribute that a case lists must differ: a case that lists an unchanged one would hide a change.
        assert row is None or all(getattr(row, name) != value for name, value in changes.items())


def test_the_cases_cover_every_write_and_every_refusal():
    kinds = {case["write"][0] for case in SCENARIOS["cases"]}
    assert kinds == {kind.__name__ for kind in writes.LeaseWrite.__args__}
    assert {case.get("refused") for case in SCENARIOS["cases"]} - {None} == set(Refusal.__members__)
    missing = {case["write"][0] for case in SCENARIOS["cases"] if case.get("refused") == "MISSING"}
    assert missing == kinds - {"Create"}


# --- rules that hold for every row and every write --------------------------------------------------------

WORKERS = st.sampled_from(["me", "they", "we"])
RECORDS = st.builds(
    at_record, st.sampled_from(["9", "10", "99", "100", "2" * 56]), st.integers(min_value=0, max_value=2)
)
STARTS = st.sampled_from([TRIM_HORIZON, LATEST, at_timestamp(5), replace(LATEST, timestamp_ms=7)])
POSITIONS = st.one_of(RECORDS, STARTS, st.just(SHARD_END))
COUNTERS = st.integers(min_value=0, max_value=3)
NUMBERS = st.integers(min_value=0, max_value=3)
STREAMS = st.sampled_from([StreamIdentity("arn:a", 1), StreamIdentity("arn:b", 1)])
MARKS = st.builds(TipMark, RECORDS, st.none() | st.just(7))
CLAIMS = st.builds(
    BatchClaim, WORKERS, NUMBERS, st.just("r1"), POSITIONS, POSITIONS, st.sampled_from([b"", b"n"])
)
LEASES = st.builds(
    Lease,
    key=st.just("s1"),
    counter=COUNTERS,
    owner=st.none() | WORKERS,
    checkpoint=POSITIONS,
    owner_switches=st.integers(min_value=0, max_value=2),
    checkpoint_owner=st.none() | WORKERS,
    pending_checkpoint=st.none() | RECORDS,
    pending_checkpoint_state=st.none() | st.just(b"note"),
    claims=st.lists(CLAIMS, max_size=2, unique_by=lambda claim: claim.worker).map(tuple),
    mark=st.none() | MARKS,
    stream=st.none() | STREAMS,
)
KEY = st.just("s1")
UPDATES = st.one_of(
    st.builds(Take, KEY, COUNTERS, WORKERS),
    st.builds(Renew, KEY, COUNTERS, WORKERS, st.none() | st.just(2.5), st.booleans()),
    st.builds(Checkpoint, KEY, COUNTERS, WORKERS, POSITIONS),
    st.builds(
        LateCheckpoint,
        KEY,
        POSITIONS,
        st.none() | st.builds(SeenClaim, WORKERS, st.none() | st.tuples(NUMBERS, st.just("r1"))),
    ),
    st.builds(End, KEY, COUNTERS, WORKERS),
    st.builds(Release, KEY, COUNTERS, WORKERS, st.none() | POSITIONS, st.none() | WORKERS),
    st.builds(RequestHandover, KEY, WORKERS, WORKERS),
    st.builds(
        Claim,
        KEY,
        CLAIMS,
        POSITIONS,
        st.none() | st.tuples(NUMBERS, st.just("r1")),
        stream=st.none() | STREAMS,
    ),
    st.builds(Promote, KEY, WORKERS, st.integers(min_value=0, max_value=3), POSITIONS),
    st.builds(Delete, KEY, COUNTERS, POSITIONS),
    st.builds(Reset, KEY, COUNTERS, POSITIONS),
)


@given(LEASES, UPDATES)
def test_no_write_but_an_operators_reset_moves_the_checkpoint_back(row, write):
    outcome = apply_write(row, write)
    if isinstance(outcome, Applied) and outcome.lease is not None and not isinstance(write, Reset):
        assert outcome.lease.checkpoint == row.checkpoint or row.checkpoint < outcome.lease.checkpoint


@given(LEASES, UPDATES)
def test_the_counter_never_goes_back_and_every_owners_write_moves_it(row, write):
    outcome = apply_write(row, write)
    if isinstance(outcome, Applied) and outcome.lease is not None:
        by_others = isinstance(write, LateCheckpoint | RequestHandover | Claim | Promote)
        assert outcome.lease.counter == row.counter + (0 if by_others else 1)


@given(UPDATES)
def test_no_write_but_create_brings_a_row_to_life(write):
    assert apply_write(None, write) == Refused(Refusal.MISSING, None)


@given(LEASES, LEASES)
def test_create_never_touches_a_row_that_stands(row, lease):
    assert apply_write(row, Create(lease)) == Refused(Refusal.EXISTS, row)
    assert apply_write(None, Create(lease)) == Applied(lease)


@given(LEASES, UPDATES)
def test_a_refusal_shows_the_row_as_it_stands(row, write):
    outcome = apply_write(row, write)
    if isinstance(outcome, Refused):
        assert outcome.row == row


@given(LEASES, UPDATES)
def test_only_the_reader_says_that_a_shard_is_done_or_that_its_reader_lives(row, write):
    is_reader_only = isinstance(write, Renew | Checkpoint | End | Release | Promote)
    if is_reader_only and row.reader != write.worker:
        assert isinstance(apply_write(row, write), Refused)


@given(LEASES, UPDATES)
def test_who_is_not_the_reader_claims_nothing_and_moves_nothing(row, write):
    outcome = apply_write(row, write)
    if isinstance(write, Claim) and row.reader != write.claim.worker and isinstance(outcome, Applied):
        assert write.claim.start == write.claim.end
        assert replace(outcome.lease, claims=()) == replace(row, claims=())


@given(LEASES, UPDATES)
def test_no_write_but_its_query_and_an_operator_touches_a_claim(row, write):
    outcome = apply_write(row, write)
    if isinstance(outcome, Applied) and outcome.lease is not None and not isinstance(write, Claim | Reset):
        assert outcome.lease.claims == row.claims


@given(LEASES, UPDATES)
def test_a_checkpoint_of_ours_is_marked_as_ours(row, write):
    outcome = apply_write(row, write)
    if isinstance(outcome, Applied) and outcome.lease is not None and not isinstance(write, Reset):
        moved = outcome.lease.checkpoint != row.checkpoint
        assert not moved or not outcome.lease.has_foreign_checkpoint


@given(LEASES, UPDATES)
def test_a_write_leaves_the_lineage_and_the_key_alone(row, write):
    outcome = apply_write(row, write)
    if isinstance(outcome, Applied) and outcome.lease is not None:
        kept = {"key", "parents", "hash_range"}
        assert all(getattr(outcome.lease, f) == getattr(row, f) for f in Lease.__struct_fields__ if f in kept)


@given(LEASES, UPDATES, UPDATES)
def test_two_owners_writes_from_one_view_never_both_succeed(row, one, other):
    fenced = (Take, Renew, Checkpoint, End, Release, Reset)
    if not (isinstance(one, fenced) and isinstance(other, fenced)):
        return
    first = apply_write(row, replace(one, counter=row.counter))
    if isinstance(first, Applied):
        second = apply_write(first.lease, replace(other, counter=row.counter))
        assert second == Refused(Refusal.COUNTER, first.lease)


# --- small things -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("old", "new", "may"),
    [
        (TRIM_HORIZON, TRIM_HORIZON, True),
        (TRIM_HORIZON, LATEST, False),
        (LATEST, TRIM_HORIZON, False),
        (at_timestamp(5), at_timestamp(6), False),
        (LATEST, at_record("0"), True),
        (at_record("9"), at_record("10"), True),
        (at_record("10"), at_record("9"), False),
        (at_record("10", 1), at_record("10", 1), True),
        (at_record("10", 1), at_record("10", 0), False),
        (at_record("10"), LATEST, False),
        (at_record("10"), SHARD_END, True),
        (TRIM_HORIZON, SHARD_END, True),
        (SHARD_END, SHARD_END, True),
        (SHARD_END, at_record("10"), False),
    ],
)
def test_a_checkpoint_may_move_forwards_or_stay(old: Position, new: Position, may: bool):
    assert may_move(old, new) is may


def test_the_reader_is_the_owner_except_during_a_hand_over():
    assert Lease("s1").reader is None
    assert Lease("s1", owner="me").reader == "me"
    assert Lease("s1", owner="next", checkpoint_owner="me").reader == "me"


def test_a_lease_is_ended_at_the_end_of_its_shard_only():
    assert Lease("s1", checkpoint=SHARD_END).is_ended
    assert not Lease("s1", checkpoint=at_record("9")).is_ended


def test_a_starting_lease_has_no_owner_and_a_counter_of_zero():
    assert new_lease(Shard("s1", FULL_RANGE, ("s0",)), TRIM_HORIZON) == Lease(
        key="s1",
        counter=0,
        owner=None,
        checkpoint=TRIM_HORIZON,
        parents=frozenset({"s0"}),
        hash_range=FULL_RANGE,
    )


def test_create_knows_its_key():
    assert Create(Lease("s7")).key == "s7"


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        (Lease("s", owner="me"), None),
        (Lease("s", owner="me", stop_note=StopNote("me", "no")), "no"),
        (Lease("s", owner="they", checkpoint_owner="me", stop_note=StopNote("me", "no")), "no"),
        # A Java worker took it, and left the attributes that it does not know.
        (Lease("s", owner="java", stop_note=StopNote("me", "no")), None),
        (Lease("s", stop_note=StopNote("me", "no")), None),
    ],
)
def test_only_the_readers_own_word_says_that_a_shard_has_stopped(row, reason):
    assert row.stopped_reason == reason
