"""Figures of a query: its report in Spark's progress, its metrics, and the part of the stream that may be unread."""

from __future__ import annotations

from typing import Any

from penstock.core.batches.shard_state import Settlement
from penstock.spark.driver.joining import JoinedQuery
from penstock.spark.options.spark_options import SourceOptions


def progress_report(
    query: JoinedQuery,
    settlement: Settlement,
    stream: str,
    *,
    reads_to_tip: bool,
    tip_age_ms: int | None,
) -> dict[str, Any]:
    """Return the last batch's figures, the query's lag, and its leases.

    Args:
        settlement: Of the last batch.
        stream: Name or ARN, as in the query's options.
        reads_to_tip: Whether a batch reads everything that had arrived when it was planned.
        tip_age_ms: With AvailableNow, how long before now the records arrived that a batch leaves to later runs; else None.
    """
    stats = query.query_worker.stats
    behind = {key: state.millis_behind_latest for key, state in sorted(query.shards.states.items())}
    lag = {key: millis for key, millis in behind.items() if millis is not None}
    pushed = {"records": settlement.pushed_count, "ends": dict(sorted(settlement.subscription_ends.items()))}
    return {
        **({} if query.consumer_arn is None else {"pushed": pushed}),
        "bytes": settlement.bytes_count,
        "claims": settlement.claim_count,
        "keptIterators": settlement.kept_iterator_count,
        "leases": {
            "held": stats.held_leases,
            "lost": stats.lost_leases,
            "taken": sum(count for _, count in stats.take_counts),
            "total": stats.total_leases,
        },
        "maxMillisBehindLatest": max(lag.values(), default=0),
        "millisBehindLatest": lag,
        "problems": list(query.query_worker.problems),
        "readsToTip": reads_to_tip,
        "records": settlement.record_count,
        "stream": stream,
        **({} if tip_age_ms is None else {"tipAgeMillis": tip_age_ms}),
    }


def send_metrics(query: JoinedQuery, settlement: Settlement) -> None:
    """Send the metrics of a settled batch."""
    metrics = query.metrics
    metrics.count("records", settlement.record_count)
    metrics.count("bytes", settlement.bytes_count)
    metrics.count("claims", settlement.claim_count)
    if query.consumer_arn is not None:
        metrics.count("pushed_records", settlement.pushed_count)
        for why, count in settlement.subscription_ends.items():
            metrics.count("subscriptions_ended", count, {"why": why})
    metrics.count("iterators_kept", settlement.kept_iterator_count)
    metrics.count("iterators_asked_for", settlement.claim_count - settlement.kept_iterator_count)
    for shard_id, state in query.shards.states.items():
        if state.millis_behind_latest is not None:
            metrics.gauge("millis_behind_latest", state.millis_behind_latest, {"shard": shard_id})


def describe_unread_part(query: JoinedQuery, options: SourceOptions, wait_s: float) -> str:
    """Return the message for a search that ended before every shard had answered. Unread records may be left.

    Args:
        wait_s: How long the search lasted.
    """
    query_worker, unprobed = query.query_worker, query.shards.unprobed_shards
    unread = query_worker.describe_unread_part() or "its leases did not come to rest"
    first = f"no answer from {', '.join(unprobed[:5])}" if unprobed else unread
    why = "; ".join((first, *query_worker.problems))
    return (
        f"stream {options.stream}: for {wait_s:g} s it could not be made sure that everything is read "
        f"({why}; {query_worker.stats.held_leases} leases held in table {options.lease_table}): all batches so far are done; if the "
        "query ends now, start it again for the rest"
    )


def describe_missing_shards(query: JoinedQuery, options: SourceOptions) -> str | None:
    """Return why this query reads no shard: live workers read all of them; None if it has or may get one."""
    query_worker, stats = query.query_worker, query.query_worker.stats
    if query.shards.states or stats.held_leases or stats.unclaimed_leases or not stats.total_leases:
        return None
    # Another worker counts as alive until its lease has expired, and a dead one's shards become this query's.
    if not query_worker.is_at_rest or query_worker.describe_unread_part() is not None:
        return None
    return (
        f"stream {options.stream}: this query reads nothing of it. Other workers of application {options.application} have all its "
        f"shards, {stats.total_leases} (penstock leases {options.application}). Each start() is a worker of its own, and so is each "
        "side of a frame that is joined with itself: to read the whole stream here too, call load() with an applicationName of "
        "its own; to share it, the stream needs a shard for each worker, and another worker hands a shard over after its batch"
    )
