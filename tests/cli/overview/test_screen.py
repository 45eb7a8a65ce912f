"""Where keys lead, and that every page fits into its terminal."""

import io

import pytest

from penstock.cli.overview.screen import Key, Page, Selection, parse_keys, window_of
from penstock.cli.overview.shard_rows import worker_rows
from penstock.cli.overview.snapshot import ApplicationSnapshot, Event, ShardRow, Snapshot
from penstock.cli.overview.stream_load import Advice, Load, ShardLoad, StreamSnapshot
from penstock.cli.overview.trouble import TroubleLimits, with_troubles
from penstock.core.hash_key import HashRange
from penstock.core.shard import Shard

HOSTILE = "w[/x]\x1b[31m\nnext\u202e"


def application(name, count=3, **more):
    rows = with_troubles(
        [ShardRow(f"shardId-{n:012d}", "read", f"w{n}", lag_ms=n) for n in range(count)], TroubleLimits()
    )
    return ApplicationSnapshot(name, "orders", 0, rows, worker_rows(rows), **more)


SNAPSHOT = Snapshot(0, (application("a"), application("b"), application("c")))


@pytest.mark.parametrize(
    ("data", "keys"),
    [
        (b"j\x1b[Bk\x1bOA", [Key.DOWN, Key.DOWN, Key.UP, Key.UP]),
        (b"\rs\x1b[D", [Key.OPEN, Key.STREAM, Key.BACK]),
        (b"\x1b", [Key.BACK]),
        (b"\x1b[5~\x1b[1;5Cxq", [Key.QUIT]),
        (b"", []),
    ],
)
def test_keys_are_found_in_what_a_terminal_sends(data, keys):
    assert parse_keys(data) == keys


def press(place, *keys, snapshot=SNAPSHOT):
    for key in keys:
        place = place.press(key, snapshot)
    return place


def test_down_and_up_stop_at_the_ends():
    assert press(Selection(), Key.DOWN).application == "b"
    assert press(Selection(), *[Key.DOWN] * 9).application == "c"
    assert press(Selection(application="c"), *[Key.UP] * 9).application == "a"
    assert press(Selection(), Key.LAST).application == "c"
    assert press(Selection(application="c"), Key.FIRST).application == "a"


def test_enter_goes_down_to_a_shard_and_escape_back():
    shards = press(Selection(), Key.DOWN, Key.OPEN)
    assert (shards.page, shards.application, shards.shard) == (Page.SHARDS, "b", None)
    shard = press(shards, Key.DOWN, Key.OPEN)
    assert (shard.page, shard.shard) == (Page.SHARD, "shardId-000000000001")
    back = press(shard, Key.BACK)
    assert (back.page, back.shard) == (Page.SHARDS, shard.shard)
    assert press(back, Key.BACK) == Selection(Page.APPLICATIONS, "b")


def test_s_shows_the_stream_of_an_application_and_escape_leads_back():
    shards = press(Selection(), Key.DOWN, Key.OPEN, Key.DOWN)
    stream = press(shards, Key.STREAM)
    assert (stream.page, stream.application) == (Page.STREAM, "b")
    assert press(stream, Key.DOWN, Key.OPEN, Key.STREAM) == stream
    assert press(stream, Key.BACK) == shards
    assert press(Selection(), Key.STREAM) == Selection()


def test_what_is_selected_stays_selected_when_rows_move_and_what_has_gone_does_not():
    place = press(Selection(), Key.DOWN)
    moved = Snapshot(0, tuple(reversed(SNAPSHOT.applications)))
    assert place.application_of(moved).application == "b"
    assert place.application_of(Snapshot(0, SNAPSHOT.applications[:1])).application == "a"
    assert Selection(Page.SHARD, "a", "gone").shard_of(SNAPSHOT) is None
    assert (
        Selection(Page.SHARDS, "a", "gone").shard_of(SNAPSHOT).shard
        == SNAPSHOT.applications[0].shards[0].shard
    )


@pytest.mark.parametrize("page", list(Page))
def test_nothing_to_select_is_no_error(page):
    empty = Snapshot(0, ())
    place = press(Selection(page), *Key, snapshot=empty)
    assert place.application_of(empty) is None
    assert place.shard_of(empty) is None


@pytest.mark.parametrize(("selected", "first"), [(0, 0), (4, 2), (9, 5), (7, 5)])
def test_a_window_holds_what_is_selected(selected, first):
    rows = list(range(10))
    assert window_of(rows, selected, 5) == (rows[first : first + 5], first)


# --- drawing ----------------------------------------------------------------------------------------------


def busy(stream, shards, count=40):
    """A stream of forty shards, one of which has refused writes; every text in it is hostile."""
    size = 2**128 // count
    loads = tuple(
        ShardLoad(
            Shard(f"shardId-{n:012d}", HashRange(n * size, (n + 1) * size - 1)),
            Load({"written bytes": 1024.0 * n}, n == 25),
        )
        for n in range(count)
    )
    total = Load({"written bytes": 4.5 * 1024 * 1024, "reads": 20.0}, 1, 0, count)
    advice = (Advice(HOSTILE, "penstock streams split orders 25 --wait"),)
    return StreamSnapshot(stream, 0, False, total, loads, problems=(HOSTILE,), advice=advice)


def drawn(snapshot, place, width=100, height=20, fetch_stream_snapshot=busy):
    console = pytest.importorskip("rich.console")
    from penstock.cli.overview.live_view import render

    out = io.StringIO()
    console.Console(file=out, width=width, force_terminal=False).print(
        render(snapshot, place, height, fetch_stream_snapshot)
    )
    return out.getvalue()


@pytest.mark.parametrize("height", [8, 20, 60])
@pytest.mark.parametrize("page", list(Page))
def test_every_page_fits_and_shows_what_is_selected(page, height):
    events = tuple(Event(0, f"shardId-{n:012d}", f"event {n}") for n in range(20))
    snapshot = Snapshot(0, (application("orders-app", 40, events=events),))
    text = drawn(snapshot, Selection(page, "orders-app", "shardId-000000000025"), height=height)
    assert len(text.splitlines()) <= height
    assert "orders-app" in text
    assert all(len(line) <= 100 for line in text.splitlines())
    selected = {
        Page.APPLICATIONS: "orders-app",
        Page.SHARDS: "w25",
        Page.SHARD: "shardId-000000000025",
        Page.STREAM: "stream orders   provisioned   40 open shards",
    }
    assert selected[page] in text


def test_a_stream_has_its_figures_what_to_do_and_its_hottest_shard():
    lines = [
        " ".join(line.split())
        for line in drawn(SNAPSHOT, Selection(Page.STREAM, "a"), height=24).splitlines()
    ]
    assert "penstock streams split orders 25 --wait" in lines
    assert "written bytes 4.50 MiB/s of 40.00 MiB/s 11% ██" in lines
    assert "written records - of 40,000/s -" in lines
    assert "refused records 1, reads 0" in lines
    columns = next(at for at, line in enumerate(lines) if line.startswith("shard"))
    assert lines[columns + 1] == "25 62.5% to 65.0% 25.0 KiB/s - - 1 - 2%"
    assert lines[columns + 2].startswith("39")
    assert "asking CloudWatch" in drawn(
        SNAPSHOT, Selection(Page.STREAM, "a"), fetch_stream_snapshot=lambda *_: None
    )
    unnamed = Snapshot(0, (ApplicationSnapshot("a", None, 0),))
    assert "give --stream" in drawn(unnamed, Selection(Page.STREAM, "a"))


def test_a_page_says_that_its_shard_or_all_applications_have_gone():
    assert "has no lease any more" in drawn(SNAPSHOT, Selection(Page.SHARD, "a", "gone"))
    assert "no lease table was found" in drawn(Snapshot(0, ()), Selection())
    assert "no leases yet" in drawn(Snapshot(0, (application("a", 0),)), Selection(Page.SHARDS, "a"))


def test_leases_that_cannot_be_read_are_not_called_missing():
    problem = "Scan on lease table a: no connection; check the region and the endpoint, and whether it can be reached from here"
    unread = ApplicationSnapshot("a", None, 0, problems=(problem,))
    text = drawn(Snapshot(0, (unread,)), Selection(Page.SHARDS, "a"))
    assert "no leases yet" not in text
    assert problem in " ".join(text.split())


def test_what_others_wrote_acts_on_no_terminal():
    rows = with_troubles([ShardRow(HOSTILE, "stopped", HOSTILE, stopped_reason=HOSTILE)], TroubleLimits())
    snapshot = Snapshot(
        0,
        (
            ApplicationSnapshot(
                HOSTILE, HOSTILE, 0, rows, worker_rows(rows), (), (HOSTILE,), (Event(0, HOSTILE, HOSTILE),)
            ),
        ),
        (HOSTILE,),
    )
    for page in Page:
        text = drawn(snapshot, Selection(page, HOSTILE, HOSTILE), width=400)
        assert "\x1b" not in text
        assert "\u202e" not in text
        assert "[/x]" in text
