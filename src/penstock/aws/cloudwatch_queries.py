"""Queries for CloudWatch's metrics of streams and queues, per minute."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from functools import partial
from typing import Any, Final

from msgspec import Struct

from penstock.aws.aws_options import AwsOptions
from penstock.aws.service_calls import call_operation, pages_of
from penstock.ports.sizing import QueryAnswer, Sums
from penstock.runtime.threads import map_on_daemons

QUERIES_PER_CALL_MAX: Final = 500
"""Metrics in one call of GetMetricData (API reference)."""
_CALLS_AT_ONCE: Final = 4
_PERIOD_S: Final = 60
_COMPLETE: Final = "Complete"
_FAILED: Final = ("InternalError", "Forbidden")
"""A query with this status failed: its missing figures do not mean that nothing was measured."""


Query = tuple[str, str | None]
"""A metric of the namespace AWS/Kinesis; and the shard's id, or None for the stream itself."""


class _Metric(Struct, frozen=True):
    """One metric: its name, its dimensions, and the requested statistic."""

    name: str
    dimensions: tuple[tuple[str, str], ...]
    statistic: str = "Sum"


class CloudWatchQueries:
    """Fetches metrics with GetMetricData, which CloudWatch bills by the requested metrics. Thread-safe."""

    def __init__(self, options: AwsOptions) -> None:
        self._options = options

    def fetch(
        self,
        stream: str,
        queries: Sequence[Query],
        began_ms: int,
        ended_ms: int,
        period_s: int = _PERIOD_S,
    ) -> QueryAnswer:
        """Fetch metrics of a stream as sums per minute, or per longer period.

        Args:
            queries: Any number, 500 of them to a call.
            began_ms: Any time in the first period.
            ended_ms: Any time in the last period.
            period_s: A multiple of 60. CloudWatch keeps minutes for 15 days, 5 minutes for 63 days, and hours for 455.

        Raises:
            ServiceError: A call failed.
        """
        metrics = [
            _Metric(name, (("StreamName", stream), *(() if shard is None else (("ShardId", shard),))))
            for name, shard in queries
        ]
        return self._fetch(f"stream {stream}", metrics, began_ms, ended_ms, period_s)

    def fetch_of_queues(
        self,
        queues: Sequence[tuple[str, str]],
        metrics: Sequence[tuple[str, str]],
        began_ms: int,
        ended_ms: int,
    ) -> QueryAnswer:
        """Fetch metrics of queues per minute. The answer has all metrics of the first queue, then all of the next one.

        Args:
            queues: Name and id of each; the id is the end of its ARN.
            metrics: Name and statistic of each.
            began_ms: Any time in the first minute.
            ended_ms: Any time in the last minute.

        Raises:
            ServiceError: A call failed.
        """
        queries = [
            _Metric(name, (("QueueName", queue), ("QueueId", queue_id)), statistic)
            for queue, queue_id in queues
            for name, statistic in metrics
        ]
        return self._fetch(f"{len(queues)} queues", queries, began_ms, ended_ms)

    def _fetch(
        self,
        resource: str,
        queries: Sequence[_Metric],
        began_ms: int,
        ended_ms: int,
        period_s: int = _PERIOD_S,
    ) -> QueryAnswer:
        parts = [
            queries[at : at + QUERIES_PER_CALL_MAX] for at in range(0, len(queries), QUERIES_PER_CALL_MAX)
        ]
        span = (_period_start(began_ms, period_s), _period_start(ended_ms + period_s * 1000, period_s))
        answers = map_on_daemons(
            "penstock-queries",
            _CALLS_AT_ONCE,
            lambda part: self._fetch_part(resource, part, span, period_s),
            parts,
        )
        statuses = Counter(status for results, _ in answers for _, status in results if status != _COMPLETE)
        problems = [message for _, messages in answers for message in messages]
        if statuses:
            counts = ", ".join(f"{status} for {count}" for status, count in sorted(statuses.items()))
            problems.append(
                f"CloudWatch did not answer all of {len(queries)} queries whole: {counts}; what it left out is unknown"
            )
        return QueryAnswer(
            [None if status in _FAILED else sums for results, _ in answers for sums, status in results],
            tuple(dict.fromkeys(problems)),
        )

    def _fetch_part(
        self, resource: str, queries: Sequence[_Metric], span: tuple[datetime, datetime], period_s: int
    ) -> tuple[list[tuple[Sums, str]], list[str]]:
        """Return the sums and the status of each query, in their order, and the messages of one call."""
        queries_by_id = {f"q{number}": query for number, query in enumerate(queries)}
        sums: dict[str, dict[int, float]] = {query_id: {} for query_id in queries_by_id}
        statuses = dict.fromkeys(queries_by_id, _COMPLETE)
        messages: list[str] = []
        pages = pages_of(
            partial(call_operation, "cloudwatch", "GetMetricData", resource, self._options),
            MetricDataQueries=[
                _document_of(query_id, query, period_s) for query_id, query in queries_by_id.items()
            ],
            StartTime=span[0],
            EndTime=span[1],
        )
        for page in pages:
            messages += [_sentence_of(message) for message in page.get("Messages", ())]
            for result in page["MetricDataResults"]:
                # PartialData on one page only means that a later one has more.
                statuses[result["Id"]] = result.get("StatusCode", _COMPLETE)
                messages += [_sentence_of(message) for message in result.get("Messages", ())]
                for at, value in zip(result["Timestamps"], result["Values"], strict=True):
                    sums[result["Id"]][round(at.timestamp() * 1000)] = value
        return [(sums[query_id], statuses[query_id]) for query_id in queries_by_id], messages


def _sentence_of(message: Mapping[str, str]) -> str:
    return f"CloudWatch: {message.get('Code', 'no code')}: {message.get('Value', 'no message')}"


def _document_of(query_id: str, query: _Metric, period_s: int) -> dict[str, Any]:
    dimensions = [{"Name": key, "Value": value} for key, value in query.dimensions]
    metric = {"Namespace": "AWS/Kinesis", "MetricName": query.name, "Dimensions": dimensions}
    return {"Id": query_id, "MetricStat": {"Metric": metric, "Period": period_s, "Stat": query.statistic}}


def _period_start(at_ms: int, period_s: int) -> datetime:
    """Return the beginning of the period that contains a moment."""
    return datetime.fromtimestamp(at_ms // 1000 // period_s * period_s, UTC)
