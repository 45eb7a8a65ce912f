"""The adapters of a consumer are opened."""

import os
import subprocess
import sys

import pytest

from penstock.consumer.consumer import open_ports
from penstock.wiring import AwsOptions, with_environment
from penstock_local import LocalKinesis

PROGRAM = """
import sys

from penstock import wiring
from penstock.consumer.consumer import open_ports

loaded = set()
wiring.begin_opening = lambda table: loaded.update(sys.modules)
open_ports("billing", {"region": "eu-west-1"}, 30.0, may_push=True)
assert "penstock.aws.fan_out" in loaded
print(*(name for name in sys.modules if name.startswith("penstock") and name not in loaded))
"""


def test_all_adapters_are_loaded_before_the_thread_of_the_lease_table_begins():
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True)
    assert done.stdout == "\n"


def test_a_worker_stays_where_it_began_if_the_environment_points_elsewhere(monkeypatch):
    with LocalKinesis() as server:
        server.create_stream("orders")
        for name, value in server.environ().items():
            monkeypatch.setenv(name, value)
        ports = open_ports("billing", {}, 30.0)
        monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:1")
        monkeypatch.setenv("AWS_REGION", "eu-west-1")
        assert ports.kinesis.fetch_summary("orders").name == "orders"
        assert ports.lease_table.ensure_exists()


@pytest.mark.parametrize(
    ("environment", "given", "region", "endpoint_url"),
    [
        (
            {"AWS_REGION": "r1", "AWS_DEFAULT_REGION": "r2", "AWS_ENDPOINT_URL": "http://a"},
            {},
            "r1",
            "http://a",
        ),
        ({"AWS_DEFAULT_REGION": "r2"}, {}, "r2", None),
        ({"AWS_REGION": "", "AWS_ENDPOINT_URL": ""}, {}, None, None),
        (
            {"AWS_REGION": "r1", "AWS_ENDPOINT_URL": "http://a"},
            {"region": "r3", "endpoint_url": "http://b"},
            "r3",
            "http://b",
        ),
        # each service has an address of its own
        ({"AWS_ENDPOINT_URL": "http://a", "AWS_ENDPOINT_URL_KINESIS": "http://b"}, {}, None, None),
        ({"AWS_ENDPOINT_URL": "http://a", "AWS_IGNORE_CONFIGURED_ENDPOINT_URLS": "True"}, {}, None, None),
    ],
)
def test_a_worker_keeps_the_region_and_the_endpoint_of_its_start(
    monkeypatch, tmp_path, environment, given, region, endpoint_url
):
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert with_environment(AwsOptions(**given)) == AwsOptions(region=region, endpoint_url=endpoint_url)


@pytest.mark.parametrize(
    ("environment", "endpoint_url"),
    [
        ({}, None),
        # as the fixture local_kinesis sets it
        ({"AWS_IGNORE_CONFIGURED_ENDPOINT_URLS": "false"}, "http://a"),
        ({"AWS_PROFILE": "other"}, "http://a"),
        ({"AWS_PROFILE": "missing"}, None),
    ],
)
def test_a_worker_ignores_the_endpoint_of_the_environment_if_its_profile_does(
    monkeypatch, tmp_path, environment, endpoint_url
):
    config = tmp_path / "config"
    config.write_text("[default]\nignore_configured_endpoint_urls = true\n[profile other]\nregion = r1\n")
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    environment = {"AWS_CONFIG_FILE": str(config), "AWS_ENDPOINT_URL": "http://a", **environment}
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert with_environment(AwsOptions()).endpoint_url == endpoint_url
