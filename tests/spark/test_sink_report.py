"""The sink's report, and where rows go that can never be written."""

from __future__ import annotations

from functools import partial
from types import SimpleNamespace

import pyarrow as pa
import pytest
from pyspark import TaskContext

from penstock.errors import DeliveryFailed, NotFound, OptionError, PenstockError, UsageError
from penstock.producer.placement import PlacementCache
from penstock.producer.task_writer import TaskMemory
from penstock.producer.write_report import ShardCounts, WriteReport
from penstock.spark import SinkReport, sink_report
from penstock.spark.options.spark_options import parse_sink
from penstock.spark.sink.dead_letters import DeadLetters
from penstock.spark.sink.ports import SinkPorts
from penstock.spark.sink.report import FILE_NAME, add_write_reports, record_commit
from penstock.spark.sink.row_writer import write_rows


def report_of(count, shard="shardId-0", **more):
    report = WriteReport(**more)
    for _ in range(count):
        report.on_acknowledged(shard, 2, 10)
    return report


def test_reports_add_up():
    one = report_of(1, refused_count=2, refused_by_reason={"throttled": 2}, pause_s=0.5)
    other = report_of(2, "shardId-1", refused_count=1, refused_by_reason={"throttled": 1}, request_count=4)
    total = add_write_reports([one, other])
    assert (total.user_record_count, total.kinesis_record_count, total.bytes_count) == (6, 3, 30)
    assert (total.refused_count, total.pause_s, total.request_count) == (3, 0.5, 4)
    assert total.refused_by_reason == {"throttled": 3}
    assert total.by_shard == {"shardId-0": ShardCounts(2, 1, 10), "shardId-1": ShardCounts(4, 2, 20)}


def test_a_notebook_shows_a_report_as_a_table():
    shown = SinkReport(7, {"<a>": report_of(1)}, {"<a>": report_of(3)}, 2, 5)._repr_html_()
    rows = [row.split("</td>")[:3] for row in shown.replace("<td>", "").split("<tr>")[2:]]
    assert rows == [
        ["batch 7", "&lt;a&gt;", "2"],
        ["all", "&lt;a&gt;", "6"],
        ["batch 7", "(dead letters)", "2"],
        ["all", "(dead letters)", "5"],
    ]


class Missing:
    """A service without streams."""

    def fetch_shards(self, stream, shard_filter=None):
        raise NotFound(f"ListShards on stream {stream}: it does not exist", operation="ListShards")

    fetch_summary = put_records = fetch_shards


def test_a_stream_for_dead_letters_that_does_not_exist_is_named_by_its_option():
    options, _ = parse_sink({"streamName": "orders", "onError": "deadLetter", "deadLetterStream": "letters"})
    ports = SinkPorts(lambda _: Missing(), lambda _: None, lambda: "name", placements=PlacementCache())
    letters = DeadLetters(options, ports, TaskMemory(2**20))
    letters.add("orders", 0, (b"data", "key", None), "too large")
    with pytest.raises(DeliveryFailed, match=r"option deadLetterStream=letters: .*does not exist"):
        letters.finish()


def test_a_commit_is_noted_once_and_totals_go_on_after_a_restart(tmp_path):
    where = str(tmp_path)
    assert sink_report(None, where) is None
    first, second = {"a": report_of(1)}, {"a": report_of(2), "b": report_of(1)}
    for batch in (SinkReport(0, first, first), *[SinkReport(1, second, second, 3, 3, 2, 2)] * 2):
        record_commit(where, batch)
    found = sink_report(None, where)
    assert found == SinkReport(
        batch=1,
        last={"a": report_of(2), "b": report_of(1)},
        total={"a": report_of(3), "b": report_of(1)},
        dead_letters=3,
        dead_letters_total=3,
        overruled=2,
        overruled_total=2,
    )


def test_a_report_that_cannot_be_written_costs_a_warning_and_no_batch(tmp_path, caplog):
    (tmp_path / FILE_NAME).write_text("not json")
    assert record_commit(str(tmp_path), SinkReport(5)) is None
    assert "batch 5: the sink's counts could not be written to" in caplog.text
    with pytest.raises(UsageError, match="cannot be read from here"):
        sink_report(None, str(tmp_path))


def test_a_query_that_does_not_tell_its_location_needs_it_given():
    with pytest.raises(UsageError, match="checkpoint_location="):
        sink_report(SimpleNamespace(id="x"))


def test_a_query_whose_sink_does_not_know_its_location_has_no_report(tmp_path):
    def query(*row_counts):
        return SimpleNamespace(recentProgress=[{"sink": {"numOutputRows": count}} for count in row_counts])

    for nothing_written in ((), (0,), (-1, -1)):  # -1: foreachBatch
        assert sink_report(query(*nothing_written), str(tmp_path)) is None
    with pytest.raises(UsageError, match="with option checkpointLocation"):
        sink_report(query(7, 0), str(tmp_path))


def test_a_first_commit_while_the_report_is_read_is_no_error(tmp_path):
    class Query:
        @property
        def recentProgress(self):  # noqa: N802 - Spark's name
            record_commit(str(tmp_path), SinkReport(0))
            return [{"sink": {"numOutputRows": 7}}]

    assert sink_report(Query(), str(tmp_path)) == SinkReport(0)


# --- dead letters ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"onError": "deadLetter"}, "set either deadLetterPath or deadLetterStream"),
        ({"onError": "deadLetter", "deadLetterPath": "/x", "deadLetterStream": "y"}, "set either"),
        ({"onError": "deadLetter", "deadLetterStream": "orders"}, "is the stream that is written to"),
        ({"deadLetterPath": "/x"}, "option deadLetterPath has no effect with onError=fail"),
        ({"onError": "skip"}, "onError"),
    ],
)
def test_dead_letters_without_a_place_are_refused(options, message):
    with pytest.raises(OptionError, match=message):
        parse_sink({"streamName": "orders", **options})


@pytest.fixture
def task():
    """Make this process look like a Spark task of one micro-batch."""
    context = TaskContext._getOrCreate()
    context._partitionId = 3
    context._localProperties = {"sql.streaming.queryId": "q", "streaming.sql.batchId": "7"}
    yield context
    TaskContext._setTaskContext(None)


def bad_rows(kinesis, target, folder):
    """Return the writers of two writes, and a task's rows of which none can ever be written."""
    options, _ = parse_sink(
        {
            "streamName": target,
            "endpointUrl": kinesis.endpoint_url,
            "region": "us-east-1",
            "awsAccessKeyId": "local",
            "awsSecretKey": "local",
            "onError": "deadLetter",
            "deadLetterPath": str(folder),
        }
    )
    rows = pa.RecordBatch.from_pydict({"data": [b"x"] * 3, "partitionKey": pa.nulls(3, pa.string())})
    columns = ("data", "partitionKey", "", "")
    return [
        partial(write_rows, options=options, columns=columns, write_id=name) for name in ("one", "two")
    ], rows


def test_a_task_that_is_tried_again_replaces_its_own_letters_and_no_others(kinesis, stream, task, tmp_path):
    writers, rows = bad_rows(kinesis, stream, tmp_path)
    for writer in (writers[0], writers[1], writers[0]):
        assert writer(iter([rows])).dead_letter_count == 3
    names = [f"dead-letters-q-batch-7-write-{name}-part-00003.jsonl" for name in ("one", "two")]
    assert sorted(path.name for path in tmp_path.iterdir()) == names
    assert [len((tmp_path / name).read_text().splitlines()) for name in names] == [3, 3]


def test_dead_letters_that_find_no_place_fail_the_task_and_name_the_option(kinesis, stream, task, tmp_path):
    (tmp_path / "taken").write_text("a file")
    writers, rows = bad_rows(kinesis, stream, tmp_path / "taken")
    with pytest.raises(
        PenstockError, match=r"option deadLetterPath=.*taken: 3 dead letters cannot be written"
    ):
        writers[0](iter([rows]))
