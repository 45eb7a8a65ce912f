"""`penstock top` against the embedded Kinesis: one snapshot, and the live view in a terminal."""

import json
import os
import pty
import select
import signal
import subprocess
import sys
import time

import pytest

pytest.importorskip("httptools")

from penstock.cli import main as cli
from penstock_local import LocalKinesis, request_model

HOSTILE = "w[/x]\x1b[31m\nnext\u202e"


@pytest.fixture(scope="module")
def kinesis():
    with LocalKinesis() as server:
        server.create_stream("orders", 2)
        dynamodb = server.client("dynamodb")
        make_table(dynamodb, "billing")
        make_table(dynamodb, "no-leases", "id")
        for shard, owner in (("shardId-000000000000", HOSTILE), ("shardId-000000000001", "w1")):
            lease = {"leaseKey": {"S": shard}, "leaseOwner": {"S": owner}, "leaseCounter": {"N": "1"}}
            stopped = {"worker": {"S": "w1"}, "reason": {"S": "handler_failed: ValueError"}}
            note = {"penstockStopped": {"M": stopped}} if owner == "w1" else {}
            dynamodb.put_item(
                TableName="billing", Item={**lease, "checkpoint": {"S": "TRIM_HORIZON"}, **note}
            )
        yield server


def make_table(dynamodb, name, key="leaseKey"):
    dynamodb.create_table(
        TableName=name,
        KeySchema=[{"AttributeName": key, "KeyType": "HASH"}],
        AttributeDefinitions=[{"AttributeName": key, "AttributeType": "S"}],
        BillingMode="PAY_PER_REQUEST",
    )


@pytest.fixture(autouse=True)
def environ(kinesis, monkeypatch):
    for name, value in kinesis.environ().items():
        monkeypatch.setenv(name, value)


def top(kinesis, capsys, *arguments):
    capsys.readouterr()
    # The endpoint is named: connections are kept for what boto3 finds by itself, also between test modules.
    status = cli.main(["top", *arguments, "--endpoint-url", kinesis.endpoint_url])
    out, err = capsys.readouterr()
    return status, out, err


def test_lease_tables_are_found_by_their_key_and_shown_as_json(kinesis, capsys):
    status, out, err = top(kinesis, capsys, "--json", "--stream", "orders", "--silent-after", "0")
    assert (status, err) == (0, "")
    (application,) = json.loads(out)["applications"]
    assert (application["application"], application["stream"]) == ("billing", "orders")
    assert application["workers"][0]["worker"] in (HOSTILE, "w1")
    assert [shard["millis_behind_latest"] for shard in application["shards"]] == [0, 0]
    assert [shard["shard"] for shard in application["lineage"]] == [f"shardId-{n:012d}" for n in range(2)]
    assert not {"\x1b", "\u202e"} & set(out)


def test_without_a_terminal_one_look_is_printed_as_text(kinesis, capsys):
    status, out, err = top(kinesis, capsys, "billing", "--silent-after", "1")
    assert status == 0
    assert out.startswith("billing: stream -, 2 shards, 2 in trouble, 0 ended, lag -\n")
    assert "owner silent" in out
    assert "w[/x]\\x1b[31m\\nnext\\u202e" in out
    assert "give --stream" in err


def test_an_application_without_a_table_is_told_beside_the_others_and_is_status_1(kinesis, capsys):
    status, out, err = top(kinesis, capsys, "billing", "nosuch", "--silent-after", "0", "--lags", "0")
    assert status == 1
    assert "nosuch: Scan on lease table nosuch" in err
    assert "billing: stream -, 2 shards" in out
    status, out, _ = top(kinesis, capsys, "nosuch", "--json")
    (application,) = json.loads(out)["applications"]
    assert (status, application["state"], application["trouble"]) == (1, "cannot be read", "cannot be read")


def test_a_table_with_another_key_is_no_lease_table(kinesis, capsys):
    kinesis.client("dynamodb").put_item(TableName="no-leases", Item={"id": {"S": "customer"}})
    status, _, err = top(kinesis, capsys, "no-leases", "--once")
    assert status == 1
    assert err.startswith(
        "no-leases: DynamoDB table no-leases is not a lease table: its key is id, not leaseKey; "
    )
    assert cli.main(["leases", "no-leases"]) == 1
    assert "its key is id, not leaseKey; " in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--interval", "0.5"], "--interval 0.5: expected at least 1"),
        (["--lags", "-1"], "--lags -1: expected 0 or more"),
    ],
)
def test_a_number_that_cannot_be_is_refused(kinesis, capsys, arguments, message):
    status, _, err = top(kinesis, capsys, *arguments)
    assert (status, err) == (2, f"penstock top: {message}\n")


def test_a_reader_of_this_server_may_only_read(kinesis, capsys, monkeypatch):
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "looker")
    assert top(kinesis, capsys, "--json", "--stream", "orders", "--silent-after", "0")[0] == 0
    assert set(kinesis.calls().by_caller["looker"]) == {
        "dynamodb.ListTables",
        "dynamodb.DescribeTable",
        "dynamodb.Scan",
        "kinesis.ListShards",
        "kinesis.GetShardIterator",
        "kinesis.GetRecords",
    } | ({"kinesis.ListQueues"} if "ListQueues" in request_model.operations() else set())


# --- the live view ----------------------------------------------------------------------------------------


class Terminal:
    """A command on a terminal of its own."""

    def __init__(self, kinesis, *arguments):
        self._ours, theirs = pty.openpty()
        self.shown = b""
        environ = {**os.environ, "TERM": "xterm", "COLUMNS": "120", "LINES": "30"}
        command = [
            sys.executable,
            "-m",
            "penstock",
            "top",
            *arguments,
            "--endpoint-url",
            kinesis.endpoint_url,
        ]
        self.process = subprocess.Popen(
            command, stdin=theirs, stdout=theirs, stderr=theirs, env=environ, start_new_session=True
        )
        os.close(theirs)

    def press(self, keys: bytes) -> None:
        self.shown = b""
        os.write(self._ours, keys)

    def read_until(self, text: bytes) -> None:
        end_s = time.monotonic() + 60
        while text not in self.shown:
            assert time.monotonic() < end_s, self.shown[-2000:]
            if select.select([self._ours], [], [], 0.2)[0]:
                self.shown += os.read(self._ours, 65536)

    def read_to_the_end(self) -> int:
        end_s = time.monotonic() + 60
        while True:
            assert time.monotonic() < end_s, self.shown[-2000:]
            try:
                data = os.read(self._ours, 65536)
            except OSError:  # the other side is closed
                data = b""
            if not data:
                return self.process.wait(60)
            self.shown += data

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        os.close(self._ours)


@pytest.fixture
def terminal(kinesis):
    pytest.importorskip("rich")
    opened = []

    def open_one(*arguments):
        opened.append(Terminal(kinesis, *arguments))
        return opened[-1]

    yield open_one
    for each in opened:
        each.close()


def test_keys_lead_from_all_applications_to_a_shard_and_q_ends(terminal):
    seen = terminal("--stream", "orders")
    seen.read_until(b"1 application ")
    seen.press(b"\r")
    seen.read_until(b"leases per worker")
    seen.press(b"s")
    seen.read_until(b"provisioned")
    seen.press(b"\x1b")
    seen.read_until(b"leases per worker")
    seen.press(b"\x1b[B\r")
    seen.read_until(b"lease renewed")
    seen.press(b"q")
    assert seen.read_to_the_end() == 0
    assert b"\x1b[?1049l" in seen.shown, "the screen is as it was"


@pytest.mark.parametrize(
    ("number", "status"), [(signal.SIGINT, 0), (signal.SIGTERM, 0), (signal.SIGHUP, 129)]
)
def test_a_terminal_that_is_interrupted_is_left_as_it_was(terminal, number, status):
    seen = terminal("billing", "--lags", "0")
    seen.read_until(b"handler_failed")
    seen.process.send_signal(number)
    assert seen.read_to_the_end() == status
    assert b"\x1b[?1049l" in seen.shown
    assert b"Traceback" not in seen.shown


def test_on_a_dumb_terminal_a_snapshot_is_printed(kinesis, capsys, monkeypatch):
    monkeypatch.setattr("sys.stdin.isatty", lambda: True, raising=False)
    monkeypatch.setattr("sys.stdout.isatty", lambda: True, raising=False)
    monkeypatch.setenv("TERM", "dumb")
    status, out, _ = top(kinesis, capsys, "billing", "--silent-after", "0", "--lags", "0")
    assert (status, out.splitlines()[0]) == (0, "billing: stream -, 2 shards, 2 in trouble, 0 ended, lag -")


def test_the_live_view_without_rich_says_what_to_install(kinesis, capsys, monkeypatch):
    monkeypatch.setattr("sys.stdin.isatty", lambda: True, raising=False)
    monkeypatch.setattr("sys.stdout.isatty", lambda: True, raising=False)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    status, _, err = top(kinesis, capsys)
    assert status == 1
    assert "pip install 'penstock[cli]'" in err
