"""What streams publish to CloudWatch: by the minute, by shard where enhanced monitoring is on, and beside other metrics."""

from types import SimpleNamespace

import pytest
from botocore.exceptions import ClientError

from penstock_local.stream_metrics import MINUTES_KEPT, NAMESPACE, StreamMetrics

MINUTE_MS = 60_000


class Figures:
    """GetMetricData over the minute that the stopped clock shows, and those around it."""

    def __init__(self, rig, stream="s"):
        self.rig, self.stream = rig, stream
        self.client = rig.client("cloudwatch")
        now_ms = rig.clock.now_ms()
        rig.clock.advance((MINUTE_MS - now_ms % MINUTE_MS) / 1000)  # a minute begins
        self.minute_ms = rig.clock.now_ms() // MINUTE_MS * MINUTE_MS

    def query(self, metric, shard=None, stat="Sum", period_s=60, namespace="AWS/Kinesis"):
        dimensions = [{"Name": "StreamName", "Value": self.stream}]
        if shard is not None:
            dimensions.append({"Name": "ShardId", "Value": shard})
        named = {"Namespace": namespace, "MetricName": metric, "Dimensions": dimensions}
        return {"MetricStat": {"Metric": named, "Period": period_s, "Stat": stat}}

    def fetch(self, *queries, first=0, end=1, **more):
        """Minutes from `first` to before `end` behind that in which the test began."""
        answer = self.client.get_metric_data(
            MetricDataQueries=[{"Id": f"q{n}", **query} for n, query in enumerate(queries)],
            StartTime=self.rig.moment(self.minute_ms + first * MINUTE_MS),
            EndTime=self.rig.moment(self.minute_ms + end * MINUTE_MS),
            **more,
        )
        assert [each["Id"] for each in answer["MetricDataResults"]] == [f"q{n}" for n in range(len(queries))]
        return [
            [
                (round(at.timestamp() * 1000 - self.minute_ms) // MINUTE_MS, value)
                for at, value in zip(each["Timestamps"], each["Values"], strict=True)
            ]
            for each in answer["MetricDataResults"]
        ]

    def sums(self, *metrics, shard=None):
        """The sums of this minute; None for a metric without one."""
        found = self.fetch(*[self.query(metric, shard) for metric in metrics])
        return [points[0][1] if points else None for points in found]


def test_a_stream_publishes_what_is_written_and_read(rig):
    rig.server.create_stream("s", 2)
    figures = Figures(rig)
    rig.put_at("s", 0, b"abc")
    records = [{"Data": b"12345", "PartitionKey": "k", "ExplicitHashKey": str(key)} for key in (0, 2**127)]
    rig.kinesis.put_records(StreamName="s", Records=records)
    assert figures.sums("IncomingBytes", "IncomingRecords") == [4 + 6 + 6, 3]
    rig.read("s")
    rig.read("s", "shardId-000000000001")
    assert figures.sums("GetRecords.Bytes", "GetRecords.Records", "GetRecords.Success") == [16, 3, 2]
    statistics = ("SampleCount", "Minimum", "Maximum", "Average")
    found = figures.fetch(*[figures.query("IncomingBytes", stat=stat) for stat in statistics])
    assert found == [[(0, 2.0)], [(0, 4.0)], [(0, 12.0)], [(0, 8.0)]]
    assert figures.sums("WriteProvisionedThroughputExceeded", "NoSuchMetric") == [None, None]


def test_shards_publish_what_enhanced_monitoring_is_on_for_from_then_on(rig):
    rig.server.create_stream("s", 2)
    figures = Figures(rig)
    shards = ["shardId-000000000000", "shardId-000000000001"]
    rig.put_at("s", 0, b"abc")
    rig.kinesis.enable_enhanced_monitoring(
        StreamName="s", ShardLevelMetrics=["IncomingBytes", "OutgoingBytes"]
    )
    rig.settle()
    assert figures.sums("IncomingBytes", shard=shards[0]) == [None]
    rig.put_at("s", 2**127, b"12345")
    rig.read("s", shards[0])
    metrics = ("IncomingBytes", "IncomingRecords", "OutgoingBytes")
    assert [figures.sums(*metrics, shard=shard) for shard in shards] == [[None, None, 4], [6, None, None]]


def test_what_a_shard_sends_counts_polling_and_fan_out(rig):
    rig.server.create_stream("s")
    rig.kinesis.enable_enhanced_monitoring(StreamName="s", ShardLevelMetrics=["ALL"])
    rig.settle()
    consumer = rig.register(rig.summary("s")["StreamARN"])
    figures = Figures(rig)
    rig.put_at("s", 0, b"abc")
    rig.read("s")
    sent = next(event for event in rig.subscribe(consumer) if event["Records"])
    assert len(sent["Records"]) == 1
    assert figures.sums("OutgoingBytes", "OutgoingRecords", shard="shardId-000000000000") == [8, 2]
    assert figures.sums("GetRecords.Bytes", "GetRecords.Success") == [4, 1]


def test_what_the_rates_of_a_shard_refuse_is_published(limited):
    limited.server.create_stream("s", 2)
    limited.kinesis.enable_enhanced_monitoring(StreamName="s", ShardLevelMetrics=["ALL"])
    limited.settle()
    figures = Figures(limited)
    data = b"x" * 700_000
    for call in range(2):  # the second record of each shard is refused
        records = [{"Data": data, "PartitionKey": "k", "ExplicitHashKey": str(key)} for key in (0, 2**127)]
        failed = limited.kinesis.put_records(StreamName="s", Records=records)["FailedRecordCount"]
        assert failed == 2 * call
    assert limited.refused(limited.put_at, stream="s", key=0, data=data)[0] == (
        "ProvisionedThroughputExceededException"
    )
    iterator = limited.iterator("s", kind="LATEST")
    for _ in range(5):
        limited.kinesis.get_records(ShardIterator=iterator)
    assert limited.refused(limited.kinesis.get_records, ShardIterator=iterator)[0] == (
        "ProvisionedThroughputExceededException"
    )
    metrics = ("WriteProvisionedThroughputExceeded", "ReadProvisionedThroughputExceeded", "IncomingRecords")
    assert figures.sums(*metrics) == [3, 1, 2]
    assert figures.sums(*metrics, shard="shardId-000000000000") == [2, 1, 1]
    assert figures.sums(*metrics, shard="shardId-000000000001") == [1, None, 1]


def test_a_scripted_throttle_is_published_as_one(rig):
    rig.server.create_stream("s")
    figures = Figures(rig)
    rig.faults.throttle("PutRecords", count=1)
    rig.faults.throttle("PutRecord", count=1)
    rig.kinesis.put_records(StreamName="s", Records=[{"Data": b"x", "PartitionKey": "k"}] * 3)
    rig.refused(rig.put_at, stream="s", key=0)
    assert figures.sums("WriteProvisionedThroughputExceeded", "IncomingRecords") == [4, None]


def test_minutes_are_apart_and_a_period_joins_them(rig):
    rig.server.create_stream("s")
    figures = Figures(rig)
    for count in (1, 2, 3):
        for _ in range(count):
            rig.put_at("s", 0, b"1234567890")
        rig.clock.advance(60)
    asked = figures.query("IncomingRecords")
    assert figures.fetch(asked, end=3) == [[(2, 3.0), (1, 2.0), (0, 1.0)]]
    assert figures.fetch(asked, end=3, ScanBy="TimestampAscending") == [[(0, 1.0), (1, 2.0), (2, 3.0)]]
    assert figures.fetch(asked, first=1, end=2) == [[(1, 2.0)]]
    (whole,) = figures.fetch(figures.query("IncomingRecords", period_s=3600), first=-60, end=60)
    assert sum(value for _, value in whole) == 6.0
    rig.clock.advance(60 * (MINUTES_KEPT - 3))
    rig.put_at("s", 0)
    (kept,) = figures.fetch(asked, end=MINUTES_KEPT + 1)
    assert [minute for minute, _ in kept] == [MINUTES_KEPT, 2, 1]


def test_the_oldest_minutes_make_room_where_figures_are_too_many():
    metrics = StreamMetrics(points_max=5)
    streams = [
        SimpleNamespace(region="r", name=f"s{number}", settings=SimpleNamespace(shard_metrics=()))
        for number in range(6)
    ]

    def refuse(number, minute):
        metrics.add_refused(streams[number], "refused", ["shard"], minute * MINUTE_MS)

    def minutes(number):
        dimensions = [{"Name": "StreamName", "Value": f"s{number}"}]
        metric = {"Namespace": NAMESPACE, "MetricName": "refused", "Dimensions": dimensions}
        query = {"Id": "q", "MetricStat": {"Metric": metric, "Period": 60, "Stat": "Sum"}}
        asked = {"MetricDataQueries": [query], "StartTime": 0, "EndTime": 600, "ScanBy": "TimestampAscending"}
        found, _ = metrics.answer("r", asked)
        return [at_s // 60 for at_s in found["q"]["Timestamps"]]

    for minute in (1, 2):
        for number in (0, 1):
            refuse(number, minute)
    refuse(0, 3)
    assert [minutes(0), minutes(1)] == [[1, 2, 3], [1, 2]]
    refuse(1, 3)
    assert [minutes(0), minutes(1)] == [[2, 3], [2, 3]]
    for number in range(6):
        refuse(number, 4)
    refuse(0, 4)
    assert [minutes(number) for number in range(6)] == [[4]] * 5 + [[]]


def test_metrics_of_others_are_answered_beside_them(rig):
    rig.server.create_stream("s")
    figures = Figures(rig)
    rig.put_at("s", 0)
    own = {"MetricName": "jobs", "Dimensions": [{"Name": "StreamName", "Value": "s"}], "Value": 7.0}
    moment = rig.moment(figures.minute_ms)
    figures.client.put_metric_data(Namespace="mine", MetricData=[{**own, "Timestamp": moment}])
    others = figures.query("jobs", namespace="mine")
    assert figures.fetch(others, figures.query("IncomingRecords"), others) == [
        [(0, 7.0)],
        [(0, 1.0)],
        [(0, 7.0)],
    ]
    assert figures.fetch(others) == [[(0, 7.0)]]


@pytest.mark.parametrize(
    ("change", "more", "message"),
    [
        ({"stat": "p99"}, {}, "Stat 'p99' is not served here"),
        ({"period_s": 90}, {}, "Period 90 must be a multiple of 60"),
        ({}, {"end": 0}, "StartTime must be less"),
    ],
)
def test_what_is_not_served_is_refused_with_the_reason(rig, change, more, message):
    figures = Figures(rig)
    with pytest.raises(ClientError) as caught:
        figures.fetch(figures.query("IncomingBytes", **change), **more)
    assert caught.value.response["Error"]["Code"] == "ValidationError"
    assert message in caught.value.response["Error"]["Message"]


def test_more_queries_than_a_call_may_have_are_refused(rig):
    figures = Figures(rig)
    with pytest.raises(ClientError, match="size greater than 500"):
        figures.fetch(*[figures.query("IncomingBytes")] * 501)


def listed(client, **asked):
    """Every metric that ListMetrics names, page by page."""
    pages = client.get_paginator("list_metrics").paginate(**asked)
    return [
        (each["Namespace"], each["MetricName"], *(part["Value"] for part in each["Dimensions"]))
        for page in pages
        for each in page["Metrics"]
    ]


def test_the_metrics_of_streams_are_listed_with_their_dimensions(rig):
    rig.server.create_stream("s")
    rig.server.create_stream("t")
    client = Figures(rig).client
    assert listed(client, Namespace=NAMESPACE) == []
    rig.kinesis.enable_enhanced_monitoring(StreamName="t", ShardLevelMetrics=["IncomingBytes"])
    rig.clock.advance(1)
    rig.put_at("s", 0)
    rig.put_at("t", 0)
    of_stream = [(NAMESPACE, f"Incoming{what}", "s") for what in ("Bytes", "Records")]
    own = (NAMESPACE, "IncomingBytes", "t", "shardId-000000000000")
    of_other = [(*each[:2], "t") for each in of_stream]
    assert listed(client, Namespace=NAMESPACE) == [*of_stream, *of_other, own]
    assert listed(client, MetricName="IncomingBytes", Dimensions=[{"Name": "ShardId"}]) == [own]
    assert listed(client, Namespace=NAMESPACE, Dimensions=[{"Name": "StreamName", "Value": "s"}]) == of_stream
    client.put_metric_data(Namespace="mine", MetricData=[{"MetricName": "jobs", "Value": 7.0}])
    assert listed(client) == [*of_stream, *of_other, own, ("mine", "jobs")]
    assert listed(client, Namespace="mine") == [("mine", "jobs")]


def test_metrics_are_listed_five_hundred_to_a_page(rig):
    metrics = StreamMetrics()
    for n in range(601):
        stream = SimpleNamespace(
            region="us-east-1", name=f"s{n:03}", settings=SimpleNamespace(shard_metrics=())
        )
        metrics._add_values(stream, {"IncomingBytes": 1}, {}, 0)
    assert [len(metrics.metrics(region, {})) for region in ("us-east-1", "eu-west-1")] == [601, 0]
    for n in range(301):
        rig.server.create_stream(f"s{n:03}")
        rig.put_at(f"s{n:03}", 0)
    client = rig.client("cloudwatch")
    first = client.list_metrics(Namespace=NAMESPACE)
    second = client.list_metrics(Namespace=NAMESPACE, NextToken=first["NextToken"])
    assert [len(first["Metrics"]), len(second["Metrics"]), "NextToken" in second] == [500, 102, False]
    with pytest.raises(ClientError, match="next token"):
        client.list_metrics(NextToken="streams-x")
