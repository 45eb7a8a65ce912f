"""One observer's view of hand-overs: which are overdue, and which workers ignore them."""

import pytest
from msgspec.structs import replace

from penstock.core.leases.fleet_view import fleet_of, live_workers
from penstock.core.leases.handovers import Handovers
from penstock.core.leases.lease import BatchClaim, Lease, TipMark
from penstock.core.leases.lease_rules import apply_write
from penstock.core.leases.lease_view import LeaseView
from penstock.core.leases.lease_writes import RequestHandover, Take
from penstock.core.position import at_record
from penstock.core.stream_identity import StreamIdentity

CLAIM = BatchClaim("reader", 3, "run", at_record("1"), at_record("2"))
ASKED = Lease("s", counter=4, owner="next", checkpoint_owner="reader", checkpoint=at_record("5"))


def seen(*rows):
    """Handovers that saw the rows at 0, 1, 2, ... seconds."""
    handovers = Handovers(30.0)
    before = None
    for moment, row in enumerate(rows):
        handovers.on_row(before, row, float(moment))
        before = row
    return handovers


def renewed(row):
    return replace(row, counter=row.counter + 1)


def test_an_ask_is_overdue_when_it_was_seen_to_stand_for_the_bound():
    handovers = seen(ASKED, renewed(ASKED))
    assert not handovers.is_overdue(ASKED, 29.9)
    assert handovers.is_overdue(ASKED, 30.0)
    assert handovers.next_overdue_s(5.0) == 30.0


def test_another_ask_for_the_same_lease_has_a_time_of_its_own():
    handovers = seen(ASKED, replace(ASKED, owner="other", checkpoint_owner="next", counter=6))
    assert not handovers.is_overdue(ASKED, 30.5)


def test_a_lease_that_was_given_counts_no_longer():
    given = replace(ASKED, counter=5, checkpoint_owner=None, owner_switches=1, checkpoint=at_record("6"))
    handovers = seen(ASKED, given)
    assert not handovers.is_overdue(given, 99.0)
    assert handovers.next_overdue_s(1.0) == float("inf")


def test_who_renews_through_a_whole_hand_over_is_asked_again_only_after_a_long_while():
    handovers = seen(ASKED)
    handovers.on_request_unanswered(ASKED, 30.0)
    assert handovers.ignores_handovers("reader", 31.0)
    assert not handovers.ignores_handovers("next", 31.0)
    assert not handovers.ignores_handovers("reader", 30.0 + 20 * 30.0)


@pytest.mark.parametrize(
    "rows",
    [
        [replace(ASKED, owner="reader", checkpoint_owner="older")],
        [replace(ASKED, claims=(CLAIM,))],
    ],
    ids=["it has an ask of its own under way from before", "it claims"],
)
def test_only_a_claim_in_the_first_row_proves_support_of_hand_overs(rows):
    handovers = seen(*rows)
    handovers.on_request_unanswered(ASKED, 30.0)
    assert handovers.ignores_handovers("reader", 31.0) == (not rows[0].claims)


def test_a_worker_that_has_requested_a_lease_supports_hand_overs():
    free = Lease("s", counter=4, owner="old")
    asking = apply_write(free, RequestHandover("s", "old", "reader")).lease
    handovers = seen(free, asking)
    handovers.on_request_unanswered(ASKED, 30.0)
    assert not handovers.ignores_handovers("reader", 31.0)


def test_a_worker_that_has_released_on_request_supports_hand_overs():
    given = replace(ASKED, counter=5, checkpoint_owner=None, owner_switches=1, checkpoint=at_record("6"))
    handovers = seen(ASKED, given)
    handovers.on_request_unanswered(ASKED, 30.0)
    assert not handovers.ignores_handovers("reader", 31.0)


@pytest.mark.parametrize(
    "news",
    [{"throughput_kbps": 0.5}, {"mark": TipMark(at_record("5"), 1000)}],
    ids=["a throughput", "a moment at the tip"],
)
def test_a_worker_that_writes_kcl_3_attributes_supports_hand_overs(news):
    held = Lease("s", counter=4, owner="reader", checkpoint=at_record("5"))
    handovers = seen(held, renewed(replace(held, **news)))
    handovers.on_request_unanswered(ASKED, 30.0)
    assert not handovers.ignores_handovers("reader", 31.0)


def test_an_earlier_readers_attributes_prove_nothing():
    row = Lease("s", counter=4, owner="reader", throughput_kbps=0.5, mark=TipMark(at_record("5"), 1000))
    taken = replace(row, counter=5, owner="java")
    handovers = seen(row, taken, renewed(taken), replace(taken, counter=7, mark=TipMark(at_record("6"))))
    asked = replace(taken, owner="next", checkpoint_owner="java")
    handovers.on_request_unanswered(asked, 30.0)
    assert handovers.ignores_handovers("java", 31.0)


def test_a_take_by_the_requester_is_no_release():
    taken = apply_write(ASKED, Take("s", 4, "next")).lease
    handovers = seen(ASKED, taken)
    handovers.on_request_unanswered(ASKED, 30.0)
    assert handovers.ignores_handovers("reader", 31.0)


def test_a_java_owner_that_stops_leaves_the_lease_to_the_named_reader():
    taken = replace(ASKED, owner="java", counter=5)
    given_up = replace(
        taken, owner=None, counter=6
    )  # a Java worker that stops, and leaves the reader's field again
    handovers = seen(ASKED, taken, given_up)
    assert not handovers.is_overdue(given_up, 31.0)
    assert handovers.is_overdue(given_up, 32.0)
    assert handovers.owner_of_overdue(given_up, {"java"}) == "reader"
    assert not handovers.ignores_handovers("reader", 32.0)


def test_who_takes_and_leaves_the_readers_field_standing_does_not_know_hand_overs():
    taken = replace(ASKED, owner="java", counter=5)
    handovers = seen(ASKED, taken)
    assert handovers.ignores_handovers("java", 2.0)
    assert handovers.is_overdue(taken, 1.0)
    assert handovers.owner_of_overdue(taken, {"reader"}) == "java"


def test_workers_that_no_lease_names_any_more_are_forgotten():
    handovers = seen(ASKED)
    handovers.on_request_unanswered(ASKED, 30.0)
    handovers.forget_unnamed_workers([Lease("s", owner="next")])
    assert not handovers.ignores_handovers("reader", 31.0)


def renewing(counters, **row):
    """Handovers of an application whose workers name their stream; a lease was seen with these counters."""
    handovers = Handovers(30.0, names_streams=True)
    before = None
    for moment, counter in enumerate(counters):
        now = Lease("s", counter=counter, owner="reader", **row)
        handovers.on_row(before, now, float(moment))
        before = now
    return handovers


@pytest.mark.parametrize(
    ("counters", "row", "ignores_handovers"),
    [
        ([4, 5, 6], {}, True),
        ([4, 6], {}, True),
        ([4, 5], {}, False),
        ([4, 4, 4], {}, False),
        ([4, 6, 8], {"stream": StreamIdentity("arn", 1)}, False),
        ([4, 6, 8], {"throughput_kbps": 0.5}, False),
    ],
    ids=["bare", "bare, seldom looked at", "once", "nobody renews", "the stream is named", "as KCL 3 renews"],
)
def test_a_worker_whose_renewals_leave_a_row_bare_ignores_hand_overs(counters, row, ignores_handovers):
    assert renewing(counters, **row).ignores_handovers("reader", 9.0) is ignores_handovers


def test_where_nobody_names_the_stream_a_bare_row_shows_nothing():
    assert not seen(
        *[Lease("s", counter=counter, owner="reader") for counter in (4, 6, 8)]
    ).ignores_handovers("reader", 9.0)


# --- how it counts in the fleet ---------------------------------------------------------------------------


def fleet_at(rows, at_s):
    """The fleet as "me" sees it `at_s` seconds after its first look; every owner renews."""
    view = LeaseView(10.0, 30.0)
    steps = int(at_s / 5.0)
    for step in range(steps + 1):
        view.on_scan([replace(row, counter=row.counter + step) for row in rows], step * 5.0)
    fleet = fleet_of(view, at_s, "me")
    return live_workers(fleet, "me"), {entry.lease.key: entry.lease.owner for entry in fleet}


def lease(key, owner, reader=None):
    return Lease(key, counter=9, owner=owner, checkpoint_owner=reader)


@pytest.mark.parametrize(
    ("rows", "workers", "holders"),
    [
        (
            [lease("a", "dead", "java"), lease("b", "dead", "java"), lease("c", "java")],
            {"me", "java"},
            ["java"] * 3,
        ),
        ([lease("a", "dead", "java")], {"me", "java"}, ["java"]),
        ([lease("a", "java", "gone"), lease("b", "java")], {"me", "java"}, ["java", "java"]),
        (
            [lease("a", "next", "java"), lease("b", "next"), lease("c", "java")],
            {"me", "java", "next"},
            ["next", "next", "java"],
        ),
        ([lease("a", "me", "java")], {"me"}, ["me"]),
    ],
    ids=[
        "it died while it asked",
        "it died, and the reader has nothing else",
        "a field left over",
        "the asker lives by another lease",
        "this worker asks",
    ],
)
def test_an_overdue_hand_over_counts_for_the_worker_that_is_known_to_live(rows, workers, holders):
    named = {name for row in rows for name in (row.owner, row.checkpoint_owner) if name}
    assert fleet_at(rows, 25.0)[0] == {"me", *named}
    found, by_key = fleet_at(rows, 30.0)
    assert found == workers
    assert list(by_key.values()) == holders
