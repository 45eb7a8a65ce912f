"""A task of the sink over ports of its own: what it does with rows that name no stream."""

import json

import pytest

from penstock.errors import RecordError
from penstock.spark.sink_ports import SinkPorts
from penstock.spark.sink_task import SinkTask
from penstock.spark.spark_options import parse_sink

COLUMNS = ("data", "partitionKey", "", "streamName")
ROW = {"data": b"x", "partitionKey": "k", "streamName": None}


class Files:
    """A folder in memory."""

    def __init__(self):
        self.found = {}

    def replace(self, name, content):
        content.seek(0)
        self.found[name] = content.read()


def task(files, **more):
    options, _ = parse_sink({"region": "us-east-1", **more})
    ports = SinkPorts(lambda _options: None, lambda _location: files, lambda: "letters.jsonl")
    return SinkTask(options, COLUMNS, ports)


def test_a_row_that_names_no_stream_is_put_aside_with_the_others():
    files = Files()
    report = task(files, onError="deadLetter", deadLetterPath="folder").write_rows(iter([ROW]))
    assert (report.reports, report.dead_letter_count) == ({}, 1)
    letter = json.loads(files.found["letters.jsonl"])
    assert (letter["stream"], letter["row"]) == (None, 0)
    assert "the column streamName is null" in letter["reason"]


def test_a_row_that_names_no_stream_fails_its_task_with_the_ways_out():
    with pytest.raises(
        RecordError, match=r"row 0 of the task: the column streamName is null .* onError=deadLetter"
    ):
        task(Files()).write_rows(iter([ROW]))
