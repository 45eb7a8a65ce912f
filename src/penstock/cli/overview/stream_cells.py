"""The figures of a stream as text, for the dashboard and the live view. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from penstock.cli.overview.cells import short_shard
from penstock.cli.overview.stream_load import QUOTAS
from penstock.cli.terminal import escape_text
from penstock.core.hash_key import HASH_KEYS
from penstock.core.limits import KIB, MIB

if TYPE_CHECKING:
    from penstock.cli.overview.stream_load import Load, Quota, ShardLoad, StreamSnapshot
    from penstock.core.shard import Shard

SHARD_QUOTAS: Final = tuple(quota for quota in QUOTAS if quota.shard_metric is not None)
"""The quotas that CloudWatch also measures for a single shard."""
STREAM_SHARD_COLUMNS: Final = (
    *("shard", "hash keys"),
    *(quota.name for quota in SHARD_QUOTAS),
    *("sent bytes", "refused records", "refused reads", "used"),
)


def mode_text(snapshot: StreamSnapshot) -> str:
    """Return the stream's capacity mode."""
    return {True: "on-demand", False: "provisioned", None: "mode unknown"}[snapshot.on_demand]


def rate_text(quota: Quota, load: Load) -> str:
    """Return the rate of a stream or a shard that a quota bounds."""
    per_s = load.per_s.get(quota.name)
    return "-" if per_s is None else _per_s_text(quota, per_s)


def quota_text(quota: Quota, shard_count: int) -> str:
    """Return the quota that `shard_count` shards have together; a dash if there are none."""
    return _per_s_text(quota, quota.per_s_max * shard_count) if shard_count else "-"


def _per_s_text(quota: Quota, per_s: float) -> str:
    if quota.is_bytes:
        return bytes_text(per_s)
    return f"{per_s:,.0f}/s" if per_s >= 10 or per_s == round(per_s) else f"{per_s:.1f}/s"


def bytes_text(per_s: float) -> str:
    """Return a rate in bytes per second as text."""
    return f"{per_s / MIB:,.2f} MiB/s" if per_s >= MIB else f"{per_s / KIB:.1f} KiB/s"


def sent_text(load: Load) -> str:
    """Return the bytes that a shard sends to all readers."""
    return "-" if load.sent_bytes_per_s is None else bytes_text(load.sent_bytes_per_s)


def share_text(share: float | None) -> str:
    """Return the used part of a quota as a percentage; `-` if it is unknown."""
    return "-" if share is None else f"{share:.0%}"


def count_text(count: int | None) -> str:
    """Return the number of refused records or reads; `-` if it is unknown."""
    return "-" if count is None else f"{count:,}"


def range_text(shard: Shard) -> str:
    """Return which part of the hash keys a shard has."""
    start, end = shard.hash_range.start / HASH_KEYS, (shard.hash_range.end + 1) / HASH_KEYS
    return f"{start:.1%} to {end:.1%}"


def stream_shard_cells(each: ShardLoad) -> tuple[str, ...]:
    """Return the cells of an open shard, under `STREAM_SHARD_COLUMNS`; text is escaped for a terminal."""
    load = each.load
    return (
        escape_text(short_shard(each.shard.shard_id)),
        range_text(each.shard),
        *(rate_text(quota, load) for quota in SHARD_QUOTAS),
        sent_text(load),
        count_text(load.writes_refused),
        count_text(load.reads_refused),
        share_text(None if load.hottest_quota is None else load.hottest_quota[0]),
    )
