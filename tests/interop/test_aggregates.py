"""Aggregates of the KPL, of aws-kinesis-agg and of Penstock are read by the others, and readers change inside them."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from itertools import pairwise
from urllib.parse import urlsplit

import pytest
from company_checks import place
from counterparts import AGGREGATES, KCL_2, KCL_3_COMPATIBLE, KPL, PENSTOCK, Counterpart
from worker_process import WorkerProcess

from penstock import Producer
from penstock_local import LocalKinesis

COUNT = 2000
STOPS = (333, 444, 555)


@pytest.mark.parametrize(
    "kcl", [pytest.param(KCL_2, id="2.7.2"), pytest.param(KCL_3_COMPATIBLE, id="3.5.1 as 2.x")]
)
def test_a_checkpoint_inside_an_aggregate_is_where_the_next_reader_goes_on(kcl: Counterpart, tmp_path):
    with LocalKinesis(tls=True) as server:
        server.create_stream("orders", shards=1)
        parts = urlsplit(server.endpoint_url)
        KPL.run(server, tmp_path, "orders", parts.hostname, str(parts.port), str(COUNT))
        turns = zip((kcl, PENSTOCK, kcl, PENSTOCK), (*STOPS, COUNT + 1 - sum(STOPS)), strict=True)
        read = []
        for number, (counterpart, stop_after) in enumerate(turns):
            arguments = (f"worker-{number}", "orders", "billing", str(stop_after))
            with WorkerProcess(counterpart, server, tmp_path, *arguments) as worker:
                worker.wait()
                assert len(worker.records) == stop_after, worker.log()
                read.append(worker.records)
    records = [record for turn in read for record in turn]
    assert Counter(record.data for record in records) == {
        **dict.fromkeys(map(str, range(COUNT // 20)), 20),
        "first": 1,
    }
    assert all(place(one) < place(other) for one, other in pairwise(records))
    for one, other in pairwise(read):
        assert one[-1].sequence_number == other[0].sequence_number
        assert one[-1].sub_sequence_number + 1 == other[0].sub_sequence_number


def records_of(server, tmp_path, counterpart: Counterpart) -> list[tuple[str, str]]:
    """Return (key, data) of what a worker reads, in its order."""
    wanted = 20 * EACH
    with WorkerProcess(counterpart, server, tmp_path, "reader", "orders", "billing") as worker:
        worker.wait_for(lambda: len(worker.records) >= wanted)
        worker.stop()
    return [(record.key, record.data) for record in worker.records]


EACH = 100
IN_ORDER = {f"key-{key}": [str(number) for number in range(EACH)] for key in range(20)}


def by_key(records) -> dict[str, list[str]]:
    found: dict[str, list[str]] = defaultdict(list)
    for key, data in records:
        found[key].append(data)
    return found


def stored(server) -> int:
    """Return how many Kinesis records the stream holds."""
    shards = server.state()["streams"]["orders"]["shards"].values()
    return sum(shard["records"] for shard in shards)


@pytest.mark.parametrize("kcl", [pytest.param(KCL_2, id="2.7.2"), pytest.param(KCL_3_COMPATIBLE, id="3.5.1")])
def test_aggregates_of_penstock_are_read_by_the_kcl_and_by_aws_kinesis_agg(kcl: Counterpart, tmp_path):
    with LocalKinesis() as server:
        server.create_stream("orders", shards=2)
        keys = {"access_key_id": "local", "secret_access_key": "local"}
        options = {"region": server.region, "endpoint_url": server.endpoint_url, "connection": keys}
        with Producer("orders", force_aggregation=True, linger_s=1, **options) as producer:
            for number in range(EACH):
                for key in IN_ORDER:
                    producer.put(str(number).encode(), key)
        assert stored(server) < EACH
        read = json.loads(AGGREGATES.run(server, tmp_path, "orders", "read"))
        assert by_key((key, data) for key, data, _, _ in read) == IN_ORDER
        assert max(place for _, _, place, _ in read) > 0
        assert by_key(records_of(server, tmp_path, kcl)) == IN_ORDER


def test_aggregates_of_aws_kinesis_agg_are_read_by_penstock(tmp_path):
    with LocalKinesis() as server:
        server.create_stream("orders", shards=1)
        AGGREGATES.run(server, tmp_path, "orders", "put", str(20 * EACH))
        assert stored(server) < EACH
        assert by_key(records_of(server, tmp_path, PENSTOCK)) == IN_ORDER
