"""`penstock put` by hand: lines, files and keys, and its messages when something is wrong."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys

import pytest

from penstock.core.aggregation import deaggregate
from penstock_local import LocalKinesis
from waiting import wait_by_limited_calls


@pytest.fixture(scope="module")
def server():
    with LocalKinesis(limits=False) as running:
        yield running


def put(server, *arguments, given=b""):
    return subprocess.run(
        [sys.executable, "-m", "penstock", "put", *arguments],
        input=given,
        capture_output=True,
        timeout=60,
        env={**os.environ, **server.environ()},
        check=False,
    )


@contextlib.contextmanager
def putting(server, stream, *arguments):
    """`penstock put` with a pipe as its input."""
    with subprocess.Popen(
        [sys.executable, "-m", "penstock", "put", stream, *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={**os.environ, **server.environ()},
    ) as process:
        yield process


def give(process, data):
    process.stdin.write(data)
    process.stdin.flush()


def records(server, stream):
    client = server.client("kinesis")
    found = []
    for shard in client.list_shards(StreamName=stream)["Shards"]:
        iterator = client.get_shard_iterator(
            StreamName=stream, ShardId=shard["ShardId"], ShardIteratorType="TRIM_HORIZON"
        )["ShardIterator"]
        found += client.get_records(ShardIterator=iterator)["Records"]
    return found


def test_each_line_is_a_record(server):
    server.create_stream("lines", shards=2)
    done = put(server, "lines", given="\ufeffone\ntwo\r\nthrée".encode())
    assert (done.returncode, done.stderr) == (0, b"")
    assert done.stdout.startswith(b"acknowledged: 3 records in 3 Kinesis records, 12 bytes")
    assert sorted(record["Data"] for record in records(server, "lines")) == sorted(
        [b"one", b"two", "thrée".encode()]
    )


def test_lines_are_written_when_they_have_come_and_not_when_many_have(server):
    server.create_stream("slow", shards=1)
    with putting(server, "slow") as process:
        for count in (1, 2):
            give(process, b"line\nbegun ")
            wait_by_limited_calls(lambda: len(records(server, "slow")) >= count, "the line", 60)  # noqa: B023 - called at once
        out, _ = process.communicate(timeout=60)
    assert process.returncode == 0
    assert out.startswith(b"acknowledged: 3 records")
    assert [record["Data"] for record in records(server, "slow")] == [b"line", b"begun line", b"begun "]


def test_a_terminated_put_says_what_is_acknowledged(server):
    server.create_stream("ended", shards=1)
    with putting(server, "ended") as process:
        give(process, b"line\nbegun ")
        wait_by_limited_calls(lambda: records(server, "ended"), "the first record")
        process.terminate()
        _, said = process.communicate(timeout=60)
    assert process.returncode == 128 + signal.SIGTERM
    assert said.startswith(b"penstock put: interrupted. ")
    assert b"Traceback" not in said


def test_a_key_may_be_constant_or_a_field(server):
    server.create_stream("keys", shards=1)
    put(server, "keys", "--key", "k1", given=b"a\n")
    put(server, "keys", "--key-field", "id", given=b'{"id": 7}\n{"id": "7a"}\n{"id": true}\n')
    too_long_for_int = b"9" * 5_000
    put(server, "keys", "--key-field", "id", given=b'{"id": 8, "n": %s}\n' % too_long_for_int)
    assert [record["PartitionKey"] for record in records(server, "keys")] == ["k1", "7", "7a", "true", "8"]


def test_files_may_be_whole_records_and_records_may_be_aggregated(server, tmp_path):
    server.create_stream("files", shards=1)
    for name in ("a", "b", "c"):
        (tmp_path / name).write_bytes(name.encode() * 2000 + b"\n")
    done = put(
        server,
        "files",
        "--whole",
        *(str(tmp_path / name) for name in "abc"),
        "--aggregate",
        "--key",
        "k",
        "--json",
    )
    assert json.loads(done.stdout)["acknowledged"] == 3
    (record,) = records(server, "files")
    assert [each.data[:1] for each in deaggregate(record["Data"])] == [b"a", b"b", b"c"]


@pytest.mark.parametrize(
    ("arguments", "given", "message"),
    [
        (("nothing",), b"a\n", b"nothing"),
        (("errors", "--rate-limit", "0"), b"a\n", b"--rate-limit 0: expected at least 1"),
        (("errors", "--key", "a", "--key-field", "b"), b"a\n", b"exclude each other"),
        (("errors", "--key-field", "id"), b"{}\n", b"line 1: this has no text or number in a field 'id'"),
        (("errors", "--key-field", "id"), b'{"id": null}\n', b"line 1: this has no text or number"),
        (("errors", "--key-field", "id"), b'{"id": {"a": 1}}\n', b"line 1: this has no text or number"),
        (("errors", "--key-field", "id"), b"[1]\n", b"line 1: this has no text or number"),
        (("errors", "--key-field", "id"), b"id\n", b"line 1: this is not JSON"),
        (("errors", "--key-field", "id"), b"[" * 100_000 + b"\n", b"line 1: this is not JSON"),
        (("errors", "no-such-file"), b"", b"no-such-file: there is no such file; nothing was written"),
        (("errors", "/"), b"", b"/ is a folder"),
        (("errors", "--key", ""), b"a\n", b"argument --key: the value is empty"),
        (("errors", "--whole"), b"x" * (2**20 + 1), b"the stream takes 1048576"),
    ],
)
def test_a_mistake_is_one_clear_line(server, arguments, given, message):
    if "errors" not in server.client("kinesis").list_streams()["StreamNames"]:
        server.create_stream("errors", shards=1)
    done = put(server, *arguments, given=given)
    assert done.returncode in (1, 2)
    assert message in done.stderr
    assert b"Traceback" not in done.stderr


def test_what_stands_before_a_record_that_cannot_be_written_is_written(server, tmp_path):
    server.create_stream("before", shards=1)
    (tmp_path / "good").write_bytes(b"1\n2\n")
    (tmp_path / "bad").write_bytes(b"3\n" + b"x" * (2**20 + 1) + b"\n5\n")
    done = put(server, "before", str(tmp_path / "good"), str(tmp_path / "bad"))
    assert done.returncode == 2
    assert done.stderr.startswith(f"penstock put: line 2 of {tmp_path / 'bad'}: stream before: ".encode())
    assert done.stderr.endswith(b"; 3 records were acknowledged before\n")
    assert [record["Data"] for record in records(server, "before")] == [b"1", b"2", b"3"]


@pytest.mark.parametrize("arguments", [(), ("--whole",), ("--key-field", "id")])
def test_a_record_without_an_end_is_not_read_to_its_end(server, arguments):
    if "endless" not in server.client("kinesis").list_streams()["StreamNames"]:
        server.create_stream("endless", shards=1)
    with putting(server, "endless", *arguments) as process:
        with contextlib.suppress(BrokenPipeError):
            for _ in range(32):
                os.write(process.stdin.fileno(), b"x" * 2**20)
        assert process.wait(60) == 2, "its input is still open"
        assert b"and the stream takes 1048576; split the record" in process.stderr.read()


def test_no_file_is_written_when_one_is_missing(server, tmp_path):
    server.create_stream("none", shards=1)
    (tmp_path / "good").write_bytes(b"1\n")
    done = put(server, "none", str(tmp_path / "good"), str(tmp_path / "missing"))
    assert (done.returncode, records(server, "none")) == (2, [])
