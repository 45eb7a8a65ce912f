"""Consumers whose leases are in a folder: no DynamoDB, and all else as it is."""

import threading

import pytest

pytest.importorskip("httptools")

from penstock import Consumer
from penstock.wiring import open_lease_table
from penstock_local import LocalKinesis


def test_workers_share_a_stream_hand_over_and_resume_with_their_leases_in_a_folder(tmp_path, monkeypatch):
    table = f"file://{tmp_path}/orders"
    with LocalKinesis() as server:
        for name, value in server.environ().items():
            monkeypatch.setenv(name, value)
        server.create_stream("orders", shards=4)
        client = server.client("kinesis")
        lock, seen, arrived = threading.Lock(), [], threading.Condition()

        def handle(batch):
            with lock:
                seen.extend(bytes(record.data) for record in batch)
            with arrived:
                arrived.notify_all()

        def put(first, count):
            records = [{"Data": b"%d" % n, "PartitionKey": f"k{n}"} for n in range(first, first + count)]
            assert client.put_records(StreamName="orders", Records=records)["FailedRecordCount"] == 0

        def wait_for(condition):
            with arrived:
                assert arrived.wait_for(condition, 60)

        def worker(name):
            consumer = Consumer(
                "orders",
                "billing",
                handle,
                worker_id=name,
                starting_position="TRIM_HORIZON",
                cold_start_jitter_s=0.0,
                lease_duration_s=5.0,
                connection={"lease_table_name": table},
                endpoint_url=server.endpoint_url,
            )
            thread = threading.Thread(target=consumer.run)
            thread.start()
            return consumer, thread

        def owners():
            return sorted(str(row.reader) for row in open_lease_table(table).scan().leases)

        put(0, 100)
        first, first_thread = worker("w1")
        wait_for(lambda: len(seen) >= 100)
        second, second_thread = worker("w2")
        done = threading.Event()
        for _ in range(600):
            if owners() == ["w1", "w1", "w2", "w2"]:
                break
            done.wait(0.1)
        assert owners() == ["w1", "w1", "w2", "w2"]
        first.stop()
        first_thread.join(60)
        put(100, 100)
        wait_for(lambda: len(seen) >= 200)
        second.stop()
        second_thread.join(60)
        assert sorted(seen, key=int) == [b"%d" % n for n in range(200)]
        rows = open_lease_table(table).scan().leases
        assert {row.reader for row in rows} == {None}
        assert all(row.checkpoint.is_record for row in rows)
        tables = server.client("dynamodb").list_tables()["TableNames"]
        assert tables == []
