"""Subscriptions over HTTP/2, against a server that does what a test says."""

import asyncio
import contextlib
import queue
import socket
import threading

import pytest

from event_frames import OPENING, event, exception, frame
from http2_peer import Exchange, Peer
from penstock.aws import event_connections
from penstock.aws.aws_options import AwsOptions
from penstock.aws.fan_out import AwsFanOut
from penstock.core.reading.resume import IteratorStart, IteratorType
from penstock.errors import AccessDenied, NotFound, ResourceBusy, Throttled, Unavailable
from penstock.ports.fan_out import FanOutEnded, FanOutFailed, FanOutOpened, FanOutPage
from penstock_local import LocalKinesis
from waiting import wait_until

ARN = "arn:aws:kinesis:us-east-1:123456789012:stream/orders/consumer/billing:1700000000"
START = IteratorStart(IteratorType.AT_TIMESTAMP, timestamp_ms=1_700_000_000_250)
TIMEOUT_S = 30.0


def options(url: str) -> AwsOptions:
    return AwsOptions(
        region="us-east-1",
        endpoint_url=url,
        access_key_id="AKIDTEST",
        secret_access_key="s",
        connect_timeout_s=30.0,
    )


class Subscriber:
    """One subscription, and what it was told."""

    def __init__(self, url: str) -> None:
        self.told: queue.Queue = queue.Queue()
        self.stream = AwsFanOut(options(url)).subscribe(ARN, "shardId-0", START, self.told.put)

    def next(self, kind):
        found = self.told.get(timeout=TIMEOUT_S)
        assert isinstance(found, kind), found
        return found

    def ask(self) -> int:
        self.stream.request()
        return int(self.next(FanOutPage).page.next_iterator)


@pytest.fixture
def serve():
    peers = []

    def start(answer, **how) -> Peer:
        peers.append(Peer(answer, **how))
        return peers[-1]

    yield start
    for peer in peers:
        peer.close()


def with_events(*parts: bytes, ends: bool = True):
    def answer(exchange: Exchange) -> None:
        exchange.open()
        exchange.send(frame(b"{}", OPENING) + b"".join(parts))
        if ends:
            exchange.end()

    return answer


def broken(serve, answer) -> Exception:
    """Return the error of a subscription that is asked for one event."""
    subscriber = Subscriber(serve(answer).url)
    subscriber.stream.request()
    found = subscriber.told.get(timeout=TIMEOUT_S)
    return (subscriber.next(FanOutFailed) if isinstance(found, FanOutOpened) else found).error


def test_events_come_one_by_one_as_they_are_asked_for_and_the_end_behind_them(serve):
    subscriber = Subscriber(serve(with_events(event(1), event(2), event(3))).url)
    subscriber.next(FanOutOpened)
    assert [subscriber.ask() for _ in range(3)] == [1, 2, 3]
    subscriber.next(FanOutEnded)
    assert subscriber.told.empty()


def test_a_subscription_is_signed_by_botocore_and_not_sent_by_it(serve):
    peer = serve(with_events())
    Subscriber(peer.url).next(FanOutOpened)
    (exchange,) = peer.exchanges
    assert exchange.headers["x-amz-target"] == "Kinesis_20131202.SubscribeToShard"
    assert exchange.headers["content-type"] == "application/x-amz-json-1.1"
    assert "Credential=AKIDTEST/" in exchange.headers["authorization"]
    assert "host;" in exchange.headers["authorization"]
    assert f"http://{exchange.headers[':authority']}" == peer.url
    assert "host" not in exchange.headers


@pytest.mark.parametrize(
    ("status", "code", "kind"),
    [
        (400, "ResourceInUseException", ResourceBusy),
        (400, "com.amazonaws.kinesis#ResourceNotFoundException", NotFound),
        (400, "LimitExceededException", Throttled),
        (400, "AccessDeniedException", AccessDenied),
        (500, "InternalFailure", Unavailable),
        (503, "", Unavailable),
    ],
)
def test_a_refusal_is_the_error_that_it_would_be_of_any_other_call(serve, status, code, kind):
    error = broken(serve, lambda exchange: exchange.refuse(status, code, "no"))
    assert type(error) is kind
    assert "SubscribeToShard on shard shardId-0, consumer arn:" in str(error)


def test_an_exception_between_events_comes_behind_those_before_it(serve):
    taken = exception("ResourceInUseException", "another active subscription exists")
    subscriber = Subscriber(serve(with_events(event(1), taken, ends=False)).url)
    subscriber.next(FanOutOpened)
    assert subscriber.ask() == 1
    subscriber.stream.request()
    error = subscriber.next(FanOutFailed).error
    assert isinstance(error, ResourceBusy)
    assert "another active subscription exists" in str(error)


def test_an_error_that_no_model_knows_is_tried_again(serve):
    headers = {":message-type": "error", ":error-code": "Oops", ":error-message": "sorry"}
    assert type(broken(serve, with_events(frame(b"", headers)))) is Unavailable


def test_a_wrong_checksum_breaks_the_stream_behind_what_was_whole(serve):
    wrong = bytearray(event(2))
    wrong[-1] ^= 1
    peer = serve(with_events(event(1), bytes(wrong), event(3), ends=False))
    subscriber = Subscriber(peer.url)
    subscriber.next(FanOutOpened)
    assert subscriber.ask() == 1
    subscriber.stream.request()
    assert "checksum" in str(subscriber.next(FanOutFailed).error)
    wait_until(lambda: peer.exchanges[0].is_reset)


def test_a_frame_that_is_cut_off_by_the_end_is_an_error_and_no_end(serve):
    assert "inside a frame" in str(broken(serve, with_events(event(1)[:-5])))


def test_a_reset_a_farewell_and_a_lost_connection_are_told(serve):
    def reset(exchange):
        exchange.open()
        exchange.peer.h2.reset_stream(exchange.number)

    def farewell(exchange):
        exchange.open()
        exchange.peer.h2.close_connection()

    def cut(exchange):
        exchange.open()
        exchange.peer.drop()

    assert "reset" in str(broken(serve, reset))
    assert "GOAWAY" in str(broken(serve, farewell))
    assert isinstance(broken(serve, cut), Unavailable)


def test_a_new_subscription_after_a_lost_connection_opens_another_one(serve):
    answers = [lambda exchange: exchange.peer.h2.close_connection(), with_events(event(7))]

    def answer(exchange):
        answers.pop(0)(exchange)

    peer = serve(answer)
    first = Subscriber(peer.url)
    first.next(FanOutFailed)
    second = Subscriber(peer.url)
    second.next(FanOutOpened)
    assert second.ask() == 7
    assert peer.connection_count == 2


def test_a_connection_that_is_closed_as_soon_as_it_is_ready_is_not_used_again(serve):
    peer = serve(with_events(event(1)), farewells=1)
    first = Subscriber(peer.url)
    assert "GOAWAY" in str(first.next(FanOutFailed).error)
    second = Subscriber(peer.url)
    second.next(FanOutOpened)
    assert second.ask() == 1


def test_of_what_nobody_asks_for_a_window_is_received_and_other_streams_go_on(serve):
    many = b"".join(event(number, bytes(40_000)) for number in range(100))
    peer = serve(with_events(many, ends=False))
    stalled, lively = Subscriber(peer.url), Subscriber(peer.url)
    stalled.next(FanOutOpened)
    lively.next(FanOutOpened)
    assert [lively.ask() for _ in range(100)] == list(range(100))
    of_stalled = peer.exchanges[0]
    assert len(many) - len(of_stalled.waiting) <= 512 * 1024
    assert stalled.told.empty()
    assert [stalled.ask() for _ in range(100)] == list(range(100))
    assert peer.connection_count == 1


def test_an_event_that_is_larger_than_the_window_comes_whole(serve):
    subscriber = Subscriber(serve(with_events(event(1, bytes(3_000_000)), event(2))).url)
    subscriber.next(FanOutOpened)
    subscriber.stream.request()
    assert len(subscriber.next(FanOutPage).page.records[0].data) == 3_000_000
    assert subscriber.ask() == 2


def test_what_is_closed_is_reset_and_told_nothing_more(serve):
    peer = serve(with_events(event(1), event(2), ends=False))
    subscriber = Subscriber(peer.url)
    subscriber.next(FanOutOpened)
    assert subscriber.ask() == 1
    subscriber.stream.close()
    subscriber.stream.request()
    wait_until(lambda: peer.exchanges[0].is_reset)
    assert subscriber.told.empty()


def test_an_endpoint_that_is_not_there_or_speaks_no_http2_is_an_error_that_names_it():
    with socket.create_server(("127.0.0.1", 0)) as listener:
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"

        def answer_in_http1():
            connection, _ = listener.accept()
            with connection:
                connection.recv(65536)
                connection.sendall(b"HTTP/1.1 400 Bad Request\r\ncontent-length: 0\r\n\r\n")

        thread = threading.Thread(target=answer_in_http1)
        thread.start()
        error = Subscriber(url).next(FanOutFailed).error
        thread.join()
    assert isinstance(error, Unavailable)
    assert f"no connection of HTTP/2 to {url}" in str(error)
    assert f"no connection of HTTP/2 to {url}" in str(Subscriber(url).next(FanOutFailed).error)


def test_a_server_that_answers_in_http1_and_keeps_the_connection_is_named_at_once():
    asked_more = threading.Event()

    def answer_in_http1(listener):
        connection, _ = listener.accept()
        with connection:
            connection.recv(65536)
            connection.sendall(b"HTTP/1.1 400 Bad Request\r\ncontent-length: 0\r\n\r\n")
            asked_more.wait(TIMEOUT_S)

    with socket.create_server(("127.0.0.1", 0)) as listener:
        threading.Thread(target=answer_in_http1, args=(listener,), daemon=True).start()
        error = (
            Subscriber(f"http://127.0.0.1:{listener.getsockname()[1]}").told.get(timeout=TIMEOUT_S / 3).error
        )
    asked_more.set()
    assert "does not speak HTTP/2" in str(error)
    assert "400 Bad Request" in str(error)


def test_a_certificate_that_is_not_trusted_and_a_name_that_cannot_be_one_are_told_with_a_way_out(monkeypatch):
    monkeypatch.delenv("AWS_CA_BUNDLE", raising=False)
    with LocalKinesis(limits=False, settle_s=0, tls=True) as server:
        assert "AWS_CA_BUNDLE" in str(Subscriber(server.endpoint_url).next(FanOutFailed).error)
    monkeypatch.setenv("http_proxy", f"http://{'a' * 64}.example:1")
    monkeypatch.delenv("no_proxy", raising=False)
    monkeypatch.delenv("NO_PROXY", raising=False)
    assert "no connection of HTTP/2 to http://x.example" in str(
        Subscriber("http://x.example").next(FanOutFailed).error
    )


@pytest.mark.parametrize(
    ("url", "authority", "target"),
    [
        ("https://kinesis.example", "kinesis.example", "kinesis.example:443"),
        ("https://kinesis.example:8443", "kinesis.example:8443", "kinesis.example:8443"),
        ("https://[fd00::1]", "[fd00::1]", "[fd00::1]:443"),
        ("http://[fd00::1]:4567", "[fd00::1]:4567", "[fd00::1]:4567"),
    ],
)
def test_a_proxy_is_told_the_port_also_where_it_is_the_schemes_own(url, authority, target):
    origin = event_connections.Origin(url, None, None, 5.0)
    assert (origin.authority, origin.target) == (authority, target)


def test_each_address_of_a_proxy_is_tried(serve, monkeypatch):
    peer = serve(with_events(event(5), ends=False))
    with socket.create_server(("127.0.0.1", 0)) as nobody:
        refused = nobody.getsockname()[:2]
    there = peer.url.removeprefix("http://").rpartition(":")
    known = [
        (socket.AF_INET, socket.SOCK_STREAM, 6, "", address)
        for address in (refused, (there[0], int(there[2])))
    ]

    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: known)

    async def run():
        with await event_connections._connect("proxy.example", 3128, 5.0) as found:
            assert found.getpeername() == known[1][4]
        del known[1]
        with pytest.raises(ConnectionError, match=r"the proxy proxy\.example:3128 cannot be reached"):
            await event_connections._connect("proxy.example", 3128, 5.0)

    asyncio.run(run())


def test_a_proxy_of_the_environment_is_used(serve, monkeypatch):
    peer = serve(with_events(event(5), ends=False))
    asked = []

    def forward(listener):
        connection, _ = listener.accept()
        with connection:
            asked.append(connection.recv(65536))
            port = int(asked[0].split()[1].rpartition(b":")[2])
            host = peer.url.split("//")[1].split(":")[0]
            with socket.create_connection((host, port)) as there:
                connection.sendall(b"HTTP/1.1 200 Connection established\r\n\r\n")
                back = threading.Thread(target=pump, args=(there, connection))
                back.start()
                pump(connection, there)
                back.join()

    def pump(source, target):
        with contextlib.suppress(OSError):
            while data := source.recv(65536):
                target.sendall(data)
            target.shutdown(socket.SHUT_WR)

    with socket.create_server(("127.0.0.1", 0)) as listener:
        threading.Thread(target=forward, args=(listener,), daemon=True).start()
        monkeypatch.delenv("no_proxy", raising=False)
        monkeypatch.delenv("NO_PROXY", raising=False)
        monkeypatch.setenv("http_proxy", f"http://user:word@127.0.0.1:{listener.getsockname()[1]}")
        port = peer.url.rpartition(":")[2]
        subscriber = Subscriber(f"http://stream.example:{port}")
        subscriber.next(FanOutOpened)
        assert subscriber.ask() == 5
    assert asked[0].startswith(b"CONNECT stream.example:")
    assert b"Proxy-Authorization: Basic dXNlcjp3b3Jk" in asked[0]
