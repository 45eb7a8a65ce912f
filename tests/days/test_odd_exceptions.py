"""A handler fails in odd ways: its shard is repeated and stops loudly, and its worker says why and ends."""

from user_programs import Orders, once
from waiting import DEADLINE_S

WORKER = """
    import sys

    from penstock import Consumer
    from penstock.errors import ShardsStopped

    class HalfMadeError(Exception):
        def __str__(self):
            return self.response.text

    class NoTextError(Exception):
        def __str__(self):
            return NotImplemented

    class NoClassError(Exception):
        @property
        def __class__(self):
            raise RuntimeError("working outside of a request")

    class ClosedError(Exception):
        def __getattribute__(self, name):
            raise RuntimeError(name)

    class ImpatientError(Exception):
        def __str__(self):
            raise KeyboardInterrupt

    class NoTruthError(Exception):
        def __bool__(self):
            raise ValueError("the truth value is ambiguous")

    ERRORS = {
        "NoClassError": NoClassError(),
        "ClosedError": ClosedError(),
        "ImpatientError": ImpatientError(),
        "NoTruthError": NoTruthError(),
        "GeneratorExit": GeneratorExit(),
        "KeyboardInterrupt": KeyboardInterrupt(),
        "HalfMadeError": HalfMadeError(),
        "NoTextError": NoTextError(),
        "OSError": OSError("no such file: caf\\udce9.csv"),
        "ValueError": ValueError("a\\0b\\x1b]0;x\\x07"),
        "RuntimeError": RuntimeError("x" * 3_000_000),
        "ExceptionGroup": ExceptionGroup("two", [HalfMadeError(), ValueError("b")]),
        "SystemExit": SystemExit(3),
    }
    kind = sys.argv[1]

    def handle(batch):
        for record in batch:
            print(record.data.decode(), flush=True)
        raise ERRORS[kind]

    consumer = Consumer(
        stream="orders",
        application=f"billing-{kind}",
        handler=handle,
        starting_position="TRIM_HORIZON",
        handler_retries_max=2,  # the story is about the last failure, not about the wait before it
        handler_backoff_max_s=0.02,
        handler_backoff_min_s=0.01,
    )
    try:
        consumer.run()
    except ShardsStopped as stopped:
        text = str(stopped)
        print("named" if kind in text else text, len(text) < 10_000, consumer.health().is_healthy)
"""
KINDS = [
    "NoClassError",
    "ClosedError",
    "ImpatientError",
    "NoTruthError",
    "GeneratorExit",
    "KeyboardInterrupt",
    "HalfMadeError",
    "NoTextError",
    "OSError",
    "ValueError",
    "RuntimeError",
    "ExceptionGroup",
    "SystemExit",
]


def test_a_handler_that_fails_oddly_stops_its_shard_loudly(local_kinesis, programs):
    local_kinesis.create_stream("orders", shards=1)
    local_kinesis.client("kinesis").put_record(StreamName="orders", Data=b"order 1", PartitionKey="k")
    workers = {kind: programs.start(WORKER, kind, name=f"worker-{kind}") for kind in KINDS}
    for kind, worker in workers.items():
        assert worker.wait(2 * DEADLINE_S) == 0, worker.log()
        assert worker.lines() == ["order 1"] * 3 + ["named True False"], kind


PROXIES = """
    from penstock import Consumer

    class Proxy:
        @property
        def __class__(self):
            raise RuntimeError("working outside of a request")

    def handle(batch):
        for record in batch:
            print(record.data.decode(), flush=True)
        return Proxy()

    Consumer(stream="orders", application="billing", handler=handle, starting_position="TRIM_HORIZON").run()
"""


def test_the_result_of_a_handler_is_ignored_even_if_it_cannot_be_examined(local_kinesis, programs):
    local_kinesis.create_stream("orders", shards=1)
    orders = Orders(local_kinesis)
    orders.put(5)
    worker = programs.start(PROXIES, name="worker")
    programs.wait_for(orders)
    assert worker.terminate() == 0, worker.log()
    assert programs.printed() == once(orders)
    following = programs.start(PROXIES, name="following")
    orders.put(1)
    programs.wait_for(orders)
    assert following.terminate() == 0, following.log()
    assert programs.printed() == once(orders)
