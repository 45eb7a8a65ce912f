"""Measure a stream for its plan: description, shards, CloudWatch, a sample of records, registered consumers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from msgspec import Struct

from penstock.core.reading.service_clock import service_bound_ms
from penstock.core.safe_text import error_and_remedy
from penstock.core.shard import Shard
from penstock.core.sizing.plan import PlanInput, SizingPlan, Traffic, plan_size
from penstock.core.sizing.prices import Prices
from penstock.core.sizing.resharding import SizeLimits
from penstock.errors import ServiceError
from penstock.ports.clock import Clock
from penstock.ports.fan_out import FanOut
from penstock.ports.kinesis import Kinesis, ShardFilter
from penstock.ports.sizing import StreamMetrics
from penstock.sizing.sampling import choose_window_s, sample_shards

METRICS: Final = (
    "IncomingBytes",
    "IncomingRecords",
    "GetRecords.Bytes",
    "WriteProvisionedThroughputExceeded",
    "ReadProvisionedThroughputExceeded",
)
_FIVE_MINUTES_KEPT_S: Final = 63 * 86_400
_WINDOWS_S: Final = (600.0, 60.0, 15.0)


class PlanPorts(Struct, frozen=True):
    """The ports that a plan reads from."""

    kinesis: Kinesis
    metrics: StreamMetrics
    fan_out: FanOut
    clock: Clock


def plan_stream(
    ports: PlanPorts,
    stream: str,
    *,
    since_ms: int,
    applications: Sequence[str],
    limits: SizeLimits,
    prices: Prices,
) -> SizingPlan:
    """Measure a stream and plan its size.

    Args:
        stream: Name or ARN.
        since_ms: Beginning of the figures that are fetched from CloudWatch.
        applications: Names of applications that poll the stream.
        limits: The bounds of the size.

    Raises:
        ServiceError: The stream cannot be described, or its shards cannot be listed.
    """
    summary = ports.kinesis.fetch_summary(stream)
    listing = ports.kinesis.fetch_shards(stream, ShardFilter("AT_LATEST"))
    shards = [each for each in listing.shards if each.is_open]
    now_ms = service_bound_ms(ports.clock.wall_ms(), listing.server_ms)
    problems: list[str] = []
    traffic = _fetch_traffic(ports, summary.name, max(since_ms, summary.created_ms), now_ms, problems)
    window_s = _sampled_seconds(
        ports.kinesis, stream, shards, now_ms=now_ms, created_ms=summary.created_ms, problems=problems
    )
    samples, sampling_problems = sample_shards(
        ports.kinesis, stream, shards, ports.clock, window_s=window_s, now_ms=now_ms
    )
    problems += sampling_problems[:3]
    if len(sampling_problems) > 3:
        problems.append(f"{len(sampling_problems) - 3} more shards could not be sampled, or not wholly")
    consumers: list[str] = []
    try:
        consumers = sorted(each.name for each in ports.fan_out.fetch_consumers(summary.arn))
    except ServiceError as error:
        problems.append(
            f"registered consumers are not known{error_and_remedy(error, 'kinesis:ListStreamConsumers')}"
        )
    if not any(each.record_count for each in samples):
        problems.append(
            f"no record arrived in the last {window_s:.0f} s: the hash keys are taken to be even, and the size of a record "
            "is unknown"
        )
    return plan_size(
        PlanInput(summary, shards, samples, traffic, consumers, applications, limits, prices, problems)
    )


def _sampled_seconds(
    kinesis: Kinesis,
    stream: str,
    shards: Sequence[Shard],
    *,
    now_ms: int,
    created_ms: int,
    problems: list[str],
) -> float:
    """Return how many seconds to sample: a time without a reshard, if there is one."""
    found = choose_window_s(
        kinesis, stream, shards, now_ms=now_ms, created_ms=created_ms, windows_s=_WINDOWS_S
    )
    if found is not None:
        return found
    shortest = min(_WINDOWS_S)
    age_s = (now_ms - created_ms) / 1000
    if age_s < shortest:
        return max(1.0, age_s)
    problems.append(f"the shards changed in the last {shortest:.0f} s: their load is measured too low")
    return shortest


def _fetch_traffic(ports: PlanPorts, name: str, since_ms: int, now_ms: int, problems: list[str]) -> Traffic:
    """Return CloudWatch's figures, without periods if it has none; add a sentence to `problems` if they are missing."""
    span_s = (now_ms - since_ms) / 1000
    period_s = 60 if span_s < 86_400 else 300
    if span_s >= _FIVE_MINUTES_KEPT_S:
        period_s = 3600
    try:
        answer = ports.metrics.fetch(
            name, [(metric, None) for metric in METRICS], since_ms, now_ms, period_s=period_s
        )
    except ServiceError as error:
        problems.append(
            f"CloudWatch returned no figures{error_and_remedy(error, 'cloudwatch:GetMetricData')}; the plan is made from a sample of "
            "records alone, so peaks and reads are unknown"
        )
        return Traffic(period_s)
    problems += answer.problems
    found = dict(zip(METRICS, answer.sums, strict=True))
    written = found["IncomingBytes"]
    period_ms = period_s * 1000
    whole_ms = now_ms - now_ms % period_ms
    began_ms = min((at_ms for at_ms in written or ()), default=whole_ms)
    periods = range(began_ms, whole_ms, period_ms)
    if not periods:
        problems.append(
            "CloudWatch has no figures of the stream yet, which take some minutes; the plan is made from a sample of records alone"
        )

    def series(metric: str) -> list[float]:
        sums = found[metric] or {}
        return [sums.get(at_ms, 0.0) for at_ms in periods]

    return Traffic(
        period_s,
        series("IncomingBytes"),
        series("IncomingRecords"),
        series("GetRecords.Bytes"),
        sum((found["WriteProvisionedThroughputExceeded"] or {}).values()),
        sum((found["ReadProvisionedThroughputExceeded"] or {}).values()),
    )
