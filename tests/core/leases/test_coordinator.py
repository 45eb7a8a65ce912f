"""The lease coordinator as a machine: events in, effects out, exact answers."""

import pytest
from msgspec.structs import replace

from core.leases.coordinator_bench import LEFT, RIGHT, WHOLE, Bench, Table
from penstock.core.leases.coordinator_effects import (
    AuditReaders,
    CheckpointWritten,
    EnsureTable,
    ExtendDelivery,
    FetchLease,
    Level,
    ListShards,
    Report,
    ScanTable,
    StartReader,
    Stopped,
    StopReader,
    StopWhy,
    Topic,
    WriteLease,
)
from penstock.core.leases.coordinator_events import (
    UNKNOWN,
    CallFailed,
    CheckpointRequested,
    LeaseCall,
    ListingDone,
    NotDone,
    Problem,
    ReaderFailed,
    ReaderProgress,
    ReadersFound,
    ReaderStopped,
    ScanDone,
    ShardDrained,
    StopRequested,
    TableReady,
    Tick,
    WriteDone,
)
from penstock.core.leases.coordinator_options import CoordinatorOptions, cold_start_jitter_s
from penstock.core.leases.held_lease_phases import LeasePhase
from penstock.core.leases.lease import Lease, SeenClaim, TipMark
from penstock.core.leases.lease_writes import (
    Applied,
    Checkpoint,
    Create,
    Delete,
    End,
    LateCheckpoint,
    Refusal,
    Refused,
    Release,
    Renew,
    RequestHandover,
    Take,
)
from penstock.core.position import LATEST, SHARD_END, TRIM_HORIZON, at_record
from penstock.core.shard import ChildShard, Shard
from penstock.core.starting import StartingPosition
from penstock.core.stream_identity import StreamIdentity
from penstock.errors import OptionError


def child(key, *parents, span=WHOLE):
    return ChildShard(key, tuple(parents), span)


def holding(**options):
    """A bench that holds and reads lease `s`."""
    bench = Bench(Lease("s", hash_range=WHOLE), **options)
    bench.start()
    assert bench.machine.lease_phases() == {"s": LeasePhase.READING}
    return bench


# --- options ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("lease_duration_s", 0),
        ("round_interval_s", 0.0),
        ("scanned_rows_per_s_max", 0.0),
        ("max_leases", 0),
        ("leases_to_acquire", 0),
        ("handover_timeout_s", 0.0),
        ("cold_start_jitter_s", -1.0),
    ],
)
def test_a_bad_option_is_named_with_its_value(name, value):
    with pytest.raises(OptionError, match=f"{name}={value}"):
        CoordinatorOptions(**{name: value})


# --- starting ---------------------------------------------------------------------------------------------


def test_it_begins_with_the_table_then_a_scan():
    bench = Bench()
    assert bench.feed(Tick()) == [EnsureTable()]
    assert bench.feed(TableReady()) == [ScanTable()]


def test_a_table_that_cannot_be_made_is_reported_and_tried_again_later():
    bench = Bench()
    bench.feed(Tick())
    effects = bench.feed(CallFailed(LeaseCall.ENSURE, Problem.REFUSED, "no permission"))
    assert [effect.topic for effect in effects] == [Topic.CALL_FAILED]
    assert 0 < bench.machine.next_wake_s <= bench.options.interval_s


@pytest.mark.parametrize(
    ("open_shards", "jitter_s"), [(0, 0.0), (4, 0.04), (100, 1.0), (500, 5.0), (20_000, 5.0)]
)
def test_the_wait_on_an_empty_table_grows_with_the_number_of_shards(open_shards, jitter_s):
    assert cold_start_jitter_s(5.0, open_shards) == pytest.approx(jitter_s)
    assert cold_start_jitter_s(0.5, open_shards) == pytest.approx(min(0.5, jitter_s))


def test_an_empty_table_is_looked_at_twice_before_the_shards_are_listed_once():
    bench = Bench(start=StartingPosition(default=LATEST))
    bench.listing = (Shard("a", LEFT), Shard("b", RIGHT))
    bench.start()
    assert bench.of(ListShards) == []
    bench.at(bench.options.cold_start_jitter_s)
    assert [effect.filter_type for effect in bench.of(ListShards)] == ["AT_LATEST"]
    assert {write.lease.checkpoint.timestamp_ms for write in bench.writes(Create)} == {1000}
    assert bench.machine.lease_phases() == {"a": LeasePhase.READING, "b": LeasePhase.READING}


def test_fifty_workers_on_an_empty_table_list_the_shards_a_few_times():
    table = Table()
    benches = []
    for number in range(50):
        bench = Bench(worker=f"w{number}")
        bench.table = table
        bench.listing = (Shard("a", LEFT), Shard("b", RIGHT))
        benches.append(bench)
    chances = [(number * 0.61803) % 1 for number in range(50)]
    for bench, chance in zip(benches, chances, strict=True):
        bench.machine.handle(Tick(), 0.0, chance)
        bench.machine.handle(TableReady(), 0.0, chance)
        bench.machine.handle(ScanDone(()), 0.0, chance)
    for bench in sorted(benches, key=lambda bench: bench.machine.next_wake_s):
        bench.at(bench.machine.next_wake_s)
    listings = [len(bench.of(ListShards)) for bench in benches]
    assert max(listings) == 1
    assert sum(listings) == 1
    assert sorted(table.rows) == ["a", "b"]


def test_a_worker_that_finds_another_ones_first_lease_creates_no_more():
    bench = Bench(start=StartingPosition(default=LATEST))
    bench.listing = (Shard("a", LEFT), Shard("b", RIGHT))
    bench.start()
    bench.now = bench.options.cold_start_jitter_s
    scan = bench.feed(Tick())
    assert scan == [ScanTable()]
    (listing,) = [effect for effect in bench.feed(ScanDone(())) if isinstance(effect, ListShards)]
    (create,) = bench.feed(ListingDone(listing.purpose, bench.listing, 2000))
    other = Lease(
        "a", checkpoint=create.write.lease.checkpoint.__class__(sentinel=LATEST.sentinel, timestamp_ms=1500)
    )
    bench.feed(WriteDone(create.write_id, create.write, Refused(Refusal.EXISTS, other)))
    assert [write.lease.key for write in bench.writes(Create)] == ["a"]


def test_a_listing_with_a_hole_creates_nothing_and_says_so():
    bench = Bench()
    bench.listing = (Shard("a", LEFT),)
    bench.start()
    bench.at(bench.options.cold_start_jitter_s)
    assert bench.writes(Create) == []
    assert "hole at hash keys 100.." in bench.reports(Topic.HOLE)[0].message


def starting(**options):
    """A bench on an empty table that has asked for the shards and has no answer yet; beside it the question."""
    bench = Bench(**options)
    bench.start()
    bench.now = bench.options.cold_start_jitter_s
    assert bench.feed(Tick()) == [ScanTable()]
    (listing,) = [effect for effect in bench.feed(ScanDone(())) if isinstance(effect, ListShards)]
    return bench, listing


def test_the_shards_are_not_listed_again_while_a_listing_is_under_way():
    bench, _ = starting()
    bench.now = 20.0
    assert bench.feed(Tick()) == [ScanTable()]
    assert bench.feed(ScanDone(())) == [AuditReaders()]


def test_a_listing_that_comes_twice_starts_the_application_once():
    bench, listing = starting(start=StartingPosition(default=LATEST))
    bench.listing = (Shard("a", LEFT), Shard("b", RIGHT))
    (create,) = bench.feed(ListingDone(listing.purpose, bench.listing, 2000))
    assert bench.feed(ListingDone(listing.purpose, bench.listing, 3000)) == []
    bench.run(WriteDone(create.write_id, create.write, bench.table.write(create.write)))
    bench.at(60.0)
    assert [(write.lease.key, write.lease.checkpoint.timestamp_ms) for write in bench.writes(Create)] == [
        ("a", 2000),
        ("b", 2000),
    ]
    assert bench.machine.lease_phases() == {"a": LeasePhase.READING, "b": LeasePhase.READING}


def test_a_restart_under_the_same_name_renews_its_own_leases_at_once():
    bench = Bench(Lease("s", counter=9, owner="me", checkpoint=at_record("5"), hash_range=WHOLE))
    bench.start()
    assert bench.writes(Renew) == [Renew("s", 9, "me")]
    assert [effect.position for effect in bench.of(StartReader)] == [at_record("5")]
    assert bench.machine.stats.take_counts == () or bench.reports(Topic.TAKEN)[0].reason == "own"


def test_a_kcl_table_is_adopted_as_it_is():
    bench = Bench(
        Lease("p", counter=3, checkpoint=SHARD_END, owner="java", hash_range=WHOLE),
        Lease("s", counter=9, owner="java", checkpoint=at_record("5", 2), parents=frozenset({"p"})),
    )
    bench.start()
    assert bench.writes(Create) == []
    assert bench.writes(Take) == []


# --- taking -----------------------------------------------------------------------------------------------


def test_an_owner_is_dead_when_its_counter_has_stood_still_for_the_lease_duration():
    bench = Bench(Lease("s", counter=4, owner="other", hash_range=WHOLE))
    bench.start()
    bench.at(9.9)
    assert bench.writes(Take) == []
    bench.at(10.6)
    assert bench.writes(Take) == [Take("s", 4, "me")]
    assert bench.reports(Topic.TAKEN)[0].reason == "expired"


def test_a_counter_that_moves_keeps_the_owner_alive():
    bench = Bench(Lease("s", counter=4, owner="other", hash_range=WHOLE))
    bench.start()
    for step in range(1, 40):
        bench.table.rows["s"] = Lease("s", counter=4 + step, owner="other", hash_range=WHOLE)
        bench.at(step * 3.0)
    assert bench.writes(Take) == []


def test_a_take_whose_answer_was_lost_is_found_by_the_next_look():
    bench = Bench(Lease("s", hash_range=WHOLE))
    bench.feed(Tick())
    bench.feed(TableReady())
    effects = bench.feed(ScanDone(tuple(bench.table.rows.values())))
    (take,) = [effect for effect in effects if isinstance(effect, WriteLease)]
    bench.table.write(take.write)
    bench.feed(WriteDone(take.write_id, take.write, UNKNOWN))
    assert bench.machine.lease_phases() == {}
    bench.at(2.0)
    assert bench.machine.lease_phases() == {"s": LeasePhase.READING}


def test_a_newcomer_requests_one_lease_then_its_share_and_waits_for_the_release():
    leases = [Lease(f"s{number}", counter=1, owner="other", hash_range=WHOLE) for number in range(4)]
    bench = Bench(*leases)
    bench.start()
    assert len(bench.writes(RequestHandover)) == 1
    bench.at(7.0)
    assert len(bench.writes(RequestHandover)) == 1
    bench.at(9.5)
    asked = bench.writes(RequestHandover)
    assert len(asked) == 2
    assert {write.owner for write in asked} == {"other"}
    assert bench.machine.lease_phases() == {}
    key = asked[0].key
    bench.table.write(Release(key, 1, "other", at_record("7"), next_owner="me"))
    bench.at(12.0)
    assert bench.machine.lease_phases() == {key: LeasePhase.READING}
    assert [effect.position for effect in bench.of(StartReader)] == [at_record("7")]
    assert [report.reason for report in bench.reports(Topic.TAKEN)] == ["handed_over"]


def test_a_newcomer_whose_first_request_was_refused_soon_requests_another_lease():
    bench = Bench(*[Lease(f"s{number}", counter=1, owner="other", hash_range=WHOLE) for number in range(4)])
    effects = [*bench.feed(Tick()), *bench.feed(TableReady())]
    effects = bench.feed(ScanDone(tuple(bench.table.rows.values())))
    (ask,) = [effect for effect in effects if isinstance(effect, WriteLease)]
    bench.table.write(RequestHandover(ask.write.key, "other", "another"))
    bench.run(WriteDone(ask.write_id, ask.write, bench.table.write(ask.write)))
    bench.at(2.0)
    first, second = bench.writes(RequestHandover)
    assert first.key != second.key
    assert bench.table.rows[second.key].owner == "me"


def test_a_hand_over_that_takes_too_long_is_taken():
    bench = Bench(
        Lease("a", counter=1, owner="other", hash_range=WHOLE),
        Lease("b", counter=1, owner="other", hash_range=WHOLE),
        handover_timeout_s=6.0,
    )
    bench.start()
    (asked,) = bench.writes(RequestHandover)
    for step in range(1, 10):  # the owner lives, and does not answer
        row = bench.table.rows[asked.key]
        if row.owner == "me" and row.checkpoint_owner == "other":
            bench.table.write(Renew(asked.key, row.counter, row.reader, during_handover=True))
        bench.at(step * 1.0)
    assert [write.worker for write in bench.writes(Take)] == ["me"]
    assert [report.reason for report in bench.reports(Topic.TAKEN)] == ["handover_overdue"]


def test_a_reader_whose_answer_could_not_be_read_does_not_count_as_one_that_gives_none():
    leases = [Lease(key, counter=1, owner="other", hash_range=WHOLE) for key in "ab"]
    bench = Bench(*leases, handover_timeout_s=6.0)
    bench.start()
    assert len(bench.writes(RequestHandover)) == 1
    answer, bench.answer = bench.answer, refuse
    bench.at(8.0)
    bench.answer, bench.seen = answer, []
    # The reader: Release, then, since this worker did not come, Take.
    for step in range(9, 20):
        bench.table.rows = {lease.key: replace(lease, counter=10 * step) for lease in leases}
        bench.at(float(step))
    assert bench.writes(Take) == []
    assert bench.writes(RequestHandover) != []


def refuse(effect):
    """Answer a call as a table that denies access."""
    match effect:
        case ScanTable():
            return CallFailed(LeaseCall.SCAN, Problem.REFUSED)
        case FetchLease(key):
            return CallFailed(LeaseCall.FETCH, Problem.REFUSED, key=key)
        case WriteLease(write_id, write):
            return WriteDone(write_id, write, NotDone(Problem.REFUSED))
    return None


def test_a_lease_that_waits_for_its_parents_is_not_read():
    bench = Bench(
        Lease("p", counter=1, owner="other", hash_range=WHOLE),
        Lease("s", counter=1, owner="me", parents=frozenset({"p"}), hash_range=WHOLE),
    )
    bench.start()
    assert bench.machine.lease_phases() == {"s": LeasePhase.WAITING}
    assert bench.of(StartReader) == []
    bench.table.rows["p"] = Lease("p", counter=2, checkpoint=SHARD_END, hash_range=WHOLE)
    bench.at(12.0)
    assert bench.machine.lease_phases() == {"s": LeasePhase.READING}


def test_a_merged_shard_waits_for_a_parent_whose_row_is_missing():
    bench = Bench(
        Lease("p", counter=1, checkpoint=SHARD_END, hash_range=LEFT),
        Lease("s", counter=1, owner="me", parents=frozenset({"p", "q"}), hash_range=WHOLE),
    )
    bench.start()
    assert bench.machine.lease_phases() == {"s": LeasePhase.WAITING}


def test_a_parent_whose_row_was_deleted_by_hand_is_read_before_the_merged_shard():
    bench = Bench(Lease("s", counter=1, owner="me", parents=frozenset({"p", "q"}), hash_range=WHOLE))
    bench.machine.view.on_shards_vanished({"q"})
    bench.listing = (Shard("p", LEFT), Shard("s", WHOLE, ("p", "q")))
    bench.start()
    assert bench.machine.lease_phases() == {"s": LeasePhase.WAITING}
    bench.at(60.0)
    assert bench.machine.lease_phases() == {"s": LeasePhase.WAITING, "p": LeasePhase.READING}
    assert bench.table.rows["p"].checkpoint == TRIM_HORIZON


def test_a_merged_shard_from_another_worker_is_read_although_a_parent_has_left():
    bench = Bench(
        Lease("p", counter=1, checkpoint=SHARD_END, hash_range=LEFT),
        Lease("s", counter=1, owner="me", parents=frozenset({"p", "q"}), hash_range=WHOLE),
        *(Lease(f"x{place}", counter=1, owner=f"w{place}", hash_range=RIGHT) for place in range(9)),
    )
    bench.listing = (Shard("p", LEFT), Shard("s", WHOLE, ("p", "q")))
    bench.start()
    for now in range(
        1, 9
    ):  # the others live and know that the parent has gone, and do not look for its lease
        for place in range(9):
            row = bench.table.rows[f"x{place}"]
            bench.table.rows[f"x{place}"] = replace(row, counter=row.counter + 1)
        bench.at(5.0 * now)
    assert bench.machine.lease_phases() == {"s": LeasePhase.READING}


def test_a_worker_of_a_large_fleet_does_not_wait_long_for_another_one_to_list():
    bench = Bench(
        Lease("p", counter=1, checkpoint=SHARD_END, hash_range=LEFT),
        Lease("s", parents=frozenset({"p", "q"}), hash_range=WHOLE),
        *(Lease(f"x{place}", counter=1, owner=f"w{place}", hash_range=RIGHT) for place in range(9)),
    )
    bench.listing = (Shard("p", LEFT), Shard("s", WHOLE, ("p", "q")))
    bench.start()
    for look in range(1, 7):  # the others live and know that the parent has gone; or they are full
        for place in range(9):
            row = bench.table.rows[f"x{place}"]
            bench.table.rows[f"x{place}"] = replace(row, counter=row.counter + 1)
        bench.now = 33.0 * look
        bench.run(ScanDone(tuple(bench.table.rows.values())))
    assert len(bench.of(ListShards)) == 2
    assert bench.machine.lease_phases() == {"s": LeasePhase.READING}


def test_max_leases_is_kept():
    bench = Bench(*[Lease(f"s{number}", hash_range=WHOLE) for number in range(5)], max_leases=2)
    bench.start()
    bench.at(60.0)
    assert len(bench.machine.lease_phases()) == 2


def test_a_worker_restarted_with_a_smaller_max_leases_finishes_and_frees_the_surplus():
    bench = Bench(
        *[Lease(f"s{number}", counter=1, owner="me", hash_range=WHOLE) for number in range(5)], max_leases=3
    )
    bench.start()
    assert len(bench.of(StartReader)) == 5
    bench.at(9.0)
    stops = bench.of(StopReader)
    assert [stop.why for stop in stops] == [StopWhy.SURPLUS, StopWhy.SURPLUS]
    for stop in stops:
        bench.run(ReaderStopped(stop.key, stop.epoch, at_record("8")))
    freed = {key: row.checkpoint for key, row in bench.table.rows.items() if row.owner is None}
    assert freed == {stop.key: at_record("8") for stop in stops}
    bench.at(60.0)
    assert len(bench.machine.lease_phases()) == 3


def test_an_answer_that_comes_twice_counts_once():
    bench = Bench(Lease("s", hash_range=WHOLE))
    bench.feed(Tick())
    bench.feed(TableReady())
    (take,) = [
        effect
        for effect in bench.feed(ScanDone(tuple(bench.table.rows.values())))
        if isinstance(effect, WriteLease)
    ]
    answer = WriteDone(take.write_id, take.write, bench.table.write(take.write))
    assert [type(effect) for effect in bench.feed(answer)] == [Report, StartReader]
    assert bench.feed(answer) == []


# --- keeping ----------------------------------------------------------------------------------------------


def test_it_renews_at_a_third_of_the_lease_duration():
    bench = holding()
    bench.at(30.0)
    renewals = bench.writes(Renew)
    assert 9 <= len(renewals) <= 13
    assert [write.counter for write in renewals] == list(range(1, len(renewals) + 1))


def test_checkpoints_are_written_with_the_renewal():
    bench = holding()
    bench.run(CheckpointRequested("s", 1, at_record("5")))
    bench.run(CheckpointRequested("s", 1, at_record("8")))
    assert bench.writes(Checkpoint) == []
    bench.at(4.0)
    assert bench.writes(Checkpoint) == [Checkpoint("s", 1, "me", at_record("8"))]
    assert bench.of(CheckpointWritten) == [CheckpointWritten("s", 1, at_record("8"))]


def test_an_urgent_checkpoint_is_written_at_once():
    bench = holding()
    bench.run(CheckpointRequested("s", 1, at_record("5"), urgent=True))
    assert bench.writes(Checkpoint) == [Checkpoint("s", 1, "me", at_record("5"))]


def test_delivery_is_extended_from_the_moment_a_renewal_was_sent():
    bench = holding()
    (start,) = bench.of(StartReader)
    assert start.deliver_until_s == pytest.approx(9.0)
    bench.now = bench.machine.next_wake_s
    sent = bench.now
    (write,) = [effect for effect in bench.feed(Tick()) if isinstance(effect, WriteLease)]
    bench.now += 2.0
    bench.feed(WriteDone(write.write_id, write.write, bench.table.write(write.write)))
    assert bench.of(ExtendDelivery)[-1].deliver_until_s == pytest.approx(sent + 9.0)


def test_a_lease_that_cannot_be_renewed_stops_being_delivered_before_it_expires():
    bench = holding()
    for _ in range(60):
        wake = bench.machine.next_wake_s
        bench.now = max(bench.now, wake)
        for effect in bench.feed(Tick()):
            if isinstance(effect, WriteLease):
                bench.feed(WriteDone(effect.write_id, effect.write, NotDone(Problem.THROTTLED)))
            elif isinstance(effect, ScanTable):
                bench.feed(CallFailed(LeaseCall.SCAN, Problem.THROTTLED))
        if bench.of(StopReader):
            break
    assert bench.of(StopReader) == [StopReader("s", 1, StopWhy.EXPIRED)]
    assert bench.now == pytest.approx(9.0, abs=0.3)
    assert 3 <= len(bench.writes(Renew)) <= 25


def test_an_expired_lease_that_was_not_taken_is_reacquired_after_the_reader_stopped():
    bench = holding()
    bench.now = 20.0
    bench.run(Tick())
    assert bench.machine.lease_phases() == {"s": LeasePhase.WAITING}
    bench.run(ReaderStopped("s", 1, at_record("9")))
    assert bench.machine.lease_phases() == {"s": LeasePhase.READING}
    assert [effect.position for effect in bench.of(StartReader)] == [TRIM_HORIZON, at_record("9")]


def test_after_a_loss_it_is_at_rest_only_when_a_look_has_shown_whose_the_lease_is():
    bench = holding()
    assert bench.machine.is_at_rest
    bench.slow = (Renew,)
    bench.now = 5.0
    (late,) = [effect for effect in bench.run(Tick()) if isinstance(effect, WriteLease)]
    bench.now = 9.5  # the renewal is still in flight, and the lease expires here
    assert StopReader("s", 1, StopWhy.EXPIRED) in bench.run(Tick())
    bench.run(ReaderStopped("s", 1, at_record("9")))
    assert bench.machine.lease_phases() == {}
    # The row has this worker's name, but its last write has no answer: the owner is unknown.
    bench.at(bench.now + 8.0)
    assert not bench.machine.is_at_rest
    bench.run(WriteDone(late.write_id, late.write, NotDone(Problem.THROTTLED)))
    assert not bench.machine.is_at_rest
    bench.slow = ()
    bench.at(bench.now + 8.0)
    assert bench.machine.lease_phases() == {"s": LeasePhase.READING}
    assert bench.machine.is_at_rest


def test_it_is_at_rest_while_it_renews_what_it_holds():
    bench = holding()
    bench.slow = (Renew,)
    bench.now = 5.0
    (renewal,) = [effect for effect in bench.run(Tick()) if isinstance(effect, WriteLease)]
    assert isinstance(renewal.write, Renew)
    assert bench.machine.is_at_rest


def test_a_listing_without_an_answer_is_a_failing_call():
    bench = Bench(cold_start_jitter_s=0.0)
    bench.slow = (ListShards,)
    bench.start()
    bench.at(30.0)
    (failing,) = bench.machine.failing_calls
    assert failing.describe(bench.now).startswith("listing the shards has failed for ")
    assert "no answer for" in failing.answer.detail
    (listing,) = bench.of(ListShards)
    bench.run(ListingDone(listing.purpose, (Shard("s", WHOLE),), 1000))
    assert bench.machine.failing_calls == ()


def test_it_is_not_at_rest_before_rows_without_a_stream_are_compared():
    bench = Bench(Lease("s", hash_range=WHOLE), stream=StreamIdentity("arn:orders", 1000))
    bench.listing = (Shard("s", WHOLE),)
    bench.slow = (ListShards,)
    bench.start()
    assert not bench.machine.is_at_rest
    (listing,) = bench.of(ListShards)
    bench.run(ListingDone(listing.purpose, bench.listing, 1000))
    assert bench.machine.lease_phases() == {"s": LeasePhase.READING}
    assert bench.machine.is_at_rest


@pytest.mark.parametrize(
    "answer", [UNKNOWN, NotDone(Problem.THROTTLED), Refused(Refusal.COUNTER, Lease("s"))]
)
def test_after_a_failed_take_it_is_at_rest_only_when_a_scan_has_shown_the_owner(answer):
    bench = Bench(Lease("s", hash_range=WHOLE))
    bench.slow = (Take,)
    bench.start()
    (take,) = [effect for effect in bench.seen if isinstance(effect, WriteLease)]
    bench.slow = ()
    bench.feed(WriteDone(take.write_id, take.write, answer))
    assert not bench.machine.is_at_rest
    bench.at(bench.now + 15.0)
    assert bench.machine.lease_phases() == {"s": LeasePhase.READING}
    assert bench.machine.is_at_rest


# --- whether every part has a reader ----------------------------------------------------------------------------------


def test_the_lease_of_a_worker_that_has_not_been_seen_to_renew_may_be_read_by_nobody():
    bench = Bench(
        Lease("a", counter=4, owner="other", hash_range=LEFT), Lease("b", hash_range=RIGHT), handover=False
    )
    bench.start()
    assert bench.machine.is_at_rest
    assert bench.machine.describe_unread_part(bench.now) == "other has not renewed the lease of shard a yet"
    bench.table.rows["a"] = replace(bench.table.rows["a"], counter=5)
    bench.at(8.5)
    assert bench.machine.describe_unread_part(bench.now) is None


def test_a_worker_that_has_died_leaves_nothing_unread():
    bench = Bench(Lease("a", counter=4, owner="dead", hash_range=LEFT), Lease("b", hash_range=RIGHT))
    bench.start()
    assert "dead has not renewed" in bench.machine.describe_unread_part(bench.now)
    bench.at(25.0)
    assert bench.machine.lease_phases().keys() == {"a", "b"}
    assert bench.machine.describe_unread_part(bench.now) is None


def test_what_a_worker_has_no_room_for_is_not_its_to_wait_for():
    leases = [Lease("a", hash_range=LEFT), Lease("b", hash_range=RIGHT)]
    assert unread_at_start(*leases, max_leases=1) is None
    assert unread_at_start(*leases) is None
    assert "has no reader yet" in unread_at_start(*leases, leases_to_acquire=1)


def unread_at_start(*leases, **options):
    bench = Bench(*leases, **options)
    bench.start()
    assert bench.machine.is_at_rest
    return bench.machine.describe_unread_part(bench.now)


def test_a_hole_is_unread_until_leases_fill_it():
    bench = Bench(Lease("a", hash_range=LEFT), Lease("p", checkpoint=SHARD_END, hash_range=RIGHT))
    bench.listing = (
        Shard("a", LEFT),
        Shard("p", RIGHT, (), "0", "9"),
        Shard("c", RIGHT, ("p",), "10"),
    )
    bench.start()
    assert (
        bench.machine.describe_unread_part(bench.now)
        == f"no lease covers the hash keys {RIGHT.start}..{RIGHT.end}"
    )
    bench.at(60.0)
    assert bench.machine.lease_phases().keys() == {"a", "c"}
    assert bench.machine.describe_unread_part(bench.now) is None


def test_what_a_shard_without_children_leaves_behind_is_unread():
    bench = Bench(Lease("a", hash_range=WHOLE))
    bench.start()
    assert bench.machine.describe_unread_part(bench.now) is None
    bench.run(ShardDrained("a", 1, ()))  # it has left the stream, and so have its children
    assert bench.machine.is_at_rest
    assert "no lease covers the hash keys" in bench.machine.describe_unread_part(bench.now)


def test_an_open_shard_whose_lease_is_ended_is_left_out_and_not_unread():
    bench = Bench(Lease("a", hash_range=LEFT), Lease("skipped", checkpoint=SHARD_END, hash_range=RIGHT))
    bench.listing = (Shard("a", LEFT), Shard("skipped", RIGHT))
    bench.start()
    assert "no lease covers" in bench.machine.describe_unread_part(bench.now)
    bench.at(60.0)
    assert bench.machine.describe_unread_part(bench.now) is None


def test_a_merged_shard_is_unread_until_the_lease_of_each_parent_stands():
    bench = Bench(
        Lease("p", checkpoint=SHARD_END, hash_range=LEFT),
        Lease("m", hash_range=WHOLE, parents=frozenset({"p", "q"})),
    )
    bench.listing = (
        Shard("p", LEFT, (), "0", "9"),
        Shard("q", RIGHT, (), "0", "9"),
        Shard("m", WHOLE, ("p", "q"), "10"),
    )
    bench.start()
    assert bench.machine.is_at_rest
    assert (
        bench.machine.describe_unread_part(bench.now)
        == "the lease of shard q is missing, and its child waits for it"
    )
    bench.at(60.0)
    bench.run(ShardDrained("q", 1, ()))
    bench.at(75.0)
    assert bench.machine.lease_phases().keys() == {"m"}
    assert bench.machine.describe_unread_part(bench.now) is None


def test_a_shard_whose_row_cannot_be_read_is_unread():
    bench = Bench(Lease("a", hash_range=LEFT), Lease("b", hash_range=RIGHT))
    bench.listing = (Shard("a", LEFT), Shard("b", RIGHT))
    bench.damaged = {"b": "it lacks checkpoint"}
    bench.start()
    assert "no lease covers" in bench.machine.describe_unread_part(bench.now)
    bench.at(60.0)
    assert (
        bench.machine.describe_unread_part(bench.now)
        == "the row of lease b cannot be read: it lacks checkpoint"
    )


def test_a_lease_that_was_lost_to_another_worker_keeps_nobody_from_rest():
    bench = holding()
    bench.table.rows["s"] = replace(bench.table.rows["s"], owner="other", counter=99)
    bench.at(4.0)
    assert bench.machine.lease_phases() == {}
    assert not bench.machine.is_at_rest
    bench.at(bench.now + 9.0)
    assert bench.machine.is_at_rest


def drive_renewal(bench, outcome_of):
    """Answer the next renewal with a given outcome."""
    bench.now = bench.machine.next_wake_s
    effects = bench.feed(Tick())
    while not any(isinstance(effect, WriteLease) for effect in effects):
        bench.now = bench.machine.next_wake_s
        effects = bench.feed(Tick())
    (write,) = [effect for effect in effects if isinstance(effect, WriteLease)]
    return bench.run(WriteDone(write.write_id, write.write, outcome_of(write.write)))


def test_a_renewal_refused_although_it_was_done_is_no_loss():
    bench = holding()

    def answer(write):
        bench.table.write(write)
        return Refused(Refusal.COUNTER, bench.table.rows["s"])

    drive_renewal(bench, answer)
    assert bench.machine.lease_phases() == {"s": LeasePhase.READING}
    assert len(bench.reports(Topic.READ_BACK)) == 1
    assert bench.reports(Topic.LOST) == []


@pytest.mark.parametrize(
    ("is_done", "outcome"),
    [(True, UNKNOWN), (False, UNKNOWN), (True, Applied(None)), (False, Refused(Refusal.COUNTER, None))],
)
def test_a_renewal_whose_answer_does_not_tell_what_stands_is_read_back(is_done, outcome):
    bench = holding()

    def answer(write):
        if is_done:
            bench.table.write(write)
        return outcome

    effects = drive_renewal(bench, answer)
    assert [effect for effect in effects if isinstance(effect, FetchLease)] == [FetchLease("s")]
    assert bench.machine.lease_phases() == {"s": LeasePhase.READING}
    bench.at(20.0)
    assert bench.reports(Topic.LOST) == []


def test_a_stolen_worker_stops_and_writes_its_last_word_forward_only():
    bench = holding()
    bench.run(CheckpointRequested("s", 1, at_record("5"), urgent=True))
    bench.table.write(Take("s", bench.table.rows["s"].counter, "thief"))
    drive_renewal(bench, bench.table.write)
    assert bench.of(StopReader) == [StopReader("s", 1, StopWhy.LOST)]
    assert bench.reports(Topic.LOST)[0].reason == "taken"
    bench.run(ReaderStopped("s", 1, at_record("8")))
    assert bench.writes(LateCheckpoint) == [LateCheckpoint("s", at_record("8"))]
    row = bench.table.rows["s"]
    assert (row.owner, row.checkpoint) == ("thief", at_record("8"))


def test_a_stolen_reader_that_fails_instead_of_stopping_has_a_last_word_too():
    bench = holding()
    bench.table.write(Take("s", bench.table.rows["s"].counter, "thief"))
    drive_renewal(bench, bench.table.write)
    bench.run(ReaderFailed("s", 1, at_record("8"), "the handler raised", release=True))
    assert bench.writes(LateCheckpoint) == [LateCheckpoint("s", at_record("8"))]
    assert bench.reports(Topic.STOPPED_SHARD) == []
    bench.table.rows["s"] = Lease("s", counter=9, checkpoint=at_record("8"), hash_range=WHOLE)
    bench.at(20.0)  # it is not this shard's failure: this worker may take the lease again at once
    assert bench.machine.lease_phases() == {"s": LeasePhase.READING}


def test_a_table_that_refuses_to_be_written_is_reported_once_and_tried_on():
    bench = holding()
    for _ in range(3):
        drive_renewal(bench, lambda _: NotDone(Problem.REFUSED, "AccessDeniedException"))
    (report,) = bench.reports(Topic.CALL_FAILED)
    assert (report.level, report.key, report.reason) == (Level.ERROR, "s", "refused")
    assert "AccessDeniedException" in report.message
    bench.at(30.0)
    assert bench.machine.lease_phases() == {"s": LeasePhase.READING}
    assert bench.reports(Topic.LOST) == []


def test_a_checkpoint_that_the_table_is_ahead_of_is_dropped_and_the_lease_kept():
    bench = holding()
    bench.table.write(LateCheckpoint("s", at_record("50")))
    bench.run(CheckpointRequested("s", 1, at_record("9"), urgent=True))
    bench.at(10.0)
    assert bench.machine.lease_phases() == {"s": LeasePhase.READING}
    assert bench.table.rows["s"].checkpoint == at_record("50")
    assert len(bench.reports(Topic.CHECKPOINT_BEHIND)) == 1


def test_a_refused_checkpoint_that_shows_a_request_stops_the_reader():
    bench = holding()
    bench.table.write(LateCheckpoint("s", at_record("50")))
    bench.table.write(RequestHandover("s", "me", "other"))
    bench.run(CheckpointRequested("s", 1, at_record("9"), urgent=True))
    assert len(bench.reports(Topic.CHECKPOINT_BEHIND)) == 1
    assert bench.machine.lease_phases() == {"s": LeasePhase.STOPPING}


def test_another_process_under_the_same_name_is_named_as_such():
    bench = holding()
    for _ in range(3):
        bench.table.write(Renew("s", bench.table.rows["s"].counter, "me"))
    drive_renewal(bench, bench.table.write)
    (report,) = bench.reports(Topic.LOST)
    assert report.level is Level.ERROR
    assert "same worker id" in report.message


def test_losing_one_lease_leaves_the_others_alone():
    bench = Bench(Lease("a", hash_range=LEFT), Lease("b", hash_range=RIGHT))
    bench.start()
    bench.table.write(Take("a", 1, "thief"))
    bench.at(6.0)
    assert bench.machine.lease_phases() == {"b": LeasePhase.READING}
    assert [effect.key for effect in bench.of(StopReader)] == ["a"]


def test_a_row_deleted_under_a_holder_is_reported_and_not_brought_back():
    bench = holding()
    del bench.table.rows["s"]
    bench.table.rows["other"] = Lease("other", owner="x", counter=1, hash_range=LEFT)
    bench.at(6.0)
    assert bench.machine.lease_phases() == {}
    assert bench.reports(Topic.ROW_GONE)[0].level is Level.ERROR
    assert "s" not in bench.table.rows


def test_stale_events_of_an_earlier_ownership_are_ignored():
    bench = holding()
    assert bench.run(CheckpointRequested("s", 99, at_record("5"), urgent=True)) == []
    assert bench.run(ReaderStopped("s", 99, None)) == []
    assert bench.run(ReaderFailed("s", 99, at_record("5"), "the handler raised")) == []
    assert bench.run(ShardDrained("s", 99, ())) == []
    assert bench.machine.lease_phases() == {"s": LeasePhase.READING}


# --- the tip ----------------------------------------------------------------------------------------------


def at_tip(bench, position, tip_ms, epoch=1):
    bench.run(ReaderProgress("s", epoch, str(position), 0, tip=TipMark(position, tip_ms)))


def test_the_moment_at_the_tip_goes_to_the_lease_with_the_renewal():
    bench = Bench(Lease("s", counter=3, owner="me", checkpoint=at_record("5"), hash_range=WHOLE))
    bench.start()
    at_tip(bench, at_record("5"), 1000)
    bench.at(4.0)
    assert bench.table.rows["s"].tip_ms_at(at_record("5")) == 1000
    at_tip(bench, at_record("5"), 2000)
    bench.at(8.0)
    assert bench.table.rows["s"].tip_ms_at(at_record("5")) == 2000


def test_a_checkpoint_carries_the_moment_at_the_tip_of_an_earlier_position():
    bench = holding()
    at_tip(bench, at_record("5"), 1000)
    bench.run(CheckpointRequested("s", 1, at_record("8"), urgent=True))
    assert bench.table.rows["s"].tip_ms_at(at_record("8")) == 1000


def test_a_checkpoint_before_the_place_at_the_tip_carries_no_moment():
    bench = holding()
    at_tip(bench, at_record("9"), 1000)
    bench.run(CheckpointRequested("s", 1, at_record("8"), urgent=True))
    row = bench.table.rows["s"]
    assert (row.tip_ms_at(at_record("8")), row.has_foreign_checkpoint) == (None, False)


def test_a_release_hands_the_moment_at_the_tip_on():
    bench = Bench(Lease("s", counter=3, owner="me", checkpoint=at_record("5"), hash_range=WHOLE))
    bench.start()
    bench.run(StopRequested())
    bench.run(ReaderStopped("s", 1, at_record("5"), TipMark(at_record("5"), 3000)))
    row = bench.table.rows["s"]
    assert (row.owner, row.tip_ms_at(at_record("5"))) == (None, 3000)


def test_a_query_tells_a_moment_once_so_that_a_claim_is_not_overwritten():
    bench = Bench(
        Lease("s", counter=3, owner="me", checkpoint=at_record("5"), hash_range=WHOLE), keeps_claims=True
    )
    bench.start()
    at_tip(bench, at_record("5"), 1000)
    bench.at(4.0)
    later = TipMark(at_record("9"), 5000)
    bench.table.rows["s"] = replace(bench.table.rows["s"], checkpoint=at_record("9"), mark=later)
    bench.at(12.0)
    assert bench.table.rows["s"].mark == later


# --- handing over -----------------------------------------------------------------------------------------


def test_the_loser_finishes_checkpoints_and_releases_for_the_next_owner_in_one_write():
    bench = holding()
    bench.table.write(RequestHandover("s", "me", "next"))
    bench.at(4.0)
    assert bench.of(StopReader) == [StopReader("s", 1, StopWhy.HANDOVER)]
    bench.at(8.0)
    assert all(write.during_handover for write in bench.writes(Renew)[-1:])
    counter = bench.table.rows["s"].counter
    bench.run(ReaderStopped("s", 1, at_record("8")))
    assert bench.writes(Release) == [Release("s", counter, "me", at_record("8"), "next")]
    row = bench.table.rows["s"]
    assert (row.owner, row.checkpoint_owner, row.checkpoint) == ("next", None, at_record("8"))
    assert bench.machine.lease_phases() == {}


def test_a_reader_that_stops_for_a_hand_over_is_not_stopped_twice():
    bench = holding()
    bench.table.write(RequestHandover("s", "me", "next"))
    bench.at(4.0)
    bench.now = 20.0
    bench.feed(Tick())
    assert bench.machine.lease_phases() == {}
    assert [report.reason for report in bench.reports(Topic.LOST)] == ["expired"]
    assert bench.of(StopReader) == [StopReader("s", 1, StopWhy.HANDOVER)]


def test_an_interrupted_hand_over_is_completed_after_a_restart():
    bench = Bench(Lease("s", counter=5, owner="next", checkpoint_owner="me", hash_range=WHOLE))
    bench.start()
    assert bench.writes(Release) == [Release("s", 5, "me", None, "next")]
    assert bench.of(StartReader) == []


# --- the end of a shard -----------------------------------------------------------------------------------


def test_children_are_created_then_the_end_is_written_then_they_are_taken():
    bench = holding()
    bench.run(ShardDrained("s", 1, (child("a", "s", span=LEFT), child("b", "s", span=RIGHT))))
    kinds = [type(effect.write).__name__ for effect in bench.seen if isinstance(effect, WriteLease)]
    assert kinds == ["Take", "Create", "Create", "End", "Take", "Take"]
    assert bench.table.rows["s"].checkpoint == SHARD_END
    assert bench.table.rows["s"].children == {"a", "b"}
    assert bench.machine.lease_phases() == {"a": LeasePhase.READING, "b": LeasePhase.READING}
    assert [effect.position for effect in bench.of(StartReader)] == [TRIM_HORIZON] * 3


def test_no_more_children_are_taken_than_max_leases_allows():
    bench = holding(max_leases=1)
    bench.run(ShardDrained("s", 1, (child("a", "s", span=LEFT), child("b", "s", span=RIGHT))))
    assert len(bench.machine.lease_phases()) == 1
    bench.at(60.0)
    assert len(bench.machine.lease_phases()) == 1
    assert bench.of(StopReader) == []


def test_the_end_waits_until_every_child_is_certain():
    bench = holding()
    effects = bench.feed(ShardDrained("s", 1, (child("a", "s", span=LEFT), child("b", "s", span=RIGHT))))
    first, second = [effect for effect in effects if isinstance(effect, WriteLease)]
    bench.feed(WriteDone(first.write_id, first.write, bench.table.write(first.write)))
    bench.feed(WriteDone(second.write_id, second.write, UNKNOWN))
    assert bench.writes(End) == []
    bench.at(3.0)
    assert len(bench.writes(End)) == 1


@pytest.mark.parametrize("keeps_claims", [False, True])
def test_a_held_childs_lease_is_renewed_after_its_creation_was_answered(keeps_claims):
    bench = Bench(
        Lease("s", counter=0, owner="me", hash_range=WHOLE),
        Lease("a", counter=0, owner="me", parents=frozenset({"s"}), hash_range=WHOLE),
        keeps_claims=keeps_claims,
    )
    bench.start()
    (create,) = [
        effect
        for effect in bench.feed(ShardDrained("s", 1, (child("a", "s"),)))
        if isinstance(effect, WriteLease)
    ]
    # Another process under this worker's name ends the shard; the creation is not answered while the next renewal is due.
    bench.table.rows["s"] = replace(bench.table.rows["s"], owner=None, counter=9, checkpoint=SHARD_END)
    bench.at(8.0)
    assert bench.machine.lease_phases() == {"a": LeasePhase.READING}
    renewed = len([write for write in bench.writes(Renew) if write.key == "a"])
    bench.run(WriteDone(create.write_id, create.write, bench.table.write(create.write)))
    bench.at(8.5)
    assert len([write for write in bench.writes(Renew) if write.key == "a"]) == renewed + 1
    bench.at(60.0)
    assert bench.machine.lease_phases() == {"a": LeasePhase.READING}


def test_a_merged_child_is_not_taken_before_its_other_parent_has_ended():
    bench = Bench(
        Lease("s", counter=0, owner="me", hash_range=LEFT),
        Lease("t", counter=1, owner="other", hash_range=RIGHT),
    )
    bench.start()
    bench.run(ShardDrained("s", 1, (child("m", "s", "t"),)))
    assert bench.table.rows["s"].checkpoint == SHARD_END
    assert bench.table.rows["m"].owner is None


def test_a_merged_child_is_not_created_while_its_other_parent_has_no_lease():
    bench = Bench(
        Lease("s", counter=0, owner="me", hash_range=LEFT), Lease("g", counter=1, owner="x", hash_range=RIGHT)
    )
    bench.start()
    bench.run(ShardDrained("s", 1, (child("m", "s", "t"),)))
    assert bench.writes(Create) == []
    assert bench.machine.lease_phases() == {"s": LeasePhase.DRAINED}
    for now in range(1, 9):  # the worker that reads the other parent's parent lives
        bench.table.rows["g"] = replace(bench.table.rows["g"], counter=1 + now)
        bench.at(5.0 * now)
    assert bench.machine.is_at_rest
    assert {report.level for report in bench.reports(Topic.HOLE)} == {Level.INFO}
    bench.table.rows["t"] = Lease("t", counter=1, owner="x", parents=frozenset({"g"}), hash_range=RIGHT)
    bench.table.rows["g"] = Lease("g", counter=3, checkpoint=SHARD_END, hash_range=RIGHT)
    bench.at(60.0)
    assert [write.lease.key for write in bench.writes(Create)] == ["m"]


def test_the_last_record_of_a_finished_shard_is_a_checkpoint_while_its_end_waits():
    bench = Bench(
        Lease("s", counter=0, owner="me", hash_range=LEFT), Lease("g", counter=1, owner="x", hash_range=RIGHT)
    )
    bench.start()
    bench.run(ShardDrained("s", 1, (child("m", "s", "t"),), at_record("8")))
    assert bench.writes(Checkpoint) == []
    bench.at(5.0)
    assert bench.machine.lease_phases() == {"s": LeasePhase.DRAINED}
    assert bench.table.rows["s"].checkpoint == at_record("8")


def test_a_merged_child_is_created_although_its_other_parent_has_left():
    bench = Bench(
        Lease("s", counter=0, owner="me", hash_range=LEFT),
        *(Lease(f"x{place}", counter=1, owner=f"w{place}", hash_range=RIGHT) for place in range(9)),
    )
    bench.listing = (Shard("m", WHOLE, ("s", "t")),)
    bench.start()
    bench.run(ShardDrained("s", 1, (child("m", "s", "t"),)))
    for now in range(1, 12):  # the others live, and a hole falls to one of them
        for place in range(9):
            row = bench.table.rows[f"x{place}"]
            bench.table.rows[f"x{place}"] = replace(row, counter=row.counter + 1)
        bench.at(5.0 * now)
    assert [write.lease.key for write in bench.writes(Create)] == ["m"]
    assert bench.table.rows["s"].checkpoint == SHARD_END


def test_an_end_whose_answer_was_lost_is_read_back():
    bench = holding()
    effects = bench.feed(ShardDrained("s", 1, ()))
    (end,) = [effect for effect in effects if isinstance(effect, WriteLease)]
    bench.table.write(end.write)
    bench.run(WriteDone(end.write_id, end.write, UNKNOWN))
    assert bench.machine.lease_phases() == {}
    assert len(bench.reports(Topic.ENDED)) == 1


# --- missing leases, deletions ----------------------------------------------------------------------------


def test_a_hole_is_filled_after_three_rounds_and_two_listings_that_agree():
    bench = Bench(Lease("a", counter=1, owner="me", checkpoint=at_record("5"), hash_range=LEFT))
    bench.listing = (Shard("a", LEFT), Shard("b", RIGHT))
    bench.start()
    bench.at(60.0)
    assert len(bench.of(ListShards)) == 2
    assert bench.writes(Create) == [Create(Lease("b", hash_range=RIGHT))]
    assert bench.machine.lease_phases() == {"a": LeasePhase.READING, "b": LeasePhase.READING}


def test_a_lease_that_is_being_created_is_not_created_again_while_its_hole_stays():
    bench = Bench(Lease("a", counter=1, owner="me", checkpoint=at_record("5"), hash_range=LEFT))
    bench.listing = (Shard("a", LEFT), Shard("b", RIGHT))
    bench.slow = (Create,)
    bench.start()
    bench.at(120.0)
    assert len(bench.of(ListShards)) > 2
    (create,) = [
        effect for effect in bench.seen if isinstance(effect, WriteLease) and isinstance(effect.write, Create)
    ]
    bench.run(WriteDone(create.write_id, create.write, bench.table.write(create.write)))
    assert bench.machine.lease_phases() == {"a": LeasePhase.READING, "b": LeasePhase.READING}


def test_a_hole_that_a_finished_parent_explains_is_filled_after_one_listing():
    bench = Bench(
        Lease("p", counter=1, checkpoint=SHARD_END, hash_range=WHOLE),
        Lease(
            "a", counter=1, owner="me", checkpoint=at_record("5"), parents=frozenset({"p"}), hash_range=LEFT
        ),
    )
    bench.listing = (Shard("p", WHOLE, (), "1", "9"), Shard("a", LEFT, ("p",)), Shard("b", RIGHT, ("p",)))
    bench.start()
    bench.at(40.0)
    assert len(bench.of(ListShards)) == 1
    assert [(write.lease.key, write.lease.checkpoint) for write in bench.writes(Create)] == [
        ("b", TRIM_HORIZON)
    ]


def test_a_finished_lease_is_deleted_when_its_children_are_past_their_start():
    bench = Bench(
        Lease("p", counter=4, checkpoint=SHARD_END, hash_range=WHOLE),
        Lease(
            "c", counter=1, owner="me", checkpoint=at_record("5"), parents=frozenset({"p"}), hash_range=WHOLE
        ),
    )
    bench.start()
    bench.at(20.0)
    assert bench.writes(Delete) == []
    bench.at(45.0)
    assert bench.writes(Delete) == [Delete("p", 4, SHARD_END)]


@pytest.mark.parametrize("second_has_shard", [False, True])
def test_a_finished_lease_is_deleted_when_two_listings_in_a_row_lack_its_shard(second_has_shard):
    bench = Bench(
        Lease("p", counter=4, checkpoint=SHARD_END, hash_range=WHOLE),
        Lease("s", counter=1, owner="me", parents=frozenset({"p"}), hash_range=WHOLE),
        garbage_interval_s=60.0,
    )
    child_shard = Shard("s", WHOLE, ("p",))
    bench.listing = (child_shard,)
    bench.start()
    while len(bench.of(ListShards)) < 2 and bench.now < 200.0:
        bench.at(bench.now + 8.0)
        assert bench.writes(Delete) == []
        if second_has_shard and bench.of(ListShards):
            bench.listing = (child_shard, Shard("p", WHOLE))
    bench.at(bench.now + 16.0)
    assert len(bench.of(ListShards)) == 2
    assert bench.writes(Delete) == ([] if second_has_shard else [Delete("p", 4, SHARD_END)])


def test_a_deleted_table_is_reported_made_again_and_filled_with_what_was_known():
    bench = Bench(
        Lease("p", counter=4, checkpoint=SHARD_END, hash_range=WHOLE),
        Lease("s", counter=1, owner="me", parents=frozenset({"p"}), hash_range=WHOLE),
        start=StartingPosition(default=LATEST),
    )
    bench.start()
    bench.run(CheckpointRequested("s", 1, at_record("5"), urgent=True))
    bench.at(9.0)
    bench.table.rows.clear()
    bench.feed(Tick())
    bench.now = bench.machine.next_wake_s
    for effect in bench.feed(Tick()):
        if isinstance(effect, WriteLease):
            bench.run(WriteDone(effect.write_id, effect.write, NotDone(Problem.TABLE_MISSING)))
        elif isinstance(effect, ScanTable):
            bench.run(CallFailed(LeaseCall.SCAN, Problem.TABLE_MISSING))
    bench.at(30.0)
    assert bench.reports(Topic.TABLE_GONE)[0].level is Level.ERROR
    assert bench.table.rows["p"].checkpoint == SHARD_END
    assert bench.table.rows["s"].checkpoint == at_record("5")
    assert bench.table.rows["s"].counter > 1_000_000
    assert bench.table.rows["s"].owner == "me"


@pytest.mark.parametrize("created_by_others", [[], ["l"]], ids=["none", "another worker's"])
def test_a_lease_of_a_deleted_table_that_could_not_be_created_is_created_where_it_was(created_by_others):
    bench = Bench(Lease("l", hash_range=LEFT), Lease("r", hash_range=RIGHT))
    bench.listing = (Shard("l", LEFT), Shard("r", RIGHT))
    bench.start()
    for epoch, key in enumerate("lr", 1):
        bench.run(CheckpointRequested(key, epoch, at_record("5"), urgent=True))
    bench.at(7.0)
    rows = dict(bench.table.rows)
    bench.table.rows.clear()
    bench.table.rows.update({key: replace(rows[key], owner="other") for key in created_by_others})
    bench.run(CallFailed(LeaseCall.SCAN, Problem.TABLE_MISSING))
    refused, write = iter(range(9)), bench.table.write  # one refusal more than a creation is repeated
    bench.table.write = lambda each: (
        NotDone(Problem.THROTTLED)
        if isinstance(each, Create) and each.key == "r" and next(refused, None) is not None
        else write(each)
    )
    bench.at(40.0)
    assert next(refused, None) is None
    assert {key: row.checkpoint for key, row in bench.table.rows.items()} == {
        "l": at_record("5"),
        "r": at_record("5"),
    }


def test_a_worker_that_scans_rarely_remembers_the_leases_of_a_deleted_table():
    # The budget allows a scan every 100 s, which is longer than three intervals between scans of a small fleet.
    bench = Bench(Lease("l", hash_range=LEFT), Lease("r", hash_range=RIGHT), scanned_rows_per_s_max=0.02)
    bench.listing = (Shard("l", LEFT), Shard("r", RIGHT))
    bench.start()
    for epoch, key in enumerate("lr", 1):
        bench.run(CheckpointRequested(key, epoch, at_record("5"), urgent=True))
    bench.at(60.0)
    del bench.table.rows["r"]  # another worker has created "l" in a new table
    bench.table.rows["l"] = replace(bench.table.rows["l"], owner="other")
    bench.run(CallFailed(LeaseCall.SCAN, Problem.TABLE_MISSING))
    bench.at(300.0)
    assert bench.table.rows["r"].checkpoint == at_record("5")


@pytest.mark.parametrize("others_have_read_on", [True, False])
def test_a_worker_that_stood_still_leaves_a_deleted_table_to_those_that_have_read_on(others_have_read_on):
    bench = Bench(Lease("p", hash_range=WHOLE))
    bench.start()
    bench.run(CheckpointRequested("p", 1, at_record("5"), urgent=True))
    bench.at(7.0)
    bench.table.rows.clear()
    bench.now += 3600.0  # meanwhile others have read p and its children, which were merged into m
    bench.run(CallFailed(LeaseCall.SCAN, Problem.TABLE_MISSING))
    bench.at(bench.now + 0.5 * bench.options.interval_s)
    assert bench.table.rows == {}
    merged = Lease("m", 3, "other", at_record("90"), parents=frozenset("lr"), hash_range=WHOLE)
    if others_have_read_on:
        bench.table.rows["m"] = merged
    bench.at(bench.now + 5.0 * bench.options.interval_s)
    if others_have_read_on:
        assert bench.table.rows.keys() == {"m"}
    else:
        assert bench.table.rows["p"].checkpoint == at_record("5")


def test_leases_with_renewals_in_flight_come_back_at_their_checkpoints_when_the_table_is_emptied():
    bench = Bench(Lease("l", hash_range=LEFT), Lease("r", hash_range=RIGHT))
    bench.listing = (Shard("l", LEFT), Shard("r", RIGHT))
    bench.start()
    for epoch, key in enumerate("lr", 1):
        bench.run(CheckpointRequested(key, epoch, at_record("5"), urgent=True))
    bench.table.rows.clear()
    bench.slow = (Renew,)
    bench.at(7.0)
    left, right = (effect for effect in bench.of(WriteLease) if isinstance(effect.write, Renew))
    bench.slow = ()
    bench.run(WriteDone(left.write_id, left.write, bench.table.write(left.write)))
    bench.at(8.5)  # the scan of the emptied table
    assert bench.table.rows.keys() == {left.write.key}
    bench.run(WriteDone(right.write_id, right.write, Refused(Refusal.MISSING, None)))
    bench.at(40.0)
    assert {key: row.checkpoint for key, row in bench.table.rows.items()} == {
        "l": at_record("5"),
        "r": at_record("5"),
    }
    assert bench.reports(Topic.HOLE) == []


def test_a_table_deleted_behind_a_split_comes_back_with_what_ended_since():
    bench = Bench(Lease("p", hash_range=WHOLE))
    bench.start()
    children = (ChildShard("l", ("p",), LEFT), ChildShard("r", ("p",), RIGHT))
    bench.run(ShardDrained("p", 1, children))
    bench.table.rows.clear()
    bench.now = bench.machine.next_wake_s
    for effect in bench.feed(Tick()):
        bench.run(WriteDone(effect.write_id, effect.write, NotDone(Problem.TABLE_MISSING)))
    bench.at(9.0)
    assert {key: row.is_ended for key, row in bench.table.rows.items()} == {"p": True, "l": False, "r": False}


def test_a_lease_that_others_have_ended_and_cleared_is_not_brought_back():
    bench = Bench(Lease("p", counter=3, owner="other", hash_range=WHOLE))
    bench.start()
    del bench.table.rows["p"]
    for key, part in (("l", LEFT), ("r", RIGHT)):
        begun = Lease(key, 3, "other", at_record("5"), parents=frozenset({"p"}), hash_range=part)
        bench.table.rows[key] = begun
    bench.at(20.0)
    assert bench.reports(Topic.TABLE_GONE) == []
    assert "p" not in bench.table.rows


def test_a_scan_while_leases_of_a_deleted_table_are_created_creates_none_again():
    bench = Bench(*[Lease(key, 3, "other", hash_range=part) for key, part in (("l", LEFT), ("r", RIGHT))])
    bench.start()
    bench.table.rows.clear()
    bench.slow = (Create,)
    bench.at(20.0)
    create = next(each for each in bench.of(WriteLease) if isinstance(each.write, Create))
    bench.run(WriteDone(create.write_id, create.write, bench.table.write(create.write)))
    bench.run(ScanDone(()))  # it began before that answer
    assert [write.key for write in bench.writes(Create)] == ["l", "r"]
    assert len(bench.reports(Topic.TABLE_GONE)) == 1


def test_what_is_being_brought_back_is_not_started_anew():
    bench = Bench(Lease("s", counter=3, owner="other", checkpoint=at_record("7"), hash_range=WHOLE))
    bench.listing = (Shard("s", WHOLE),)
    bench.start()
    bench.table.rows.clear()
    bench.slow = (Create,)
    bench.at(20.0)
    assert bench.of(ListShards) == []
    (create,) = [
        effect for effect in bench.seen if isinstance(effect, WriteLease) and isinstance(effect.write, Create)
    ]
    assert create.write.lease.checkpoint == at_record("7")
    bench.run(WriteDone(create.write_id, create.write, bench.table.write(create.write)))
    bench.at(30.0)
    assert [effect.position for effect in bench.of(StartReader)] == [at_record("7")]


def test_skipped_rows_are_reported_once():
    bench = Bench()
    for _ in range(3):
        bench.feed(ScanDone((Lease("s", owner="x", hash_range=WHOLE),), (("leader", "entityType LEADER"),)))
    assert len(bench.reports(Topic.ROW_SKIPPED)) == 1


def test_a_failed_listing_is_asked_again_later():
    bench = Bench()
    bench.start()
    bench.now = 5.0
    effects = bench.feed(Tick())
    effects = bench.feed(ScanDone(()))
    (_listing,) = [effect for effect in effects if isinstance(effect, ListShards)]
    bench.feed(CallFailed(LeaseCall.LIST, Problem.THROTTLED, "slow down"))
    bench.listing = (Shard("a", WHOLE),)
    bench.at(40.0)
    assert bench.machine.lease_phases() == {"a": LeasePhase.READING}


# --- stopping, failing, watching --------------------------------------------------------------------------


def test_a_graceful_stop_checkpoints_and_releases_in_one_write_each():
    bench = holding()
    effects = bench.run(StopRequested())
    assert effects == [StopReader("s", 1, StopWhy.SHUTDOWN)]
    counter = bench.table.rows["s"].counter
    effects = bench.run(ReaderStopped("s", 1, at_record("8")))
    assert bench.writes(Release) == [Release("s", counter, "me", at_record("8"), None)]
    assert effects[-1] == Stopped()
    assert bench.table.rows["s"].owner is None
    assert bench.machine.handle(Tick(), 99.0) == []


def test_a_stop_ends_within_its_bound_although_a_handler_hangs():
    bench = holding(shutdown_timeout_s=5.0)
    bench.run(CheckpointRequested("s", 1, at_record("4")))
    bench.run(StopRequested())
    bench.at(4.9)
    assert bench.of(Stopped) == []
    bench.at(5.0)
    assert bench.table.rows["s"].owner is None
    assert bench.table.rows["s"].checkpoint == at_record("4")
    assert "did not finish" in bench.reports(Topic.SHUTDOWN)[0].message
    bench.at(9.0)
    assert bench.of(Stopped) == [Stopped()]


def test_a_stopping_worker_takes_nothing_more():
    bench = Bench(Lease("a", hash_range=WHOLE))
    bench.feed(Tick())
    bench.feed(TableReady())
    bench.feed(StopRequested())
    assert [
        effect
        for effect in bench.feed(ScanDone((Lease("a", hash_range=WHOLE),)))
        if isinstance(effect, WriteLease)
    ] == []


def test_a_lease_that_arrives_while_stopping_is_released():
    bench = Bench(Lease("a", hash_range=WHOLE))
    bench.feed(Tick())
    bench.feed(TableReady())
    (take,) = [
        effect
        for effect in bench.feed(ScanDone((Lease("a", hash_range=WHOLE),)))
        if isinstance(effect, WriteLease)
    ]
    bench.feed(StopRequested())
    bench.run(WriteDone(take.write_id, take.write, bench.table.write(take.write)))
    assert bench.table.rows["a"].owner is None
    assert bench.of(Stopped) == [Stopped()]


def test_a_failed_shard_is_kept_and_said_so_loudly():
    bench = holding()
    bench.run(ReaderFailed("s", 1, at_record("3"), "the handler raised"))
    assert bench.machine.lease_phases() == {"s": LeasePhase.PARKED}
    assert bench.table.rows["s"].checkpoint == at_record("3")
    assert bench.reports(Topic.STOPPED_SHARD)[0].level is Level.ERROR
    bench.at(30.0)
    assert bench.machine.lease_phases() == {"s": LeasePhase.PARKED}


def test_a_failed_shard_can_be_freed_and_is_not_taken_again_at_once():
    bench = holding()
    bench.run(ReaderFailed("s", 1, at_record("3"), "the handler raised", release=True))
    assert bench.table.rows["s"].owner is None
    bench.at(30.0)
    assert bench.machine.lease_phases() == {}


@pytest.mark.parametrize(
    ("behind_ms", "lag"), [(9000, "is 9000 ms behind"), (None, "has not reported how far it is behind")]
)
def test_a_shard_that_is_behind_and_stands_still_is_reported(behind_ms, lag):
    bench = holding(stall_after_s=60.0)
    bench.run(ReaderProgress("s", 1, "5", millis_behind_latest=behind_ms))
    bench.at(59.0)
    assert bench.reports(Topic.STALLED) == []
    bench.at(75.0)
    assert f"shard s {lag} and has not moved" in bench.reports(Topic.STALLED)[0].message


def test_a_quiet_shard_at_its_tip_is_no_stall():
    bench = holding(stall_after_s=20.0)
    for second in range(1, 80):
        bench.run(ReaderProgress("s", 1, "5", millis_behind_latest=0))
        bench.at(float(second))
    assert bench.reports(Topic.STALLED) == []


def test_every_round_asks_for_the_living_readers():
    bench = holding()
    assert len(bench.of(AuditReaders)) == 1
    bench.at(9.0)
    assert len(bench.of(AuditReaders)) == 2


def test_a_held_lease_whose_reader_is_gone_is_read_again():
    bench = holding()
    bench.run(ReadersFound(frozenset()))
    assert bench.reports(Topic.AUDIT) == []
    bench.run(ReadersFound(frozenset()))
    assert len(bench.reports(Topic.AUDIT)) == 1
    assert [effect.epoch for effect in bench.of(StartReader)] == [1, 2]


def test_a_reader_without_a_lease_is_stopped():
    bench = holding()
    bench.run(ReadersFound(frozenset({("s", 1), ("ghost", 7)})))
    assert bench.of(StopReader) == [StopReader("ghost", 7, StopWhy.LOST)]


def test_throughput_is_smoothed_and_written_with_the_renewal():
    bench = holding()
    bench.run(ReaderProgress("s", 1, "5", throughput_kbps=100.0))
    bench.run(ReaderProgress("s", 1, "6", throughput_kbps=50.0))
    bench.at(4.0)
    assert bench.table.rows["s"].throughput_kbps == 75.0


def test_the_figures_tell_the_state_of_the_fleet():
    bench = Bench(
        Lease("done", checkpoint=SHARD_END, hash_range=WHOLE),
        Lease("a", counter=1, owner="other", hash_range=LEFT),
        Lease("b", hash_range=RIGHT),
    )
    bench.start()
    bench.at(9.0)
    stats = bench.machine.stats
    assert (stats.total_leases, stats.ended_leases, stats.worker_count) == (2, 1, 2)
    assert (stats.held_leases, stats.take_counts) == (1, (("unowned", 1),))


def test_rounds_become_rarer_where_few_workers_share_very_many_leases():
    leases = [Lease(f"s{number}", counter=1, owner="other", hash_range=WHOLE) for number in range(200)]
    bench = Bench(*leases, scanned_rows_per_s_max=20.0)
    bench.feed(Tick())
    bench.feed(TableReady())
    bench.feed(ScanDone(tuple(leases)))
    assert bench.machine.next_wake_s >= 0.8 * 200 * 2 / 20


def test_a_recreated_table_that_others_fill_gets_its_lost_leases_back():
    bench = Bench(
        Lease("a", counter=3, owner="other", checkpoint=at_record("7"), hash_range=LEFT),
        Lease("b", counter=3, owner="other", checkpoint=at_record("8"), hash_range=RIGHT),
    )
    bench.start()
    bench.table.rows = {"c": Lease("c", parents=frozenset({"a", "b"}), hash_range=WHOLE)}
    bench.at(9.0)
    assert {key: row.checkpoint for key, row in bench.table.rows.items()} == {
        "a": at_record("7"),
        "b": at_record("8"),
        "c": TRIM_HORIZON,
    }
    held = bench.machine.lease_phases()
    assert (held["a"], held["b"], held.get("c", LeasePhase.WAITING)) == (
        LeasePhase.READING,
        LeasePhase.READING,
        LeasePhase.WAITING,
    )


# --- orders of events that are rare -----------------------------------------------------------------------


def test_a_stopped_readers_position_is_written_although_its_release_was_late():
    bench = holding()
    bench.slow = (Release,)
    bench.run(StopRequested())
    bench.run(ReaderStopped("s", 1, at_record("8")))
    (release,) = [effect for effect in bench.of(WriteLease) if isinstance(effect.write, Release)]
    bench.table.write(Take("s", bench.table.rows["s"].counter, "thief"))
    bench.run(WriteDone(release.write_id, release.write, UNKNOWN))
    assert bench.writes(LateCheckpoint) == [LateCheckpoint("s", at_record("8"))]
    row = bench.table.rows["s"]
    assert (row.owner, row.checkpoint) == ("thief", at_record("8"))


@pytest.mark.parametrize("is_late", [False, True], ids=["after the loss", "after its release was late"])
def test_a_lost_querys_position_is_written_only_beside_the_claim_that_it_saw(is_late):
    bench = holding()
    stopped = ReaderStopped("s", 1, at_record("8"), seen_claim=SeenClaim("me", (4, "run")))
    if is_late:
        bench.slow = (Release,)
        bench.run(StopRequested())
        bench.run(stopped)
        (release,) = [effect for effect in bench.of(WriteLease) if isinstance(effect.write, Release)]
        bench.table.write(Take("s", bench.table.rows["s"].counter, "thief"))
        bench.run(WriteDone(release.write_id, release.write, UNKNOWN))
    else:
        bench.table.write(Take("s", bench.table.rows["s"].counter, "thief"))
        drive_renewal(bench, bench.table.write)
        bench.run(stopped)
    (write,) = bench.writes(LateCheckpoint)
    assert (write.position, replace(write.seen_claim, counter=None)) == (at_record("8"), stopped.seen_claim)
    assert bench.table.rows["s"].checkpoint < at_record("8")


def test_a_shard_that_ends_while_the_worker_stops_leaves_its_children_to_others():
    bench = holding()
    bench.run(StopRequested())
    bench.run(StopRequested())  # a second one changes nothing
    bench.run(ShardDrained("s", 1, (child("c", "s"),)))
    assert bench.table.rows["s"].is_ended
    assert bench.table.rows["c"].owner is None
    assert bench.of(Stopped) == [Stopped()]


def test_a_missing_table_is_reported_and_created_once():
    bench = holding()
    bench.slow = (Renew,)
    bench.at(4.0)
    renewal = bench.of(WriteLease)[-1]
    bench.feed(CallFailed(LeaseCall.SCAN, Problem.TABLE_MISSING))
    bench.feed(WriteDone(renewal.write_id, renewal.write, NotDone(Problem.TABLE_MISSING)))
    assert len(bench.reports(Topic.TABLE_GONE)) == 1
    assert bench.of(EnsureTable) == [EnsureTable(), EnsureTable()]


def test_leases_that_cannot_be_brought_back_yet_are_not_looked_for_without_a_pause():
    bench = holding()
    bench.slow = (Renew,)
    bench.at(4.0)
    bench.table.rows = {"other": Lease("other", owner="thief", counter=3)}
    begin = len(bench.seen)
    bench.at(9.0)
    assert len([effect for effect in bench.seen[begin:] if isinstance(effect, ScanTable)]) <= 3
    assert bench.writes(Create) == []
    assert bench.reports(Topic.TABLE_GONE) == []


def test_a_child_that_another_worker_has_created_counts_for_the_end_of_its_parent():
    bench = holding()
    bench.slow = (Create,)
    bench.run(ShardDrained("s", 1, (child("c", "s"),)))
    create = bench.of(WriteLease)[-1]
    bench.table.rows["c"] = Lease("c", owner="other", counter=1, parents=frozenset({"s"}), hash_range=WHOLE)
    bench.run(WriteDone(create.write_id, create.write, bench.table.write(create.write)))
    assert bench.table.rows["s"].is_ended
    assert bench.reports(Topic.CREATED) == []
    assert bench.writes(Take)[1:] == []  # the first one is of the shard itself


def test_a_lease_that_was_lost_before_its_child_was_created_is_not_ended():
    bench = holding()
    bench.slow = (Create,)
    bench.run(ShardDrained("s", 1, (child("c", "s"),)))
    create = bench.of(WriteLease)[-1]
    bench.table.write(Take("s", bench.table.rows["s"].counter, "thief"))
    bench.at(4.0)
    assert bench.machine.lease_phases() == {}
    bench.run(WriteDone(create.write_id, create.write, bench.table.write(create.write)))
    assert bench.reports(Topic.CREATED)[0].key == "c"
    assert bench.writes(End) == []


def test_progress_of_a_reader_whose_lease_is_gone_is_nobodys():
    bench = holding()
    assert bench.feed(ReaderProgress("s", 99, "7")) == []


@pytest.mark.parametrize("outcome", [UNKNOWN, NotDone(Problem.THROTTLED)])
def test_a_child_that_was_not_created_for_a_lost_lease_is_left_to_its_next_reader(outcome):
    bench = holding()
    bench.slow = (Create,)
    bench.run(ShardDrained("s", 1, (child("c", "s"),)))
    create = bench.of(WriteLease)[-1]
    bench.table.write(Take("s", bench.table.rows["s"].counter, "thief"))
    bench.at(4.0)
    assert bench.feed(WriteDone(create.write_id, create.write, outcome)) == []


def test_shards_that_were_listed_for_an_empty_table_start_nothing_once_it_has_leases():
    bench, listing = starting()
    bench.feed(ScanDone((Lease("a", owner="other", counter=1, hash_range=WHOLE),)))
    assert bench.feed(ListingDone(listing.purpose, (Shard("a", LEFT), Shard("b", RIGHT)), 2000)) == []


def test_a_first_lease_that_cannot_be_created_is_left_to_the_next_round():
    bench, listing = starting()
    effects = bench.feed(ListingDone(listing.purpose, (Shard("a", WHOLE),), 2000))
    tries = 0
    while effects:
        (create,) = effects
        tries += 1
        effects = bench.feed(WriteDone(create.write_id, create.write, NotDone(Problem.THROTTLED)))
    assert tries == 9


def test_a_worker_that_stops_does_not_wait_for_a_reader_that_died():
    bench = Bench(*[Lease(f"s{number}", counter=1, owner="other", hash_range=WHOLE) for number in range(2)])
    bench.start()
    assert len(bench.writes(RequestHandover)) == 1
    bench.run(StopRequested())
    bench.at(9.0)
    assert bench.of(Stopped) == []
    bench.at(12.0)  # the lease duration is 10 s
    assert bench.of(Stopped) == [Stopped()]


def test_a_lease_that_is_given_to_a_worker_that_stops_meanwhile_is_freed_at_once():
    bench = Bench(*[Lease(f"s{number}", counter=1, owner="other", hash_range=WHOLE) for number in range(2)])
    bench.start()
    (asked,) = bench.writes(RequestHandover)
    bench.run(StopRequested())
    bench.table.write(Release(asked.key, 1, "other", at_record("7"), next_owner="me"))
    bench.at(4.0)
    row = bench.table.rows[asked.key]
    assert (row.owner, row.checkpoint) == (None, at_record("7"))
    assert bench.of(Stopped) == [Stopped()]
