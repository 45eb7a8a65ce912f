"""The fixtures: without the package of the embedded Kinesis, and at the end of a test."""

import os
import signal
import subprocess
import sys

import pytest

from penstock import Producer
from penstock.aws import connection
from penstock.aws.aws_options import AwsOptions
from penstock.aws.connection import client_for, environment_endpoint, with_environment
from penstock.errors import DeliveryFailed, Rejected
from penstock.producer import producer as producer_module
from penstock.producer.producer import flush_environment_producers

WITHOUT = """
import sys
sys.modules["penstock_local"] = None  # an import of it fails as if it were not installed
"""
TEST = """
def test_orders(FIXTURE):
    pass
"""


@pytest.mark.parametrize("fixture", ["local_kinesis", "local_kinesis_server"])
def test_a_fixture_without_its_package_says_how_to_get_it(tmp_path, fixture):
    (tmp_path / "conftest.py").write_text(WITHOUT)
    (tmp_path / "test_orders.py").write_text(TEST.replace("FIXTURE", fixture))
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"],
        capture_output=True,
        text=True,
        timeout=120,
        cwd=tmp_path,
        check=False,
    )
    assert done.returncode == 1, done.stdout + done.stderr
    sentence = f"the fixture {fixture} needs the package penstock-local, which is not installed: pip install 'penstock[local]'"
    assert sentence in done.stdout.splitlines()
    assert "ModuleNotFoundError" not in done.stdout
    assert "Traceback" not in done.stdout


@pytest.fixture
def left_open():
    """Producers and the receipts of records that they hold when the test ends; checked after its server has stopped."""
    producers, receipts = [], []
    yield producers, receipts
    assert [receipt.result(0).shard_id for receipt in receipts] == ["shardId-000000000000"]
    for producer in producers:
        producer.close()


def test_a_record_that_waits_when_the_test_ends_goes_to_the_server_of_the_test(left_open, local_kinesis):
    producers, receipts = left_open
    local_kinesis.create_stream("orders")
    producers.append(Producer(stream="orders", linger_s=60))
    receipts.append(producers[0].put(b"3", "anna"))


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_only_producers_of_this_process_that_follow_the_environment_are_waited_for(local_kinesis):
    local_kinesis.create_stream("orders")
    own_endpoint = {"endpoint_url": local_kinesis.endpoint_url}
    with (
        Producer(stream="orders", linger_s=60) as follows,
        Producer(stream="orders", linger_s=60, connection=own_endpoint) as stays,
    ):
        for producer in (follows, stays):
            producer.put(b"3", "anna")
        with follows._engine._lock:  # as a thread of the parent may have it when the process forks
            child = os.fork()
            if child == 0:
                signal.alarm(30)
                flush_environment_producers(0.1)
                os._exit(0)
        assert os.waitpid(child, 0)[1] == 0
        flush_environment_producers(60)
        assert (follows.waiting_count, stays.waiting_count) == (0, 1)


def test_a_producer_of_a_test_sends_nothing_to_aws_when_the_environment_names_no_endpoint_any_more(
    local_kinesis, monkeypatch
):
    local_kinesis.create_stream("orders")
    opened, unopened = Producer(stream="orders"), Producer(stream="orders")
    opened.put(b"1", "anna").result(60)
    with monkeypatch.context() as restored:
        restored.delenv("AWS_ENDPOINT_URL")
        with pytest.raises(
            DeliveryFailed, match=f"named the endpoint {local_kinesis.endpoint_url} .* would reach AWS"
        ):
            opened.put(b"2", "anna").result(60)
        with pytest.raises(Rejected, match="DescribeStreamSummary of stream orders: not sent"):
            unopened.put(b"2", "anna")
    for producer in (opened, unopened):  # the next test's
        producer.put(b"3", "anna").result(60)
    unopened.close()
    with pytest.raises(DeliveryFailed, match="1 records failed"):
        opened.close()


def test_an_endpoint_that_the_environment_has_ignored_is_none(monkeypatch):
    """Such a producer reaches AWS from the beginning; it is not refused when the variable goes."""
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    assert environment_endpoint(AwsOptions()) == "http://127.0.0.1:9"
    monkeypatch.setenv("AWS_IGNORE_CONFIGURED_ENDPOINT_URLS", "True")
    assert environment_endpoint(AwsOptions()) is None


@pytest.mark.parametrize(
    ("lines", "environment", "named", "kept"),
    [
        (["endpoint_url = http://a"], {}, "http://a", "http://a"),
        (["endpoint_url = http://a"], {"AWS_ENDPOINT_URL": "http://b"}, "http://b", "http://b"),
        (["endpoint_url = http://a"], {"AWS_ENDPOINT_URL_KINESIS": "http://b"}, "http://b", None),
        (["endpoint_url = http://a", "ignore_configured_endpoint_urls = true"], {}, None, None),
        (["ignore_configured_endpoint_urls = true"], {"AWS_ENDPOINT_URL": "http://b"}, None, None),
        (["services = x", "[services x]", "kinesis =", "  endpoint_url = http://a"], {}, "http://a", None),
        (
            ["services = x", "[services x]", "kinesis =", "  endpoint_url = http://a"],
            {"AWS_ENDPOINT_URL": "http://b"},
            "http://b",
            "http://b",
        ),
    ],
)
def test_the_endpoint_of_the_profile_counts_as_that_of_the_environment(
    monkeypatch, tmp_path, lines, environment, named, kept
):
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    (tmp_path / "config").write_text("\n".join(["[default]", "region = us-east-1", *lines]))
    for name, value in {"AWS_CONFIG_FILE": str(tmp_path / "config"), **environment}.items():
        monkeypatch.setenv(name, value)
    assert environment_endpoint(AwsOptions()) == named
    assert with_environment(AwsOptions()).endpoint_url == kept
    reached = client_for("kinesis", AwsOptions()).meta.endpoint_url
    assert reached == (named or "https://kinesis.us-east-1.amazonaws.com")


def test_the_profile_is_read_once_for_each_of_many_producers(monkeypatch):
    read = []
    monkeypatch.setattr(
        connection, "_configured_endpoints", lambda options: read.append(options) or (None, None)
    )
    many = [AwsOptions(role_arn=f"arn:aws:iam::{number:012}:role/writer") for number in range(100)]
    for options in many * 2:
        environment_endpoint(options)
    assert read == many


def test_producers_may_be_opened_while_the_open_ones_are_listed(monkeypatch):
    class Idle:
        def flush(self, timeout_s):
            """As an engine that holds nothing."""

    engines = [Idle(), Idle()]
    following = type(producer_module._engines_of_environment)(dict.fromkeys(engines))
    monkeypatch.setattr(producer_module, "_engines_of_environment", following)

    def open_another(*_):  # as another thread may between any two lines
        engines.append(Idle())
        following[engines[-1]] = None
        return open_another

    before = sys.gettrace()
    sys.settrace(open_another)
    try:
        flush_environment_producers(0)
    finally:
        sys.settrace(before)
    assert len(engines) > 2
