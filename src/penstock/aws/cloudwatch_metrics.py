"""Metrics for CloudWatch: added up in memory and sent in batches. They never block and never raise.

Each report sends the measurements since the last one: counters and distributions as statistic sets, gauges as
values. A batch that CloudWatch refuses is logged and dropped: the next report has newer values.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from typing import Any, Final

from penstock.aws.aws_options import AwsOptions
from penstock.aws.connection import client_for
from penstock.aws.service_calls import call
from penstock.errors import OptionError
from penstock.runtime.metrics_tally import MetricsTally, PeriodicReports, Series, Snapshot, check_interval

log = logging.getLogger("penstock.metrics")

DATUMS_PER_CALL_MAX: Final = 1000
"""Datums in one call of PutMetricData."""
SERIES_MAX: Final = 5_000


class CloudWatchMetrics(MetricsTally, PeriodicReports):
    """Implements `penstock.metrics.Metrics` with PutMetricData.

    Args:
        namespace: CloudWatch's namespace; the KCL uses the application's name.
        options: The region, endpoint and credentials.
        dimensions: Added to every metric, for instance `{"WorkerIdentifier": "a"}`.
        interval_s: Seconds between two reports.
        is_per_shard: Whether metrics with a `shard` label are sent per shard. False merges all shards: it sends the sum, or
            the largest value of a gauge. On a stream of a thousand shards this costs a thousandth.
        client: A boto3 CloudWatch client, for tests; None makes one.

    Raises:
        OptionError: The interval is not positive, or the namespace is empty.
    """

    def __init__(
        self,
        namespace: str,
        options: AwsOptions | None = None,
        *,
        dimensions: Mapping[str, str] | None = None,
        interval_s: float = 60.0,
        is_per_shard: bool = True,
        client: Any = None,
    ) -> None:
        if not namespace:
            raise OptionError("namespace is empty: give the application's name")
        check_interval(interval_s)
        self._namespace = namespace
        self._options = options or AwsOptions()
        self._given_client = client
        self._client()  # a missing region is an error now, not at the first report
        self._dimensions = dict(dimensions or {})
        self._is_per_shard = is_per_shard
        super().__init__(SERIES_MAX, "leave the shards out with is_per_shard=False")
        self.start_reports(interval_s, "penstock-cloudwatch")

    def count(self, name: str, value: float = 1, labels: Mapping[str, str] | None = None) -> None:
        """Add to a counter, which is sent as a statistic set, like a distribution."""
        self.observe(name, value, labels)

    def observe(self, name: str, value: float, labels: Mapping[str, str] | None = None) -> None:
        """Add one measurement to a distribution."""
        super().observe(name, value, self._published_labels(labels))

    def gauge(self, name: str, value: float, labels: Mapping[str, str] | None = None) -> None:
        """Set a gauge to its present value."""
        # Without the shard the largest value is more useful than the last one: the lag of the worst shard.
        is_merged = not self._is_per_shard and labels is not None and "shard" in labels
        self._set_gauge(name, value, self._published_labels(labels), keeps_largest=is_merged)

    def _published_labels(self, labels: Mapping[str, str] | None) -> dict[str, str]:
        return {key: value for key, value in (labels or {}).items() if self._is_per_shard or key != "shard"}

    def report(self) -> None:
        """Send the measurements since the last report. Never raises."""
        datums = list(self._datums(self.take()))
        for start in range(0, len(datums), DATUMS_PER_CALL_MAX):
            batch = datums[start : start + DATUMS_PER_CALL_MAX]
            try:
                self._send(batch)
            except Exception as error:  # noqa: BLE001 - no measurement is worth a failure
                log.warning(
                    "CloudWatch did not take %d metrics of %s: %s", len(batch), self._namespace, error
                )

    def _client(self) -> Any:
        return self._given_client or client_for("cloudwatch", self._options)

    def _send(self, batch: list[dict[str, Any]]) -> None:
        # No retries: the next report has newer values. Only expired credentials are fetched again.
        call(
            lambda: self._client().put_metric_data(Namespace=self._namespace, MetricData=batch),
            "PutMetricData",
            f"namespace {self._namespace}",
            self._options,
            is_write=True,
            retried=(),
        )

    def _datums(self, snapshot: Snapshot) -> Iterator[dict[str, Any]]:
        moment = datetime.now(UTC)
        for key, distribution in snapshot.distributions.items():
            yield {
                **self._fields_of(key, moment),
                "StatisticValues": {
                    "SampleCount": distribution.count,
                    "Sum": distribution.sum,
                    "Minimum": distribution.minimum,
                    "Maximum": distribution.maximum,
                },
            }
        for key, value in snapshot.gauges.items():
            yield {**self._fields_of(key, moment), "Value": value}

    def _fields_of(self, key: Series, moment: datetime) -> dict[str, Any]:
        name, labels = key
        dimensions = self._dimensions | {_DIMENSIONS.get(label, label): value for label, value in labels}
        return {
            "MetricName": name,
            "Dimensions": [
                {"Name": label, "Value": _dimension_value(value)}
                for label, value in sorted(dimensions.items())
            ],
            "Timestamp": moment,
            "Unit": _unit_of(name),
        }


def _dimension_value(text: str) -> str:
    """Return a label's value as CloudWatch accepts it: ASCII without control characters, and not blank."""
    escaped = _REFUSED_CHARACTER.sub(lambda found: ascii(found[0])[1:-1], text)[:_VALUE_CHARACTERS_MAX]
    return escaped if escaped.strip() else "-"


_REFUSED_CHARACTER: Final = re.compile("[^ -~]")
_VALUE_CHARACTERS_MAX: Final = 1024
_DIMENSIONS: Final = {
    "shard": "ShardId",
    "stream": "StreamName",
    "reason": "Reason",
    "worker": "WorkerIdentifier",
}


def _unit_of(name: str) -> str:
    if name.startswith("bytes"):
        return "Bytes"
    if name.startswith("millis_"):
        return "Milliseconds"
    return "Seconds" if name.endswith("_s") else "Count"
