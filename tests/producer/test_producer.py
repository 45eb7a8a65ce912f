"""The producer against the embedded Kinesis: every record acknowledged, in order per key, whatever goes wrong."""

from __future__ import annotations

import asyncio
import contextlib
import enum
import math
import multiprocessing
import os
import pickle
import re
import subprocess
import sys
import threading
import time

import pytest

from penstock.core.aggregation import deaggregate
from penstock.errors import (
    AccessDenied,
    BufferFull,
    DeliveryFailed,
    NotFound,
    OptionError,
    RecordError,
    RecordExpired,
    UsageError,
)
from penstock.producer import AsyncProducer, Producer, ProducerOptions
from penstock.runtime.metrics_tally import LabelledMetrics, MetricsTally
from penstock.runtime.threads import begin_on_daemon
from stream_reading import firsts_by_key, kcl_reads, raw_records
from waiting import DEADLINE_S, wait_until

MIB = 2**20


class Tally:
    """Adds up counters."""

    def __init__(self):
        self.counts = {}
        self._lock = threading.Lock()

    def count(self, name, value=1, labels=None):
        key = (name, *(labels or {}).values())
        with self._lock:
            self.counts[key] = self.counts.get(key, 0) + value

    def gauge(self, name, value, labels=None):
        """Not asked for here."""

    observe = gauge


def put_numbered(producer, count, keys=11):
    futures, given = [], {}
    for number in range(count):
        key, data = f"key-{number % keys}", b"%d" % number
        given.setdefault(key, []).append(data)
        futures.append(producer.put(data, key))
    return futures, given


def test_producers_that_are_left_open_are_reported(kinesis, stream, monkeypatch, caplog):
    monkeypatch.setattr("penstock.producer.producer._MANY_OPEN", 2)
    with contextlib.ExitStack() as opened:
        for _ in range(3):
            with Producer(stream, kinesis=kinesis) as closed:  # is not counted later
                closed.put(b"1", "k").result(DEADLINE_S)
            opened.enter_context(Producer(stream, kinesis=kinesis)).open()
    assert [line.partition(":")[0] for line in caplog.messages if "are open" in line] == [
        "2 producers are open in this process, each with threads and connections of its own"
    ] * 2


@pytest.mark.parametrize("aggregation", [True, False])
@pytest.mark.parametrize(
    ("data", "key", "hash_key", "message"),
    [
        ("text", "k", None, "the record with key 'k' is of type str, not bytes; encode it first"),
        (None, "k", None, "is of type NoneType, not bytes"),
        (b"x", None, None, "the partition key is of type NoneType, not str"),
        (b"x", b"k", None, "the partition key is of type bytes, not str"),
        (b"x", "k", 5, "explicit hash key 5 is not a decimal number"),
        (b"x", "\ud800", None, r"partition key '\ud800' is not Unicode text"),
    ],
)
def test_a_record_of_another_type_is_refused_and_harms_no_other(
    kinesis, stream, data, key, hash_key, message, aggregation
):
    with Producer(stream, kinesis=kinesis, aggregation=aggregation) as producer:
        before = producer.put(b"before", "k")
        with pytest.raises(RecordError, match=f"^stream {stream}: .*{re.escape(message)}"):
            producer.put(data, key, hash_key)
        after = producer.put(b"after", "k")
        producer.flush(DEADLINE_S)
        assert before.result(1)
        assert after.result(1)


class _Customer(str, enum.Enum):  # noqa: UP042 - its hash is not that of the text
    ANNA = "anna"


class _Text(str):  # as numpy and others have it
    __slots__ = ()


@pytest.mark.parametrize("aggregation", [True, False])
@pytest.mark.parametrize("kind", [_Text, _Customer])
def test_a_text_of_another_class_is_put_as_plain_text_in_the_order_of_its_key(
    server, kinesis, stream, kind, aggregation
):
    with Producer(_Text(stream), kinesis=kinesis, aggregation=aggregation) as producer:
        for number, key in enumerate(["anna", kind("anna"), "anna", kind("anna")]):
            producer.put(b"%d" % number, key)
        producer.flush(DEADLINE_S)
        assert producer.put(b"elsewhere", kind("anna"), _Text("0")).result(DEADLINE_S)
    found = kcl_reads(server.client(), stream)
    assert [(key, data) for key, data in found if data != b"elsewhere"] == [
        ("anna", b"%d" % n) for n in range(4)
    ]


@pytest.mark.parametrize("aggregation", [True, False])
def test_bytes_that_change_while_they_wait_are_sent_as_they_were(server, kinesis, stream, aggregation):
    buffer = bytearray(b"one")
    with Producer(stream, kinesis=kinesis, aggregation=aggregation) as producer:
        producer.put(buffer, "k")
        buffer[:] = b"two"
        producer.put(memoryview(buffer), "k")
    assert [data for _, data in kcl_reads(server.client(), stream)] == [b"one", b"two"]


@pytest.mark.parametrize("aggregation", [True, False])
def test_a_future_tells_where_its_record_is(server, kinesis, stream, aggregation):
    with Producer(stream, kinesis=kinesis, aggregation=aggregation) as producer:
        futures, _ = put_numbered(producer, 1200)
    told = {number: future.result(0) for number, future in enumerate(futures)}
    found = {}
    for shard, records in raw_records(server.client(), stream):
        for record in records:
            for place, each in enumerate(deaggregate(record["Data"]) or [None]):
                data = record["Data"] if each is None else each.data
                found[int(data)] = (shard["ShardId"], record["SequenceNumber"], place)
    assert {
        number: (ack.shard_id, ack.sequence_number, ack.sub_sequence_number) for number, ack in told.items()
    } == found


@pytest.mark.parametrize("aggregation", [True, False])
@pytest.mark.parametrize(
    "kind", ["throttle", "partial", "error", "drop_before", "drop_after", "truncate", "garbage"]
)
def test_a_quarter_of_the_requests_may_fail_in_any_way(server, kinesis, stream, kind, aggregation):
    add = getattr(server.faults, kind)
    options = {"count": None, "rate": 0.25, "seed": 7, "stream": stream}
    if kind == "partial":
        add(**options)
    else:
        add("PutRecords", **options)
    with Producer(
        stream, kinesis=kinesis, aggregation=aggregation, linger_s=0.005, aggregate_bytes_max=300
    ) as producer:
        # A writer that is always refused falls to ten records per second and shard.
        count = 200 if kind in ("throttle", "partial") else 1000
        _, given = put_numbered(producer, count if aggregation else count // 2)
    server.faults.clear()
    assert firsts_by_key(kcl_reads(server.client(), stream)) == given


@pytest.mark.parametrize("aggregation", [True, False])
def test_a_split_and_a_merge_under_load_lose_nothing_for_readers_of_the_kcl(
    server, kinesis, stream, aggregation
):
    client = server.client()
    ended = threading.Event()
    given = {}

    def load():
        number = 0
        with Producer(
            stream, kinesis=kinesis, aggregation=aggregation, linger_s=0.002, aggregate_bytes_max=2000
        ) as producer:
            while not ended.is_set() or number <= 500:
                key, data = f"key-{number % 50}", b"%d" % number
                given.setdefault(key, []).append(data)
                producer.put(data, key)
                number += 1
                if number % 100 == 0:
                    producer.flush(DEADLINE_S)

    thread = threading.Thread(target=load)
    thread.start()
    try:
        for number in range(2):
            live = sorted(
                (
                    shard
                    for shard in client.list_shards(StreamName=stream)["Shards"]
                    if "EndingSequenceNumber" not in shard["SequenceNumberRange"]
                ),
                key=lambda shard: int(shard["HashKeyRange"]["StartingHashKey"]),
            )
            span = live[number]["HashKeyRange"]
            middle = (int(span["StartingHashKey"]) + int(span["EndingHashKey"])) // 2
            client.split_shard(
                StreamName=stream, ShardToSplit=live[number]["ShardId"], NewStartingHashKey=str(middle)
            )
            wait_active(client, stream)
            client.merge_shards(
                StreamName=stream,
                ShardToMerge=live[-2]["ShardId"],
                AdjacentShardToMerge=live[-1]["ShardId"],
            )
            wait_active(client, stream)
    finally:
        ended.set()
        thread.join(DEADLINE_S)
    assert not thread.is_alive()
    assert sum(map(len, given.values())) > 500
    assert firsts_by_key(kcl_reads(client, stream)) == given


def wait_active(client, stream):
    def is_active():
        summary = client.describe_stream_summary(StreamName=stream)["StreamDescriptionSummary"]
        return summary["StreamStatus"] == "ACTIVE"

    wait_until(is_active, "the reshard to end")


@pytest.mark.parametrize("aggregation", [True, False])
def test_what_lies_at_a_limit_arrives(server, kinesis, stream, aggregation):
    cases = [
        (b"", "empty", None),
        (b"x" * (MIB - 1), "k", None),
        (b"key", "\U0001f680" * 256, None),
        (b"last", "k", str(2**128 - 1)),
        (b"first", "k", "0"),
        *((b"%d" % number, f"many-{number}", None) for number in range(501)),
    ]
    with Producer(stream, kinesis=kinesis, aggregation=aggregation) as producer:
        producer.put_many(cases)
        with pytest.raises(RecordError, match="1048577 bytes"):
            producer.put(b"x" * MIB, "k")
    seen = kcl_reads(server.client(), stream)
    assert sorted(seen) == sorted((key, data) for data, key, _ in cases)


def test_requests_hold_500_records_at_most_and_no_fewer_than_they_need(server, kinesis, stream):
    server.reset_calls()
    producer = Producer(stream, kinesis=kinesis, aggregation=False, linger_s=60, request_count_max=1)
    producer.put_many([(b"x", f"{number}") for number in range(501)])
    producer.close()
    assert server.calls().count("PutRecords") == 2


def test_memory_is_bounded_and_put_waits_then_raises(server, kinesis, stream):
    server.faults.error("PutRecords", count=None, stream=stream)
    producer = Producer(stream, kinesis=kinesis, buffer_bytes_max=20_000, put_timeout_s=0.05)
    taken = []
    with pytest.raises(BufferFull, match="buffer_bytes_max is 20000"):  # noqa: PT012 - which put raises is the question
        for number in range(1000):
            taken.append(producer.put(b"x" * 1000, f"{number}"))  # noqa: PERF401 - the error ends the loop
    assert len(taken) == 12  # 1000 bytes, a key, 320 of the record and 420 of its future each
    server.faults.clear()
    producer.put(b"x", "later", timeout_s=math.inf)
    producer.close()
    assert len(kcl_reads(server.client(), stream)) == 13


class NoPauses:
    """A chance that draws the shortest of all pauses: none."""

    def random(self):
        return 0.0


def test_a_shard_that_stays_silent_fails_what_waits_and_flush_says_so(server, kinesis, stream):
    server.faults.error("PutRecords", count=None, stream=stream)
    producer = Producer(stream, kinesis=kinesis, linger_s=0, no_progress_deadline_s=1.5, chance=NoPauses())
    future = producer.put(b"x", "k")
    with pytest.raises(DeliveryFailed, match=r"1 records failed; first: stream .* nothing was acknowledged"):
        producer.flush()
    assert isinstance(future.exception(0), DeliveryFailed)
    server.faults.clear()
    producer.put(b"y", "k").result(DEADLINE_S)
    producer.close()


@pytest.mark.parametrize("aggregation", [True, False])
def test_a_record_whose_time_is_over_fails_and_later_ones_go_on(server, kinesis, stream, aggregation):
    tally = Tally()
    with Producer(
        stream, kinesis=kinesis, aggregation=aggregation, linger_s=0.01, record_ttl_s=2, metrics=tally
    ) as producer:
        while failure_of(producer.put(b"first", "k")):  # the shard map is known from here on
            pass
        server.faults.throttle("PutRecords", count=None, stream=stream)
        while ("put_retries", "ProvisionedThroughputExceededException") not in tally.counts:
            failure_of(producer.put(b"early", "k"))  # the service's word is known from here on
        late, _ = put_numbered(producer, 30)
        for future in late:
            failure = future.exception(DEADLINE_S)
            assert isinstance(failure, RecordExpired)
            assert re.search(r"not acknowledged within record_ttl_s=2; .*Provisioned", str(failure))
        server.faults.clear()
        # The pause after the last refusal may well be longer than a record's time.
        while failure_of(producer.put(b"fresh", "k")):
            pass
        expired_count = tally.counts["records_expired",]
        with pytest.raises(DeliveryFailed, match=f"{expired_count} records"):
            producer.flush(DEADLINE_S)
    assert expired_count >= 30
    assert [data for _, data in kcl_reads(server.client(), stream)] == [b"first", b"fresh"]


def failure_of(future):
    failure = future.exception(DEADLINE_S)
    assert failure is None or isinstance(failure, RecordExpired)
    return failure


def test_a_producer_shows_its_stream_and_what_waits(kinesis, stream):
    producer = Producer(stream, kinesis=kinesis, linger_s=60)
    producer.put(b"x", "k")
    assert repr(producer) == f"Producer(stream={stream!r}, waiting_count=1)"
    producer.close()
    assert repr(producer) == f"Producer(stream={stream!r}, closed)"


def test_what_can_never_work_fails_at_once(server, kinesis, stream):
    with pytest.raises(NotFound, match="no-such-stream"):
        Producer("no-such-stream", kinesis=kinesis).put(b"x", "k")
    producer = Producer(stream, kinesis=kinesis, linger_s=0)
    producer.put(b"x", "k").result(DEADLINE_S)
    server.faults.error("PutRecords", count=1, status=400, code="AccessDeniedException", stream=stream)
    began_s = time.monotonic()
    with pytest.raises(DeliveryFailed, match="refused for good"):
        producer.put(b"y", "k").result(DEADLINE_S)
    assert time.monotonic() - began_s < DEADLINE_S
    producer.put(b"z", "k").result(DEADLINE_S)
    with pytest.raises(DeliveryFailed, match="1 records failed"):
        producer.close()


def test_without_permission_to_list_shards_records_go_plain(server, kinesis, stream, caplog):
    server.faults.error("ListShards", count=1, status=400, code="AccessDeniedException", stream=stream)
    with Producer(stream, kinesis=kinesis) as producer:
        futures, given = put_numbered(producer, 100)
    assert not any(future.result(0).is_aggregated for future in futures)
    assert firsts_by_key(kcl_reads(server.client(), stream)) == given
    assert "ListShards is not permitted" in caplog.text


@pytest.mark.parametrize("code", ["InvalidSignatureException", "RequestExpired", "IncompleteSignature"])
def test_a_refusal_of_the_credentials_is_not_one_of_the_policy(server, kinesis, stream, caplog, code):
    server.faults.error("DescribeStreamSummary", count=1, status=400, code=code, stream=stream)
    producer = Producer(stream, kinesis=kinesis)
    with pytest.raises(AccessDenied, match=f"DescribeStreamSummary on stream {stream}: {code}"):
        producer.put(b"x", "k")
    server.faults.error("ListShards", count=1, status=400, code=code, stream=stream)
    with pytest.raises(DeliveryFailed, match=f"the shards cannot be listed: .*{code}"):
        producer.put(b"x", "k").result(DEADLINE_S)
    futures, _ = put_numbered(producer, 100)
    assert any(future.result(DEADLINE_S).is_aggregated for future in futures)
    with pytest.raises(DeliveryFailed, match="1 records failed"):
        producer.close()
    assert "is not permitted" not in caplog.text


def test_without_permission_to_describe_nothing_is_aggregated_unless_forced(server, kinesis, stream, caplog):
    for forced in (False, True):
        server.faults.error(
            "DescribeStreamSummary", count=1, status=400, code="AccessDeniedException", stream=stream
        )
        with Producer(stream, kinesis=kinesis, force_aggregation=forced) as producer:
            futures, _ = put_numbered(producer, 100)
        assert any(future.result(0).is_aggregated for future in futures) is forced
    assert caplog.text.count("DescribeStreamSummary is not permitted") == 1


def test_a_producer_that_is_sent_to_another_process_says_to_make_one_there(kinesis, stream):
    with (
        Producer(stream, kinesis=kinesis) as producer,
        pytest.raises(TypeError, match=rf"stream {stream}: .* make one where records are put"),
    ):
        pickle.dumps(producer)


class BrokenOnce:
    """The service behind a client with a defect that shows once, while the shards are listed and `is_due` is set."""

    def __init__(self, kinesis):
        self._kinesis = kinesis
        self._is_broken = True
        self.is_due = threading.Event()

    def __getattr__(self, name):
        return getattr(self._kinesis, name)

    def fetch_shards(self, stream, shard_filter=None):
        if self._is_broken:
            assert self.is_due.wait(DEADLINE_S)
            self._is_broken = False
            raise ZeroDivisionError("a defect")
        return self._kinesis.fetch_shards(stream, shard_filter)


def test_after_a_defect_while_the_shards_are_listed_they_are_listed_again(kinesis, stream):
    broken = BrokenOnce(kinesis)
    producer = Producer(stream, kinesis=broken, linger_s=0)
    # A thread lists the shards as soon as it runs, which may be before the record is taken.
    receipt = producer.put(b"x", "k")
    broken.is_due.set()
    assert "a defect" in str(receipt.exception(DEADLINE_S))
    assert producer.put(b"y", "k").result(DEADLINE_S).sequence_number
    with pytest.raises(DeliveryFailed, match="1 records failed"):
        producer.close()


def test_failed_records_whose_futures_nobody_asks_are_in_the_log_once_a_minute(
    server, kinesis, stream, caplog
):
    server.faults.error("PutRecords", code="AccessDeniedException", status=400, count=None, stream=stream)
    producer = Producer(stream, kinesis=kinesis, linger_s=0)
    for _ in range(3):
        producer.put(b"x", "k").exception(DEADLINE_S)
    with pytest.raises(DeliveryFailed, match="3 records failed"):
        producer.close()
    [line] = [each.getMessage() for each in caplog.records if each.name == "penstock.producer"]
    assert "AccessDeniedException" in line
    assert line.endswith("failed records of this producer so far: 1")


def test_a_flush_waits_only_for_what_was_put_before(server, kinesis, stream):
    with Producer(stream, kinesis=kinesis, linger_s=30) as producer:
        early = producer.put(b"x", "k")
        producer.flush(DEADLINE_S)
        assert early.done()
        late = producer.put(b"y", "k")
        assert not late.done()
        producer.flush(math.inf)
        assert late.done()


def test_a_flush_that_takes_too_long_says_what_is_left(server, kinesis, stream):
    server.faults.error("PutRecords", count=None, stream=stream)
    producer = Producer(stream, kinesis=kinesis)
    producer.put(b"x", "k")
    with pytest.raises(DeliveryFailed, match=r"1 records were not acknowledged within 0\.2 s"):
        producer.flush(0.2)
    with pytest.raises(DeliveryFailed):
        producer.close(0.1)
    with pytest.raises(DeliveryFailed, match="closed"):
        producer.put(b"y", "k")


def test_closing_before_all_is_acknowledged_fails_the_futures(server, kinesis, stream):
    server.faults.error("PutRecords", count=None, stream=stream)
    producer = Producer(stream, kinesis=kinesis)
    future = producer.put(b"x", "k")
    with pytest.raises(DeliveryFailed, match="go on being sent"):
        producer.flush(0.1)
    with pytest.raises(DeliveryFailed, match="they fail"):
        producer.close(0.1)
    assert "the producer was closed before" in str(future.exception(0))
    producer.close()


def test_threads_put_together_and_each_keeps_the_order_of_its_keys(server, kinesis, stream):
    given = {f"key-{number}": [b"%d" % step for step in range(400)] for number in range(8)}

    def put_all(key):
        for data in given[key]:
            producer.put(data, key)

    with Producer(stream, kinesis=kinesis, linger_s=0.005) as producer:
        threads = [threading.Thread(target=put_all, args=(key,)) for key in given]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(DEADLINE_S)
    assert firsts_by_key(kcl_reads(server.client(), stream)) == given


def test_asyncio_waits_for_acknowledgements_and_for_room(server, kinesis, stream):
    async def work():
        async with AsyncProducer(
            Producer(stream, kinesis=kinesis, linger_s=0.01, buffer_bytes_max=5000)
        ) as producer:
            told = await producer.put(b"0", "k")
            futures = [await producer.submit(b"%d" % number, "k") for number in range(1, 200)]
            return [told, *await asyncio.gather(*futures)]

    told = asyncio.run(work())
    assert len({(ack.sequence_number, ack.sub_sequence_number) for ack in told}) == 200
    assert firsts_by_key(kcl_reads(server.client(), stream)) == {"k": [b"%d" % each for each in range(200)]}


def test_a_callback_may_put_again(server, kinesis, stream):
    done = threading.Event()
    with Producer(stream, kinesis=kinesis, linger_s=0.005) as producer:

        def again(_future):
            producer.put(b"second", "k").add_done_callback(lambda _: done.set())

        producer.put(b"first", "k").add_done_callback(again)
        assert done.wait(DEADLINE_S)


def test_figures_tell_what_was_put_and_what_was_sent_again(server, kinesis, stream):
    tally = Tally()
    server.faults.throttle("PutRecords", count=1, stream=stream)
    # A record that has lingered is sent alone: here none does before the end.
    with Producer(stream, kinesis=kinesis, metrics=tally, linger_s=60) as producer:
        put_numbered(producer, 100)
    assert tally.counts["user_records_put",] == 100
    assert tally.counts["bytes_put",] > 190
    assert 1 <= tally.counts["kinesis_records_put",] <= 8
    assert tally.counts["put_retries", "ProvisionedThroughputExceededException"] >= 1


def _child(producer, pipe):
    try:
        receipt = producer.put(b"of the child", "k")
        producer.flush(DEADLINE_S)
        pipe.send(receipt.result(0).sequence_number)
    except UsageError as error:
        pipe.send(str(error))


def _answer_of_a_child(producer):
    ours, theirs = multiprocessing.Pipe()
    process = multiprocessing.get_context("fork").Process(target=_child, args=(producer, theirs))
    process.start()
    assert ours.poll(DEADLINE_S)
    answer = ours.recv()
    process.join(DEADLINE_S)
    return answer


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_a_producer_works_on_both_sides_of_a_fork(server, kinesis, stream):
    with Producer(stream, kinesis=kinesis, linger_s=60) as producer:
        early = producer.put(b"before", "k")
        assert _answer_of_a_child(producer).isdigit()
        assert not early.done()
        producer.put(b"after", "k")
    found = sorted(data for _, data in kcl_reads(server.client(), stream))
    assert found == [b"after", b"before", b"of the child"]


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
@pytest.mark.parametrize("metrics", [MetricsTally(), LabelledMetrics(MetricsTally(), {})])
def test_a_producer_whose_metrics_have_a_thread_stays_in_its_process(kinesis, stream, metrics):
    with Producer(stream, kinesis=kinesis, metrics=metrics) as producer:
        assert "after the fork" in _answer_of_a_child(producer)


class Elsewhere:
    """The home of a producer in a forked child; another thread of the child puts when it is asked first."""

    def __init__(self, producer, put=lambda: None):
        self._producer = producer
        self._puts = [put]

    @property
    def is_here(self):
        if self._puts:
            begin_on_daemon("other", self._puts.pop()).result(DEADLINE_S)
        return self._producer._home is not self


def test_two_threads_of_a_forked_child_put_first(kinesis, stream):
    with Producer(stream, kinesis=kinesis, linger_s=60) as producer:
        producer.put(b"of the parent", "k")
        parents = producer._engine
        producer._home = Elsewhere(producer, lambda: producer.put(b"of the other thread", "k"))
        producer.put(b"of this thread", "k")
        assert (parents.waiting_count, producer.waiting_count) == (1, 2)
    parents.stop(DEADLINE_S)


def test_a_block_in_a_forked_child_is_one(kinesis, stream, monkeypatch):
    warned = []
    monkeypatch.setattr("penstock.producer.producer.warn_of_open_end", warned.append)
    producer = Producer(stream, kinesis=kinesis)
    producer._home = Elsewhere(producer)
    with producer:
        producer.put(b"a", "k")
    assert warned == []


def test_a_flush_does_not_wait_until_another_thread_has_opened_the_producer(kinesis, stream):
    is_asked, may_answer = threading.Event(), threading.Event()

    class Slow:
        def fetch_summary(self, name):
            is_asked.set()
            assert may_answer.wait(DEADLINE_S)
            return kinesis.fetch_summary(name)

        def __getattr__(self, name):
            return getattr(kinesis, name)

    with Producer(stream, kinesis=Slow()) as producer:
        opening = begin_on_daemon("open", producer.open)
        assert is_asked.wait(DEADLINE_S)
        begin_on_daemon("flush", lambda: producer.flush(0.1)).result(DEADLINE_S)
        may_answer.set()
        opening.result(DEADLINE_S)


@pytest.mark.parametrize("option", ["linger_s=30", "put_timeout_s=0"])
def test_a_producer_that_is_forgotten_is_closed_when_the_process_ends(server, stream, option):
    program = (
        "from penstock.producer import Producer\n"
        f"producer = Producer({stream!r}, {option})\n"
        "for number in range(100): producer.put(b'%d' % number, 'k')\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, **server.environ()},
        capture_output=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, b"closing it" in done.stderr) == (0, True)
    assert len(kcl_reads(server.client(), stream)) == 100


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"ordering": "kee"}, "ordering='kee': expected 'key' or 'none'"),
        ({"aggregatoin": True}, "did you mean aggregation"),
        ({"request_record_count_max": 501}, "request_record_count_max=501: expected 1 to 500"),
        ({"linger_s": -1}, "linger_s=-1"),
        ({"rate_limit_percent": 0}, "rate_limit_percent=0"),
        ({"buffer_bytes_max": 0}, "buffer_bytes_max=0"),
        ({"aggregation": "no"}, "aggregation='no': expected True or False"),
        ({"connection": {"deadline_s": "60"}}, "deadline_s='60': expected a number"),
        ({"connection": {"regoin": "x"}}, "did you mean region"),
    ],
)
def test_a_wrong_option_is_named(arguments, message):
    with pytest.raises(OptionError, match=message):
        Producer("orders", **arguments)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Producer(3), "stream=3: expected a name or ARN"),
        (lambda: Producer(""), "stream='': expected a name or ARN"),
        (lambda: Producer("orders", metrics="log"), "metrics='log' has no gauge, observe"),
        (lambda: AsyncProducer("orders"), "'orders' is not a Producer: give one, AsyncProducer"),
        (
            lambda: AsyncProducer(stream="orders", linger_s=0.5),
            "stream, linger_s is not a Producer: give one, AsyncProducer",
        ),
    ],
)
def test_an_argument_of_the_wrong_kind_is_told(make, message):
    with pytest.raises(UsageError, match=message):
        make()


def test_options_may_be_given_as_a_value_and_changed_by_name():
    producer = Producer("orders", options=ProducerOptions(linger_s=2.0), ordering="none", region="us-east-1")
    assert (producer.options.linger_s, producer.options.ordering) == (2.0, "none")
    producer.close()


def test_a_given_port_goes_without_connection(kinesis):
    with pytest.raises(UsageError, match="endpoint_url, region would have no effect"):
        Producer("orders", kinesis=kinesis, region="us-east-1", endpoint_url="http://localhost:1")
