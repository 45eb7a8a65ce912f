"""Two runs of one delivery at once on one machine, and a table that has gone."""

from __future__ import annotations

import subprocess
import sys

import pytest

from penstock.core.delivering.definition import parse_delivery
from penstock.core.delivering.manifest import Identity, Manifest
from penstock.core.stream_identity import StreamIdentity
from penstock.delivery.batch_store import BatchStore
from penstock.delivery.files import LocalFiles
from penstock.delivery.opening import check_table_folder, first_line, lock_run
from penstock.delivery.run_lock import QUERY, kind_of, try_lock
from penstock.errors import DeliveryFailed, StreamChanged
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
    assert text.endswith("Deliver the new stream under another name: it may fill the same table")
