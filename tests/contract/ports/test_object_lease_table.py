"""The lease table in a folder and in a bucket, by the contract of the port and by several processes."""

import json
import os
import signal
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from contract.ports.lease_cases import BASE, KEY, ME, ROWS, WRITES, same
from penstock.aws.aws_options import AwsOptions
from penstock.aws.object_lease_table import ObjectLeaseTable
from penstock.aws.s3_objects import S3Objects
from penstock.core.backoff import Backoff, RetryPlan
from penstock.core.leases.lease import Lease, TablePart
from penstock.core.leases.lease_rules import apply_write
from penstock.core.leases.lease_writes import Applied, Checkpoint, Create, Delete, Refused, Renew, Take
from penstock.core.position import at_record
from penstock.errors import AccessDenied, NotFound, OptionError, Rejected, Unavailable, UnknownOutcome
from penstock.runtime.file_objects import FileObjects
from penstock.wiring import open_lease_table

PLAN = RetryPlan(Backoff(0.001, 0.01), 20, 5.0)
OPTIONS = AwsOptions(region="us-east-1", access_key_id="local", secret_access_key="local", retry_base_s=0.01)


@pytest.fixture
def bucket(monkeypatch):
    moto = pytest.importorskip("moto")
    monkeypatch.delenv("AWS_ENDPOINT_URL", raising=False)
    answer_one_by_one(monkeypatch)
    with moto.mock_aws():
        import boto3

        client = boto3.client("s3", "us-east-1", aws_access_key_id="local", aws_secret_access_key="local")
        client.create_bucket(Bucket="leases")
        yield client


def answer_one_by_one(monkeypatch):
    """Let moto check a condition and write as one step, as S3 does: of two threads both could pass the check."""
    from moto.core.botocore_stubber import BotocoreStubber

    answer, one_by_one = BotocoreStubber.process_request, threading.RLock()

    def process_request(*given):
        with one_by_one:
            return answer(*given)

    monkeypatch.setattr(BotocoreStubber, "process_request", process_request)


@pytest.fixture(params=["file", "s3"])
def store(request, tmp_path):
    if request.param == "file":
        return FileObjects(str(tmp_path / "leases"), 5.0)
    request.getfixturevalue("bucket")
    return S3Objects("leases", "apps/orders", OPTIONS)


@pytest.fixture
def table(store):
    made = ObjectLeaseTable(store, PLAN)
    assert made.ensure_exists() is True
    return made


def lay(store, row):
    """Let exactly this row stand, with an attribute that nobody knows."""
    name = f"{KEY}.json"
    old = store.read(name)
    if old is not None:
        assert store.delete(name, old.tag)
    if row is not None:
        other = ObjectLeaseTable(store, PLAN)
        assert isinstance(other.write(Create(row)), Applied)
        stored = store.read(name)
        item = {**json.loads(stored.data), "unknown": {"S": "stays"}}
        assert store.write(name, json.dumps(item).encode(), stored.tag)


def test_every_row_is_read_as_it_was_written(store, table):
    for row in ROWS:
        lay(store, row)
        assert same(table.fetch(KEY), row)
        assert table.scan().leases == (() if row is None else (row,))


def test_each_write_over_some_rows_does_what_the_pure_rule_does(store, table):
    standing = object()
    for i, row in enumerate(ROWS):
        for j, write in enumerate(WRITES):
            if (i + j) % 31:  # `test_every_write` has all of them
                continue
            if standing is not row:
                lay(store, row)
            expected, got = apply_write(row, write), table.write(write)
            assert got == expected, (row, write)
            after = expected.lease if isinstance(expected, Applied) else row
            assert same(table.fetch(KEY), after), (row, write)
            if after is not None and row is not None:
                assert json.loads(store.read(f"{KEY}.json").data)["unknown"] == {"S": "stays"}
            standing = object() if isinstance(got, Applied) else row


def test_what_another_worker_wrote_counts_and_not_what_was_known(store, table):
    other = ObjectLeaseTable(store, PLAN)
    table.write(Create(BASE))
    assert isinstance(other.write(Checkpoint(KEY, 7, ME, at_record("11"))), Applied)
    assert isinstance(table.write(Renew(KEY, 7, ME)), Refused)
    assert isinstance(table.write(Renew(KEY, 8, ME)), Applied)
    assert table.fetch(KEY).checkpoint == at_record("11")
    assert isinstance(other.write(Delete(KEY, 9, at_record("11"))), Applied)
    assert isinstance(table.write(Renew(KEY, 9, ME)), Refused)
    assert table.scan().leases == ()


def test_of_many_workers_that_take_a_lease_at_once_one_has_it(store, table):
    table.write(Create(Lease(KEY)))
    tables = [ObjectLeaseTable(store, PLAN) for _ in range(8)]
    for each in tables:
        each.scan()
    barrier = threading.Barrier(8)

    def take(number):
        barrier.wait(60)
        return tables[number].write(Take(KEY, 0, f"w{number}"))

    with ThreadPoolExecutor(8) as pool:
        outcomes = list(pool.map(take, range(8)))
    (winner,) = [number for number, outcome in enumerate(outcomes) if isinstance(outcome, Applied)]
    assert table.fetch(KEY).owner == f"w{winner}"


def test_a_scan_reads_only_what_has_changed(store, table, monkeypatch):
    for number in range(20):
        table.write(Create(Lease(f"shardId-{number}")))
    other = ObjectLeaseTable(store, PLAN)
    assert len(other.scan().leases) == 20
    table.write(Take("shardId-3", 0, ME))
    found = {}
    read_all = type(store).read_all

    def watched(self, known, suffix):
        found.update(read_all(self, known, suffix))
        return found

    monkeypatch.setattr(type(store), "read_all", watched)
    scan = other.scan()
    assert [name for name, each in found.items() if each is not None] == ["shardId-3.json"]
    assert {row.owner for row in scan.leases} == {None, ME}
    parts = [other.scan(TablePart(number, 3)).leases for number in range(3)]
    assert sorted(row.key for part in parts for row in part) == sorted(row.key for row in scan.leases)
    assert other.row_count == 20


def test_objects_that_are_no_leases_are_skipped_and_reported(store, table):
    table.write(Create(BASE))
    store.write("odd.json", b'{"leaseKey": {"S": "odd"}, "leaseCounter": {"N": "x"}}', None)
    store.write("list.json", b"[]", None)
    store.write("deep.json", b'{"leaseKey":' * 50_000, None)
    scan = table.scan()
    assert [row.key for row in scan.leases] == [KEY]
    assert sorted(row.key for row in scan.skipped_rows) == ["deep", "list", "odd"]
    with pytest.raises(Rejected, match=r"row 'odd' cannot be read as a lease"):
        table.fetch("odd")
    assert [row.key for row in table.fetch_many([KEY, "odd", "none"]).skipped_rows] == ["odd"]


class Losing:
    """A store whose next write is applied, or not, and not answered."""

    def __init__(self, store, *, is_applied):
        self.store, self.is_applied, self.losses = store, is_applied, 1

    def __getattr__(self, name):
        return getattr(self.store, name)

    def write(self, name, data, tag):
        if not self.losses:
            return self.store.write(name, data, tag)
        self.losses -= 1
        if self.is_applied:
            self.store.write(name, data, tag)
        raise UnknownOutcome("sent, and no answer came", operation="PutObject")


@pytest.mark.parametrize("is_applied", [True, False])
def test_a_write_whose_answer_is_lost_is_read_back(store, table, is_applied):
    table.write(Create(BASE))
    losing = ObjectLeaseTable(Losing(store, is_applied=is_applied), PLAN)
    outcome = losing.write(Renew(KEY, 7, ME))
    assert isinstance(outcome, Applied)
    assert (outcome.lease.counter, table.fetch(KEY).counter) == (8, 8)


def test_a_write_that_stays_without_an_answer_names_the_operation_of_its_store(store, table):
    table.write(Create(BASE))
    losing = Losing(store, is_applied=False)
    losing.losses = 99
    with pytest.raises(UnknownOutcome, match="Renew was sent and could not be settled") as caught:
        ObjectLeaseTable(losing, PLAN).write(Renew(KEY, 7, ME))
    assert caught.value.operation == "PutObject"


def test_a_bucket_that_is_missing_is_named(bucket):
    with pytest.raises(NotFound, match="bucket nowhere does not exist"):
        ObjectLeaseTable(S3Objects("nowhere", "x", OPTIONS), PLAN).ensure_exists()


def test_a_bucket_that_does_not_answer_does_not_keep_the_process_from_ending(monkeypatch):
    waiting = []
    monkeypatch.setattr(S3Objects, "read", lambda *_: waiting.append(threading.current_thread()))
    assert S3Objects("leases", "x", OPTIONS).read_many(["a", "b", "c"]) == {}
    assert [thread.daemon for thread in waiting] == [True] * 3


def test_a_server_that_ignores_conditions_is_refused(bucket, monkeypatch):
    store = S3Objects("leases", "x", OPTIONS)
    write = store.write
    monkeypatch.setattr(store, "write", lambda name, data, tag: write(name, data, tag) or '"an old tag"')
    with pytest.raises(OptionError, match="does not honour conditional writes: PutObject with If-None-Match"):
        store.prepare()


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("s3://bucket", "expected s3://bucket/prefix"),
        ("s3:///prefix", "expected s3://bucket/prefix"),
        ("file://folder", "must be absolute"),
        ("file:///", "file:/// is the root of the file system: name a folder in it"),
        ("file:///tmp/..", "is the root of the file system"),
        ("file:////.", "is the root of the file system"),
        ("file:///tmp/a\0b", "a path has no NUL character"),
        ("s3://bucket/caf\udce9", "is not Unicode text at character 15"),
        ("redis://host", "expected the name of a DynamoDB table"),
        ("a b", "choose another application"),
        ("ab", "3 to 255 letters"),
    ],
)
def test_a_name_that_cannot_be_a_lease_table_is_refused(name, said):
    with pytest.raises(OptionError, match=said):
        open_lease_table(name)


def test_a_folder_whose_name_is_too_long_can_never_be_made(tmp_path):
    with pytest.raises(OptionError, match=r"File name too long.*; name a folder with a shorter path"):
        FileObjects(str(tmp_path / ("x" * 300)), 1.0).prepare()


def test_a_folder_that_may_not_be_written_is_named(tmp_path):
    if os.geteuid() != 0:  # root may write everywhere
        tmp_path.chmod(0o500)
        with pytest.raises(AccessDenied):
            FileObjects(str(tmp_path / "leases"), 1.0).prepare()
        tmp_path.chmod(0o700)


HOLDING = """
import fcntl, sys, time
lock = open(sys.argv[1], "ab")
fcntl.flock(lock, fcntl.LOCK_EX)
print("held", flush=True)
time.sleep(600)
"""


def test_a_lock_that_a_stopped_process_holds_is_waited_for_in_vain_and_one_of_a_dead_process_is_free(
    tmp_path,
):
    store = FileObjects(str(tmp_path), 0.3)
    store.prepare()
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLDING, str(tmp_path / ".lock")], stdout=subprocess.PIPE
    )
    try:
        assert holder.stdout.readline() == b"held\n"
        holder.send_signal(signal.SIGSTOP)
        with pytest.raises(Unavailable, match="another process has held the lock"):
            store.write("a", b"1", None)
    finally:
        holder.kill()
        holder.communicate(timeout=30)
    assert store.write("a", b"1", None)


COUNTING = """
import sys
from penstock.core.backoff import Backoff, RetryPlan
from penstock.aws.object_lease_table import ObjectLeaseTable
from penstock.core.leases.lease_writes import Applied, Renew
from penstock.runtime.file_objects import FileObjects

table = ObjectLeaseTable(FileObjects(sys.argv[1], 60.0), RetryPlan(Backoff(0.001, 0.01), 1000, 60.0))
done = 0
while done < 100:
    counter = table.fetch("s").counter
    done += isinstance(table.write(Renew("s", counter, "me")), Applied)
"""


def test_no_write_of_several_processes_is_lost(tmp_path):
    table = ObjectLeaseTable(FileObjects(str(tmp_path), 60.0), PLAN)
    table.write(Create(Lease("s", owner="me")))
    workers = [subprocess.Popen([sys.executable, "-c", COUNTING, str(tmp_path)]) for _ in range(3)]
    assert [worker.wait(120) for worker in workers] == [0, 0, 0]
    assert table.fetch("s").counter == 300
    assert sorted(each.name for each in tmp_path.iterdir()) == [".lock", "s.json"]
