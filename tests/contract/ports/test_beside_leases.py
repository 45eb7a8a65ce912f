"""A bucket or a folder that holds more than one application's leases: other applications below it, and foreign objects."""

import os

import pytest

pytest.importorskip("boto3")

from penstock.aws.aws_options import AwsOptions
from penstock.aws.object_lease_table import ObjectLeaseTable
from penstock.aws.s3_objects import S3Objects
from penstock.core.backoff import Backoff, RetryPlan
from penstock.core.leases.lease import Lease
from penstock.core.leases.lease_writes import Applied, Create, Renew
from penstock.errors import Rejected
from penstock.ports.object_store import OBJECT_BYTES_MAX
from penstock.runtime.file_objects import FileObjects
from s3_server import S3Server

PLAN = RetryPlan(Backoff(0.001, 0.01), 5, 5.0)
OPTIONS = AwsOptions(region="us-east-1", access_key_id="local", secret_access_key="local", retry_base_s=0.01)
SHARDS = [f"shardId-00000000000{number}" for number in range(4)]


@pytest.fixture
def s3(request, monkeypatch):
    with S3Server(**getattr(request, "param", {})) as server:
        monkeypatch.delenv("AWS_ENDPOINT_URL", raising=False)
        monkeypatch.setenv("AWS_ENDPOINT_URL_S3", server.url)
        yield server


class Place:
    """A bucket or a folder: opens lease tables in it, and puts other things there."""

    def table(self, path):
        table = ObjectLeaseTable(self.store(path), PLAN)
        table.ensure_exists()
        return table


class Bucket(Place):
    def __init__(self, server):
        self.server = server

    def store(self, path):
        return S3Objects("b", path, OPTIONS)

    def put(self, path, data):
        with self.server.lock:
            self.server.objects[path] = data


class Folder(Place):
    def __init__(self, path):
        self.path = path

    def store(self, path):
        return FileObjects(str(self.path / path), 5.0)

    def put(self, path, data):
        (self.path / path).parent.mkdir(parents=True, exist_ok=True)
        (self.path / path).write_bytes(data)


@pytest.fixture(params=["file", "s3"])
def place(request, tmp_path):
    return Folder(tmp_path) if request.param == "file" else Bucket(request.getfixturevalue("s3"))


def keys(scan):
    return sorted(lease.key for lease in scan.leases)


def test_an_application_below_another_one_has_rows_of_its_own(place):
    inner, outer, beside = (place.table(path) for path in ("leases/billing", "leases", "leases-2"))
    for key in SHARDS:
        assert isinstance(inner.write(Create(Lease(key, owner="inner"))), Applied)
        assert isinstance(beside.write(Create(Lease(key, owner="beside"))), Applied)
    scan = outer.scan()
    assert (scan.leases, scan.skipped_rows, outer.row_count) == ((), (), 0)
    outer.write(Create(Lease(SHARDS[0], owner="outer")))
    assert [lease.owner for lease in outer.scan().leases] == ["outer"]
    for table, owner in ((inner, "inner"), (beside, "beside")):
        assert sorted((lease.key, lease.owner) for lease in table.scan().leases) == [
            (key, owner) for key in SHARDS
        ]


@pytest.mark.parametrize("s3", [{"ignored": ["delimiter"]}], indirect=True)
def test_a_server_that_lists_everything_below_a_prefix_changes_nothing(s3):
    place = Bucket(s3)
    inner, outer = place.table("leases/billing"), place.table("leases")
    for key in SHARDS:
        inner.write(Create(Lease(key)))
    s3.requests.clear()
    assert outer.scan().leases == ()
    assert s3.requests == []


@pytest.mark.parametrize("s3", [{"page_max": 3}], indirect=True)
def test_a_listing_goes_on_over_pages_that_hold_only_common_prefixes(s3):
    place = Bucket(s3)
    for number in range(20):
        place.put(f"leases/a{number}/{SHARDS[0]}.json", b"{}")
    place.put("leases/", b"")
    table = place.table("leases")
    for key in SHARDS:
        table.write(Create(Lease(key)))
    scan = place.table("leases").scan()
    assert keys(scan) == SHARDS
    assert scan.skipped_rows == ()


def test_what_is_no_row_is_neither_read_nor_told(place):
    table = place.table("app")
    table.write(Create(Lease(SHARDS[0])))
    for name in (
        "README",
        "_SUCCESS",
        "part-0.parquet",
        "checkpoint/0",
        f"checkpoint/{SHARDS[1]}.json",
        ".json",
    ):
        place.put(f"app/{name}", b"x" * 1000)
    if isinstance(place, Bucket):
        place.put("app/", b"")  # as the console makes it
        place.server.requests.clear()
    fresh = place.table("app")
    scan = fresh.scan()
    assert (keys(scan), scan.skipped_rows, fresh.row_count) == ([SHARDS[0]], (), 1)
    if isinstance(place, Bucket):
        read = [key for method, key in place.server.requests if method == "GET"]
        assert read == [f"app/{SHARDS[0]}.json"]


def test_a_row_that_bears_another_name_is_left_alone_and_told(place):
    table = place.table("app")
    table.write(Create(Lease(SHARDS[0])))
    copied = table._store.read(f"{SHARDS[0]}.json").data
    place.put(f"app/{SHARDS[1]}.json", copied)
    place.put("app/backup of monday.json", copied)
    scan = place.table("app").scan()
    assert keys(scan) == [SHARDS[0]]
    told = {row.key: row.reason for row in scan.skipped_rows}
    assert told[SHARDS[1]] == f"it holds the row of lease {SHARDS[0]}: was the object copied or renamed?"
    assert (
        told["backup of monday.json"]
        == "its name is not that of a lease's object (backup%20of%20monday.json)"
    )
    with pytest.raises(Rejected, match=f"holds the row of lease {SHARDS[0]}"):
        table.fetch(SHARDS[1])
    with pytest.raises(Rejected, match=f"holds the row of lease {SHARDS[0]}"):
        table.write(Renew(SHARDS[1], 0, "me"))
    assert [row.key for row in table.fetch_many(SHARDS[:2]).skipped_rows] == [SHARDS[1]]


def test_the_key_of_a_lease_of_several_streams_names_its_object(place):
    key = "123456789012:orders:1700000000:shardId-000000000000"
    place.table("app").write(Create(Lease(key)))
    assert keys(place.table("app").scan()) == [key]


def test_foreign_json_is_read_once_and_told(place):
    place.put("app/settings.json", b'{"colour": "blue"}')
    place.put("app/list.json", b"[]")
    place.put(f"app/{SHARDS[0]}.json", b'{"shard": "0"}')
    table = place.table("app")
    first, second = table.scan(), table.scan()
    assert first.leases == second.leases == ()
    assert sorted(row.key for row in first.skipped_rows) == ["list", "settings", SHARDS[0]]
    assert sorted(first.skipped_rows, key=str) == sorted(second.skipped_rows, key=str)
    if isinstance(place, Bucket):
        assert place.server.gets("app/settings.json") == 1
    place.put(f"app/{SHARDS[0]}.json", place_row(place, SHARDS[0]))  # it is put right
    assert keys(table.scan()) == [SHARDS[0]]


def place_row(place, key):
    other = place.table("other")
    other.write(Create(Lease(key)))
    return other._store.read(f"{key}.json").data


def test_an_enormous_foreign_object_is_told_and_not_read(place):
    place.put("app/dump.json", b"x" * (OBJECT_BYTES_MAX + 1))
    place.put("app/largest.json", b"x" * OBJECT_BYTES_MAX)
    table = place.table("app")
    for _ in range(2):
        told = {row.key: row.reason for row in table.scan().skipped_rows}
        assert told["dump"] == f"it is larger than {OBJECT_BYTES_MAX} bytes, and no lease is"
        assert told["largest"].startswith("it is not a JSON document")
    if isinstance(place, Bucket):
        assert place.server.gets("app/dump.json") == 0
        assert place.server.gets("app/largest.json") == 1
    assert table._store.read("dump.json").data == b""
    with pytest.raises(Rejected, match="and no lease is"):
        table.fetch("dump")
    with pytest.raises(Rejected, match="and no lease is"):
        table.write(Renew("dump", 0, "me"))


def test_a_folder_or_a_pipe_with_the_name_of_a_lease_is_left_alone(tmp_path):
    place = Folder(tmp_path)
    table = place.table("app")
    table.write(Create(Lease(SHARDS[0])))
    (tmp_path / "app" / "lost+found").mkdir()
    (tmp_path / "app" / f"{SHARDS[1]}.json").mkdir()
    os.mkfifo(tmp_path / "app" / f"{SHARDS[2]}.json")
    (tmp_path / "app" / f"{SHARDS[3]}.json").symlink_to(tmp_path / "nowhere")
    scan = table.scan()
    assert keys(scan) == [SHARDS[0]]
    for key in SHARDS[1:3]:
        with pytest.raises(Rejected, match=rf"{key}\.json is not a file"):
            table.fetch(key)
        with pytest.raises(Rejected, match=rf"{key}\.json is not a file"):
            table.write(Create(Lease(key)))


def test_a_listing_that_names_no_next_page_is_refused(s3, monkeypatch):
    table = Bucket(s3).table("app")
    monkeypatch.setattr(S3Objects, "_page", lambda *_: {"IsTruncated": True, "NextContinuationToken": "same"})
    with pytest.raises(Rejected, match="listing of s3://b/app does not go on"):
        table.scan()
