"""A stream against its quotas: figures from CloudWatch's sums, hot shards, and what to do about them."""

import pytest

from penstock.cli.overview.stream_load import (
    MINUTE_MS,
    QUOTAS,
    READS_REFUSED,
    SHARD_METRICS,
    WRITES_REFUSED,
    Load,
    LoadPoint,
    ShardLoad,
    StreamSnapshot,
    advise,
    history_of,
    load_of,
    missing_metrics_advice,
    stream_document,
)
from penstock.core.hash_key import HashRange
from penstock.core.shard import Shard

MIB = 1024 * 1024
NOW_MS = 100 * MINUTE_MS + 20_000
WRITTEN, RECORDS, _, READS = (quota.name for quota in QUOTAS)


def minutes(**values):
    """Sums by the minutes before the running one, which is `m0`."""
    return {(100 - int(name[1:])) * MINUTE_MS: float(value) for name, value in values.items()}


def shard(number, *, share=0.0, refused=0, count=4, width=None):
    size = 2**128 // count
    start = number * size
    end = start + (size if width is None else width) - 1
    load = Load({WRITTEN: share * MIB, RECORDS: 0.0}, refused, 0)
    return ShardLoad(Shard(f"shardId-{number:012d}", HashRange(start, end)), load)


def stream(share, *, refused=0, count=4, of=WRITTEN):
    quota = next(each for each in QUOTAS if each.name == of)
    return Load({of: share * count * quota.per_s_max}, refused, 0, shard_count=count)


def test_the_busiest_of_the_last_minutes_is_held_against_the_quotas():
    sums = {
        "IncomingBytes": minutes(m0=30 * MIB, m3=60 * MIB, m15=600 * MIB),
        "IncomingRecords": minutes(m1=6000),
        WRITES_REFUSED: minutes(m0=2, m2=3, m20=50),
        READS_REFUSED: {},
    }
    load = load_of(sums, NOW_MS)
    assert load.per_s == {WRITTEN: MIB, RECORDS: 100.0}
    assert (load.writes_refused, load.reads_refused) == (5, 0)
    assert load.hottest_quota == (1.0, QUOTAS[0])
    assert load.is_hot


def test_metrics_without_enhanced_monitoring_are_unknown_and_without_traffic_zero():
    load = load_of({"IncomingBytes": {}, "OutgoingBytes": {}}, NOW_MS)
    assert (load.per_s, load.sent_bytes_per_s) == ({WRITTEN: 0.0}, 0.0)
    assert load_of({}, NOW_MS).sent_bytes_per_s is None
    assert (load.writes_refused, load.reads_refused, load.is_hot) == (None, None, False)
    assert load_of({}, NOW_MS).hottest_quota is None


def test_a_stream_has_the_quotas_of_its_shards():
    sums = {"IncomingBytes": minutes(m1=60 * MIB), "GetRecords.Success": minutes(m1=60 * 10)}
    load = load_of(sums, NOW_MS, shard_count=4)
    assert [load.share(quota) for quota in QUOTAS] == [0.25, None, None, 0.5]
    assert load_of(sums, NOW_MS, shard_count=0).hottest_quota is None


def test_the_hour_has_the_minutes_that_are_over_without_gaps():
    sums = {"IncomingBytes": minutes(m0=60, m4=600, m1=1200), "GetRecords.Bytes": minutes(m3=60)}
    assert history_of(sums, NOW_MS) == (
        LoadPoint(96 * MINUTE_MS, 10.0, 0.0),
        LoadPoint(97 * MINUTE_MS, 0.0, 1.0),
        LoadPoint(98 * MINUTE_MS, 0.0, 0.0),
        LoadPoint(99 * MINUTE_MS, 20.0, 0.0),
    )
    assert history_of({"IncomingBytes": minutes(m0=60)}, NOW_MS) == ()


def test_shards_that_refuse_writes_come_first_and_then_the_fullest():
    snapshot = StreamSnapshot(
        "orders", 0, shards=(shard(0, share=0.5), shard(1, share=0.9), shard(2, refused=1), shard(3))
    )
    assert [each.shard.shard_id[-1] for each in snapshot.shards_hottest_first] == ["2", "1", "0", "3"]


SINGLE_SECONDS = "single seconds were too much, so let the writers spread them, or split it"
SPLIT_KEY = "split it, unless a single partition key makes it hot: no split divides that one"


@pytest.mark.parametrize(
    ("load", "shards", "text", "command"),
    [
        (
            stream(0.3),
            [shard(0, share=0.2), shard(3, share=0.93)],
            f"Shard 3 uses 93% of its quota of written bytes: {SPLIT_KEY}",
            "penstock streams split orders 3 --wait",
        ),
        (
            stream(0.3, refused=7),
            [shard(0, share=0.2), shard(1, share=0.4, refused=7)],
            f"Shard 1 uses 40% of its quota of written bytes and has refused 7 records: {SINGLE_SECONDS}",
            "penstock streams split orders 1 --wait",
        ),
        (
            stream(0.3),
            [shard(2, share=0.95, width=3)],
            "Shard 2 uses 95% of its quota of written bytes: it has too few hash keys to be split, so spread its partition keys",
            None,
        ),
        (
            stream(0.75),
            [shard(0, share=0.9)],
            "The stream uses 75% of its quota of written bytes: 4 shards are too few",
            "penstock streams scale orders 8 --wait",
        ),
        (
            stream(0.9, count=1),
            [],
            "The stream uses 90% of its quota of written bytes: 1 shard is too few",
            "penstock streams scale orders 2 --wait",
        ),
        (
            stream(0.9, of=READS),
            [shard(0, share=0.9)],
            "The stream uses 90% of its quota of reads: let an application read by fan-out, which takes none of them",
            None,
        ),
        (
            stream(0.1, refused=1),
            [shard(0)],
            "1 record refused, and the stream as a whole has room: a shard was full, or a second",
            None,
        ),
    ],
)
def test_what_to_do_about_a_hot_stream_is_said_with_the_command(load, shards, text, command):
    (advice,) = advise("orders", load, shards, on_demand=False)
    assert (advice.text, advice.command) == (text, command)


def test_what_a_shard_sends_by_fan_out_makes_it_neither_hot_nor_one_to_split():
    sums = {"IncomingBytes": minutes(m1=30 * MIB), "OutgoingBytes": minutes(m1=3 * 60 * 1.5 * MIB)}
    load = load_of(sums, NOW_MS)
    assert (load.sent_bytes_per_s, load.hottest_quota, load.is_hot) == (4.5 * MIB, (0.5, QUOTAS[0]), False)
    assert advise("orders", stream(0.1), [ShardLoad(shard(0).shard, load)], on_demand=False) == []
    snapshot = StreamSnapshot("orders", 0, shards=(ShardLoad(shard(0).shard, load),))
    (told,) = stream_document(snapshot)["shards"]
    assert (told["sent_bytes_per_s"], told["read_bytes_share"]) == (4.5 * MIB, None)


def test_a_quiet_stream_needs_nothing():
    quiet = [shard(number, share=0.79) for number in range(4)]
    assert advise("orders", stream(0.69), quiet, on_demand=False) == []
    assert advise("orders", stream(0.69), quiet, on_demand=True) == []
    assert advise("orders", None, [], on_demand=None) == []


def test_the_three_hottest_shards_are_enough_to_split_at_once():
    shards = [shard(number, share=0.9 + number / 100, count=8) for number in range(5)]
    advice = advise("orders", stream(0.5, count=8), shards, on_demand=False)
    assert [each.command.split()[4] for each in advice] == ["4", "3", "2"]


def test_the_service_splits_the_shards_of_an_on_demand_stream():
    (advice,) = advise("orders", stream(0.2), [shard(1, share=0.9)], on_demand=True)
    assert advice.command is None
    assert advice.text.startswith("Hottest is shard 1. The service splits")


def test_the_name_of_a_stream_does_not_leave_its_place_in_a_command():
    (advice,) = advise("a; rm -rf b", stream(0.3), [shard(3, share=0.9)], on_demand=False)
    assert advice.command == "penstock streams split 'a; rm -rf b' 3 --wait"


def test_the_commands_act_on_the_stream_that_is_shown():
    arn = "arn:aws:kinesis:eu-west-1:123456789012:stream/orders"
    there = ("--region", "eu-west-1", "--endpoint-url", "http://127.0.0.1:4567/?a b", "--profile", "my own")
    told = "--region eu-west-1 --endpoint-url 'http://127.0.0.1:4567/?a b' --profile 'my own'"
    (split,) = advise(arn, stream(0.3), [shard(3, share=0.9)], on_demand=False, connection=there)
    assert split.command == f"penstock streams split {arn} 3 --wait {told}"
    (scale,) = advise(arn, stream(0.9), [], on_demand=False, connection=there)
    assert scale.command == f"penstock streams scale {arn} 8 --wait {told}"
    lacking = missing_metrics_advice(arn, ["OutgoingBytes"], there)
    assert lacking.command == (
        f"aws kinesis enable-enhanced-monitoring --stream-arn {arn} --shard-level-metrics OutgoingBytes {told}"
    )


def test_the_id_of_a_shard_does_not_leave_its_place_in_a_command():
    hot = shard(3, share=0.9)
    named = ShardLoad(Shard("$(reboot)", hot.shard.hash_range), hot.load)
    (advice,) = advise("orders", stream(0.3), [named], on_demand=False)
    assert advice.command == "penstock streams split orders '$(reboot)' --wait"


def test_how_to_see_single_shards_is_said_with_the_command():
    advice = missing_metrics_advice("orders", SHARD_METRICS)
    assert advice.command.startswith(
        "aws kinesis enable-enhanced-monitoring --stream-name orders --shard-level-metrics IncomingBytes "
    )
    assert "no figures of single shards:" in advice.text
    some = missing_metrics_advice("orders", ["OutgoingBytes"])
    assert "no figures of single shards' OutgoingBytes:" in some.text
    assert some.command.endswith("--shard-level-metrics OutgoingBytes")


def test_a_look_at_a_stream_is_a_document():
    snapshot = StreamSnapshot(
        "orders",
        0,
        on_demand=False,
        load=stream(0.5),
        shards=(shard(1, share=0.25, refused=2),),
        history=(LoadPoint(MINUTE_MS, 10.0, 20.0),),
    )
    document = stream_document(snapshot)
    assert document["load"]["written_bytes_share"] == 0.5
    assert document["load"]["reads_per_s"] is None
    (only,) = document["shards"]
    assert (only["shard"], only["written_bytes_per_s"], only["writes_refused"]) == (
        "shardId-000000000001",
        0.25 * MIB,
        2,
    )
    assert document["history"] == [
        {"at": "1970-01-01T00:01:00.000+00:00", "written_bytes_per_s": 10.0, "read_bytes_per_s": 20.0}
    ]
