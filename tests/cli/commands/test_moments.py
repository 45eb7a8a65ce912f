"""Moments as they are typed: times of this machine's clock, understood, shown and refused."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

pytest.importorskip("httptools")

from cli.commands.support import penstock, put
from waiting import wait_until


def let_a_second_pass(kinesis):
    began_s = kinesis.clock.now_s()
    wait_until(lambda: kinesis.clock.now_s() > began_s + 1.1)


def test_tail_reads_between_two_times_of_this_machine(kinesis, stream, capsys, new_york):
    put(kinesis, stream, 3, "before")
    let_a_second_pass(kinesis)
    begin = datetime.fromtimestamp(kinesis.clock.now_s(), new_york)
    put(kinesis, stream, 5, "within")
    let_a_second_pass(kinesis)
    end = datetime.fromtimestamp(kinesis.clock.now_s(), new_york)
    put(kinesis, stream, 4, "after")
    typed = [f"{moment:%Y-%m-%d %H:%M:%S.%f}" for moment in (begin, end)]
    status, out, err = penstock(capsys, "tail", stream, "--since", typed[0], "--until", typed[1], "--data")
    assert (status, sorted(out.split())) == (0, [f"within{n}" for n in range(5)])
    shown = [line.removeprefix("penstock tail: ") for line in err.splitlines()]
    for line, word, moment in zip(shown, ("from", "until"), (begin, end), strict=True):
        in_utc = moment.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
        assert line == f"{word} {moment.isoformat(timespec='milliseconds')} ({in_utc})"


def test_tail_until_a_moment_begins_at_the_oldest_record(kinesis, stream, capsys):
    put(kinesis, stream, 3)
    let_a_second_pass(kinesis)
    assert penstock(capsys, "tail", stream, "--until", "0s", "--data")[1].count("\n") == 3
    assert penstock(capsys, "tail", stream, "--until", "1d", "--data")[1].count("\n") == 0


def test_tail_until_a_moment_to_come_ends_when_it_has_passed(kinesis, stream, capsys):
    put(kinesis, stream, 3)
    end_s = kinesis.clock.now_s() + 2
    end = datetime.fromtimestamp(end_s, UTC).isoformat()
    status, out, _ = penstock(capsys, "tail", stream, "--from", "TRIM_HORIZON", "--until", end, "--data")
    assert (status, out.count("\n")) == (0, 3)
    assert kinesis.clock.now_s() > end_s


def test_tail_until_a_moment_of_one_shard(kinesis, stream, capsys):
    put(kinesis, stream, 40)
    let_a_second_pass(kinesis)
    shards = [
        penstock(capsys, "tail", stream, "--until", "0s", "--shard", str(n), "--data")[1] for n in range(4)
    ]
    assert sorted("".join(shards).split()) == sorted(f"r{n}" for n in range(40))


def test_a_new_application_starts_at_a_time_of_this_machine(kinesis, stream, consume, new_york):
    put(kinesis, stream, 3, "before")
    let_a_second_pass(kinesis)
    begin = datetime.fromtimestamp(kinesis.clock.now_s(), new_york)
    put(kinesis, stream, 5, "within")
    worker = consume("w", stream, f"a{stream}", "--from", f"{begin:%Y-%m-%d %H:%M:%S.%f}", "--data")
    wait_until(lambda: len(worker.lines()) >= 5)
    assert worker.stop() == 0
    assert sorted(worker.lines()) == [f"within{n}" for n in range(5)]
    assert f"starts from {begin.isoformat(timespec='milliseconds')} (" in worker.err.read_text()


def test_checkpoints_are_set_to_a_time_of_this_machine(kinesis, stream, consume, capsys, new_york):
    put(kinesis, stream, 3, "before")
    let_a_second_pass(kinesis)
    begin = datetime.fromtimestamp(kinesis.clock.now_s(), new_york)
    put(kinesis, stream, 5, "within")
    worker = consume("w", stream, f"a{stream}", "--data")
    wait_until(lambda: len(worker.lines()) >= 8)
    assert worker.stop() == 0
    reset = ["leases", f"a{stream}", "--stream", stream, "--observe", "0", "--reset-to"]
    later = f"AT_TIMESTAMP:{begin + timedelta(hours=2):%Y-%m-%dT%H:%M:%S}"
    status, _, err = penstock(capsys, *reset, later)
    assert (status, f"--reset-to {later}: this moment is in the future" in err) == (2, True)
    status, _, err = penstock(capsys, *reset, f"AT_TIMESTAMP:{begin:%Y-%m-%dT%H:%M:%S.%f}")
    assert status == 0, err
    assert f"reset to {begin.isoformat(timespec='milliseconds')} (" in err
    again = consume("again", stream, f"a{stream}", "--data")
    wait_until(lambda: len(again.lines()) >= 5)
    assert again.stop() == 0
    assert sorted(again.lines()) == [f"within{n}" for n in range(5)]
