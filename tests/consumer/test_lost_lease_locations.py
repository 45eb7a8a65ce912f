"""Consumers whose leases are taken away while they run: from a bucket, or from a folder."""

import contextlib
import shutil
import threading

import pytest

pytest.importorskip("httptools")

from penstock import Consumer
from penstock.cli.main import main
from penstock.errors import NotFound
from penstock.wiring import open_lease_table
from s3_server import S3Server
from waiting import wait_until

SHARDS = [f"shardId-00000000000{number}" for number in range(4)]


class Stream:
    """A stream of numbers, and the workers that read it from its tip."""

    def __init__(self, server, location):
        self.server = server
        self.location = location
        self.seen, self.lock = set(), threading.Lock()
        self.put_count = 0
        server.create_stream("orders", shards=len(SHARDS))

    def put(self, count=40):
        records = [
            {"Data": b"%d" % number, "PartitionKey": f"k{number}"}
            for number in range(self.put_count, self.put_count + count)
        ]
        answer = self.server.client("kinesis").put_records(StreamName="orders", Records=records)
        assert answer["FailedRecordCount"] == 0
        self.put_count += count

    def start(self, worker_id="w1"):
        def handle(batch):
            with self.lock:
                self.seen.update(int(record.data) for record in batch)

        consumer = Consumer(
            "orders",
            self.location,
            handle,
            worker_id=worker_id,
            lease_duration_s=3.0,
            cold_start_jitter_s=0.0,
        )
        consumer.start()
        return consumer

    def wait(self):
        wait_until(lambda: self.seen == set(range(self.put_count)), "all records")

    def rows(self):
        return {lease.key: lease for lease in open_lease_table(self.location).scan().leases}

    def wait_for_owners(self, *owners):
        def are_owned():
            rows = self.rows()
            return sorted(rows) == SHARDS and {row.reader for row in rows.values()} == set(owners)

        wait_until(are_owned, f"leases of {owners}")


@contextlib.contextmanager
def running(*consumers):
    try:
        yield
    finally:
        for consumer in consumers:
            consumer.stop()


def test_the_objects_of_a_bucket_are_deleted_under_a_live_worker(local_kinesis, monkeypatch):
    with S3Server() as bucket:
        monkeypatch.setenv("AWS_ENDPOINT_URL_S3", bucket.url)
        stream = Stream(local_kinesis, "s3://acme/leases/billing")
        consumer = stream.start()
        with running(consumer):
            stream.wait_for_owners("w1")
            stream.put()
            stream.wait()
            bucket.remove("leases/billing/")
            stream.put()
            stream.wait_for_owners("w1")
            stream.put()
            stream.wait()
            wait_until(lambda: consumer.health().is_healthy, "a healthy worker")
        stream.put()
        with running(stream.start()):
            stream.wait()


def test_a_bucket_that_does_not_exist_ends_a_new_worker_and_not_one_that_has_read(local_kinesis, monkeypatch):
    with S3Server() as bucket:
        monkeypatch.setenv("AWS_ENDPOINT_URL_S3", bucket.url)
        stream = Stream(local_kinesis, "s3://acme/leases/billing")
        bucket.has_bucket = False
        new = stream.start()
        wait_until(lambda: "the worker failed" in str(new.health().problems), "the end of the worker")
        with pytest.raises(NotFound, match="bucket acme does not exist: create it, or name another one"):
            new.stop()
        bucket.has_bucket = True
        with running(consumer := stream.start()):
            stream.wait_for_owners("w1")
            stream.put()
            stream.wait()
            bucket.has_bucket = False
            bucket.remove("")
            wait_until(lambda: not consumer.health().is_healthy, "the report of the bucket's loss")
            stream.put()
            bucket.has_bucket = True  # it is made again, by hand
            stream.wait_for_owners("w1")
            stream.put()
            stream.wait()
            wait_until(lambda: consumer.health().is_healthy, "a healthy worker")


@pytest.mark.parametrize("loss", ["removed", "emptied", "renamed away and back", "another in its place"])
def test_a_folder_is_lost_under_two_live_workers(local_kinesis, tmp_path, loss):
    folder = tmp_path / "leases"
    stream = Stream(local_kinesis, f"file://{folder}")
    consumers = [stream.start("w1"), stream.start("w2")]
    with running(*consumers):
        wait_until(folder.exists, "the folder")
        stream.wait_for_owners("w1", "w2")
        stream.put()
        stream.wait()
        lose(folder, loss)
        stream.put()
        wait_until(folder.exists, "the folder, made again")
        stream.wait_for_owners("w1", "w2")
        stream.put()
        stream.wait()
        wait_until(lambda: all(each.health().is_healthy for each in consumers), "healthy workers")
    stream.put()
    with running(stream.start("w3")):
        stream.wait()


def lose(folder, loss):
    away, other = folder.with_name("away"), folder.with_name("other")
    if loss == "removed":
        again_until_done(lambda: shutil.rmtree(folder))
    elif loss == "emptied":
        for each in folder.iterdir():
            each.unlink(missing_ok=True)
    elif loss == "renamed away and back":
        folder.rename(away)
        wait_until(lambda: len(list(folder.glob("*.json"))) == len(SHARDS), "leases, made again")
        again_until_done(lambda: (shutil.rmtree(folder, ignore_errors=True), away.rename(folder)))
    else:
        other.mkdir()
        folder.rename(away)
        again_until_done(lambda: (shutil.rmtree(folder, ignore_errors=True), folder.symlink_to(other)))


def again_until_done(change):
    """Repeat a change of the folder that the workers' writes come between."""

    def is_done():
        try:
            change()
        except OSError:
            return False
        return True

    wait_until(is_done, "the change of the folder")


def test_the_commands_name_a_folder_that_does_not_exist(local_kinesis, tmp_path, capsys):
    location = f"file://{tmp_path}/nowhere"
    assert main(["leases", location, "--observe", "0"]) == 1
    assert f"{location}: there is no such folder" in capsys.readouterr().err
    assert not (tmp_path / "nowhere").exists()
