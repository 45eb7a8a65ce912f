"""Queues in `penstock top` and the dashboard: their figures from CloudWatch, their troubles, and what may be missing."""

import json

import pytest

pytest.importorskip("httptools")

from moved_clock import MovedClock
from penstock.cli import main as cli
from penstock.cli.overview.cells import QUEUE_COLUMNS, queue_cells
from penstock.cli.overview.dashboard_page import page_of_all
from penstock.cli.overview.overview_cache import READ_EVERY_S
from penstock.cli.overview.queue_reader import QUEUES_MAX, QueueReader, fetch_queues
from penstock.cli.overview.queue_rows import LEVEL_METRICS, RATE_METRICS, Activity, QueueOverview, QueueRow
from penstock.cli.overview.screen import Selection
from penstock.cli.overview.snapshot import Snapshot
from penstock.errors import AccessDenied, UsageError
from penstock.ports.queues import QueueSummary
from penstock.ports.sizing import QueryAnswer
from penstock.runtime.system_clock import SystemClock
from penstock_local import LocalKinesis
from queue_rig import knows_queues
from waiting import DEADLINE_S, wait_until

STREAM = "arn:aws:kinesis:eu-west-1:1:stream/orders"
MINUTE_MS = 60_000
HOSTILE = "<img src=x>\x1b[31m"


def row(name="invoices", status="ACTIVE", **figures):
    known = {"received_per_min": 0.0, "acknowledged_per_min": 0.0, "empty_per_min": 0.0, "measured_ms": 0}
    return QueueRow(name, f"arn:{name}", STREAM, status, **{**known, **figures})


@pytest.mark.parametrize(
    ("figures", "workers", "trouble"),
    [
        ({"acknowledged_per_min": 5.0, "received_per_min": 9.0, "visible": 3}, Activity.WORKING, ""),
        ({"empty_per_min": 6.0}, Activity.WAITING, ""),
        ({"visible": 0}, Activity.NONE, ""),
        ({"visible": 1}, Activity.NONE, "records wait, and no worker receives"),
        ({"received_per_min": 1.0}, Activity.RECEIVING, "records are received, and none is acknowledged"),
        ({"dead_letters": 2}, Activity.NONE, "dead letters, which `penstock queues dead invoices` shows"),
        (
            {"in_flight": 96_000, "dead_letters": 1},
            Activity.NONE,
            "96,000 records are in flight; at 120,000 the service delivers no more",
        ),
        ({"status": "DELETING"}, Activity.NONE, "the queue is DELETING"),
        ({"visible": 1, "received_per_min": None}, Activity.UNKNOWN, ""),
        ({"visible": 1, "measured_ms": None}, Activity.UNKNOWN, ""),
    ],
)
def test_the_figures_of_a_queue_show_its_workers_and_its_trouble(figures, workers, trouble):
    of = row(**figures)
    assert (of.activity, of.trouble) == (workers, trouble)


class Service:
    """The queues of a region and their figures, or errors in their place."""

    def __init__(self, *names, figures=None, listing=None, answering=None):
        self.found = [QueueSummary(name, f"arn:queue/{name}-id", "ACTIVE", 0, STREAM) for name in names]
        self.figures, self.listing, self.answering = figures or {}, listing, answering
        self.listed, self.asked = 0, []

    def list_queues(self):
        self.listed += 1
        if self.listing is not None:
            raise self.listing
        return self.found

    def fetch_of_queues(self, queues, metrics, began_ms, ended_ms):
        self.asked.append((list(queues), ended_ms - began_ms))
        if self.answering is not None:
            raise self.answering
        return QueryAnswer(
            [self.figures.get((queue, name), {}) for queue, _ in queues for name, _ in metrics]
        )


def test_levels_are_the_newest_and_rates_are_the_mean_of_five_minutes():
    figures = {
        ("a", LEVEL_METRICS[0]): {0: 7.0, MINUTE_MS: 4.0},
        ("a", LEVEL_METRICS[1]): {0: 2.0},
        ("a", RATE_METRICS[1]): {0: 10.0, MINUTE_MS: 5.0},
        ("b", RATE_METRICS[0]): None,
    }
    service = Service("b", "a", figures=figures)
    a, b = fetch_queues(service, service, 5 * MINUTE_MS).rows
    assert (a.queue, a.visible, a.in_flight, a.dead_letters) == ("a", 4, 2, None)
    assert (a.acknowledged_per_min, a.received_per_min, a.measured_ms) == (3.0, 0.0, 0)
    assert (b.received_per_min, b.activity) == (None, Activity.UNKNOWN)
    assert service.asked == [([("a", "a-id"), ("b", "b-id")], 5 * MINUTE_MS)]


def test_missing_permissions_leave_the_rest_and_name_the_action():
    service = Service("a", answering=AccessDenied("no"))
    overview = fetch_queues(service, service, 0)
    assert [each.queue for each in overview.rows] == ["a"]
    assert "allow cloudwatch:GetMetricData" in overview.problems[0]
    service = Service(listing=AccessDenied("no"))
    assert "allow kinesis:ListQueues" in fetch_queues(service, service, 0).problems[0]


def test_an_sdk_without_queues_shows_none_and_no_problem():
    service = Service(listing=UsageError("botocore 1.40 does not know the queues"))
    assert fetch_queues(service, service, 0) == QueueOverview()


def test_without_queues_cloudwatch_is_not_asked_and_of_too_many_the_first_are_shown():
    service = Service()
    assert (fetch_queues(service, service, 0), service.asked) == (QueueOverview(), [])
    service = Service(*(f"q{n:04d}" for n in range(QUEUES_MAX + 1)))
    overview = fetch_queues(service, service, 0)
    assert (len(overview.rows), len(overview.problems)) == (QUEUES_MAX, 1)


def test_queues_are_read_once_a_minute_and_stay_when_a_read_fails():
    service, clock = Service("a"), MovedClock(1000.0)
    reader = QueueReader(service, service, clock)
    first = reader.take_snapshot(DEADLINE_S)
    assert reader.take_snapshot(DEADLINE_S) is first
    clock.sleep(READ_EVERY_S)
    service.listing = OSError("cable")
    later = reader.take_snapshot(DEADLINE_S)
    assert (later.rows, later.problems, service.listed) == (first.rows, ("OSError: cable",), 2)


def test_hostile_names_act_on_neither_terminal_nor_page():
    snapshot = Snapshot(0, (), queues=QueueOverview((row(HOSTILE, dead_letters=1),), (HOSTILE,)))
    assert "\x1b" not in "".join(queue_cells(snapshot.queues.rows[0], 0))
    page = page_of_all(snapshot, {}, 10.0)
    assert ("<img" in page, "\x1b" in page, "<h2>Queues</h2>" in page) == (False, False, True)
    assert "No lease table" not in page


@pytest.mark.parametrize("height", [8, 20, 60])
def test_the_live_view_shows_queues_below_the_applications_and_fits(height):
    console = pytest.importorskip("rich.console")
    import io

    from penstock.cli.overview.live_view import render

    queues = QueueOverview(tuple(row(f"q{n:02d}", visible=n) for n in range(30)), ("no figures",))
    out = io.StringIO()
    shown = render(Snapshot(0, (), queues=queues), Selection(), height, lambda *_: None)
    console.Console(file=out, width=150, force_terminal=False).print(shown)
    assert len(out.getvalue().splitlines()) <= height
    assert "30 queues" in out.getvalue()
    assert ("q00" in out.getvalue()) is (height > 8)


class AMinuteAhead(SystemClock):
    """The clock of the server after `advance(61)`."""

    def wall_ms(self):
        return super().wall_ms() + 61_000


@knows_queues
def test_top_shows_a_queue_whose_figures_are_in_cloudwatch(capsys, monkeypatch):
    with LocalKinesis() as server:
        for name, value in server.environ().items():
            monkeypatch.setenv(name, value)
        kinesis = server.client("kinesis")
        kinesis.create_stream(StreamName="orders", StreamModeDetails={"StreamMode": "ON_DEMAND"})

        def document():
            capsys.readouterr()
            status = cli.main(["top", "--json", "--silent-after", "0", "--endpoint-url", server.endpoint_url])
            out, err = capsys.readouterr()
            assert (status, err) == (0, "")
            return json.loads(out)

        assert (document()["queues"], document()["queue_problems"]) == ([], [])
        kinesis.get_waiter("stream_exists").wait(StreamName="orders", WaiterConfig={"Delay": 1})
        arn = kinesis.describe_stream_summary(StreamName="orders")["StreamDescriptionSummary"]["StreamARN"]
        position = {"Type": "TRIM_HORIZON"}
        kinesis.create_queue(
            QueueName="invoices",
            StreamConfigurationList=[{"StreamARN": arn, "StartingPosition": position}],
        )
        kinesis.put_record(StreamName="orders", Data=b"x", PartitionKey="k")
        server.clock.advance(61)  # a queue is measured once a minute
        monkeypatch.setattr("penstock.wiring.SystemClock", AMinuteAhead)
        wait_until(lambda: document()["queues"][0]["visible_records"] == 1, "a minute of figures")
        (queue,) = document()["queues"]
        assert (queue["queue"], queue["in_flight_records"], queue["dead_letters"]) == ("invoices", 0, 0)
        status = cli.main(["top", "--once", "--endpoint-url", server.endpoint_url])
        out = capsys.readouterr().out
        assert (status, "no lease table" in out) == (0, False)
        assert out.split()[: len(QUEUE_COLUMNS)][:2] == ["queue", "stream"]
        assert cli.main(["top", "none", "--json", "--endpoint-url", server.endpoint_url]) == 1
        assert json.loads(capsys.readouterr().out)["queues"] == [], "applications were named"
