"""Endpoints, regions and credentials: boto3's conventions count where no option is set."""

from __future__ import annotations

import logging
import os
import pickle
import traceback
from contextlib import suppress
from dataclasses import fields
from itertools import product

import botocore.session
import pytest
from botocore.awsrequest import AWSResponse
from botocore.endpoint_provider import EndpointProvider
from botocore.exceptions import EndpointProviderError

from penstock.aws import connection
from penstock.aws.aws_options import AwsOptions
from penstock.aws.cloudwatch_metrics import CloudWatchMetrics
from penstock.aws.connection import client_for
from penstock.aws.kinesis import AwsKinesis
from penstock.aws.lease_table import DynamoLeaseTable
from penstock.core.endpoint import kinesis_region
from penstock.core.service_codes import STALE_CREDENTIALS
from penstock.errors import AccessDenied, NotFound, OptionError, Rejected, Unavailable, UsageError
from penstock.ports.kinesis import PutEntry
from penstock.runtime.threads import begin_on_daemon
from penstock_local import LocalKinesis


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


def test_an_environment_that_points_elsewhere_gets_another_client(server, bare_environment, monkeypatch):
    with LocalKinesis() as other:
        for each, name in ((server, "s"), (other, "only-there")):
            for variable, value in each.environ().items():
                monkeypatch.setenv(variable, value)
            if each is other:
                other.create_stream(name)
            assert AwsKinesis(AwsOptions()).fetch_summary(name).arn.endswith(f"stream/{name}")
    monkeypatch.setenv("AWS_ENDPOINT_URL", server.endpoint_url)
    with pytest.raises(NotFound):
        AwsKinesis(AwsOptions()).fetch_summary("only-there")


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


@pytest.mark.parametrize("role", ["x", "reader", "arn:aws:iam::123456789012:user/reader"])
def test_what_is_no_role_is_refused_before_anything_is_asked(role):
    with pytest.raises(OptionError, match=r"role_arn \(Spark: roleArn\) is '.*'; expected arn:aws:iam"):
        AwsOptions(role_arn=role)


def test_a_client_is_made_once_for_the_same_options(server):
    options = AwsOptions(region="us-east-1", endpoint_url=server.endpoint_url)
    assert client_for("kinesis", options) is client_for(
        "kinesis", AwsOptions(region="us-east-1", endpoint_url=server.endpoint_url)
    )
    assert client_for("kinesis", options) is not client_for("dynamodb", options)


def test_a_client_that_was_made_while_the_environment_changed_is_not_kept(
    server, bare_environment, monkeypatch
):
    options, make = AwsOptions(endpoint_url=server.endpoint_url), connection._make_client

    def change_and_make(*given):
        monkeypatch.setenv("AWS_REGION", "eu-west-1")
        return make(*given)

    monkeypatch.setattr(connection, "_make_client", change_and_make)
    monkeypatch.setenv("AWS_REGION", "us-east-1")
    client_for("kinesis", options)
    monkeypatch.setattr(connection, "_make_client", make)
    monkeypatch.setenv("AWS_REGION", "us-east-1")
    assert client_for("kinesis", options).meta.region_name == "us-east-1"


def test_requests_say_who_sends_them(server):
    client = client_for("kinesis", AwsOptions(region="us-east-1", endpoint_url=server.endpoint_url))
    assert "penstock/" in client.meta.config.user_agent_extra


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"access_key_id": "a"}, "go together"),
        ({"session_token": "t"}, "session_token .* is set without access_key_id"),
        ({"external_id": "x"}, "external_id .* is set without role_arn"),
        ({"attempts_max": 0}, "attempts_max=0: expected at least 1"),
        ({"read_timeout_s": 0}, "read_timeout_s=0: expected more than 0"),
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
    with pytest.raises(OptionError, match="no region for kinesis: set the option region"):
        client_for("kinesis", AwsOptions(access_key_id="a", secret_access_key="b"))


def test_a_log_handler_needs_a_client_while_its_thread_makes_one(bare_environment, monkeypatch, caplog):
    made = []

    class Handler(logging.Handler):
        def emit(self, record):
            if not made:
                made.append(None)
                made.append(client_for("kinesis", options))

    options = AwsOptions(region="eu-west-3", access_key_id="a", secret_access_key="b")
    caplog.set_level(logging.DEBUG, "botocore")
    monkeypatch.setattr(logging.getLogger("botocore"), "handlers", [Handler()])
    client = begin_on_daemon("client", lambda: client_for("kinesis", options)).result(30)
    assert len(made) == 2
    assert client_for("kinesis", options) is client


@pytest.mark.parametrize("logger", ["botocore", "botocore.credentials"])
def test_the_refusal_of_a_log_handlers_put_is_raised_as_it_is(bare_environment, monkeypatch, caplog, logger):
    class Handler(logging.Handler):
        def emit(self, record):
            raise UsageError("a record is put while its thread opens the producer")

    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "a")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "b")
    caplog.set_level(logging.DEBUG, logger)
    monkeypatch.setattr(logging.getLogger(logger), "handlers", [Handler()])
    with pytest.raises(UsageError, match=r"^a record is put while its thread opens the producer$"):
        AwsKinesis(AwsOptions(region="us-east-1")).fetch_summary("s")


def test_an_endpoint_that_is_no_address_is_refused(bare_environment):
    with pytest.raises(
        OptionError, match=r"^no client for kinesis: Invalid endpoint: nonsense; check .* --endpoint-url"
    ):
        client_for("kinesis", AwsOptions(region="us-east-1", endpoint_url="nonsense"))


@pytest.mark.parametrize(
    "host",
    [
        "kinesis.eu-west-1.amazonaws.com",
        "kinesis-fips.eu-west-1.api.aws",
        "123456789012.data-kinesis.eu-west-1.amazonaws.com",
        "vpce-0a1b-2c3d.kinesis.eu-west-1.vpce.amazonaws.com",
    ],
)
def test_an_endpoint_of_kinesis_is_for_kinesis_alone_and_names_the_region(
    host, bare_environment, monkeypatch
):
    monkeypatch.setenv("AWS_REGION", "us-east-1")
    options = AwsOptions(endpoint_url=f"https://{host}")
    at = {name: client_for(name, options).meta for name in ("kinesis", "dynamodb", "cloudwatch")}
    assert at["kinesis"].endpoint_url == f"https://{host}"
    assert at["dynamodb"].endpoint_url == "https://dynamodb.eu-west-1.amazonaws.com"
    assert at["cloudwatch"].endpoint_url == "https://monitoring.eu-west-1.amazonaws.com"
    assert {each.region_name for each in at.values()} == {"eu-west-1"}


def test_an_endpoint_of_kinesis_is_known_in_every_partition():
    """All addresses that boto3 itself would choose, so a new partition is noticed."""
    loader = botocore.session.Session().get_component("data_loader")
    partitions = loader.load_data("partitions")
    provider = EndpointProvider(loader.load_service_model("kinesis", "endpoint-rule-set-1"), partitions)
    found = set()
    for partition in partitions["partitions"]:
        for region, fips, dual in product(partition["regions"], (False, True), (False, True)):
            if region.endswith("-global"):
                continue
            arn = f"arn:{partition['id']}:kinesis:{region}:123456789012:stream/orders"
            for of_account in ({}, {"StreamARN": arn, "OperationType": "data"}):
                with suppress(EndpointProviderError):  # not every partition has FIPS and dual stack
                    url = provider.resolve_endpoint(
                        Region=region, UseFIPS=fips, UseDualStack=dual, **of_account
                    ).url
                    found.add((url, region))
    assert len(found) > 100
    assert [(url, region) for url, region in found if kinesis_region(url) != region] == []


@pytest.mark.parametrize(
    "endpoint_url",
    ["http://kinesis.us-east-1.localhost.localstack.cloud:4566", "https://glue.eu-west-1.amazonaws.com"],
)
def test_any_other_endpoint_is_for_every_service(endpoint_url, bare_environment):
    options = AwsOptions(region="us-east-1", endpoint_url=endpoint_url)
    at = {client_for(name, options).meta.endpoint_url for name in ("kinesis", "dynamodb", "glue")}
    assert at == {endpoint_url}


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ("[default]\nservices = s\n[services s]\nkinesis = http://k\n", r"\[services s\]: kinesis has no"),
        ("[default]\nregion =\n  eu = x\n", "profile default: region is followed by an indented block"),
        ("[default]\nendpoint_url =\n  u = x\n", "profile default: endpoint_url is followed"),
        ("[default]\nservices =\n  s = 1\n", "profile default: services is followed"),
        ("[default]\ndefaults_mode =\n  s = 1\n", "profile default: defaults_mode is followed"),
        ("[default]\napi_versions = 1\n", "profile default: api_versions has no indented block"),
        (
            "[default]\nmetadata_service_timeout = 1.5\n",
            "metadata_service_timeout, or AWS_M.*, is not a whole number",
        ),
        (
            "[default]\nmetadata_service_num_attempts =\n  a = 1\n",
            "num_attempts, or AWS_M.*, is not a whole number",
        ),
    ],
)
def test_a_key_of_the_profile_with_the_wrong_form_is_an_error_of_the_file(bare_environment, config, message):
    (bare_environment / "config").write_text(config)
    with pytest.raises(OptionError, match=f"{bare_environment}/config or .*{message}"):
        AwsKinesis(AwsOptions()).fetch_summary("s")


def test_a_number_of_the_search_for_credentials_is_not_read_with_keys_in_the_options(
    bare_environment, monkeypatch
):
    monkeypatch.setenv("AWS_METADATA_SERVICE_TIMEOUT", "1.5")
    assert client_for("kinesis", AwsOptions(region="eu-west-3", access_key_id="a", secret_access_key="b"))


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (b"region = secret\n", "check line 1"),
        (b"[default]\nregion = a\n[default]\n", "check line 3"),
        ("\ufeff[default]\n".encode(), "check line 1: it has to be UTF-8 without a byte order mark"),
        ("[default]\n".encode("utf-16"), "it has to be UTF-8 without a byte order mark"),
    ],
)
def test_a_profile_that_cannot_be_parsed_is_an_error_that_names_the_line(bare_environment, config, message):
    (bare_environment / "config").write_bytes(config)
    with pytest.raises(Rejected, match=f"{bare_environment}/config: {message}") as refused:
        AwsKinesis(AwsOptions()).fetch_summary("s")
    assert "secret" not in str(refused.value)


def test_a_section_of_services_may_have_texts_that_are_of_no_service_of_ours(bare_environment):
    (bare_environment / "config").write_text(
        "[default]\nregion = us-east-1\nservices = s\n[services s]\nendpoint_url = http://k\nlambda =\nkinesis =\n  endpoint_url = http://k\n"
    )
    assert client_for("kinesis", AwsOptions()).meta.endpoint_url == "http://k"


def test_a_file_of_credentials_that_is_a_pipe_is_named_and_not_waited_for(bare_environment):
    os.mkfifo(bare_environment / "credentials")  # as bash makes for <(...)
    with pytest.raises(AccessDenied, match=f"{bare_environment}/credentials is a pipe"):
        AwsKinesis(AwsOptions(region="us-east-1", endpoint_url="http://127.0.0.1:1")).fetch_summary("s")


def test_a_file_of_credentials_that_cannot_be_read_is_named(bare_environment):
    (bare_environment / "credentials").mkdir()  # as Docker does for a mount of a file that is missing
    (bare_environment / "config").write_text("[default]\nregion = us-east-1\n")
    with pytest.raises(AccessDenied, match=f"{bare_environment}/credentials cannot be read: Is a dir"):
        AwsKinesis(AwsOptions(endpoint_url="http://127.0.0.1:1")).fetch_summary("s")
    (bare_environment / "config").unlink()
    with pytest.raises(OptionError, match=f"AWS_CONFIG_FILE={bare_environment}/config does not exist"):
        AwsKinesis(AwsOptions()).fetch_summary("s")


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


# --- credentials that expired, and who signs ----------------------------------------------------------------


class RawBody:
    """The body of an answer that was made here."""

    def __init__(self, content):
        self.content = content

    def stream(self, **_):
        yield self.content


def keep_credentials(folder, key, profile="default"):
    (folder / "credentials").write_text(
        f"[{profile}]\naws_access_key_id = {key}\naws_secret_access_key = secret\n"
    )


def count_by(calls, key, operation):
    """Count the calls of an operation that an access key signed."""
    name = operation if "." in operation else f"kinesis.{operation}"
    return calls.by_caller.get(key, {}).get(name, 0)


def ask_kinesis(options):
    AwsKinesis(options).fetch_summary("s")


def put_record(options):
    AwsKinesis(options).put_records("s", [PutEntry(b"x", "k")])


def ask_lease_table(options):
    with pytest.raises(NotFound):
        DynamoLeaseTable("renewals", options).fetch("k")


@pytest.mark.parametrize("code", sorted(STALE_CREDENTIALS))
@pytest.mark.parametrize(
    ("operation", "act"),
    [
        ("DescribeStreamSummary", ask_kinesis),
        ("PutRecords", put_record),
        ("dynamodb.GetItem", ask_lease_table),
    ],
)
def test_credentials_that_are_taken_no_more_are_fetched_anew_once(
    server, bare_environment, operation, act, code
):
    options = AwsOptions(
        region="us-east-1",
        endpoint_url=server.endpoint_url,
        role_session_name=f"{operation}-{code}",  # clients of its own
    )
    keep_credentials(bare_environment, "OLD")
    act(options)
    keep_credentials(bare_environment, "NEW")
    server.reset_calls()
    server.faults.error(operation, code=code, status=400, message="too late")
    act(options)
    calls = server.calls()
    assert (count_by(calls, "OLD", operation), count_by(calls, "NEW", operation)) == (1, 1)


def test_credentials_that_are_refused_again_are_an_error_that_names_the_code(server, bare_environment):
    keep_credentials(bare_environment, "OLD")
    options = AwsOptions(region="us-east-1", endpoint_url=server.endpoint_url, role_session_name="again")
    server.faults.error("DescribeStreamSummary", code="ExpiredTokenException", status=400, count=2)
    server.reset_calls()
    with pytest.raises(AccessDenied, match=r"ExpiredTokenException.*log in again"):
        ask_kinesis(options)
    assert server.calls().count("DescribeStreamSummary") == 2


def test_fixed_credentials_that_expired_are_an_error_at_once(server, bare_environment):
    options = AwsOptions(
        region="us-east-1", endpoint_url=server.endpoint_url, access_key_id="FIXED", secret_access_key="b"
    )
    server.faults.error("DescribeStreamSummary", code="ExpiredTokenException", status=400)
    server.reset_calls()
    with pytest.raises(AccessDenied, match="ExpiredTokenException"):
        ask_kinesis(options)
    assert server.calls().count("DescribeStreamSummary") == 1


def test_one_renewal_serves_all_threads_whose_calls_were_refused(server, bare_environment, monkeypatch):
    now_s = 1000.0
    monkeypatch.setattr(connection.time, "monotonic", lambda: now_s)
    keep_credentials(bare_environment, "OLD")
    options = AwsOptions(region="us-east-1", endpoint_url=server.endpoint_url, role_session_name="threads")
    ask_kinesis(options)
    keep_credentials(bare_environment, "NEW")
    seen = connection.count_renewals(options)
    assert [connection.renew_credentials(options, seen) for _ in range(3)] == [True] * 3
    assert connection.count_renewals(options) == seen + 1
    # A moment later the same credentials were refused again: fetching them once more would give the same ones.
    assert not connection.renew_credentials(options, seen + 1)


def test_metrics_fetch_expired_credentials_anew_too(bare_environment, caplog):
    keep_credentials(bare_environment, "OLD")
    options = AwsOptions(region="us-east-1", endpoint_url="http://127.0.0.1:9", role_session_name="metrics")
    with CloudWatchMetrics("app", options, interval_s=3600) as metrics:
        refused = []

        def refuse(request, **_):
            key = request.headers["Authorization"].decode().partition("Credential=")[2].partition("/")[0]
            refused.append(key)
            return AWSResponse(request.url, 400, {}, RawBody(in_xml if is_xml else in_json))

        client = client_for("cloudwatch", options)
        is_xml = client.meta.service_model.metadata["protocol"] == "query"  # before botocore 1.43
        in_json = b'{"__type": "ExpiredToken", "message": "too late"}'
        in_xml = b"<ErrorResponse><Error><Code>ExpiredToken</Code></Error></ErrorResponse>"
        client.meta.events.register("before-send", refuse)
        keep_credentials(bare_environment, "NEW")
        metrics.count("records", 1)
        metrics.report()
    assert refused == ["OLD"]
    assert "no connection" in caplog.text  # the new client has no such answer: it went out with the new key


def role_options(server, **changes):
    return AwsOptions(
        **{
            "region": "us-east-1",
            "endpoint_url": server.endpoint_url,
            "sts_endpoint_url": server.endpoint_url,
            "role_arn": "arn:aws:iam::123456789012:role/reader",
            **changes,
        }
    )


def test_with_a_role_every_request_is_signed_by_the_role_and_none_by_the_key_of_the_environment(
    server, bare_environment
):
    keep_credentials(bare_environment, "AMBIENT")
    server.reset_calls()
    options = role_options(server, role_session_name="signs")
    ask_kinesis(options)
    put_record(options)
    ask_lease_table(options)
    calls = server.calls()
    assert count_by(calls, "AMBIENT", "sts.AssumeRole") > 0
    for operation in ("DescribeStreamSummary", "PutRecords", "dynamodb.GetItem"):
        assert (calls.count(operation), count_by(calls, "AMBIENT", operation)) == (1, 0)


def test_a_botocore_that_takes_no_credentials_from_outside_is_refused_when_a_client_is_opened(
    server, bare_environment, monkeypatch
):
    keep_credentials(bare_environment, "AMBIENT")
    ambient = botocore.session.Session().get_credentials()
    monkeypatch.setattr(botocore.session.Session, "get_credentials", lambda self: ambient)
    with pytest.raises(OptionError, match=r"roleArn=arn:aws:iam::123456789012:role/reader: botocore"):
        ask_kinesis(role_options(server, role_session_name="inside"))


def test_a_request_that_the_role_did_not_sign_is_not_sent(server, bare_environment, monkeypatch):
    keep_credentials(bare_environment, "AMBIENT")
    ambient = botocore.session.Session().get_credentials()
    make = botocore.session.Session.create_client

    def make_for_the_environment(self, service_name, **arguments):
        if service_name == "kinesis":
            self._credentials = ambient
        return make(self, service_name, **arguments)

    monkeypatch.setattr(botocore.session.Session, "create_client", make_for_the_environment)
    server.reset_calls()
    with pytest.raises(AccessDenied, match="was not signed by the role"):
        ask_kinesis(role_options(server, role_session_name="elsewhere"))
    assert server.calls().count("DescribeStreamSummary") == 0


def test_a_renewed_role_is_assumed_again(server, bare_environment):
    keep_credentials(bare_environment, "AMBIENT")
    options = role_options(server, role_session_name="renewed", access_key_id="a", secret_access_key="b")
    ask_kinesis(options)
    server.reset_calls()
    server.faults.error("DescribeStreamSummary", code="ExpiredTokenException", status=400)
    ask_kinesis(options)
    assert server.calls().count("sts.AssumeRole") == 1


# --- users and passwords in endpoints -------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["endpoint_url", "sts_endpoint_url"])
def test_a_user_and_a_password_in_an_endpoint_are_left_out_and_shown_nowhere(name, caplog):
    options = AwsOptions(region="us-east-1", **{name: "http://user:hush@127.0.0.1:9/path"})
    assert getattr(options, name) == "http://127.0.0.1:9/path"
    assert "hush" not in repr(options) + str(vars_of(options)) + caplog.text
    assert options == AwsOptions(region="us-east-1", **{name: "http://127.0.0.1:9/path"})


def vars_of(options):
    return [getattr(options, each.name) for each in fields(options)]


def test_an_endpoint_of_the_environment_loses_its_user_too(server, bare_environment, monkeypatch, caplog):
    keep_credentials(bare_environment, "k")
    monkeypatch.setenv("AWS_ENDPOINT_URL", server.endpoint_url.replace("://", "://user:hush@"))
    options = AwsOptions(region="us-east-1", role_session_name="environment")
    ask_kinesis(options)
    assert client_for("kinesis", options).meta.endpoint_url == server.endpoint_url
    assert "hush" not in caplog.text
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://user:hush@127.0.0.1:9")
    with pytest.raises(Unavailable) as caught:
        ask_kinesis(AwsOptions(region="us-east-1", role_session_name="closed port", attempts_max=1))
    assert "hush" not in "".join(traceback.format_exception(caught.value))


def test_an_endpoint_of_the_environment_that_cannot_be_one_is_not_shown(bare_environment, monkeypatch):
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://user:hush@ /")
    with pytest.raises(OptionError, match="endpoint in the environment") as caught:
        client_for("kinesis", AwsOptions(region="us-east-1", role_session_name="no endpoint"))
    assert "hush" not in "".join(traceback.format_exception(caught.value))


@pytest.mark.parametrize(
    ("environment", "option", "region"),
    [
        ({"AWS_REGION": "eu-west-1"}, None, "eu-west-1"),
        ({"AWS_DEFAULT_REGION": "eu-west-2"}, None, "eu-west-2"),
        ({"AWS_REGION": "eu-west-1", "AWS_DEFAULT_REGION": "eu-west-2"}, None, "eu-west-1"),
        ({"AWS_REGION": "eu-west-1", "AWS_DEFAULT_REGION": "eu-west-2"}, "eu-west-3", "eu-west-3"),
    ],
)
@pytest.mark.parametrize("role_arn", [None, "arn:aws:iam::123456789012:role/r"])
def test_the_region_is_the_options_then_that_of_aws_region_then_boto3s(
    bare_environment, monkeypatch, environment, option, region, role_arn
):
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(connection, "_clients", {})
    assert client_for("kinesis", AwsOptions(region=option, role_arn=role_arn)).meta.region_name == region


def test_a_program_that_points_its_environment_elsewhere_gets_another_client_and_the_old_one_is_dropped(
    bare_environment, monkeypatch
):
    options = AwsOptions(region="us-east-1", access_key_id="a", secret_access_key="b")
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://one.invalid")
    first = client_for("kinesis", options)
    assert client_for("kinesis", options) is first
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://two.invalid")
    assert client_for("kinesis", options).meta.endpoint_url == "http://two.invalid"
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://one.invalid")
    again = client_for("kinesis", options)
    assert again is not first
    assert again.meta.endpoint_url == "http://one.invalid"


@pytest.mark.parametrize(
    ("variable", "value"),
    [
        ("AWS_USE_FIPS_ENDPOINT", "true"),
        ("AWS_USE_DUALSTACK_ENDPOINT", "true"),
        ("https_proxy", "http://proxy.invalid:3128"),
    ],
)
def test_a_program_that_changes_its_kind_of_endpoint_or_its_proxy_gets_another_client(
    bare_environment, monkeypatch, variable, value
):
    options = AwsOptions(region="us-east-1", access_key_id="a", secret_access_key="b")
    monkeypatch.delenv(variable, raising=False)
    first = client_for("kinesis", options)
    monkeypatch.setenv(variable, value)
    second = client_for("kinesis", options)
    assert second is not first
    assert client_for("kinesis", options) is second
    if variable.startswith("AWS"):
        assert second.meta.endpoint_url != first.meta.endpoint_url
