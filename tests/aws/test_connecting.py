"""What keeps a request from being sent: proxies and certificates. Nothing was sent then, no password is shown, and a way out is."""

import contextlib
import datetime as dt
import socket
import ssl
import threading
import traceback

import botocore.exceptions as sdk
import pytest
import trustme

from penstock.aws.aws_options import AwsOptions
from penstock.aws.connecting import is_connection_error, proxy_for
from penstock.aws.kinesis import AwsKinesis
from penstock.aws.service_calls import translate_error
from penstock.errors import AccessDenied, OptionError, Unavailable, UnknownOutcome
from penstock.ports.kinesis import PutEntry

ENTRIES = [PutEntry(data=b"x", partition_key="p")]
ANSWER = b'{"FailedRecordCount":0,"Records":[{"SequenceNumber":"1","ShardId":"shardId-000000000000"}]}'


@pytest.fixture(autouse=True)
def no_proxies(monkeypatch):
    for name in ("http_proxy", "https_proxy", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)


@contextlib.contextmanager
def listening(serve):
    """A server that passes each of its connections to a function; it yields its port and a list of the connections."""
    taken = []

    def run_one(connection):
        with connection, contextlib.suppress(OSError):
            serve(connection)

    with socket.create_server(("127.0.0.1", 0)) as listener:

        def run():
            with contextlib.suppress(OSError):  # until it is closed
                while True:
                    connection, _ = listener.accept()
                    taken.append(connection)
                    threading.Thread(target=run_one, args=(connection,), daemon=True).start()

        thread = threading.Thread(target=run, daemon=True)
        thread.start()
        yield listener.getsockname()[1], taken
        listener.shutdown(socket.SHUT_RDWR)
    thread.join(30)


def options(port: int, scheme="https", **changes) -> AwsOptions:
    values = {
        "region": "us-east-1",
        "endpoint_url": f"{scheme}://127.0.0.1:{port}",
        "access_key_id": "a",
        "secret_access_key": "b",
        "retry_base_s": 0.001,
        "retry_cap_s": 0.001,
        "attempts_max": 3,
    }
    return AwsOptions(**{**values, **changes})


def put(kinesis):
    return kinesis.put_records("orders", ENTRIES)


def answer_over(context):
    """Answer one request of a connection as PutRecords, and close it."""

    def serve(connection):
        with context.wrap_socket(connection, server_side=True) as secure:
            request = b""
            while not request.endswith(b"}"):
                piece = secure.recv(65_536)
                if not piece:  # the client has closed the connection before its request
                    return
                request += piece
            head = b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: %d\r\n\r\n" % len(ANSWER)
            secure.sendall(head + ANSWER)

    return serve


@pytest.mark.parametrize(
    ("proxy", "secret"),
    [
        ("http://user:s3cr#et@proxy.example:3128", "s3cr"),
        ("http://user:s3cr/et@proxy.example:3128", "s3cr"),
        ("http://user:3128/s3cret@proxy.example:3128", "s3cret"),
        ("http://user:s3cret@proxy.example:99999", "s3cret"),
        ("socks5://user:s3cret@proxy.example:1080", "s3cret"),
        ("http://user:s3cret@:3128", "s3cret"),
        ("user:s3cr?et@proxy.example:3128", "s3cr"),
    ],
)
def test_a_proxy_that_cannot_be_one_is_an_error_of_its_variable_and_not_shown(proxy, secret, monkeypatch):
    monkeypatch.setenv("https_proxy", proxy)
    with pytest.raises(OptionError, match="HTTPS_PROXY") as caught:
        put(AwsKinesis(options(9, role_session_name=f"behind {proxy}".replace(secret, ""))))
    assert secret not in "".join(traceback.format_exception(caught.value))


@pytest.mark.parametrize(
    "proxy",
    ["http://proxy.example:3128", "proxy.example:3128", "//proxy", "https://u:p%40%23@[::1]:3128/"],
)
def test_a_proxy_is_taken_as_botocore_takes_it_and_not_for_addresses_that_go_without(proxy, monkeypatch):
    url = "https://kinesis.us-east-1.amazonaws.com"
    assert proxy_for(url) is None
    monkeypatch.setenv("https_proxy", proxy)
    assert proxy_for(url) == proxy
    monkeypatch.setenv("no_proxy", ".amazonaws.com")
    assert proxy_for(url) is None


@pytest.mark.parametrize("scheme", ["http", "https"])
def test_a_proxy_that_refuses_the_password_is_an_error_of_access_that_shows_none(scheme, monkeypatch):
    def refuse(connection):
        connection.recv(65_536)
        connection.sendall(b"HTTP/1.1 407 Proxy Authentication Required\r\nContent-Length: 0\r\n\r\n")

    with listening(refuse) as (port, taken):
        monkeypatch.setenv(f"{scheme}_proxy", f"http://user:s3cret@127.0.0.1:{port}")
        with pytest.raises(AccessDenied, match=r"407.*HTTPS_PROXY") as caught:
            put(AwsKinesis(options(9, scheme)))
        assert "s3cret" not in "".join(traceback.format_exception(caught.value))
        assert len(taken) == 1


UNTRUSTED = ("unknown authority", "another name", "expired")


@pytest.mark.parametrize(
    ("why", "is_repeated"),
    [*((why, True) for why in UNTRUSTED), *((why, False) for why in (*UNTRUSTED, "no such file"))],
)
def test_a_certificate_that_is_not_trusted_is_told_at_once_and_nothing_was_sent(
    why, is_repeated, monkeypatch, tmp_path
):
    authority = trustme.CA()
    authority.cert_pem.write_to_path(tmp_path / "trusted.pem")
    yesterday = dt.datetime.now(dt.UTC) - dt.timedelta(days=1)
    issuer = trustme.CA() if why == "unknown authority" else authority
    name = "kinesis.example" if why == "another name" else "127.0.0.1"
    bad, good = (
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER),
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER),
    )
    issuer.issue_cert(name, not_after=yesterday if why == "expired" else None).configure_cert(bad)
    authority.issue_cert("127.0.0.1").configure_cert(good)
    contexts = [good, bad] if is_repeated else [bad]
    trusted = tmp_path / "trusted.pem"
    monkeypatch.setenv("AWS_CA_BUNDLE", str(trusted))

    def serve(connection):
        answer_over(contexts.pop(0) if len(contexts) > 1 else contexts[0])(connection)

    with listening(serve) as (port, taken):
        kinesis = AwsKinesis(options(port))
        if is_repeated:
            assert put(kinesis)[0].sequence_number == "1"
        if why == "no such file":
            monkeypatch.setenv("AWS_CA_BUNDLE", str(tmp_path / "none.pem"))
        connection_count = len(taken)
        with pytest.raises(Unavailable, match=rf"no connection.*127\.0\.0\.1:{port}.*AWS_CA_BUNDLE"):
            put(kinesis)
        with pytest.raises(Unavailable, match="AWS_CA_BUNDLE"):
            kinesis.fetch_summary("orders")
        assert len(taken) - connection_count <= 2


def test_a_put_whose_connection_is_closed_while_it_opens_was_not_sent_and_one_behind_that_may_have_been():
    with listening(lambda _: None) as (port, _), pytest.raises(Unavailable) as caught:
        put(AwsKinesis(options(port)))
    opening = caught.value.__cause__
    assert is_connection_error(opening)
    with listening(lambda connection: connection.recv(65_536)) as (port, _):
        try:
            raise opening
        except sdk.BotoCoreError:  # what failed before says nothing of the call that follows
            with pytest.raises(UnknownOutcome):
                put(AwsKinesis(options(port, "http")))


def test_the_reason_is_named_that_the_sdks_error_leaves_out():
    error = sdk.EndpointConnectionError(endpoint_url="https://x", error=OSError("Name or service not known"))
    assert "(Name or service not known)" in str(translate_error(error, "Op", "stream s", is_write=True))
