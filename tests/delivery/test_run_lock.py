"""Two runs of one delivery at once on one machine, and a table that has gone."""

from __future__ import annotations

import errno
import locale
import os
import subprocess
import sys
from pathlib import Path

import pytest

from penstock.core.delivering.definition import parse_delivery
from penstock.core.delivering.manifest import Identity, Manifest
from penstock.core.delivering.record import record_of
from penstock.core.stream_identity import StreamIdentity
from penstock.delivery.batch_store import BatchStore
from penstock.delivery.files import LocalFiles
from penstock.delivery.folder_checks import check_first_run, check_other_names, check_table_folder
from penstock.delivery.opening import (
    first_line,
    lock_run,
    others_run,
    with_absolute_paths,
)
from penstock.delivery.run_lock import QUERY, RANGE, kind_of, try_lock
from penstock.delivery.running import check_deliveries, use_utf8_names
from penstock.errors import DeliveryFailed, OptionError, StreamChanged
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


def test_a_table_whose_folder_was_renamed_is_not_begun_anew(tmp_path):
    delivery = parse_delivery({"stream": "orders", "to": f"{tmp_path}/orders"})
    store = BatchStore(LocalFiles(), delivery.state)
    check_table_folder(delivery, store)
    nothing = Identity(first=None, last=None, hash_min=None, hash_max=None)
    store.commit(
        Manifest(delivery="orders", batch="000000000", identity=nothing, row_count=0, dead_count=0, moves=())
    )
    with pytest.raises(DeliveryFailed, match="orders has gone"):
        check_table_folder(delivery, store)
    (tmp_path / "orders").mkdir()
    check_table_folder(delivery, store)


def test_a_run_beside_one_in_its_first_batch_keeps_its_schema_and_layout(tmp_path):
    delivery = parse_delivery({"stream": "orders", "to": f"{tmp_path}/orders"})
    first = lock_run(delivery, is_redelivery=False)
    assert others_run(delivery, RANGE)
    first.release()
    assert not others_run(delivery, RANGE)


def test_a_delivery_that_was_only_renamed_is_refused(tmp_path):
    files = LocalFiles()
    first = parse_delivery({"stream": "orders", "to": f"{tmp_path}/orders"})
    files.replace(f"{first.state}/delivery.json", record_of(first, "app").to_json())
    renamed = {"stream": "orders", "to": f"{tmp_path}/orders", "name": "renamed"}
    with pytest.raises(
        DeliveryFailed, match=r"under the name renamed all of them would come again: keep name=orders"
    ):
        check_other_names(files, parse_delivery(renamed))
    check_other_names(files, parse_delivery({**renamed, "start": "TRIM_HORIZON"}))
    check_other_names(files, parse_delivery({**renamed, "stream": "returns"}))
    check_other_names(files, parse_delivery({"stream": "orders", "to": f"{tmp_path}/new"}))


@pytest.mark.parametrize(
    "options",
    [{"roleArn": "arn:aws:iam::222222222222:role/r"}, {"regionName": "us-east-1"}, {"endpoint": "http://b"}, {"awsProfile": "b"}],
)
def test_streams_of_one_name_are_two_if_the_sources_options_say_so(tmp_path, options):
    given = {"stream": "orders", "to": f"{tmp_path}/orders"}
    first = parse_delivery({**given, "name": "a", "options": {"roleArn": "arn:aws:iam::111111111111:role/r"}})
    assert len(check_deliveries([first, parse_delivery({**given, "name": "b", "options": options})])) == 2
    same = {"stsRoleArn": "arn:aws:iam::111111111111:role/r", "maxFetchRecordsPerShard": "10"}
    with pytest.raises(OptionError, match="the table would have each record twice"):
        check_deliveries([first, parse_delivery({**given, "name": "c", "options": same})])


def test_an_application_with_a_lease_table_for_each_stream_is_none_too_many(tmp_path):
    def deliver(*tables):
        given = [
            {"stream": f"s{at}", "to": f"{tmp_path}/{at}", "application": "app", "options": {"leaseTableName": each}}
            for at, each in enumerate(tables)
        ]
        return check_deliveries([parse_delivery(each) for each in given])

    assert len(deliver("a", "b")) == 2
    with pytest.raises(OptionError, match="they would divide the shards"):
        deliver("a", "a")


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
    check_first_run(None, files, parse_delivery(given), BatchStore(files, f"{tmp_path}/renamed"), QUERY)
    with pytest.raises(PermissionError):
        list(files.walk(str(tmp_path)))


def test_files_are_moved_only_within_one_file_system(tmp_path):
    def places(**given):
        return with_absolute_paths(parse_delivery({"stream": "orders", "to": "s3://lake/orders", **given}))

    assert places(state="s3://lake/state").state == "s3://lake/state/orders"
    for given in ({"state": "/state"}, {"state": "s3://other/state"}, {"dead-letters": str(tmp_path)}):
        with pytest.raises(OptionError, match="different file systems or buckets"):
            places(**given)
    iceberg = {"to": "lake.sales.orders", "format": "iceberg", "state": "/state"}
    assert places(**iceberg, checkpoint="s3://lake/checkpoint").state == "/state/orders"
    places(to="hdfs:///lake/orders", state="hdfs://host/state")


@pytest.mark.parametrize(("encoding", "chosen"), [("UTF-8", None), ("ANSI_X3.4-1968", "C.UTF-8")])
def test_java_writes_all_names_of_partitions_whatever_the_locale(monkeypatch, encoding, chosen):
    monkeypatch.delenv("LC_ALL", raising=False)
    monkeypatch.setattr(locale, "getencoding", lambda: encoding)
    with monkeypatch.context() as environment:
        environment.setenv("LC_ALL", "")
        use_utf8_names()
        assert (os.environ["LC_ALL"] or None) == chosen


def test_folders_elsewhere_are_not_locked():
    assert try_lock("s3://lake/orders.penstock/orders", QUERY) is not None


def test_each_batch_is_of_a_kind_of_run():
    assert [kind_of(each) for each in ("000000012", "range.1.2", "redelivery.000001")] == [
        "query",
        "range",
        "redelivery",
    ]


def test_a_stream_that_was_created_again_is_delivered_under_another_name():
    with pytest.raises(StreamChanged) as changed:
        check_stream("orders", "app", StreamIdentity("arn:orders", 2), StreamIdentity("arn:orders", 1))
    text = first_line(f"[STREAM_FAILED] Query terminated\npenstock.errors.StreamChanged: {changed.value}\n")
    assert "it was deleted and created again" in text
    assert text.endswith("under another name, with start TRIM_HORIZON: it may fill the same table")
