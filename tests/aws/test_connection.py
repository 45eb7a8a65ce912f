"""Where and as whom: boto3's conventions count wherever nothing is set."""

from __future__ import annotations

import os
import pickle

import pytest

from penstock.aws import connection
from penstock.aws.connection import AwsOptions, client_for
from penstock.aws.kinesis import AwsKinesis
from penstock.errors import OptionError
from penstock.local import LocalKinesis


@pytest.fixture(scope="module")
def server():
    with LocalKinesis(limits=False) as running:
        running.create_stream("s")
        yield running


@pytest.fixture
def bare_environment(monkeypatch, tmp_path):
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "credentials"))
    return tmp_path


def test_endpoint_region_and_credentials_come_from_the_environment(server, bare_environment, monkeypatch):
    monkeypatch.setenv("AWS_ENDPOINT_URL_KINESIS", server.endpoint_url)
    monkeypatch.setenv("AWS_REGION", "us-east-1")
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "local")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "local")
    assert AwsKinesis(AwsOptions(read_timeout_s=31)).fetch_summary("s").name == "s"


def test_a_profile_gives_credentials_and_region(server, bare_environment):
    (bare_environment / "config").write_text("[profile work]\nregion = us-east-1\n")
    (bare_environment / "credentials").write_text(
        "[work]\naws_access_key_id = a\naws_secret_access_key = b\n"
    )
    options = AwsOptions(profile="work", endpoint_url=server.endpoint_url)
    client = client_for("kinesis", options)
    assert client.meta.region_name == "us-east-1"
    assert AwsKinesis(options).fetch_summary("s").name == "s"


def test_a_role_is_assumed_with_its_session_name_and_external_id(server, bare_environment):
    server.reset_calls()
    options = AwsOptions(
        region="us-east-1",
        endpoint_url=server.endpoint_url,
        sts_endpoint_url=server.endpoint_url,
        access_key_id="a",
        secret_access_key="b",
        role_arn="arn:aws:iam::123456789012:role/reader",
        role_session_name="orders",
        external_id="x1",
    )
    kinesis = AwsKinesis(options)
    assert kinesis.fetch_summary("s").name == "s"
    assert kinesis.fetch_summary("s").name == "s"
    assert server.calls().count("sts.AssumeRole") == 1


def test_a_client_is_made_once_for_the_same_options(server):
    options = AwsOptions(region="us-east-1", endpoint_url=server.endpoint_url)
    assert client_for("kinesis", options) is client_for(
        "kinesis", AwsOptions(region="us-east-1", endpoint_url=server.endpoint_url)
    )
    assert client_for("kinesis", options) is not client_for("dynamodb", options)


def test_requests_say_who_sends_them(server):
    client = client_for("kinesis", AwsOptions(region="us-east-1", endpoint_url=server.endpoint_url))
    assert "penstock/" in client.meta.config.user_agent_extra


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"access_key_id": "a"}, "go together"),
        ({"attempts_max": 0}, "at least one attempt"),
        ({"read_timeout_s": 0}, "read_timeout_s is 0; it must be above 0"),
    ],
)
def test_a_value_that_cannot_be_is_refused(given, message):
    with pytest.raises(OptionError, match=message):
        AwsOptions(**given)


def test_options_travel_between_processes_and_show_no_secret():
    options = AwsOptions(access_key_id="AKIAX", secret_access_key="hush", session_token="token")
    assert pickle.loads(pickle.dumps(options)) == options
    assert not any(secret in repr(options) for secret in ("AKIAX", "hush", "token"))


def test_a_missing_region_says_where_to_set_one(bare_environment):
    with pytest.raises(OptionError, match="no region for kinesis: set the region option"):
        client_for("kinesis", AwsOptions(access_key_id="a", secret_access_key="b"))


def test_an_endpoint_that_is_no_address_is_refused(bare_environment):
    with pytest.raises(OptionError, match="Invalid endpoint: nonsense"):
        client_for("kinesis", AwsOptions(region="us-east-1", endpoint_url="nonsense"))


def test_a_forked_child_has_connections_of_its_own_even_when_the_lock_was_held(server):
    options = AwsOptions(
        region="us-east-1", endpoint_url=server.endpoint_url, access_key_id="a", secret_access_key="b"
    )
    parents = client_for("kinesis", options)
    with connection._lock:
        child = os.fork()
        if child == 0:
            is_good = False
            try:
                is_own = not connection._clients and client_for("kinesis", options) is not parents
                is_good = is_own and AwsKinesis(options).fetch_summary("s").name == "s"
            finally:
                os._exit(0 if is_good else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert client_for("kinesis", options) is parents


def test_pauses_never_exceed_their_cap_even_where_only_the_first_one_was_set():
    plan = AwsOptions(retry_base_s=9).retry_plan
    assert [plan.backoff.bound_s(attempt) for attempt in (1, 2, 3)] == [5.0, 5.0, 5.0]
