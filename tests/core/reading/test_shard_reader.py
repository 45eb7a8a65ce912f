"""A shard's reader: what it does next, given the result of the last step."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.core.hash_key import HashRange
from penstock.core.position import (
    LATEST,
    SHARD_END,
    TRIM_HORIZON,
    Position,
    Sentinel,
    at_record,
    at_timestamp,
)
from penstock.core.reading.reader_options import ReaderOptions
from penstock.core.reading.reader_steps import (
    SUBSCRIBED,
    Failed,
    FetchIterator,
    FetchListing,
    FetchPage,
    Finished,
    ListedShard,
    ListedState,
    Pause,
    Wait,
    find_listed_shard,
)
from penstock.core.reading.shard_reader import ShardReader
from penstock.core.shard import ChildShard, Shard
from penstock.errors import (
    AccessDenied,
    DataLossError,
    ExpiredIterator,
    NotFound,
    OptionError,
    PenstockError,
    Rejected,
    ServiceError,
    StreamChanged,
    Throttled,
    Unavailable,
    UnknownRefusal,
)

CHILD = ChildShard("shardId-1", ("shardId-0",), HashRange(0, 9))
SPACING_S = ReaderOptions().spacing_s
EPOCH_MS = 1_700_000_000_000


@dataclass(frozen=True)
class Rec:
    sequence_number: str
    sub_sequence_number: int = 0


@dataclass(frozen=True, kw_only=True)
class ListPage:
    """A page whose records are user records, with what the reader asks a `RecordPage`."""

    records: Sequence[Rec]
    first_sequence_number: str | None
    end: Position | None
    read_bytes: int = 0
    next_iterator: str | None
    millis_behind_latest: int
    child_shards: tuple[ChildShard, ...] = ()
    server_ms: int | None = None

    def rows_after(self, done: Position | None) -> Sequence[Rec]:
        if done is None or done.sequence_number is None:
            return self.records
        place = (int(done.sequence_number), done.sub_sequence_number)
        for index, record in enumerate(self.records):
            if (int(record.sequence_number), record.sub_sequence_number) > place:
                return self.records[index:] if index else self.records
        return ()


class Kept(NamedTuple):
    """The new records of a page, or None if the reader takes none of them; and the reports."""

    rows: Sequence[Rec] | None
    loss: DataLossError | None = None
    warning: str | None = None


class Machine(ShardReader):
    """The machine, with a driver's cut of the new records."""

    def on_page(self, page: ListPage, started_s: float, now_s: float, chance: float = 0.5) -> Kept:
        outcome = super().on_page(page, started_s, now_s, chance)
        rows = page.rows_after(outcome.read_through) if outcome.is_accepted else None
        return Kept(rows, outcome.loss, outcome.warning)


def reader(start: Position = TRIM_HORIZON, **options) -> Machine:
    return Machine("orders", "shardId-0", start, ReaderOptions(**options))


def page(*places, iterator="next", behind=0, children=(), read_bytes=0, at_s=None) -> ListPage:
    records = [
        Rec(str(place[0]), place[1]) if isinstance(place, tuple) else Rec(str(place)) for place in places
    ]
    return ListPage(
        records=records,
        first_sequence_number=records[0].sequence_number if records else None,
        end=at_record(records[-1].sequence_number, records[-1].sub_sequence_number) if records else None,
        read_bytes=read_bytes,
        next_iterator=iterator,
        millis_behind_latest=behind,
        child_shards=children,
        server_ms=None if at_s is None else EPOCH_MS + int(at_s * 1000),
    )


def raw_page(records, first, last) -> ListPage:
    """A page whose first and last Kinesis records are aggregates that hold other user records, or none."""
    return ListPage(
        records=records,
        first_sequence_number=first,
        end=at_record(last),
        next_iterator="next",
        millis_behind_latest=0,
    )


def places(records) -> list[tuple[int, int]]:
    return [(int(record.sequence_number), record.sub_sequence_number) for record in records]


def started(start: Position = TRIM_HORIZON, **options) -> Machine:
    machine = reader(start, **options)
    machine.on_iterator("first", 0.0, 1_000_000)
    return machine


# --- where reading starts -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("start", "asked"),
    [
        (TRIM_HORIZON, TRIM_HORIZON),
        (LATEST, LATEST),
        (at_timestamp(5), at_timestamp(5)),
        (Position(sentinel=Sentinel.LATEST, timestamp_ms=7), at_timestamp(7)),
        (at_record("42", 3), at_record("42", 0)),
    ],
)
def test_the_first_step_takes_an_iterator_at_the_starting_position(start, asked):
    assert reader(start).plan_step(0.0) == FetchIterator(asked)


def test_a_shard_at_its_end_cannot_be_read():
    with pytest.raises(ValueError, match="at its end"):
        reader(SHARD_END)


def test_with_an_iterator_the_next_step_reads_a_page():
    assert started(record_count_max=1).plan_step(0.0) == FetchPage("first", 1)


def test_asking_twice_gives_the_same_step():
    machine = started()
    assert machine.plan_step(0.0) == machine.plan_step(0.0)


def test_reading_resumes_inside_an_aggregate():
    machine = started(at_record("100", 1))
    kept = machine.on_page(page((100, 0), (100, 1), (100, 2), (101, 0)), 0.0, 0.1)
    assert places(kept.rows) == [(100, 2), (101, 0)]
    assert kept.loss is None


@pytest.mark.parametrize("records", [[], [Rec("4")]])
def test_reading_goes_on_after_an_aggregate_without_user_records(records):
    machine = started()
    kept = machine.on_page(raw_page(records, "4", "5"), 0.0, 0.1)
    assert kept.rows == records
    machine.on_failure(ExpiredIterator("old"), 400.0, 0.5)
    assert machine.plan_step(400.0) == FetchIterator(at_record("5"))
    machine.on_iterator("second", 400.0, 1)
    kept = machine.on_page(raw_page([Rec("6")], "5", "6"), 400.0, 400.1)
    assert (places(kept.rows), kept.loss) == ([(6, 0)], None)


def test_an_iterator_that_still_begins_at_the_last_record_is_not_one_behind_it():
    machine = reader(at_record("5"))
    machine.on_iterator("at 5", 0.0, EPOCH_MS)
    assert machine.iterator is None
    machine.on_page(page(iterator="still at 5", behind=10), 0.0, 0.1)
    assert machine.iterator is None  # the page was empty, so 5 comes again
    machine.on_page(page("5", "6", iterator="behind 6"), 0.3, 0.4)
    assert (machine.position, machine.iterator) == (at_record("6"), "behind 6")


def test_a_record_that_a_page_at_the_tip_lacked_is_not_given_twice_when_it_comes_after_all():
    options = ReaderOptions(retention_s=86_400.0)
    machine = Machine("orders", "shardId-0", at_record("5"), options, tip_ms=EPOCH_MS)
    machine.on_iterator("at 5", 0.0, EPOCH_MS)
    machine.on_page(page(iterator="behind an empty page", at_s=0.0), 0.0, 0.1)
    assert machine.iterator == "behind an empty page"
    later = Machine("orders", "shardId-0", at_record("5"), options, iterator=machine.iterator)
    for each in (machine, later):
        assert places(each.on_page(page("5", "6"), 0.3, 0.4).rows) == [(6, 0)]


def test_the_resume_filter_survives_an_empty_first_page():
    machine = started(at_record("100", 1))
    machine.on_page(page(behind=10), 0.0, 0.1)
    kept = machine.on_page(page((100, 0), (100, 1), (100, 2)), 0.3, 0.4)
    assert places(kept.rows) == [(100, 2)]


def test_a_page_that_holds_only_what_is_done_gives_nothing_and_reading_goes_on():
    machine = started(at_record("100", 0), record_count_max=1)
    assert places(machine.on_page(page(100), 0.0, 0.1).rows) == []
    assert places(machine.on_page(page(101), 0.3, 0.4).rows) == [(101, 0)]


def test_sequence_numbers_are_compared_as_integers():
    machine = started(at_record("9", 0))
    assert places(machine.on_page(page(9, 10), 0.0, 0.1).rows) == [(10, 0)]


# --- pace -----------------------------------------------------------------------------------------------


def test_reads_are_kept_apart_from_start_to_start():
    machine = started()
    machine.on_page(page(1, behind=5), 10.0, 10.15)
    assert machine.plan_step(10.15) == Wait(10.0 + SPACING_S, Pause.SPACING)
    assert machine.plan_step(10.0 + SPACING_S) == FetchPage("next", 10_000)


def test_a_large_page_uses_up_the_bytes_of_the_seconds_to_come():
    machine = started()
    machine.on_page(page(1, behind=5, read_bytes=10 * 1024 * 1024), 10.0, 10.5)
    assert machine.plan_step(10.5) == Wait(15.0, Pause.BYTES)


def test_calls_ask_for_the_records_of_a_wanted_number_of_bytes():
    machine = started(page_bytes_aim=2_000_000)
    assert machine.plan_step(0.0) == FetchPage(
        "first", 20
    )  # records of 100 kB, until a page shows their size
    counts = []
    for at, (record_count, read_bytes) in enumerate(
        [(20, 10_000), (2000, 4_000_000), (1, 9_000_000), (0, 0)], 1
    ):
        machine.on_page(
            replace(page(at, behind=5, read_bytes=read_bytes), records=[Rec(str(at))] * record_count),
            0.0,
            0.0,
        )
        counts.append(machine.plan_step(100.0).record_count_max)
    assert counts == [3992, 999, 1, 1]


def test_a_wanted_number_of_bytes_exceeds_no_bound_of_records():
    machine = started(page_bytes_aim=2_000_000, record_count_max=50)
    machine.on_page(replace(page(1, behind=5, read_bytes=100), records=[Rec("1")] * 20), 0.0, 0.0)
    assert machine.plan_step(100.0) == FetchPage("next", 50)
    with pytest.raises(OptionError, match="page_bytes_aim=0: expected at least 1"):
        ReaderOptions(page_bytes_aim=0)


def test_an_empty_page_that_is_behind_is_followed_at_once_within_the_limits():
    machine = started()
    machine.on_page(page(behind=60_000), 10.0, 10.01)
    assert machine.plan_step(10.01) == Wait(10.0 + SPACING_S, Pause.SPACING)


def test_a_quiet_shard_is_read_less_and_less_often_up_to_the_idle_time():
    machine = started(idle_time_between_reads_s=1.0)
    waits = []
    for read in range(5):
        machine.on_page(page(), 100.0 * read, 100.0 * read)
        step = machine.plan_step(100.0 * read)
        assert step.reason is Pause.IDLE
        waits.append(round(step.until_s - 100.0 * read, 3))
    assert waits == [0.42, 0.84, 1.0, 1.0, 1.0]


def test_a_record_ends_the_quiet():
    machine = started()
    for read in range(5):
        machine.on_page(page(), 10.0 * read, 10.0 * read)
    machine.on_page(page(1), 50.0, 50.0)
    assert machine.plan_step(50.0) == Wait(50.0 + SPACING_S, Pause.SPACING)


def test_nothing_is_read_while_enough_waits_for_delivery():
    machine = started(prefetch_bytes_max=100)
    assert machine.plan_step(0.0, waiting_bytes=99) == FetchPage("first", 10_000)
    assert machine.plan_step(0.0, waiting_bytes=100) == Wait(None, Pause.FULL)
    assert machine.plan_step(0.0, waiting_bytes=0, has_room=False) == Wait(None, Pause.FULL)


@given(
    st.lists(
        st.tuples(
            st.integers(0, 12 * 2**20),
            st.integers(0, 1),
            st.floats(0, 0.4),
            st.booleans(),
            st.floats(0, 0.999),
        ),
        min_size=1,
        max_size=60,
    )
)
def test_no_second_sees_more_than_five_reads_nor_more_than_two_mebibytes_each_on_average(calls):
    machine = started()
    now, starts, total = 0.0, [], 0
    for read_bytes, behind, took_s, throttled, chance in calls:
        step = machine.plan_step(now)
        if isinstance(step, Wait):
            now = step.until_s
        starts.append((now, total))
        if throttled:
            machine.on_failure(Throttled("slow down"), now + took_s, chance)
        else:
            sequence = len(starts)
            machine.on_page(page(sequence, behind=behind, read_bytes=read_bytes), now, now + took_s)
            total += read_bytes
        now += took_s
    times = [at for at, _ in starts]
    for index in range(len(times) - 5):
        assert times[index + 5] - times[index] > 1.0
    for at, before in starts:
        assert at >= before / (2 * 2**20) - 1e-6


# --- refusals -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("failures", "chance", "wait_s"),
    [(1, 0.999, 0.4995), (2, 0.5, 0.5), (3, 0.5, 1.0), (4, 0.75, 3.0), (10, 0.5, 10.0), (10, 0.0, SPACING_S)],
)
def test_throttling_backs_off_with_full_jitter_up_to_a_bound(failures, chance, wait_s):
    machine = started()
    for _ in range(failures):
        machine.on_failure(Throttled("slow down"), 0.0, chance)
    step = machine.plan_step(0.0)
    assert step.reason is Pause.BACKOFF
    assert step.until_s == pytest.approx(wait_s)
    assert machine.plan_step(100.0) == FetchPage("first", 10_000)


def test_a_page_ends_the_back_off():
    machine = started()
    for _ in range(8):
        machine.on_failure(Unavailable("no"), 0.0, 0.9)
    machine.on_page(page(1), 50.0, 50.0)
    assert machine.failure_count == 0
    machine.on_failure(Unavailable("no"), 60.0, 0.999)
    assert machine.plan_step(60.0).until_s == pytest.approx(60.4995)


def test_an_expired_iterator_is_rebuilt_at_the_last_record_read_at_once():
    machine = started()
    machine.on_page(page(7, (9, 0), (9, 1)), 0.0, 0.1)
    machine.on_failure(ExpiredIterator("old"), 400.0, 0.5)
    assert machine.plan_step(400.0) == FetchIterator(at_record("9"))
    machine.on_iterator("second", 400.0, 1)
    kept = machine.on_page(page((9, 0), (9, 1), 10), 400.0, 400.1)
    assert places(kept.rows) == [(10, 0)]
    assert kept.loss is None


def test_an_iterator_that_is_born_expired_does_not_spin():
    machine = started()
    machine.on_failure(ExpiredIterator("old"), 1.0, 0.999)
    machine.on_iterator("again", 1.0, 1)
    machine.on_failure(ExpiredIterator("old"), 1.0, 0.999)
    assert isinstance(machine.plan_step(1.0), Wait)


def test_a_latest_iterator_that_expires_goes_on_from_the_moment_it_first_meant():
    machine = reader(LATEST)
    machine.on_iterator("first", 0.0, 1_000_000)
    machine.on_failure(ExpiredIterator("old"), 400.0, 0.5)
    assert machine.plan_step(400.0) == FetchIterator(at_timestamp(998_000))


def test_a_position_that_the_service_refuses_says_that_the_stream_was_made_anew():
    machine = reader(at_record("5"))
    machine.on_failure(
        Rejected("it did not come from this stream", code="InvalidArgumentException"), 0.0, 0.5
    )
    step = machine.plan_step(0.0)
    assert isinstance(step, Failed)
    assert isinstance(step.error, StreamChanged)
    assert "--reset-to" in str(step.error)


@pytest.mark.parametrize("code", ["SomethingNew", "404", ""])
def test_a_refusal_that_is_unknown_is_retried_to_the_deadline_and_says_nothing_of_positions(code):
    machine = reader(at_record("5"), deadline_s=600.0)
    for now_s in range(0, 600, 20):
        machine.on_failure(UnknownRefusal(f"{code}: no", code=code), float(now_s), 0.5)
        assert not machine.has_ended
    assert machine.plan_step(599.0) == FetchIterator(at_record("5"))
    machine.on_failure(UnknownRefusal(f"{code}: no", code=code), 600.0, 0.5)
    assert str(machine.outcome.error) == f"{code}: no"


def test_another_mistake_in_the_request_ends_the_reading_with_its_own_text():
    machine = reader(at_record("5"))
    for _ in range(10):
        machine.on_failure(Rejected("no such shard id", code="ValidationException"), 0.0, 0.5)
    assert str(machine.outcome.error) == "no such shard id"


def test_an_iterator_that_the_service_refuses_is_replaced_after_a_pause():
    machine = started()
    machine.on_page(page(7), 0.0, 0.1)
    machine.on_failure(Rejected("not an iterator"), 10.0, 0.5)
    assert machine.plan_step(10.0) == Wait(10.25, Pause.BACKOFF)
    assert machine.plan_step(10.25) == FetchIterator(at_record("7"))
    machine.on_iterator("second", 10.25, 1)
    assert places(machine.on_page(page(7, 8), 10.25, 10.3).rows) == [(8, 0)]


def test_a_moment_that_the_service_refuses_is_asked_for_again():
    machine = reader(at_timestamp(7))
    machine.on_failure(Rejected("a moment to come"), 0.0, 0.5)
    assert machine.plan_step(9.0) == FetchIterator(at_timestamp(7))


def test_a_failure_that_is_none_of_the_services_ends_the_reading_at_once():
    machine = started()
    machine.on_failure(PenstockError("a defect"), 0.0, 0.5)
    assert str(machine.plan_step(0.0).error) == "a defect"


def test_a_refusal_that_waiting_seldom_cures_ends_the_reading_after_ten():
    machine = started()
    for attempt in range(9):
        machine.on_failure(AccessDenied("no"), float(attempt), 0.5)
        assert not machine.has_ended
    machine.on_failure(AccessDenied("no"), 99.0, 0.5)
    assert isinstance(machine.plan_step(99.0).error, AccessDenied)


# --- the end of a shard ---------------------------------------------------------------------------------


def test_a_last_page_with_children_ends_the_shard_and_gives_its_records():
    machine = started()
    kept = machine.on_page(page(1, 2, iterator=None, children=(CHILD,)), 0.0, 0.1)
    assert places(kept.rows) == [(1, 0), (2, 0)]
    assert machine.plan_step(0.1) == Finished((CHILD,))


def test_a_null_iterator_without_children_is_read_again_and_nothing_comes_twice():
    machine = started()
    assert places(machine.on_page(page(1, 2, iterator=None), 0.0, 0.1, 0.999).rows) == [(1, 0), (2, 0)]
    assert isinstance(machine.plan_step(0.1), Wait)
    assert machine.plan_step(9.0) == FetchIterator(at_record("2"))
    machine.on_iterator("again", 9.0, 1)
    assert places(machine.on_page(page(2, 3, iterator=None, children=(CHILD,)), 9.0, 9.1).rows) == [(3, 0)]
    assert machine.plan_step(9.1) == Finished((CHILD,))


def end_without_children(machine: Machine) -> None:
    for attempt in range(3):
        machine.on_iterator("again", 10.0 * attempt, 1)
        machine.on_page(page(2, iterator=None), 10.0 * attempt, 10.0 * attempt)


def test_after_three_ends_without_children_the_listing_decides():
    machine = started()
    end_without_children(machine)
    assert isinstance(machine.plan_step(60.0), FetchListing)
    machine.on_listing(ListedShard(ListedState.CLOSED, (CHILD,)), 60.0, 0.5)
    assert machine.plan_step(60.0) == Finished((CHILD,))


def test_an_end_of_a_shard_that_is_listed_open_is_not_believed():
    machine = started()
    end_without_children(machine)
    machine.on_listing(ListedShard(ListedState.OPEN), 60.0, 0.5)
    assert isinstance(machine.plan_step(60.0), Wait)
    assert machine.plan_step(99.0) == FetchIterator(at_record("2"))


def keeps_denying(machine: Machine, now_s: float) -> None:
    machine.on_failure(NotFound("no such shard"), now_s, 0.5)


def keeps_ending(machine: Machine, now_s: float) -> None:
    for _ in range(3):
        machine.on_page(page(2, iterator=None), now_s, now_s)
        machine.on_iterator("again", now_s, 1)


@pytest.mark.parametrize("mistake", [keeps_denying, keeps_ending])
def test_a_shard_that_is_listed_open_and_cannot_be_read_is_tried_ten_times_ever_more_rarely_and_then_fails(
    mistake,
):
    machine = started(at_record("2"))
    now_s, pauses = 0.0, []
    for _ in range(9):
        mistake(machine, now_s)
        now_s += 60.0
        assert isinstance(machine.plan_step(now_s), FetchListing)
        assert machine.on_listing(ListedShard(ListedState.OPEN), now_s, 0.5) is None
        step = machine.plan_step(now_s)
        assert step.reason is Pause.BACKOFF
        pauses.append(step.until_s - now_s)
        now_s = step.until_s
        assert machine.plan_step(now_s) == FetchIterator(at_record("2"))
        machine.on_iterator("again", now_s, 1)
    assert pauses == [0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 10.0, 10.0, 10.0]
    mistake(machine, now_s)
    assert machine.on_listing(ListedShard(ListedState.OPEN), now_s, 0.5) is None
    error = machine.plan_step(now_s).error
    assert isinstance(error, ServiceError)
    assert str(error).startswith(
        "stream orders, shard shardId-0: listed, yet the service keeps saying that it does not exist or has ended"
    )


@pytest.mark.parametrize("progress", [page(2, 3, iterator=None), page(behind=5)])
def test_a_page_that_goes_on_starts_the_tries_on_a_shard_that_is_listed_open_anew(progress):
    machine = started(at_record("2"))
    for _ in range(2):
        for _ in range(9):
            keeps_denying(machine, 0.0)
            machine.on_listing(ListedShard(ListedState.OPEN), 0.0, 0.5)
        assert not machine.has_ended
        machine.on_iterator("again", 0.0, 1)
        machine.on_page(progress, 0.0, 0.0)
        machine.on_failure(ExpiredIterator("old"), 0.0, 0.5)


def test_an_end_of_a_shard_that_is_listed_no_more_is_believed():
    machine = started()
    end_without_children(machine)
    assert machine.on_listing(ListedShard(ListedState.MISSING), 60.0, 0.5) is None
    machine.on_iterator("again", 70.0, 1)
    machine.on_page(page(2, iterator=None), 70.0, 70.0)
    assert isinstance(machine.plan_step(90.0), FetchListing)
    assert machine.on_listing(ListedShard(ListedState.MISSING, (CHILD,)), 90.0, 0.5) is None
    assert machine.plan_step(90.0) == Finished((CHILD,))


@pytest.mark.parametrize("state", [ListedState.CLOSED, ListedState.MISSING])
def test_one_doubtful_end_and_one_denial_do_not_end_a_shard(state):
    machine = started()
    machine.on_page(page(1, 2, iterator=None), 0.0, 0.0)
    machine.on_failure(NotFound("no such shard"), 10.0, 0.5)
    assert machine.on_listing(ListedShard(state), 20.0, 0.5) is None
    assert machine.plan_step(90.0) == FetchIterator(at_record("2"))


# --- loss -----------------------------------------------------------------------------------------------


def test_a_trimmed_position_fails_and_gives_no_records():
    machine = started(at_record("100"))
    kept = machine.on_page(page(150, 151), 0.0, 0.1)
    assert kept.rows is None
    assert isinstance(kept.loss, DataLossError)
    assert isinstance(machine.plan_step(0.1), Failed)
    for word in ("orders", "shardId-0", "100.0", "150", "on_data_loss='warn'"):
        assert word in str(kept.loss)


def test_a_trimmed_position_warns_and_goes_on_when_told_so():
    machine = started(at_record("100"), on_data_loss="warn")
    kept = machine.on_page(page(150, 151), 0.0, 0.1)
    assert places(kept.rows) == [(150, 0), (151, 0)]
    assert kept.loss is not None
    assert machine.plan_step(1.0) == FetchPage("next", 10_000)


def empty_until_believed(machine, **more):
    """Answer with empty pages at the tip until the machine draws its conclusion; gives that."""
    for attempt in range(4):
        now_s = 100.0 * attempt
        kept = machine.on_page(page(**more), now_s, now_s)
        if attempt < 3:
            assert (kept.rows, kept.loss, kept.warning) == (None, None, None)
            assert machine.plan_step(now_s + 99.0) == FetchIterator(at_record("100"))
            machine.on_iterator("again", now_s + 99.0, 1_000_000)
    return kept


def test_a_loss_is_reported_once():
    machine = started(at_record("100"), on_data_loss="warn")
    assert empty_until_believed(machine).loss is not None
    assert machine.on_page(page(150), 400.0, 400.1).loss is None


def test_an_empty_page_where_the_record_must_be_is_asked_for_again():
    machine = started(at_record("100"))
    assert machine.on_page(page(), 0.0, 0.1) == Kept(None)
    machine.on_iterator("again", 10.0, 1_000_000)
    kept = machine.on_page(page(100, 101), 10.0, 10.1)
    assert (places(kept.rows), kept.loss) == ([(101, 0)], None)


def test_each_record_that_must_be_there_is_asked_for_as_often_whatever_was_in_doubt_before():
    machine = started(at_record("100"))
    for record in (100, 101, 102):
        for attempt in range(3):
            assert machine.on_page(page(), 100.0 * attempt, 100.0 * attempt) == Kept(None)
            machine.on_iterator("again", 100.0 * attempt + 99.0, 1_000_000)
        kept = machine.on_page(page(record, record + 1), 300.0, 300.0)
        assert (places(kept.rows), kept.loss) == ([(record + 1, 0)], None)
        machine.on_failure(ExpiredIterator("old"), 900.0, 0.5)
        assert machine.plan_step(900.0) == FetchIterator(at_record(str(record + 1)))
        machine.on_iterator("after five minutes", 900.0, 1_000_000)


def test_an_empty_last_page_without_children_where_the_record_must_be_is_asked_for_again():
    machine = started(at_record("100"))
    assert machine.on_page(page(iterator=None), 0.0, 0.1) == Kept(None)
    assert machine.plan_step(10.0) == FetchIterator(at_record("100"))
    machine.on_iterator("again", 10.0, 1_000_000)
    kept = machine.on_page(page(100, 101), 10.0, 10.1)
    assert (places(kept.rows), kept.loss) == ([(101, 0)], None)


def test_empty_last_pages_without_children_are_a_loss_in_the_end():
    machine = started(at_record("100"))
    assert empty_until_believed(machine, iterator=None).loss is not None
    assert isinstance(machine.plan_step(500.0), Failed)


def test_a_closed_shard_whose_records_are_all_trimmed_is_a_loss():
    machine = started(at_record("100"))
    assert machine.on_page(page(iterator=None, children=(CHILD,)), 0.0, 0.1).loss is not None
    assert isinstance(machine.plan_step(0.1), Failed)


def resumed(tip_s=None, is_foreign=False, iterator="first", **options):
    """A machine that resumes behind record 100, at whose tip somebody was at a moment by the service's clock."""
    tip_ms = None if tip_s is None else EPOCH_MS + int(tip_s * 1000)
    options = {"retention_s": 3600.0, **options}
    start = at_record("100")
    machine = Machine(
        "orders", "shardId-0", start, ReaderOptions(**options), tip_ms=tip_ms, is_foreign=is_foreign
    )
    machine.on_iterator(iterator, 0.0, 1_000_000)
    return machine


def test_a_missing_record_is_no_loss_when_the_tip_was_seen_within_the_retention():
    machine = started(retention_s=3600.0)
    machine.on_page(page(1, at_s=0.0), 0.0, 0.1)
    machine.on_failure(ExpiredIterator("old"), 1000.0, 0.5)
    machine.on_iterator("again", 1000.0, 1)
    assert machine.on_page(page(5, at_s=3500.0), 1000.0, 1000.1).loss is None


def test_a_missing_record_is_a_loss_when_the_tip_was_seen_longer_ago_than_the_retention():
    machine = started(retention_s=3600.0)
    machine.on_page(page(1, at_s=0.0), 0.0, 0.1)
    machine.on_failure(ExpiredIterator("old"), 1000.0, 0.5)
    machine.on_iterator("again", 1000.0, 1)
    assert machine.on_page(page(5, at_s=3601.0), 1000.0, 1000.1).loss is not None


def test_what_the_lease_tells_of_the_tip_counts_as_if_this_reader_had_seen_it():
    assert resumed(tip_s=0.0).on_page(page(at_s=3500.0), 0.0, 0.1) == Kept(())
    assert resumed(tip_s=0.0).on_page(page(150, at_s=3500.0), 0.0, 0.1).loss is None
    assert resumed(tip_s=0.0).on_page(page(150, at_s=3601.0), 0.0, 0.1).loss is not None
    assert resumed().on_page(page(150, at_s=1.0), 0.0, 0.1).loss is not None


def test_a_shard_at_its_tip_keeps_the_moment_up_to_date():
    machine = resumed(tip_s=0.0)
    machine.on_page(page(at_s=3500.0), 0.0, 0.1)
    assert machine.tip_ms == EPOCH_MS + 3_500_000
    machine.on_page(page(101, behind=5, at_s=3600.0), 1.0, 1.1)
    assert machine.tip_ms == EPOCH_MS + 3_500_000


def behind(**iterator):
    """A machine that has read record 101, and the oldest unread record came half an hour before 3,000 s."""
    machine = resumed(tip_s=1000.0, **iterator)
    assert places(machine.on_page(page(100, 101, behind=1_800_000, at_s=3000.0), 0.0, 0.1).rows) == [(101, 0)]
    assert machine.unread_since_ms == EPOCH_MS + 1_200_000
    return machine


@pytest.mark.parametrize("last", [(), (150,)])
def test_a_page_behind_which_unread_records_may_have_left_is_read_again_from_the_last_record(last):
    machine = behind()
    # Half an hour is left to it, and the pause was longer.
    assert machine.on_page(page(*last, at_s=4800.0), 10.0, 10.1) == Kept(None)
    assert machine.plan_step(11.0) == FetchIterator(at_record("101"))
    assert machine.tip_ms == EPOCH_MS + 1_000_000
    machine.on_iterator("again", 11.0, 1_000_000)
    assert places(machine.on_page(page(101, 102, 150, at_s=4801.0), 11.0, 11.1).rows) == [(102, 0), (150, 0)]
    assert machine.tip_ms == EPOCH_MS + 4_801_000


def test_unread_records_that_left_between_two_pages_are_a_loss():
    machine = behind()
    machine.on_page(page(150, at_s=4800.0), 10.0, 10.1)
    machine.on_iterator("again", 11.0, 1_000_000)
    kept = machine.on_page(page(150, at_s=4801.0), 11.0, 11.1)
    assert kept.rows is None
    assert "101" in str(kept.loss)
    assert isinstance(machine.plan_step(12.0), Failed)


def test_an_empty_page_before_the_record_was_looked_for_does_not_tell_how_old_the_unread_ones_are():
    machine = resumed(tip_s=1000.0)
    # What is left is half an hour old. What came before it has left, and that page says nothing of it.
    assert machine.on_page(page(behind=1_800_000, at_s=5000.0), 0.0, 0.1) == Kept(())
    kept = machine.on_page(page(150, at_s=5001.0), 1.0, 1.1)
    assert kept.rows is None
    assert "100" in str(kept.loss)


def test_a_page_is_believed_while_what_was_unread_before_it_must_still_be_there():
    machine = behind()
    assert places(machine.on_page(page(150, at_s=4790.0), 10.0, 10.1).rows) == [(150, 0)]
    assert isinstance(machine.plan_step(11.0), FetchPage)
    assert machine.unread_since_ms == machine.tip_ms == EPOCH_MS + 4_790_000


def test_while_unread_records_are_leaving_each_page_begins_at_the_last_record():
    machine = resumed(tip_s=3000.0)
    oldest_ms = 3600 * 1000 - 2000  # of the unread records; it leaves in two seconds
    machine.on_page(page(100, 101, behind=oldest_ms, at_s=3000.0), 0.0, 0.1)
    assert machine.plan_step(1.0) == FetchIterator(at_record("101"))
    machine.on_iterator("again", 1.0, 1_000_000)
    assert places(machine.on_page(page(101, 102, behind=oldest_ms, at_s=3001.0), 1.0, 1.1).rows) == [(102, 0)]
    assert machine.plan_step(2.0) == FetchIterator(at_record("102"))


@pytest.mark.parametrize(
    ("page_max", "gap"),
    [(10_000, 0), (1, 0), (1, 1)],
    ids=["one record requested", "one record fits in a page", "empty pages between records"],
)
def test_pages_of_one_record_lead_away_from_the_trim_horizon(page_max, gap):
    now_s, arrivals_s = 3600.0, [2.0 * place for place in range(1900)]  # the stream keeps them for 3600 s
    machine, read, index, step = reader(retention_s=3600.0, record_count_max=1), [], 0, 1 + gap
    while now_s < 3800.0 and len(read) < 100:
        now_s += 0.01
        match machine.plan_step(now_s):
            case FetchIterator(position):
                index = step * int(position.sequence_number or 0)
                machine.on_iterator("first", now_s, 1_000_000)
            case FetchPage(_, count):
                index = max(
                    index, step * next(i for i, at_s in enumerate(arrivals_s) if at_s >= now_s - 3600)
                )
                after = index + min(count, page_max)
                behind = int((now_s - arrivals_s[-(-after // step)]) * 1000)
                found = [place // step for place in range(index, after) if place % step == 0]
                kept = machine.on_page(page(*found, behind=behind, at_s=now_s), now_s, now_s)
                read += [int(row.sequence_number) for row in kept.rows or ()]
                index = after
    assert read == list(range(read[0], read[0] + len(read)))
    assert machine.lag_ms(now_s) < 3_600_000 - 5_000, "it has got away"


def test_a_subscription_leads_away_from_the_trim_horizon():
    """A shard has a record a second, an event three of them, and a new subscription begins every five seconds at most."""
    now_s, machine, read, index = 3600.0, reader(retention_s=3600.0), [], 0
    while now_s < 3660.0:
        now_s += 0.1
        if isinstance(machine.plan_step(now_s), FetchIterator):
            now_s += 5.0
            index = int(machine.position.sequence_number or 0)
            machine.on_iterator(SUBSCRIBED, now_s, 1_000_000)
        index = max(index, int(now_s - 3600.0) + 1)  # each record arrived at the second of its number
        behind = int((now_s - index - 3) * 1000)
        event = page(*range(index, index + 3), iterator=str(index + 2), behind=behind, at_s=now_s)
        kept = machine.on_page(event, now_s, now_s)
        read += [int(row.sequence_number) for row in kept.rows or ()]
        index += 3
    assert read == list(range(read[0], read[0] + len(read)))
    assert machine.lag_ms(now_s) < 3_600_000 - 5_000, "it has got away"


def test_a_subscription_at_the_trim_horizon_is_renewed_so_that_losses_are_reported():
    machine = reader(retention_s=3600.0)
    machine.on_iterator(SUBSCRIBED, 0.0, 1_000_000)
    lag = 3_599_000
    for number, now_s in enumerate((1.0, 10.0, 29.0), 1):
        event = page(number, iterator=str(number), behind=lag, at_s=now_s)
        assert machine.on_page(event, now_s, now_s).rows
        assert machine.plan_step(now_s) == FetchPage(SUBSCRIBED, 10_000)
    event = page(9, iterator="9", behind=lag, at_s=31.0)
    assert machine.on_page(event, 31.0, 31.0) == Kept(None)
    assert machine.plan_step(32.0) == FetchIterator(at_record("3"))
    machine.on_iterator(SUBSCRIBED, 36.0, 1_000_000)
    kept = machine.on_page(page(9, iterator="9", behind=lag, at_s=36.0), 36.0, 36.0)
    assert places(kept.rows) == [(9, 0)]
    assert "has not got away from the trim horizon" in kept.warning


def test_a_kept_iterator_is_not_believed_when_unread_records_may_have_left_since():
    options = ReaderOptions(retention_s=3600.0)
    machine = Machine(
        "orders", "shardId-0", at_record("100"), options, iterator="kept", unread_since_ms=EPOCH_MS
    )
    assert machine.on_page(page(150, at_s=3600.0), 0.0, 0.1) == Kept(None)
    assert machine.plan_step(1.0) == FetchIterator(at_record("100"))


@pytest.mark.parametrize("options", [{}, {"retention_s": 3600.0}])
def test_where_the_retention_or_the_time_is_unknown_a_page_is_believed(options):
    at_s = (None, None) if options else (0.0, 9000.0)
    machine = started(at_record("100"), **options)
    machine.on_page(page(100, 101, behind=5, at_s=at_s[0]), 0.0, 0.1)
    assert places(machine.on_page(page(150, at_s=at_s[1]), 10.0, 10.1).rows) == [(150, 0)]


def test_a_reading_that_began_at_the_trim_horizon_goes_on_there_with_a_warning():
    machine = started(retention_s=3600.0)
    machine.on_page(page(1, behind=3_599_000, at_s=0.0), 0.0, 0.1)
    assert machine.plan_step(1.0) == FetchIterator(at_record("1"))
    machine.on_iterator("again", 1.0, 1_000_000)
    kept = machine.on_page(page(5, behind=3_000_000, at_s=2.0), 1.0, 1.1)
    assert kept.loss is None
    assert "has not got away from the trim horizon" in kept.warning
    assert places(kept.rows) == [(5, 0)]
    # It has got away now: from here on, what leaves unread is a loss.
    machine.on_page(page(9, at_s=700.0), 2.0, 2.1)
    machine.on_iterator("again", 3.0, 1_000_000)
    assert machine.on_page(page(9, at_s=701.0), 3.0, 3.1).loss is not None


def test_an_event_behind_which_unread_records_may_have_left_ends_the_subscription():
    machine = behind(iterator=SUBSCRIBED)
    event = page(150, iterator="150", at_s=4800.0)
    assert machine.on_page(event, 10.0, 10.1) == Kept(None)
    assert machine.plan_step(11.0) == FetchIterator(at_record("101"))


def test_an_open_shard_that_is_empty_behind_a_foreign_checkpoint_is_a_doubt_and_no_stop():
    machine = resumed(is_foreign=True)
    kept = empty_until_believed(machine, at_s=9_000.0)
    assert kept.loss is None
    assert "did not note when it was at the tip" in kept.warning
    assert isinstance(machine.plan_step(1e6), FetchPage)
    assert places(machine.on_page(page(150, at_s=9_100.0), 500.0, 500.1).rows) == [(150, 0)]


def test_records_behind_a_foreign_checkpoint_that_is_gone_are_a_loss():
    assert resumed(is_foreign=True).on_page(page(150, at_s=9_000.0), 0.0, 0.1).loss is not None


def test_a_page_that_is_not_believed_tells_nothing_of_the_tip():
    machine = resumed()
    machine.on_page(page(at_s=9_000.0), 0.0, 0.1)
    assert machine.tip_ms is None


def test_a_last_page_without_children_tells_nothing_of_the_tip():
    machine = resumed(tip_s=0.0)
    assert places(machine.on_page(page(100, 101, iterator=None, at_s=3000.0), 0.0, 0.1).rows) == [(101, 0)]
    assert machine.tip_ms == EPOCH_MS
    machine.on_iterator("again", 10.0, 1_000_000)
    machine.on_page(page(101, 102, behind=3_000_000, at_s=3010.0), 10.0, 10.1)
    assert machine.tip_ms == EPOCH_MS


def vanish(machine, *, children=()) -> DataLossError | None:
    """Let the service deny a shard, and a listing leave it out, as often as it takes; gives the loss."""
    for attempt in range(2):
        machine.on_failure(NotFound("no such shard"), 10.0 * attempt, 0.0)
        assert isinstance(machine.plan_step(10.0 * attempt + 1), FetchListing)
        loss = machine.on_listing(ListedShard(ListedState.MISSING, children), 10.0 * attempt + 1, 0.5)
        if attempt == 0:
            assert loss is None
            assert machine.plan_step(9.0) == FetchIterator(at_record("100"))
    return loss


def test_a_shard_that_vanished_unread_fails():
    machine = started(at_record("100"))
    assert vanish(machine) is not None
    error = machine.plan_step(11.0).error
    assert isinstance(error, DataLossError)
    for word in ("orders", "shardId-0", "left the stream", "read only to 100.0", "on_data_loss='warn'"):
        assert word in str(error)


def test_a_shard_that_vanished_unread_is_followed_by_its_children_when_told_so():
    machine = started(at_record("100"), on_data_loss="warn")
    assert vanish(machine, children=(CHILD,)) is not None
    assert machine.plan_step(11.0) == Finished((CHILD,))


@pytest.mark.parametrize("between", [page(101), None])
def test_a_shard_that_one_listing_leaves_out_is_not_gone(between):
    machine = started(at_record("100"))
    for _ in range(3):
        machine.on_failure(NotFound("no such shard"), 0.0, 0.0)
        assert machine.on_listing(ListedShard(ListedState.MISSING), 0.0, 0.5) is None
        if between is None:
            machine.on_failure(NotFound("no such shard"), 0.0, 0.0)
            assert machine.on_listing(ListedShard(ListedState.OPEN), 0.0, 0.5) is None
        else:
            machine.on_page(page(100, 101), 0.0, 0.0)
    assert not machine.has_ended


def test_a_stream_that_vanished_is_said_to_be_gone():
    machine = started()
    machine.on_failure(NotFound("no such shard"), 0.0, 0.0)
    machine.on_failure(NotFound("no such stream"), 1.0, 0.0)
    error = machine.plan_step(1.0).error
    assert isinstance(error, NotFound)
    assert str(error).startswith("stream orders does not exist any more (no such stream)")


def test_a_refusal_of_the_listing_says_nothing_of_the_position():
    machine = reader(at_record("100"))
    machine.on_failure(NotFound("no such shard"), 0.0, 0.0)
    machine.on_failure(Rejected("no such token"), 1.0, 0.0)
    assert not machine.has_ended


# --- deadline, pace, kept iterators, second looks -------------------------------------------------------------


def test_with_a_deadline_a_shard_that_gives_no_page_is_given_up():
    machine = started(deadline_s=10.0)
    machine.on_failure(Throttled("first"), 5.0, 0.999, started_s=4.0)
    assert not machine.has_ended
    machine.on_failure(Throttled("last"), 13.9, 0.999)
    assert machine.plan_step(13.9) == Wait(14.0, Pause.BACKOFF)  # the last attempt
    machine.on_failure(Throttled("over"), 14.0, 0.5)
    assert str(machine.plan_step(14.0).error) == "over"


def test_a_page_lets_the_deadline_begin_anew():
    machine = started(deadline_s=10.0)
    machine.on_failure(Throttled("slow"), 5.0, 0.5)
    machine.on_page(page(1), 6.0, 6.0)
    machine.on_failure(Throttled("slow"), 100.0, 0.5)
    assert not machine.has_ended


def test_without_a_limit_on_bytes_a_large_page_costs_no_pause():
    machine = started(read_bytes_per_s_max=None, spacing_s=0.0)
    machine.on_page(page(1, behind=5, read_bytes=10 * 1024 * 1024), 10.0, 10.5)
    assert machine.plan_step(10.5) == FetchPage("next", 10_000)


def test_an_event_of_a_subscription_leaves_the_pause_between_calls_as_it_is():
    machine = started(read_bytes_per_s_max=1_000_000)
    machine.on_page(page(1, behind=5, read_bytes=3_000_000), 10.0, 10.5)
    assert machine.plan_step(10.5) == Wait(13.0, Pause.BYTES)
    machine.on_iterator(SUBSCRIBED, 10.6, 1_000_000)
    machine.on_page(page(1, 2, iterator="2", behind=5, read_bytes=3_000_000), 10.6, 10.6)
    assert machine.plan_step(10.6) == Wait(13.0, Pause.BYTES)
    assert machine.plan_step(13.0) == FetchPage(SUBSCRIBED, 10_000)


def test_a_kept_iterator_is_used_first_and_what_it_gives_is_new():
    machine = Machine("orders", "shardId-0", at_record("100"), ReaderOptions(), iterator="kept")
    assert machine.plan_step(0.0) == FetchPage("kept", 10_000)
    kept = machine.on_page(page(150), 0.0, 0.1)
    assert (places(kept.rows), kept.loss) == ([(150, 0)], None)
    assert machine.iterator == "next"


def test_a_kept_iterator_that_expired_gives_way_to_one_at_the_start():
    machine = Machine("orders", "shardId-0", at_record("100"), ReaderOptions(), iterator="kept")
    machine.on_failure(ExpiredIterator("old"), 0.0, 0.5)
    assert machine.plan_step(0.0) == FetchIterator(at_record("100"))


def test_where_something_must_follow_the_reader_looks_again_a_few_times():
    machine = started()
    machine.on_page(page(7), 0.0, 0.0)
    for look in range(5):
        assert machine.read_again(10.0 * look)
        assert machine.plan_step(10.0 * look).reason is Pause.BACKOFF
        assert machine.plan_step(10.0 * look + 2) == FetchIterator(at_record("7"))
        machine.on_iterator("again", 10.0 * look + 2, 1)
        assert machine.on_page(page(7), 10.0 * look + 2, 10.0 * look + 2).rows == ()
    assert not machine.read_again(60.0)


def test_a_listing_tells_of_a_shard_and_its_children():
    def shard(key, parents=(), ending=None):
        return Shard(key, HashRange(0, 9), parents, "1", ending)

    shards = [shard("shardId-0", ending="9"), shard("shardId-1", ("shardId-0",)), shard("shardId-2")]
    assert find_listed_shard("shardId-0", shards) == ListedShard(ListedState.CLOSED, (CHILD,))
    assert find_listed_shard("shardId-0", shards[1:]) == ListedShard(ListedState.MISSING, (CHILD,))
    assert find_listed_shard("shardId-2", shards) == ListedShard(ListedState.OPEN)


# --- lag ------------------------------------------------------------------------------------------------


def test_the_lag_is_unknown_before_the_first_page_and_fresh_after_an_empty_one():
    machine = started()
    assert machine.lag_ms(0.0) is None
    machine.on_page(page(1, behind=9000), 0.0, 0.0)
    assert machine.lag_ms(0.5) == 9000
    machine.on_page(page(behind=0), 0.5, 0.5)
    assert machine.lag_ms(1.0) == 0


def test_the_lag_grows_while_reads_are_held_up():
    machine = started()
    machine.on_page(page(1, behind=9000), 0.0, 0.0)
    assert machine.lag_ms(11.0) == 19_000


# --- options --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "wrong",
    [
        {"record_count_max": 0},
        {"record_count_max": 10_001},
        {"spacing_s": -1},
        {"deadline_s": 0},
        {"refusals_max": 0},
        {"read_bytes_per_s_max": 0},
        {"idle_time_between_reads_s": 300},
        {"backoff_min_s": 0},
        {"prefetch_bytes_max": 0},
        {"on_data_loss": "ignore"},
    ],
)
def test_an_option_out_of_range_is_refused_by_name(wrong):
    with pytest.raises(OptionError, match=next(iter(wrong))):
        ReaderOptions(**wrong)


# --- whatever happens, every record comes once and in order ---------------------------------------------


@given(st.data())
def test_every_record_comes_once_and_in_order_whatever_fails(data):
    stream = [(sequence, sub) for sequence in range(1, 30) for sub in range(1 + sequence % 3)]
    done = data.draw(st.sampled_from(stream))
    machine = reader(at_record(str(done[0]), done[1]))
    got, now, cursors = [], 0.0, {}
    budget, nulls = 400, 0
    while not machine.has_ended:
        budget -= 1
        assert budget, "the reading does not end"
        calm = budget < 200
        step = machine.plan_step(now)
        if isinstance(step, Wait):
            now = step.until_s
        elif isinstance(step, FetchIterator):
            cursors["it"] = int(step.position.sequence_number)
            machine.on_iterator("it", now, 1)
        elif isinstance(step, FetchListing):
            machine.on_listing(ListedShard(ListedState.CLOSED, (CHILD,)), now, 0.5)
        else:
            event = (
                "page"
                if calm
                else data.draw(st.sampled_from(["page", "page", "empty", "expired", "slow", "null"]))
            )
            start = cursors["it"]
            if event == "expired":
                machine.on_failure(ExpiredIterator("old"), now, 0.5)
            elif event == "slow":
                machine.on_failure(Throttled("slow"), now, 0.5)
            elif event == "empty":
                machine.on_page(page(behind=1, iterator="it"), now, now)
            else:
                count = data.draw(st.integers(1, 6))
                cursors["it"] = start + count
                ended = start + count > 29
                found = [place for place in stream if start <= place[0] < start + count]
                lost_end = event == "null" and nulls < 2  # the third in a row at one place would be believed
                nulls = nulls + 1 if lost_end else 0
                kept = machine.on_page(
                    page(
                        *found,
                        behind=0 if ended else 5,
                        iterator=None if ended or lost_end else "it",
                        children=(CHILD,) if ended else (),
                    ),
                    now,
                    now,
                )
                assert kept.loss is None
                got += places(kept.rows)
    assert got == [place for place in stream if place > done]


# --- pages that come twice: a subscription may repeat an event -------------------------------------------------------


def test_a_page_that_was_read_before_gives_nothing_and_moves_nothing_back():
    machine = started()
    machine.on_page(page(1, 2, 3), 0.0, 0.0)
    assert not machine.on_page(page(1, 2, iterator="again"), 0.0, 0.0).rows
    assert machine.position == at_record("3")
    assert places(machine.on_page(page(2, 3, 4), 0.0, 0.0).rows) == [(4, 0)]
    assert places(machine.on_page(page(5), 0.0, 0.0).rows) == [(5, 0)]
