"""The records of a queue: delivered, acknowledged, delivered again, dead letters, restored, past the retention."""

from __future__ import annotations

import re

import pytest
from botocore.config import Config
from tests.local.conftest import Rig

from penstock_local import LocalKinesis
from queue_rig import QueueRig, handle, knows_queues, outcomes

pytestmark = knows_queues

GONE, WRONG = "ResourceNotFoundException", "InvalidArgumentException"
NEVER_DEAD = {"DeadLetterConfiguration": {"TargetType": "NONE"}}


def dead_after(receives: int) -> dict:
    return {"DeadLetterConfiguration": {"TargetType": "BUILT_IN", "MaxReceiveCount": receives}}


@pytest.fixture
def queues(rig) -> QueueRig:
    return QueueRig(rig)


def data(records) -> list[bytes]:
    return sorted(each["Data"] for each in records)


def test_a_record_is_delivered_once_while_it_is_in_flight_and_not_after_its_acknowledgement(rig, queues):
    arn = queues.create()
    put_ms = rig.clock.now_ms()
    queues.put(b"a")
    rig.clock.advance(2)
    (record,) = queues.receive(arn)
    assert len(record.pop("ReceiptHandle")) <= 1024
    assert re.fullmatch("[a-z0-9]{1,64}", record.pop("RecordId"))
    assert record == {
        "PartitionKey": "a",
        "Data": b"a",
        "ApproximateArrivalTimestamp": rig.moment(put_ms),
        "FirstReceiveTimestamp": rig.moment(put_ms + 2000),
        "ReceiveCount": 1,
    }
    assert queues.counts() == (0, 1, 0)
    rig.clock.advance(29.999)
    assert queues.counts() == (0, 1, 0)
    rig.clock.advance(0.001)
    (again,) = queues.receive(arn)
    assert (again["ReceiveCount"], again["FirstReceiveTimestamp"]) == (2, rig.moment(put_ms + 2000))
    assert queues.acknowledge(arn, again) == ["ok"]
    rig.clock.advance(3600)
    assert queues.counts() == (0, 0, 0)


def test_a_record_has_one_id_in_every_delivery_and_queue_and_a_new_handle_in_each(rig, queues):
    one, other = queues.create("one"), queues.create("other")
    queues.put(b"a", b"b")
    first = queues.receive(one, VisibilityTimeoutSeconds=0)
    again, elsewhere = queues.receive(one), queues.receive(other)
    ids = {record["Data"]: record["RecordId"] for record in first}
    assert len(set(ids.values())) == 2
    assert ids == {r["Data"]: r["RecordId"] for r in again} == {r["Data"]: r["RecordId"] for r in elsewhere}
    assert len({record["ReceiptHandle"] for record in first + again + elsewhere}) == 6
    assert queues.acknowledge(one, *again) == ["ok", "ok"]
    assert queues.counts("other") == (0, 2, 0)


def test_a_receive_returns_at_most_its_limit(rig, queues):
    arn = queues.create()
    sent = [b"%02d" % i for i in range(25)]
    queues.put(*sent)
    sizes, found = [], []
    for limit in (None, 3, 10, 10):
        records = queues.receive(arn, **({} if limit is None else {"Limit": limit}))
        sizes.append(len(records))
        found += records
    assert (sizes, data(found)) == ([10, 3, 10, 2], sent)


def test_a_receive_returns_at_most_10_mib_or_one_record(rig, queues):
    arn = queues.create()
    rig.kinesis.update_max_record_size(StreamARN=queues.stream_arn, MaxRecordSizeInKiB=10240)
    for size in (6_000_000, 6_000_000, 10 * 1024 * 1024 - 8):
        rig.kinesis.put_record(StreamName="s", Data=b"x" * size, PartitionKey="k")
    sizes = [[len(each["Data"]) for each in queues.receive(arn)] for _ in range(3)]
    assert sizes == [[6_000_000], [6_000_000], [10 * 1024 * 1024 - 8]]


def test_latest_begins_with_the_creation_and_trim_horizon_with_the_oldest_record(rig, queues):
    queues.put(b"before")
    create = rig.kinesis.create_queue
    configuration = {"StreamARN": queues.stream_arn}
    latest = create(QueueName="l", StreamConfigurationList=[configuration])["QueueDescription"]["QueueARN"]
    queues.put(b"during")
    horizon = queues.create("h", start={"Type": "TRIM_HORIZON"})
    queues.put(b"after")
    assert data(queues.receive(latest)) == [b"after", b"during"]
    assert data(queues.receive(horizon)) == [b"after", b"before", b"during"]


def test_at_timestamp_begins_with_records_of_that_moment(rig, queues):
    queues.put(b"before")
    rig.clock.advance(1)
    at = rig.moment(rig.clock.now_ms())
    queues.put(b"then")
    rig.clock.advance(1)
    queues.put(b"after")
    arn = queues.create(start={"Type": "AT_TIMESTAMP", "Timestamp": at})
    assert data(queues.receive(arn)) == [b"after", b"then"]


def test_a_visibility_timeout_is_that_of_the_call_or_of_the_queue(rig, queues):
    arn = queues.create(QueueAttributes={"VisibilityTimeoutSeconds": 5})
    queues.put(b"a")
    queues.receive(arn, VisibilityTimeoutSeconds=60)
    rig.clock.advance(59)
    assert queues.counts() == (0, 1, 0)
    rig.clock.advance(1)
    queues.receive(arn)
    rig.clock.advance(5)
    assert queues.counts() == (1, 0, 0)


def test_an_update_of_the_queue_counts_for_later_receives_once_it_is_complete(rig, queues):
    arn = queues.create(QueueAttributes={"VisibilityTimeoutSeconds": 5})
    queues.put(b"a")
    queues.receive(arn)
    rig.kinesis.update_queue(QueueARN=arn, QueueAttributes={"VisibilityTimeoutSeconds": 100})
    rig.clock.advance(0.1)
    queues.put(b"b")
    assert data(queues.receive(arn)) == [b"b"]
    rig.clock.advance(5)
    assert queues.counts() == (2, 0, 0)
    queues.receive(arn)
    rig.clock.advance(99)
    assert queues.counts() == (0, 2, 0)


def test_visibility_is_extended_shortened_or_ended_from_the_request_on(rig, queues):
    arn = queues.create()
    queues.put(b"a")
    (record,) = queues.receive(arn)
    rig.clock.advance(20)
    assert queues.set_visibility(arn, 43200, record) == ["ok"]
    rig.clock.advance(43199)
    assert queues.counts() == (0, 1, 0)
    assert queues.set_visibility(arn, 10, record) == ["ok"]
    rig.clock.advance(10)
    assert queues.counts() == (1, 0, 0)
    (record,) = queues.receive(arn)
    assert queues.set_visibility(arn, 0, record) == ["ok"]
    assert [each["ReceiveCount"] for each in queues.receive(arn)] == [3]


def test_a_handle_is_valid_until_its_record_is_received_again(rig, queues):
    arn = queues.create()
    queues.put(b"a")
    (first,) = queues.receive(arn)
    rig.clock.advance(30)
    (second,) = queues.receive(arn)
    assert queues.acknowledge(arn, first) == [GONE]
    assert queues.set_visibility(arn, 5, first) == [GONE]
    rig.clock.advance(30)
    # late, but no other receive has the record
    assert queues.acknowledge(arn, second) == ["ok"]
    assert queues.acknowledge(arn, second) == [GONE]
    assert queues.counts() == (0, 0, 0)


def test_each_entry_of_a_call_is_answered_by_itself(rig, queues):
    arn, other = queues.create(), queues.create("other")
    queues.put(b"a", b"b")
    (mine, more), theirs = queues.receive(arn), queues.receive(other)[0]
    garbage, iterator = {"ReceiptHandle": "garbage\u00e9"}, {"ReceiptHandle": rig.iterator("s")}
    entries = (mine, theirs, garbage, iterator, mine, more)
    answer = rig.kinesis.acknowledge_queue_records(QueueARN=arn, Entries=[handle(each) for each in entries])
    assert answer["Successful"] == [handle(mine), handle(more)]
    assert [(each["ReceiptHandle"], each["ErrorCode"]) for each in answer["Failed"]] == [
        (theirs["ReceiptHandle"], WRONG),
        (garbage["ReceiptHandle"], WRONG),
        (iterator["ReceiptHandle"], WRONG),
        (mine["ReceiptHandle"], WRONG),
    ]
    assert all(each["ErrorMessage"] for each in answer["Failed"])
    assert queues.counts("other") == (0, 2, 0)


def test_a_record_that_was_received_as_often_as_allowed_becomes_a_dead_letter(rig, queues):
    arn = queues.create(QueueAttributes=dead_after(2))
    queues.put(b"a")
    for receives in (1, 2):
        (record,) = queues.receive(arn)
        assert record["ReceiveCount"] == receives
        assert queues.counts() == (0, 1, 0)
        rig.clock.advance(30)
    assert queues.counts() == (0, 0, 1)
    assert queues.acknowledge(arn, record) == [GONE]
    (dead,) = queues.receive(arn, dead=True)
    assert (dead["RecordId"], dead["Data"], dead["ReceiveCount"]) == (record["RecordId"], b"a", 3)
    assert queues.counts() == (0, 1, 0)
    assert queues.acknowledge(arn, dead) == [WRONG]
    assert queues.acknowledge(arn, record, dead=True) == [WRONG]
    rig.clock.advance(30)
    assert queues.counts() == (0, 0, 1)
    (dead,) = queues.receive(arn, dead=True)
    assert queues.acknowledge(arn, dead, dead=True) == ["ok"]
    assert queues.counts() == (0, 0, 0)


def test_a_record_in_its_last_delivery_can_be_acknowledged(rig, queues):
    arn = queues.create(QueueAttributes=dead_after(1))
    queues.put(b"a", b"b")
    one, other = queues.receive(arn)
    assert queues.acknowledge(arn, one) == ["ok"]
    assert queues.set_visibility(arn, 0, other) == ["ok"]
    assert queues.counts() == (0, 0, 1)
    assert queues.set_visibility(arn, 5, other) == [GONE]


def test_without_dead_letters_a_record_is_delivered_until_it_is_acknowledged(rig, queues):
    arn = queues.create(QueueAttributes=NEVER_DEAD)
    queues.put(b"a")
    counts = [queues.receive(arn, VisibilityTimeoutSeconds=0)[0]["ReceiveCount"] for _ in range(1200)]
    assert counts == list(range(1, 1201))
    assert queues.counts() == (1, 0, 0)


def test_a_restored_dead_letter_begins_anew(rig, queues):
    arn = queues.create(QueueAttributes=dead_after(1))
    queues.put(b"a")
    (first,) = queues.receive(arn, VisibilityTimeoutSeconds=0)
    (dead,) = queues.receive(arn, dead=True)
    restore = rig.kinesis.restore_dead_letter_queue_records
    assert outcomes((dead,), restore(QueueARN=arn, Entries=[handle(dead)])) == ["ok"]
    assert queues.counts() == (1, 0, 0)
    assert outcomes((dead,), restore(QueueARN=arn, Entries=[handle(dead)])) == [GONE]
    assert queues.acknowledge(arn, dead, dead=True) == [GONE]
    (again,) = queues.receive(arn)
    assert (again["ReceiveCount"], again["FirstReceiveTimestamp"]) == (1, first["FirstReceiveTimestamp"])
    rig.clock.advance(30)
    assert queues.counts() == (0, 0, 1)


def test_visibility_of_a_dead_letter_is_changed_by_its_own_operation(rig, queues):
    arn = queues.create(QueueAttributes=dead_after(1))
    queues.put(b"a")
    queues.receive(arn, VisibilityTimeoutSeconds=0)
    (dead,) = queues.receive(arn, dead=True, VisibilityTimeoutSeconds=7)
    assert queues.set_visibility(arn, 100, dead) == [WRONG]
    assert queues.set_visibility(arn, 100, dead, dead=True) == ["ok"]
    rig.clock.advance(99)
    assert queues.counts() == (0, 1, 0)
    assert queues.set_visibility(arn, 0, dead, dead=True) == ["ok"]
    assert queues.counts() == (0, 0, 1)


def test_a_lower_limit_makes_dead_letters_and_a_higher_one_leaves_them(rig, queues):
    arn = queues.create(QueueAttributes=NEVER_DEAD)
    queues.put(b"a")
    for _ in range(3):
        queues.receive(arn, VisibilityTimeoutSeconds=0)
    for attributes in (dead_after(3), NEVER_DEAD):
        rig.kinesis.update_queue(QueueARN=arn, QueueAttributes=attributes)
        rig.settle()
        assert queues.counts() == (0, 0, 1)


def test_retention_takes_records_away_wherever_they_are(rig, queues):
    arn = queues.create(QueueAttributes=dead_after(1))
    queues.put(b"dead")
    queues.receive(arn, VisibilityTimeoutSeconds=0)
    queues.put(b"in flight")
    (flying,) = queues.receive(arn, VisibilityTimeoutSeconds=43200)
    (dead,) = queues.receive(arn, dead=True, VisibilityTimeoutSeconds=43200)
    rig.clock.advance(43_200 - 60)
    assert queues.set_visibility(arn, 43200, flying) == ["ok"]
    assert queues.set_visibility(arn, 43200, dead, dead=True) == ["ok"]
    rig.clock.advance(43_140)
    queues.put(b"kept")
    assert queues.set_visibility(arn, 43200, flying) == ["ok"]
    assert queues.set_visibility(arn, 43200, dead, dead=True) == ["ok"]
    rig.clock.advance(120)
    assert queues.counts() == (1, 2, 0)
    rig.clock.advance(1)
    assert queues.counts() == (1, 0, 0)
    assert queues.acknowledge(arn, flying) == [GONE]
    assert queues.acknowledge(arn, dead, dead=True) == [GONE]
    assert data(queues.receive(arn)) == [b"kept"]
    queues.put(b"never read")
    rig.clock.advance(24 * 3600 + 1)
    assert queues.counts() == (0, 0, 0)


def test_reshards_below_do_not_matter(rig, queues):
    arn = queues.create()
    sent = [b"%02d" % i for i in range(40)]
    queues.put(*sent[:20])
    first = queues.receive(arn)
    rig.kinesis.update_account_settings(MinimumThroughputBillingCommitment={"Status": "ENABLED"})
    rig.kinesis.update_stream_warm_throughput(StreamARN=queues.stream_arn, WarmThroughputMiBps=10)
    rig.settle()
    assert len(rig.open_shards("s")) == 10
    queues.put(*sent[20:])
    found = first + [record for _ in range(3) for record in queues.receive(arn)]
    assert data(found) == sent
    assert queues.acknowledge(arn, *first) == ["ok"] * 10
    # the closed shards are forgotten after their retention, and with them their records
    rig.clock.advance(25 * 3600)
    assert queues.counts() == (0, 0, 0)


def test_records_that_come_again_and_new_ones_take_turns(rig, queues):
    arn = queues.create(QueueAttributes=NEVER_DEAD)
    queues.put(*(b"old%d" % i for i in range(10)))
    queues.receive(arn, VisibilityTimeoutSeconds=0)
    queues.put(*(b"new%d" % i for i in range(10)))
    both = queues.receive(arn, VisibilityTimeoutSeconds=0) + queues.receive(arn, VisibilityTimeoutSeconds=0)
    assert len({each["Data"] for each in both}) == 20


def test_a_deleted_queue_delivers_nothing_and_its_handles_end(rig, queues):
    arn = queues.create()
    queues.put(b"a", b"b")
    (record,) = queues.receive(arn, Limit=1)
    rig.kinesis.delete_queue(QueueARN=arn)
    assert rig.refused(rig.kinesis.receive_queue_records, QueueARN=arn) == (GONE, 400)
    acknowledge = rig.kinesis.acknowledge_queue_records
    assert rig.refused(acknowledge, QueueARN=arn, Entries=[handle(record)]) == (GONE, 400)
    rig.settle()
    assert rig.refused(acknowledge, QueueARN=arn, Entries=[handle(record)]) == (GONE, 400)
    anew = queues.create("q", start={"Type": "TRIM_HORIZON"})
    assert queues.acknowledge(anew, record) == [WRONG]
    assert data(queues.receive(anew)) == [b"a", b"b"]
    assert data({"Data": each} for each in (b"a", b"b")) == sorted(
        read for shard in rig.open_shards("s") for read in rig.read("s", shard)
    )


def test_no_more_records_than_allowed_are_in_flight(limited, monkeypatch):
    monkeypatch.setattr("penstock_local.operations.queue_records.IN_FLIGHT_MAX", 12)
    queues = QueueRig(limited)
    arn = queues.create()
    queues.put(*(b"%02d" % i for i in range(20)))
    first, second = queues.receive(arn), queues.receive(arn)
    assert (len(first), len(second)) == (10, 2)
    assert queues.counts() == (8, 12, 0)
    queues.acknowledge(arn, *first[:3])
    assert len(queues.receive(arn)) == 3


def test_wrong_requests_are_refused_by_the_model(rig, queues):
    arn = queues.create()
    kinesis = rig.server.client("kinesis", config=Config(parameter_validation=False))
    receive = kinesis.receive_queue_records
    for wrong in ({"Limit": 0}, {"Limit": 11}, {"WaitTimeSeconds": 0}, {"WaitTimeSeconds": 21}):
        assert rig.refused(receive, QueueARN=arn, **wrong) == ("ValidationException", 400)
    acknowledge = kinesis.acknowledge_queue_records
    assert rig.refused(acknowledge, QueueARN=arn, Entries=[]) == ("ValidationException", 400)
    eleven = [{"ReceiptHandle": "x"}] * 11
    assert rig.refused(acknowledge, QueueARN=arn, Entries=eleven) == ("ValidationException", 400)
    assert rig.refused(receive, QueueARN=queues.stream_arn) == ("ValidationException", 400)


def test_many_records_in_flight_are_no_burden():
    with LocalKinesis(limits=False, time_factor=0) as server, Rig(server) as rig:
        queues = QueueRig(rig)
        arn = queues.create()
        for _ in range(4):
            queues.put(*(b"%03d" % i for i in range(500)))
        received = [record for _ in range(200) for record in queues.receive(arn)]
        assert queues.counts() == (0, 2000, 0)
        for begin in range(0, 2000, 10):
            assert queues.acknowledge(arn, *received[begin : begin + 10]) == ["ok"] * 10
        assert queues.counts() == (0, 0, 0)
