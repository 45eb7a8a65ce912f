"""Metrics for CloudWatch: batched, bounded, never fatal."""

import pytest

from penstock.aws import cloudwatch_metrics
from penstock.aws.cloudwatch_metrics import CloudWatchMetrics
from penstock.errors import OptionError


class Client:
    def __init__(self, failures=0):
        self.calls = []
        self.failures = failures

    def put_metric_data(self, **arguments):
        if self.failures:
            self.failures -= 1
            raise ConnectionError("no route")
        self.calls.append(arguments)


def metrics(client, **options):
    return CloudWatchMetrics("billing", client=client, interval_s=3600, **options)


def sent(client):
    found = {}
    for call in client.calls:
        assert call["Namespace"] == "billing"
        for datum in call["MetricData"]:
            dimensions = tuple((d["Name"], d["Value"]) for d in datum["Dimensions"])
            found[(datum["MetricName"], dimensions)] = (
                datum["Unit"],
                datum.get("Value", datum.get("StatisticValues")),
            )
    return found


@pytest.mark.parametrize(
    ("name", "unit"),
    [
        ("bytes", "Bytes"),
        ("bytes_waiting", "Bytes"),
        ("millis_behind_latest", "Milliseconds"),
        ("put_request_time_s", "Seconds"),
        ("records", "Count"),
    ],
)
def test_a_metric_has_the_unit_that_its_name_tells(name, unit):
    client = Client()
    with metrics(client) as cloudwatch:
        cloudwatch.gauge(name, 2)
    assert sent(client) == {(name, ()): (unit, 2)}


@pytest.mark.parametrize(
    ("label", "value"),
    [
        ("file:///data/übung", r"file:///data/\xfcbung"),
        ("caf\udce9\n", r"caf\udce9\n"),
        ("x" * 2000, "x" * 1024),
        ("", "-"),
        (" ", "-"),
        (r"OFFICE\host'\"1", r"OFFICE\host'\"1"),  # the dimension that alarms and dashboards have
    ],
)
def test_a_dimension_has_only_characters_that_cloudwatch_accepts(label, value):
    client = Client()
    with metrics(client) as cloudwatch:
        cloudwatch.gauge("records", 2, {"shard": label})
    assert sent(client) == {("records", (("ShardId", value),)): ("Count", 2)}


def test_a_report_holds_statistic_sets_and_the_last_gauges():
    client = Client()
    with metrics(client, dimensions={"WorkerIdentifier": "a"}) as cloudwatch:
        cloudwatch.count("records", 3, {"shard": "s0"})
        cloudwatch.count("records", 5, {"shard": "s0"})
        cloudwatch.gauge("worker_leases", 4)
        cloudwatch.gauge("worker_leases", 2)
        cloudwatch.observe("checkpoint_latency_s", 0.5)
    mine = ("WorkerIdentifier", "a")
    assert sent(client) == {
        ("records", (("ShardId", "s0"), mine)): (
            "Count",
            {"SampleCount": 2, "Sum": 8, "Minimum": 3, "Maximum": 5},
        ),
        ("checkpoint_latency_s", (mine,)): (
            "Seconds",
            {"SampleCount": 1, "Sum": 0.5, "Minimum": 0.5, "Maximum": 0.5},
        ),
        ("worker_leases", (mine,)): ("Count", 2),
    }


def test_without_the_shards_the_sum_and_the_largest_gauge_are_sent():
    client = Client()
    with metrics(client, is_per_shard=False) as cloudwatch:
        for shard, lag_ms in (("s0", 70), ("s1", 9000), ("s2", 5)):
            cloudwatch.count("records", 1, {"shard": shard})
            cloudwatch.gauge("millis_behind_latest", lag_ms, {"shard": shard})
    assert sent(client) == {
        ("records", ()): ("Count", {"SampleCount": 3, "Sum": 3, "Minimum": 1, "Maximum": 1}),
        ("millis_behind_latest", ()): ("Milliseconds", 9000),
    }


def test_many_figures_go_in_few_calls():
    client = Client()
    with metrics(client) as cloudwatch:
        for index in range(2500):
            cloudwatch.gauge("millis_behind_latest", index, {"shard": f"s{index}"})
    assert [len(call["MetricData"]) for call in client.calls] == [1000, 1000, 500]


def test_a_report_that_fails_is_logged_and_nothing_else(caplog):
    client = Client(failures=1)
    cloudwatch = metrics(client)
    cloudwatch.count("records", 3)
    cloudwatch.report()
    assert "no route" in caplog.text
    cloudwatch.count("records", 4)
    cloudwatch.close()
    assert sent(client) == {
        ("records", ()): ("Count", {"SampleCount": 1, "Sum": 4, "Minimum": 4, "Maximum": 4})
    }


def test_the_number_of_series_is_bounded_and_what_is_dropped_is_told(monkeypatch, caplog):
    monkeypatch.setattr(cloudwatch_metrics, "SERIES_MAX", 2)
    client = Client()
    with metrics(client) as cloudwatch:
        for index in range(5):
            cloudwatch.count(f"c{index}")
    assert len(sent(client)) == 2
    told = [record.getMessage() for record in caplog.records]
    assert [message.split()[1] for message in told] == ["c2", "c3"]
    assert told[1].endswith("is_per_shard=False")


def test_nothing_is_sent_when_nothing_was_measured():
    client = Client()
    metrics(client).close()
    assert client.calls == []


@pytest.mark.parametrize(("arguments", "word"), [(("",), "namespace"), (("a", None), "interval_s=0")])
def test_wrong_arguments_are_refused(arguments, word):
    with pytest.raises(OptionError, match=word):
        CloudWatchMetrics(*arguments, interval_s=0, client=Client())
