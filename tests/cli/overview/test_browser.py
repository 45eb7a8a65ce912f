"""The dashboard in a real browser, headless: against the embedded Kinesis, with the view of a stranger to the server.

`make screenshots` writes the pictures of the docs with it.
"""

import os
import random
import shutil
import subprocess
import sys
import threading
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlsplit

import pytest

pytest.importorskip("httptools")
pytest.importorskip("playwright")

from playwright.sync_api import sync_playwright

from penstock_local import LocalKinesis

DOCS = Path(__file__).parents[3] / "docs"
DEADLINE_MS = 90_000
KIB = 1024
PROGRAMS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
FLAGS = ("--disable-quic", "--disable-sync", "--disable-component-update")
WORKERS = ("eu-west-1a/billing-7f9c", "eu-west-1b/billing-2b41")
STOPPED = "shardId-000000000004"
HOT = "shardId-000000000003"
PHONE = {"width": 390, "height": 844}
DESK = {"width": 960, "height": 800}
PATHS = ("/", "/application?name=billing", "/stream?name=orders", f"/shard?name=billing&shard={STOPPED}")


@pytest.fixture(scope="module")
def browser():
    with sync_playwright() as library:
        own = library.chromium.executable_path
        program = own if Path(own).exists() else next(filter(None, map(shutil.which, PROGRAMS)), None)
        if program is None:
            pytest.skip("no browser is here: install Debian's chromium, or run `playwright install chromium`")
        browser = library.chromium.launch(executable_path=program, args=FLAGS, timeout=DEADLINE_MS)
        yield browser
        browser.close()


class World:
    """A stream with a history, one hot shard and one that is stopped, and the leases of two workers."""

    def __init__(self, server):
        self.server = server
        self.kinesis, self.dynamodb = server.client("kinesis"), server.client("dynamodb")
        server.create_stream("orders", 6)
        self.kinesis.enable_enhanced_monitoring(StreamName="orders", ShardLevelMetrics=["ALL"])
        self.settle()
        self.kinesis.merge_shards(
            StreamName="orders",
            ShardToMerge="shardId-000000000000",
            AdjacentShardToMerge="shardId-000000000001",
        )
        self.settle()
        self.kinesis.split_shard(
            StreamName="orders", ShardToSplit="shardId-000000000002", NewStartingHashKey=str(2**128 * 5 // 12)
        )
        self.settle()
        self.shards = [
            shard
            for shard in self.kinesis.list_shards(StreamName="orders")["Shards"]
            if "EndingSequenceNumber" not in shard["SequenceNumberRange"]
        ]
        self.numbers = {shard["ShardId"]: self.put(shard, 3) for shard in self.shards}
        hot = next(shard for shard in self.shards if shard["ShardId"] == HOT)
        # Its checkpoint is behind them: measuring its lag reads nothing large.
        self.numbers[HOT] = self.put(hot, 54, 1000 * KIB)
        server.faults.throttle("PutRecords", shard=STOPPED, count=1)
        refused = next(shard for shard in self.shards if shard["ShardId"] == STOPPED)
        assert self.put(refused, 7) is None
        self.dynamodb.create_table(
            TableName="billing",
            KeySchema=[{"AttributeName": "leaseKey", "KeyType": "HASH"}],
            AttributeDefinitions=[{"AttributeName": "leaseKey", "AttributeType": "S"}],
            BillingMode="PAY_PER_REQUEST",
        )
        for number, shard in enumerate(self.shards):
            self.put_lease(shard["ShardId"], WORKERS[number % 2])

    def settle(self):
        self.server.clock.advance(1)

    def put(self, shard, count, size_bytes=100):
        """Put records into a shard; return the number of the last one, None where they were refused."""
        key = shard["HashKeyRange"]["StartingHashKey"]
        last = None
        for _ in range(-(-count // 9)):
            entry = {"Data": b"secret-payload " * (size_bytes // 15), "PartitionKey": "secret-key"}
            records = [{**entry, "ExplicitHashKey": key}] * min(9, count)
            answers = self.kinesis.put_records(StreamName="orders", Records=records)["Records"]
            last = answers[-1].get("SequenceNumber")
        return last

    def put_lease(self, shard, owner, counter=1):
        item = {
            "leaseKey": {"S": shard},
            "leaseOwner": {"S": owner},
            "leaseCounter": {"N": str(counter)},
            "checkpoint": {"S": "TRIM_HORIZON" if shard == STOPPED else self.numbers[shard]},
        }
        if shard == STOPPED:
            reason = "handler_failed: ValueError: amount is missing"
            item["penstockStopped"] = {"M": {"worker": {"S": owner}, "reason": {"S": reason}}}
        self.dynamodb.put_item(TableName="billing", Item=item)


@pytest.fixture(scope="module")
def world():
    with LocalKinesis(limits=False) as server:
        yield World(server)


@contextmanager
def dashboard(world, *options):
    """Run the command; yield its address."""
    command = [sys.executable, "-m", "penstock", "dashboard", "--stream", "orders", "--interval", "1"]
    command += ["--silent-after", "3600", *options]  # this machine may be busy
    environ = {**os.environ, **world.server.environ()}
    environ.pop("PENSTOCK_DASHBOARD_TOKEN", None)
    process = subprocess.Popen(command, env=environ, stdout=subprocess.PIPE, text=True)
    try:
        yield process.stdout.readline().strip().rstrip("/")
    finally:
        process.kill()
        process.communicate()


@pytest.fixture(scope="module")
def address(world):
    with dashboard(world) as found:
        yield found


@contextmanager
def visit(browser, address, path, **context):
    """Open a page, wait for its figures, and check at the end that there was no error and no request to another host."""
    problems, hosts = [], set()
    with browser.new_context(**context) as opened:
        opened.set_default_timeout(DEADLINE_MS)
        page = opened.new_page()
        page.on("console", lambda message: problems.append(message.text) if message.type == "error" else None)
        page.on("pageerror", lambda error: problems.append(str(error)))
        page.on("requestfailed", lambda request: problems.extend(failures_of(request)))
        page.on("request", lambda request: hosts.add(urlsplit(request.url).netloc))
        page.goto(address + path)
        # Before the first snapshot there is only a heading; the page's own script fetches it again.
        page.wait_for_selector("main .card, main table")
        yield page
    assert problems == []
    assert hosts <= {urlsplit(address).netloc, ""}


def failures_of(request):
    """Why a request failed; nothing where its page was left while it was under way."""
    return [] if request.failure == "net::ERR_ABORTED" else [f"{request.url}: {request.failure}"]


def rows_of(page, heading):
    """The cells of the table below a heading, read at once: the page may redraw itself."""
    rows = page.locator(f"h2:has-text('{heading}') + div table tr")
    return rows.evaluate_all(
        "(rows) => rows.slice(1).map((row) => [...row.cells].map((cell) => cell.innerText))"
    )


def test_every_page_loads_in_light_and_dark_and_asks_nobody_else(browser, address):
    backs = {}
    for scheme in ("light", "dark"):
        for path in PATHS:
            with visit(browser, address, path, viewport=DESK, color_scheme=scheme) as page:
                backs[scheme, path] = page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert {backs["light", path] for path in PATHS} == {"rgb(246, 247, 249)"}
    assert {backs["dark", path] for path in PATHS} == {"rgb(18, 22, 28)"}


def test_on_a_phone_no_page_is_wider_than_the_screen(browser, address):
    for path in PATHS:
        with visit(browser, address, path, viewport=PHONE, is_mobile=True, has_touch=True) as page:
            wide = page.evaluate("[document.documentElement.scrollWidth, window.innerWidth]")
            assert wide == [PHONE["width"], PHONE["width"]], path


def test_from_the_applications_one_comes_to_a_shard_and_to_the_stream(browser, address):
    with visit(browser, address, "/", viewport=DESK) as page:
        card = page.locator("a.card")
        assert "1 stopped" in card.inner_text()
        card.click()
        page.wait_for_selector("h2:has-text('Workers')")
        assert rows_of(page, "Shards")[0][:3] == [STOPPED, "stopped", WORKERS[1]]
        assert {row[0] for row in rows_of(page, "Workers")} == set(WORKERS)
        page.get_by_role("link", name=STOPPED).click()
        page.wait_for_selector("h2:has-text('What is read next')")
        page.get_by_role("link", name="billing").click()
        page.get_by_role("link", name="orders").click()
        page.wait_for_selector("svg.ranges")
        page.get_by_role("link", name="billing").click()
        page.wait_for_selector("svg.lineage")


def test_a_stream_shows_the_figures_that_the_server_has(browser, address, world):
    with visit(browser, address, "/stream?name=orders", viewport=DESK) as page:
        page.wait_for_selector("svg.ranges")
        document = page.evaluate("fetch('/api/stream?name=orders').then((answer) => answer.json())")
        listed = {row[0]: row for row in rows_of(page, "Hottest first")}
        bars = page.locator("svg.ranges g").evaluate_all(
            "(bars) => bars.map((bar) => [bar.textContent.split(',')[0], bar.getAttribute('class')])"
        )
        assert len(bars) == len(world.shards) == len(listed)
        colours = dict(bars)
        command = page.locator("code").all_inner_texts()
    assert colours.pop(STOPPED) == "bad"
    assert listed["4"][5] == "7"
    shares = {each["shard"]: each["written_bytes_share"] for each in document["shards"]}
    # The load may lie in two minutes of the server's: the figures are the server's own in any case.
    published = busiest(world, HOT) / 60 / 1024 / KIB
    assert shares[HOT] == pytest.approx(published, abs=0.001)
    assert listed["3"][8] == f"{published:.0%}"
    assert colours[HOT] == next(
        name for name, end in (("lag0", 0.25), ("lag1", 0.5), ("lag2", 0.8), ("lag3", 9.0)) if published < end
    )
    assert "penstock streams split orders 4 --wait" in command


def busiest(world, shard):
    """The bytes of a shard's busiest minute, asked of the server."""
    now_ms = world.server.clock.now_ms()
    metric = {
        "Namespace": "AWS/Kinesis",
        "MetricName": "IncomingBytes",
        "Dimensions": [{"Name": "StreamName", "Value": "orders"}, {"Name": "ShardId", "Value": shard}],
    }
    query = {"Id": "q", "MetricStat": {"Metric": metric, "Period": 60, "Stat": "Sum"}}
    answer = world.server.client("cloudwatch").get_metric_data(
        MetricDataQueries=[query], StartTime=now_ms // 1000 - 3600, EndTime=now_ms // 1000 + 3600
    )
    return max(answer["MetricDataResults"][0]["Values"])


def test_records_are_masked_until_they_are_asked_for(browser, address, world):
    path = f"/shard?name=billing&shard={STOPPED}"
    with visit(browser, address, path, viewport=DESK) as page:
        page.wait_for_selector("text=--show-records")
        shown = page.content()
        assert "secret" not in shown
        assert [row[2] for row in rows_of(page, "What is read next")] == ["90"] * 3
    with dashboard(world, "--show-records") as open_address, visit(browser, open_address, path) as page:
        page.wait_for_selector("td.data")
        assert "secret-payload" in page.inner_text("td.data >> nth=0")
        assert page.inner_text("td.key >> nth=0") == "secret-key"


def test_a_page_draws_itself_anew(browser, address, world):
    with visit(browser, address, "/application?name=billing", viewport=DESK) as page:
        page.wait_for_selector(f"td.owner:has-text('{WORKERS[0]}')")
        world.put_lease(HOT, "eu-west-1c/billing-new")
        page.wait_for_selector("td.owner:has-text('eu-west-1c/billing-new')")
        page.wait_for_selector(f"li:has-text('{HOT}')")
        page.wait_for_function("document.getElementById('state').textContent === ''")


@pytest.mark.skipif("PENSTOCK_SCREENSHOTS" not in os.environ, reason="`make screenshots` writes the pictures")
def test_the_pictures_of_the_docs_are_written(browser, world):
    stop = threading.Event()
    drawn = random.Random(15)

    def work():
        """Write and checkpoint as workers do."""
        counter = 1
        while not stop.wait(0.5):
            counter += 1
            for shard in world.shards:
                number = world.put(shard, 2, 4 * KIB)
                if drawn.random() < 0.25:
                    world.numbers[shard["ShardId"]] = number
                moves = counter > 60 and shard["ShardId"] == "shardId-000000000008"
                owner = WORKERS[(int(shard["ShardId"][-1]) + moves) % 2]
                world.put_lease(shard["ShardId"], owner, counter)

    thread = threading.Thread(target=work)
    thread.start()
    try:
        with dashboard(world, "--lag-warn", "30") as address:
            for path, name in (
                ("/stream?name=orders", "dashboard-stream"),
                ("/application?name=billing", "dashboard"),
            ):
                with visit(browser, address, path, viewport=DESK) as page:
                    page.wait_for_selector("svg.chart", timeout=3 * DEADLINE_MS)  # of two whole minutes
                    page.screenshot(path=DOCS / f"{name}.png", full_page=True)
    finally:
        stop.set()
        thread.join()
