"""The first steps of a newcomer."""

from __future__ import annotations

import math
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from fractions import Fraction

import pytest
from botocore.config import Config

from penstock import Producer
from penstock_local import LocalKinesis
from penstock_local.calls import CALLERS_MAX, CallLog
from penstock_local.credentials import credential_of
from penstock_local.errors import OptionError, Unavailable
from penstock_local.server import arguments


def test_a_record_put_is_read_back():
    with LocalKinesis() as kinesis:
        kinesis.create_stream("orders", shards=2)
        client = kinesis.client("kinesis")
        put = client.put_record(StreamName="orders", PartitionKey="a", Data=b"one")
        iterator = client.get_shard_iterator(
            StreamName="orders", ShardId=put["ShardId"], ShardIteratorType="TRIM_HORIZON"
        )["ShardIterator"]
        answer = client.get_records(ShardIterator=iterator)
        (record,) = answer["Records"]
        assert (record["Data"], record["PartitionKey"]) == (b"one", "a")
        assert record["SequenceNumber"] == put["SequenceNumber"]
        assert answer["MillisBehindLatest"] == 0
        assert "EncryptionType" not in record


def test_the_fixture_gives_a_server_with_the_options_of_its_marker(local_kinesis):
    assert local_kinesis.state()["limits"] is True


@pytest.mark.local_kinesis(limits=False, time_factor=0)
def test_the_marker_passes_options_on(local_kinesis):
    assert local_kinesis.state()["limits"] is False
    assert local_kinesis.clock.now_ms() == local_kinesis.clock.now_ms()


def test_environ_points_any_sdk_to_the_server():
    with LocalKinesis() as kinesis:
        environ = kinesis.environ()
    assert environ["AWS_ENDPOINT_URL"] == kinesis.endpoint_url
    assert environ["AWS_REGION"] == environ["AWS_DEFAULT_REGION"] == "us-east-1"
    assert environ["AWS_ACCESS_KEY_ID"]
    assert environ["AWS_SECRET_ACCESS_KEY"]


def test_a_connection_leads_penstocks_own_producer_to_the_server():
    with LocalKinesis() as kinesis:
        kinesis.create_stream("orders")
        with Producer("orders", connection=kinesis.connection()) as producer:
            assert producer.put(b"one", "a").result(60).shard_id == "shardId-000000000000"


def test_a_server_of_this_machine_is_not_asked_for_at_a_companys_proxy(monkeypatch):
    monkeypatch.setenv("http_proxy", "http://proxy.invalid:3128")
    monkeypatch.setenv("no_proxy", "intranet, .example")
    monkeypatch.delenv("NO_PROXY", raising=False)
    with LocalKinesis() as kinesis:
        settings = Config(retries={"total_max_attempts": 1})
        kinesis.client().list_streams()
        client = kinesis.client(config=settings)
        client.list_streams()
        assert client.meta.config.retries["total_max_attempts"] == 1
        found = kinesis.environ()
        assert found["NO_PROXY"] == found["no_proxy"] == "intranet,.example,127.0.0.1"
        monkeypatch.setenv("no_proxy", "127.0.0.1")
        assert "no_proxy" not in kinesis.environ()


def test_a_client_needs_no_profile_that_the_environment_names(monkeypatch):
    monkeypatch.setenv("AWS_PROFILE", "of-somebody")
    with (
        ThreadPoolExecutor(1) as new_thread,
        LocalKinesis() as kinesis,
    ):  # each thread has a session of its own
        assert new_thread.submit(kinesis.client, "kinesis").result(60).list_streams()["StreamNames"] == []


def test_a_server_that_was_stopped_can_be_started_again():
    kinesis = LocalKinesis()
    with kinesis:
        kinesis.create_stream("orders")
    with kinesis:
        assert kinesis.state()["streams"] == {}


def test_a_port_in_use_is_named():
    with LocalKinesis() as kinesis:
        port = int(kinesis.endpoint_url.rpartition(":")[2])
        with pytest.raises(
            OptionError,
            match=f"cannot listen on 127.0.0.1:{port}: Address already in use; .*port 0 takes a free",
        ):
            LocalKinesis(port=port).start()


@pytest.mark.parametrize("make", [LocalKinesis, LocalKinesis.process])
def test_a_server_that_does_not_stop_hides_no_error_of_the_block_around_it(make, monkeypatch, caplog):
    server = make()
    really_stop = server.stop

    def stop():
        really_stop()
        raise Unavailable("it did not stop")

    monkeypatch.setattr(server, "stop", stop)
    with pytest.raises(LookupError), server:
        raise LookupError
    assert "it did not stop" in [each.msg for each in caplog.records]  # text, not the error
    with pytest.raises(Unavailable, match="it did not stop"), server:
        pass


def test_asking_a_stopped_server_says_so():
    with LocalKinesis() as kinesis:
        pass
    with pytest.raises(Unavailable, match="no answer from the embedded Kinesis"):
        kinesis.calls()


@pytest.mark.parametrize(
    "options", [{"port": 70000}, {"settle_s": -1}, {"time_factor": -1}, {"memory_bytes_max": 0}]
)
def test_bad_options_are_refused_by_name(options):
    with pytest.raises(OptionError, match=next(iter(options))):
        LocalKinesis(**options)


@pytest.mark.parametrize(
    ("given", "plain"),
    [
        ({"memory_bytes_max": 1e9}, 1_000_000_000),
        ({"port": Fraction(8080)}, 8080),
        ({"settle_s": Fraction(1, 2)}, 0.5),
        ({"time_factor": 2.0}, 2.0),
        ({"time_factor": 0}, 0),
    ],
)
def test_a_number_of_any_kind_is_accepted_and_is_a_plain_one_from_then_on(given, plain):
    (name,) = given
    found = getattr(LocalKinesis(**given).options, name)
    assert (type(found), found) == (type(plain), plain)


@pytest.mark.parametrize("value", [1.5, math.inf, math.nan, "5", True, None])
def test_a_whole_number_is_no_other(value):
    with pytest.raises(OptionError, match="memory_bytes_max must be a whole number of at least 1"):
        LocalKinesis(memory_bytes_max=value)


class Folder(os.PathLike):
    """A path of another library, as `tmpdir` of pytest."""

    def __init__(self, path):
        self._path = path

    def __fspath__(self):
        return self._path


def test_a_folder_is_named_by_any_path(tmp_path):
    with LocalKinesis(state_dir=Folder(str(tmp_path / "state"))) as kinesis:
        kinesis.create_stream("orders")
    assert arguments(LocalKinesis(state_dir=Folder("state")).options)[-2:] == ["--state", "state"]
    with LocalKinesis(state_dir=tmp_path / "state") as kinesis:
        assert "orders" in kinesis.state()["streams"]


@pytest.mark.parametrize(
    ("folder", "message"), [("", "is empty"), (Folder(" "), "is empty"), (5, "path"), (Folder(b"x"), "path")]
)
def test_a_folder_is_named_by_a_text(folder, message):
    with pytest.raises(OptionError, match=f"state_dir .*{message}"):
        LocalKinesis(state_dir=folder)


def test_importing_and_starting_loads_neither_moto_nor_the_parts_of_botocore():
    program = (
        "import sys; from penstock_local import LocalKinesis\n"
        "with LocalKinesis() as k: k.create_stream('s')\n"
        "assert not [m for m in sys.modules if m.startswith(('moto', 'botocore.', 'boto3'))]"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)


def test_the_plugin_loads_nothing_of_ours_until_the_fixture_is_used():
    program = (
        "import sys, penstock.pytest_plugin\n"
        "assert not [m for m in sys.modules if m.startswith('penstock_local') or m == 'msgspec']"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)


def test_calls_are_told_apart_by_access_key():
    with LocalKinesis(limits=False, settle_s=0) as kinesis:
        kinesis.create_stream("orders")
        for key in ("reader", "writer"):
            client = kinesis.client(aws_access_key_id=key)
            client.list_shards(StreamName="orders")
            if key == "writer":
                client.put_record(StreamName="orders", Data=b"x", PartitionKey="k")
        kinesis.client("dynamodb", aws_access_key_id="table").list_tables()
        calls = kinesis.calls()
    assert calls.by_caller == {
        "reader": {"kinesis.ListShards": 1},
        "writer": {"kinesis.ListShards": 1, "kinesis.PutRecord": 1},
        "table": {"dynamodb.ListTables": 1},
    }
    assert {(call["caller"], call["operation"]) for call in calls.recent} == {
        (caller, name) for caller, names in calls.by_caller.items() for name in names
    }


def test_the_callers_that_are_counted_apart_are_limited():
    calls = CallLog()
    for number in range(CALLERS_MAX + 5):
        calls.add(0, "kinesis", "ListShards", resource="", shards=(), outcome="ok", caller=f"key-{number}")
    counted = calls.describe()["by_caller"]
    assert len(counted) == CALLERS_MAX + 1
    assert counted["(others)"] == {"kinesis.ListShards": 5}


@pytest.mark.parametrize(
    ("authorization", "caller"),
    [
        (
            "AWS4-HMAC-SHA256 Credential=AKIA1/20260101/us-east-1/kinesis/aws4_request, SignedHeaders=host",
            "AKIA1",
        ),
        ("", ""),
        ("Bearer x", ""),
    ],
)
def test_a_caller_is_the_access_key_of_the_signature(authorization, caller):
    assert credential_of(authorization).access_key == caller
