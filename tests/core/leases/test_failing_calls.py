"""Calls about leases that keep failing are reported with the last error, whatever they are, and so is their end."""

import pytest
from tests.core.leases.coordinator_bench import LEFT, RIGHT, WHOLE, Bench

from penstock.core.leases.coordinator_effects import (
    EnsureTable,
    FetchLease,
    Level,
    ListShards,
    ScanTable,
    StopReader,
    Topic,
    Turn,
    WriteLease,
)
from penstock.core.leases.coordinator_events import (
    UNKNOWN,
    CallFailed,
    CheckpointRequested,
    FleetFetched,
    LeaseCall,
    LeaseFetched,
    ListingDone,
    ListingPurpose,
    NotDone,
    OwnLeasesFound,
    Problem,
    ReaderStopped,
    ScanDone,
    TableReady,
    Tick,
    WorkerReported,
    WriteDone,
)
from penstock.core.leases.failing_calls import FailingCalls, call_of
from penstock.core.leases.kcl3_fleet import Kcl3Rows
from penstock.core.leases.lease import Lease
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
from penstock.core.position import TRIM_HORIZON, at_record
from penstock.core.shard import Shard

DENIED = "AccessDenied: UpdateItem on lease table app"
FULL = "Unavailable: file:///leases: cannot write: [Errno 28] No space left on device"


# --- the rule ---------------------------------------------------------------------------------------------


class Calls:
    """The rule alone, with a lease duration of 10 s."""

    def __init__(self):
        self.turn = Turn()
        self.failing = FailingCalls(self.turn, 10.0, 9.0)
        self.sent_s = None

    def at(self, now_s, *events):
        self.turn.begin(0.5)
        for event in events:
            self.failing.on_event(event, now_s, lambda _: self.sent_s)
        return [(report.topic, report.message) for report in self.turn.effects]

    @property
    def lasting(self):
        return [each.call for each in self.failing.lasting_calls()]


def done(write, outcome=None, detail=""):
    return WriteDone(1, write, Applied(None) if outcome is None else outcome, detail)


LEASE = Lease("s", hash_range=WHOLE)
FAILED = NotDone(Problem.UNAVAILABLE, FULL)
WRITES = [
    (LeaseCall.CREATE, Create(LEASE)),
    (LeaseCall.TAKE, Take("s", 1, "me")),
    (LeaseCall.ASK, RequestHandover("s", 1, "me")),
    (LeaseCall.RENEW, Renew("s", 1, "me")),
    (LeaseCall.CHECKPOINT, Checkpoint("s", 1, "me", at_record("5"))),
    (LeaseCall.CHECKPOINT, LateCheckpoint("s", at_record("5"))),
    (LeaseCall.END, End("s", 1, "me", frozenset())),
    (LeaseCall.RELEASE, Release("s", 1, "me", None, None)),
    (LeaseCall.DELETE, Delete("s", 1, TRIM_HORIZON)),
]
READS = [
    (LeaseCall.ENSURE, CallFailed(LeaseCall.ENSURE, Problem.UNAVAILABLE, FULL), TableReady()),
    (LeaseCall.SCAN, CallFailed(LeaseCall.SCAN, Problem.UNAVAILABLE, FULL), ScanDone(())),
    (LeaseCall.FETCH, CallFailed(LeaseCall.FETCH, Problem.UNAVAILABLE, FULL, "s"), LeaseFetched("s", None)),
    (
        LeaseCall.LIST,
        CallFailed(LeaseCall.LIST, Problem.UNAVAILABLE, FULL),
        ListingDone(ListingPurpose.FILL_HOLE, (), 0),
    ),
    (
        LeaseCall.FETCH_FLEET,
        CallFailed(LeaseCall.FETCH_FLEET, Problem.UNAVAILABLE, FULL),
        FleetFetched(Kcl3Rows(), 0.0),
    ),
    (LeaseCall.REPORT, CallFailed(LeaseCall.REPORT, Problem.UNAVAILABLE, FULL), WorkerReported()),
    (LeaseCall.FIND_OWN, CallFailed(LeaseCall.FIND_OWN, Problem.UNAVAILABLE, FULL), OwnLeasesFound(())),
]
EVERY = [(call, done(write, FAILED), done(write)) for call, write in WRITES] + READS


@pytest.mark.parametrize(("call", "failure", "success"), EVERY)
def test_every_call_that_keeps_failing_is_a_problem_with_the_last_error_until_it_succeeds(
    call, failure, success
):
    calls = Calls()
    assert calls.at(0.0, failure) == []
    assert calls.at(5.9, failure) == []
    assert calls.lasting == []
    ((topic, message),) = calls.at(6.0, failure)
    assert topic is Topic.CALL_FAILED
    assert message.startswith(f"{call.value} has failed for 6 s")
    assert message.endswith(FULL)
    assert calls.lasting == [call]
    assert calls.at(65.9, failure) == []
    assert [topic for topic, _ in calls.at(66.0, failure)] == [Topic.CALL_FAILED]
    ((topic, message),) = calls.at(70.0, success)
    assert topic is Topic.CALLS_WORK
    assert message.endswith(f"for 70 s these did: {call.value}")
    assert calls.lasting == []


def test_every_call_has_a_case_here():
    assert {call for call, _, _ in EVERY} == set(LeaseCall)
    assert {call_of(write) for _, write in WRITES} == {call for call, _ in WRITES}


@pytest.mark.parametrize(("call", "failure", "success"), EVERY)
def test_a_blip_of_a_few_seconds_is_no_problem(call, failure, success):
    calls = Calls()
    assert calls.at(0.0, failure) == []
    assert calls.at(5.0, failure, success) == []
    assert calls.at(6.0, failure) == []
    assert calls.lasting == []


@pytest.mark.parametrize("outcome", [Applied(None), Refused(Refusal.COUNTER, None)])
def test_a_condition_that_does_not_hold_is_an_answer(outcome):
    calls = Calls()
    renew = Renew("s", 1, "me")
    for now_s in (0.0, 4.0):
        calls.at(now_s, done(renew, FAILED))
    calls.at(5.0, done(renew, outcome))
    calls.at(6.0, done(renew, FAILED))
    assert calls.lasting == []


def test_writes_whose_outcome_is_unknown_are_failures_with_the_last_error():
    calls = Calls()
    renew = Renew("s", 1, "me")
    calls.at(0.0, done(renew, UNKNOWN, "Read timeout on endpoint URL"))
    ((_, message),) = calls.at(8.0, done(renew, UNKNOWN, "Read timeout on endpoint URL"))
    assert message.endswith("Read timeout on endpoint URL")
    assert calls.lasting == [LeaseCall.RENEW]


def test_answers_that_come_too_late_to_keep_a_lease_are_failures():
    calls = Calls()
    take = Take("s", 1, "me")
    for now_s in (8.0, 24.0):
        calls.sent_s = now_s - 8.0
        calls.at(now_s, done(take))
    (failing,) = calls.failing.lasting_calls()
    assert "the answer came after 8.0 s" in failing.answer.detail
    calls.sent_s = 30.0 - 4.4
    assert [topic for topic, _ in calls.at(30.0, done(take))] == [Topic.CALLS_WORK]


def test_one_write_without_an_answer_is_no_problem_until_it_was_seen_so_twice():
    calls = Calls()
    take = Take("s", 1, "me")
    calls.turn.begin(0.5)
    calls.failing.on_unanswered_write(take, 0.0, 5.9)
    calls.failing.on_unanswered_write(take, 0.0, 3600.0)  # the machine slept
    assert calls.lasting == []
    calls.failing.on_unanswered_write(take, 0.0, 3608.0)
    (failing,) = calls.failing.lasting_calls()
    assert failing.answer.detail == "no answer for 3608 s"


def test_the_end_is_reported_once_when_nothing_fails_any_more():
    calls = Calls()
    renew, take = Renew("s", 1, "me"), Take("s", 1, "me")
    for now_s in (0.0, 7.0):
        calls.at(now_s, done(renew, FAILED), done(take, FAILED))
    assert calls.lasting == [LeaseCall.RENEW, LeaseCall.TAKE]
    assert calls.at(20.0, done(take)) == []
    ((topic, message),) = calls.at(30.0, done(renew))
    assert topic is Topic.CALLS_WORK
    assert message.endswith("for 30 s these did: taking leases, renewing leases")
    assert calls.at(31.0, done(renew), done(take)) == []


def test_a_table_that_fails_now_and_then_is_reported_once_a_minute():
    calls = Calls()
    renew = Renew("s", 1, "me")
    reports = []
    for begin_s in range(0, 60, 10):
        reports += calls.at(begin_s, done(renew, FAILED))
        reports += calls.at(begin_s + 7.0, done(renew, FAILED))
        reports += calls.at(begin_s + 8.0, done(renew))
    assert [topic for topic, _ in reports] == [Topic.CALL_FAILED, Topic.CALLS_WORK]


def test_what_is_refused_for_good_is_reported_at_once_then_each_minute():
    calls = Calls()
    renew = Renew("s", 1, "me")
    refused = done(renew, NotDone(Problem.REFUSED, DENIED))
    assert calls.at(0.0, refused) == [(Topic.CALL_FAILED, f"renewing leases fails (lease s): {DENIED}")]
    assert calls.at(30.0, refused) == []
    assert calls.lasting == [LeaseCall.RENEW]
    assert len(calls.at(60.0, refused)) == 1


def test_a_call_that_is_not_made_any_more_is_forgotten():
    calls = Calls()
    for now_s in (0.0, 7.0):
        calls.at(
            now_s,
            done(Renew("s", 1, "me"), FAILED),
            CallFailed(LeaseCall.FETCH_FLEET, Problem.UNAVAILABLE, FULL),
        )
    calls.failing.forget_old_calls(37.0, 8.0)
    assert calls.lasting == [LeaseCall.RENEW, LeaseCall.FETCH_FLEET]
    calls.failing.forget_old_calls(37.1, 8.0)
    assert calls.lasting == [LeaseCall.FETCH_FLEET]  # made once a minute
    calls.failing.forget_old_calls(307.1, 8.0)
    assert calls.lasting == []


def test_the_listing_of_one_stream_does_not_hide_the_failing_one_of_another():
    calls = Calls()
    for now_s in (0.0, 7.0):
        calls.at(
            now_s,
            CallFailed(LeaseCall.LIST, Problem.UNAVAILABLE, FULL, stream_id="a"),
            ListingDone(ListingPurpose.FILL_HOLE, (), 0, "b"),
        )
    (failing,) = calls.failing.lasting_calls()
    assert failing.describe(7.0).startswith("listing the shards of stream a has failed for 7 s")


# --- a worker ---------------------------------------------------------------------------------------------


class FailingTable(Bench):
    """A table that fails some calls."""

    problem = Problem.REFUSED
    detail = DENIED
    fails: tuple[type, ...] = (WriteLease,)
    failing_writes: tuple[type, ...] = (object,)

    def answer(self, effect):  # noqa: PLR0911 - one case per effect
        if not isinstance(effect, self.fails):
            return super().answer(effect)
        match effect:
            case WriteLease(write_id, write) if isinstance(write, self.failing_writes):
                return WriteDone(write_id, write, NotDone(self.problem, self.detail))
            case FetchLease(key):
                return CallFailed(LeaseCall.FETCH, self.problem, self.detail, key)
            case ScanTable():
                return CallFailed(LeaseCall.SCAN, self.problem, self.detail)
            case EnsureTable():
                return CallFailed(LeaseCall.ENSURE, self.problem, self.detail)
            case ListShards():
                return CallFailed(LeaseCall.LIST, self.problem, self.detail)
        return super().answer(effect)

    @property
    def failing(self):
        return {each.call for each in self.machine.failing_calls}


def test_a_worker_that_may_not_take_a_lease_says_so_once_a_minute():
    bench = FailingTable(Lease("a", hash_range=LEFT), Lease("b", hash_range=RIGHT))
    bench.start()
    (report,) = bench.reports(Topic.CALL_FAILED)
    assert report.level is Level.ERROR
    assert DENIED in report.message
    assert "lease a" in report.message
    bench.at(59.0)
    assert len(bench.reports(Topic.CALL_FAILED)) == 1
    bench.at(90.0)
    assert len(bench.reports(Topic.CALL_FAILED)) == 2
    assert bench.failing == {LeaseCall.TAKE}


def test_a_worker_that_may_not_create_the_first_lease_says_so():
    bench = FailingTable()
    bench.listing = (Shard("s", WHOLE),)
    bench.start()
    bench.at(10.0)
    (report,) = bench.reports(Topic.CALL_FAILED)
    assert DENIED in report.message


def test_a_worker_that_may_not_read_a_row_says_so():
    bench = FailingTable(Lease("child", parents=frozenset({"gone"}), hash_range=WHOLE))
    bench.fails = (FetchLease,)
    bench.start()
    bench.feed(CallFailed(LeaseCall.FETCH, Problem.REFUSED, "AccessDenied: GetItem", "child"))
    (report,) = bench.reports(Topic.CALL_FAILED)
    assert "GetItem" in report.message


@pytest.mark.parametrize(
    ("fails", "call"),
    [
        (WriteLease, LeaseCall.TAKE),
        (ScanTable, LeaseCall.SCAN),
        (EnsureTable, LeaseCall.ENSURE),
    ],
)
def test_a_new_worker_whose_calls_fail_has_a_problem_and_works_when_they_succeed(fails, call):
    bench = FailingTable(Lease("s", hash_range=WHOLE))
    bench.problem, bench.detail, bench.fails = Problem.UNAVAILABLE, FULL, (fails,)
    bench.start()
    assert bench.reports(Topic.CALL_FAILED) == []
    bench.at(30.0)
    assert bench.failing == {call}
    (report,) = bench.reports(Topic.CALL_FAILED)
    assert report.message.endswith(FULL)
    bench.fails = ()
    bench.at(60.0)
    assert bench.failing == set()
    assert list(bench.machine.lease_phases()) == ["s"]
    assert len(bench.reports(Topic.CALLS_WORK)) == 1


def test_a_new_worker_that_cannot_list_the_shards_has_a_problem():
    bench = FailingTable()
    bench.problem, bench.fails = Problem.THROTTLED, (ListShards,)
    bench.start()
    bench.at(60.0)
    assert bench.failing == {LeaseCall.LIST}


def test_a_worker_that_loses_leases_because_writes_fail_names_the_error_and_goes_on_when_they_succeed():
    bench = FailingTable(Lease("a", hash_range=LEFT), Lease("b", hash_range=RIGHT))
    bench.problem, bench.detail, bench.fails = Problem.UNAVAILABLE, FULL, ()
    bench.start()
    bench.at(5.0)
    bench.fails = (WriteLease,)
    bench.at(20.0)
    assert bench.machine.lease_phases() == {}
    assert LeaseCall.RENEW in bench.failing
    lost = [report.message for report in bench.reports(Topic.LOST)]
    assert lost
    for message in lost:
        assert FULL in message
        assert "slow" not in message
    for stop in bench.of(StopReader):
        bench.run(ReaderStopped(stop.key, stop.epoch, None))
    bench.at(120.0)
    assert bench.failing == {LeaseCall.RENEW}  # the rows are in this worker's name
    assert len(bench.reports(Topic.CALL_FAILED)) == 2
    bench.fails = ()
    bench.at(150.0)
    assert len(bench.machine.lease_phases()) == 2
    assert bench.failing == set()
    assert len(bench.reports(Topic.CALLS_WORK)) == 1


def test_a_worker_whose_renewals_get_no_answer_says_so():
    bench = Bench(Lease("s", hash_range=WHOLE))
    bench.start()
    bench.slow = (Renew,)
    bench.at(40.0)
    (report,) = bench.reports(Topic.LOST)
    assert "the lease table has not answered" in report.message
    assert {each.call for each in bench.machine.failing_calls} == {LeaseCall.RENEW}


def test_a_renewal_whose_outcome_is_unknown_is_not_sent_again_and_again_without_a_pause():
    class NoAnswer(Bench):
        def answer(self, effect):
            if isinstance(effect, WriteLease) and isinstance(effect.write, Renew):
                return WriteDone(effect.write_id, effect.write, UNKNOWN, "500")
            return super().answer(effect)

    bench = NoAnswer(Lease("s", hash_range=WHOLE))
    bench.start()
    bench.at(8.9)
    assert 3 <= len(bench.writes(Renew)) <= 20
    assert list(bench.machine.lease_phases()) == ["s"]
    bench.at(60.0)
    assert len(bench.writes(Renew)) <= 100


def test_a_worker_that_was_too_slow_itself_says_so_and_has_no_problem():
    bench = Bench(Lease("s", hash_range=WHOLE))
    bench.start()
    bench.now = 100.0
    bench.run(Tick())
    (report,) = bench.reports(Topic.LOST)
    assert "This process was too slow" in report.message
    assert bench.machine.failing_calls == ()


def test_only_checkpoints_that_fail_are_a_problem():
    bench = FailingTable(Lease("s", hash_range=WHOLE))
    bench.problem, bench.detail, bench.failing_writes = (
        Problem.UNAVAILABLE,
        FULL,
        (Checkpoint, LateCheckpoint),
    )
    bench.start()
    for second in range(1, 30):
        bench.run(CheckpointRequested("s", 1, at_record(str(second))))
        bench.at(float(second))
    assert LeaseCall.CHECKPOINT in bench.failing


def test_a_query_keeps_its_leases_while_renewals_fail_and_names_the_error():
    bench = FailingTable(Lease("s", hash_range=WHOLE), keeps_claims=True)
    bench.problem, bench.detail, bench.fails = Problem.UNAVAILABLE, FULL, ()
    bench.start()
    bench.fails = (WriteLease,)
    bench.at(30.0)
    assert list(bench.machine.lease_phases()) == ["s"]
    assert bench.failing == {LeaseCall.RENEW}
    assert FULL in bench.reports(Topic.LATE_RENEWALS)[0].message
