"""Metrics for Prometheus, and a worker's health for its supervisor: served by the standard library's HTTP server."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from itertools import groupby
from typing import Final, Self

from penstock.consumer.health import Health
from penstock.runtime.http_service import GetHandler, HttpService
from penstock.runtime.metrics_tally import LabelledMetrics, Labels, MetricsTally, Series, Snapshot

_CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"


class PrometheusMetrics(MetricsTally):
    """Serves `/metrics`, `/health` and `/ready`; implements `penstock.metrics.Metrics`.

    Counters get the ending `_total`, distributions become summaries (`_sum`, `_count`) with a `_max` gauge. Several
    consumers may share one object: the figures of each have its stream, application and worker as labels.

    `/health` answers 200 if every consumer is healthy, `/ready` if every one is ready; else they answer 503. The JSON body
    has, for each consumer, the problems, the state and lag of each shard, and the stopped shards with the reasons.

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

        self._healths: dict[str, Callable[[], Health]] = {}

        class Handler(GetHandler):
            def respond(self) -> None:
                path = self.path.partition("?")[0]
                if path in ("/", "/metrics"):
                    self.send(200, _CONTENT_TYPE, tally.render())
                elif path in ("/health", "/ready"):
                    is_well, text = tally.render_health(path)
                    self.send(200 if is_well else 503, "application/json", text)
                else:
                    self.send_error(404)

        self._service = HttpService(host, port, Handler, "metrics")
        self.port: int = self._service.port

    def of_consumer(
        self, stream: str, application: str, worker_id: str, health: Callable[[], Health]
    ) -> LabelledMetrics:
        """Serve a consumer's health, and return the metrics that the consumer fills. `Consumer` calls this when it starts."""
        self._healths[f"{application}/{worker_id}"] = health
        return LabelledMetrics(self, {"stream": stream, "application": application, "worker": worker_id})

    def render_health(self, path: str) -> tuple[bool, str]:
        """Return whether every consumer is healthy, or ready, and the health of each as JSON.

        Args:
            path: `/health` or `/ready`.
        """
        healths = [health() for health in list(self._healths.values())]
        if path == "/ready":
            is_well = bool(healths) and all(health.is_ready for health in healths)
        else:
            is_well = bool(healths) and all(health.is_healthy for health in healths)
        documents = [health.to_document() for health in healths]
        problems = [problem for health in healths for problem in health.problems]
        if not healths:
            problems = ["no consumer has started"]
        return is_well, json.dumps({"is_well": is_well, "problems": problems, "consumers": documents}) + "\n"

    def render(self) -> str:
        """Return everything that was measured, as Prometheus reads it."""
        return "\n".join(_render_snapshot(self.snapshot(), self._prefix)) + "\n"

    def close(self) -> None:
        """Stop serving."""
        self._service.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _render_snapshot(snapshot: Snapshot, prefix: str) -> Iterator[str]:
    yield from _render_family(snapshot.counters, prefix, "_total", "counter")
    yield from _render_family(snapshot.gauges, prefix, "", "gauge")
    distributions = sorted(snapshot.distributions.items())
    for name, family in groupby(distributions, key=lambda item: item[0][0]):
        yield f"# TYPE {prefix}{name} summary"
        for (_, labels), each in family:
            yield f"{prefix}{name}_sum{_render_labels(labels)} {each.sum!r}"
            yield f"{prefix}{name}_count{_render_labels(labels)} {each.count}"
    largest = {(f"{name}_max", labels): each.maximum for (name, labels), each in distributions}
    yield from _render_family(largest, prefix, "", "gauge")


def _render_family(series: dict[Series, float], prefix: str, ending: str, kind: str) -> Iterator[str]:
    for name, family in groupby(sorted(series.items()), key=lambda item: item[0][0]):
        yield f"# TYPE {prefix}{name}{ending} {kind}"
        for (_, labels), value in family:
            shown = f"{value:g}" if value < 1e6 else repr(value)
            yield f"{prefix}{name}{ending}{_render_labels(labels)} {shown}"


def _render_labels(labels: Labels) -> str:
    if not labels:
        return ""
    inside = ",".join(f'{name}="{_escape_label(value)}"' for name, value in labels)
    return f"{{{inside}}}"


def _escape_label(value: str) -> str:
    text = value.encode("utf-8", "backslashreplace").decode()  # a folder's name need not be UTF-8
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
