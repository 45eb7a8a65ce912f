"""Who may call: programs on this machine, and no web page of another host."""

from __future__ import annotations

import http.client
import json
from urllib.parse import urlsplit

import pytest

from penstock_local import LocalKinesis
from penstock_local.access import Access
from penstock_local.errors import OptionError

LIST = {"X-Amz-Target": "Kinesis_20131202.ListStreams", "Content-Type": "application/x-amz-json-1.1"}


def exchange(server, method: str, path: str, body: str | None, headers: dict[str, str]):
    connection = http.client.HTTPConnection(urlsplit(server.endpoint_url).netloc, timeout=60)
    connection.putrequest(method, path, skip_host=True)
    for name, value in headers.items():
        connection.putheader(name, value)
    connection.putheader("Content-Length", str(len(body or "")))
    connection.endheaders((body or "").encode())
    response = connection.getresponse()
    answer = response.read()
    connection.close()
    return response, answer


def send(server, method: str, path: str, body: str | None, headers: dict[str, str]) -> tuple[int, dict]:
    response, answer = exchange(server, method, path, body, headers)
    return response.status, json.loads(answer)


@pytest.mark.parametrize(
    "host", ["localhost", "LOCALHOST:1", "127.0.0.1:4567", "127.1.2.3", "[::1]:4567", "kinesis.localhost:80"]
)
def test_every_name_of_this_machine_is_answered(rig, host):
    assert send(rig.server, "POST", "/", "{}", {"Host": host, **LIST})[0] == 200


@pytest.mark.parametrize(
    "host", ["evil.example", "localhost.evil.example:4567", "10.0.0.1", "127.0.0.1.evil.example", ""]
)
@pytest.mark.parametrize(
    ("method", "path", "headers"),
    [
        ("POST", "/", LIST),
        ("POST", "/_penstock/clock", {"Content-Type": "application/json"}),
        ("GET", "/_penstock/state", {}),
        ("POST", "/", {"X-Amz-Target": "DynamoDB_20120810.ListTables"}),
    ],
)
def test_a_name_that_was_pointed_to_loopback_is_refused_everywhere(rig, host, method, path, headers):
    status, answer = send(rig.server, method, path, '{"advance_s": 60}', {"Host": host, **headers})
    assert (status, answer["__type"]) == (403, "AccessDeniedException")
    assert "--allow-host" in answer["message"]


def test_a_request_without_a_host_is_refused(rig):
    assert send(rig.server, "POST", "/", "{}", LIST)[0] in (400, 403)


@pytest.mark.parametrize(
    "page", [{"Origin": "https://evil.example"}, {"Origin": "null"}, {"Sec-Fetch-Site": "cross-site"}]
)
def test_a_web_page_of_another_host_moves_nothing(rig, page):
    before_ms = rig.clock.now_ms()
    headers = {"Host": "localhost", "Content-Type": "application/json", **page}
    assert send(rig.server, "POST", "/_penstock/clock", '{"advance_s": 60}', headers)[0] == 403
    assert send(rig.server, "POST", "/", "{}", {"Host": "localhost", **LIST, **page})[0] == 403
    assert rig.clock.now_ms() == before_ms


def test_a_page_of_this_machine_is_answered(rig):
    headers = {"Host": "localhost:4567", "Origin": "http://localhost:3000", **LIST}
    assert send(rig.server, "POST", "/", "{}", headers)[0] == 200


PAGE = "http://localhost:3000"
ASKING = {
    "Host": "localhost",
    "Access-Control-Request-Method": "POST",
    "Access-Control-Request-Headers": "content-type,x-amz-target,authorization",
}


@pytest.mark.parametrize(
    ("path", "call", "status"),
    [
        ("/", LIST, 200),
        ("/", {**LIST, "X-Amz-Target": "Kinesis_20131202.ListShards"}, 400),
        ("/", {**LIST, "X-Amz-Target": "DynamoDB_20120810.ListTables"}, 200),
        ("/_penstock/clock", {"Content-Type": "application/json"}, 400),
        ("/elsewhere", {}, 404),
    ],
    ids=["Kinesis", "refused", "DynamoDB", "control", "no call"],
)
def test_a_browser_shows_a_page_of_this_machine_every_answer(rig, path, call, status):
    response, _ = exchange(rig.server, "OPTIONS", path, None, {**ASKING, "Origin": PAGE})
    assert response.status == 200
    assert response.headers["Access-Control-Allow-Origin"] == PAGE
    assert "POST" in response.headers["Access-Control-Allow-Methods"]
    assert response.headers["Access-Control-Allow-Headers"] == ASKING["Access-Control-Request-Headers"]
    response, _ = exchange(rig.server, "POST", path, "{}", {"Host": "localhost", "Origin": PAGE, **call})
    assert (response.status, response.headers.get_all("Access-Control-Allow-Origin")) == (status, [PAGE])
    assert "x-amzn-RequestId" in response.headers["Access-Control-Expose-Headers"]
    assert response.headers["Vary"] == "Origin"


def test_a_page_of_another_host_is_shown_nothing(rig):
    for method, headers in (("OPTIONS", ASKING), ("POST", {"Host": "localhost", **LIST})):
        response, _ = exchange(rig.server, method, "/", "{}", {**headers, "Origin": "https://evil.example"})
        assert (response.status, response.headers["Access-Control-Allow-Origin"]) == (403, None)


def test_an_answer_for_no_page_has_no_header_for_pages(rig):
    response, _ = exchange(rig.server, "POST", "/", "{}", {"Host": "localhost", **LIST})
    assert [name for name in response.headers if name.startswith("Access-Control")] == []


@pytest.mark.parametrize("content_type", ["text/plain", "application/x-www-form-urlencoded", ""])
def test_a_control_path_takes_json_that_is_called_json(rig, content_type):
    before_ms = rig.clock.now_ms()
    headers = {"Host": "localhost", "Content-Type": content_type}
    status, answer = send(rig.server, "POST", "/_penstock/clock", '{"advance_s": 60}', headers)
    assert (status, rig.clock.now_ms()) == (415, before_ms)
    assert "Content-Type: application/json" in answer["error"]


def test_further_hosts_can_be_allowed():
    with LocalKinesis(limits=False, allow_hosts=("Kinesis.test",)) as server:
        assert send(server, "POST", "/", "{}", {"Host": "kinesis.test:4567", **LIST})[0] == 200
        assert send(server, "POST", "/", "{}", {"Host": "other.test:4567", **LIST})[0] == 403
    with LocalKinesis.process(limits=False, allow_hosts=("kinesis.test",)) as server:
        assert send(server, "POST", "/", "{}", {"Host": "kinesis.test", **LIST})[0] == 200


@pytest.mark.parametrize("names", [("http://kinesis.test",), ("kinesis.test:4567",), ("",), "kinesis.test"])
def test_what_is_no_host_name_cannot_be_allowed(names):
    with pytest.raises(OptionError, match="allow_hosts takes"):
        Access(names)
