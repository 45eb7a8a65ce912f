"""The plan of a stream's size: mode, shards, readers, leases, retention and aggregation, each with its cost. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from penstock.core.limits import (
    GET_RECORDS_PER_S_MAX,
    MIB,
    SHARD_READ_BYTES_PER_S_MAX,
    SHARD_WRITE_BYTES_PER_S_MAX,
    SHARD_WRITE_RECORDS_PER_S_MAX,
)
from penstock.core.shard import Shard, StreamSummary
from penstock.core.sizing.costs import (
    Bill,
    Usage,
    advantage_bill,
    bill_item,
    lease_bill,
    provisioned_bill,
    standard_bill,
)
from penstock.core.sizing.load_map import LoadMap, use_of
from penstock.core.sizing.prices import HOURS_PER_MONTH, Prices
from penstock.core.sizing.resharding import (
    HotKey,
    Merge,
    SizeLimits,
    Split,
    StreamView,
    hot_keys_of,
    plan_actions,
)
from penstock.core.sizing.samples import PUT_UNIT_BYTES, ShardSample, load_map_of

_GAIN_MIN: Final = 0.05
"""A mode must be cheaper by this part to be advised in place of the present one."""
_READ_SHARE_MAX: Final = 0.8
"""Readers by polling may use this part of a shard's read quota."""
_AGGREGATE_PART_MIN: Final = 0.5
_SMALL_RECORD_BYTES_MAX: Final = PUT_UNIT_BYTES / 2
_ON_DEMAND_START_MIBPS: Final = 4
_WARM_HEADROOM: Final = 1.2
_MERGE_SPAN_S: Final = 3600
"""Merges, and a number of shards that follows the load, are planned only if the load of this time is known."""


class Traffic(Struct, frozen=True):
    """Traffic of a stream over its periods, from CloudWatch.

    Args:
        written_bytes: Sums of each period from the first with a figure, oldest first.
        read_bytes: The same sums of the bytes read by polling.
        writes_refused: Records in all periods.
        reads_refused: Calls in all periods.
    """

    period_s: int
    written_bytes: Sequence[float] = ()
    written_records: Sequence[float] = ()
    read_bytes: Sequence[float] = ()
    writes_refused: float = 0
    reads_refused: float = 0

    @property
    def span_s(self) -> int:
        """Seconds that are known."""
        return len(self.written_bytes) * self.period_s

    def uses(self) -> list[float]:
        """Return how many shards' write quotas each period used on average."""
        return [
            use_of(size / self.period_s, count / self.period_s)
            for size, count in zip(self.written_bytes, self.written_records, strict=True)
        ]


class ReaderAdvice(Struct, frozen=True):
    """Advice about one reader.

    Args:
        name: The application or registered consumer.
        now: `polling` or `fan-out`.
        advised: `polling` or `fan-out`.
        monthly: The monthly cost of fan-out for it.
    """

    name: str
    now: str
    advised: str
    reason: str
    monthly: float


class SizingPlan(Struct, frozen=True):
    """The answer of `plan_size`.

    Args:
        bills: A month in each mode, the cheapest first.
        usage: The measured mean over the known time.
        peak_use: The busiest period, in write quotas of one shard.
        shards_now: The number of open shards.
        shards_planned: After the actions.
        shards_followed: The mean number of shards if it follows the load.
        size_reason: Why these actions are planned, or why none is.
        lease_bills: DynamoDB and S3 for each application.
        problems: What could not be measured.
    """

    stream: str
    now: str
    advised: str
    bills: Sequence[Bill]
    mode_reason: str
    usage: Usage
    peak_use: float
    shards_now: int
    shards_planned: int
    shards_followed: float
    actions: Sequence[Split | Merge]
    size_reason: str
    hot_keys: Sequence[HotKey]
    readers: Sequence[ReaderAdvice]
    lease_bills: Sequence[Bill]
    retention_advice: str
    aggregation_advice: str
    warm_advice: str
    problems: Sequence[str]


class PlanInput(Struct, frozen=True):
    """The measurements and settings of a plan.

    Args:
        shards: The open shards.
        traffic: CloudWatch's figures; without periods if it has none.
        consumers: Names of registered consumers.
        applications: Names of applications that poll.
        problems: What could not be measured.
    """

    summary: StreamSummary
    shards: Sequence[Shard]
    samples: Sequence[ShardSample]
    traffic: Traffic
    consumers: Sequence[str]
    applications: Sequence[str]
    limits: SizeLimits
    prices: Prices
    problems: Sequence[str] = ()


def plan_size(inputs: PlanInput) -> SizingPlan:
    """Return the plan."""
    sample = load_map_of(inputs.samples)
    usage = usage_of(inputs, sample)
    uses = inputs.traffic.uses()
    sampled_use = use_of(sample.bytes_per_s, sample.records_per_s)
    peak_use = max(uses, default=sampled_use)
    at_peak = _load_at_peak(sample, inputs, peak_use)
    view = StreamView(inputs.shards, at_peak, at_peak if inputs.traffic.span_s >= _MERGE_SPAN_S else None)
    actions, after, last = plan_actions(view, inputs.limits)
    followed_count = _followed_shard_count(uses or [sampled_use], inputs)
    needed = len(after)
    if inputs.summary.on_demand:
        needed = min(
            max(ceil(peak_use / inputs.limits.target), inputs.limits.shards_min), inputs.limits.shards_max
        )
        actions = []
    bills = sorted(_bills(inputs, usage, needed, followed_count), key=lambda bill: bill.amount)
    now = "on-demand standard" if inputs.summary.on_demand else "provisioned"
    advised, why = _mode_advice(bills, now)
    if not uses and sampled_use == 0:
        advised, why = now, "nothing is known of its load: the sums hold for an idle stream"
    return SizingPlan(
        stream=inputs.summary.name,
        now=now,
        advised=advised,
        bills=bills,
        mode_reason=why,
        usage=usage,
        peak_use=peak_use,
        shards_now=len(inputs.shards),
        shards_planned=needed,
        shards_followed=followed_count,
        actions=actions,
        size_reason="the service sizes an on-demand stream itself"
        if inputs.summary.on_demand
        else last.reason,
        hot_keys=hot_keys_of(view, inputs.limits.high),
        readers=_reader_advice(inputs, usage, at_peak, max(1, needed)),
        lease_bills=[
            lease_bill(each, max(1, needed), inputs.prices, store=store)
            for each in inputs.applications
            for store in ("DynamoDB", "S3")
        ],
        retention_advice=_retention_advice(inputs, usage, max(1, needed)),
        aggregation_advice=_aggregation_advice(inputs, usage),
        warm_advice=_warm_advice(inputs),
        problems=inputs.problems,
    )


def usage_of(inputs: PlanInput, sample: LoadMap) -> Usage:
    """Return the stream's mean usage.

    Bytes and records are CloudWatch's if it has any, otherwise the sample's. Put units and rounded bytes, which the bill counts, are
    in the same proportion to them as in the sample.
    """
    traffic, span_s = inputs.traffic, inputs.traffic.span_s
    records = sum(each.record_count for each in inputs.samples)
    written = sum(each.written_bytes for each in inputs.samples)
    bytes_per_s, records_per_s, polled = sample.bytes_per_s, sample.records_per_s, 0.0
    if span_s:
        bytes_per_s = sum(traffic.written_bytes) / span_s
        records_per_s = sum(traffic.written_records) / span_s
        polled = sum(traffic.read_bytes) / span_s
    mean_bytes = bytes_per_s / records_per_s if records_per_s else 0.0
    return Usage(
        put_units_per_s=records_per_s
        * (
            sum(each.put_units for each in inputs.samples) / records
            if records
            else ceil(mean_bytes / PUT_UNIT_BYTES)
        ),
        written_bytes_per_s=bytes_per_s,
        rounded_bytes_per_s=bytes_per_s
        * (sum(each.rounded_bytes for each in inputs.samples) / written if written else 1.0),
        polled_bytes_per_s=polled,
        consumer_count=len(inputs.consumers),
        retention_hours=inputs.summary.retention_hours,
    )


def _load_at_peak(sample: LoadMap, inputs: PlanInput, peak_use: float) -> LoadMap:
    """Return the sampled distribution with the load of the busiest period."""
    now = use_of(sample.bytes_per_s, sample.records_per_s)
    if now == 0:
        whole = sum(each.hash_range.size for each in inputs.shards) or 1
        even = [
            (each, peak_use * SHARD_WRITE_BYTES_PER_S_MAX * each.hash_range.size / whole)
            for each in inputs.shards
        ]
        return load_map_of(
            ShardSample(each, 1.0, record_count=1, written_bytes=round(size)) for each, size in even
        )
    return sample.scaled(peak_use / now, peak_use / now)


def _followed_shard_count(uses: Sequence[float], inputs: PlanInput) -> float:
    """Return the mean number of shards if each hour's number is the one that its busiest period needs."""
    per_hour = max(1, 3600 // inputs.traffic.period_s)
    hours = [max(uses[at : at + per_hour]) for at in range(0, len(uses), per_hour)]
    low, high = inputs.limits.shards_min, inputs.limits.shards_max
    return sum(min(max(ceil(use / inputs.limits.target), low, 1), high) for use in hours) / len(hours)


def _bills(inputs: PlanInput, usage: Usage, needed: int, followed_count: float) -> list[Bill]:
    bills = [provisioned_bill(usage, needed, inputs.prices, f"provisioned, {needed} for the peak")]
    if followed_count < 0.95 * needed and inputs.traffic.span_s >= _MERGE_SPAN_S:
        bills.append(
            provisioned_bill(
                usage,
                round(followed_count, 2),
                inputs.prices,
                "provisioned, the number follows the load (autoscale)",
            )
        )
    if not inputs.summary.on_demand and len(inputs.shards) != needed:
        bills.append(
            provisioned_bill(
                usage, len(inputs.shards), inputs.prices, f"provisioned, {len(inputs.shards)} as now"
            )
        )
    return [*bills, standard_bill(usage, inputs.prices), advantage_bill(usage, inputs.prices)]


def _mode_advice(bills: Sequence[Bill], now: str) -> tuple[str, str]:
    """Return the mode to choose, and the reason."""
    best = bills[0]
    present_bill = next(bill for bill in bills if bill.mode.startswith(now))
    if (
        present_bill is not best
        and not best.mode.startswith(now)
        and best.amount > (1 - _GAIN_MIN) * present_bill.amount
    ):
        return present_bill.mode, f"{best.mode} is cheaper by less than {_GAIN_MIN:.0%}"
    if present_bill is best:
        other = next((bill for bill in bills if not bill.mode.startswith(now)), best)
        return best.mode, f"the cheapest; {other.mode} costs {other.amount - best.amount:.2f} more"
    return best.mode, f"saves {present_bill.amount - best.amount:.2f} against {present_bill.mode}"


def _reader_advice(inputs: PlanInput, usage: Usage, at_peak: LoadMap, shards: int) -> list[ReaderAdvice]:
    """Advise polling as long as all readers fit into the read quota of the fullest shard."""
    fullest = max((at_peak.load_in(each.hash_range)[0] for each in inputs.shards), default=0.0)
    by_calls = int(GET_RECORDS_PER_S_MAX * _READ_SHARE_MAX)
    by_bytes = int(SHARD_READ_BYTES_PER_S_MAX * _READ_SHARE_MAX / fullest) if fullest else by_calls
    fitting = min(by_calls, by_bytes)
    bill = provisioned_bill(replace(usage, consumer_count=1), shards, inputs.prices)
    monthly = sum(each.amount for each in bill.sums if each.item.startswith("fan-out"))
    names = [(name, "polling") for name in inputs.applications]
    names += [(name, "fan-out") for name in inputs.consumers]
    advice = []
    for place, (name, now) in enumerate(names):
        if place < fitting:
            advised = "polling"
            why = f"{len(names)} {'reader' if len(names) == 1 else 'readers'}, and {fitting} fit into the read quota by polling"
            if now == "fan-out":
                why += "; keep fan-out if records must arrive within a tenth of a second"
        else:
            advised = "fan-out"
            why = f"only {fitting} fit into the read quota by polling: the fullest shard has {fullest / MIB:.2f} MiB/s"
        advice.append(ReaderAdvice(name, now, advised, why, monthly))
    return advice


def _retention_advice(inputs: PlanInput, usage: Usage, shards: int) -> str:
    hours = inputs.summary.retention_hours
    if hours <= 24:
        week = bill_item("", shards, HOURS_PER_MONTH, inputs.prices.shard_hour_extended)
        return f"24 hours, the default, cost nothing; 7 days cost {week.terms} = {week.amount:.2f} a month on a provisioned stream"
    bill = provisioned_bill(usage, shards, inputs.prices)
    kept = [each for each in bill.sums if each.item.startswith("retention")]
    said = " + ".join(f"{each.terms} = {each.amount:.2f}" for each in kept)
    return f"{hours:g} hours cost {said} a month on a provisioned stream; 24 hours cost nothing, and a reader that stands still for longer loses records"


def _aggregation_advice(inputs: PlanInput, usage: Usage) -> str:
    if inputs.summary.service_managed_keys:
        return "off: the service places the records of this stream itself, and refuses aggregates"
    records = sum(each.record_count for each in inputs.samples)
    if not records:
        return "unknown: the sample has no record"
    aggregates = sum(each.aggregate_count for each in inputs.samples)
    mean = sum(each.written_bytes for each in inputs.samples) / records
    if aggregates >= _AGGREGATE_PART_MIN * records:
        inner = sum(each.user_record_count for each in inputs.samples) / records
        return (
            f"on: {aggregates / records:.0%} of the records are aggregates, {inner:.1f} user records in each"
        )
    if mean >= _SMALL_RECORD_BYTES_MAX:
        return f"off: a record has {mean:.0f} bytes, and a PUT payload unit has room for one of 25 KB"
    seconds, price = 3600 * HOURS_PER_MONTH, inputs.prices.put_units_million / 1_000_000
    now = usage.put_units_per_s
    best = usage.written_bytes_per_s / PUT_UNIT_BYTES  # every unit full
    shards_for_bytes = usage.written_bytes_per_s / SHARD_WRITE_BYTES_PER_S_MAX
    shards_for_records = usage.put_units_per_s / SHARD_WRITE_RECORDS_PER_S_MAX
    fewer = ""
    if shards_for_records > shards_for_bytes:
        fewer = " and the number of records, which needs more shards than the bytes do,"
    return (
        f"on, if every reader takes aggregates apart: a record has {mean:.0f} bytes; it lowers PUT payload units{fewer} from {now:.4g} to {best:.4g} "
        f"a second at best, {max(0.0, now - best) * seconds * price:.2f} less a month on a provisioned stream"
    )


def _warm_advice(inputs: PlanInput) -> str:
    uses = inputs.traffic.uses()
    if not uses:
        return "unknown: CloudWatch has no figures"
    highest, jump = 0.0, 0.0
    for use in uses:
        if highest and use > max(2 * highest, _ON_DEMAND_START_MIBPS):
            jump = max(jump, use)
        highest = max(highest, use)
    if not jump:
        return (
            "not needed: no period had more than double the highest before it, which on-demand takes at once"
        )
    return (
        f"needed on-demand: a period rose to {jump:.3g} MiB/s, more than double the highest before it; warm throughput of "
        f"{ceil(jump * _WARM_HEADROOM)} MiB/s (On-demand Advantage) takes it"
    )
