"""Queues in a state folder: a restart brings back settings, counts, dead letters and handles."""

from __future__ import annotations

import errno
from contextlib import contextmanager

import pytest
from tests.local.conftest import ONE_ATTEMPT, Rig

from penstock_local import LocalKinesis, LocalKinesisProcess
from queue_rig import QueueRig, handle, knows_queues, outcomes
from waiting import wait_until

pytestmark = knows_queues

TWICE = {"DeadLetterConfiguration": {"TargetType": "BUILT_IN", "MaxReceiveCount": 2}}
ONCE = {"DeadLetterConfiguration": {"TargetType": "BUILT_IN", "MaxReceiveCount": 1}}
NEVER_DEAD = {"DeadLetterConfiguration": {"TargetType": "NONE"}}


@contextmanager
def started(folder):
    with LocalKinesis(limits=False, time_factor=0, state_dir=folder) as server, Rig(server) as rig:
        yield rig


def reopened(queues: QueueRig, rig: Rig) -> QueueRig:
    """The same streams and queues on a server that was started again."""
    again = object.__new__(QueueRig)
    again.__dict__.update(queues.__dict__, rig=rig, clock=rig.clock, kinesis=rig.kinesis)
    return again


def test_a_restart_brings_back_deliveries_dead_letters_and_handles(tmp_path):
    with started(tmp_path) as rig:
        queues = QueueRig(rig)
        arn = queues.create(QueueAttributes=TWICE, Tags={"a": "1"})
        queues.put(b"acknowledged", b"in flight", b"visible", b"dead", b"restored")
        records = {record["Data"]: record for record in queues.receive(arn)}
        queues.acknowledge(arn, records[b"acknowledged"])
        queues.set_visibility(arn, 600, records[b"in flight"])
        queues.set_visibility(arn, 0, records[b"dead"], records[b"restored"])
        again = queues.receive(arn, VisibilityTimeoutSeconds=0)
        assert {record["Data"] for record in again} == {b"dead", b"restored"}
        dead = {record["Data"]: record for record in queues.receive(arn, dead=True)}
        restore = rig.kinesis.restore_dead_letter_queue_records
        restore(QueueARN=arn, Entries=[handle(dead[b"restored"])])
        rig.clock.advance(60)
        queues.put(b"new")
        described, counts = queues.describe(arn), queues.counts()
        assert counts == (3, 1, 1)
    with started(tmp_path) as rig:
        queues = reopened(queues, rig)
        assert (queues.describe(arn), queues.counts()) == (described, counts)
        assert rig.kinesis.list_tags_for_resource(ResourceARN=arn)["Tags"] == [{"Key": "a", "Value": "1"}]
        assert queues.acknowledge(arn, records[b"acknowledged"]) == ["ResourceNotFoundException"]
        assert queues.acknowledge(arn, records[b"in flight"]) == ["ok"]
        assert queues.acknowledge(arn, dead[b"restored"], dead=True) == ["ResourceNotFoundException"]
        assert queues.acknowledge(arn, dead[b"dead"], dead=True) == ["ok"]
        found = {record["Data"]: record["ReceiveCount"] for record in queues.receive(arn)}
        assert found == {b"visible": 2, b"restored": 1, b"new": 1}


def test_a_restart_goes_on_with_a_change_of_state(tmp_path):
    with started(tmp_path) as rig:
        queues = QueueRig(rig)
        gone, kept = queues.create("gone"), queues.create("kept")
        rig.kinesis.delete_queue(QueueARN=gone)
        rig.kinesis.update_queue(QueueARN=kept, QueueAttributes={"VisibilityTimeoutSeconds": 3})
        made = rig.kinesis.create_queue(
            QueueName="new", StreamConfigurationList=[{"StreamARN": queues.stream_arn}]
        )["QueueDescription"]["QueueARN"]
    with started(tmp_path) as rig:
        queues = reopened(queues, rig)
        rig.settle()
        statuses = {q["QueueName"]: q["QueueStatus"] for q in rig.kinesis.list_queues()["QueueSummaries"]}
        assert statuses == {"kept": "ACTIVE", "new": "ACTIVE"}
        assert queues.describe(kept)["QueueAttributes"]["VisibilityTimeoutSeconds"] == 3
        assert queues.describe(made)["StreamConfigurationList"][0]["StartingPosition"]["Timestamp"]


def test_dead_letters_stay_dead_under_a_limit_that_was_raised_later(tmp_path):
    with started(tmp_path) as rig:
        queues = QueueRig(rig)
        arn = queues.create(QueueAttributes=ONCE)
        queues.put(b"a", b"b")
        queues.receive(arn, VisibilityTimeoutSeconds=0)
        rig.kinesis.update_queue(QueueARN=arn, QueueAttributes=NEVER_DEAD)
        rig.settle()
        assert queues.counts() == (0, 0, 2)
    with started(tmp_path) as rig:
        assert reopened(queues, rig).counts() == (0, 0, 2)


def test_a_handle_of_before_the_restart_is_void_once_its_record_is_received_again(tmp_path):
    with started(tmp_path) as rig:
        queues = QueueRig(rig)
        arn = queues.create(QueueAttributes=NEVER_DEAD)
        queues.put(b"a")
        (before,) = queues.receive(arn, VisibilityTimeoutSeconds=0)
    with started(tmp_path) as rig:
        queues = reopened(queues, rig)
        (after,) = queues.receive(arn)
        assert queues.acknowledge(arn, before, after) == ["ResourceNotFoundException", "ok"]
        assert queues.counts() == (0, 0, 0)


def test_a_rewritten_file_holds_the_same_queues(tmp_path, monkeypatch):
    monkeypatch.setattr("penstock_local.journal._COMPACT_BYTES_MIN", 1)
    with started(tmp_path) as rig:
        queues = QueueRig(rig)
        arn = queues.create(QueueAttributes=TWICE)
        queues.put(*(b"%02d" % i for i in range(30)))
        records = queues.receive(arn) + queues.receive(arn)
        queues.acknowledge(arn, *records[:5])
        # each turn makes the file longer without more state, until the server rewrites it
        file, sizes = tmp_path / "kinesis.journal", [0]

        def is_rewritten() -> bool:
            queues.set_visibility(arn, 100, *records[5:15])
            sizes.append(file.stat().st_size)
            return sizes[-1] < sizes[-2]

        wait_until(is_rewritten)
        queues.acknowledge(arn, records[5])
        counts = queues.counts()
        assert counts == (10, 14, 0)
    with started(tmp_path) as rig:
        queues = reopened(queues, rig)
        assert queues.counts() == counts
        assert queues.acknowledge(arn, *records[5:7]) == ["ResourceNotFoundException", "ok"]


def test_a_crash_loses_no_acknowledgement(tmp_path):
    with LocalKinesisProcess(limits=False, state_dir=tmp_path, settle_s=0) as server:
        kinesis = server.client("kinesis", config=ONE_ATTEMPT)
        kinesis.create_stream(StreamName="s", StreamModeDetails={"StreamMode": "ON_DEMAND"})
        stream = kinesis.describe_stream_summary(StreamName="s")["StreamDescriptionSummary"]["StreamARN"]
        arn = kinesis.create_queue(QueueName="q", StreamConfigurationList=[{"StreamARN": stream}])[
            "QueueDescription"
        ]["QueueARN"]
        kinesis.put_records(
            StreamName="s", Records=[{"Data": b"%d" % i, "PartitionKey": str(i)} for i in range(10)]
        )
        records = kinesis.receive_queue_records(QueueARN=arn, VisibilityTimeoutSeconds=600)["QueueRecords"]
        acknowledged = kinesis.acknowledge_queue_records(
            QueueARN=arn, Entries=[handle(record) for record in records[:4]]
        )
        assert len(acknowledged["Successful"]) == 4
        server.kill()
    with LocalKinesis(limits=False, state_dir=tmp_path, settle_s=0) as server:
        kinesis = server.client("kinesis", config=ONE_ATTEMPT)
        assert server.state()["streams"]["s"]["queues"]["q"]["in_flight"] == 6
        answer = kinesis.acknowledge_queue_records(QueueARN=arn, Entries=[handle(r) for r in records])
        assert outcomes(tuple(records), answer) == ["ResourceNotFoundException"] * 4 + ["ok"] * 6


@pytest.mark.parametrize("operation", ["receive", "acknowledge"])
def test_a_full_disk_refuses_a_change_without_any_effect(tmp_path, monkeypatch, operation):
    with started(tmp_path) as rig:
        queues = QueueRig(rig)
        arn = queues.create()
        queues.put(b"a", b"b")
        (record,) = queues.receive(arn, Limit=1)
        before = queues.counts()
        with monkeypatch.context() as patch:
            patch.setattr("penstock_local.frames._write", refuse_to_write)
            if operation == "receive":
                assert rig.refused(rig.kinesis.receive_queue_records, QueueARN=arn)[1] == 507
            else:
                call = rig.kinesis.acknowledge_queue_records
                assert rig.refused(call, QueueARN=arn, Entries=[handle(record)])[1] == 507
        assert queues.counts() == before
        assert len(queues.receive(arn)) == 1
        assert queues.acknowledge(arn, record) == ["ok"]


def refuse_to_write(*_: object) -> None:
    raise OSError(errno.ENOSPC, "no space left")
