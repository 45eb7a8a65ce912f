"""The rows of KCL 3: whether a leader assigns leases, and the metrics to report to it."""

import pytest
from msgspec.structs import replace

from penstock.core.leases.kcl3_fleet import (
    METRICS_AGE_MAX_S,
    FleetMode,
    FleetModeDetector,
    FleetRefusal,
    Kcl3Rows,
    LeaderLock,
    WorkerStats,
    describe_refusal,
    is_known_version,
    metrics_to_report,
    owners_without_metrics,
    stats_to_report,
    wants_reports,
)

WALL_S = 1_800_000_000.0
LOCK = LeaderLock("java", "r1", lease_s=120)
FRESH = WorkerStats("java", int(WALL_S) - 20, {"C": (3.0,)}, {"C": 100})
STALE = replace(FRESH, reported_s=int(WALL_S) - 61)
OURS = WorkerStats("py", int(WALL_S), is_penstock=True)
NATIVE = Kcl3Rows("CLIENT_VERSION_3X", LOCK, (FRESH, OURS), has_index=True)


@pytest.mark.parametrize(
    ("rows", "mode"),
    [
        pytest.param(Kcl3Rows(), FleetMode.OWN, id="no KCL 3 worker ever stood here"),
        pytest.param(Kcl3Rows("CLIENT_VERSION_2X", LOCK, (FRESH,)), FleetMode.OWN, id="rolled back to 2.x"),
        pytest.param(Kcl3Rows("CLIENT_VERSION_INIT"), FleetMode.OWN, id="not begun"),
        pytest.param(
            Kcl3Rows("CLIENT_VERSION_UPGRADE_FROM_2X", None, (FRESH,)),
            FleetMode.UPGRADING,
            id="2.x-compatible mode",
        ),
        pytest.param(NATIVE, FleetMode.LED, id="a leader that reports"),
        pytest.param(
            replace(NATIVE, version="CLIENT_VERSION_3X_WITH_ROLLBACK"), FleetMode.LED, id="may roll back"
        ),
        pytest.param(
            replace(NATIVE, leader=replace(LOCK, is_released=True)), FleetMode.LEADERLESS, id="lock released"
        ),
        pytest.param(replace(NATIVE, leader=None), FleetMode.LEADERLESS, id="no lock yet"),
        pytest.param(replace(NATIVE, workers=(STALE, OURS)), FleetMode.OWN, id="a lock that was left behind"),
        pytest.param(
            replace(NATIVE, leader=None, workers=(OURS,)), FleetMode.OWN, id="no Java worker is left"
        ),
    ],
)
def test_one_read_shows_the_mode_of_the_fleet(rows, mode):
    assert FleetModeDetector("py").detect(rows, 5.0, WALL_S) is mode


def test_a_leader_that_reports_no_metrics_is_known_by_its_heartbeat():
    detector, rows = FleetModeDetector("py"), replace(NATIVE, workers=(OURS,))
    assert detector.detect(rows, 0.0, WALL_S) is FleetMode.OWN
    assert (
        detector.detect(replace(rows, leader=replace(LOCK, record_version="r2")), 30.0, WALL_S)
        is FleetMode.LED
    )


def test_the_lock_is_free_when_it_has_not_changed_for_its_lease():
    detector = FleetModeDetector("py")
    assert detector.detect(NATIVE, 0.0, WALL_S) is FleetMode.LED
    beat = replace(NATIVE, leader=replace(LOCK, record_version="r2"))
    assert detector.detect(beat, 30.0, WALL_S + 30) is FleetMode.LED
    assert detector.leader_due_s == 150.0
    reporting = replace(beat, workers=(replace(FRESH, reported_s=int(WALL_S) + 20), OURS))
    assert detector.detect(reporting, 149.9, WALL_S + 30) is FleetMode.LED
    assert (
        detector.detect(reporting, 150.0, WALL_S + 30) is FleetMode.LEADERLESS
    )  # its metrics are still young
    assert detector.detect(beat, 150.0, WALL_S + 150) is FleetMode.OWN


def test_a_report_of_the_future_does_not_keep_its_worker_alive():
    detector = FleetModeDetector("py")
    ahead = replace(NATIVE, leader=None, workers=(replace(FRESH, reported_s=int(WALL_S) + 3600), OURS))
    assert detector.detect(ahead, 0.0, WALL_S) is FleetMode.LEADERLESS
    assert detector.detect(ahead, 60.0, WALL_S + 60) is FleetMode.LEADERLESS
    assert detector.detect(ahead, 61.0, WALL_S + 61) is FleetMode.OWN
    again = replace(ahead, workers=(replace(FRESH, reported_s=int(WALL_S) + 3630), OURS))
    assert detector.detect(again, 62.0, WALL_S + 62) is FleetMode.LEADERLESS


def test_the_next_leader_is_followed():
    detector = FleetModeDetector("py")
    detector.detect(NATIVE, 0.0, WALL_S)
    second = replace(NATIVE, leader=LeaderLock("java-2", "x1", 120))
    assert detector.detect(second, 200.0, WALL_S) is FleetMode.LED
    assert detector.leader_due_s == 320.0


@pytest.mark.parametrize(
    ("version", "known", "reports"),
    [
        (None, True, False),
        ("CLIENT_VERSION_2X", True, False),
        ("CLIENT_VERSION_UPGRADE_FROM_2X", True, True),
        ("CLIENT_VERSION_3X", True, True),
        ("CLIENT_VERSION_4X", False, False),
    ],
)
def test_what_a_state_of_the_migration_asks_for(version, known, reports):
    assert is_known_version(version) is known
    assert wants_reports(version) is reports


def test_an_unknown_state_is_refused_with_the_way_out():
    assert describe_refusal(FleetRefusal.UNKNOWN_VERSION, "billing", "CLIENT_VERSION_4X") == (
        "the Java workers of lease table billing are in a state that this version of Penstock does not know (row "
        "Migration3.0 has cv=CLIENT_VERSION_4X; known: CLIENT_VERSION_2X, CLIENT_VERSION_3X, "
        "CLIENT_VERSION_3X_WITH_ROLLBACK, CLIENT_VERSION_INIT, CLIENT_VERSION_UPGRADE_FROM_2X), so it is unsafe "
        "to take leases beside them: update Penstock, or give it an application of its own"
    )


@pytest.mark.parametrize(
    ("why", "action"),
    [(FleetRefusal.UNREADABLE, "dynamodb:GetItem"), (FleetRefusal.UNREPORTED, "dynamodb:UpdateItem")],
)
def test_who_may_not_do_what_a_fleet_needs_is_told_what_to_allow(why, action):
    told = describe_refusal(why, "billing", "AccessDenied: no")
    assert "(AccessDenied: no)" in told
    assert f"allow {action} " in told
    assert told.endswith("billing-WorkerMetricStats, or give this worker an application of its own")


@pytest.mark.parametrize(
    ("workers", "names"),
    [
        ((FRESH, OURS), {"C"}),
        ((replace(FRESH, samples={}, limits={}),), set()),
        ((STALE,), set()),
        ((replace(FRESH, is_penstock=True),), set()),
    ],
)
def test_what_the_java_workers_measure_is_measured(workers, names):
    assert metrics_to_report(replace(NATIVE, workers=workers), WALL_S) == names


def test_reports():
    plain = stats_to_report("py", WALL_S + 0.7, None)
    assert plain == WorkerStats("py", int(WALL_S), {}, {}, is_penstock=True)
    many = stats_to_report("py", WALL_S, [0.1234567, *range(1, 13)])
    assert many.samples == {"C": tuple(range(3, 13))}
    assert many.limits == {"C": 100}
    assert stats_to_report("py", WALL_S, [0.1234567]).samples == {"C": (0.123457,)}


def test_a_worker_that_is_full_reports_what_the_leader_takes_for_a_failing_metric():
    assert stats_to_report("py", WALL_S, None, is_full=True).samples == {"C": (-1.0,)}
    full = stats_to_report("py", WALL_S, list(range(10)), is_full=True)
    assert full.samples == {"C": (*range(1, 10), -1.0)}
    assert full.limits == {"C": 100}


def test_live_owners_without_fresh_metrics_are_named():
    assert owners_without_metrics(NATIVE, {"java", "py", "kcl2", "old"}, WALL_S) == ["kcl2", "old"]
    assert owners_without_metrics(NATIVE, {"java", "py"}, WALL_S + METRICS_AGE_MAX_S) == ["java"]
