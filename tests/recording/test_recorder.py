from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from datetime import UTC, datetime
from pathlib import Path

import pytest

pytest.importorskip("httptools")
pytest.importorskip("pyarrow")

from few_threads import leave_threads
from penstock.cli import main as cli
from penstock.core.aggregation import AggregateBuilder
from penstock.errors import AccessDenied, DamagedRecording, OptionError, PenstockError
from penstock.recording import open_recording
from penstock.recording.recorder import Recorder, RecordingStoppedError, SliceRequest
from penstock.wiring import AwsOptions, open_kinesis
from penstock_local import LocalKinesis
from waiting import wait_until


@pytest.fixture(scope="module")
def server():
    with LocalKinesis(settle_s=0.0, limits=False) as server:
        yield server


@pytest.fixture
def client(server):
    return server.client("kinesis")


@pytest.fixture
def stream(server, request):
    name = f"s{abs(hash(request.node.name))}"
    server.create_stream(name, 2)
    return name


@pytest.fixture
def penstock(server, monkeypatch, capsys, tmp_path):
    for name, value in server.environ().items():
        monkeypatch.setenv(name, value)
    monkeypatch.chdir(tmp_path)

    def run(*arguments):
        capsys.readouterr()
        status = cli.main([*arguments])
        said = capsys.readouterr()
        return status, said.out, said.err

    return run


def put(client, stream, count, prefix="r", data_bytes=0):
    records = [
        {"Data": f"{prefix}{n}".encode().ljust(data_bytes, b"."), "PartitionKey": f"k{n}"}
        for n in range(count)
    ]
    for start in range(0, count, 500):
        answer = client.put_records(StreamName=stream, Records=records[start : start + 500])
        assert answer["FailedRecordCount"] == 0


def in_stream(client, stream):
    """Return the records of each shard, by the service's own calls."""
    found = {}
    for shard in client.list_shards(StreamName=stream)["Shards"]:
        iterator = client.get_shard_iterator(
            StreamName=stream, ShardId=shard["ShardId"], ShardIteratorType="TRIM_HORIZON"
        )["ShardIterator"]
        rows = found[shard["ShardId"]] = []
        while iterator is not None:
            page = client.get_records(ShardIterator=iterator)
            rows += [
                (
                    each["SequenceNumber"],
                    each["PartitionKey"],
                    each["Data"],
                    each["ApproximateArrivalTimestamp"],
                )
                for each in page["Records"]
            ]
            iterator = page.get("NextShardIterator") if page["MillisBehindLatest"] else None
    return found


def in_file(path):
    found = {}
    with open_recording(path) as recording:
        found = {shard.id: [] for shard in recording.metadata.shards}
        for batch in recording.batches(deaggregate=False):
            for row in batch.to_pylist():
                found[row["shardId"]].append(
                    (
                        row["sequenceNumber"],
                        row["partitionKey"],
                        row["data"],
                        row["approximateArrivalTimestamp"],
                    )
                )
    return found


def test_bytes_numbers_keys_and_order_are_those_of_the_stream_across_reshards(client, stream, penstock):
    put(client, stream, 60, "one")
    client.split_shard(StreamName=stream, ShardToSplit="shardId-000000000000", NewStartingHashKey=str(2**125))
    put(client, stream, 60, "two")
    client.merge_shards(
        StreamName=stream, ShardToMerge="shardId-000000000003", AdjacentShardToMerge="shardId-000000000001"
    )
    put(client, stream, 60, "three")
    status, out, err = penstock("record", stream, "--since", "1h", "-o", "incident.penstock")
    assert (status, in_file("incident.penstock")) == (0, in_stream(client, stream))
    assert "180 records of 5 shards" in out
    assert "until 20" in err
    with open_recording("incident.penstock") as recording:
        shards = {shard.id[-1]: shard for shard in recording.metadata.shards}
        listed = {shard["ShardId"][-1]: shard for shard in client.list_shards(StreamName=stream)["Shards"]}
        for number, shard in shards.items():
            its_numbers = listed[number]["SequenceNumberRange"]
            assert shard.starting_sequence_number == its_numbers["StartingSequenceNumber"]
            assert shard.ending_sequence_number == its_numbers.get("EndingSequenceNumber")
            assert list(shard.hash_range) == list(listed[number]["HashKeyRange"].values())
        assert [shards[number].parents[0][-1] for number in "23"] == ["0", "0"]
        assert {parent[-1] for parent in shards["4"].parents} == {"1", "3"}
        assert shards["0"].opened_ms is None
        assert shards["0"].closed_ms < shards["2"].opened_ms <= shards["3"].closed_ms < shards["4"].opened_ms
        assert [shards[number].closed_ms for number in "24"] == [None, None]
    assert [each.name for each in Path().iterdir()] == ["incident.penstock"]


def test_only_the_shard_the_key_and_the_time_that_were_asked_for(client, stream, penstock):
    put(client, stream, 40, "before")
    time.sleep(0.002)
    moment_ms = time.time_ns() // 1_000_000
    time.sleep(0.002)
    put(client, stream, 40, "after")
    moment = f"{moment_ms // 1000}.{moment_ms % 1000:03d}"
    penstock("record", stream, "--since", "1h", "--shards", "1", "-o", "shard.penstock")
    whole = in_stream(client, stream)
    found = in_file("shard.penstock")
    assert found["shardId-000000000001"] == whole["shardId-000000000001"]
    assert found["shardId-000000000000"] == []
    with open_recording("shard.penstock") as recording:
        assert [shard.is_recorded for shard in recording.metadata.shards] == [False, True]
    penstock("record", stream, "--since", "1h", "--key", "k7", "--key", "k9", "-o", "key.penstock")
    keys = [row[1] for rows in in_file("key.penstock").values() for row in rows]
    assert sorted(keys) == ["k7", "k7", "k9", "k9"]
    text = datetime.fromtimestamp(float(moment), UTC).isoformat()
    penstock("record", stream, "--since", "1h", "--until", text, "-o", "early.penstock")
    penstock("record", stream, "--since", text, "-o", "late.penstock")
    for file, prefix in (("early.penstock", b"before"), ("late.penstock", b"after")):
        data = [row[2] for rows in in_file(file).values() for row in rows]
        assert len(data) == 40
        assert all(each.startswith(prefix) for each in data)


def test_json_names_what_was_recorded(client, stream, penstock):
    put(client, stream, 10)
    status, out, _ = penstock("record", stream, "--since", "1h", "-o", "a.penstock", "--json")
    document = json.loads(out)
    assert (status, document["records"], document["shards"], document["resumed"]) == (0, 10, 2, False)
    assert document["file_bytes"] == Path("a.penstock").stat().st_size


def test_a_limit_of_threads_leaves_no_shard_out(client, stream, penstock, monkeypatch):
    put(client, stream, 40)
    leave_threads(monkeypatch, 1, "penstock-record")
    assert penstock("record", stream, "--since", "1h", "-o", "few.penstock")[0] == 0
    assert in_file("few.penstock") == in_stream(client, stream)


def test_an_empty_slice_is_a_recording_too(stream, penstock):
    status, out, _ = penstock("record", stream, "--since", "1h", "-o", "empty.penstock")
    assert status == 0
    assert "0 records of 2 shards" in out
    with open_recording("empty.penstock") as recording:
        assert list(recording.batches()) == []


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--since", "soon"], "or an age (30s, 10m, 2h, 1d)"),
        (["--since", "1h", "--until", "2h"], "--since 1h is not before --until 2h"),
        (["--since", "1h", "--shards", "77"], "--shards shardId-000000000077: stream"),
        (["--since", "1h", "--redact", "name"], "expected key=hash, data=drop"),
        (["--since", "1h", "--redact", "json:$"], "names no field"),
        (["--since", "1h", "--redact", "json:$.a[x]"], "'[x]' is not a step of a path"),
    ],
)
def test_wrong_input_is_refused_in_one_line_and_leaves_no_file(stream, penstock, arguments, sentence):
    status, _, err = penstock("record", stream, *arguments, "-o", "a.penstock")
    assert status == 2
    assert sentence in err.splitlines()[-1]
    assert list(Path().iterdir()) == []


def test_a_file_that_is_there_and_a_folder_that_is_not(stream, penstock):
    status, _, err = penstock("record", stream, "--since", "1h", "-o", "no/a.penstock")
    assert (status, "there is no folder no" in err) == (2, True)
    penstock("record", stream, "--since", "1h", "-o", "a.penstock")
    status, _, err = penstock("record", stream, "--since", "1h", "-o", "a.penstock")
    assert (status, "a.penstock exists" in err) == (2, True)


def test_keys_and_fields_are_redacted_in_aggregates_too(client, stream, penstock):
    builder = AggregateBuilder()
    for name in ("Ann", "Bob"):
        builder.add(json.dumps({"customer": {"name": name}, "n": 1}).encode(), "ann@example.org")
    entry = builder.build()
    client.put_record(StreamName=stream, Data=entry.data, PartitionKey="ann@example.org")
    client.put_record(StreamName=stream, Data=b"Ann, no JSON", PartitionKey="ann@example.org")
    _, _, err = penstock(
        "record", stream, "--since", "1h", "-o", "a.penstock", "--key", "ann@example.org", "--redact", "key=hash", "--redact",
        "json:$.customer.name=hash",
    )  # fmt: skip
    assert "the data of 1 records is not JSON and was dropped" in err
    with open_recording("a.penstock") as recording:
        assert recording.metadata.recorded.redactions == ("key=hash", "json:$.customer.name=hash")
        rows = [row for batch in recording.batches() for row in batch.to_pylist()]
    content = Path("a.penstock").read_bytes()
    assert len({row["partitionKey"] for row in rows}) == 1
    names = [json.loads(row["data"])["customer"]["name"] for row in rows[:2]]
    assert len(set(names)) == 2
    assert rows[2]["data"] == b""
    assert b"key=hash" in content
    assert not any(secret in content for secret in (b"ann@", b"Ann", b"Bob"))


class Interrupted:
    """A Kinesis that asks a recorder to stop after some pages, or fails."""

    def __init__(self, inner, pages):
        self.inner, self.pages, self.recorder = inner, pages, None

    def __getattr__(self, name):
        return getattr(self.inner, name)

    def fetch_records(self, stream, iterator, record_count_max=10_000):
        self.pages -= 1
        if self.pages == 0:
            self.recorder.request_stop()
        return self.inner.fetch_records(stream, iterator, min(record_count_max, 50))


def recorder_of(server, stream, path, pages=-1, **options):
    kinesis = open_kinesis(AwsOptions(**server.connection()))
    stopper = Interrupted(kinesis, pages)
    request = SliceRequest(stream=stream, from_ms=time.time_ns() // 1_000_000 - 3_600_000, **options)
    stopper.recorder = Recorder(stopper, request, path, options={"--key": options.get("keys")})
    return stopper.recorder


def test_an_interrupted_recording_goes_on_where_it_stood(server, client, stream, tmp_path):
    put(client, stream, 400)
    path = tmp_path / "incident.penstock"
    with pytest.raises(RecordingStoppedError, match=r"records are kept. The same command goes on"):
        recorder_of(server, stream, path, pages=3).run()
    assert not path.exists()
    left = [each.suffix for each in (tmp_path / "incident.penstock.part").iterdir()]
    assert sorted(set(left)) == [".json", ".parquet"]
    put(client, stream, 10, "later")  # beside the slice: its end was fixed when it began
    second = recorder_of(server, stream, path)
    assert second.is_resumed
    assert 0 < second.state.records < 400
    second.run()
    whole = in_stream(client, stream)
    assert in_file(path) == {
        shard: [row for row in rows if not row[2].startswith(b"later")] for shard, rows in whole.items()
    }
    assert [each.name for each in tmp_path.iterdir()] == ["incident.penstock"]


def test_a_recording_that_goes_on_keeps_the_order_of_a_shard(server, client, stream, tmp_path, monkeypatch):
    monkeypatch.setattr("penstock.recording.recorder._BATCH_BYTES_MAX", 20_000)
    put(client, stream, 300, data_bytes=5_000)
    path = tmp_path / "incident.penstock"
    for _ in range(3):
        with pytest.raises(RecordingStoppedError):
            recorder_of(server, stream, path, pages=3).run()
    metadata = recorder_of(server, stream, path).run()
    assert len(metadata.batches) > 8
    assert in_file(path) == in_stream(client, stream)


def test_reads_that_keep_failing_are_a_warning_and_lose_nothing(
    server, client, stream, tmp_path, monkeypatch, caplog
):
    put(client, stream, 20)
    monkeypatch.setattr("penstock.recording.recorder.random.random", lambda: 0.0)  # pauses without length
    path = tmp_path / "incident.penstock"
    recorder = recorder_of(server, stream, path, shards=["shardId-000000000000"])
    fetch, refused = recorder._kinesis.fetch_records, []

    def refuse_five_times(*arguments):
        if len(refused) < 5:
            refused.append(arguments)
            raise AccessDenied("GetRecords: the security token is expired")
        return fetch(*arguments)

    monkeypatch.setattr(recorder._kinesis, "fetch_records", refuse_five_times)
    recorder.run()
    [warning] = [each.getMessage() for each in caplog.records if each.levelname == "WARNING"]
    assert warning.startswith(
        f"stream {stream}, shard shardId-000000000000: reading failed 4 times in a row: "
    )
    assert "security token is expired" in warning
    assert in_file(path)["shardId-000000000000"] == in_stream(client, stream)["shardId-000000000000"]


def test_an_interrupted_recording_does_not_go_on_with_other_options(server, client, stream, tmp_path):
    put(client, stream, 200)
    path = tmp_path / "incident.penstock"
    with pytest.raises(RecordingStoppedError):
        recorder_of(server, stream, path, pages=1).run()
    with pytest.raises(OptionError, match=r"is an interrupted recording of arn:.* with other options"):
        recorder_of(server, stream, path, keys=("k1",))


def test_two_processes_do_not_record_to_one_file(server, stream, tmp_path):
    path = tmp_path / "incident.penstock"
    first = recorder_of(server, stream, path)
    with pytest.raises(OptionError, match="another process records to"):
        recorder_of(server, stream, path)
    first.run()


def test_a_damaged_part_is_named(server, client, stream, tmp_path):
    put(client, stream, 200)
    path = tmp_path / "incident.penstock"
    with pytest.raises(RecordingStoppedError):
        recorder_of(server, stream, path, pages=2).run()
    part = min((tmp_path / "incident.penstock.part").glob("*.parquet"))
    part.write_bytes(part.read_bytes()[:-20])
    with pytest.raises(
        DamagedRecording, match=rf"{part.name} cannot be read: .*remove .*\.part to begin again"
    ):
        recorder_of(server, stream, path)


def test_large_records_fill_several_batches_of_a_shard_in_order(
    server, client, stream, tmp_path, monkeypatch
):
    monkeypatch.setattr("penstock.recording.recorder._BATCH_BYTES_MAX", 100_000)
    put(client, stream, 300, data_bytes=2_000)
    path = tmp_path / "incident.penstock"
    metadata = recorder_of(server, stream, path).run()
    assert len(metadata.batches) > 4
    assert in_file(path) == in_stream(client, stream)


def test_records_that_arrive_during_the_recording_are_there_until_its_end(server, client, stream, tmp_path):
    put(client, stream, 20)
    path = tmp_path / "incident.penstock"
    until_ms = time.time_ns() // 1_000_000 + 1_500
    recorder = recorder_of(server, stream, path, until_ms=until_ms)
    client.split_shard(StreamName=stream, ShardToSplit="shardId-000000000000", NewStartingHashKey=str(2**125))
    put(client, stream, 20, "second")
    metadata = recorder.run()
    assert time.time_ns() // 1_000_000 >= until_ms
    assert (metadata.record_count, len(metadata.shards)) == (40, 4)
    assert in_file(path) == in_stream(client, stream)


def test_a_stream_that_is_deleted_meanwhile_ends_the_recording_with_its_own_advice(
    server, client, tmp_path, monkeypatch
):
    server.create_stream("recorded-and-deleted")
    path = tmp_path / "incident.penstock"
    recorder = recorder_of(server, "recorded-and-deleted", path)
    fetch = recorder._kinesis.fetch_records

    def delete_first(*arguments):
        monkeypatch.undo()
        client.delete_stream(StreamName="recorded-and-deleted")
        return fetch(*arguments)

    monkeypatch.setattr(recorder._kinesis, "fetch_records", delete_first)
    with pytest.raises(PenstockError, match=rf"under its name: remove {path}\.part to begin again$"):
        recorder.run()


def test_ctrl_c_keeps_what_was_read_and_the_same_command_goes_on(server, client, stream, tmp_path):
    put(client, stream, 50)
    until = datetime.fromtimestamp(time.time() + 20, UTC).isoformat()
    command = [
        sys.executable, "-m", "penstock", "record", stream, "--since", "1h", "--until", until, "-o", "a.penstock",
    ]  # fmt: skip
    environ = {**os.environ, **server.environ()}
    first = subprocess.Popen(command, env=environ, cwd=tmp_path, stderr=subprocess.PIPE, text=True)
    calls = server.calls
    wait_until(lambda: calls().count("GetRecords", stream=stream) >= 4, "the records to be read")
    first.send_signal(signal.SIGINT)
    _, said = first.communicate(timeout=60)
    assert first.returncode == 130
    assert "50 records are kept. The same command goes on" in said
    put(client, stream, 50, "later")
    second = subprocess.run(command, env=environ, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert second.returncode == 0, second.stderr
    assert "going on with a.penstock.part, which has 50 records" in second.stderr
    assert in_file(tmp_path / "a.penstock") == in_stream(client, stream)
