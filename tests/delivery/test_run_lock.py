"""Two runs of one delivery at once on one machine, and a table or a checkpoint location that is not the one of the last run."""

from __future__ import annotations

import errno
import json
import locale
import os
import re
import subprocess
import sys
import traceback
import uuid
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import MagicMock, Mock

import pytest
from msgspec import structs
from py4j.protocol import Py4JError, Py4JJavaError

from penstock.core.delivering.definition import parse_delivery
from penstock.core.delivering.lake_table import Snapshot, transaction_of
from penstock.core.delivering.manifest import Identity, Manifest
from penstock.core.delivering.record import record_of
from penstock.core.starting import parse_starting
from penstock.core.stream_identity import StreamIdentity
from penstock.delivery import running
from penstock.delivery.batch_store import BatchStore
from penstock.delivery.files import HadoopFiles, LocalFiles
from penstock.delivery.folder_checks import (
    check_checkpoint,
    check_first_run,
    check_other_names,
    check_table_folder,
)
from penstock.delivery.opening import (
    error_reason,
    lock_run,
    open_delivery,
    save_record,
    with_absolute_paths,
)
from penstock.delivery.run_lock import QUERY, kind_of_batch, try_lock
from penstock.delivery.running import DeliveryRun, check_deliveries, set_java_options, use_utf8_names
from penstock.delivery.table_writer import TableWriter, saved_schema
from penstock.delivery.targets.delta import DeltaTable
from penstock.delivery.targets.iceberg import IcebergTable
from penstock.delivery.targets.lake import LakeTarget
from penstock.delivery.targets.plain_files import PlainFiles
from penstock.errors import DeliveryFailed, NotFound, OptionError, StreamChanged
from penstock.spark.tasks.query_stream import check_stream


def test_a_second_run_is_refused_and_a_redelivery_or_a_backfill_is_not(tmp_path):
    delivery = parse_delivery({"stream": "orders", "to": f"{tmp_path}/orders"})
    backfill = parse_delivery({"stream": "orders", "to": f"{tmp_path}/orders", "since": "2026-01-01"})
    first = lock_run(delivery, is_redelivery=False)
    with pytest.raises(DeliveryFailed, match=r"a delivery orders into .* runs already on this machine"):
        lock_run(delivery, is_redelivery=False)
    lock_run(delivery, is_redelivery=True).release()
    lock_run(backfill, is_redelivery=False).release()
    first.release()
    lock_run(delivery, is_redelivery=False).release()


def test_a_table_below_a_file_is_refused(tmp_path):
    (tmp_path / "file").touch()
    delivery = parse_delivery({"stream": "orders", "to": f"{tmp_path}/file/below/orders"})
    with pytest.raises(DeliveryFailed, match=f"is below {tmp_path}/file, which is a file; choose another"):
        lock_run(delivery, is_redelivery=False)


def test_a_process_that_is_killed_leaves_no_lock(tmp_path):
    program = (
        "import sys; from penstock.delivery.run_lock import try_lock; lock = try_lock(sys.argv[1], 'query'); "
        "print('held', flush=True); sys.stdin.read()"
    )
    words = [sys.executable, "-c", program, str(tmp_path)]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout.readline() == "held\n"
        assert try_lock(str(tmp_path), QUERY) is None
        process.kill()
    assert try_lock(str(tmp_path), QUERY) is not None


def manifest(label, rows=None):
    nothing = Identity(first=None, last=None, hash_min=None, hash_max=None)
    return Manifest(
        delivery="orders", batch=label, identity=nothing, row_count=0, dead_count=0, moves=(), rows=rows
    )


def test_a_table_whose_folder_was_renamed_is_not_begun_anew(tmp_path):
    delivery = parse_delivery({"stream": "orders", "to": f"{tmp_path}/orders"})
    store = BatchStore(LocalFiles(), delivery.state)
    check_table_folder(delivery, store)
    store.commit(manifest("000000000"))
    with pytest.raises(DeliveryFailed, match="orders has gone"):
        check_table_folder(delivery, store)
    running = TableWriter(delivery, LocalFiles(), None, PlainFiles(delivery), report=lambda _report: None)
    with pytest.raises(DeliveryFailed, match="orders has gone"):
        running.write_batch(None, 1)
    (tmp_path / "orders").mkdir()
    check_table_folder(delivery, store)


def test_an_earlier_copy_of_the_checkpoint_location_is_refused_before_it_plans_a_batch(tmp_path):
    delivery = parse_delivery({"stream": "orders", "to": f"{tmp_path}/orders"})
    store, files, location = (
        BatchStore(LocalFiles(), delivery.state),
        LocalFiles(),
        Path(delivery.checkpoint_location),
    )
    files.replace(f"{location}/metadata", b'{"id": "q"}')
    record = structs.replace(record_of(delivery, "app"), query_id="q")

    def check():
        check_checkpoint(files, delivery, record, store, is_first=False)

    check()
    store.commit(manifest("redelivery.000001"))
    for number in range(300):
        files.replace(f"{location}/offsets/{number}", b"")
        store.commit(manifest(f"{number:09d}"))
        store.remove_old_manifest(number)
    check()
    files.replace(f"{location}/offsets/300", b"")  # planned, and killed before its manifest
    check()
    for number in range(150, 301):  # a copy whose last batch has no manifest any more
        files.remove(f"{location}/offsets/{number}")
    with pytest.raises(
        DeliveryFailed, match=r"ends with batch 149, and .*orders has batch 299 of delivery orders"
    ):
        check()
    files.remove(f"{location}/offsets")
    with pytest.raises(DeliveryFailed, match="has no batch"):
        check()


def test_a_lake_table_that_has_gone_or_was_created_again_is_not_filled(tmp_path):
    given = {"stream": "orders", "to": "lake.sales.orders", "format": "iceberg", "state": str(tmp_path)}
    store, table = BatchStore(LocalFiles(), f"{tmp_path}/orders"), Mock()
    table.configure_mock(name="lake.sales.orders")
    target = LakeTarget(MagicMock(), parse_delivery(given), "the id", table)
    store.commit(manifest("000000000"))
    assert not store.has_rows()  # dead letters only: there may be no table yet
    store.commit(manifest("000000001", rows="staged"))
    assert store.has_rows()
    table.property.return_value = "the id"
    target.check_filled()
    table.property.return_value = None
    way = r"created again.*SET TBLPROPERTIES \('penstock\.delivery\.orders' = 'the id'\)"
    with pytest.raises(DeliveryFailed, match=way):
        target.check_filled()
    table.exists.return_value = False
    with pytest.raises(
        DeliveryFailed, match=r"batch 000000002 of delivery orders: lake\.sales\.orders has gone"
    ):
        target.commit(manifest("000000002", rows="staged"))
    table.create.assert_not_called()


@pytest.fixture
def iceberg():
    return IcebergTable(
        MagicMock(),
        parse_delivery({"stream": "hourly", "to": "lake.sales.hourly", "format": "iceberg", "state": "/s"}),
    )


def test_a_property_that_spark_hides_by_its_name_is_read_from_iceberg(iceberg):
    spark, name = iceberg._spark, "penstock.delivery.hourly"  # it contains `url`
    spark.sql.return_value.collect.return_value = [SimpleNamespace(key=name, value="*********(redacted)")]
    loaded = spark._jvm.org.apache.iceberg.spark.Spark3Util.loadIcebergTable.return_value
    loaded.properties.return_value = {name: "the id"}
    assert iceberg.property(name) == "the id"
    assert iceberg.property("another") is None


def test_a_table_of_delta_whose_log_cannot_be_read_is_not_one_without_batches():
    spark = MagicMock()
    table = DeltaTable(
        spark, parse_delivery({"stream": "orders", "to": "/lake/orders", "format": "delta"}), None
    )
    find = spark._jvm.io.delta.tables.DeltaTable.forName
    for error in (
        Py4JError("Method deltaLog([]) does not exist"),
        TypeError("'JavaPackage' is not callable"),
    ):
        find.side_effect = error
        assert table.batches("d") == ()
        assert table.computed() == []
    find.side_effect = Py4JJavaError("", MagicMock(_target_id="o1"))
    with pytest.raises(Py4JJavaError):
        table.batches("d")


def test_the_transactions_of_a_table_of_delta_are_read_as_one_text():
    spark = MagicMock()
    given = {"stream": "orders", "to": "/lake/orders", "format": "delta"}
    table = DeltaTable(spark, parse_delivery(given), None)
    log = spark._jvm.io.delta.tables.DeltaTable.forName.return_value.deltaLog.return_value
    transactions = log.unsafeVolatileSnapshot.return_value.transactions.return_value
    own = [transaction_of("d", label) for label in ("000000012", "range.1.2")]
    written = [*own, ("another -> writer\nof two lines", 5), (transaction_of("e", "000000003")[0], -1)]
    transactions.mkString.side_effect = lambda end: end.join(f"{name} -> {at}" for name, at in written)
    assert table.batches("d") == ["000000012", "range.1.2"]
    transactions.mkString.side_effect = lambda _: ""
    assert table.batches("d") == []


def test_the_computed_columns_of_a_table_of_delta_are_read_from_its_log():
    spark = MagicMock()
    given = {"stream": "orders", "to": "/lake/orders", "format": "delta"}
    log = spark._jvm.io.delta.tables.DeltaTable.forName.return_value.deltaLog.return_value
    kinds = {
        "id": {},
        "day": {"delta.generationExpression": "CAST(ts AS DATE)"},
        "key": {"delta.identity.start": 1, "delta.identity.step": 1},
        "source": {"CURRENT_DEFAULT": "'web'"},
    }
    fields = [{"name": name, "type": "long", "metadata": more} for name, more in kinds.items()]
    log.unsafeVolatileSnapshot().metadata().schemaString.return_value = json.dumps({"fields": fields})
    assert DeltaTable(spark, parse_delivery(given), None).computed() == ["day", "key"]


def test_a_batch_that_was_rolled_back_by_hand_is_not_there_twice(iceberg, monkeypatch):
    snapshots = [Snapshot(1, None), Snapshot(2, 1, "d", "b"), Snapshot(3, 1, "d", "b")]
    monkeypatch.setattr(iceberg, "_snapshots", lambda: snapshots)
    monkeypatch.setattr(iceberg, "state", lambda: "3")
    iceberg._check_once("d", "b")
    snapshots[2] = Snapshot(3, 2, "d", "b")
    with pytest.raises(DeliveryFailed, match="by snapshots 3 and 2"):
        iceberg._check_once("d", "b")


@pytest.mark.parametrize("schema", ["glue:shop/orders", "glue:orders.json", "glue", "sample", "id INT"])
def test_the_name_of_a_schema_in_a_registry_is_no_file(tmp_path, schema):
    [(checked, _)] = check_deliveries(
        [parse_delivery({"stream": "orders", "to": f"{tmp_path}/orders", "schema": schema})]
    )
    assert checked.schema == schema


def columns(**kinds):
    """Return a schema in Spark's own JSON, which needs no session."""
    fields = [{"name": name, "type": kind, "nullable": True, "metadata": {}} for name, kind in kinds.items()]
    return json.dumps({"type": "struct", "fields": fields})


@pytest.fixture
def streams(kinesis):
    """The names of two streams of this test."""
    names = [f"s-{uuid.uuid4().hex[:10]}" for _ in range(2)]
    for name in names:
        kinesis.create_stream(name)
    yield names
    for name in names:
        kinesis.client("kinesis").delete_stream(StreamName=name)


@pytest.fixture
def opens(streams, tmp_path):
    """Opens deliveries into one table as a program does before it starts Spark; there is no session."""

    def open_one(*, saves=True, is_redelivery=False, is_dry_run=False, **given):
        given = {"stream": streams[0], "to": f"{tmp_path}/orders", "name": "orders", **given}
        ((delivery, options),) = check_deliveries([parse_delivery(given)])
        opened = open_delivery(
            None,
            delivery,
            options,
            lambda _delivery: None,
            is_redelivery=is_redelivery,
            is_dry_run=is_dry_run,
        )
        if saves:
            save_record(opened)
        return opened

    return open_one


def test_a_run_beside_one_in_its_first_batch_keeps_its_schema_and_layout(opens):
    first = opens(start="LATEST", schema=columns(id="long"))
    backfill = {"since": "2026-01-01", "schema": columns(note="string"), "format": "json"}
    lock = lock_run(first.delivery, is_redelivery=False)
    with pytest.raises(OptionError, match="has run with format"):
        opens(**backfill, saves=False)
    assert saved_schema(first.files, first.delivery).names == ["id"]
    lock.release()
    assert opens(**backfill, saves=False).schema.names == ["note"]
    assert saved_schema(first.files, first.delivery) is None


def test_a_dry_run_compares_with_the_schema_of_a_first_batch_only_while_that_runs(opens):
    first = opens(start="LATEST", schema=columns(id="string"))
    dry_run = {"start": "LATEST", "schema": columns(id="long"), "is_dry_run": True, "saves": False}
    lock = lock_run(first.delivery, is_redelivery=False)
    with pytest.raises(OptionError, match="column id is STRING in the table's files"):
        opens(**dry_run)
    lock.release()
    assert opens(**dry_run).schema["id"].dataType.simpleString() == "bigint"
    assert saved_schema(first.files, first.delivery)["id"].dataType.simpleString() == "string"


@pytest.mark.parametrize("start", ["TRIM_HORIZON", "LATEST", None])
def test_a_delivery_that_was_only_renamed_is_refused(kinesis, streams, opens, tmp_path, start):
    opens(start="LATEST")
    renamed = {"name": "renamed", "saves": False, **({} if start is None else {"start": start})}
    arn = kinesis.client("kinesis").describe_stream_summary(StreamName=streams[0])[
        "StreamDescriptionSummary"
    ]["StreamARN"]
    for stream in (streams[0], arn):
        with pytest.raises(DeliveryFailed, match="under the name renamed it would begin anew"):
            opens(**renamed, stream=stream)
    opens(**renamed, stream=streams[1])
    opens(**renamed, to=f"{tmp_path}/new")
    opens(**{**renamed, "start": "2026-01-01"})


def test_a_stream_that_was_created_again_fills_the_table_under_another_name(kinesis, streams, opens):
    opens()
    client, name = kinesis.client("kinesis"), streams[0]
    client.delete_stream(StreamName=name)
    client.get_waiter("stream_not_exists").wait(
        StreamName=name, WaiterConfig={"Delay": 0.05, "MaxAttempts": 600}
    )
    kinesis.create_stream(name)
    opens(name="again", start="TRIM_HORIZON")


def test_a_backfill_of_another_name_ends_where_the_first_delivery_began(streams, opens):
    opens(start="2026-02-01")
    backfill = {"name": "filled", "since": "2026-01-01", "saves": False}
    for until in ({}, {"until": "2026-02-02"}):
        with pytest.raises(DeliveryFailed, match=r"keep name=orders, or end it at 2026-02-01T00:00:00"):
            opens(**backfill, **until)
    with pytest.raises(OptionError, match=r"the stream has records from .* on; it was created then"):
        opens(**backfill, until="2026-02-01")
    opens(**backfill, stream=streams[1])


def test_a_redelivery_of_a_delivery_that_never_ran_writes_nothing(opens, tmp_path):
    with pytest.raises(DeliveryFailed, match="has not run"):
        opens(is_redelivery=True)
    assert list(tmp_path.iterdir()) == []


def test_a_record_is_put_once_into_a_table_whatever_names_its_stream_has(kinesis, streams, tmp_path):
    def run(*given):
        checked = check_deliveries([parse_delivery({"to": f"{tmp_path}/orders", **each}) for each in given])
        DeliveryRun(None, checked, print).close()

    summary = kinesis.client("kinesis").describe_stream_summary(StreamName=streams[0])
    arn = summary["StreamDescriptionSummary"]["StreamARN"]
    named, by_arn = {"stream": streams[0], "name": "a"}, {"stream": arn, "name": "b"}
    for start in ({}, {"start": "2026-02-01"}):
        with pytest.raises(OptionError, match=r"deliveries a and b have the same stream .*each record twice"):
            run(named | start, by_arn | start)
    with pytest.raises(DeliveryFailed, match="end it at 2026-02-01T00:00:00"):
        run(named | {"since": "2026-01-01"}, by_arn | {"start": "2026-02-01"})
    run(named, by_arn | {"stream": streams[1]})


def test_no_folder_is_made_if_the_stream_of_a_later_delivery_is_missing(streams, tmp_path):
    given = [
        {"stream": stream, "to": f"{tmp_path}/{name}"}
        for name, stream in (("a", streams[0]), ("b", "missing"))
    ]
    with pytest.raises(NotFound, match="missing"):
        DeliveryRun(None, check_deliveries([parse_delivery(each) for each in given]), print)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("key", ["dead-letters", "to"])
def test_a_folder_that_cannot_be_written_is_reported_before_the_first_batch(streams, tmp_path, key):
    (tmp_path / "file").touch()
    given = {"stream": streams[0], "to": f"{tmp_path}/orders", "state": f"{tmp_path}/state", "schema": "raw"}
    given[key] = f"{tmp_path}/file/below"
    with pytest.raises(DeliveryFailed, match=f"{tmp_path}/file/below.* cannot be written"):
        DeliveryRun(None, check_deliveries([parse_delivery(given)]), print)


def test_a_mistake_that_is_found_late_names_its_delivery_if_there_are_several(streams, tmp_path):
    late = {"schema": "raw", "since": "2026-01-01", "until": "2999-01-01"}
    given = [
        {"stream": stream, "to": f"{tmp_path}/{name}", **more}
        for name, stream, more in zip("ab", streams, ({"schema": "raw"}, late), strict=True)
    ]
    for deliveries, name in ((given, f"delivery {streams[1]} into {tmp_path}/b: "), (given[1:], "")):
        with pytest.raises(OptionError, match=f"^{name}until=2999-01-01T00:00:00.* is in the future"):
            DeliveryRun(None, check_deliveries([parse_delivery(each) for each in deliveries]), print)


def test_a_reader_of_the_reports_that_has_gone_is_no_error_of_the_delivery(tmp_path, monkeypatch):
    run = DeliveryRun(None, [], print)
    run.opened = [SimpleNamespace(delivery=parse_delivery({"stream": "orders", "to": f"{tmp_path}/orders"}))]
    for error, kind in ((BrokenPipeError(), BrokenPipeError), (OSError("no bucket"), DeliveryFailed)):
        monkeypatch.setattr(running, "redeliver", Mock(side_effect=error))
        monkeypatch.setattr(run, "_writer", Mock())
        with pytest.raises(kind):
            run.redeliver()


class Query:
    """A query whose source is there at the third look, unless its Python is too slow for Spark."""

    name = "orders"

    def __init__(self, error=None):
        self.error, self.looks = error, 0

    @property
    def isActive(self):  # noqa: N802 - Spark's name
        return self.error is None or self.looks < 3

    @property
    def status(self):
        self.looks += 1
        return {"message": "Initializing sources" if self.looks < 3 else "Getting offsets from kinesis"}

    def exception(self):
        return self.error


@pytest.fixture
def start(monkeypatch):
    run = DeliveryRun(None, [], print)
    monkeypatch.setattr(running, "_POLL_S", 0)

    def start(*queries):
        left = list(queries)
        monkeypatch.setattr(run, "_try_start", lambda *_: left.pop(0))
        return run._start_query(None, {}), left

    return start


def test_a_query_is_started_when_the_source_of_the_one_before_is_there(start):
    query, _ = start(Query())
    assert query.looks == 3


def test_a_query_whose_python_is_too_slow_for_spark_is_started_again(start):
    slow = [Query(RuntimeError(f"[STREAM_FAILED] {running.TOO_BUSY}.")) for _ in range(running._STARTS_MAX)]
    good, failed = Query(), Query(RuntimeError("no such stream"))
    assert start(slow[0], good) == (good, [])
    assert start(slow[1], failed, good) == (failed, [good])
    assert start(*slow, good) == (slow[-1], [good])


@pytest.mark.parametrize("once", [True, False])
@pytest.mark.parametrize("why", ["stopped", "failed"])
def test_no_query_is_started_after_a_stop_or_a_failure(monkeypatch, once, why):
    run = DeliveryRun(None, [], print)
    run.opened = [
        SimpleNamespace(backfill_range=None, delivery=SimpleNamespace(freshness_s=60)) for _ in range(3)
    ]
    errors = [None, OSError("no") if why == "failed" else None]
    queries = [
        SimpleNamespace(
            name="orders",
            isActive=number == 0,
            status={"isTriggerActive": False},
            recentProgress=[],
            exception=partial(errors.__getitem__, number),
            stop=Mock(),
        )
        for number in range(2)
    ]
    started = []

    def start(opened, _trigger):
        started.append(opened)
        if len(started) == 2 and why == "stopped":
            run.stop()
        return queries[len(started) - 1]

    monkeypatch.setattr(run, "_start_query", start)
    with pytest.raises(DeliveryFailed, match="orders: no") if why == "failed" else nullcontext():
        run.run(once=once)
    assert started == run.opened[:2]
    queries[0].stop.assert_called_once()
    assert run.is_cut is once


@pytest.mark.parametrize(("error", "is_stopped"), [(OSError("no"), True), (KeyboardInterrupt("no"), False)])
def test_a_query_that_is_already_started_is_stopped_if_the_next_one_cannot_be(monkeypatch, error, is_stopped):
    run = DeliveryRun(None, [], print)
    run.opened = [SimpleNamespace(backfill_range=None, delivery=SimpleNamespace(freshness_s=60))] * 2
    query = SimpleNamespace(
        isActive=True, status={"isTriggerActive": False}, stop=Mock(), exception=lambda: None
    )
    monkeypatch.setattr(run, "_start_query", Mock(side_effect=[query, error]))
    with pytest.raises(type(error), match="no"):
        run.run(once=False)
    assert query.stop.called is is_stopped


def test_an_application_with_a_lease_table_for_each_stream_is_none_too_many(tmp_path):
    def deliver(*tables):
        given = [
            {
                "stream": f"s{at}",
                "to": f"{tmp_path}/{at}",
                "application": "app",
                "options": {"leaseTableName": each},
            }
            for at, each in enumerate(tables)
        ]
        return check_deliveries([parse_delivery(each) for each in given])

    assert len(deliver("one", "two")) == 2
    with pytest.raises(OptionError, match="they would divide the shards"):
        deliver("one", "one")


def test_a_short_name_of_a_delivery_is_no_name_of_a_lease_table(tmp_path):
    for given in ({"stream": "orders", "name": "eu"}, {"stream": "s1"}):
        ((delivery, options),) = check_deliveries([parse_delivery({"to": f"{tmp_path}/orders", **given})])
        assert options.lease_table.startswith(f"penstock-deliver-{delivery.name}-")
    with pytest.raises(OptionError, match="lease table 'eu'"):
        check_deliveries([parse_delivery({"stream": "s1", "to": f"{tmp_path}/orders", "application": "eu"})])


def test_a_mount_point_may_be_the_table_and_the_state(monkeypatch, tmp_path):
    lost, scan, read = tmp_path / "lost+found", os.scandir, Path.read_bytes

    def refuse(path):
        if lost in (Path(path), Path(path).parent):
            raise PermissionError(errno.EACCES, "Permission denied", str(path))

    monkeypatch.setattr(os, "scandir", lambda path: refuse(path) or scan(path))
    monkeypatch.setattr(Path, "read_bytes", lambda path: refuse(path) or read(path))
    lost.mkdir()
    files = LocalFiles()
    given = {"stream": "orders", "to": str(tmp_path), "state": str(tmp_path), "name": "renamed"}
    delivery = parse_delivery(given)
    check_first_run(None, files, delivery, BatchStore(files, f"{tmp_path}/renamed"), QUERY)
    check_other_names(files, delivery, record_of(delivery, "app"), parse_starting("LATEST"))
    with pytest.raises(PermissionError):
        list(files.walk(str(tmp_path)))


def test_a_folder_with_files_and_no_delta_table_is_refused_on_the_first_run_only(tmp_path):
    files, table = LocalFiles(), tmp_path / "orders"
    given = {"stream": "orders", "to": str(table), "format": "delta", "state": f"{tmp_path}/state"}
    delivery = parse_delivery(given)
    opened = DeltaTable(None, delivery, files)
    log = table / "_delta_log"
    log.mkdir(parents=True)
    (log / ".00000000000000000000.json.a.tmp").touch()
    check_first_run(None, files, delivery, BatchStore(files, delivery.state), QUERY)
    (table / "part.parquet").touch()
    with pytest.raises(OptionError, match=r"is not a Delta table and has files, such as .*part\.parquet"):
        check_first_run(None, files, delivery, BatchStore(files, delivery.state), QUERY)
    assert not opened.exists()
    (log / "00000000000000000000.json").touch()
    check_first_run(None, files, delivery, BatchStore(files, delivery.state), QUERY)
    assert opened.exists()


def test_files_are_moved_only_within_one_file_system(tmp_path):
    def places(**given):
        return with_absolute_paths(parse_delivery({"stream": "orders", "to": "s3://lake/orders", **given}))

    assert places(state="s3://lake/state").state == "s3://lake/state/orders"
    for given in ({"state": "/state"}, {"state": "s3://other/state"}, {"dead-letters": str(tmp_path)}):
        with pytest.raises(OptionError, match="different file systems or buckets"):
            places(**given)
    iceberg = {"to": "lake.sales.orders", "format": "iceberg", "state": "/state"}
    assert places(**iceberg, checkpoint="s3://lake/checkpoint").state == "/state/orders"
    for state in ("hdfs://host/state", "hdfs://host:8020/state"):
        places(to="hdfs:///lake/orders", state=state)
        places(to="hdfs://host/lake/orders", state=state)
        places(to="hdfs://host:8020/lake/orders", state=state)
    with pytest.raises(OptionError, match="different file systems"):
        places(to="hdfs://host:8020/lake/orders", state="hdfs://host:9000/state")


def test_an_address_that_would_be_another_folder_is_refused_with_the_one_that_is_meant(monkeypatch):
    monkeypatch.setenv("LAKE", "/lake")
    monkeypatch.delenv("BUCKET", raising=False)
    for to, meant in (
        ("file://orders", "file:///lake/orders"),
        ("${LAKE}/orders", "write /lake/orders"),
        ("$LAKE/orders", "write /lake/orders"),
        ("s3a://${BUCKET}/orders", "write the address itself"),
        ("${LAKE}/${BUCKET}", "write the address itself"),
    ):
        with pytest.raises(OptionError, match=meant):
            with_absolute_paths(parse_delivery({"stream": "orders", "to": to}))


@pytest.mark.parametrize(
    ("text", "has_way"),
    [
        ('UnsupportedFileSystemException: No FileSystem for scheme "s3a"', True),
        ("java.lang.ClassNotFoundException: Class org.apache.hadoop.fs.s3a.S3AFileSystem not found", True),
        ("java.nio.file.AccessDeniedException: s3a://lake: no credentials", False),
    ],
)
def test_only_a_spark_without_s3_is_answered_with_the_way_to_it(monkeypatch, text, has_way):
    def fail(_system, _place):
        raise OSError(text)

    monkeypatch.setattr(HadoopFiles, "_path", fail)
    spark = MagicMock()
    with pytest.raises(DeliveryFailed, match="cannot be opened") as error:
        HadoopFiles(spark, "s3a://lake/orders")
    assert ("spark.jars.packages" in str(error.value)) == has_way


def test_folders_of_hadoop_are_listed_and_a_missing_permission_is_one():
    spark = MagicMock()
    system = spark._jvm.org.apache.hadoop.fs.Path.return_value.getFileSystem.return_value
    found = [MagicMock(), MagicMock()]
    for each, name, is_folder in zip(found, ("orders", "note"), (True, False), strict=True):
        each.getPath.return_value.getName.return_value = name
        each.isDirectory.return_value = is_folder
    system.listStatus.return_value = found
    files = HadoopFiles(spark, "hdfs:///lake")
    assert files.folders("hdfs:///lake") == ["orders"]
    denied = MagicMock(_target_id="o1")
    denied.__str__.return_value = "org.apache.hadoop.security.AccessControlException: Permission denied"
    system.exists.side_effect = Py4JJavaError("", denied)
    with pytest.raises(PermissionError, match="Permission denied"):
        files.read("hdfs:///lake/lost+found/delivery.json")


@pytest.mark.parametrize(
    ("text", "has_way"),
    [
        ("org.apache.hadoop.fs.s3a.auth.NoAuthWithAWSException: No AWS Credentials provided", True),
        ("S3Exception: Forbidden (Service: S3, Status Code: 403, Request ID: null):null", True),
        # a session token that has expired
        (
            "AWSBadRequestException: S3Exception: Bad Request (Service: S3, Status Code: 400, Request ID: null)",
            True,
        ),
        ("S3Exception: The bucket does not exist (Service: S3, Status Code: 404, Request ID: null)", False),
        ("org.apache.hadoop.security.AccessControlException: Permission denied", False),
    ],
)
def test_credentials_that_s3_refuses_are_answered_with_the_way_to_new_ones(text, has_way):
    spark, refusal = MagicMock(), MagicMock(_target_id="o1")
    refusal.__str__.return_value = text
    system = spark._jvm.org.apache.hadoop.fs.Path.return_value.getFileSystem.return_value
    system.exists.side_effect = Py4JJavaError("", refusal)
    with pytest.raises(OSError, match=re.escape(text)) as error:
        HadoopFiles(spark, "s3a://lake/orders").read("s3a://lake/orders.penstock/orders/delivery.json")
    assert ("renew AWS_ACCESS_KEY_ID" in str(error.value)) == has_way


@pytest.mark.parametrize(("encoding", "chosen"), [("UTF-8", None), ("ANSI_X3.4-1968", "C.UTF-8")])
def test_java_writes_all_names_of_partitions_whatever_the_locale(monkeypatch, encoding, chosen):
    monkeypatch.delenv("LC_ALL", raising=False)
    monkeypatch.setattr(locale, "getencoding", lambda: encoding)
    with monkeypatch.context() as environment:
        environment.setenv("LC_ALL", "")
        use_utf8_names()
        assert (os.environ["LC_ALL"] or None) == chosen


def test_the_users_options_of_java_come_after_those_of_a_delivery(monkeypatch):
    monkeypatch.setenv("SPARK_SUBMIT_OPTS", "-XX:Tier4CompileThreshold=15000")
    set_java_options()
    found = os.environ["SPARK_SUBMIT_OPTS"].split()
    assert [each.partition("=")[2] for each in found if "Tier4Compile" in each] == ["150000", "15000"]


def test_folders_elsewhere_are_not_locked():
    assert try_lock("s3://lake/orders.penstock/orders", QUERY) is not None


def test_each_batch_is_of_a_kind_of_run():
    assert [kind_of_batch(each) for each in ("000000012", "range.1.2", "redelivery.000001")] == [
        "query",
        "range",
        "redelivery",
    ]


def test_the_reason_of_a_python_that_did_not_start_has_the_way_out():
    assert error_reason(f"[STREAM_FAILED] {running.TOO_BUSY}.").endswith(
        "connect back. The machine was too busy to start Python in time: run the command again when it is less busy, or on more cores"
    )


def test_the_reason_of_a_failed_python_is_its_error_not_the_word_traceback():
    trace = """Traceback (most recent call last):
  File "worker.py", line 2, in load
    import pandas
ModuleNotFoundError: No module named 'pandas'

During handling of the above exception, another exception occurred:

Traceback (most recent call last):
  File "worker.py", line 4, in load
    raise ImportError("no pandas")
           ^^^^^^^^^^^^^^^^^^^^^^
ImportError: no pandas
"""
    of_source = (
        f"[STREAM_FAILED] Failed when Python performs latestOffset: {trace} SQLSTATE: 38000\n=== Query ===\n"
    )
    assert (
        error_reason(of_source)
        == "[STREAM_FAILED] Failed when Python performs latestOffset: ImportError: no pandas"
    )
    of_task = f"Job aborted: Task 0 failed\nCaused by: org.PythonException: {trace}\n\tat org.apache.spark\n"
    assert (
        error_reason(of_task)
        == "Job aborted: Task 0 failed; caused by org.PythonException: ImportError: no pandas"
    )
    assert error_reason("[STREAM_FAILED] no disk\n") == "[STREAM_FAILED] no disk"
    cut = "[STREAM_FAILED] Query terminated: Traceback (most recent call last):\n  File ..."
    assert error_reason(cut) == "[STREAM_FAILED] Query terminated"


def test_a_stream_that_was_created_again_is_delivered_under_another_name():
    with pytest.raises(StreamChanged) as changed:
        check_stream("orders", "app", StreamIdentity("arn:orders", 2), StreamIdentity("arn:orders", 1))
    text = error_reason(f"[STREAM_FAILED] Query terminated\npenstock.errors.StreamChanged: {changed.value}\n")
    assert "it was deleted and created again" in text
    assert text.endswith("under another name, with start TRIM_HORIZON: it may fill the same table")


@pytest.mark.parametrize(
    ("passes_start", "batches", "query_count"),
    [
        (False, [False], 1),  # nothing to read
        (False, [True, True, False], 3),
        (True, [True], 1),
    ],
)
def test_once_ends_with_a_query_without_a_batch_if_a_query_ends_after_one(
    monkeypatch, passes_start, batches, query_count
):
    run = DeliveryRun(None, [], print)
    delivery = SimpleNamespace(freshness_s=60, state="orders")
    run.opened = [SimpleNamespace(backfill_range=None, delivery=delivery)]
    queries = []

    def start(_opened, _trigger):
        if batches[len(queries)]:
            run._states_with_batch.add("orders")
        queries.append(SimpleNamespace(name="orders", isActive=False, exception=lambda: None))
        return queries[-1]

    monkeypatch.setattr(running, "PASSES_START", passes_start)
    monkeypatch.setattr(run, "_start_query", start)
    run.run(once=True)
    assert len(queries) == query_count


def test_a_query_that_is_started_again_goes_on_with_the_columns_of_the_one_before(monkeypatch):
    monkeypatch.setattr(running, "TableWriter", lambda *_, **__: object())
    run = DeliveryRun(None, [], print)
    first, other = (
        MagicMock(delivery=parse_delivery({"stream": each, "to": f"/lake/{each}"})) for each in ("s1", "s2")
    )
    assert run._writer(first) is run._writer(first) is not run._writer(other)


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (OSError("No space left on device"), "No space left on device"),
        (
            OSError("interrupted"),
            "py4j.protocol.Py4JJavaError: An error .* calling Java: java.io.InterruptedIOException$",
        ),
    ],
)
def test_spark_gets_a_short_text_of_a_batchs_error_and_the_program_the_error(monkeypatch, error, text):
    of_java = Py4JJavaError("An error occurred while calling o1.save.\n", Mock(_target_id="o2"))
    name = "java.io.InterruptedIOException" if "calling" in text else "java.io.IOException"
    monkeypatch.setattr(
        Py4JJavaError, "__str__", lambda self: f"{self.errmsg}: {name}" + "\n\tat a.b.C" * 2000
    )
    error.__cause__ = of_java
    run, reader = DeliveryRun(MagicMock(), [], print), MagicMock()
    run._spark.readStream.format.return_value = reader.option.return_value = reader
    run.opened = [MagicMock(delivery=parse_delivery({"stream": "orders", "to": "/lake/orders"}))]
    monkeypatch.setattr(running, "save_query_id", Mock())
    monkeypatch.setattr(run, "_writer", lambda _: Mock(write_batch=Mock(side_effect=error)))
    run._try_start(run.opened[0], {})
    write = reader.load().writeStream.foreachBatch.call_args.args[0]
    with pytest.raises(RuntimeError, match=text) as seen:
        write(None, 0)
    assert len("".join(traceback.format_exception(seen.value))) < 2000
    assert run._error is error
