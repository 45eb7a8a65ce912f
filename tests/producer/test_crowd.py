"""Many writers on a small stream with the service's quotas: they use all of it, and nothing is lost."""

from __future__ import annotations

import threading
import time

import pytest

from penstock.aws.aws_options import AwsOptions
from penstock.aws.kinesis import AwsKinesis
from penstock.errors import Throttled
from penstock.producer import Producer
from penstock_local import LocalKinesisProcess
from stream_reading import firsts_by_key, kcl_reads

SHARDS, WRITERS, RECORD_BYTES = 4, 8, 10_000
CAPACITY_BYTES_PER_S = SHARDS * 2**20


class Watched:
    """The service, and for each request its moment and whether anything in it was refused."""

    def __init__(self, kinesis, begin_s):
        self._kinesis = kinesis
        self._begin_s = begin_s
        self.requests = []

    def __getattr__(self, name):
        return getattr(self._kinesis, name)

    def put_records(self, stream, entries):
        try:
            answers = self._kinesis.put_records(stream, entries)
        except Throttled:
            self.requests.append((time.monotonic() - self._begin_s, True))
            raise
        is_refused = any(answer.error_code is not None for answer in answers)
        self.requests.append((time.monotonic() - self._begin_s, is_refused))
        return answers


class Figures:
    """When how many bytes were accepted, and when a writer paused."""

    def __init__(self, begin_s):
        self.begin_s = begin_s
        self.accepted_bytes = []
        self.pauses = []

    def count(self, name, value=1, labels=None):
        now_s = time.monotonic() - self.begin_s
        if name == "bytes_put":
            self.accepted_bytes.append((now_s, value))
        elif name == "throttle_pause_s":
            self.pauses.append((now_s, value))

    def gauge(self, name, value, labels=None):
        """Not asked for here."""

    observe = gauge


@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    "load_s", [pytest.param(12.0, id="short"), pytest.param(60.0, id="long", marks=pytest.mark.soak)]
)
def test_eight_writers_at_three_times_capacity_use_it_and_are_rarely_refused(load_s):
    # In the short run chance rules: a dozen refusals more or less.
    refused_max = 0.05 if load_s >= 60 else 0.1
    # A machine that hangs for seconds spoils one run, a wrong rate all of them.
    for _ in range(3):
        used, refused, late_pauses = crowd(load_s)
        if used > 0.9 and refused <= refused_max and not late_pauses:
            break
    assert used > 0.9
    assert refused <= refused_max
    assert not late_pauses


def crowd(load_s):
    """Run the writers; all of their records are read, and in order, whatever the figures are.

    Returns:
        The part of the capacity that was used, the part of the requests that was refused once the rates had settled,
        and the moments after the load at which a writer still paused.
    """
    with LocalKinesisProcess(limits=True) as server:
        server.create_stream("crowd", shards=SHARDS)
        environ = server.environ()
        kinesis = AwsKinesis(
            AwsOptions(
                endpoint_url=server.endpoint_url,
                region=server.region,
                access_key_id=environ["AWS_ACCESS_KEY_ID"],
                secret_access_key=environ["AWS_SECRET_ACCESS_KEY"],
            )
        )
        begin_s = time.monotonic()
        figures = Figures(begin_s)
        kinesis = Watched(kinesis, begin_s)
        given = {}
        threads = [
            threading.Thread(target=push, args=(kinesis, figures, begin_s + load_s, writer, given))
            for writer in range(WRITERS)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(load_s + 60)
        # Reads have their quota too: let its time go by.
        seen = kcl_reads(server.client(), "crowd", before_read=lambda: server.clock.advance(10))
    assert firsts_by_key(seen) == given
    settled_s = min(10.0, load_s / 2)
    used_bytes = sum(size for moment_s, size in figures.accepted_bytes if moment_s < load_s)
    used = used_bytes / (load_s * CAPACITY_BYTES_PER_S)
    late = [is_refused for moment_s, is_refused in kinesis.requests if settled_s < moment_s < load_s]
    refused = sum(late) / len(late)
    print(f"{load_s:g} s: {used:.1%} of the capacity used, {refused:.1%} of {len(late)} requests refused")  # noqa: T201 - the result of a long run
    return used, refused, [moment_s for moment_s, _ in figures.pauses if moment_s > load_s + 10]


def push(kinesis, figures, end_s, writer, given):
    """Put three eighths of the stream's rate, evenly, as far as there is room."""
    interval_s = WRITERS * RECORD_BYTES / (3 * CAPACITY_BYTES_PER_S)
    next_s, number = time.monotonic(), 0
    with Producer("crowd", kinesis=kinesis, metrics=figures, buffer_bytes_max=2 * 2**20) as producer:
        while next_s < end_s:
            key = f"{writer}-{number % 40}"
            data = (b"%d/%d " % (writer, number)).ljust(RECORD_BYTES, b".")
            given.setdefault(key, []).append(data)
            producer.put(data, key)
            number += 1
            next_s = max(next_s + interval_s, time.monotonic() - 0.5)
            time.sleep(max(0.0, next_s - time.monotonic()))
