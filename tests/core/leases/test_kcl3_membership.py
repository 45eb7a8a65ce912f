"""A worker beside KCL 3 workers: it follows their leader and reports metrics to it."""

from itertools import pairwise

import pytest
from msgspec.structs import replace

from core.leases.coordinator_bench import LEFT, RIGHT, WHOLE, Bench
from penstock.core.leases.coordinator_effects import (
    FetchFleet,
    FindOwnLeases,
    FleetRefused,
    LeaveFleet,
    Level,
    ReportWorker,
    ScanTable,
    StartReader,
    Stopped,
    StopReader,
    Topic,
)
from penstock.core.leases.coordinator_events import (
    CallFailed,
    FleetFetched,
    FleetLeft,
    LeaseCall,
    OwnLeasesFound,
    Problem,
    StopRequested,
    Tick,
    WorkerReported,
)
from penstock.core.leases.coordinator_events import ReaderStopped as ReaderHasStopped
from penstock.core.leases.coordinator_options import BalancePolicy, SharedStream
from penstock.core.leases.kcl3_fleet import FleetRefusal, Kcl3Rows, LeaderLock, WorkerStats
from penstock.core.leases.lease import Lease
from penstock.core.leases.lease_writes import Create, Release, Renew, RequestHandover, Take
from penstock.core.position import SHARD_END, TRIM_HORIZON, at_record
from penstock.core.shard import Shard
from penstock.core.starting import StartingPosition
from penstock.core.stream_identity import StreamIdentity

NATIVE = "CLIENT_VERSION_3X"


def reported(problem=None, detail=""):
    return WorkerReported() if problem is None else CallFailed(LeaseCall.REPORT, problem, detail)


class Fleet(Bench):
    """A coordinator beside a Java worker, which may lead; the wall clock advances with the monotonic one."""

    def __init__(self, *leases, version=NATIVE, is_led=True, **options):
        super().__init__(*leases, kcl3=True, **options)
        self.version = version
        self.is_led = is_led
        self.is_java_alive = True
        self.is_index_denied = False
        self.samples = {}
        self.report_problem = ()
        self.kcl3 = Kcl3Rows()
        self.renewing = [lease.key for lease in leases if lease.reader == "java"]

    def answer(self, effect):
        match effect:
            case FetchFleet() if FetchFleet not in self.slow:
                self.kcl3 = self.look()
                return FleetFetched(self.kcl3, self.now)
            case ReportWorker():
                return reported(*self.report_problem)
            case LeaveFleet() if LeaveFleet not in self.slow:
                return FleetLeft()
            case FindOwnLeases() if self.is_index_denied:
                return CallFailed(LeaseCall.FIND_OWN, Problem.REFUSED, "AccessDenied: no")
            case FindOwnLeases(known_keys):
                rows = self.table.rows.values()
                return OwnLeasesFound(
                    tuple(row for row in rows if row.owner == "me" and row.key not in known_keys)
                )
        if isinstance(effect, ScanTable) and self.is_java_alive:
            for key in self.renewing:
                row = self.table.rows[key]
                self.table.rows[key] = replace(row, counter=row.counter + 1)
        return super().answer(effect)

    def look(self):
        if self.version is None:
            return Kcl3Rows()
        beat = int(self.now // 30) if self.is_java_alive else -1
        before = self.kcl3.leader
        version = str(beat) if self.is_java_alive or before is None else before.record_version
        reported_s = int(self.now) if self.is_java_alive else -100
        java = WorkerStats("java", reported_s, self.samples)
        lock = LeaderLock("java", version, 120.0) if self.is_led else None
        return Kcl3Rows(self.version, lock, (java,), has_index=True)

    def effects(self, kind):
        return [effect for effect in self.seen if isinstance(effect, kind)]

    def told(self):
        return [report.message for report in self.reports(Topic.FLEET)]

    def holding(self):
        return sorted(self.machine.lease_phases())


FREE = Lease("free", hash_range=LEFT)
JAVAS = Lease("javas", counter=5, owner="java", hash_range=RIGHT, checkpoint=at_record("5"))


def test_nothing_is_read_or_taken_before_it_is_known_who_assigns_leases():
    fleet = Fleet(FREE)
    fleet.slow = (FetchFleet,)
    fleet.start()
    fleet.at(100.0)
    assert fleet.effects(ScanTable) == []
    assert len(fleet.effects(FetchFleet)) == 1


def test_a_first_look_that_fails_is_repeated_soon():
    fleet = Fleet(FREE, version=None)
    fleet.slow = (FetchFleet,)
    fleet.start()
    fleet.slow = ()
    fleet.run(CallFailed(LeaseCall.FETCH_FLEET, Problem.THROTTLED))
    fleet.at(4.0)
    assert fleet.holding() == ["free"]
    assert fleet.told() == []  # without KCL 3 workers nothing is reported


def test_beside_a_leader_nothing_is_taken_and_nothing_asked_for():
    fleet = Fleet(FREE, JAVAS)
    fleet.start()
    fleet.at(200.0)
    assert fleet.writes(Take) == fleet.writes(RequestHandover) == []
    assert fleet.told() == [
        "a native KCL 3 fleet: its leader assigns every lease; the leader is java (CLIENT_VERSION_3X)"
    ]


def test_what_the_leader_assigns_is_found_by_the_index_and_read():
    fleet = Fleet(FREE, JAVAS)
    fleet.start()
    fleet.at(20.0)
    looks = len(fleet.effects(ScanTable))
    fleet.table.rows["free"] = replace(FREE, owner="me", counter=1)
    fleet.at(20.0 + 1.1 * fleet.options.interval_s)
    assert fleet.holding() == ["free"]
    assert len(fleet.effects(ScanTable)) == looks
    fleet.at(fleet.now + 1.1 * fleet.options.interval_s)
    assert dict(fleet.machine.stats.take_counts) == {"assigned": 1}
    assert fleet.effects(FindOwnLeases)[-1].known_keys <= {"free"}


def test_a_worker_with_the_index_scans_in_every_round_while_a_lease_is_missing():
    fleet = Fleet(Lease("mine", counter=1, owner="me", checkpoint=at_record("5"), hash_range=LEFT))
    fleet.listing = (Shard("mine", LEFT), Shard("lost", RIGHT))
    fleet.start()
    fleet.at(8 * fleet.options.interval_s)
    assert fleet.writes(Create) == [Create(Lease("lost", hash_range=RIGHT))]
    looks = len(fleet.effects(ScanTable))
    fleet.at(28 * fleet.options.interval_s)
    assert len(fleet.effects(ScanTable)) == looks + 2


@pytest.mark.parametrize("has_row", [True, False])
def test_an_assigned_child_waits_for_a_parent_that_no_look_at_the_table_has_shown(has_row):
    fleet = Fleet(FREE, JAVAS)
    fleet.start()
    fleet.at(20.0)
    looks = len(fleet.effects(ScanTable))
    parent = Lease("parent", counter=3, owner="java", checkpoint=at_record("5"))
    if has_row:
        fleet.table.rows["parent"] = parent
    fleet.table.rows["child"] = Lease("child", counter=1, owner="me", parents=("parent",))
    fleet.at(20.0 + 3 * fleet.options.interval_s)
    assert fleet.holding() == ["child"]
    assert [start.key for start in fleet.effects(StartReader)] == ([] if has_row else ["child"])
    fleet.table.rows["parent"] = replace(parent, owner=None, checkpoint=SHARD_END)
    fleet.at(20.0 + 5.5 * fleet.options.interval_s)
    assert [start.key for start in fleet.effects(StartReader)] == ["child"]
    assert len(fleet.effects(ScanTable)) == looks


def test_where_the_index_may_not_be_asked_the_table_is_read_in_every_round():
    fleet = Fleet(FREE, JAVAS)
    fleet.is_index_denied = True
    fleet.start()
    fleet.at(1.0)
    fleet.table.rows["free"] = replace(FREE, owner="me", counter=1)
    fleet.at(20.0)
    assert fleet.holding() == ["free"]
    assert len(fleet.effects(FindOwnLeases)) == 1


def test_a_lease_that_java_hands_over_is_read_when_java_has_released_it():
    fleet = Fleet(JAVAS)
    fleet.start()
    asked = replace(fleet.table.rows["javas"], owner="me", checkpoint_owner="java")
    fleet.table.rows["javas"] = asked
    fleet.at(120.0)  # far longer than a hand-over may last: the leader ends it, not this worker
    assert fleet.holding() == []
    assert fleet.writes(Take) == []
    given = replace(fleet.table.rows["javas"], checkpoint_owner=None, checkpoint=at_record("9"))
    fleet.renewing = []
    fleet.table.rows["javas"] = given
    fleet.at(125.0)
    assert fleet.holding() == ["javas"]
    (start,) = fleet.effects(StartReader)
    assert start.position == at_record("9")


def test_a_lease_that_the_leader_moves_to_java_is_released_at_its_position():
    fleet = Fleet(replace(FREE, owner="me", hash_range=WHOLE))
    fleet.start()
    assert fleet.holding() == ["free"]
    row = fleet.table.rows["free"]
    fleet.table.rows["free"] = replace(row, owner="java", checkpoint_owner="me")
    fleet.at(fleet.now + fleet.options.renew_interval_s + 0.1)
    (stop,) = fleet.effects(StopReader)
    fleet.run(ReaderHasStopped(stop.key, stop.epoch, at_record("7")))
    row = fleet.table.rows["free"]
    assert (row.owner, row.checkpoint_owner, row.checkpoint) == ("java", None, at_record("7"))
    fleet.at(fleet.now + 60.0)
    assert fleet.holding() == []


def test_when_the_leader_goes_the_rest_goes_on_after_its_lock_has_run_out():
    fleet = Fleet(FREE, JAVAS)
    fleet.start()
    fleet.at(100.0)
    fleet.is_java_alive = False
    fleet.at(160.0)
    assert fleet.holding() == []
    fleet.at(240.0)
    assert fleet.holding() == ["free", "javas"]
    assert fleet.told()[-1].startswith("the workers share the leases by Penstock's own balance")


@pytest.mark.parametrize("policy", BalancePolicy)
def test_without_a_leader_free_leases_are_taken_and_live_ones_left_where_they_are(policy):
    rows = [replace(JAVAS, key=f"java-{number}") for number in range(4)]
    fleet = Fleet(FREE, *rows, is_led=False, policy=policy)
    fleet.start()
    fleet.at(60.0)
    assert fleet.holding() == ["free"]
    assert fleet.writes(RequestHandover) == []
    fleet.is_led = True
    fleet.at(75.0)
    assert "the leader is java" in fleet.told()[-1]


def test_in_2x_compatible_mode_a_worker_takes_its_share_and_reports():
    rows = [replace(JAVAS, key=f"java-{number}") for number in range(4)]
    fleet = Fleet(*rows, version="CLIENT_VERSION_UPGRADE_FROM_2X", is_led=False)
    fleet.start()
    fleet.at(60.0)
    assert fleet.writes(RequestHandover) != []
    assert len(fleet.effects(ReportWorker)) >= 2


@pytest.mark.parametrize("version", [None, "CLIENT_VERSION_2X"])
def test_where_nobody_wants_reports_none_are_made(version):
    fleet = Fleet(FREE, version=version, is_led=False)
    fleet.start()
    fleet.at(100.0)
    assert fleet.effects(ReportWorker) == []
    assert fleet.holding() == ["free"]


def test_a_fleet_that_goes_native_is_followed_from_the_next_look():
    fleet = Fleet(FREE, version="CLIENT_VERSION_UPGRADE_FROM_2X", is_led=False)
    fleet.start()
    fleet.at(20.0)
    assert fleet.holding() == ["free"]
    fleet.version, fleet.is_led = "CLIENT_VERSION_3X_WITH_ROLLBACK", True
    fleet.at(60.0)
    assert "the leader is java (CLIENT_VERSION_3X_WITH_ROLLBACK)" in fleet.told()[-1]
    assert fleet.holding() == ["free"]  # it keeps its leases
    fleet.version, fleet.is_led = "CLIENT_VERSION_2X", False
    fleet.at(100.0)
    assert fleet.told()[-1].startswith("the workers share the leases by Penstock's own balance")


def test_reports_come_often_enough_for_the_leader_to_count_on_the_worker():
    fleet = Fleet(FREE)
    moments = []
    for second in range(300):
        before = len(fleet.effects(ReportWorker))
        fleet.at(float(second)) if second else fleet.start()
        moments += [second] * (len(fleet.effects(ReportWorker)) - before)
    gaps = [after - before for before, after in pairwise(moments)]
    assert 20 < min(gaps) <= max(gaps) < 40


def test_the_processor_is_reported_where_java_workers_report_theirs():
    fleet = Fleet(FREE)
    fleet.start()
    fleet.samples = {"C": (5.0,)}
    fleet.at(40.0)
    assert [effect.measures_cpu for effect in fleet.effects(ReportWorker)] == [False, True]


def test_a_worker_with_as_many_leases_as_it_may_have_says_so():
    fleet = Fleet(replace(FREE, owner="me", hash_range=WHOLE), max_leases=1)
    fleet.start()
    fleet.at(40.0)
    assert [effect.is_full for effect in fleet.effects(ReportWorker)] == [False, True]


def test_a_worker_that_stops_takes_its_report_back_before_it_ends():
    fleet = Fleet(FREE)
    fleet.start()
    fleet.slow = (LeaveFleet,)
    fleet.run(StopRequested())
    assert len(fleet.effects(LeaveFleet)) == 1
    assert fleet.effects(Stopped) == []
    fleet.at(fleet.options.shutdown_timeout_s + 1)
    assert len(fleet.effects(Stopped)) == 0  # it waits a renewal longer
    fleet.at(2 * fleet.options.shutdown_timeout_s)
    assert len(fleet.effects(Stopped)) == 1


@pytest.mark.parametrize(
    "answer", [FleetFetched(Kcl3Rows(NATIVE, None, (WorkerStats("java", 40),)), 40.0), OwnLeasesFound(())]
)
def test_an_answer_that_comes_after_the_stop_asks_for_nothing_more(answer):
    fleet = Fleet(replace(FREE, owner="me", hash_range=WHOLE))
    fleet.start()
    fleet.at(40.0)
    asked = len(fleet.effects((FetchFleet, FindOwnLeases)))
    fleet.run(StopRequested())
    fleet.run(answer)
    fleet.now = 60.0
    fleet.run(Tick())
    assert fleet.machine.next_wake_s > fleet.now
    assert len(fleet.effects((FetchFleet, FindOwnLeases))) == asked


def test_a_worker_that_never_reported_has_nothing_to_take_back():
    fleet = Fleet(FREE, version=None)
    fleet.start()
    fleet.run(StopRequested())
    assert fleet.effects(LeaveFleet) == []


@pytest.mark.parametrize(
    ("answer", "leaves"),
    [((), 1), ((Problem.REFUSED, "AccessDenied: no"), 0)],
    ids=["it was stored", "there is nothing to take back"],
)
def test_a_worker_that_stops_while_its_report_is_under_way_waits_for_the_answer(answer, leaves):
    fleet = Fleet(replace(FREE, owner="me"))
    fleet.slow = (FetchFleet,)
    fleet.start()
    fleet.feed(FleetFetched(fleet.look(), fleet.now))
    assert len(fleet.effects(ReportWorker)) == 1
    fleet.run(StopRequested())
    assert fleet.effects(LeaveFleet) == []
    fleet.run(reported(*answer))
    assert len(fleet.effects(LeaveFleet)) == leaves


def test_a_state_that_is_not_known_stops_the_worker():
    fleet = Fleet(FREE, version="CLIENT_VERSION_4X")
    fleet.start()
    assert fleet.effects(FleetRefused) == [FleetRefused(FleetRefusal.UNKNOWN_VERSION, "CLIENT_VERSION_4X")]
    assert len(fleet.effects(Stopped)) == 1
    assert fleet.writes(Take) == []


def test_a_worker_that_may_not_stay_for_two_reasons_is_told_the_first():
    fleet = Fleet(replace(FREE, owner="me"))
    fleet.report_problem = (Problem.REFUSED, "AccessDenied: no")
    fleet.start()
    fleet.slow = (FetchFleet,)
    fleet.at(100.0)
    fleet.feed(FleetFetched(fleet.look(), fleet.now))  # and it reports
    fleet.at(200.0)  # and it looks, before the report is answered
    fleet.run(reported(*fleet.report_problem))
    fleet.run(FleetFetched(Kcl3Rows("CLIENT_VERSION_4X"), fleet.now))  # while its shard is not stopped yet
    assert fleet.effects(Stopped) == []
    assert fleet.effects(FleetRefused) == [FleetRefused(FleetRefusal.UNREPORTED, "AccessDenied: no")]


def test_a_state_that_may_not_be_read_stops_the_worker_unless_it_was_read_before():
    fleet = Fleet(FREE)
    fleet.slow = (FetchFleet,)
    fleet.start()
    fleet.run(CallFailed(LeaseCall.FETCH_FLEET, Problem.REFUSED, "AccessDenied: no"))
    assert fleet.effects(FleetRefused) == [FleetRefused(FleetRefusal.UNREADABLE, "AccessDenied: no")]
    fleet = Fleet(FREE)
    fleet.start()
    fleet.run(CallFailed(LeaseCall.FETCH_FLEET, Problem.REFUSED, "AccessDenied: no"))
    assert fleet.effects(FleetRefused) == []


@pytest.mark.parametrize("is_led", [True, False])
def test_a_worker_whose_report_is_refused_twice_in_a_row_leaves_a_native_fleet(is_led):
    fleet = Fleet(FREE, is_led=is_led)
    fleet.report_problem = (Problem.REFUSED, "AccessDenied: no")
    fleet.start()
    assert len(fleet.effects(ReportWorker)) == 1
    assert fleet.effects(FleetRefused) == []
    fleet.at(100.0)
    assert len(fleet.effects(ReportWorker)) == 2
    assert fleet.effects(FleetRefused) == [FleetRefused(FleetRefusal.UNREPORTED, "AccessDenied: no")]
    for stop in fleet.effects(StopReader):
        fleet.run(ReaderHasStopped(stop.key, stop.epoch, TRIM_HORIZON))
    assert len(fleet.effects(Stopped)) == 1
    assert fleet.holding() == []


@pytest.mark.parametrize("between", [(), (Problem.THROTTLED, "slow down")])
def test_a_report_that_was_not_refused_ends_a_row_of_refusals(between):
    fleet = Fleet(FREE)
    fleet.report_problem = (Problem.REFUSED, "AccessDenied: no")
    fleet.start()
    fleet.report_problem = between
    fleet.run(reported(*between))
    fleet.report_problem = (Problem.REFUSED, "AccessDenied: no")
    fleet.run(reported(*fleet.report_problem))
    assert fleet.effects(FleetRefused) == []


def test_a_worker_that_may_not_report_stays_until_the_fleet_goes_native():
    fleet = Fleet(FREE, version="CLIENT_VERSION_UPGRADE_FROM_2X", is_led=False)
    fleet.report_problem = (Problem.REFUSED, "AccessDenied: no")
    fleet.start()
    fleet.at(100.0)
    assert fleet.holding() == ["free"]
    assert fleet.effects(FleetRefused) == []
    fleet.version, fleet.is_led = "CLIENT_VERSION_3X_WITH_ROLLBACK", True
    fleet.at(150.0)
    assert fleet.effects(FleetRefused) == [FleetRefused(FleetRefusal.UNREPORTED, "AccessDenied: no")]
    (stop,) = fleet.effects(StopReader)
    fleet.run(ReaderHasStopped(stop.key, stop.epoch, at_record("7")))
    assert fleet.table.rows["free"].owner is None  # released, for the leader to assign


@pytest.mark.parametrize("problem", [Problem.REFUSED, Problem.THROTTLED])
def test_a_worker_that_has_reported_stays_when_a_later_report_fails(problem):
    fleet = Fleet(FREE)
    fleet.start()
    fleet.report_problem = (problem, "no")
    fleet.at(100.0)
    assert len(fleet.effects(ReportWorker)) > 1
    assert fleet.effects(FleetRefused) == []


def test_a_worker_that_renews_and_reports_nothing_is_named_once():
    rows = [JAVAS, replace(FREE, owner="kcl2", counter=3)]
    fleet = Fleet(*rows)
    fleet.renewing.append("free")
    fleet.start()
    fleet.at(600.0)
    told = [message for message in fleet.told() if message.startswith("workers ")]
    assert len(told) == 1
    assert told[0].startswith("workers kcl2 renew leases in a native KCL 3 fleet and report no metrics")


def test_a_lease_of_this_worker_is_kept_over_a_restart_in_a_led_fleet():
    fleet = Fleet(replace(FREE, owner="me", hash_range=WHOLE, checkpoint=TRIM_HORIZON))
    fleet.start()
    assert len(fleet.writes(Renew)) == 1
    assert fleet.holding() == ["free"]
    assert fleet.writes(Release) == []


# --- several streams --------------------------------------------------------------------------------------


@pytest.mark.parametrize("is_index_denied", [False, True])
def test_assigned_leases_of_a_stream_that_is_not_read_here_are_reported_once(is_index_denied):
    read = StreamIdentity("arn:aws:kinesis:eu-west-1:123456789012:stream/orders", 1_700_000_000_999)
    unread = "123456789012:returns:1700000001"
    ended, foreign = (
        Lease("1:ended:1:a", owner="me", checkpoint=SHARD_END),
        Lease("1:javas:1:a", owner="java"),
    )
    own = Lease(f"{read.stream_id}:a", hash_range=WHOLE, owner="java", stream=read)
    start = StartingPosition(default=TRIM_HORIZON)
    fleet = Fleet(own, ended, foreign, streams={read.stream_id: SharedStream(read, start)})
    fleet.is_index_denied = is_index_denied
    fleet.start()
    fleet.at(20.0)
    assert not [report for report in fleet.reports(Topic.FLEET) if report.level is Level.ERROR]
    for shard in "ab":
        fleet.table.rows[f"{unread}:{shard}"] = Lease(f"{unread}:{shard}", owner="me", counter=1)
    fleet.at(100.0)
    (report,) = [report for report in fleet.reports(Topic.FLEET) if report.level is Level.ERROR]
    assert f"stream {unread} " in report.message
    assert "all workers must read the same streams" in report.message
    assert fleet.holding() == []


def test_without_a_leader_leases_of_unread_streams_are_not_reported():
    read = StreamIdentity("arn:aws:kinesis:eu-west-1:123456789012:stream/orders", 1_700_000_000_999)
    start = StartingPosition(default=TRIM_HORIZON)
    own = Lease(f"{read.stream_id}:a", hash_range=WHOLE, stream=read)
    left = Lease("123456789012:returns:1700000001:a", owner="me", counter=1)
    fleet = Fleet(own, left, version=None, streams={read.stream_id: SharedStream(read, start)})
    fleet.start()
    fleet.at(60.0)
    assert fleet.holding() == [own.key]
    assert fleet.told() == []
