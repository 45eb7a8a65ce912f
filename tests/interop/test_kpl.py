"""The KPL with its own daemon, over TLS: its aggregates arrive, and are read as it put them."""

from __future__ import annotations

import json
import threading
from collections import defaultdict
from urllib.parse import urlsplit

from counterparts import AGGREGATES, KPL

from penstock import Consumer
from penstock_local import LocalKinesis

COUNT = 2000


def test_aggregates_of_the_kpl_are_read_by_aws_kinesis_agg_and_by_a_consumer(tmp_path, monkeypatch):
    with LocalKinesis(tls=True) as server:
        for name, value in server.environ().items():
            monkeypatch.setenv(name, value)
        server.create_stream("orders", shards=2)
        parts = urlsplit(server.endpoint_url)
        said = KPL.run(server, tmp_path, "orders", parts.hostname, str(parts.port), str(COUNT))
        assert said.split()[-1] == str(COUNT)
        shards = server.state()["streams"]["orders"]["shards"].values()
        assert sum(shard["records"] for shard in shards) < COUNT / 10
        wanted = {f"key-{key}": list(range(COUNT // 20)) for key in range(20)}

        theirs: dict[str, list[int]] = defaultdict(list)
        for key, data, _, _ in json.loads(AGGREGATES.run(server, tmp_path, "orders", "read")):
            if key != "first":
                theirs[key].append(int(data))
        assert {key: sorted(numbers) for key, numbers in theirs.items()} == wanted

        read: dict[str, list[int]] = defaultdict(list)
        is_all_read = threading.Event()

        def handle(batch):
            for record in batch:
                if record.partition_key != "first":
                    read[record.partition_key].append(int(record.data))
            if sum(len(numbers) for numbers in read.values()) >= COUNT:
                is_all_read.set()

        with Consumer(
            stream="orders",
            application="billing",
            handler=handle,
            starting_position="TRIM_HORIZON",
            endpoint_url=server.endpoint_url,
        ):
            assert is_all_read.wait(120)
    assert {key: sorted(numbers) for key, numbers in read.items()} == wanted
