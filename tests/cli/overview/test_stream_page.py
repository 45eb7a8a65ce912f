"""The dashboard's page of a stream, and the document of the same."""

import json
import re

import pytest

from penstock.cli.overview.dashboard_server import DashboardPages
from penstock.cli.overview.lag_history import LagHistory
from penstock.cli.overview.snapshot import ApplicationSnapshot, Snapshot
from penstock.cli.overview.stream_load import Advice, Load, LoadPoint, ShardLoad, StreamSnapshot
from penstock.cli.overview.stream_page import colour_of_share
from penstock.core.hash_key import HashRange
from penstock.core.shard import Shard

MIB = 1024 * 1024
HOSTILE = "<img src=x onerror=alert(1)>\"'&\u202e\x1b"
QUARTER = 2**126


def shard(number, start, count):
    return Shard(f"shardId-{number:012d}", HashRange(start * QUARTER, (start + count) * QUARTER - 1))


SHARDS = (
    ShardLoad(
        shard(0, 0, 2),
        Load({"written bytes": 0.1 * MIB, "written records": 900.0}, 0, 3, 1, sent_bytes_per_s=0.0),
    ),
    ShardLoad(shard(3, 2, 1), Load({"written bytes": 0.2 * MIB, "written records": 20.0}, 1234, None)),
    ShardLoad(shard(4, 3, 1), Load({})),
)
SNAPSHOT = StreamSnapshot(
    stream="arn:aws:kinesis:eu-west-1:123456789012:stream/orders",
    taken_ms=1_000,
    on_demand=False,
    load=Load({"written bytes": 1.5 * MIB, "reads": 3.0}, 1234, 3, shard_count=3),
    shards=SHARDS,
    history=(LoadPoint(0, 10.0, 20.0), LoadPoint(60_000, MIB, 5.0)),
    problems=("the shards are old",),
    advice=(Advice("Shard 3 is hot", "penstock streams split orders 3 --wait"),),
)


def contents(found, *streams):
    snapshots = tuple(
        ApplicationSnapshot(f"application {n}", stream, 1_000, lineage=(SHARDS[0].shard,) * n)
        for n, stream in enumerate(streams)
    )
    asked = []

    def fetch_stream_snapshot(stream, shards):
        asked.append((stream, len(shards)))
        return found

    newest = Snapshot(1_000, snapshots)
    shown = DashboardPages(
        newest_snapshot=lambda: newest,
        history=LagHistory(),
        lag_limit_s=60.0,
        interval_s=10.0,
        fetch_stream_snapshot=fetch_stream_snapshot,
        fetch_next_records=lambda *_: None,
    )
    return shown, asked


def page(found, stream=SNAPSHOT.stream):
    shown, _ = contents(found, stream, stream)
    return shown.answer("/stream", {"name": [stream]})


def cells(body, heading):
    """The texts of the rows of the table below a heading."""
    rows = body.partition(heading)[2].partition("<table>")[2].partition("</table>")[0].split("<tr")[2:]
    return [[re.sub("<[^>]*>", "", cell) for cell in re.findall(r"<td[^>]*>(.*?)</td>", row)] for row in rows]


def test_a_stream_has_its_figures_against_the_quotas_of_its_shards():
    answer = page(SNAPSHOT)
    assert answer.status == 200
    assert cells(answer.body, "Against the quotas") == [
        ["written bytes", "1.50 MiB/s", "3.00 MiB/s", "", "50%"],
        ["written records", "-", "3,000/s", "", "-"],
        ["read bytes", "-", "6.00 MiB/s", "", "-"],
        ["reads", "3/s", "15/s", "", "20%"],
        ["refused records", "1,234", "", "", ""],
        ["refused reads", "3", "", "", ""],
    ]
    assert "provisioned, 3 open shards, read by <a href=" in answer.body
    assert "the shards are old" in answer.body
    assert "<code>penstock streams split orders 3 --wait</code>" in answer.body
    assert answer.body.count("<polyline") == 2
    assert "from 0 to 1.00 MiB/s" in answer.body


def test_the_shards_are_listed_hottest_first():
    assert cells(page(SNAPSHOT).body, "Hottest first") == [
        ["3", "50.0% to 75.0%", "204.8 KiB/s", "20/s", "-", "1,234", "-", "", "20%"],
        ["0", "0.0% to 50.0%", "102.4 KiB/s", "900/s", "0.0 KiB/s", "0", "3", "", "90%"],
        ["4", "75.0% to 100.0%", "-", "-", "-", "-", "-", "", "-"],
    ]


def test_the_shards_are_bars_over_all_hash_keys_in_the_colour_of_what_they_use():
    drawn = page(SNAPSHOT).body.partition('<svg class="ranges edged"')[2].partition("</svg>")[0]
    bars = re.findall(
        r'<g class="(\w+)">.*?<rect x="([\d.]+)" y="[\d.]+" width="([\d.]+)" height="([\d.]+)"', drawn
    )
    assert bars == [
        ("lag3", "0.00", "500.00", "108.0"),
        ("bad", "500.00", "250.00", "24.0"),
        ("unknown", "750.00", "250.00", "120.0"),
    ]
    assert "shardId-000000000003, 50.0% to 75.0%, 204.8 KiB/s (20%) written bytes" in drawn


@pytest.mark.parametrize(
    ("share", "colour"),
    [(0.0, "lag0"), (0.25, "lag1"), (0.5, "lag2"), (0.79, "lag2"), (0.8, "lag3"), (2.0, "lag3")],
)
def test_the_colour_of_a_part_of_a_quota(share, colour):
    assert colour_of_share(share) == colour


def test_while_nothing_is_known_the_page_comes_again_soon():
    body = page(None).body
    assert "Asking CloudWatch" in body
    assert 'data-interval="1"' in body


def test_without_figures_what_is_known_is_shown():
    snapshot = StreamSnapshot(
        "orders", 0, None, shards=tuple(ShardLoad(each.shard, Load({})) for each in SHARDS)
    )
    body = page(snapshot, "orders").body
    assert "mode unknown, 3 open shards" in body
    assert "Against the quotas" not in body
    assert body.count('<g class="unknown">') == 3


def test_only_streams_of_watched_applications_are_read_with_their_known_shards():
    shown, asked = contents(SNAPSHOT, "orders", "orders", "other")
    for path in ("/stream", "/api/stream"):
        assert shown.answer(path, {"name": ["nosuch"]}).status == 404
    assert asked == []
    assert shown.answer("/stream", {"name": ["orders"]}).status == 200
    assert asked == [("orders", 1)]


def test_each_of_an_applications_streams_has_a_page_with_its_own_shards():
    keyed = tuple(
        Shard(f"{stream}:{number}", HashRange(0, 5))
        for stream, number in (("1:a:7", 0), ("1:a:7", 1), ("1:b:8", 0))
    )
    streams = {"1:a:7": "arn:aws:kinesis:eu-west-1:1:stream/a", "1:b:8": "b"}
    snapshot = Snapshot(0, (ApplicationSnapshot("all", "a, b", 0, lineage=keyed, streams=streams),))
    asked = []
    shown = DashboardPages(
        newest_snapshot=lambda: snapshot,
        history=LagHistory(),
        lag_limit_s=60.0,
        interval_s=10.0,
        fetch_stream_snapshot=lambda stream, shards: asked.append(
            (stream, [each.shard_id for each in shards])
        ),
        fetch_next_records=lambda *_: None,
    )
    for stream, status in ((streams["1:a:7"], 200), ("b", 200), ("a, b", 404)):
        assert shown.answer("/stream", {"name": [stream]}).status == status
    assert asked == [(streams["1:a:7"], ["0", "1"]), ("b", ["0"])]
    for path in ("/", "/application"):
        body = shown.answer(path, {"name": ["all"]}).body
        assert body.count('href="/stream?name=') == 2


def test_the_document_has_the_same():
    shown, _ = contents(SNAPSHOT, "orders")
    document = json.loads(shown.answer("/api/stream", {"name": ["orders"]}).body)
    assert [each["writes_refused"] for each in document["shards"]] == [0, 1234, None]
    assert document["advice"][0]["command"] == "penstock streams split orders 3 --wait"
    shown, _ = contents(None, "orders")
    assert shown.answer("/api/stream", {"name": ["orders"]}).status == 503


def test_what_others_wrote_is_text():
    snapshot = StreamSnapshot(
        HOSTILE,
        0,
        shards=(ShardLoad(Shard(HOSTILE, HashRange(0, 5)), Load({}, 1)),),
        problems=(HOSTILE,),
        advice=(Advice(HOSTILE, HOSTILE),),
    )
    body = page(snapshot, HOSTILE).body
    assert "<img" not in body
    assert not {"\u202e", "\x1b"} & set(body)
    assert not re.search(r"<[^>]+ style=", body)


def test_of_a_thousand_shards_the_hottest_are_listed_and_all_are_drawn():
    size = 2**128 // 1000
    many = tuple(
        ShardLoad(
            Shard(f"shardId-{n:012d}", HashRange(n * size, (n + 1) * size - 1)),
            Load({"written bytes": float(n)}),
        )
        for n in range(1000)
    )
    body = page(StreamSnapshot("orders", 0, shards=many), "orders").body
    assert body.count("<rect class") == 1000 + 100  # the room of each, and the bars of the table
    assert "and 900 more, which /api/stream names" in body
    assert cells(body, "Hottest first")[0][0] == "999"
    assert "edged" not in body.partition("<svg")[2][:30]
