"""The findings of the conformance kit in three published streaming sources. None of them needs a service or a network.

They are fetched from PyPI into a folder that ends with the tests; docs/conformance.md has the findings.
"""

from __future__ import annotations

import importlib
import itertools
import json
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, urlsplit

import pytest
from counterparts import PIP, RUN_TIMEOUT_S

from penstock.testing import SourceUnderTest, check_stream_source

PACKAGES = (
    ("--no-deps", "pyspark-data-sources==0.1.11", "mssql-cdc-pyspark==0.8.0", "requests", "urllib3"),
    ("--no-deps", "charset_normalizer", "faker==40.63.0", "httpx==0.28.1", "httpcore", "h11", "anyio"),
    ("--no-deps", "certifi", "idna", "tenacity==9.2.1", "spark-rest-api-reader==0.3.0"),
)


@pytest.fixture(scope="module", autouse=True)
def packages(tmp_path_factory):
    """A folder on the path with the three, without their PySpark."""
    folder = tmp_path_factory.mktemp("sources")
    for group in PACKAGES:
        done = subprocess.run(
            [*PIP, "install", "--quiet", "--target", str(folder), *group],
            capture_output=True,
            text=True,
            timeout=RUN_TIMEOUT_S,
            check=False,
        )
        if done.returncode:
            pytest.skip(f"PyPI does not serve them: {done.stderr[-300:]}")
    sys.path.append(str(folder))
    yield
    sys.path.remove(str(folder))


# --- pyspark-data-sources: fake -------------------------------------------------------------------------------


class Fake(SourceUnderTest):
    """Makes rows of random text by itself, three for each call of `latestOffset`."""

    wrong_options = {"numRows": "many"}  # noqa: RUF012
    visible_s = 5

    def __init__(self):
        self.data_source = importlib.import_module("pyspark_datasources.fake").FakeDataSource

    def options(self):
        return {}

    def put(self, count):
        return None

    def id_of(self, row):
        return tuple(row.values())


def test_the_fake_source_makes_other_rows_at_each_read():
    verdicts = check_stream_source(Fake)
    assert verdicts.broken.keys() == {"offsets move forward", "identical replay"}, show(verdicts)
    assert (
        'the query is at {"offset": 9}, and latestOffset returned {"offset": 3}'
        in (verdicts.broken["offsets move forward"])
    )


# --- spark-rest-api-reader ------------------------------------------------------------------------------------


class Api(ThreadingHTTPServer):
    """`GET /orders?since=N` returns the orders with larger numbers, in order."""

    daemon_threads = True

    def __init__(self):
        self.orders = []
        super().__init__(("127.0.0.1", 0), Orders)


class Orders(BaseHTTPRequestHandler):
    def do_GET(self):
        since = int(parse_qs(urlsplit(self.path).query)["since"][0])
        body = json.dumps([{"id": each} for each in self.server.orders if each > since]).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass


class RestApi(SourceUnderTest):
    schema = "id bigint"
    wrong_options = {"stream_cursor_is_numeric": "perhaps"}  # noqa: RUF012
    visible_s = 5

    def __init__(self, api):
        self.data_source = importlib.import_module("spark_rest_api_reader").RestApiDataSource
        self.api = api
        api.orders.clear()
        self.numbers = itertools.count(1)

    def options(self):
        return {
            "url": f"http://127.0.0.1:{self.api.server_port}/orders",
            "stream_cursor_field": "id",
            "stream_cursor_param": "since",
            "stream_initial_value": "0",
            "stream_cursor_is_numeric": "true",
        }

    def put(self, count):
        ids = list(itertools.islice(self.numbers, count))
        self.api.orders.extend(ids)
        return ids

    def id_of(self, row):
        return row["id"]


@pytest.fixture
def api():
    with Api() as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def test_the_rest_source_keeps_a_batch_in_the_memory_of_its_driver(api):
    verdicts = check_stream_source(lambda: RestApi(api))
    assert verdicts.broken.keys() == {"wrong options", "restart at every call", "two drivers"}, show(verdicts)
    assert (
        "after a death behind latestOffset: 14 records were put, and 5 batches hold 11 rows"
        in (verdicts.broken["restart at every call"])
    )


# --- mssql-cdc-pyspark, with the database of files that it brings for tests -----------------------------------


class ChangeTable(SourceUnderTest):
    wrong_options = {"maxCommitsPerBatch": "many", "startingLsn": "first"}  # noqa: RUF012
    visible_s = 5

    def __init__(self, folder):
        self.data_source = importlib.import_module("mssql_cdc.source").MssqlCdcDataSource
        self.path = str(folder)
        self.database = importlib.import_module("mssql_cdc.fake").FakeCdcDatabase(
            self.path, ["dbo_orders"], columns={"dbo_orders": "number INT"}
        )
        self.numbers = itertools.count()

    def options(self):
        return {"backend": "fake", "fakePath": self.path, "captureInstance": "dbo_orders"}

    def put(self, count):
        ids = list(itertools.islice(self.numbers, count))
        for each in ids:
            self.database.commit("dbo_orders", [(2, {"number": each})])
        return ids

    def id_of(self, row):
        return row["number"]

    def limited(self, rows):
        return {"maxCommitsPerBatch": str(rows)}


def test_the_source_of_sql_servers_changes_keeps_its_promises(tmp_path):
    folders = itertools.count()
    verdicts = check_stream_source(lambda: ChangeTable(tmp_path / str(next(folders))))
    assert verdicts.broken.keys() == verdicts.not_tried.keys() == set(), show(verdicts)


def show(verdicts):
    lines = [f"{name}: {text}" for name, text in [*verdicts.broken.items(), *verdicts.not_tried.items()]]
    return "\n".join([f"held: {', '.join(verdicts.held)}", *lines])
