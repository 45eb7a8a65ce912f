"""A consumer on each server: one that begins at TRIM_HORIZON reads every record of a stream that was split before."""

import threading

from penstock import Consumer

DEADLINE_S = 60


def test_a_new_application_reads_a_stream_that_was_split_before_from_its_beginning(server, tmp_path):
    stream = server.create()
    for number in range(3):
        server.put(stream, b"before %d" % number)
    server.split(stream)
    for number in range(3):
        server.put(stream, b"after %d" % number)
    seen, is_changed = [], threading.Condition()

    def handle(batch):
        with is_changed:
            seen.extend(bytes(record.data) for record in batch)
            is_changed.notify_all()

    consumer = Consumer(
        stream,
        "reader",
        handle,
        starting_position="TRIM_HORIZON",
        cold_start_jitter_s=0.0,
        connection={
            "endpoint_url": server.endpoint_url,
            "region": "us-east-1",
            "access_key_id": "local",
            "secret_access_key": "secret",
            "lease_table_name": f"file://{tmp_path}/reader",
        },
    )
    with consumer, is_changed:
        assert is_changed.wait_for(lambda: len(seen) >= 6, DEADLINE_S), seen
    assert seen == [b"before 0", b"before 1", b"before 2", b"after 0", b"after 1", b"after 2"]
