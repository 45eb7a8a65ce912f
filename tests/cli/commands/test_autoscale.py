"""`penstock autoscale` against the embedded Kinesis."""

import json

import pytest

pytest.importorskip("httptools")

from cli.commands.support import lease_rows, penstock, put


def test_one_round_says_why_nothing_is_done_and_gives_the_lease_back(kinesis, stream, capsys):
    put(kinesis, stream, 5)
    status, out, err = penstock(capsys, "autoscale", stream, "--min", "1", "--max", "8", "--once")
    assert (status, err) == (0, "")
    # On a busy machine the shards are 15 s old by now.
    assert any(
        f" {stream}, 4 shards: {why}" in out for why in ("the shards are younger than 15 s", "4 shards use")
    )
    row = lease_rows(kinesis, "penstock-autoscale")[f"autoscale-{stream}"]
    assert "leaseOwner" not in row


def test_a_dry_run_prints_json_lines(kinesis, stream, capsys):
    kinesis.clock.advance(120)
    status, out, _ = penstock(
        capsys, "autoscale", stream, "--min", "5", "--max", "8", "--once", "--dry-run", "--json"
    )
    assert status == 0
    event = json.loads(out)
    assert (event["action"], event["done"], event["shards"]) == ("split", False, 4)
    assert "4 shards, at least 5 are required" in event["text"]


def test_shards_are_split_up_to_the_least(kinesis, stream, capsys, tmp_path):
    kinesis.clock.advance(120)
    status, out, _ = penstock(
        capsys,
        "autoscale",
        stream,
        "--min",
        "5",
        "--max",
        "8",
        "--once",
        "--lease-table",
        f"file://{tmp_path}",
    )
    assert status == 0
    assert "split shardId-" in out
    assert "5 shards: " in out


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--min", "5", "--max", "2"), "--min 5 and --max 2: expected 1 <= --min <= --max"),
        (("--min", "1", "--max", "2", "--interval", "1"), "--interval 1.0: expected at least 20"),
        (("--min", "1", "--max", "2", "--lease-table", "a b"), "lease table 'a b'"),
    ],
)
def test_wrong_usage_is_refused(capsys, arguments, said):
    status, _, err = penstock(capsys, "autoscale", "s", *arguments, "--once")
    assert status == 2
    assert said in err


def test_an_on_demand_stream_is_refused_in_one_sentence(kinesis, capsys):
    kinesis.client("kinesis").create_stream(
        StreamName="service_sized", StreamModeDetails={"StreamMode": "ON_DEMAND"}
    )
    status, _, err = penstock(capsys, "autoscale", "service_sized", "--min", "1", "--max", "2", "--once")
    assert status == 2
    assert "service_sized is on-demand" in err
