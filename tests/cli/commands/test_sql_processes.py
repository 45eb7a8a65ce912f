"""`penstock sql` as a process: interrupted, and read by a program that stops early."""

from __future__ import annotations

import json
import signal
import subprocess
import sys

import pytest

pytest.importorskip("duckdb")

from cli.commands.support import put


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
    assert process.returncode == 1
