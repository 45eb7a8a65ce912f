"""Signatures made again, and requests over the connections of botocore's pool: what is repeated is what botocore would have done."""

import functools
import gc
import socket
import ssl
import threading
import time
from contextlib import contextmanager
from types import SimpleNamespace

import botocore.exceptions as sdk
import pytest
from botocore.auth import SigV4Auth, SigV4QueryAuth
from botocore.awsrequest import AWSRequest
from botocore.client import BaseClient
from botocore.credentials import Credentials
from botocore.endpoint import Endpoint
from botocore.httpsession import URLLib3Session
from botocore.parsers import ResponseParserError

from moved_clock import MovedClock
from penstock.aws import data_plane_client, pooled_exchange
from penstock.aws.aws_options import AwsOptions
from penstock.aws.connection import client_for
from penstock.aws.data_plane_client import DataPlaneClient
from penstock.aws.pooled_exchange import Answer, PooledExchange
from penstock.aws.request_signing import host_of, signing_from
from penstock_local import LocalKinesis

HEADERS = {
    "X-Amz-Target": "Kinesis_20131202.GetRecords",
    "Content-Type": "application/x-amz-json-1.1",
    "User-Agent": "x   y",
}


def signed(body, credentials, url="https://kinesis.eu-central-1.amazonaws.com/", headers=HEADERS):
    """A request as botocore signs it."""
    request = AWSRequest("POST", url, headers, body)
    SigV4Auth(credentials, "kinesis", "eu-central-1").add_auth(request)
    return request


class SignedAt(SigV4Auth):
    """botocore's signature at another moment; its versions read the clock in different ways, and all keep what they read here."""

    def __init__(self, moment: str, *signer):
        super().__init__(*signer)
        self.moment = moment

    def _modify_request_before_signing(self, request):
        request.context["timestamp"] = self.moment
        super()._modify_request_before_signing(request)


@pytest.mark.parametrize("token", [None, "a/token+of=a session"])
@pytest.mark.parametrize(
    "url",
    [
        "https://kinesis.eu-central-1.amazonaws.com/",
        "https://kinesis.eu-central-1.amazonaws.com",
        "https://kinesis.eu-central-1.amazonaws.com:443/",
        "http://127.0.0.1:4566/",
        "http://[::1]:4566/",
    ],
)
def test_a_repeated_request_has_the_signature_that_botocore_would_have_given_it(token, url):
    credentials = Credentials("AKID", "secret/key", token)
    signing = signing_from(signed(b'{"ShardIterator": "1"}', credentials, url), credentials)
    assert signing is not None
    for body in (b"{}", '{"StreamName": "Zürich"}'.encode()):
        expected = signed(body, credentials, url)
        ours = signing.headers(body, credentials, expected.headers["X-Amz-Date"])
        assert ours.items() <= dict(expected.headers.items()).items()
        assert ours["Authorization"] == expected.headers["Authorization"]


def test_a_renewed_key_signs_with_its_own_secret_and_token():
    old, new = Credentials("OLD", "old", "one"), Credentials("NEW", "new", "two")
    signing = signing_from(signed(b"{}", old), old)
    expected = signed(b"{}", new)
    ours = signing.headers(b"{}", new, expected.headers["X-Amz-Date"])
    assert ours["Authorization"] == expected.headers["Authorization"]
    assert ours["X-Amz-Security-Token"] == "two"


def test_a_day_later_the_key_of_that_day_signs():
    credentials = Credentials("AKID", "secret")
    signing = signing_from(signed(b"{}", credentials), credentials)
    for moment in ("20300317T174640Z", "20300318T174640Z"):
        expected = AWSRequest("POST", "https://kinesis.eu-central-1.amazonaws.com/", HEADERS, b"{}")
        SignedAt(moment, credentials, "kinesis", "eu-central-1").add_auth(expected)
        assert expected.headers["X-Amz-Date"] == moment
        ours = signing.headers(b"{}", credentials, moment)
        assert ours["Authorization"] == expected.headers["Authorization"]


def test_what_botocore_signs_in_another_way_is_left_to_it():
    credentials = Credentials("AKID", "secret")
    others = Credentials("AKID", "another secret")
    assert signing_from(signed(b"{}", credentials), others) is None
    assert signing_from(signed(b"{}", credentials), Credentials("AKID", "secret", "token")) is None
    assert signing_from(signed(b"{}", credentials, "https://proxy.example/kinesis/"), credentials) is None
    assert signing_from(signed(b"{}", credentials, "https://proxy.example/?a=b"), credentials) is None
    unsigned = AWSRequest("POST", "https://kinesis.eu-central-1.amazonaws.com/", HEADERS, b"{}")
    assert signing_from(unsigned, credentials) is None
    SigV4QueryAuth(credentials, "kinesis", "eu-central-1").add_auth(unsigned)
    assert signing_from(unsigned, credentials) is None


def test_the_host_has_its_port_only_where_it_is_not_the_schemes():
    assert host_of("https://Kinesis.Example:443/") == "kinesis.example"
    assert host_of("http://127.0.0.1:80") == "127.0.0.1"
    assert host_of("https://127.0.0.1:80/") == "127.0.0.1:80"


# --- exchanging -------------------------------------------------------------------------------------------------


@contextmanager
def answering(*connections, closed=None, read_timeout_s=60.0):
    """A server: for each connection the answers to its requests, each a list of pieces; None keeps silent.

    A semaphore counts the connections that it has closed.
    """
    listener = socket.create_server(("127.0.0.1", 0))
    asked, done = [], threading.Event()

    def serve():
        for answers in connections:
            accepted, _ = listener.accept()
            with accepted:
                for pieces in answers:
                    asked.append(accepted.recv(65_536))
                    if pieces is None:
                        done.wait(30)
                        break
                    for piece in pieces:
                        accepted.sendall(piece)
            if closed is not None:
                closed.release()

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    try:
        url = f"http://127.0.0.1:{listener.getsockname()[1]}/"
        yield PooledExchange(url, read_timeout_s=read_timeout_s), asked
    finally:
        done.set()
        listener.close()
        thread.join(30)


REQUEST = b"POST / HTTP/1.1\r\nContent-Length: 2\r\n\r\n{}"


def test_answers_of_every_framing_are_read_whole():
    plain = [b"HTTP/1.1 200 OK\r\nContent-Le", b"ngth: 5\r\nX-Amzn-RequestId:  7 \r\n\r\nab", b"cde"]
    chunked = [
        b"HTTP/1.1 400 Bad Request\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n2;x=y\r",
        b"\nde\r\n0\r\nTrailer: z\r\n\r\n",
    ]
    interim = [b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n"]
    empty = [b"HTTP/1.1 204 No Content\r\n\r\n"]
    closed = threading.Semaphore(0)
    until_closed = [[b"HTTP/1.1 200\r\n\r\nabc", b"de"]]
    with answering([plain, chunked, interim, empty], until_closed, closed=closed) as (
        pooled,
        asked,
    ):
        first = pooled.exchange(REQUEST)
        assert (first.status, first.body) == (200, b"abcde")
        assert first.headers["x-amzn-requestid"] == "7"
        second = pooled.exchange(REQUEST)
        assert (second.status, second.body) == (400, b"abcde")
        assert pooled.exchange(REQUEST)[::2] == (200, b"")
        assert pooled.exchange(REQUEST)[::2] == (204, b"")
        assert closed.acquire(timeout=30)  # else the next request could go over the first connection
        assert pooled.exchange(REQUEST)[::2] == (200, b"abcde")
    assert asked == [REQUEST] * 5


def test_a_folded_value_is_one_value():
    folded = [b"HTTP/1.1 200 OK\r\nX-A: b\r\n c: d\r\nContent-Length:\r\n\t2\r\n\r\n{}"]
    with answering([folded]) as (pooled, _):
        answer = pooled.exchange(REQUEST)
    assert (answer.body, answer.headers["x-a"]) == (b"{}", "b c: d")


def test_lines_may_end_without_a_carriage_return():
    plain = [b"HTTP/1.1 200 OK\nContent-Length: 2\nX-A:", b" b\n c\n\n{}"]
    mixed = [b"HTTP/1.1 200 OK\r\nContent-Length: 2\n\r", b"\n{}"]
    chunked = [b"HTTP/1.1 200 OK\nTransfer-Encoding: chunked\n\n3\nab\n\n0", b"\nTrailer: z\n\n"]
    with answering([plain, mixed, chunked]) as (pooled, asked):
        answer = pooled.exchange(REQUEST)
        assert (answer.body, answer.headers["x-a"]) == (b"{}", "b c")
        assert pooled.exchange(REQUEST).body == b"{}"
        assert pooled.exchange(REQUEST).body == b"ab\n"
    assert len(asked) == 3


def test_a_connection_that_its_server_has_closed_is_opened_again():
    answer = [b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\n1"]
    closing = [b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 1\r\n\r\n2"]
    closed = threading.Semaphore(0)
    with answering([answer], [closing], [answer], closed=closed) as (pooled, asked):
        for body in (b"1", b"2", b"1"):
            assert pooled.exchange(REQUEST).body == body
            assert closed.acquire(timeout=30)
    assert len(asked) == 3


def test_a_connection_that_was_idle_for_long_is_opened_anew_before_something_is_sent(monkeypatch):
    answer = [b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\n1"]
    clock = MovedClock()
    monkeypatch.setattr(pooled_exchange, "time", SimpleNamespace(monotonic=clock.monotonic_s))
    late = [b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\n2"]
    with answering([answer, answer, late], [answer]) as (pooled, asked):
        pooled.exchange(REQUEST)
        clock.sleep(49)
        pooled.exchange(REQUEST)
        assert asked == [REQUEST, REQUEST]
        clock.sleep(51)
        assert pooled.exchange(REQUEST).body == b"1"
    assert asked == [REQUEST, REQUEST, b"", REQUEST]


@pytest.mark.parametrize(
    "pieces",
    [
        [],
        [b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nabc"],
        [b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n9\r\nabc"],
        [b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nxyz\r\n"],
        [b"SSH-2.0-OpenSSH_9.6\r\n\r\n"],
        [b"HTTP/1.1 200 OK\r\nX: " + b"y" * 70_000],
    ],
)
def test_an_answer_that_is_not_whole_is_a_closed_connection_and_never_an_answer(pieces):
    with answering([pieces], [[b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"]]) as (pooled, _):
        with pytest.raises(sdk.ConnectionClosedError):
            pooled.exchange(REQUEST)
        assert pooled.exchange(REQUEST).status == 200


def test_a_silent_server_is_a_read_timeout_and_nothing_that_listens_was_not_sent():
    with answering([None], read_timeout_s=0.5) as (pooled, _), pytest.raises(sdk.ReadTimeoutError):
        pooled.exchange(REQUEST)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        url = f"http://127.0.0.1:{listener.getsockname()[1]}/"
    with pytest.raises(sdk.EndpointConnectionError):
        PooledExchange(url).exchange(REQUEST)


@pytest.mark.parametrize(
    "begin",
    [
        b"HTTP/1.1 200 OK\r\nX-A: ",
        b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3e8\r\n",
        b"HTTP/1.1 200 OK\r\n\r\n",
    ],
    ids=["head", "length", "chunk", "until_closed"],
)
def test_an_answer_that_drips_is_a_read_timeout_though_each_byte_comes_in_time(begin):
    given_up = threading.Event()

    def drops():
        yield begin
        while not given_up.wait(0.1):
            yield b"x"

    with answering([drops()], read_timeout_s=0.5) as (pooled, asked):
        began_s = time.monotonic()
        try:
            with pytest.raises(sdk.ReadTimeoutError):
                pooled.exchange(REQUEST)
        finally:
            given_up.set()
    assert time.monotonic() - began_s < 60  # byte by byte the whole answer would take longer
    assert asked == [REQUEST]


def test_no_more_connections_are_kept_than_allowed():
    class Open:
        is_closed = False

        def close(self):
            self.is_closed = True

    pooled, connections = PooledExchange("http://127.0.0.1:9/", idle_max=2), [Open() for _ in range(3)]
    for connection in connections:
        pooled._keep(connection)
    assert [each.is_closed for each in connections] == [False, False, True]
    del pooled  # nobody can use them any more
    gc.collect()
    assert all(each.is_closed for each in connections)


def test_over_tls_the_certificate_is_checked_before_anything_is_sent():
    with LocalKinesis(limits=False, settle_s=0, tls=True) as server:
        trusting = ssl.create_default_context(cafile=server.environ()["AWS_CA_BUNDLE"])
        url = f"{server.endpoint_url}/"
        for _ in range(2):
            assert PooledExchange(url, tls=trusting).exchange(REQUEST).status >= 400
        with pytest.raises(sdk.SSLError):
            PooledExchange(url, tls=ssl.create_default_context()).exchange(REQUEST)


# --- with a client ----------------------------------------------------------------------------------------------


def test_a_refused_condition_brings_the_row_also_when_the_call_is_repeated():
    with LocalKinesis(limits=False, settle_s=0) as server:
        client = client_for("dynamodb", AwsOptions(**server.connection()))
        client.create_table(
            TableName="rows",
            KeySchema=[{"AttributeName": "key", "KeyType": "HASH"}],
            AttributeDefinitions=[{"AttributeName": "key", "AttributeType": "S"}],
            BillingMode="PAY_PER_REQUEST",
        )
        item = {"key": {"S": "1"}, "bytes": {"B": b"\x00\xff"}, "many": {"BS": [b"\x01"]}, "n": {"N": "7"}}
        for place in range(3):
            client.put_item(TableName="rows", Item={**item, "key": {"S": str(place)}})
            found = client.get_item(TableName="rows", Key={"key": {"S": str(place)}})
            assert found["Item"] == {**item, "key": {"S": str(place)}}
        for _ in range(3):
            with pytest.raises(client.exceptions.ClientError) as caught:
                client.put_item(
                    TableName="rows",
                    Item=item,
                    ConditionExpression="attribute_not_exists(#key)",
                    ExpressionAttributeNames={"#key": "key"},
                    ReturnValuesOnConditionCheckFailure="ALL_OLD",
                )
            assert caught.value.response["Error"]["Code"] == "ConditionalCheckFailedException"
            assert caught.value.response["Item"] == item


@pytest.mark.timeout(60)
def test_what_tls_has_decrypted_behind_an_answer_is_never_the_next_one():
    class Decrypted(ssl.SSLSocket):
        """Has more behind the answer, which a look at the socket does not show."""

        def settimeout(self, _):
            """Nothing to wait for."""

        def sendall(self, _):
            """Answered already."""

        def recv(self, _):
            return b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n"

        def recv_into(self, view):
            view[:] = b"{}"
            return len(view)

        def pending(self):
            return 7

    with answering() as (pooled, _):
        answer, is_usable = pooled._send_and_read(Decrypted.__new__(Decrypted), REQUEST)
    assert (answer.body, is_usable) == (b"{}", False)


def test_a_refusal_that_comes_before_the_whole_request_was_read_is_the_answer():
    listener = socket.create_server(("127.0.0.1", 0))

    class Refused:
        """A socket whose peer reads no more; its answer is there."""

        def __init__(self, own, peer):
            self._own, self._peer = own, peer

        def __getattr__(self, name):
            return getattr(self._own, name)

        def sendall(self, _):
            self._peer.sendall(b"HTTP/1.1 413 Too Large\r\nContent-Length: 0\r\n\r\n")
            raise BrokenPipeError

    with listener:
        pooled = PooledExchange(f"http://127.0.0.1:{listener.getsockname()[1]}/", read_timeout_s=5.0)
        own, peer = socket.socketpair()
        with own, peer:
            answer, is_usable = pooled._send_and_read(Refused(own, peer), REQUEST)
    assert (answer.status, is_usable) == (413, False)


def test_a_list_in_the_header_connection_may_close_it():
    closing = [b"HTTP/1.1 200 OK\r\nConnection: X-Hop, Close\r\nContent-Length: 1\r\n\r\n1"]
    with answering([closing], [closing]) as (pooled, asked):
        assert [pooled.exchange(REQUEST).body for _ in range(2)] == [b"1", b"1"]
    assert len(asked) == 2


@pytest.mark.parametrize("length", [b"Content-Length: -3", b"Transfer-Encoding: chunked"])
def test_a_negative_length_is_no_answer(length):
    with (
        answering([[b"HTTP/1.1 200 OK\r\n" + length + b"\r\n\r\n-3\r\n{}abc"]]) as (pooled, _),
        pytest.raises(sdk.ConnectionClosedError),
    ):
        pooled.exchange(REQUEST)


class Heard:
    """A client of the embedded DynamoDB with a table, and the `Authorization` of each request that it sends."""

    def __init__(self, server):
        self.client = client_for("dynamodb", AwsOptions(**server.connection()))
        self.client.create_table(
            TableName="rows",
            KeySchema=[{"AttributeName": "key", "KeyType": "HASH"}],
            AttributeDefinitions=[{"AttributeName": "key", "AttributeType": "S"}],
            BillingMode="PAY_PER_REQUEST",
        )
        self.requests = []
        self.client.meta.events.register("before-send.dynamodb.PutItem", self.hear)

    def hear(self, request, **_):
        self.requests.append({str(name).lower(): _text(value) for name, value in request.headers.items()})

    def put(self):
        self.client.put_item(TableName="rows", Item={"key": {"S": "1"}})
        return self.requests[-1]


def _text(value):
    return value.decode() if isinstance(value, bytes) else value


def test_a_token_that_comes_or_goes_is_signed_or_left_out_as_botocore_does():
    with LocalKinesis(limits=False, settle_s=0) as server:
        heard = Heard(server)
        credentials = heard.client.put_item._credentials
        for _ in range(3):
            assert "x-amz-security-token" not in heard.put()
        for token in ("a-token", "a-token", None, None):
            credentials.token = token
            request = heard.put()
            names = request["authorization"].partition("SignedHeaders=")[2].partition(",")[0].split(";")
            assert ("x-amz-security-token" in names) == (token is not None)
            assert request.get("x-amz-security-token") == token


def test_a_request_behind_a_proxy_is_not_parsed_or_signed_again(monkeypatch):
    with LocalKinesis(limits=False, settle_s=0) as server:
        heard = Heard(server)
        credentials, addresses = heard.client.put_item._credentials, []
        monkeypatch.setattr(data_plane_client, "signing_from", None)
        monkeypatch.setattr(data_plane_client, "_decode", None)
        behind = DataPlaneClient(heard.client._client, credentials, addresses.append)
        heard.client.put_item._credentials = None  # its own handler has nothing to learn
        for _ in range(3):
            behind.put_item(TableName="rows", Item={"key": {"S": "1"}})
    assert addresses == [f"{server.endpoint_url}/"]
    assert len(heard.requests) == 3


def test_a_refused_signature_is_botocores_to_make_again(monkeypatch):
    with LocalKinesis(limits=False, settle_s=0) as server:
        heard = Heard(server)
        for _ in range(3):
            heard.put()

        def refuse(self, _):
            body = b'{"__type":"com.amazon.coral.service#InvalidSignatureException","message":"no"}'
            return Answer(400, {"content-length": str(len(body))}, body)

        monkeypatch.setattr(PooledExchange, "exchange", refuse)
        heard.put()  # by botocore, whose own way to send is not refused
        monkeypatch.undo()
        heard.put()


def test_an_answer_with_another_checksum_is_not_taken(monkeypatch):
    with LocalKinesis(limits=False, settle_s=0) as server:
        heard = Heard(server)
        for _ in range(3):
            heard.put()
        exchange = PooledExchange.exchange

        def damage(self, request):
            return Answer(200, {"x-amz-crc32": "1"}, exchange(self, request).body)

        monkeypatch.setattr(PooledExchange, "exchange", damage)
        with pytest.raises(ResponseParserError, match="checksum"):
            heard.put()


@pytest.mark.parametrize(
    ("owner", "name"),
    [(BaseClient, "_make_api_call"), (Endpoint, "prepare_request"), (URLLib3Session, "send")],
)
def test_whoever_wraps_botocores_calls_to_trace_them_sees_every_one(owner, name, monkeypatch):
    with LocalKinesis(limits=False, settle_s=0) as server:
        heard = Heard(server)
        for _ in range(3):
            heard.put()
        wrapped, seen = getattr(owner, name), []

        @functools.wraps(wrapped)
        def trace(*arguments, **named):
            seen.append(name)
            return wrapped(*arguments, **named)

        monkeypatch.setattr(owner, name, trace)
        for _ in range(3):
            heard.put()
    assert len(seen) == 3


def test_each_invocation_of_a_lambda_function_has_its_own_trace(monkeypatch):
    name = "x-amzn-trace-id"
    with LocalKinesis(limits=False, settle_s=0) as server:
        heard = Heard(server)
        assert [name in heard.put() for _ in range(6)] == [False] * 6
        monkeypatch.setenv("AWS_LAMBDA_FUNCTION_NAME", "copy")
        assert name not in heard.put()
        for trace in ("Root=1-a;Sampled=1", "Root=1-b c"):
            monkeypatch.setenv("_X_AMZN_TRACE_ID", trace)
            assert heard.put()[name] == trace.replace(" ", "%20")
        monkeypatch.delenv("AWS_LAMBDA_FUNCTION_NAME")
        assert name not in heard.put()
