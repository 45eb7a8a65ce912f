"""The dashboard: its pages, who is answered, and the command against the embedded Kinesis."""

import base64
import hashlib
import http.client
import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from functools import partial
from html.parser import HTMLParser
from types import SimpleNamespace

import pytest

from moved_clock import MovedClock

pytest.importorskip("httptools")

from penstock.cli import main as cli
from penstock.cli.overview.dashboard_server import DashboardPages, DashboardServer, Gate
from penstock.cli.overview.lag_history import LagHistory
from penstock.cli.overview.next_records import (
    RECORDS_MAX,
    NextRecord,
    NextRecordReader,
    NextRecords,
    fetch_next_records,
)
from penstock.cli.overview.page_frame import CONTENT_SECURITY_POLICY, address_of
from penstock.cli.overview.shard_rows import worker_rows
from penstock.cli.overview.snapshot import ApplicationSnapshot, Event, ShardRow, Snapshot
from penstock.cli.overview.trouble import TroubleLimits, with_troubles
from penstock.core.aggregation import AggregateBuilder
from penstock.core.hash_key import HashRange
from penstock.core.shard import Shard
from penstock.errors import AccessDenied
from penstock.ports.kinesis import RecordPage
from penstock.wiring import AwsOptions, open_kinesis
from penstock_local import LocalKinesis

TOKEN = "0123456789abcdef"
PORT = 8000
COOKIE = f"penstock-dashboard-{PORT}"
HOSTILE = "<img src=x onerror=alert(1)>\"'&\u202e\x1b"


def application(name, stream="orders"):
    rows = with_troubles(
        [
            ShardRow("shardId-000000000000", "read", "w1", lag_ms=5),
            ShardRow(
                "shardId-000000000001", "stopped", "w2", checkpoint="7.0", stopped_reason="handler_failed"
            ),
        ],
        TroubleLimits(),
    )
    lineage = tuple(Shard(f"shardId-{n:012d}", HashRange(n * 2**127, (n + 1) * 2**127 - 1)) for n in range(2))
    return ApplicationSnapshot(
        name, stream, 1_000, rows, worker_rows(rows), lineage, (), (Event(500, None, "began"),)
    )


def hostile():
    rows = with_troubles(
        [ShardRow(HOSTILE, "stopped", HOSTILE, HOSTILE, stopped_reason=HOSTILE)], TroubleLimits()
    )
    lineage = (Shard(HOSTILE, HashRange(0, 5), (HOSTILE + "2",)),)
    events = (Event(0, HOSTILE, HOSTILE),)
    return ApplicationSnapshot(HOSTILE, HOSTILE, 0, rows, worker_rows(rows), lineage, (HOSTILE,), events)


def contents(
    *snapshots,
    problems=(),
    fetch_next_records=None,
    shows_records=False,
    fetch_stream_snapshot=lambda *_: None,
):
    history = LagHistory()
    newest = Snapshot(1_000, snapshots, problems) if snapshots else None
    if newest is not None:
        history.add(newest)
        history.add(newest)
    return DashboardPages(
        newest_snapshot=lambda: newest,
        history=history,
        lag_limit_s=60.0,
        interval_s=10.0,
        fetch_stream_snapshot=fetch_stream_snapshot,
        fetch_next_records=fetch_next_records or (lambda *_: NextRecords("7.0", ())),
        shows_records=shows_records,
    )


@pytest.fixture
def server():
    with LocalKinesis() as kinesis:
        yield kinesis


class Page(HTMLParser):
    """Notes the tags, the attributes and the text of a page."""

    def __init__(self, text):
        super().__init__()
        self.tags, self.attributes, self.text = [], [], []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes += [(tag, name, value) for name, value in attrs]

    def handle_data(self, data):
        self.text.append(data)


def test_all_applications_are_cards_that_lead_to_their_pages():
    answer = contents(application("billing"), application("a b&c")).answer("/", {})
    page = Page(answer.body)
    assert [value for tag, name, value in page.attributes if (tag, name) == ("a", "href")] == [
        "/",
        "/application?name=billing",
        "/application?name=a%20b%26c",
        "/stream?name=orders",
    ]
    assert "1 stopped" in page.text
    assert page.tags.count("polyline") == 2


def test_an_application_has_its_shards_lineage_lag_workers_and_events():
    answer = contents(application("billing")).answer("/application", {"name": ["billing"]})
    page = Page(answer.body)
    assert answer.status == 200
    assert {"shardId-000000000000", "shardId-000000000001", "w1", "w2", "began"} <= set(page.text)
    assert "handler_failed (more in the log of w2)" in page.text
    assert page.tags.count("rect") == 2 + 2  # the lineage and the workers' bars
    assert page.tags.count("polyline") == 2


@pytest.mark.parametrize(("path", "query"), [("/", {}), ("/application", {"name": [HOSTILE]})])
def test_what_others_wrote_is_text_on_every_page(path, query):
    answer = contents(hostile(), problems=(HOSTILE,)).answer(path, query)
    assert answer.status == 200
    page = Page(answer.body)
    assert "img" not in page.tags
    assert not [name for _, name, _ in page.attributes if name.startswith("on")]
    assert not {"\u202e", "\x1b"} & set(answer.body)
    assert any("<img src=x onerror=alert(1)>" in text for text in page.text)
    assert page.tags.count("script") == 1


def test_a_page_needs_nothing_from_elsewhere():
    body = contents(application("billing")).answer("/application", {"name": ["billing"]}).body
    assert not [value for _, name, value in Page(body).attributes if name == "src"]
    assert not re.search(r"https?://|@import|url\(", body)


def test_the_browser_runs_the_pages_own_script_and_style_and_nothing_else():
    body = contents(application("billing")).answer("/", {}).body
    for tag, source in (("script", "script-src"), ("style", "style-src")):
        (text,) = re.findall(rf"<{tag}>(.*?)</{tag}>", body, re.DOTALL)
        digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
        assert f"{source} 'sha256-{digest}';" in CONTENT_SECURITY_POLICY
    assert not re.search(r"<[^>]+ style=", body)


def test_before_the_first_snapshot_pages_say_so_and_programs_get_a_retry_time():
    assert "Looking" in contents().answer("/", {}).body
    answer = contents().answer("/api/look", {})
    assert (answer.status, answer.headers) == (503, (("Retry-After", "1"),))


def test_what_is_not_there_is_status_404():
    assert contents(application("billing")).answer("/nosuch", {}).status == 404
    answer = contents(application("billing")).answer("/application", {"name": ["<b>"]})
    assert answer.status == 404
    assert "<b>" not in answer.body


# --- a shard ----------------------------------------------------------------------------------------------

SHARD = {"name": ["billing"], "shard": ["shardId-000000000001"]}
NEXT = (
    NextRecord("12.0", 1_000, HOSTILE, HOSTILE.encode(), len(HOSTILE.encode())),
    NextRecord("13.0", 2_000, None, b"\xff\x00", 2),
    NextRecord("14.0", 3_000, "k", ("x" + "\u00fc" * 1500).encode()[:2000], 3001),
)


def shard_page(**more):
    return contents(application("billing"), **more).answer("/shard", SHARD)


def test_a_shard_has_its_facts_and_how_many_bytes_its_next_records_have():
    answer = shard_page(fetch_next_records=lambda *_: NextRecords("7.0", NEXT))
    page = Page(answer.body)
    assert answer.status == 200
    assert {"12.0", "13.0", "1970-01-01T00:00:01.000+00:00", "2", "stopped"} <= set(page.text)
    assert "--show-records" in answer.body
    assert "onerror" not in answer.body
    assert "moved since" not in answer.body
    before = shard_page(fetch_next_records=lambda *_: NextRecords("6.0", NEXT))
    assert "Read behind checkpoint 6.0, which has moved since" in before.body


def test_keys_and_payloads_are_shown_when_that_was_asked_for_and_as_text():
    page = Page(shard_page(fetch_next_records=lambda *_: NextRecords("7.0", NEXT), shows_records=True).body)
    assert "img" not in page.tags
    assert page.text.count(HOSTILE.replace("\u202e", "\\u202e").replace("\x1b", "\\x1b")) == 2
    assert "base64:/wA=" in page.text
    assert "x" + "\u00fc" * 999 + " ..." in page.text


def test_why_the_next_records_are_not_known_is_told():
    def refused(*_):
        raise AccessDenied("GetRecords on stream orders: no")

    assert "GetRecords on stream orders: no" in shard_page(fetch_next_records=refused).body
    assert "all records are done" in shard_page().body
    unnamed = contents(application("billing", None)).answer("/shard", SHARD)
    assert "--stream" in unnamed.body


def test_a_shard_without_a_lease_is_status_404_and_tells_why_it_is_not_known():
    unknown = {"name": ["billing"], "shard": ["<b>"]}
    gone = contents(application("billing")).answer("/shard", unknown)
    assert gone.status == 404
    assert "It has no lease of this shard." in gone.body
    assert "<b>" not in gone.body
    denied = contents(ApplicationSnapshot("billing", "orders", 0, problems=("Scan: no",))).answer(
        "/shard", SHARD
    )
    assert denied.status == 404
    assert {"Scan: no", "The leases cannot be read."} <= set(Page(denied.body).text)
    assert contents(application("audit")).answer("/shard", SHARD).status == 404


def test_what_is_read_next_begins_behind_the_checkpoint_also_inside_an_aggregate(server):
    builder = AggregateBuilder()
    for key in "abc":
        builder.add(key.encode(), key)
    client = server.client("kinesis")
    server.create_stream("next", 1)

    def put(data):
        return client.put_record(StreamName="next", Data=data, PartitionKey="k")["SequenceNumber"]

    first, aggregate, last = put(b"1"), put(builder.build().data), put(b"2")
    options = AwsOptions(**server.connection())
    fetch = partial(fetch_next_records, open_kinesis(options), "next", "shardId-000000000000")
    assert [record.data for record in fetch("TRIM_HORIZON")] == [b"1", b"a", b"b", b"c", b"2"]
    assert [record.data for record in fetch(f"{first}.0")] == [b"a", b"b", b"c", b"2"]
    inside = fetch(f"{aggregate}.1")
    assert [(record.place, record.partition_key, record.data) for record in inside] == [
        (f"{aggregate}.2", "c", b"c"),
        (f"{last}.0", "k", b"2"),
    ]
    assert fetch(f"{last}.0") == ()
    for number in range(2 * RECORDS_MAX):
        put(str(number).encode())
    assert len(fetch("TRIM_HORIZON")) == RECORDS_MAX


class Shard0:
    """A stream whose shard has so many records behind every checkpoint."""

    def __init__(self, record_count):
        self.record_count = record_count
        self.reads = []

    def fetch_iterator(self, stream, shard, start):
        self.reads.append((stream, shard, start.sequence_number))
        return "iterator"

    def fetch_records(self, stream, iterator, record_count_max):
        if self.record_count is None:
            raise AccessDenied("GetRecords: no")
        records = [
            SimpleNamespace(sequence_number=str(900 + n), arrival_s=1.0, partition_key="k", data=b"x" * 5000)
            for n in range(self.record_count)
        ]
        return RecordPage(records, None, 0)


def test_an_open_page_reads_again_after_a_new_checkpoint_at_most_every_five_seconds():
    shard, clock = Shard0(RECORDS_MAX), MovedClock()
    fetch = NextRecordReader(shard, clock).fetch
    first = fetch("orders", "s0", "7.0")
    assert (first.checkpoint, len(first.records)) == ("7.0", RECORDS_MAX)
    assert (first.records[0].byte_count, first.records[0].is_cut) == (5000, True)
    clock.now_s = 3600.0
    assert fetch("orders", "s0", "7.0") is first
    assert len(shard.reads) == 1
    moved = fetch("orders", "s0", "8.0")
    assert moved.checkpoint == "8.0"
    clock.now_s += 4.0
    assert fetch("orders", "s0", "9.0") is moved
    assert len(shard.reads) == 2
    clock.now_s += 1.0
    assert fetch("orders", "s0", "9.0").checkpoint == "9.0"
    fetch("orders", "s1", "9.0")
    assert [name for _, name, _ in shard.reads] == ["s0", "s0", "s0", "s1"]


@pytest.mark.parametrize("record_count", [0, 3, None])
def test_where_few_records_or_an_error_came_it_is_read_again_after_half_a_minute(record_count):
    shard, clock = Shard0(record_count), MovedClock()
    reader = NextRecordReader(shard, clock)

    def fetch():
        if record_count is not None:
            return len(reader.fetch("orders", "s0", "7.0").records)
        with pytest.raises(AccessDenied):
            reader.fetch("orders", "s0", "7.0")
        return None

    for clock.now_s, read_count in ((0.0, 1), (29.0, 1), (30.0, 2), (59.0, 2)):
        assert fetch() == record_count
        assert len(shard.reads) == read_count


# --- who is answered --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("headers", "is_answered"),
    [
        ({"host": "127.0.0.1:8000"}, True),
        ({"host": "localhost:8000"}, True),
        ({"host": "[::1]:8000"}, True),
        ({"host": "evil.example:8000"}, False),
        ({"host": "127.0.0.1.evil.example"}, False),
        ({}, False),
        ({"host": "localhost", "origin": "https://evil.example"}, False),
        ({"host": "localhost", "sec-fetch-site": "cross-site"}, False),
    ],
)
def test_without_a_token_only_names_of_this_machine_are_answered(headers, is_answered):
    answer = Gate(None).refuse("/", {}, headers, PORT)
    assert (answer is None) is is_answered
    assert answer is None or answer.status == 403


@pytest.mark.parametrize(
    ("headers", "is_answered"),
    [
        ({}, False),
        ({"authorization": f"Bearer {TOKEN}"}, True),
        ({"authorization": f"bearer {TOKEN}"}, True),
        ({"authorization": f"Bearer {TOKEN}x"}, False),
        ({"authorization": f"Basic {TOKEN}"}, False),
        ({"authorization": "Bearer ü"}, False),
        ({"cookie": f"other=1; {COOKIE}={TOKEN}"}, True),
        ({"cookie": f'prefs={{"a":1, "b":2}}; {COOKIE}={TOKEN}'}, True),
        ({"cookie": f"a[b]=x y z; {COOKIE}={TOKEN}"}, True),
        ({"cookie": f"foo; {COOKIE}={TOKEN}; bar"}, True),
        ({"cookie": f"u@x=1;{COOKIE}={TOKEN}"}, True),
        ({"cookie": f"name=Müller; {COOKIE}={TOKEN}"}, True),
        ({"cookie": f"{COOKIE}=wrong; {COOKIE}={TOKEN}"}, True),
        ({"cookie": f"penstock-dashboard-8001=another; {COOKIE}={TOKEN}"}, True),
        ({"cookie": f"penstock-dashboard-8001={TOKEN}"}, False),
        ({"cookie": f"{COOKIE}=wrong"}, False),
        ({"cookie": COOKIE}, False),
        ({"cookie": f"x{COOKIE}={TOKEN}"}, False),
        ({"cookie": "\x00;;==[]"}, False),
    ],
)
def test_with_a_token_only_who_has_it_is_answered(headers, is_answered):
    answer = Gate(TOKEN).refuse("/api/look", {}, {"host": "dashboard.example", **headers}, PORT)
    assert (answer is None) is is_answered
    assert answer is None or (answer.status, dict(answer.headers)) == (401, {"WWW-Authenticate": "Bearer"})


def test_the_token_in_the_address_becomes_a_cookie_and_leaves_the_address():
    answer = Gate(TOKEN).refuse("/", {"token": [TOKEN]}, {}, PORT)
    assert answer.status == 303
    assert dict(answer.headers)["Location"] == "/"
    cookie = dict(answer.headers)["Set-Cookie"]
    assert "HttpOnly" in cookie
    assert "SameSite=Strict" in cookie
    assert Gate(TOKEN).refuse("/", {}, {"cookie": cookie.partition(";")[0]}, PORT) is None
    assert Gate(TOKEN).refuse("/", {"token": ["wrong"]}, {}, PORT).status == 401


def ask(port, path, method="GET", **headers):
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    try:
        connection.request(method, path, headers=headers)
        answer = connection.getresponse()
        return answer.status, answer.headers, answer.read().decode()
    finally:
        connection.close()


def test_over_http_everything_has_its_headers_and_only_get_and_head_are_answered():
    with DashboardServer(contents(application("billing")), Gate(None), "127.0.0.1", 0) as server:
        status, headers, body = ask(server.port, "/api/look")
        assert status == 200
        assert json.loads(body)["applications"][0]["application"] == "billing"
        assert headers["Cache-Control"] == "no-store"
        assert headers["Content-Security-Policy"].startswith("default-src 'none'")
        assert "Access-Control-Allow-Origin" not in headers
        assert ask(server.port, address_of("billing"))[0] == 200
        assert ask(server.port, "/", Host="evil.example")[0] == 403
        assert ask(server.port, "//[", Host="localhost")[0] == 404
        assert ask(server.port, "/", "POST")[0] == 501
        assert ask(server.port, "/api/look", "HEAD")[0::2] == (200, "")
        assert int(ask(server.port, "/api/look", "HEAD")[1]["Content-Length"]) == len(body.encode())


def test_a_wrong_token_is_status_401_over_http():
    with DashboardServer(contents(application("billing")), Gate(TOKEN), "127.0.0.1", 0) as server:
        assert ask(server.port, "/")[0] == 401
        assert ask(server.port, "/api/look", Authorization="Bearer wrong")[0] == 401
        assert ask(server.port, "/api/look", Authorization=f"Bearer {TOKEN}")[0] == 200
        status, headers, _ = ask(server.port, f"/?token={TOKEN}")
        assert status == 303
        cookie = headers["Set-Cookie"].partition(";")[0]
        assert cookie == f"penstock-dashboard-{server.port}={TOKEN}"
        assert ask(server.port, "/", Cookie=f"a[b]=x y; {cookie}")[0] == 200


# --- the command ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--host", "0.0.0.0"], "--host 0.0.0.0 is reached from other machines: give a --token"),
        (["--host", "dashboard.example"], "give a --token"),
        (["--token", "short"], "--token: expected at least 16 characters"),
        (["--token", "0123456789abcdef;"], "--token: expected at least 16 characters"),
        (["--interval", "0"], "--interval 0: expected at least 1"),
    ],
)
def test_a_dashboard_that_anybody_could_read_is_refused(arguments, message, capsys, monkeypatch):
    monkeypatch.delenv("PENSTOCK_DASHBOARD_TOKEN", raising=False)
    assert cli.main(["dashboard", *arguments]) == 2
    assert message in capsys.readouterr().err


def test_the_command_serves_what_it_finds_until_it_is_interrupted():
    with LocalKinesis() as kinesis:  # an account of its own: the dashboard shows all that there is
        kinesis.create_stream("orders", 2)
        dynamodb = kinesis.client("dynamodb")
        dynamodb.create_table(
            TableName="billing",
            KeySchema=[{"AttributeName": "leaseKey", "KeyType": "HASH"}],
            AttributeDefinitions=[{"AttributeName": "leaseKey", "AttributeType": "S"}],
            BillingMode="PAY_PER_REQUEST",
        )
        lease = {
            "leaseKey": {"S": "shardId-000000000000"},
            "leaseOwner": {"S": "w1"},
            "leaseCounter": {"N": "1"},
        }
        dynamodb.put_item(TableName="billing", Item={**lease, "checkpoint": {"S": "TRIM_HORIZON"}})
        environ = {**os.environ, **kinesis.environ(), "PENSTOCK_DASHBOARD_TOKEN": TOKEN}
        command = [sys.executable, "-m", "penstock", "dashboard", "--stream", "orders", "--interval", "1"]
        command += ["--silent-after", "3600"]  # this machine may be busy
        process = subprocess.Popen(
            command, env=environ, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        try:
            line = process.stdout.readline()
            port = int(re.fullmatch(r"http://127\.0\.0\.1:(\d+)/\?token=\.\.\.\n", line)[1])
            end_s = time.monotonic() + 60
            status = 503
            while status == 503:
                assert time.monotonic() < end_s
                threading.Event().wait(0.05)
                status, _, body = ask(port, "/api/look", Authorization=f"Bearer {TOKEN}")
            assert status == 200
            (shown,) = json.loads(body)["applications"]
            assert [shard["trouble"] for shard in shown["shards"]] == ["no lease", None]
            page = ask(port, address_of("billing"), Authorization=f"Bearer {TOKEN}")[2]
            assert "shardId-000000000001" in page
            process.send_signal(signal.SIGINT)
            out, err = process.communicate(timeout=60)
        finally:
            process.kill()
            process.wait()
        assert (process.returncode, out, err) == (0, "", "")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_the_command_also_while_the_service_is_silent(number):
    with socket.create_server(("127.0.0.1", 0)) as silent:  # accepts by its backlog, and never answers
        environ = {**os.environ, "AWS_ACCESS_KEY_ID": "local", "AWS_SECRET_ACCESS_KEY": "local"}
        command = [sys.executable, "-m", "penstock", "dashboard", "billing", "--region", "us-east-1"]
        command += ["--endpoint-url", f"http://127.0.0.1:{silent.getsockname()[1]}"]
        process = subprocess.Popen(
            command, env=environ, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        try:
            assert process.stdout.readline().startswith("http://127.0.0.1:")
            process.send_signal(number)
            out, err = process.communicate(timeout=60)
        finally:
            process.kill()
            process.wait()
        assert (process.returncode, out, err) == (0, "", "")
