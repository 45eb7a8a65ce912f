"""An autoscaler on the embedded Kinesis: it splits, merges, waits for readers, and acts alone."""

import random
import types

import pytest

pytest.importorskip("httptools")

from penstock import Autoscaler, wiring
from penstock.core.leases.lease import Lease
from penstock.core.leases.lease_writes import Create
from penstock.errors import NotFound, OptionError, UsageError
from penstock.runtime.memory_lease_table import MemoryLeaseTable
from penstock.sizing.autoscaler import AutoscalePorts
from penstock_local import LocalKinesis
from sizing.steady_load import write

CHANCE = random.Random(5)


@pytest.fixture
def kinesis():
    with LocalKinesis(time_factor=0) as server:
        yield server


class ServerClock:
    """The server's clock, so that an hour passes at once."""

    def __init__(self, server):
        self._server = server

    def monotonic_s(self):
        return self._server.clock.now_s()

    def wall_ms(self):
        return self._server.clock.now_ms()

    def sleep(self, duration_s):
        self._server.clock.advance(duration_s)


class SteppedStop:
    """The wait of an autoscaler, in the server's time."""

    def __init__(self, server):
        self._server = server

    def is_set(self):
        return False

    def wait(self, duration_s):
        self._server.clock.advance(duration_s)
        return False


def scaler(kinesis, stream="orders", *, leases=None, readers=None, **options):
    connection = wiring.AwsOptions(**kinesis.connection())
    ports = AutoscalePorts(
        wiring.open_kinesis(connection),
        wiring.open_stream_control(connection),
        leases or MemoryLeaseTable(),
        readers or {},
        ServerClock(kinesis),
    )
    made = Autoscaler(stream, ports=ports, **{"shards_min": 1, "shards_max": 8, **options})
    made._stop = SteppedStop(kinesis)
    return made


def keys_of(count):
    found = [f"k{n}" for n in range(count)]
    CHANCE.shuffle(found)
    return found


def open_shards(kinesis, stream="orders"):
    shards = kinesis.client("kinesis").list_shards(StreamName=stream)["Shards"]
    return [each for each in shards if "EndingSequenceNumber" not in each["SequenceNumberRange"]]


def test_a_full_shard_is_split_and_an_idle_hour_later_merged(kinesis):
    kinesis.create_stream("orders", 1)
    kinesis.clock.advance(60)
    write(kinesis, "orders", keys_of(60), 16_000, 62)
    autoscaler = scaler(kinesis)
    events = autoscaler.run_round()
    assert [(each.action, each.done) for each in events] == [("split", True), ("hold", False)]
    assert "shardId-000000000000 uses 9" in events[0].text
    assert len(open_shards(kinesis)) == 2
    kinesis.clock.advance(1800)
    assert (
        "older than 60 min" in autoscaler.run_round()[-1].text or "enough" in autoscaler.run_round()[-1].text
    )
    for _ in range(3):
        kinesis.clock.advance(1000)
        events = autoscaler.run_round()
    assert len(open_shards(kinesis)) == 1, events


def test_a_dry_run_changes_nothing_and_takes_no_lease(kinesis):
    kinesis.create_stream("orders", 1)
    kinesis.clock.advance(60)
    write(kinesis, "orders", keys_of(60), 16_000, 62)
    leases = MemoryLeaseTable()
    (event,) = scaler(kinesis, leases=leases, dry_run=True).run_round()
    assert (event.action, event.done) == ("split", False)
    assert event.text.startswith("would split shardId-000000000000 at ")
    assert leases.row_count == 0
    assert len(open_shards(kinesis)) == 1


def test_one_of_two_acts_and_the_other_takes_over_when_it_is_gone(kinesis):
    kinesis.create_stream("orders", 1)
    kinesis.clock.advance(120)
    leases = MemoryLeaseTable()
    first, second = scaler(kinesis, leases=leases), scaler(kinesis, leases=leases)
    assert "its size fits" in first.run_round()[-1].text
    (held,) = second.run_round()
    assert f"another autoscaler has the lease ({first.worker_id})" in held.text
    kinesis.clock.advance(200)
    assert "its size fits" in second.run_round()[-1].text
    assert "another autoscaler" in first.run_round()[-1].text
    second._release_lease()
    assert "its size fits" in first.run_round()[-1].text


def test_nothing_is_done_while_a_reader_is_behind_in_a_closed_shard(kinesis):
    kinesis.create_stream("orders", 1)
    kinesis.clock.advance(60)
    write(kinesis, "orders", ["a"], 10, 2)
    kinesis.client("kinesis").split_shard(
        StreamName="orders", ShardToSplit="shardId-000000000000", NewStartingHashKey=str(2**127)
    )
    kinesis.clock.advance(700)
    write(kinesis, "orders", keys_of(120), 16_000, 62)
    billing = MemoryLeaseTable("billing")
    billing.write(Create(Lease("shardId-000000000000")))
    (event,) = scaler(kinesis, readers={"billing": billing}).run_round()
    assert event.action == "hold"
    assert "billing is 7" in event.text
    assert "behind in the closed shard shardId-000000000000, more than 300 s; put off: split" in event.text
    assert len(open_shards(kinesis)) == 2


def test_a_load_that_is_not_known_changes_nothing(kinesis):
    kinesis.create_stream("orders", 2)
    kinesis.clock.advance(60)
    kinesis.client("kinesis").merge_shards(
        StreamName="orders",
        ShardToMerge="shardId-000000000000",
        AdjacentShardToMerge="shardId-000000000001",
    )
    kinesis.clock.advance(3)
    (event,) = scaler(kinesis).run_round()
    assert event.action == "hold"


class MissingTable(MemoryLeaseTable):
    """A lease table that was never made."""

    def scan(self, part=None):
        raise NotFound("Scan on table billing: not found", operation="Scan", resource="billing")


def test_a_reader_without_a_lease_table_is_named_at_once(kinesis):
    kinesis.create_stream("orders", 1)
    kinesis.clock.advance(60)
    with pytest.raises(UsageError, match="reader billing has no lease table"):
        scaler(kinesis, readers={"billing": MissingTable()}).run_round()


def test_an_action_that_the_service_refuses_is_told_and_dropped(kinesis):
    kinesis.create_stream("orders", 1)
    kinesis.clock.advance(60)
    kinesis.faults.error("SplitShard", code="InvalidArgumentException", status=400, count=1)
    autoscaler = scaler(kinesis, shards_min=2)
    (event,) = autoscaler.run_round()
    assert (event.action, event.done) == ("hold", False)
    assert "refused: " in event.text
    assert autoscaler.run_round()[0].action == "split"


def test_an_on_demand_stream_is_refused(kinesis):
    kinesis.client("kinesis").create_stream(StreamName="free", StreamModeDetails={"StreamMode": "ON_DEMAND"})
    kinesis.clock.advance(60)
    with pytest.raises(UsageError, match="free is on-demand: the service sizes it"):
        scaler(kinesis, "free").run_round()


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"shards_min": 0}, "shards_min=0"),
        ({"shards_min": 9}, "shards_min=9 and shards_max=8"),
        ({"interval_s": 1}, "interval_s=1"),
        ({"steps_max": 0}, "steps_max=0"),
        ({"target": 0.99}, "target=0.99"),
    ],
)
def test_options_that_cannot_be_are_refused(options, said):
    ports = types.SimpleNamespace()
    with pytest.raises(OptionError, match=said):
        Autoscaler("orders", ports=ports, **{"shards_min": 1, "shards_max": 8, **options})
