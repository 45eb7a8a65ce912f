"""`penstock queues` and `penstock consume --queue` against the embedded Kinesis."""

import json
import signal
import subprocess
import sys

import pytest

pytest.importorskip("httptools")

from cli.commands.support import penstock, put
from queue_rig import knows_queues
from waiting import wait_until

pytestmark = knows_queues


@pytest.fixture
def name(request, capsys):
    name = f"q{abs(hash(request.node.name)) % 10**8}"
    assert penstock(capsys, "streams", "create", name, "--on-demand", "--wait")[0] == 0
    assert create(capsys, name, "--max-receive-count", "1")[0] == 0
    return name


def create(capsys, name, *arguments):
    return penstock(
        capsys, "queues", "create", name, "--stream", name, "--from", "TRIM_HORIZON", "--wait", *arguments
    )


def documents(text):
    return [json.loads(line) for line in text.splitlines()]


def dead_letters(capsys, name, *arguments):
    status, out, _ = penstock(capsys, "queues", "dead", name, "--json", *arguments)
    assert status == 0
    return {each["data"]: each for each in documents(out)}


def test_a_queue_is_created_listed_described_changed_and_deleted(name, capsys):
    assert name in penstock(capsys, "queues", "list")[1]
    listed = json.loads(penstock(capsys, "queues", "list", "--stream", name, "--json")[1])
    assert [(each["name"], each["status"]) for each in listed] == [(name, "ACTIVE")]
    assert (
        penstock(capsys, "queues", "update", name, "--visibility", "7", "--no-dead-letters", "--wait")[0] == 0
    )
    about = json.loads(penstock(capsys, "queues", "describe", name, "--json")[1])
    assert (about["visibility_timeout_s"], about["max_receive_count"]) == (7, None)
    assert about["start"].startswith("TRIM_HORIZON ")
    assert "no dead letters" in penstock(capsys, "queues", "describe", name)[1]
    status, _, err = penstock(capsys, "queues", "delete", name)
    assert (status, "add --yes" in err) == (2, True)
    assert penstock(capsys, "queues", "delete", name, "--yes", "--wait")[0] == 0
    assert name not in penstock(capsys, "queues", "list")[1]
    status, _, err = penstock(capsys, "queues", "describe", name)
    assert (status, "there is no queue" in err) == (1, True)


def test_looking_at_records_gives_them_back_and_counts(name, kinesis, capsys):
    put(kinesis, name, 2)
    status, out, _ = penstock(capsys, "queues", "receive", name, "--json")
    assert (status, sorted(each["data"] for each in documents(out))) == (0, ["r0", "r1"])
    assert set(dead_letters(capsys, name)) == {"r0", "r1"}, "this queue allows one receive, and a look is one"


def test_dead_letters_are_exported_restored_by_filter_and_purged(name, kinesis, capsys):
    put(kinesis, name, 12)
    for _ in range(2):
        assert penstock(capsys, "queues", "receive", name, "--count", "12")[0] == 0
    found = dead_letters(capsys, name)
    assert set(found) == {f"r{n}" for n in range(12)}
    assert set(dead_letters(capsys, name, "--key", "k3")) == {"r3"}, "a look leaves them dead letters"

    status, _, err = penstock(capsys, "queues", "restore", name, "--grep", "^r1")
    assert (status, "add --yes" in err) == (2, True)
    assert set(dead_letters(capsys, name)) == set(found), "nothing was changed, and nothing stays hidden"
    assert penstock(capsys, "queues", "restore", name, "--grep", "^r1", "--yes")[:2] == (
        0,
        "3 records restored\n",
    )
    assert set(dead_letters(capsys, name)) == set(found) - {"r1", "r10", "r11"}

    one = found["r5"]["record_id"]
    assert penstock(capsys, "queues", "purge-dead", name, "--record", one, "--yes")[:2] == (
        0,
        "1 record acknowledged\n",
    )
    assert "r5" not in dead_letters(capsys, name)
    assert penstock(capsys, "queues", "purge-dead", name, "--yes")[:2] == (0, "8 records acknowledged\n")
    assert dead_letters(capsys, name) == {}


def test_consume_prints_and_acknowledges_a_queue(name, kinesis, capsys, tmp_path):
    put(kinesis, name, 5)
    status, _, said = penstock(capsys, "consume", "--queue", name, "-f", "%p")
    assert (status, "'%p' is none of" in said) == (2, True)
    out, err = tmp_path / "out", tmp_path / "err"
    with out.open("w") as stdout, err.open("w") as stderr:
        command = [sys.executable, "-m", "penstock", "consume", "--queue", name, "-f", "%t %k=%s\\n"]
        process = subprocess.Popen(command, stdout=stdout, stderr=stderr)
    wait_until(lambda: len(out.read_text().splitlines()) == 5)
    process.send_signal(signal.SIGTERM)
    assert process.wait(60) == 0, err.read_text()
    assert sorted(out.read_text().splitlines()) == [f"{name} k{n}=r{n}" for n in range(5)]
    assert penstock(capsys, "queues", "receive", name)[:2] == (0, "")
    assert dead_letters(capsys, name) == {}


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (("orders", "--queue", "q"), "STREAM has no meaning with --queue"),
        (("--queue", "q", "--application", "a"), "--application has no meaning with --queue"),
        (("orders",), "name a stream and --application, or --queue"),
        (("--application", "a"), "name a stream and --application, or --queue"),
    ],
)
def test_what_does_not_go_together_is_refused(arguments, text, capsys):
    status, _, err = penstock(capsys, "consume", *arguments)
    assert (status, text in err) == (2, True)
