"""Reading streams' figures: against the embedded Kinesis, at most once a minute, with the problems of missing parts."""

import threading

import pytest
from msgspec.structs import replace

pytest.importorskip("httptools")

from penstock.cli.overview.overview_cache import READ_EVERY_S
from penstock.cli.overview.stream_load import SHARD_METRICS, STREAM_METRICS
from penstock.cli.overview.stream_reader import StreamReader, fetch_stream
from penstock.core.hash_key import HashRange
from penstock.core.shard import Shard, StreamSummary
from penstock.errors import AccessDenied, NotFound
from penstock.ports.sizing import QueryAnswer
from penstock.wiring import AwsOptions, SystemClock, open_cloudwatch_queries, open_kinesis
from penstock_local import LocalKinesis
from waiting import DEADLINE_S

SHARDS = tuple(Shard(f"shardId-{n:012d}", HashRange(n * 2**127, (n + 1) * 2**127 - 1)) for n in range(2))
SUMMARY = StreamSummary("orders", "arn:orders", "ACTIVE", 0, shard_metrics=SHARD_METRICS)
NOW_MS = 60_000 * 1000


class Service:
    """A stream's summary and sums, or errors in their place."""

    problems = ()

    def __init__(self, summary=SUMMARY, sums=None):
        self.summary, self.sums, self.asked = summary, sums, []

    def fetch_summary(self, stream):
        if isinstance(self.summary, Exception):
            raise self.summary
        return self.summary

    def fetch(self, stream, queries, began_ms, ended_ms):
        self.asked += queries
        if isinstance(self.sums, Exception):
            raise self.sums
        sums = self.sums or {}
        return QueryAnswer([sums.get(query, {}) for query in queries], self.problems)


def snapshot(service, shards=SHARDS):
    return fetch_stream(service, service, "arn:aws:kinesis:r:1:stream/orders", shards, NOW_MS)


def test_a_stream_and_its_shards_are_asked_for_what_there_is():
    sums = {("IncomingRecords", None): {NOW_MS: 600.0}, ("IncomingBytes", SHARDS[1].shard_id): {NOW_MS: 60.0}}
    service = Service(replace(SUMMARY, shard_metrics=("IncomingBytes",)), sums)
    found = snapshot(service)
    assert service.asked == [
        *((metric, None) for metric in STREAM_METRICS),
        *(("IncomingBytes", shard.shard_id) for shard in SHARDS),
    ]
    assert found.problems == ()
    assert found.load.per_s["written records"] == 10.0
    assert [each.load.per_s for each in found.shards] == [{"written bytes": 0.0}, {"written bytes": 1.0}]
    (advice,) = found.advice
    assert "IncomingBytes" not in advice.command
    assert "IncomingRecords OutgoingBytes" in advice.command


def test_the_commands_have_the_options_of_the_view():
    service = Service(replace(SUMMARY, shard_metrics=()))
    reader = StreamReader(service, service, Clock(), ["--profile", "blue"])
    (advice,) = reader.take_snapshot("orders", SHARDS, wait_s=DEADLINE_S).advice
    assert advice.command.endswith(" --profile blue")


def test_without_enhanced_monitoring_the_streams_own_figures_are_shown():
    service = Service(replace(SUMMARY, shard_metrics=()), {("IncomingRecords", None): {NOW_MS: 600.0}})
    found = snapshot(service)
    assert len(service.asked) == len(STREAM_METRICS)
    assert found.load.per_s["written records"] == 10.0
    assert [each.load.hottest_quota for each in found.shards] == [None, None]
    (advice,) = found.advice
    assert "enhanced monitoring is off" in advice.text


def test_what_cloudwatch_may_not_tell_is_said_beside_the_rest():
    found = snapshot(Service(sums=AccessDenied("GetMetricData on stream orders: no")))
    assert found.problems == (
        "CloudWatch returned no figures: allow cloudwatch:GetMetricData (GetMetricData on stream orders: no)",
    )
    assert [each.shard for each in found.shards] == list(SHARDS)
    assert (found.on_demand, found.load) == (False, None)


def test_what_cloudwatch_failed_to_answer_is_unknown_and_told():
    service = Service(
        sums={("IncomingBytes", None): None, ("IncomingBytes", SHARDS[0].shard_id): None},
    )
    service.problems = ("CloudWatch did not answer",)
    found = snapshot(service)
    assert found.problems[0] == "CloudWatch did not answer"
    assert found.problems.count("CloudWatch did not answer") == 1
    assert "written bytes" not in found.load.per_s
    assert [each.load.per_s.get("written bytes") for each in found.shards] == [None, 0.0]


def test_without_the_summary_only_metrics_that_have_something_are_taken_for_known():
    sums = {("IncomingBytes", SHARDS[1].shard_id): {NOW_MS: 60.0}, ("IncomingBytes", None): {NOW_MS: 60.0}}
    found = snapshot(Service(AccessDenied("DescribeStreamSummary on stream orders: no"), sums))
    (problem,) = found.problems
    assert problem.startswith("DescribeStreamSummary on stream orders: no; without kinesis:DescribeStream")
    assert [each.load.per_s for each in found.shards] == [{"written bytes": 0.0}, {"written bytes": 1.0}]
    assert (found.on_demand, found.advice) == (None, ())


def test_of_a_stream_that_is_gone_cloudwatch_is_not_asked():
    service = Service(NotFound("DescribeStreamSummary on stream orders: no such stream"))
    found = snapshot(service)
    assert (found.problems, service.asked) == (
        ("DescribeStreamSummary on stream orders: no such stream",),
        [],
    )


def test_shards_that_are_not_known_and_figures_that_are_not_there_are_told():
    problems = snapshot(Service(), ()).problems
    assert [problem.partition(",")[0] for problem in problems] == [
        "the stream's shards are not known",
        "CloudWatch has no figures of the last hour: nothing was written or read",
    ]


# --- repeated reads ---------------------------------------------------------------------------------------


class Clock:
    now_s = 1000.0

    def monotonic_s(self):
        return self.now_s

    def wall_ms(self):
        return NOW_MS


class Slow(Service):
    """Answers when it is let."""

    def __init__(self, **more):
        super().__init__(**more)
        self.may_answer = threading.Event()
        self.summaries = 0

    def fetch_summary(self, stream):
        assert self.may_answer.wait(DEADLINE_S)
        self.summaries += 1
        return super().fetch_summary(stream)


def test_a_view_that_stays_open_reads_once_a_minute_and_is_never_kept_waiting():
    service, clock = Slow(), Clock()
    reader = StreamReader(service, service, clock)
    closed = replace(SHARDS[0], shard_id="shardId-closed", ending_sequence_number="9")
    assert reader.take_snapshot("orders", (*SHARDS, closed)) is None
    assert reader.take_snapshot("orders", SHARDS) is None
    service.may_answer.set()
    first = reader.take_snapshot("orders", SHARDS, wait_s=DEADLINE_S)
    assert [each.shard for each in first.shards] == list(SHARDS)
    clock.now_s += READ_EVERY_S - 1
    assert reader.take_snapshot("orders", SHARDS) is first
    assert service.summaries == 1
    service.may_answer.clear()
    clock.now_s += 1
    assert reader.take_snapshot("orders", SHARDS) is first  # the next one is under way
    service.may_answer.set()


def test_a_defect_is_shown_and_the_stream_is_read_again_later(caplog):
    service, clock = Service(ZeroDivisionError("x")), Clock()
    reader = StreamReader(service, service, clock)
    assert reader.take_snapshot("orders", SHARDS, wait_s=DEADLINE_S).problems == ("ZeroDivisionError: x",)
    assert "the snapshot of stream orders failed" in caplog.text


# --- for real ---------------------------------------------------------------------------------------------


def test_the_figures_are_those_that_the_server_has():
    with LocalKinesis(limits=False) as server:
        if "json" not in server.client("cloudwatch").meta.service_model.metadata.get("protocols", ()):
            pytest.skip(
                "this botocore asks CloudWatch by forms, which the embedded server answers without streams"
            )
        server.create_stream("orders", 2)
        kinesis = server.client("kinesis")
        kinesis.enable_enhanced_monitoring(StreamName="orders", ShardLevelMetrics=["ALL"])
        records = [
            {"Data": b"x" * 9, "PartitionKey": "k", "ExplicitHashKey": str(key)}
            for key in (0, 2**127, 2**127)
        ]
        kinesis.put_records(StreamName="orders", Records=records)
        options = AwsOptions(**server.connection())
        ours, cloudwatch = open_kinesis(options), open_cloudwatch_queries(options)
        shards = ours.fetch_shards("orders").shards
        found = StreamReader(ours, cloudwatch, SystemClock()).take_snapshot(
            "orders", shards, wait_s=DEADLINE_S
        )
        assert (found.problems, found.on_demand, found.advice) == ((), False, ())
        assert found.load.per_s["written bytes"] == 30 / 60
        assert [each.load.per_s["written records"] for each in found.shards] == [1 / 60, 2 / 60]
        many = [("IncomingRecords", f"shard-{n}") for n in range(600)] + [("IncomingRecords", None)]
        answer = cloudwatch.fetch("orders", many, found.taken_ms - 600_000, found.taken_ms)
        sums = answer.sums
        assert answer.problems == ()
        assert (len(sums), sums[0], sum(sums[-1].values())) == (601, {}, 3.0)
