from __future__ import annotations

import subprocess
import sys
from contextlib import suppress
from datetime import UTC, datetime

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from penstock.core.aggregation import AggregateBuilder
from penstock.core.recording.metadata import RecordedShard, RecordedSlice, RecordedStream, RecordingMetadata
from penstock.errors import DamagedRecording, OptionError
from penstock.frames import SCHEMA
from penstock.recording import open_recording
from penstock.recording.writer import RecordingWriter

NOON_MS = 1_790_000_000_000


def table_of(shard, rows):
    """Rows are (number, arrival in ms, key, data)."""
    return pa.Table.from_pylist(
        [
            {
                "streamName": "orders",
                "shardId": shard,
                "sequenceNumber": str(number),
                "subSequenceNumber": 0,
                "partitionKey": key,
                "explicitHashKey": None,
                "approximateArrivalTimestamp": datetime.fromtimestamp(ms / 1000, UTC),
                "data": data,
            }
            for number, ms, key, data in rows
        ],
        schema=SCHEMA,
    )


def write(path, tables):
    shards = sorted({table.column("shardId")[0].as_py() for table in tables})
    with RecordingWriter(path) as writer:
        for table in tables:
            writer.add(table)
        return writer.finish(
            lambda batches: RecordingMetadata(
                stream=RecordedStream(
                    "orders", "arn:aws:kinesis:eu-west-1:1:stream/orders", "PROVISIONED", 24, 1
                ),
                recorded=RecordedSlice(NOON_MS, NOON_MS + 60_000),
                shards=tuple(RecordedShard(shard, ("0", str(2**128 - 1)), "49") for shard in shards),
                batches=batches,
                began_ms=NOON_MS + 60_000,
                ended_ms=NOON_MS + 61_000,
                written_by="penstock test",
            )
        )


@pytest.fixture
def path(tmp_path):
    path = tmp_path / "incident.penstock"
    one = [(4900 + i, NOON_MS + i * 1000, f"k{i}", bytes([i]) * 100) for i in range(10)]
    two = [(4910 + i, NOON_MS + 10_000 + i * 1000, f"k{i}", bytes([i]) * 100) for i in range(10)]
    other = [(5000 + i, NOON_MS + i * 1000, None, b"") for i in range(5)]
    write(path, [table_of("shardId-000000000000", one), table_of("shardId-000000000001", other),
                 table_of("shardId-000000000000", two)])  # fmt: skip
    return path


def rows_of(recording, **options):
    return pa.Table.from_batches(recording.batches(**options), schema=None).to_pylist()


def test_a_recording_gives_back_its_records_and_metadata(path):
    with open_recording(path) as recording:
        assert recording.metadata.record_count == 25
        assert recording.metadata.record_bytes == 20 * 102
        assert [batch.shard[-1] for batch in recording.metadata.batches] == ["0", "1", "0"]
        rows = rows_of(recording, shards=["shardId-000000000000"])
        assert [row["sequenceNumber"] for row in rows] == [str(4900 + i) for i in range(20)]
        assert rows[3]["data"] == b"\x03" * 100
        recording.verify()


def test_any_parquet_reader_reads_the_same(path):
    table = pq.read_table(path)
    assert table.num_rows == 25
    assert table.schema.remove_metadata() == SCHEMA


@pytest.mark.parametrize(
    ("first_s", "end_s", "numbers"),
    [(0, 1, [4900, 5000]), (9, 11, [4909, 4910]), (19, 99, [4919]), (20, 99, []), (None, 1, [4900, 5000])],
)
def test_only_the_records_of_a_time_range_are_read(path, first_s, end_s, numbers):
    with open_recording(path) as recording:
        batches = recording.batches(
            ["sequenceNumber"],
            None if first_s is None else NOON_MS + first_s * 1000,
            datetime.fromtimestamp(NOON_MS / 1000 + end_s, UTC),
        )
        found = [int(number) for batch in batches for number in batch.column(0).to_pylist()]
    assert sorted(found) == numbers


def test_an_unknown_column_and_a_moment_without_a_zone_are_refused(path):
    with open_recording(path) as recording:
        with pytest.raises(OptionError, match="column 'key': a recording has streamName, shardId"):
            recording.batches(["key"])
        with pytest.raises(OptionError, match="expected a time zone"):
            recording.batches(arrived_from=datetime(2026, 1, 1))  # noqa: DTZ001
        with pytest.raises(OptionError, match=r"shard shardId-9: recording .* has no such shard"):
            recording.batches(shards=["shardId-9"])


def test_aggregates_are_taken_apart_unless_they_are_wanted_whole(tmp_path):
    builder = AggregateBuilder()
    builder.add(b"one", "a")
    builder.add(b"two", "b", "7")
    blob = builder.build().data
    path = tmp_path / "aggregated.penstock"
    write(path, [table_of("shardId-000000000000", [(1, NOON_MS, "x", b"plain"), (2, NOON_MS, "a", blob)])])
    with open_recording(path) as recording:
        rows = rows_of(recording)
        assert [(row["subSequenceNumber"], row["partitionKey"], row["explicitHashKey"], row["data"]) for row in rows] == [
            (0, "x", None, b"plain"),
            (0, "a", None, b"one"),
            (1, "b", "7", b"two"),
        ]  # fmt: skip
        assert [row["data"] for row in rows_of(recording, deaggregate=False)] == [b"plain", blob]
        assert [row["sequenceNumber"] for row in rows_of(recording, columns=["sequenceNumber"])] == [
            "1",
            "2",
            "2",
        ]


def test_a_changed_byte_is_refused_with_its_place(path):
    with open_recording(path) as recording:
        place = recording.metadata.batches[1]
    content = bytearray(path.read_bytes())
    content[place.offset + place.length // 2] ^= 1
    path.write_bytes(content)
    with open_recording(path) as recording:
        batches = recording.batches(["sequenceNumber"])
        assert len(next(batches)) == 10  # the batch before it is whole
        with pytest.raises(
            DamagedRecording,
            match=rf"batch 1 of 3 \(bytes {place.offset} to {place.offset + place.length}, 5 records of "
            r"shardId-000000000001 from 5000 on\) is damaged",
        ):
            list(batches)


def test_a_file_that_is_cut_off_is_refused_wherever_that_is(path, tmp_path):
    content = path.read_bytes()
    for size in [0, 3, 4, 11, len(content) // 2, len(content) - 1]:
        cut = tmp_path / "cut.penstock"
        cut.write_bytes(content[:size])
        with pytest.raises(DamagedRecording, match=r"cut\.penstock: (cut off at byte \d+|no recording)"):
            open_recording(cut)


def test_each_changed_byte_of_the_footer_is_refused_or_harmless(path, tmp_path):
    content = path.read_bytes()
    with open_recording(path) as recording:
        rows, start = (
            rows_of(recording),
            recording.metadata.batches[-1].offset + recording.metadata.batches[-1].length,
        )
    changed = tmp_path / "changed.penstock"
    for place in range(start, len(content), 29):
        changed.write_bytes(content[:place] + bytes([content[place] ^ 0x55]) + content[place + 1 :])
        with suppress(DamagedRecording), open_recording(changed) as recording:
            assert rows_of(recording) == rows


def test_another_parquet_file_is_no_recording(tmp_path):
    path = tmp_path / "table.parquet"
    pq.write_table(pa.table({"a": [1]}), path)
    with pytest.raises(DamagedRecording, match=r"a Parquet file, but no recording"):
        open_recording(path)


def test_a_recording_of_a_later_version_is_refused(path, monkeypatch):
    monkeypatch.setattr("penstock.core.recording.metadata.VERSION", 0)
    with pytest.raises(
        DamagedRecording, match="version 1 of the format; this Penstock reads up to version 0"
    ):
        open_recording(path)


def test_a_recording_is_read_without_pandas_which_takes_long_to_load(path):
    program = (
        "import sys\n"
        "from penstock.recording import open_recording\n"
        f"print(sum(batch.num_rows for batch in open_recording({str(path)!r}).batches()), 'pandas' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["25", "False"]
