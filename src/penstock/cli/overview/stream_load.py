"""The traffic of a stream and its shards against their quotas, and advice for hot shards. Pure."""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from penstock.cli.overview.cells import short_shard
from penstock.cli.overview.snapshot import moment_text
from penstock.cli.terminal import counted
from penstock.core.limits import (
    GET_RECORDS_PER_S_MAX,
    SHARD_READ_BYTES_PER_S_MAX,
    SHARD_WRITE_BYTES_PER_S_MAX,
    SHARD_WRITE_RECORDS_PER_S_MAX,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from penstock.core.shard import Shard

    _Command = Callable[[str, str], str]  # returns the command of an action with its argument

MINUTE_MS: Final = 60_000
PEAK_MINUTES: Final = 15
"""How many of the last minutes count. The busiest of them is compared with the quotas, since a mean would hide it."""
HOT_SHARE: Final = 0.8
"""A shard that uses more than this part of a quota is hot: within a busy minute there are busier seconds."""
_FULL_SHARE: Final = 0.7
"""If all shards together use more than this part of a quota, splitting one of them does not help for long."""
_SPLITS_SHOWN_MAX: Final = 3
_RANGE_SPLIT_MIN: Final = 4
"""Hash keys that a shard must have to be split."""

WRITES_REFUSED: Final = "WriteProvisionedThroughputExceeded"
READS_REFUSED: Final = "ReadProvisionedThroughputExceeded"


@dataclass(frozen=True, slots=True)
class Quota:
    """A rate that the service bounds for each shard.

    Args:
        stream_metric: CloudWatch's metric of the whole stream.
        shard_metric: CloudWatch's metric of a shard; None if there is none for this quantity alone.
        per_s_max: The quota of one shard.
    """

    name: str
    stream_metric: str
    shard_metric: str | None
    per_s_max: int
    is_bytes: bool = False


_WRITTEN_BYTES: Final = Quota(
    "written bytes", "IncomingBytes", "IncomingBytes", SHARD_WRITE_BYTES_PER_S_MAX, is_bytes=True
)
_WRITTEN_RECORDS: Final = Quota(
    "written records", "IncomingRecords", "IncomingRecords", SHARD_WRITE_RECORDS_PER_S_MAX
)
_READ_BYTES: Final = Quota("read bytes", "GetRecords.Bytes", None, SHARD_READ_BYTES_PER_S_MAX, is_bytes=True)
_READS: Final = Quota("reads", "GetRecords.Success", None, GET_RECORDS_PER_S_MAX)
QUOTAS: Final = (_WRITTEN_BYTES, _WRITTEN_RECORDS, _READ_BYTES, _READS)
SENT_BYTES: Final = "OutgoingBytes"
"""The metric of the bytes that a shard sends to all readers. No quota bounds them: fan-out has 2 MiB/s for each consumer.

Source:
    The developer guide's page on monitoring with CloudWatch: the metric includes GetRecords and SubscribeToShard.
"""
STREAM_METRICS: Final = (*(quota.stream_metric for quota in QUOTAS), WRITES_REFUSED, READS_REFUSED)
SHARD_METRICS: Final = (
    *(quota.shard_metric for quota in QUOTAS if quota.shard_metric is not None),
    SENT_BYTES,
    WRITES_REFUSED,
    READS_REFUSED,
)
"""Queried for each shard, as far as its enhanced monitoring is on."""


@dataclass(frozen=True, slots=True)
class Load:
    """Traffic of a stream or a shard in its busiest minute.

    Args:
        per_s: By the name of the quota: the mean of the busiest minute. Unknown rates are missing.
        writes_refused: Refused records in all minutes; None when unknown.
        reads_refused: Refused calls in all minutes; None when unknown.
        shard_count: The number of shards whose quotas are added up; 0 if the stream's shards are unknown.
        sent_bytes_per_s: Bytes that a shard sends by polling and fan-out together; None when unknown.
    """

    per_s: Mapping[str, float]
    writes_refused: int | None = None
    reads_refused: int | None = None
    shard_count: int = 1
    sent_bytes_per_s: float | None = None

    def share(self, quota: Quota) -> float | None:
        """Return which part of a quota is used; None when unknown, for instance if the stream's shards are unknown."""
        per_s = self.per_s.get(quota.name)
        return None if per_s is None or not self.shard_count else per_s / (quota.per_s_max * self.shard_count)

    @property
    def hottest_quota(self) -> tuple[float, Quota] | None:
        """The largest used part of a quota, 0 to 1 or more, and this quota; None if no rate is known."""
        known = [(share, quota) for quota in QUOTAS if (share := self.share(quota)) is not None]
        return max(known, key=lambda pair: pair[0], default=None)

    @property
    def is_hot(self) -> bool:
        """Whether a quota is nearly used up, or writes were refused. Refused reads do not count: readers retry all the time."""
        return bool(self.writes_refused) or (
            self.hottest_quota is not None and self.hottest_quota[0] >= HOT_SHARE
        )


@dataclass(frozen=True, slots=True)
class ShardLoad:
    """Traffic of one open shard."""

    shard: Shard
    load: Load


@dataclass(frozen=True, slots=True)
class LoadPoint:
    """Traffic of a stream in one minute: bytes in a second, on average."""

    at_ms: int
    written_per_s: float
    read_per_s: float


@dataclass(frozen=True, slots=True)
class Advice:
    """Advice about hot shards or missing metrics.

    Args:
        text: A sentence or two.
        command: The command for it; None if there is none.
    """

    text: str
    command: str | None = None


@dataclass(frozen=True, slots=True)
class StreamSnapshot:
    """One snapshot of a stream.

    Args:
        stream: Name or ARN.
        on_demand: Whether the stream is on-demand; None when unknown.
        load: Traffic of the whole stream; None if CloudWatch was not queried.
        shards: The open ones, by hash key.
        history: The minutes of the last hour, oldest first; empty before the first whole minute.
        problems: Failures to read, a sentence each.
        advice: Next steps.
    """

    stream: str
    taken_ms: int
    on_demand: bool | None = None
    load: Load | None = None
    shards: tuple[ShardLoad, ...] = ()
    history: tuple[LoadPoint, ...] = ()
    problems: tuple[str, ...] = ()
    advice: tuple[Advice, ...] = ()

    @property
    def shards_hottest_first(self) -> tuple[ShardLoad, ...]:
        """The shards, refused writes first, then by the largest part of a quota that they use."""
        return tuple(sorted(self.shards, key=_sort_key))


def _sort_key(each: ShardLoad) -> tuple[int, float, str]:
    hottest_quota = each.load.hottest_quota
    return (
        -(each.load.writes_refused or 0),
        0.0 if hottest_quota is None else -hottest_quota[0],
        each.shard.shard_id,
    )


# --- from CloudWatch's figures ----------------------------------------------------------------------------


def load_of(sums: Mapping[str, Mapping[int, float]], now_ms: int, shard_count: int | None = None) -> Load:
    """Return the traffic of a stream or a shard.

    Args:
        sums: By metric, then by the minute.
        now_ms: The current time. The running minute counts too, though its figures are incomplete.
        shard_count: Number of a stream's shards; None for the traffic of a shard.
    """
    since_ms = now_ms - PEAK_MINUTES * MINUTE_MS
    recent_sums = {
        metric: [value for at_ms, value in points.items() if at_ms > since_ms]
        for metric, points in sums.items()
    }
    per_s = {}
    for quota in QUOTAS:
        metric = quota.shard_metric if shard_count is None else quota.stream_metric
        if metric in recent_sums:
            per_s[quota.name] = _busiest_per_s(recent_sums[metric])
    return Load(
        per_s,
        writes_refused=_sum_or_none(recent_sums.get(WRITES_REFUSED)),
        reads_refused=_sum_or_none(recent_sums.get(READS_REFUSED)),
        shard_count=1 if shard_count is None else shard_count,
        sent_bytes_per_s=_busiest_per_s(recent_sums[SENT_BYTES]) if SENT_BYTES in recent_sums else None,
    )


def _busiest_per_s(sums: Sequence[float]) -> float:
    return max(sums, default=0.0) / 60


def _sum_or_none(values: Sequence[float] | None) -> int | None:
    return None if values is None else round(sum(values))


def history_of(sums: Mapping[str, Mapping[int, float]], now_ms: int) -> tuple[LoadPoint, ...]:
    """Return the complete minutes from the first with a figure to the last; a minute without a sum has 0."""
    written, read = (sums.get(quota.stream_metric, {}) for quota in (_WRITTEN_BYTES, _READ_BYTES))
    known = [at_ms for at_ms in (*written, *read) if at_ms + MINUTE_MS <= now_ms]
    if not known:
        return ()
    return tuple(
        LoadPoint(at_ms, written.get(at_ms, 0.0) / 60, read.get(at_ms, 0.0) / 60)
        for at_ms in range(min(known), max(known) + 1, MINUTE_MS)
    )


def missing_metrics_advice(stream: str, metrics: Sequence[str], connection: Sequence[str] = ()) -> Advice:
    """Return the advice to turn on the shard-level metrics that CloudWatch does not have."""
    named = "--stream-arn" if stream.startswith("arn:") else "--stream-name"
    what = (
        "single shards" if len(metrics) == len(SHARD_METRICS) else f"single shards' {' and '.join(metrics)}"
    )
    return Advice(
        f"CloudWatch has no figures of {what}: enhanced monitoring is off for them. CloudWatch bills each of these metrics by the "
        "shard once it is on",
        shlex.join(
            (
                *("aws", "kinesis", "enable-enhanced-monitoring", named, stream),
                *("--shard-level-metrics", *metrics, *connection),
            )
        ),
    )


def advise(
    stream: str,
    load: Load | None,
    shards: Sequence[ShardLoad],
    *,
    on_demand: bool | None,
    connection: Sequence[str] = (),
) -> list[Advice]:
    """Return advice about hot shards; none if no shard is hot.

    Args:
        stream: Name or ARN.
        load: Traffic of the whole stream.
        shards: The open shards.
        on_demand: Whether the stream is on-demand; None when unknown.
        connection: The options with which an advised command reaches the same service.
    """

    def command(action: str, argument: str) -> str:
        return shlex.join(["penstock", "streams", action, stream, argument, "--wait", *connection])

    hot_shards = sorted((each for each in shards if each.load.is_hot), key=_sort_key)
    if on_demand:
        return [_on_demand_advice(hot_shards)] if hot_shards or (load is not None and load.is_hot) else []
    hottest_quota = None if load is None else load.hottest_quota
    if load is not None and hottest_quota is not None and hottest_quota[0] >= _FULL_SHARE:
        return [_stream_advice(command, load, *hottest_quota)]
    if load is not None and load.writes_refused and not hot_shards:
        refused = counted(load.writes_refused, "record")
        return [
            Advice(f"{refused} refused, and the stream as a whole has room: a shard was full, or a second")
        ]
    return [_hot_shard_advice(command, each) for each in hot_shards[:_SPLITS_SHOWN_MAX]]


def _stream_advice(command: _Command, load: Load, share: float, quota: Quota) -> Advice:
    text = f"The stream uses {share:.0%} of its quota of {quota.name}"
    if quota is _READS:  # each reader polls the children of a split shard just as often
        return Advice(f"{text}: let an application read by fan-out, which takes none of them")
    text += f": {counted(load.shard_count, 'shard')} {'is' if load.shard_count == 1 else 'are'} too few"
    return Advice(text, command("scale", str(2 * load.shard_count)))


def _on_demand_advice(hot_shards: Sequence[ShardLoad]) -> Advice:
    which = f"Hottest is shard {short_shard(hot_shards[0].shard.shard_id)}. " if hot_shards else ""
    return Advice(
        f"{which}The service splits the shards of an on-demand stream by itself, for up to double the highest traffic of the last "
        "30 days; what grows faster is refused meanwhile. A shard that stays hot has a hot partition key: spread it"
    )


def _hot_shard_advice(command: _Command, each: ShardLoad) -> Advice:
    number, load = short_shard(each.shard.shard_id), each.load
    facts = []
    if load.hottest_quota is not None:
        facts.append(f"uses {load.hottest_quota[0]:.0%} of its quota of {load.hottest_quota[1].name}")
    if load.writes_refused:
        facts.append(f"has refused {counted(load.writes_refused, 'record')}")
    text = f"Shard {number} {' and '.join(facts)}"
    if each.shard.hash_range.size < _RANGE_SPLIT_MIN:
        return Advice(f"{text}: it has too few hash keys to be split, so spread its partition keys")
    return Advice(f"{text}: {_split_advice(load)}", command("split", number))


def _split_advice(load: Load) -> str:
    if load.hottest_quota is None or load.hottest_quota[0] < HOT_SHARE:
        return "single seconds were too much, so let the writers spread them, or split it"
    return "split it, unless a single partition key makes it hot: no split divides that one"


# --- as a document ----------------------------------------------------------------------------------------


def stream_document(snapshot: StreamSnapshot) -> dict[str, Any]:
    """Return a snapshot of a stream as a JSON document."""
    return {
        "stream": snapshot.stream,
        "taken_at": moment_text(snapshot.taken_ms),
        "on_demand": snapshot.on_demand,
        "busiest_of_minutes": PEAK_MINUTES,
        "load": None if snapshot.load is None else _load_document(snapshot.load),
        "shards": [
            {
                "shard": each.shard.shard_id,
                "hash_range": [str(each.shard.hash_range.start), str(each.shard.hash_range.end)],
                **_load_document(each.load),
            }
            for each in snapshot.shards
        ],
        "history": [
            {
                "at": moment_text(point.at_ms),
                "written_bytes_per_s": round(point.written_per_s, 1),
                "read_bytes_per_s": round(point.read_per_s, 1),
            }
            for point in snapshot.history
        ],
        "problems": list(snapshot.problems),
        "advice": [{"text": each.text, "command": each.command} for each in snapshot.advice],
    }


def _load_document(load: Load) -> dict[str, Any]:
    rates = {}
    for quota in QUOTAS:
        name = quota.name.replace(" ", "_")
        per_s, share = load.per_s.get(quota.name), load.share(quota)
        rates[f"{name}_per_s"] = None if per_s is None else round(per_s, 2)
        rates[f"{name}_share"] = None if share is None else round(share, 4)
    sent = load.sent_bytes_per_s
    return {
        **rates,
        "sent_bytes_per_s": None if sent is None else round(sent, 2),
        "writes_refused": load.writes_refused,
        "reads_refused": load.reads_refused,
    }
