"""The HTTP server behind the dashboard and the metrics: how many it answers at once."""

import contextlib
import socket
import socketserver
import time

import pytest

from penstock.errors import OptionError
from penstock.runtime import http_service
from penstock.runtime.http_service import GetHandler, HttpService


class Handler(GetHandler):
    timeout = 600

    def respond(self):
        self.send_response(204)
        self.end_headers()


def read(connection):
    with connection.makefile("rb") as answer:
        return answer.read()


def ask(connection):
    try:
        connection.sendall(b"GET / HTTP/1.0\r\n\r\n")
        return read(connection)
    except ConnectionError:  # closed before it could ask
        return b""


def test_more_connections_than_there_is_room_for_are_closed_and_room_comes_back(monkeypatch):
    monkeypatch.setattr(http_service, "_CONNECTIONS_MAX", 3)
    service = HttpService("127.0.0.1", 0, Handler, "a test")
    try:
        with contextlib.ExitStack() as stack:

            def connect():
                return stack.enter_context(socket.create_connection(("127.0.0.1", service.port), timeout=60))

            waiting = [connect() for _ in range(3)]
            assert connect().recv(100) == b"", "closed without an answer"
            for each in waiting:
                assert ask(each).startswith(b"HTTP/1.0 204")
            end_s = time.monotonic() + 60
            while not ask(connect()).startswith(b"HTTP/1.0 204"):
                assert time.monotonic() < end_s
    finally:
        service.close()


def test_room_comes_back_where_no_thread_could_be_started(monkeypatch):
    monkeypatch.setattr(http_service, "_CONNECTIONS_MAX", 1)
    service = HttpService("127.0.0.1", 0, Handler, "a test")
    try:
        with monkeypatch.context() as without_threads:

            def refuse(*_):
                raise RuntimeError("can't start new thread")

            without_threads.setattr(socketserver.ThreadingMixIn, "process_request", refuse)
            for _ in range(3):
                with socket.create_connection(("127.0.0.1", service.port), timeout=60) as connection:
                    assert ask(connection) == b""
        with socket.create_connection(("127.0.0.1", service.port), timeout=60) as connection:
            assert ask(connection).startswith(b"HTTP/1.0 204")
    finally:
        service.close()


def test_a_client_that_never_finishes_its_request_does_not_hold_its_place_for_ever(monkeypatch, capfd):
    monkeypatch.setattr(http_service, "_CONNECTION_TIME_MAX_S", 0.0)
    service = HttpService("127.0.0.1", 0, Handler, "a test")
    try:
        with socket.create_connection(("127.0.0.1", service.port), timeout=60) as connection:
            with contextlib.suppress(ConnectionError):
                connection.sendall(b"GET / HTTP/1.0\r\nX-Slow:")
            with contextlib.suppress(ConnectionError):
                read(connection)  # to the end: the handler alone would wait for ten minutes
    finally:
        service.close()
    assert capfd.readouterr().err == ""


def test_a_port_that_is_taken_is_an_error_that_names_it():
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(
            OptionError, match=rf"cannot serve a test on 127\.0\.0\.1:{port}: .*; give a port"
        ):
            HttpService("127.0.0.1", port, Handler, "a test")
