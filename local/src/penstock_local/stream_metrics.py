"""The metrics of streams and queues in CloudWatch's namespace AWS/Kinesis, counted by the minute.

Source:
    The developer guide's page on monitoring with CloudWatch: metrics of a stream are always there, those of a shard
    while enhanced monitoring is enabled for them; and its page on monitoring a queue.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from penstock_local.queues.queue import Queue
from penstock_local.queues.registry import Queues
from penstock_local.service_errors import RequestRefused
from penstock_local.store import Batch
from penstock_local.stream import Stream

NAMESPACE = "AWS/Kinesis"
MINUTES_KEPT = 180
POINTS_MAX = 200_000
"""Points of all series in all minutes together: about 40 MB."""
QUERIES_MAX = 500
_MINUTE_S = 60
_LEVEL_MAX = 1_000_000
_QUEUE_LEVELS = {
    "VisibleQueueRecords": "visible",
    "InFlightQueueRecords": "in_flight",
    "VisibleDeadLetterQueueRecords": "dead_letters",
}
_STATISTICS = ("Sum", "SampleCount", "Average", "Minimum", "Maximum")

Dimensions = tuple[tuple[str, str], ...]
"""Names and values in falling order of their names: StreamName before ShardId, QueueName before QueueId."""
Series = tuple[str, Dimensions, str]
"""Region, dimensions and metric."""


@dataclass(slots=True)
class Distribution:
    """The measurements of one series in one period."""

    count: int = 0
    sum: float = 0.0
    minimum: float = float("inf")
    maximum: float = float("-inf")

    def add(self, value: float) -> None:
        """Count one measurement."""
        self.merge(Distribution(1, value, value, value))

    def merge(self, other: Distribution) -> None:
        """Count all measurements of another distribution."""
        self.count += other.count
        self.sum += other.sum
        self.minimum = min(self.minimum, other.minimum)
        self.maximum = max(self.maximum, other.maximum)

    def statistic(self, name: str) -> float:
        """Return a statistic by CloudWatch's name."""
        match name:
            case "Sum":
                return self.sum
            case "SampleCount":
                return float(self.count)
            case "Average":
                return self.sum / self.count
            case "Minimum":
                return self.minimum
            case _:
                return self.maximum


class StreamMetrics:
    """Counts by the minute of virtual time, and keeps the last `MINUTES_KEPT`, or fewer if these are too many. Thread-safe.

    Streams are known by their names, as in CloudWatch: one that is created again continues the series of the old.

    Args:
        points_max: How many points are kept, one for each series and minute. The oldest minutes are dropped for new
            points. If all points are of the running minute, a further series is not counted in it.
    """

    def __init__(self, points_max: int = POINTS_MAX) -> None:
        self._points_max = points_max
        self._lock = threading.Lock()
        self._minutes: dict[int, dict[Series, Distribution]] = {}
        self._level_minutes: dict[str, int] = {}

    def add_writes(self, stream: Stream, batches: Sequence[Batch], now_ms: int) -> None:
        """Count the records that one call has stored."""
        written = {
            shard.id: {"IncomingBytes": sum(sizes), "IncomingRecords": len(sizes)}
            for shard, _, sizes in batches
        }
        if written:
            total = {
                name: sum(each[name] for each in written.values()) for name in next(iter(written.values()))
            }
            self._add_values(stream, total, written, now_ms)

    def add_read(
        self, stream: Stream, shard_id: str, record_count: int, size_bytes: int, now_ms: int
    ) -> None:
        """Count a GetRecords that was answered."""
        of_stream = {
            "GetRecords.Bytes": size_bytes,
            "GetRecords.Records": record_count,
            "GetRecords.Success": 1,
        }
        self._add_values(stream, of_stream, {shard_id: _outgoing(record_count, size_bytes)}, now_ms)

    def add_event(
        self, stream: Stream, shard_id: str, record_count: int, size_bytes: int, now_ms: int
    ) -> None:
        """Count an event of SubscribeToShard: a shard's outgoing metrics include fan-out."""
        self._add_values(stream, {}, {shard_id: _outgoing(record_count, size_bytes)}, now_ms)

    def add_refused(self, stream: Stream, metric: str, shard_ids: Sequence[str], now_ms: int) -> None:
        """Count the records that the rates of shards refused, each by its shard."""
        if shard_ids:
            by_shard = {shard: {metric: shard_ids.count(shard)} for shard in set(shard_ids)}
            self._add_values(stream, {metric: len(shard_ids)}, by_shard, now_ms)

    def _add_values(
        self,
        stream: Stream,
        of_stream: Mapping[str, int],
        of_shards: Mapping[str, Mapping[str, int]],
        now_ms: int,
    ) -> None:
        dimensions = (("StreamName", stream.name),)
        named: dict[Series, int] = {
            (stream.region, dimensions, name): value for name, value in of_stream.items()
        }
        enhanced = stream.settings.shard_metrics
        if enhanced:
            for shard_id, values in of_shards.items():
                of_shard = (*dimensions, ("ShardId", shard_id))
                named |= {
                    (stream.region, of_shard, name): value
                    for name, value in values.items()
                    if name in enhanced
                }
        self._count(named, now_ms)

    def add_queue(self, queue: Queue, values: Mapping[str, int], now_ms: int) -> None:
        """Count measurements of a queue."""
        dimensions = (("QueueName", queue.name), ("QueueId", queue.id))
        self._count({(queue.region, dimensions, name): value for name, value in values.items()}, now_ms)

    def add_queue_levels(self, queues: Queues, now_ms: int) -> None:
        """Measure how many records each queue has in each state, once a minute."""
        minute = now_ms // 1000 // _MINUTE_S
        for queue in queues.by_id.values():
            if queue.may_deliver and self._level_minutes.get(queue.id) != minute:
                self._level_minutes[queue.id] = minute
                counts = queue.counts(queues.stream_of(queue), now_ms)
                values = {name: min(counts[of], _LEVEL_MAX) for name, of in _QUEUE_LEVELS.items()}
                self.add_queue(queue, values, now_ms)
        self._level_minutes = {each: at for each, at in self._level_minutes.items() if each in queues.by_id}

    def _count(self, named: Mapping[Series, int], now_ms: int) -> None:
        with self._lock:
            now = self._series_of_minute(now_ms // 1000 // _MINUTE_S)
            for series, value in named.items():
                if series in now or self._make_room(now):
                    now.setdefault(series, Distribution()).add(value)

    def _make_room(self, now: Mapping[Series, Distribution]) -> bool:
        """Forget the oldest minutes until there is room for one more point; return whether there is."""
        while sum(map(len, self._minutes.values())) >= self._points_max:
            oldest = min(self._minutes)
            if self._minutes[oldest] is now:
                return False
            del self._minutes[oldest]
        return True

    def _series_of_minute(self, number: int) -> dict[Series, Distribution]:
        found = self._minutes.get(number)
        if found is None:
            found = self._minutes[number] = {}
            for old in [each for each in self._minutes if each <= number - MINUTES_KEPT]:
                del self._minutes[old]
        return found

    # -- GetMetricData and ListMetrics --------------------------------------------------------------------------

    def answer(
        self, region: str, document: Mapping[str, Any]
    ) -> tuple[dict[str, dict[str, Any]], list[dict[str, Any]]]:
        """Answer the queries of a GetMetricData for the namespace AWS/Kinesis.

        Args:
            region: Where the streams are.
            document: The request, checked by the model; times in seconds.

        Returns:
            The results by the queries' ids, and the queries that are about other namespaces.

        Raises:
            RequestRefused: There are too many queries, or a query asks for something that is not served.
        """
        queries: list[dict[str, Any]] = document["MetricDataQueries"]
        if len(queries) > QUERIES_MAX:
            raise _validation_error(
                f"The collection MetricDataQueries must not have a size greater than {QUERIES_MAX}."
            )
        if document["StartTime"] >= document["EndTime"]:
            raise _validation_error("The parameter StartTime must be less than the parameter EndTime.")
        found, rest = {}, []
        for query in queries:
            asked = query.get("MetricStat")
            if asked is None or asked["Metric"].get("Namespace") != NAMESPACE:
                rest.append(query)
            else:
                found[query["Id"]] = self._result(region, query, document)
        return found, rest

    def metrics(self, region: str, document: Mapping[str, Any]) -> list[dict[str, Any]]:
        """Return the metrics that a ListMetrics asks for, in a steady order.

        Args:
            region: Where the streams are.
            document: The request, checked by the model.
        """
        with self._lock:
            known = sorted({series for minute in self._minutes.values() for series in minute})
        named = ((name, dict(dimensions)) for of, dimensions, name in known if of == region)
        wanted = document.get("MetricName"), document.get("Dimensions", ())
        return [
            {
                "Namespace": NAMESPACE,
                "MetricName": name,
                "Dimensions": [{"Name": key, "Value": value} for key, value in dimensions.items()],
            }
            for name, dimensions in named
            if wanted[0] in (None, name)
            and all(
                each["Name"] in dimensions and each.get("Value") in (None, dimensions[each["Name"]])
                for each in wanted[1]
            )
        ]

    def _result(self, region: str, query: Mapping[str, Any], document: Mapping[str, Any]) -> dict[str, Any]:
        asked = query["MetricStat"]
        metric, statistic, period_s = asked["Metric"].get("MetricName", ""), asked["Stat"], asked["Period"]
        if statistic not in _STATISTICS:
            raise _validation_error(
                f"Stat {statistic[:50]!r} is not served here: use one of {', '.join(_STATISTICS)}."
            )
        if period_s % _MINUTE_S:
            raise _validation_error(f"Period {period_s} must be a multiple of {_MINUTE_S}.")
        dimensions = {each["Name"]: each["Value"] for each in asked["Metric"].get("Dimensions", ())}
        series = (region, tuple(sorted(dimensions.items(), reverse=True)), metric)
        found = self._periods(series, period_s, document["StartTime"], document["EndTime"])
        points = [(at_s, each.statistic(statistic)) for at_s, each in found.items()]
        if document.get("ScanBy") != "TimestampAscending":
            points.reverse()
        return {
            "Id": query["Id"],
            "Label": query.get("Label") or metric,
            "Timestamps": [at_s for at_s, _ in points],
            "Values": [value for _, value in points],
            "StatusCode": "Complete",
        }

    def _periods(
        self, series: Series, period_s: int, start_s: float, end_s: float
    ) -> dict[int, Distribution]:
        """Return the periods that have measurements, oldest first; the minute that the start lies in counts whole."""
        found: dict[int, Distribution] = {}
        with self._lock:
            for minute, measured in self._minutes.items():
                at_s = minute * _MINUTE_S
                if series in measured and start_s // _MINUTE_S <= minute and at_s < end_s:
                    found.setdefault(at_s - at_s % period_s, Distribution()).merge(measured[series])
        return found


def _outgoing(record_count: int, size_bytes: int) -> dict[str, int]:
    return {"OutgoingBytes": size_bytes, "OutgoingRecords": record_count}


def _validation_error(message: str) -> RequestRefused:
    return RequestRefused("ValidationError", message)
