"""TLS: certificates of the server's own and of the user, ALPN, handshakes that fail or never end."""

from __future__ import annotations

import os
import socket
import ssl
import time
from pathlib import Path
from urllib.parse import urlsplit

import pytest
import trustme

from http2_client import Http2Client
from penstock_local import LocalKinesis, LocalKinesisProcess, errors


@pytest.fixture
def server():
    with LocalKinesis(limits=False, tls=True) as server:
        yield server


def context(server: LocalKinesis, *protocols: str) -> ssl.SSLContext:
    found = ssl.create_default_context(cafile=server.ca_bundle)
    if protocols:
        found.set_alpn_protocols(protocols)
    return found


def address(server: LocalKinesis) -> tuple[str, int]:
    parts = urlsplit(server.endpoint_url)
    return parts.hostname, parts.port


def put_and_read(server: LocalKinesis, kinesis) -> bytes:
    server.create_stream("s")
    kinesis.put_record(StreamName="s", Data=bytes(900_000), PartitionKey="k")
    ask = {"StreamName": "s", "ShardId": "shardId-000000000000", "ShardIteratorType": "TRIM_HORIZON"}
    iterator = kinesis.get_shard_iterator(**ask)["ShardIterator"]
    return kinesis.get_records(ShardIterator=iterator)["Records"][0]["Data"]


def test_boto3_speaks_to_it_with_the_certificate_that_was_made(server):
    assert server.endpoint_url.startswith("https://127.0.0.1:")
    assert put_and_read(server, server.client("kinesis")) == bytes(900_000)
    assert server.client("dynamodb").list_tables()["TableNames"] == []


@pytest.mark.local_kinesis(tls=True)
def test_the_environment_of_the_fixture_is_enough(local_kinesis):
    import boto3

    assert os.environ["AWS_CA_BUNDLE"] == local_kinesis.ca_bundle
    assert put_and_read(local_kinesis, boto3.client("kinesis")) == bytes(900_000)


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1"])
def test_the_certificate_is_for_the_names_of_this_machine(server, host):
    with socket.create_connection(address(server), timeout=60) as connection:
        context(server).wrap_socket(connection, server_hostname=host).close()


def test_a_process_of_its_own_speaks_tls_too():
    with LocalKinesisProcess(limits=False, tls=True) as server:
        assert put_and_read(server, server.client("kinesis")) == bytes(900_000)
        made = Path(server.ca_bundle)
        assert made.exists()
    assert not made.parent.exists()


def test_a_certificate_may_be_given(tmp_path):
    authority = trustme.CA()
    leaf = authority.issue_cert("127.0.0.1")
    chain, key = tmp_path / "chain.pem", tmp_path / "key.pem"
    for pem in (*leaf.cert_chain_pems, authority.cert_pem):
        pem.write_to_path(str(chain), append=True)
    leaf.private_key_pem.write_to_path(str(key))
    with LocalKinesis(limits=False, cert=chain, key=key) as server:
        assert server.ca_bundle == str(chain)
        assert put_and_read(server, server.client("kinesis")) == bytes(900_000)
    assert chain.exists()


def test_a_certificate_that_cannot_be_used_is_named(tmp_path):
    wrong = tmp_path / "cert.pem"
    wrong.write_text("nothing")
    with pytest.raises(errors.OptionError, match=r"cannot use the certificate .*cert.pem"):
        LocalKinesis(cert=wrong, key=wrong).start()


@pytest.mark.parametrize(
    ("offered", "chosen"), [(("h2", "http/1.1"), "h2"), (("http/1.1",), "http/1.1"), ((), None)]
)
def test_the_client_chooses_the_version(server, offered, chosen):
    with socket.create_connection(address(server), timeout=60) as connection:
        tls = context(server, *offered).wrap_socket(connection, server_hostname="127.0.0.1")
        assert tls.selected_alpn_protocol() == chosen
        tls.close()


def test_requests_go_over_http_2(server):
    server.create_stream("s")
    with Http2Client(server.endpoint_url, tls=context(server, "h2")) as client:
        record = {"StreamName": "s", "Data": "A" * 1_000_000, "PartitionKey": "k"}
        assert client.call("PutRecord", record).status == 200
        server.stop()
        client.receive_to_the_end()
        assert client.goodbye is not None


def test_a_refusal_reaches_a_client_of_http_1(server):
    with socket.create_connection(address(server), timeout=60) as connection:
        tls = context(server).wrap_socket(connection, server_hostname="127.0.0.1")
        tls.sendall(b"nonsense\r\n\r\n")
        assert tls.recv(100).startswith(b"HTTP/1.1 400")
        tls.close()


def test_a_client_without_tls_is_let_go_and_disturbs_nobody(server):
    with socket.create_connection(address(server), timeout=60) as connection:
        connection.sendall(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")
        while connection.recv(1000):
            pass
    server.client("kinesis").list_streams()


def test_a_server_stops_at_once_though_handshakes_are_under_way(server):
    silent = [socket.create_connection(address(server), timeout=60) for _ in range(3)]
    with socket.create_connection(address(server), timeout=60) as connection:
        tls = context(server).wrap_socket(connection, server_hostname="127.0.0.1")
        began_s = time.monotonic()
        server.stop()
        assert time.monotonic() - began_s < 45  # a handshake may take a minute
        tls.close()
    for connection in silent:
        assert connection.recv(1) == b""
        connection.close()
