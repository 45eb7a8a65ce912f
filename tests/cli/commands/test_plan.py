"""`penstock plan` against the embedded Kinesis."""

import json
import time

import pytest

pytest.importorskip("httptools")

from cli.commands.support import penstock, put, wait_until_active


def test_a_stream_of_today_is_planned_from_its_records(kinesis, stream, capsys):
    began_minute = time.time() // 60
    put(kinesis, stream, 200)
    readers = ("--application", "billing", "--application", "fraud detector")
    status, out, err = penstock(capsys, "plan", stream, *readers)
    assert status == 0
    assert "a month: provisioned, 4 for the peak" in out
    assert "nothing is merged before enough of its load is known" in out
    assert "leases of billing in DynamoDB" in out
    # CloudWatch has figures of whole minutes, so of these records when the minute ended meanwhile.
    is_without_figures = "not known: CloudWatch has no figures of the stream yet" in out
    assert is_without_figures or time.time() // 60 > began_minute
    assert "--application billing: there is no lease of this application" in err
    assert "--application fraud detector: there is no lease of this application" in err


def test_json_has_every_sum(kinesis, stream, capsys):
    put(kinesis, stream, 50)
    kinesis.client("kinesis").register_stream_consumer(
        StreamARN=kinesis.client("kinesis").describe_stream_summary(StreamName=stream)[
            "StreamDescriptionSummary"
        ]["StreamARN"],
        ConsumerName="fast",
    )
    plan = json.loads(penstock(capsys, "plan", stream, "--json", "--since", "1h")[1])
    assert plan["shards"]["now"] == 4
    assert [each["name"] for each in plan["readers"]] == ["fast"]
    assert all(each["sum"] for bill in plan["bills"] for each in bill["sums"])
    assert [bill["monthly"] for bill in plan["bills"]] == sorted(bill["monthly"] for bill in plan["bills"])


def test_a_stream_without_a_record_keeps_its_mode(stream, capsys):
    plan = json.loads(penstock(capsys, "plan", stream, "--json")[1])
    assert plan["mode"]["advised"] == "provisioned"
    assert "nothing is known of its load" in plan["mode"]["reason"]


def test_an_on_demand_stream_is_sized_by_the_service(kinesis, capsys):
    kinesis.client("kinesis").create_stream(
        StreamName="free_size", StreamModeDetails={"StreamMode": "ON_DEMAND"}
    )
    wait_until_active(kinesis.client("kinesis"), "free_size")
    plan = json.loads(penstock(capsys, "plan", "free_size", "--json")[1])
    assert plan["mode"]["now"] == "on-demand standard"
    assert plan["shards"]["actions"] == []


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("plan",), "STREAM is missing"),
        (("plan", "s", "--target", "2"), "--target 2: expected 0.3 to 0.9"),
        (("plan", "s", "--min", "5", "--max", "2"), "expected 1 <= --min <= --max"),
        (("plan", "s", "--prices", "none.toml"), "none.toml"),
    ],
)
def test_wrong_usage_is_refused_before_any_call(capsys, arguments, said):
    status, _, err = penstock(capsys, *arguments)
    assert status == 2
    assert said in err


def test_the_prices_are_shown_as_a_file(capsys):
    status, out, _ = penstock(capsys, "plan", "--show-prices")
    assert status == 0
    assert "shard_hour = 0.015" in out
