"""A reshard under a producer that aggregates: each reader gives every record once and in order, as a KCL worker does.

The readers are driven without Spark.
"""

from __future__ import annotations

import itertools
import json

import pytest

from penstock.aws.aws_options import AwsOptions
from penstock.aws.kinesis import AwsKinesis
from penstock.cli.main import main as command_line
from penstock.consumer import Consumer, ConsumerOptions, ConsumerPorts
from penstock.core.aggregation import AggregateBuilder, deaggregate
from penstock.producer import Producer
from penstock.runtime.memory_lease_table import MemoryLeaseTable
from penstock.spark.batch import KinesisBatchReader
from penstock.spark.options.spark_options import parse_batch
from spark_support import wait_active
from stream_reading import kcl_reads, raw_records
from waiting import wait_until

KEYS = 40
HALF = 2**127
_numbers = itertools.count(1)


@pytest.fixture(scope="module")
def kinesis(server):
    return open_kinesis(server.endpoint_url)


def open_kinesis(endpoint_url):
    return AwsKinesis(
        AwsOptions(
            endpoint_url=endpoint_url,
            region="us-east-1",
            access_key_id="local",
            secret_access_key="local",
        )
    )


@pytest.fixture(scope="module")
def resharded(server, client, kinesis):
    """Records of our producer, which learns of a split only by the answers: half of them are sent twice."""
    server.create_stream("resharded", shards=1)
    records = [(f"k{number % KEYS}", str(number)) for number in range(800)]
    with Producer("resharded", kinesis=kinesis, linger_s=10.0) as producer:
        producer.put_many([(data.encode(), key) for key, data in records[:400]])
        producer.flush()
        split(client, "resharded")
        producer.put_many([(data.encode(), key) for key, data in records[400:]])
        producer.flush()
    return records


def split(client, stream):
    client.split_shard(StreamName=stream, ShardToSplit="shardId-000000000000", NewStartingHashKey=str(HALF))
    wait_active(client, stream)


def read_by_query(query, client, stream, **options):
    q = query(stream=stream, **options)
    q.drain()
    return [str(row[3]) for row in q.rows]


def read_by_batch_reader(query, client, stream, **options):
    given = {**query(stream=stream).given, **options}
    wanted = ("streamName", "endpointUrl", "region", "awsAccessKeyId", "awsSecretKey", "startingPosition")
    reader = KinesisBatchReader(parse_batch({k: v for k, v in given.items() if k in {*wanted, *options}})[0])
    batches = [batch for part in reader.partitions() for batch in reader.read(part)]
    return [row["data"].decode() for batch in batches for row in batch.to_pylist()]


def read_by_consumer(query, client, stream, *, expected, **options):
    metrics = Counted()
    consumer = Consumer(
        stream,
        "app",
        options=ConsumerOptions(
            starting_position="TRIM_HORIZON",
            round_interval_s=0.1,
            cold_start_jitter_s=0.0,
            idle_time_between_reads_s=0.1,
            drop_misplaced_aggregates="dropMisplacedAggregates" in options,
        ),
        ports=ConsumerPorts(open_kinesis(client.meta.endpoint_url), MemoryLeaseTable("app")),
        metrics=metrics,
    )
    found = []
    for batch in consumer:
        found += [record.data.decode() for record in batch]
        if len(found) >= expected:
            break
    return found, metrics.sums


class Counted:
    """Figures, added up."""

    def __init__(self):
        self.sums = {}

    def count(self, name, value=1, labels=None):
        self.sums[name] = self.sums.get(name, 0) + value

    def gauge(self, name, value, labels=None):
        """Not asked for here."""

    observe = gauge


def by_key(numbers):
    """Return the numbers of each key in the order of reading; a record's key follows from its number."""
    found = {}
    for number in map(int, numbers):
        found.setdefault(number % KEYS, []).append(number)
    return found


IN_ORDER = {key: list(range(key, 800, KEYS)) for key in range(KEYS)}


def test_the_stream_itself_holds_records_twice_and_a_kcl_worker_sees_them_once(resharded, client):
    everything = by_key(data for _, data in raw_user_records(client, "resharded"))
    assert everything != IN_ORDER
    assert by_key(data for _, data in kcl_reads(client, "resharded")) == IN_ORDER


def raw_user_records(client, stream):
    for _, records in raw_records(client, stream):
        for record in records:
            for inner in deaggregate(record["Data"]) or ():
                yield inner.partition_key, inner.data


@pytest.mark.parametrize("read", [read_by_query, read_by_batch_reader])
def test_a_spark_reader_gives_each_record_of_our_producer_once_and_in_order(resharded, query, client, read):
    assert by_key(read(query, client, "resharded")) == IN_ORDER


def test_a_query_with_small_batches_gives_each_record_once_and_in_order(resharded, query, client):
    found = read_by_query(
        query, client, "resharded", maxRecordsPerShard="37", applicationName="small-batches"
    )
    assert by_key(found) == IN_ORDER


def test_a_consumer_gives_each_record_of_our_producer_once_and_in_order(resharded, query, client):
    found, sums = read_by_consumer(query, client, "resharded", expected=800)
    assert by_key(found) == IN_ORDER
    assert sums["misplaced_records_dropped"] == 400


def test_tail_gives_each_record_of_our_producer_once_and_in_order(resharded, server, capsys, monkeypatch):
    for name, value in server.environ().items():
        monkeypatch.setenv(name, value)
    given = ["--endpoint-url", server.endpoint_url, "--region", "us-east-1"]
    assert (
        command_line(["tail", "resharded", "--from", "TRIM_HORIZON", "--json", "--count", "800", *given]) == 0
    )
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert by_key(line["data"] for line in lines) == IN_ORDER


@pytest.fixture
def misrouted(server, client):
    """An aggregate across both halves of the hash keys, with and without the mark, as the last record of a child."""

    def make(*, is_marked):
        stream = f"misrouted-{next(_numbers)}"
        server.create_stream(stream, shards=1)
        split(client, stream)
        builder = AggregateBuilder(is_marked=is_marked)
        builder.add(b"1", "k", "0")
        builder.add(b"2", "k", str(HALF))
        client.put_record(StreamName=stream, Data=b"0", PartitionKey="k", ExplicitHashKey="0")
        client.put_record(StreamName=stream, Data=builder.build().data, PartitionKey="a", ExplicitHashKey="0")
        return stream

    return make


@pytest.mark.parametrize("read", [read_by_query, read_by_batch_reader])
@pytest.mark.parametrize(
    ("is_marked", "options", "expected"),
    [
        pytest.param(True, {}, ["0"], id="ours"),
        pytest.param(False, {}, ["0", "1", "2"], id="another producer's"),
        pytest.param(
            False, {"dropMisplacedAggregates": "true"}, ["0"], id="another producer's by the rule of the KCL"
        ),
    ],
)
def test_a_misplaced_aggregate_at_a_shards_end_is_read_once(
    misrouted, query, client, read, is_marked, options, expected
):
    stream = misrouted(is_marked=is_marked)
    # A query that took the dropped aggregate for news each time would never be idle.
    assert read(query, client, stream, **options) == expected


def test_records_that_follow_a_dropped_aggregate_come_in_the_next_batch(misrouted, query, client):
    q = query(stream=misrouted(is_marked=True))
    q.drain()
    client.put_record(StreamName=q.stream, Data=b"3", PartitionKey="k", ExplicitHashKey="0")
    q.drain()
    assert [row[3] for row in q.rows] == [0, 3]


def test_a_batch_that_ends_with_a_dropped_aggregate_is_repeated_to_the_same_end(misrouted, query, client):
    q = query(stream=misrouted(is_marked=True))
    planned = []
    # The parent holds nothing: it may take a plan or two to get to its children.
    wait_until(lambda: planned.append(q.plan()) or planned[-1] is not None, "a batch")
    end = planned[-1]
    first = q.execute(end)
    client.put_record(StreamName=q.stream, Data=b"3", PartitionKey="k", ExplicitHashKey="0")
    assert q.execute(end) == first
    q.commit(end, first)
    q.drain()
    assert [row[3] for row in q.rows] == [0, 3]


@pytest.mark.parametrize(("drops", "expected"), [(False, ["0", "1", "2", "3"]), (True, ["0", "3"])])
def test_a_consumer_follows_the_rule_of_the_kcl_for_all_producers_when_asked(
    misrouted, query, client, drops, expected
):
    stream = misrouted(is_marked=False)
    client.put_record(StreamName=stream, Data=b"3", PartitionKey="k", ExplicitHashKey="0")
    options = {"dropMisplacedAggregates": "true"} if drops else {}
    found, sums = read_by_consumer(query, client, stream, expected=len(expected), **options)
    assert found == expected
    assert sums.get("misplaced_records_dropped", 0) == (2 if drops else 0)
