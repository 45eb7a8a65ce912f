"""`penstock streams` against the embedded Kinesis."""

import io
import json
import sys

import pytest

pytest.importorskip("httptools")

from cli.commands.support import penstock


def streams(capsys, *arguments):
    return penstock(capsys, "streams", *arguments)


def described(capsys, stream):
    return json.loads(streams(capsys, "describe", stream, "--json")[1])


class Typed(io.StringIO):
    """A user's input at a terminal."""

    def isatty(self):
        return True


@pytest.fixture
def made(request, capsys):
    name = f"made-{abs(hash(request.node.name))}"
    assert streams(capsys, "create", name, "--shards", "2", "--wait")[:2] == (
        0,
        f"{name} is being created; 2 shards will be billed\n",
    )
    return name


def test_a_stream_is_created_listed_described_and_deleted(made, capsys):
    assert made in streams(capsys, "list")[1].splitlines()
    assert made in json.loads(streams(capsys, "list", "--json")[1])
    about = described(capsys, made)
    assert (about["status"], about["open_shards"], about["mode"]) == ("ACTIVE", 2, "provisioned")
    assert "open shards       2\n" in streams(capsys, "describe", made)[1]
    assert streams(capsys, "delete", made, "--yes", "--wait")[:2] == (
        0,
        f"{made} is being deleted; 2 shards fewer will be billed\n",
    )
    assert made not in streams(capsys, "list")[1].splitlines()


def test_shards_are_split_merged_and_scaled_with_what_is_billed(made, capsys):
    _, out, _ = streams(capsys, "split", made, "0", "--wait")
    assert out == "shardId-000000000000 is being split; 3 shards will be billed, 2 so far\n"
    _, out, _ = streams(capsys, "merge", made, "shardId-000000000003", "1", "--wait")
    assert out.endswith("are being merged; 2 shards will be billed, 3 so far\n")
    _, out, _ = streams(capsys, "scale", made, "4", "--wait")
    assert out.startswith(f"{made} goes from 2 to 4 shards, which will be billed")
    assert described(capsys, made)["open_shards"] == 4
    _, out, _ = streams(capsys, "scale", made, "4", "--wait")
    assert out.startswith(f"{made} stays at 4 shards, which will be billed")
    assert streams(capsys, "scale", made, "0") == (2, "", "penstock streams: N 0: expected at least 1\n")
    status, _, err = streams(capsys, "split", made, "0")
    assert status == 2
    assert "shardId-000000000000 is not an open shard" in err


def test_a_stream_becomes_on_demand(made, capsys):
    _, out, _ = streams(capsys, "mode", made, "on-demand", "--wait")
    assert out.startswith(f"{made} becomes on-demand; written and read data will be billed.")
    assert described(capsys, made)["mode"] == "on-demand"
    assert streams(capsys, "mode", made, "on-demand")[:2] == (0, f"{made} is on-demand already\n")


def test_a_longer_retention_is_set_and_a_shorter_one_asked_about(made, capsys, monkeypatch):
    assert streams(capsys, "retention", made, "7d", "--wait")[0] == 0
    monkeypatch.setattr(sys, "stdin", io.StringIO())
    status, _, err = streams(capsys, "retention", made, "24h")
    assert status == 2
    assert "older than 24 hours will be gone, for good. There is no terminal to ask on: add --yes" in err
    assert described(capsys, made)["retention_hours"] == 168
    assert streams(capsys, "retention", made, "24h", "--yes", "--wait")[0] == 0
    assert described(capsys, made)["retention_hours"] == 24


@pytest.mark.parametrize(("answer", "is_there"), [("yes", True), ("", True), ("{name}", False)])
def test_a_deletion_asks_for_the_name(made, capsys, monkeypatch, answer, is_there):
    monkeypatch.setattr(sys, "stdin", Typed(answer.format(name=made) + "\n"))
    status, _, err = streams(capsys, "delete", made, "--wait")
    assert f"with all its records, for good. Type {made} to go on: " in err
    assert status == (1 if is_there else 0)
    assert (made in streams(capsys, "list")[1].splitlines()) == is_there


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("create", "s", "--shards", "0"), "--shards 0: expected at least 1"),
        (("create", "s", "--shards", "2", "--on-demand"), "exclude each other"),
    ],
)
def test_what_cannot_be_is_wrong_usage(capsys, arguments, said):
    status, _, err = streams(capsys, *arguments)
    assert status == 2
    assert said in err


@pytest.mark.parametrize("time", ["23h", "366d", "soon"])
def test_a_retention_that_cannot_be_is_wrong_usage(made, capsys, time):
    status, _, err = streams(capsys, "retention", made, time)
    assert status == 2
    assert f"TIME {time}: expected 24h to 365d" in err
