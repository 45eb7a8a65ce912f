"""How commands end that are interrupted: 0 if they run until then, else 128 and the signal's number."""

from __future__ import annotations

import signal
import subprocess
import sys
from datetime import UTC, datetime, timedelta

import pytest

pytest.importorskip("httptools")

from cli.commands.support import put

IN_AN_HOUR = (datetime.now(UTC) + timedelta(hours=1)).isoformat()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize(
    ("arguments", "has_end"),
    [
        (["tail", "S", "--from", "TRIM_HORIZON"], False),
        (["consume", "S", "--application", "A", "--from", "TRIM_HORIZON"], False),
        (["tail", "S", "--from", "TRIM_HORIZON", "--count", "1000"], True),
        (["tail", "S", "--until", IN_AN_HOUR], True),
        (["put", "S"], True),
    ],
    ids=["tail", "consume", "tail --count", "tail --until", "put"],
)
def test_an_interrupted_command_ends_with_0_or_128_and_the_signal(
    kinesis, stream, arguments, has_end, number
):
    put(kinesis, stream, 3)
    words = [{"S": stream, "A": f"a{stream}"}.get(word, word) for word in arguments]
    with subprocess.Popen(
        [sys.executable, "-m", "penstock", *words],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        if words[0] == "put":
            process.stdin.write("a\n")
            process.stdin.flush()
            until_acknowledged(kinesis, stream, 4)
        else:
            for _ in range(3):
                assert process.stdout.readline()
        process.send_signal(number)
        _, err = process.communicate(timeout=60)
    assert (process.returncode, "interrupted" in err) == (128 + number if has_end else 0, has_end), err


def until_acknowledged(kinesis, stream, count):
    from waiting import wait_until

    def stored():
        return sum(shard["records"] for shard in kinesis.state()["streams"][stream]["shards"].values())

    wait_until(lambda: stored() == count)
