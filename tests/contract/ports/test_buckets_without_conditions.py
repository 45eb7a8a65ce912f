"""Servers of S3's protocol that do not honour conditional writes: no lease is ever written there."""

import threading

import pytest

pytest.importorskip("boto3")

from penstock import Consumer
from penstock.aws.aws_options import AwsOptions
from penstock.aws.object_lease_table import ObjectLeaseTable
from penstock.aws.s3_objects import S3Objects
from penstock.core.backoff import Backoff, RetryPlan
from penstock.core.leases.lease import Lease
from penstock.core.leases.lease_writes import Create
from penstock.errors import AccessDenied, OptionError
from s3_server import S3Server

PLAN = RetryPlan(Backoff(0.001, 0.01), 5, 5.0)
OPTIONS = AwsOptions(region="us-east-1", access_key_id="local", secret_access_key="local", retry_base_s=0.01)
ROW = "leases/shardId-000000000000.json"
SERVERS = {
    "knows no conditions": {"ignored": ["If-None-Match", "If-Match"]},
    "ignores If-None-Match": {"ignored": ["If-None-Match"]},
    "ignores If-Match": {"ignored": ["If-Match"]},
    "has not implemented If-None-Match": {"answers": {"If-None-Match": "501"}},
    "has not implemented If-Match": {"answers": {"If-Match": "501"}},
    "refuses every new object": {"answers": {"If-None-Match": "412"}},
    "refuses every change": {"answers": {"If-Match": "412"}},
}


@pytest.fixture
def serve(monkeypatch):
    servers = []

    def start(**lacks):
        server = S3Server(**lacks)
        servers.append(server.__enter__())
        monkeypatch.setenv("AWS_ENDPOINT_URL_S3", server.url)
        return server

    yield start
    for server in servers:
        server.__exit__()


def open_table():
    return ObjectLeaseTable(S3Objects("acme", "leases", OPTIONS), PLAN)


@pytest.mark.parametrize(
    "stands", [[], ["leases/"], ["leases/README"], ["leases/other/x.json"], [ROW]], ids=str
)
@pytest.mark.parametrize("server", SERVERS)
def test_it_is_refused_whatever_the_prefix_holds(serve, server, stands):
    s3 = serve(**SERVERS[server])
    for key in stands:
        s3.objects[key] = b""
    with pytest.raises(OptionError) as refusal:
        open_table().ensure_exists()
    text = str(refusal.value)
    assert text.startswith("lease table s3://acme/leases: ")
    assert "bucket acme" in text
    assert "name a DynamoDB table" in text
    assert s3.keys() == sorted(stands)  # the probe is gone again


@pytest.mark.parametrize("stands", [[], ["leases/"], ["leases/README"]], ids=str)
def test_a_server_that_honours_them_is_probed_at_each_start_and_keeps_nothing_of_it(serve, stands):
    s3 = serve()
    for key in stands:
        s3.objects[key] = b""
    assert open_table().ensure_exists() is (stands != ["leases/README"])
    open_table().write(Create(Lease("shardId-000000000000")))
    for _ in range(2):
        s3.requests.clear()
        assert open_table().ensure_exists() is False
        assert [method for method, _ in s3.requests] == ["PUT", "PUT", "PUT", "DELETE", "DELETE"]
    assert s3.keys() == sorted([*stands, ROW])


def test_the_error_names_a_probe_that_cannot_be_removed(serve):
    s3 = serve(ignored=["If-None-Match"])
    s3.denied.add("DELETE")
    with pytest.raises(
        OptionError, match=r"Object leases/penstock-probe-\w+ could not be removed: .*AccessDenied"
    ):
        open_table().ensure_exists()


def test_a_policy_that_lacks_a_right_is_named(serve):
    s3 = serve()
    s3.denied.add("DELETE")
    with pytest.raises(
        AccessDenied, match=r"DeleteObject on lease table s3://acme/leases, object \S+: AccessDenied"
    ):
        open_table().ensure_exists()


@pytest.mark.parametrize("marker", [[], ["leases/"]], ids=["empty", "with the console's marker"])
def test_a_worker_ends_with_the_refusal(serve, local_kinesis, marker):
    s3 = serve(ignored=["If-None-Match", "If-Match"])
    for key in marker:
        s3.objects[key] = b""
    local_kinesis.create_stream("orders", shards=1)
    consumer = Consumer(stream="orders", application="s3://acme/leases", handler=lambda _: None)
    raised = []

    def run():
        try:
            consumer.run()
        except OptionError as error:
            raised.append(str(error))

    thread = threading.Thread(target=run)
    thread.start()
    thread.join(60)
    is_alive = thread.is_alive()
    if is_alive:
        consumer.stop()
    assert not is_alive
    assert len(raised) == 1
    assert "does not honour conditional writes" in raised[0]
    assert s3.keys() == marker


def test_the_commands_read_such_a_bucket_and_do_not_write_it(serve, local_kinesis, capsys, tmp_path):
    from penstock.cli.main import main

    s3 = serve(ignored=["If-None-Match", "If-Match"])
    local_kinesis.create_stream("orders", shards=1)
    assert open_table().write(Create(Lease("shardId-000000000000")))  # by an older version
    before = dict(s3.objects)
    assert main(["leases", "s3://acme/leases", "--observe", "0"]) == 0
    assert "shardId-000000000000" in capsys.readouterr().out
    backup = str(tmp_path / "backup.json")
    reset = ["leases", "s3://acme/leases", "--reset-to", "TRIM_HORIZON", "--observe", "0", "--backup", backup]
    assert main(reset) == 2
    assert "does not honour conditional writes" in capsys.readouterr().err
    assert main(["consume", "orders", "--application", "s3://acme/leases"]) == 2
    assert "does not honour conditional writes" in capsys.readouterr().err
    assert s3.objects == before
