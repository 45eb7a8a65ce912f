"""Where measurements go: log lines and Prometheus."""

import json
import logging
import urllib.error
import urllib.request

import pytest

from penstock.consumer import Health, ShardHealth
from penstock.consumer.metrics_prometheus import PrometheusMetrics
from penstock.errors import OptionError
from penstock.runtime import metrics_tally
from penstock.runtime.metrics_log import LoggingMetrics
from penstock.runtime.metrics_tally import MetricsTally


def measure(metrics):
    metrics.count("records", 3, {"shard": "s0"})
    metrics.count("records", 2, {"shard": "s0"})
    metrics.count("takes", labels={"reason": 'odd "one"'})
    metrics.gauge("worker_leases", 4)
    metrics.gauge("worker_leases", 5)
    metrics.gauge("millis_behind_latest", 12_345_678, {"shard": "s0"})
    metrics.observe("checkpoint_latency_s", 0.5)
    metrics.observe("checkpoint_latency_s", 0.25)


def test_prometheus_reads_counters_gauges_and_summaries():
    with PrometheusMetrics(port=0) as metrics:
        measure(metrics)
        with urllib.request.urlopen(f"http://127.0.0.1:{metrics.port}/metrics") as answer:
            body = answer.read().decode()
            assert answer.headers["Content-Type"] == "text/plain; version=0.0.4; charset=utf-8"
    assert body.splitlines() == [
        "# TYPE penstock_records_total counter",
        'penstock_records_total{shard="s0"} 5',
        "# TYPE penstock_takes_total counter",
        'penstock_takes_total{reason="odd \\"one\\""} 1',
        "# TYPE penstock_millis_behind_latest gauge",
        'penstock_millis_behind_latest{shard="s0"} 12345678',
        "# TYPE penstock_worker_leases gauge",
        "penstock_worker_leases 5",
        "# TYPE penstock_checkpoint_latency_s summary",
        "penstock_checkpoint_latency_s_sum 0.75",
        "penstock_checkpoint_latency_s_count 2",
        "# TYPE penstock_checkpoint_latency_s_max gauge",
        "penstock_checkpoint_latency_s_max 0.5",
    ]


def test_prometheus_reads_a_label_that_is_not_unicode():
    with PrometheusMetrics(port=0) as metrics:
        metrics.gauge("worker_leases", 1, {"application": "file:///caf\udce9"})
        with urllib.request.urlopen(f"http://127.0.0.1:{metrics.port}/metrics") as answer:
            # The format has no escape \u: strict readers refuse the page.
            assert rb'{application="file:///caf\\udce9"} 1' in answer.read()


def test_prometheus_listens_on_this_machine_only_and_knows_one_page():
    with PrometheusMetrics(port=0) as metrics:
        assert metrics._service._server.server_address[0] == "127.0.0.1"
        with pytest.raises(urllib.error.HTTPError, match="404") as caught:
            urllib.request.urlopen(f"http://127.0.0.1:{metrics.port}/secret")
        caught.value.close()


def test_a_port_that_is_taken_is_said():
    with PrometheusMetrics(port=0) as first, pytest.raises(OptionError, match=str(first.port)):
        PrometheusMetrics(port=first.port)
    with pytest.raises(OptionError, match=r"cannot serve metrics on 127\.0\.0\.1:9464: .*integer"):
        PrometheusMetrics(port="9464")


def test_a_report_is_one_line_and_tells_what_is_new(caplog):
    caplog.set_level(logging.INFO, "penstock.metrics")
    metrics = LoggingMetrics(interval_s=3600)
    measure(metrics)
    metrics.report()
    metrics.report()
    metrics.count("records", 1, {"shard": "s0"})
    metrics.close()
    assert [record.getMessage() for record in caplog.records if record.name == "penstock.metrics"] == [
        (
            'records{shard=s0}=+5 takes{reason=odd "one"}=+1 millis_behind_latest{shard=s0}=1.23457e+07 worker_leases=5 '
            "checkpoint_latency_s=0.375 (max 0.5, n 2)"
        ),
        "records{shard=s0}=+1",
    ]


def test_an_interval_must_be_positive():
    with pytest.raises(OptionError, match="interval_s=0"):
        LoggingMetrics(interval_s=0)


def test_the_number_of_series_is_bounded_and_drops_are_logged_ever_more_rarely(monkeypatch, caplog):
    monkeypatch.setattr(metrics_tally, "SERIES_MAX", 2)
    tally = MetricsTally()
    for index in range(10):
        tally.gauge(f"g{index}", 1)
    tally.gauge("g0", 7)
    assert tally.snapshot().gauges == {("g0", ()): 7, ("g1", ()): 1}
    told = [record.getMessage() for record in caplog.records]
    assert [message.split()[1] for message in told] == ["g2", "g3", "g5", "g9"]
    assert "metric g9 has no place among 2 metrics" in told[-1]
    assert "dropped so far: 8;" in told[-1]


# --- health ---------------------------------------------------------------------------------------------


def a_health(**fields):
    fields = {"is_healthy": True, "is_ready": True, "problems": (), **fields}
    return Health(stream="orders", application="billing", worker_id="w1", **fields)


def ask(metrics, path):
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{metrics.port}{path}") as answer:
            return answer.status, json.load(answer)
    except urllib.error.HTTPError as error:
        with error:
            return error.code, json.load(error)


def test_health_and_readiness_are_served_beside_the_metrics():
    now = [a_health()]
    with PrometheusMetrics(port=0) as metrics:
        assert ask(metrics, "/health") == ask(metrics, "/ready")
        assert ask(metrics, "/ready") == (
            503,
            {"is_well": False, "problems": ["no consumer has started"], "consumers": []},
        )
        metrics.of_consumer("orders", "billing", "w1", lambda: now[0])
        assert ask(metrics, "/health")[0] == ask(metrics, "/ready")[0] == 200
        stopped = ShardHealth("s0", "stopped", 5000, "poison")
        now[0] = a_health(is_healthy=False, problems=("shard s0 has stopped: poison",), shards=(stopped,))
        status, body = ask(metrics, "/health")
        assert (status, body["problems"]) == (503, ["shard s0 has stopped: poison"])
        assert body["consumers"][0]["shards"] == [
            {
                "shard_id": "s0",
                "state": "stopped",
                "lag_ms": 5000,
                "stopped_reason": "poison",
                "read_failure": None,
            }
        ]
        assert ask(metrics, "/ready")[0] == 200
        now[0] = a_health(is_ready=False)
        assert (ask(metrics, "/health")[0], ask(metrics, "/ready")[0]) == (200, 503)


def test_two_consumers_on_one_port_keep_their_figures_apart_and_one_may_be_ill():
    with PrometheusMetrics(port=0) as metrics:
        first = metrics.of_consumer("orders", "billing", "w1", a_health)
        second = metrics.of_consumer("clicks", "audit", "w1", lambda: a_health(is_healthy=False))
        first.gauge("worker_leases", 1)
        second.gauge("worker_leases", 2)
        second.gauge("millis_behind_latest", 7, {"shard": "s0"})
        second.forget_gauge("millis_behind_latest", {"shard": "s0"})
        first.count("records", 3, {"shard": "s0"})
        second.observe("lease_scan_s", 0.5)
        text = metrics.render()
        assert ask(metrics, "/health")[0] == 503
    assert 'penstock_worker_leases{application="billing",stream="orders",worker="w1"} 1' in text
    assert 'penstock_worker_leases{application="audit",stream="clicks",worker="w1"} 2' in text
    assert 'penstock_records_total{application="billing",shard="s0",stream="orders",worker="w1"} 3' in text
    assert 'penstock_lease_scan_s_count{application="audit",stream="clicks",worker="w1"} 1' in text
    assert "millis_behind_latest" not in text


def test_an_ipv6_address_is_served():
    try:
        metrics = PrometheusMetrics(port=0, host="::1")
    except OptionError:
        pytest.skip("this machine has no IPv6 loopback")
    with metrics, urllib.request.urlopen(f"http://[::1]:{metrics.port}/metrics") as answer:
        assert answer.status == 200
