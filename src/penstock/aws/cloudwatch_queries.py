"""What CloudWatch knows of streams, by the minute."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from functools import partial
from typing import Any, Final

from penstock.aws.aws_options import AwsOptions
from penstock.aws.connection import client_for
from penstock.aws.service_calls import call, pages_of
from penstock.runtime.threads import map_on_daemons

QUERIES_PER_CALL_MAX: Final = 500
"""Metrics in one call of GetMetricData (API reference)."""
_CALLS_AT_ONCE: Final = 4
_PERIOD_S: Final = 60


Query = tuple[str, str | None]
"""A metric of the namespace AWS/Kinesis; and the shard's id, or None for the stream itself."""
Sums = Mapping[int, float]
"""By the minutes that have one: the beginning, in milliseconds since the epoch."""


class CloudWatchQueries:
    """Fetches metrics with GetMetricData, which CloudWatch bills by the metrics that are asked for. Thread-safe.

    Args:
        options: Where and as whom.
    """

    def __init__(self, options: AwsOptions) -> None:
        self._options = options

    def fetch(self, stream: str, queries: Sequence[Query], began_ms: int, ended_ms: int) -> list[Sums]:
        """Fetch the sums of some minutes.

        Args:
            stream: The stream's name.
            queries: Any number, 500 of them to a call.
            began_ms: A moment of the first minute.
            ended_ms: A moment of the last one.

        Returns:
            In the order of the queries.

        Raises:
            ServiceError: A call failed.
        """
        parts = [
            queries[at : at + QUERIES_PER_CALL_MAX] for at in range(0, len(queries), QUERIES_PER_CALL_MAX)
        ]
        span = (_moment(began_ms), _moment(ended_ms + _PERIOD_S * 1000))
        found = map_on_daemons(
            "penstock-queries", _CALLS_AT_ONCE, lambda part: self._fetch_part(stream, part, span), parts
        )
        return [sums for part in found for sums in part]

    def _fetch_part(
        self, stream: str, queries: Sequence[Query], span: tuple[datetime, datetime]
    ) -> list[dict[int, float]]:
        asked = {f"q{number}": query for number, query in enumerate(queries)}
        sums: dict[str, dict[int, float]] = {name: {} for name in asked}
        pages = pages_of(
            partial(self._send, stream),
            "NextToken",
            "NextToken",
            MetricDataQueries=[_document_of(name, stream, query) for name, query in asked.items()],
            StartTime=span[0],
            EndTime=span[1],
        )
        for page in pages:
            for result in page["MetricDataResults"]:
                for at, value in zip(result["Timestamps"], result["Values"], strict=True):
                    sums[result["Id"]][round(at.timestamp() * 1000)] = value
        return list(sums.values())

    def _send(self, stream: str, **arguments: Any) -> Any:
        client = client_for("cloudwatch", self._options)
        return call(
            lambda: client.get_metric_data(**arguments), "GetMetricData", f"stream {stream}", self._options
        )


def _document_of(name: str, stream: str, query: Query) -> dict[str, Any]:
    metric, shard = query
    dimensions = [{"Name": "StreamName", "Value": stream}]
    if shard is not None:
        dimensions.append({"Name": "ShardId", "Value": shard})
    asked = {"Namespace": "AWS/Kinesis", "MetricName": metric, "Dimensions": dimensions}
    return {"Id": name, "MetricStat": {"Metric": asked, "Period": _PERIOD_S, "Stat": "Sum"}}


def _moment(at_ms: int) -> datetime:
    """Return the beginning of a minute."""
    return datetime.fromtimestamp(at_ms // 1000 // _PERIOD_S * _PERIOD_S, UTC)
