"""`penstock.frames.sql`: a query as a call of a program or a notebook."""

from __future__ import annotations

import gc
import threading

import pytest

pytest.importorskip("duckdb")
pytest.importorskip("httptools")

from penstock.errors import DamagedRecording, NotFound, OptionError, UsageError
from penstock.frames import sql
from penstock.recording.recorder import Recorder, SliceRequest
from penstock.wiring import AwsOptions, open_kinesis
from penstock_local import LocalKinesis
from spark_support import numbered, put
from waiting import wait_until


@pytest.fixture(scope="module")
def server():
    with LocalKinesis(settle_s=0.0, limits=False) as server:
        server.create_stream("orders", 2)
        put(server.client("kinesis"), "orders", numbered(0, 20))
        yield server


@pytest.fixture(scope="module")
def incident(server, tmp_path_factory):
    path = tmp_path_factory.mktemp("recordings") / "incident.penstock"
    Recorder(
        open_kinesis(AwsOptions(**server.connection())), SliceRequest(stream="orders", from_ms=0), path
    ).run()
    return path


@pytest.fixture
def ask(server):
    return lambda query, **options: sql(query, connection=server.connection(), **options)


def query_threads():
    return [thread for thread in threading.enumerate() if thread.name.startswith("penstock-sql")]


def test_a_stream_is_asked(ask):
    reader = ask("SELECT min(text) AS low, max(text) AS high, count(*) AS n FROM orders")
    assert reader.schema.names == ["low", "high", "n"]
    assert reader.read_all().to_pylist() == [{"low": "00000000", "high": "00000019", "n": 20}]


def test_a_recording_has_a_name_or_is_a_file_and_is_joined_with_a_stream(ask, incident):
    query = "SELECT count(*) AS n FROM orders JOIN yesterday USING (sequenceNumber)"
    assert ask(query, recordings={"yesterday": incident}).read_all().to_pylist() == [{"n": 20}]
    assert sql(f"SELECT count(*) AS n FROM '{incident}'").read_all().to_pylist() == [{"n": 20}]


def test_a_query_that_is_no_text_is_refused(ask):
    with pytest.raises(OptionError, match=r"the query=.*: it is not Unicode text at character 8"):
        ask("select '\udcff' from orders")


def test_moments_are_in_the_named_time_zone(ask):
    reader = ask("SELECT '2026-03-01 12:00'::TIMESTAMPTZ AS noon", time_zone="Asia/Kolkata")
    assert [row["noon"].hour for row in reader.read_all().to_pylist()] == [12]
    assert str(reader.schema.field("noon").type) == "timestamp[us, tz=Asia/Kolkata]"


def test_a_wrong_call_is_refused_before_anything_is_read(ask, tmp_path):
    with pytest.raises(UsageError, match="no_such_column"):
        ask("SELECT no_such_column FROM orders")
    with pytest.raises(OptionError, match="only SELECT is allowed"):
        ask("DROP TABLE orders")
    with pytest.raises(NotFound, match=r"on stream order: .* check the name"):
        ask('SELECT * FROM "order"')
    with pytest.raises(OptionError, match="unknown connection option"):
        sql("SELECT 1", connection={"regoin": "eu-west-1"})
    with pytest.raises(OptionError, match="time_zone=Mars/Base: "):
        sql("SELECT 1", time_zone="Mars/Base")
    with pytest.raises(OptionError, match="memory=much: "):
        sql("SELECT 1", memory="much")
    (tmp_path / "no.penstock").write_bytes(b"no")
    with pytest.raises(DamagedRecording):
        sql(f"SELECT * FROM '{tmp_path / 'no.penstock'}'")


def test_an_error_amid_the_rows_is_raised_by_the_result(ask):
    late = "CASE WHEN i < 200000 THEN 1 ELSE (text || 'x')::INT END"
    reader = ask(f"SELECT {late} AS n FROM orders, range(200001) t(i)")
    with pytest.raises(UsageError, match="Could not convert"):
        reader.read_all()
    wait_until(lambda: not query_threads(), "the query's threads to end")


def test_a_result_that_is_discarded_ends_its_query(ask):
    reader = ask("SELECT a.text FROM orders a, range(100000000)")
    assert reader.read_next_batch().num_rows > 0
    del reader
    gc.collect()
    wait_until(lambda: not query_threads(), "the query's threads to end")


def test_records_without_text_are_logged(server, ask, caplog):
    server.create_stream("bytes", 1)
    server.client("kinesis").put_record(StreamName="bytes", PartitionKey="k", Data=b"\xff")
    assert ask("SELECT text FROM bytes").read_all().to_pylist() == [{"text": None}]
    assert "1 of the records read are not UTF-8: their text and json are null" in caplog.text
