"""Credentials run out in the middle of the day: those that a container fetches, and those that a person fetched in the morning."""

import json
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread

import pytest

from user_programs import CONSUMER, Orders, once
from waiting import wait_until

CALLS = ("GetRecords", "GetShardIterator", "ListShards", "DescribeStreamSummary", "PutRecords")
TABLE_CALLS = ("Scan", "Query", "GetItem", "BatchGetItem", "PutItem", "UpdateItem", "DescribeTable")


@pytest.fixture
def container():
    """The address from which a container gets credentials; each lasts until it is due for renewal by the SDK's rule."""
    asked = []

    class Answers(BaseHTTPRequestHandler):
        def do_GET(self):
            asked.append(self.path)
            # The SDK renews credentials ten minutes before they run out.
            left = timedelta(minutes=10, seconds=3)
            document = {
                "AccessKeyId": f"hour-{len(asked)}",
                "SecretAccessKey": "secret",
                "Token": f"token-{len(asked)}",
                "Expiration": (datetime.now(UTC) + left).isoformat(timespec="seconds"),
            }
            self.send_response(200)
            self.end_headers()
            self.wfile.write(json.dumps(document).encode())

        def log_message(self, *_):
            """Print nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Answers) as server:
        thread = Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}/credentials"
        server.shutdown()
        thread.join()


def test_a_container_gets_new_credentials_again_and_again(local_kinesis, programs, container, monkeypatch):
    local_kinesis.create_stream("orders", shards=2)
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    consumer = programs.start(CONSUMER, name="consumer", AWS_CONTAINER_CREDENTIALS_FULL_URI=container)
    orders = Orders(local_kinesis)

    def keys():
        return {key for key in local_kinesis.calls().by_caller if key.startswith("hour-")}

    orders.put_until(lambda: len(keys()) >= 4, "the fourth credentials")
    programs.wait_for(orders)
    assert consumer.terminate() == 0
    assert programs.printed() == once(orders)
    assert "ERROR" not in consumer.log()


def test_a_person_fetches_new_credentials_when_the_old_ones_have_run_out(
    local_kinesis, programs, tmp_path, monkeypatch
):
    local_kinesis.create_stream("orders", shards=2)
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    file = tmp_path / "credentials"

    def log_in(key):
        file.write_text(
            f"[default]\naws_access_key_id = {key}\naws_secret_access_key = s\naws_session_token = t\n",
            encoding="utf-8",
        )

    log_in("morning")
    consumer = programs.start(CONSUMER, name="consumer", AWS_SHARED_CREDENTIALS_FILE=str(file))
    orders = Orders(local_kinesis)
    orders.put(100)
    programs.wait_for(orders)
    orders.put(100)
    for call in (*CALLS, *(f"dynamodb.{call}" for call in TABLE_CALLS)):
        local_kinesis.faults.error(call, code="ExpiredTokenException", status=400, count=None)
    # Longer than a lease lasts: the consumer has none any more.
    consumer.wait_for("ExpiredTokenException")
    consumer.wait_for("could not be renewed")
    log_in("noon")
    # The server takes any key: while it refuses all of them, the consumer looks for new credentials.
    wait_until(lambda: "noon" in local_kinesis.calls().by_caller, "a call with the new credentials")
    local_kinesis.faults.clear()
    programs.wait_for(orders)
    assert consumer.terminate() == 0
    assert programs.printed() == once(orders)
