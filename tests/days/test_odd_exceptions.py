"""A handler fails in odd ways: its shard is repeated and stops loudly, and the fleet learns why."""

import pytest

from penstock import Consumer
from penstock.errors import ShardsStopped


class HalfMadeError(Exception):
    def __str__(self):
        return self.response.text


class NoTextError(Exception):
    def __str__(self):
        return NotImplemented


ODD = {
    "its text cannot be made": HalfMadeError(),
    "its text is no text": NoTextError(),
    "a file name that is not UTF-8": OSError("no such file: caf\udce9.csv"),
    "a zero byte and an escape": ValueError("a\0b\x1b]0;x\x07"),
    "megabytes of text": ValueError("x" * 3_000_000),
    "a group": ExceptionGroup("two", [HalfMadeError(), ValueError("b")]),
    "the end of the program": SystemExit(3),
}


@pytest.mark.parametrize("error", ODD.values(), ids=ODD.keys())
def test_a_handler_that_fails_oddly_stops_its_shard_loudly(local_kinesis, error):
    local_kinesis.create_stream("orders", shards=1)
    local_kinesis.client("kinesis").put_record(StreamName="orders", Data=b"1", PartitionKey="k")
    calls = []

    def handle(batch):
        calls.extend(record.data for record in batch)
        raise error

    consumer = Consumer(
        stream="orders",
        application="billing",
        handler=handle,
        starting_position="TRIM_HORIZON",
        handler_retries_max=2,  # the story is about the last failure, not about the wait before it
        handler_backoff_max_s=0.02,
        handler_backoff_min_s=0.01,
    )
    with pytest.raises(ShardsStopped) as stopped:
        consumer.run()
    assert calls == [b"1", b"1", b"1"]
    assert type(error).__name__ in str(stopped.value)
    assert not consumer.health().is_healthy
    assert len(str(stopped.value)) < 10_000
