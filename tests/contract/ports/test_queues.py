"""The port of queues: the embedded server over boto3 and the queues in memory give the same answers."""

from __future__ import annotations

import time

import pytest

pytest.importorskip("httptools")

from memory_queues import MemoryQueues
from penstock.aws.aws_options import AwsOptions
from penstock.aws.queues import AwsQueues
from penstock.core.queueing.queue_events import EntryOutcome
from penstock.errors import NotFound, ResourceBusy
from penstock.ports.queues import DeadLetterRule, QueueStart
from penstock_local import LocalKinesis
from queue_rig import knows_queues
from waiting import wait_until

pytestmark = knows_queues
APPLIED, VOID = EntryOutcome.APPLIED, EntryOutcome.VOID


class InMemory:
    def __init__(self):
        self.queues = MemoryQueues()

    def create_stream(self, name):
        return self.queues.create_stream(name)

    def put(self, stream_arn, data, key="k"):
        self.queues.put(stream_arn, data, key)


class Embedded:
    def __init__(self, server):
        self.server = server
        self.queues = AwsQueues(AwsOptions(**server.connection(), retry_base_s=0.01))
        self.kinesis = server.client("kinesis")

    def create_stream(self, name):
        self.kinesis.create_stream(StreamName=name, StreamModeDetails={"StreamMode": "ON_DEMAND"})
        self.kinesis.get_waiter("stream_exists").wait(StreamName=name, WaiterConfig={"Delay": 1})
        return self.kinesis.describe_stream_summary(StreamName=name)["StreamDescriptionSummary"]["StreamARN"]

    def put(self, stream_arn, data, key="k"):
        self.kinesis.put_record(StreamARN=stream_arn, Data=data, PartitionKey=key)


@pytest.fixture(scope="module")
def server():
    with LocalKinesis() as server:
        yield server


@pytest.fixture(scope="module", params=["memory", "embedded"])
def service(request, server):
    return InMemory() if request.param == "memory" else Embedded(server)


@pytest.fixture
def stream_arn(service, request):
    return service.create_stream(f"s{abs(hash(request.node.name)) % 10**9}")


def create(service, stream_arn, name, start="LATEST", **attributes):
    made = service.queues.create_queue(name, stream_arn, QueueStart(start), **attributes)
    wait_until(lambda: service.queues.describe_queue(made.arn).status == "ACTIVE")
    return made.arn


def outcomes(results):
    return [each.outcome for each in results]


def test_a_queue_is_described_listed_changed_and_deleted(service, stream_arn):
    arn = create(service, stream_arn, "life", visibility_s=7, dead_letters=DeadLetterRule(None))
    described = service.queues.describe_queue(arn)
    assert (described.name, described.stream_arn, described.visibility_s) == ("life", stream_arn, 7)
    assert described.dead_letters == DeadLetterRule(None)
    assert described.start.type == "LATEST"
    assert described.start.timestamp_ms is not None, "an active queue has its effective moment"
    assert [each.name for each in service.queues.list_queues(stream_arn)] == ["life"]
    with pytest.raises(ResourceBusy):
        service.queues.create_queue("life", stream_arn, QueueStart())
    service.queues.update_queue(arn, dead_letters=DeadLetterRule(3))
    wait_until(lambda: service.queues.describe_queue(arn).dead_letters == DeadLetterRule(3))
    assert service.queues.describe_queue(arn).visibility_s == 7
    wait_until(lambda: service.queues.describe_queue(arn).status == "ACTIVE")
    service.queues.delete_queue(arn)

    def is_gone():
        try:
            return service.queues.describe_queue(arn).status == "never"
        except NotFound:
            return True

    wait_until(is_gone)
    with pytest.raises(NotFound):
        service.queues.receive(arn, 10, 1)


def test_a_record_is_invisible_until_it_is_given_back_and_gone_when_acknowledged(service, stream_arn):
    queues, arn = service.queues, create(service, stream_arn, "one")
    service.put(stream_arn, b"a", "key")
    (first,) = queues.receive(arn, 10, 5)
    assert (first.data, first.partition_key, first.receive_count) == (b"a", "key", 1)
    assert queues.receive(arn, 10, 1) == []
    assert outcomes(queues.set_visibility(arn, [first.handle], [0])) == [APPLIED]
    (second,) = queues.receive(arn, 10, 5)
    assert (second.record_id, second.receive_count) == (first.record_id, 2)
    assert second.handle != first.handle
    assert second.first_receive_s == pytest.approx(first.first_receive_s, abs=0.01)
    assert outcomes(queues.acknowledge(arn, [first.handle, second.handle])) == [VOID, APPLIED]
    assert outcomes(queues.acknowledge(arn, [second.handle])) == [VOID]
    assert queues.receive(arn, 10, 1) == []


def test_a_visibility_that_ends_brings_the_record_back(service, stream_arn):
    queues, arn = service.queues, create(service, stream_arn, "late")
    service.put(stream_arn, b"a")
    (first,) = queues.receive(arn, 1, 5, 1)
    (second,) = queues.receive(arn, 1, 10, 60)
    assert second.receive_count == 2
    assert outcomes(queues.set_visibility(arn, [first.handle], [60])) == [VOID]


def test_a_record_received_too_often_is_a_dead_letter_until_it_is_restored(service, stream_arn):
    queues = service.queues
    arn = create(service, stream_arn, "dead", dead_letters=DeadLetterRule(2))
    service.put(stream_arn, b"a")
    for count in (1, 2):
        (record,) = queues.receive(arn, 10, 5)
        assert record.receive_count == count
        queues.set_visibility(arn, [record.handle], [0])
    assert queues.receive(arn, 10, 1) == []
    (dead,) = queues.receive(arn, 10, 5, 60, is_dead=True)
    assert (dead.data, dead.record_id) == (b"a", record.record_id)
    assert outcomes(queues.acknowledge(arn, [dead.handle])) == [VOID], "it is a handle of a dead letter"
    assert outcomes(queues.restore(arn, [dead.handle])) == [APPLIED]
    (again,) = queues.receive(arn, 10, 5)
    assert again.receive_count == 1
    assert outcomes(queues.restore(arn, [dead.handle])) == [VOID]


def test_dead_letters_are_hidden_shown_and_acknowledged(service, stream_arn):
    queues = service.queues
    arn = create(service, stream_arn, "bin", dead_letters=DeadLetterRule(1))
    service.put(stream_arn, b"a")
    (record,) = queues.receive(arn, 10, 5)
    queues.set_visibility(arn, [record.handle], [0])
    (dead,) = queues.receive(arn, 10, 5, 60, is_dead=True)
    assert queues.receive(arn, 10, 1, is_dead=True) == []
    assert outcomes(queues.set_visibility(arn, [dead.handle], [0], is_dead=True)) == [APPLIED]
    (dead,) = queues.receive(arn, 10, 5, 60, is_dead=True)
    assert outcomes(queues.acknowledge(arn, [dead.handle], is_dead=True)) == [APPLIED]
    assert queues.receive(arn, 10, 1, is_dead=True) == []


def test_each_queue_of_a_stream_has_every_record_from_its_start(service, stream_arn):
    queues = service.queues
    service.put(stream_arn, b"old")
    newest = create(service, stream_arn, "newest")
    oldest = create(service, stream_arn, "oldest", "TRIM_HORIZON")
    service.put(stream_arn, b"new")

    def received(arn):
        found = {}
        while more := queues.receive(arn, 10, 2):
            found.update((each.data, each.record_id) for each in more)
        return found

    of_oldest, of_newest = received(oldest), received(newest)
    assert (set(of_oldest), set(of_newest)) == ({b"old", b"new"}, {b"new"})
    assert of_oldest[b"new"] == of_newest[b"new"], "a record has one id in every queue"


def test_a_starting_moment_counts_in_milliseconds(service, stream_arn):
    def pass_ms(milliseconds):
        began_s = time.time()
        wait_until(lambda: time.time() - began_s >= milliseconds / 1000)

    service.put(stream_arn, b"old")
    pass_ms(150)
    moment_ms = round(time.time() * 1000)
    pass_ms(50)
    service.put(stream_arn, b"new")
    made = service.queues.create_queue("moment", stream_arn, QueueStart("AT_TIMESTAMP", moment_ms))
    wait_until(lambda: service.queues.describe_queue(made.arn).status == "ACTIVE")
    assert [each.data for each in service.queues.receive(made.arn, 10, 5)] == [b"new"]
    assert service.queues.receive(made.arn, 10, 1) == []


def test_an_unknown_queue_is_not_found(service, stream_arn):
    arn = "arn:aws:kinesis:us-east-1:123456789012:queue/0123456789abcdef"
    for call in (
        lambda: service.queues.receive(arn, 10, 1),
        lambda: service.queues.acknowledge(arn, ["h"]),
        lambda: service.queues.describe_queue(arn),
    ):
        with pytest.raises(NotFound):
            call()
