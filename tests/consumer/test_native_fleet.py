"""A consumer in a native KCL 3 fleet whose leader is played by the test, on the embedded server."""

from pathlib import Path

import pytest

from java_leader import JavaLeader
from penstock.consumer import Consumer
from penstock.errors import OptionError
from penstock_local import LocalKinesis

SHARDS = ["shardId-000000000000", "shardId-000000000001"]


@pytest.fixture(scope="module")
def server():
    with LocalKinesis(limits=False, settle_s=0) as server:
        yield server


def consumer(server, name, seen):
    return Consumer(
        name,
        name,
        lambda batch: seen.extend((batch.shard_id, record.data) for record in batch),
        connection=server.connection(),
        worker_id="py",
        starting_position="TRIM_HORIZON",
        lease_duration_s=2.0,
        idle_time_between_reads_s=0.1,
        cold_start_jitter_s=0.0,
    )


def test_a_consumer_reads_what_the_leader_assigns_and_gives_back_what_it_takes(server):
    server.create_stream("led", shards=2)
    leader, seen = JavaLeader(server, "led"), []
    kinesis = server.client("kinesis")
    for key in range(20):
        kinesis.put_record(StreamName="led", PartitionKey=f"k{key}", Data=b"%d" % key)
    worker = consumer(server, "led", seen)
    worker.start()
    leader.wait(lambda: leader.rows().keys() >= {"py", *SHARDS}, "leases and a report")
    measured = {"C"} if Path("/proc/stat").exists() else set()
    assert leader.rows()["py"]["sts"]["M"].keys() == measured
    leader.assign(SHARDS[0], "py")
    leader.wait(lambda: seen, "records of the assigned shard")
    leader.ask_back(SHARDS[0], "py")
    leader.wait(lambda: "checkpointOwner" not in leader.rows()[SHARDS[0]], "the hand-over")
    given = leader.rows()[SHARDS[0]]
    assert given["leaseOwner"] == {"S": "java"}
    assert given["checkpoint"]["S"].isdigit()
    assert {shard for shard, _ in seen} == {SHARDS[0]}
    assert "leaseOwner" not in leader.rows()[SHARDS[1]]
    worker.stop()
    assert "py" not in leader.rows()


def test_a_fleet_in_an_unknown_state_is_refused_before_anything_is_read(server):
    server.create_stream("strange", shards=2)
    leader, seen = JavaLeader(server, "strange", "CLIENT_VERSION_5X"), []
    with pytest.raises(OptionError, match=r"cv=CLIENT_VERSION_5X.*update Penstock"):
        consumer(server, "strange", seen).run()
    assert leader.rows().keys() == {"Leader", "Migration3.0", "java"}
