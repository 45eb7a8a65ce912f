"""Metrics for Prometheus: its text format, served by the standard library's HTTP server."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Final, Self

from penstock.consumer.metrics_tally import Labels, MetricsTally, Series, Snapshot
from penstock.errors import OptionError

_CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"


class PrometheusMetrics(MetricsTally):
    """Serves `/metrics`; implements `penstock.ports.metrics.Metrics`.

    Counters get the ending `_total`, distributions become summaries (`_sum`, `_count`) with a `_max` gauge.

    Args:
        port: TCP port; 0 takes a free one, see `port` afterwards.
        host: Address to listen on; only this machine by default.
        prefix: In front of every name.

    Raises:
        OptionError: The port cannot be used.
    """

    def __init__(self, port: int = 9464, host: str = "127.0.0.1", prefix: str = "penstock_") -> None:
        super().__init__()
        self._prefix = prefix
        tally = self

        class Handler(BaseHTTPRequestHandler):
            """Answers GET /metrics."""

            def do_GET(self) -> None:
                if self.path.partition("?")[0] not in ("/", "/metrics"):
                    self.send_error(404)
                    return
                body = tally.render().encode()
                self.send_response(200)
                self.send_header("Content-Type", _CONTENT_TYPE)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the server's name
                """Say nothing about each scrape."""

        try:
            self._server = ThreadingHTTPServer((host, port), Handler)
        except (OSError, OverflowError) as error:
            raise OptionError(f"cannot serve metrics on {host}:{port}: {error}") from error
        self._server.daemon_threads = True
        self.port: int = self._server.server_address[1]
        self._thread = threading.Thread(
            target=self._server.serve_forever,
            kwargs={"poll_interval": 0.1},
            name="penstock-metrics",
            daemon=True,
        )
        self._thread.start()

    def render(self) -> str:
        """Give everything that was measured, as Prometheus reads it."""
        return "\n".join(_lines(self.snapshot(), self._prefix)) + "\n"

    def close(self) -> None:
        """Stop serving."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _lines(snapshot: Snapshot, prefix: str) -> Iterator[str]:
    yield from _family(snapshot.counters, prefix, "_total", "counter")
    yield from _family(snapshot.gauges, prefix, "", "gauge")
    named: str | None = None
    for (name, labels), known in sorted(snapshot.distributions.items()):
        if name != named:
            named = name
            yield f"# TYPE {prefix}{name} summary"
        yield f"{prefix}{name}_sum{_render(labels)} {known.sum!r}"
        yield f"{prefix}{name}_count{_render(labels)} {known.count}"
    largest = {
        (f"{name}_max", labels): known.maximum for (name, labels), known in snapshot.distributions.items()
    }
    yield from _family(largest, prefix, "", "gauge")


def _family(series: dict[Series, float], prefix: str, ending: str, kind: str) -> Iterator[str]:
    named: str | None = None
    for (name, labels), value in sorted(series.items()):
        if name != named:
            named = name
            yield f"# TYPE {prefix}{name}{ending} {kind}"
        yield (
            f"{prefix}{name}{ending}{_render(labels)} {value:g}"
            if value < 1e6
            else (f"{prefix}{name}{ending}{_render(labels)} {value!r}")
        )


def _render(labels: Labels) -> str:
    if not labels:
        return ""
    inside = ",".join(f'{name}="{_escape(value)}"' for name, value in labels)
    return f"{{{inside}}}"


def _escape(value: str) -> str:
    return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
