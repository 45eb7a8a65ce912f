"""`penstock sql` as a process: interrupted, followed, and read by a program that stops early."""

from __future__ import annotations

import json
import signal
import subprocess
import sys

import pytest

pytest.importorskip("duckdb")

from cli.commands.support import put
from waiting import wait_until


def start(*arguments, **options):
    return subprocess.Popen(
        [sys.executable, "-m", "penstock", "sql", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        **options,
    )


@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_an_interrupted_query_ends_at_once_and_leaves_no_folder(
    kinesis, stream, number, status, tmp_path, monkeypatch
):
    put(kinesis, stream, 100)
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setenv("TMPDIR", str(folder))
    with start(
        f"SELECT sum(hash(a.i + b.i)) FROM {stream}, range(100000000) a(i), range(100000000) b(i)"
    ) as process:
        assert "reads" in process.stderr.readline()
        assert list(folder.iterdir())
        process.send_signal(number)
        out, err = process.communicate(timeout=60)
    assert (process.returncode, out, "Traceback" in err) == (status, "", False)
    assert list(folder.iterdir()) == []


def test_rows_are_there_before_the_query_has_ended(kinesis, stream):
    put(kinesis, stream, 100)
    with start(f"SELECT a.text FROM {stream} a, range(100000000)", "--format", "json") as process:
        assert json.loads(process.stdout.readline())["text"].startswith("r")
        process.stdout.close()
        process.wait(60)
    assert process.returncode == 141


@pytest.mark.parametrize(
    ("sql", "first", "then"),
    [
        ("SELECT text FROM {} WHERE text LIKE '%1'", {"text": "a1"}, {"text": "b1"}),
        ("SELECT count(*) n FROM {}", [{"n": 3}], [{"n": 5}]),
    ],
    ids=["rows", "aggregate"],
)
def test_a_followed_query_goes_on_until_it_is_interrupted(kinesis, stream, sql, first, then):
    def next_result(process):
        document = json.loads(process.stdout.readline())
        return document.get("rows", document)

    def until(process, expected):
        wait_until(lambda: next_result(process) == expected, f"{expected}")

    put(kinesis, stream, 3, "a")
    with start(sql.format(stream), "--follow", "--format", "json", "--refresh", "0.2") as process:
        until(process, first)
        put(kinesis, stream, 2, "b")
        until(process, then)
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=60)
    assert (process.returncode, "Traceback" in err) == (0, False), err


def test_a_followed_query_of_a_stream_that_is_deleted_ends_with_its_own_advice(kinesis):
    kinesis.create_stream("followed-and-deleted")
    with start('SELECT count(*) n FROM "followed-and-deleted"', "--follow", "--format", "json") as process:
        process.stdout.readline()
        kinesis.client("kinesis").delete_stream(StreamName="followed-and-deleted")
        _, err = process.communicate(timeout=60)
    assert process.returncode == 1, err
    *_, of_shard, last = err.splitlines()
    assert "ERROR penstock.consumer: stream followed-and-deleted" in of_shard
    assert last.startswith("penstock sql: stream followed-and-deleted: shardId-000000000000 stopped. ")
    assert last.endswith("created again under its name: start the query again")
    assert "CRITICAL" not in err
    assert "penstock.leases" not in err
