"""Plans of streams of the embedded Kinesis, held against the records and bytes that it has counted."""

import hashlib
import math
import random
import types

import pytest

pytest.importorskip("httptools")

from penstock import wiring
from penstock.core.aggregation import AggregateBuilder
from penstock.core.sizing.resharding import SizeLimits, Split
from penstock.errors import AccessDenied
from penstock.sizing.planning import PlanPorts, plan_stream
from penstock.sizing.price_table import load_prices
from penstock_local import LocalKinesis
from sizing.steady_load import write

MINUTES = 12


@pytest.fixture
def kinesis():
    with LocalKinesis(time_factor=0) as server:
        server.clock.advance(60 - server.clock.now_ms() % 60_000 / 1000)
        yield server


def planned(kinesis, stream, **more):
    options = wiring.AwsOptions(**kinesis.connection())
    ports = PlanPorts(
        wiring.open_kinesis(options),
        more.pop("metrics", None) or wiring.open_cloudwatch_queries(options),
        wiring.open_fan_out(options),
        wiring.SystemClock(),
    )
    settings = {"since_ms": 0, "applications": [], "limits": SizeLimits(1, 100), "prices": load_prices()}
    return plan_stream(ports, stream, **{**settings, **more})


def aggregate(chance, number):
    builder = AggregateBuilder()
    for each in range(40):
        builder.add(f"user-{number}-{each}", chance.randbytes(200), None)
    return builder.build() if hasattr(builder, "build") else builder.finish()


def small(chance, number):
    return chance.randbytes(120), f"k{number}"


def mixed(chance, number):
    return chance.randbytes(chance.choice([50, 900, 5_000])), f"k{chance.randrange(50)}"


def large(chance, number):
    return chance.randbytes(chance.choice([30_000, 60_000])), f"order-{number}"


def skewed(chance, number):
    return chance.randbytes(700), "hot" if number % 3 else f"k{number}"


def wide_keys(chance, number):
    return chance.randbytes(300), "\u00e9" * 100 + str(number)


WORKLOADS = {
    "small": (small, 60),
    "mixed": (mixed, 40),
    "large": (large, 6),
    "skewed": (skewed, 30),
    "wide keys": (wide_keys, 40),
}


@pytest.mark.parametrize("name", WORKLOADS)
def test_predicted_units_and_bytes_are_those_that_the_service_has_counted(kinesis, name):
    make, per_step = WORKLOADS[name]
    chance, client = random.Random(name), kinesis.client("kinesis")
    kinesis.create_stream("orders", 2)
    units = written = rounded = 0
    for _ in range(MINUTES):
        for _ in range(6):
            entries = [make(chance, chance.randrange(10_000)) for _ in range(per_step)]
            client.put_records(
                StreamName="orders", Records=[{"Data": data, "PartitionKey": key} for data, key in entries]
            )
            sizes = [len(data) + len(key.encode()) for data, key in entries]
            written += sum(sizes)
            units += sum(math.ceil(size / 25_600) for size in sizes)
            rounded += sum(math.ceil(size / 1024) * 1024 for size in sizes)
            kinesis.clock.advance(10)
    usage = planned(kinesis, "orders").usage
    span_s = MINUTES * 60
    assert usage.put_units_per_s * span_s == pytest.approx(units, rel=0.05)
    assert usage.written_bytes_per_s * span_s == pytest.approx(written, rel=0.05)
    assert usage.rounded_bytes_per_s * span_s == pytest.approx(rounded, rel=0.05)


def hash_key(key):
    return int(hashlib.md5(key.encode()).hexdigest(), 16)


def test_a_split_lies_where_half_of_the_measured_load_is(kinesis):
    kinesis.create_stream("orders", 1)
    low = sorted((f"k{n}" for n in range(2000)), key=hash_key)[:400]
    keys = [*low, *low]
    random.Random(7).shuffle(keys)
    write(kinesis, "orders", keys, 1000, 20)
    plan = planned(kinesis, "orders", limits=SizeLimits(1, 10, target=0.6, high=0.7, low=0.5))
    first = plan.actions[0]
    assert isinstance(first, Split)
    below = sum(hash_key(key) < first.at for key in low) / len(low)
    assert below == pytest.approx(0.5, abs=0.08)
    assert first.at < 2**126, "all keys are in the lowest fifth"


def test_a_hot_key_is_named_and_its_shard_is_not_split(kinesis):
    kinesis.create_stream("orders", 1)
    write(kinesis, "orders", ["hot"] * 900 + [f"k{n}" for n in range(50)], 1000, 20)
    plan = planned(kinesis, "orders")
    assert plan.actions == []
    (hot,) = plan.hot_keys
    assert hot.hash_key == hash_key("hot")
    assert "splitting cannot help" in str(hot)


def test_without_cloudwatch_the_action_is_named_and_the_plan_rests_on_the_sample(kinesis):
    def refuse(*_, **__):
        raise AccessDenied("GetMetricData: no access", operation="GetMetricData", resource="orders")

    kinesis.create_stream("orders", 1)
    write(kinesis, "orders", ["a", "b"], 500, 30)
    plan = planned(kinesis, "orders", metrics=types.SimpleNamespace(fetch=refuse))
    assert any("allow cloudwatch:GetMetricData" in each for each in plan.problems)
    assert plan.usage.written_bytes_per_s > 0
    assert plan.shards_planned == 1


def test_an_idle_stream_of_some_hours_is_merged(kinesis):
    kinesis.create_stream("orders", 4)
    write(kinesis, "orders", ["a", "b"], 100, 60)
    kinesis.clock.advance(2 * 3600)
    write(kinesis, "orders", ["a", "b", "c", "d"], 100, 60)
    plan = planned(kinesis, "orders")
    assert plan.shards_planned == 1
    assert len(plan.actions) == 3
    assert plan.advised.startswith("provisioned, 1")
