"""The faults of one seed: every kind of fault has its own rate, many are off (a swarm).

Source:
    The names F1 to F14 are those of the project's reliability scorecard: F1 crash, F2 pause, F3 clocks, F4
    throttled table, F5 spurious refusal, F6 lost answer, F7 table errors and stale scans, F8 throttled stream, F9
    expired iterator, F10 broken connection, F12 stale or incomplete listing, F13 resharding, F14 deleted rows and
    table. F11 (PutRecords) is in `producer_plan`.
"""

from __future__ import annotations

import random
from typing import Final, Literal

from msgspec import Struct
from msgspec.structs import replace

from penstock.core.leases.coordinator_options import BalancePolicy, CoordinatorOptions
from penstock.core.position import LATEST, TRIM_HORIZON, at_timestamp
from penstock.core.reading.delivery_calls import DeliveryOptions
from penstock.core.starting import StartingPosition
from penstock.core.stream_identity import StreamIdentity
from penstock_sim.kcl3_plan import Kcl3Plan
from penstock_sim.producer_plan import ProducerPlan
from penstock_sim.query_plan import CALM, QueryPlan, draw_query_plan
from penstock_sim.sink_plan import SinkPlan
from penstock_sim.streams_plan import StreamsPlan

EPOCH_MS = 1_700_000_000_000
"""The service's clock at the beginning of every simulation."""
STREAM = StreamIdentity("arn", 1)
"""The stream of every simulation."""


SETTLE_MAX_S: Final = 240.0
"""Some generations of shards one after the other, a failover (lease duration plus a round, twice), and the filling of holes."""
DELIVERY = DeliveryOptions(batch_records_max=5, checkpoint_interval_s=0.0, backoff_max_s=4.0)
"""How a handler is called where the seed does not decide it: few records at once, a checkpoint after each call."""


class FaultPlan(Struct, frozen=True):
    """Rates: per call in [0, 1], or per minute if the name says so."""

    crashes_per_min: float = 0.0
    stops_per_min: float = 0.0
    pauses_per_min: float = 0.0
    pause_max_s: float = 20.0
    clock_rate_spread: float = 0.0
    wall_jumps: bool = False
    throttle_bursts_per_min: float = 0.0
    spurious_refusal: float = 0.0
    unknown_applied: float = 0.0
    unknown_lost: float = 0.0
    unknown_late: float = 0.0
    answer_replaced: float = 0.0
    table_error: float = 0.0
    stale_scan: float = 0.0
    stream_throttle: float = 0.0
    expired_iterator: float = 0.0
    broken_connection: float = 0.0
    empty_page: float = 0.0
    unknown_shard: float = 0.0
    lost_iterator: float = 0.0
    early_tip: float = 0.0
    bad_listing: float = 0.0
    reshards_per_min: float = 0.0
    row_deletions_per_min: float = 0.0
    table_drops_per_min: float = 0.0
    foreign_rows: bool = False
    latency_max_s: float = 0.1
    slow_handler: float = 0.0
    handler_failure: float = 0.0
    poison_record: float = 0.0
    aggregate: float = 0.0
    malformed_aggregate: float = 0.0
    quiet_streams_per_min: float = 0.0
    denials_per_min: float = 0.0
    rows_of_others: float = 0.0
    second_processes_per_min: float = 0.0


class Scenario(Struct, frozen=True):
    """Everything that one seed decides before anything happens.

    Args:
        queries: The workers that are Spark queries.
        query_plan: Events and faults of the queries.
        foreign: The workers that know only the KCL's attributes of a lease, and its rule of sharing. Unless it is the rule
            of all, they neither ask nor answer.
        limits: The workers that hold at most so many leases.
        leavers: The workers that leave for ever, without a release and if possible while a foreign worker owes them an answer.
        delivery: How handlers of consumers are called, and the consequences of their failures.
        on_data_loss: The consumers' policy for records that are gone.
        retention_s: How long the stream keeps a record; None is for ever.
        kcl3: The KCL 3 workers of the fleet, or None.
        producers: Which workers are producers, and their records; None if there are none.
        sinks: Which workers are queries that write, and their rows; None if there are none.
        streams: The streams that share the lease table; None if the table has one.
        settle_max_s: So long after the faults' end everything must be read and balanced; twice as long while records are handled.
    """

    seed: int
    workers: tuple[str, ...]
    shard_count: int
    options: CoordinatorOptions
    faults: FaultPlan
    safety_s: float = 120.0
    quiet_rounds: int = 5
    records_per_s: float = 3.0
    start_spread_s: float = 15.0
    with_readers: bool = True
    queries: frozenset[str] = frozenset()
    query_plan: QueryPlan = CALM
    foreign: frozenset[str] = frozenset()
    limits: tuple[tuple[str, int], ...] = ()
    leavers: frozenset[str] = frozenset()
    delivery: DeliveryOptions = DELIVERY
    on_data_loss: Literal["fail", "warn"] = "warn"
    retention_s: float | None = None
    kcl3: Kcl3Plan | None = None
    producers: ProducerPlan | None = None
    sinks: SinkPlan | None = None
    streams: StreamsPlan | None = None
    settle_max_s: float = SETTLE_MAX_S


def draw_scenario(seed: int) -> Scenario:
    """Draw one seed's fleet of consumers, its options and fault rates."""
    drawn = _draw_fleet(seed)
    chance = random.Random(f"consumers {seed}")

    def some(likelihood: float, low: float, high: float) -> float:
        return chance.uniform(low, high) if chance.random() < likelihood else 0.0

    retention_s = chance.choice((None, None, 25.0, 40.0, 60.0))
    faults = replace(
        drawn.faults,
        handler_failure=some(0.3, 0.0, 0.1),
        poison_record=some(0.25, 0.002, 0.02),
        aggregate=some(0.5, 0.1, 0.8),
        malformed_aggregate=some(0.2, 0.0, 0.1),
        denials_per_min=some(0.3, 0.3, 1.5),
        rows_of_others=chance.choice((0.0, 0.0, 0.0, 0.3, 0.9)),
        quiet_streams_per_min=0.0 if retention_s is None else some(0.7, 0.5, 2.0),
        second_processes_per_min=_draw_second_processes(seed),
    )
    delivery = DeliveryOptions(
        batch_records_max=chance.choice((1, 3, 5, 5, 20)),
        checkpoint_interval_s=chance.choice((0.0, 0.0, 2.0, 5.0)),
        retries_max=chance.choice((0, 2, 3)),
        backoff_max_s=4.0,
        on_failure=chance.choice(("stop_shard", "stop_worker", "dead_letter", "dead_letter")),
    )
    options, foreign = drawn.options, frozenset[str]()
    limits: tuple[tuple[str, int], ...] = ()
    mixture = chance.choice(("", "", "", "", "KCL 2", "limits"))
    if mixture == "KCL 2" and len(drawn.workers) > 1:
        foreign = frozenset(drawn.workers[:1])
        options = replace(options, policy=BalancePolicy.KCL2, leases_to_acquire=None)
    elif mixture and options.policy is BalancePolicy.EVEN:
        limits = tuple((name, chance.randint(1, 3)) for name in drawn.workers[1:])
    on_data_loss: Literal["warn", "fail"] = chance.choice(("warn", "warn", "fail"))
    is_asked_in_vain = not mixture and options.handover and options.policy is BalancePolicy.EVEN
    leavers = frozenset[str]()
    if is_asked_in_vain and len(drawn.workers) > 1 and chance.random() < 0.25:
        foreign = frozenset(drawn.workers[:1])
        leavers = frozenset(drawn.workers[2:3])  # not the last one that hears
    return replace(
        drawn,
        faults=faults,
        options=options,
        foreign=foreign,
        limits=limits,
        leavers=leavers,
        delivery=delivery,
        on_data_loss=on_data_loss,
        retention_s=retention_s,
    )


def _draw_second_processes(seed: int) -> float:
    chance = random.Random(f"second processes {seed}")
    return chance.uniform(0.3, 2.0) if chance.random() < 0.15 else 0.0


def _draw_fleet(seed: int) -> Scenario:
    chance = random.Random(seed)

    def some(likelihood: float, low: float, high: float) -> float:
        return chance.uniform(low, high) if chance.random() < likelihood else 0.0

    start = chance.choice((TRIM_HORIZON, TRIM_HORIZON, LATEST, LATEST, at_timestamp(EPOCH_MS + 3_000)))
    faults = FaultPlan(
        crashes_per_min=some(0.6, 0.3, 3.0),
        stops_per_min=some(0.5, 0.3, 2.0),
        pauses_per_min=some(0.5, 0.3, 3.0),
        pause_max_s=chance.choice((3.0, 15.0, 40.0, 100.0)),
        clock_rate_spread=some(0.5, 0.0, 0.02),
        wall_jumps=chance.random() < 0.3,
        throttle_bursts_per_min=some(0.4, 0.5, 2.0),
        spurious_refusal=some(0.3, 0.0, 0.05),
        unknown_applied=some(0.5, 0.0, 0.08),
        unknown_lost=some(0.4, 0.0, 0.05),
        unknown_late=some(0.3, 0.0, 0.04),
        answer_replaced=some(0.4, 0.0, 0.08),
        table_error=some(0.4, 0.0, 0.1),
        stale_scan=some(0.4, 0.0, 0.3),
        stream_throttle=some(0.4, 0.0, 0.15),
        expired_iterator=some(0.4, 0.0, 0.05),
        broken_connection=some(0.4, 0.0, 0.1),
        empty_page=some(0.4, 0.0, 0.2),
        bad_listing=some(0.4, 0.1, 0.6),
        reshards_per_min=some(0.75, 0.5, 6.0),
        row_deletions_per_min=some(0.2, 0.2, 1.0),
        table_drops_per_min=0.0 if start == LATEST else some(0.08, 0.3, 0.6),
        foreign_rows=chance.random() < 0.1,
        latency_max_s=chance.choice((0.02, 0.1, 0.1, 0.5)),
        slow_handler=some(0.4, 0.0, 0.05),
    )
    policy = chance.choice(
        (BalancePolicy.EVEN, BalancePolicy.EVEN, BalancePolicy.EVEN, BalancePolicy.BY_ZONE)
    )
    options = CoordinatorOptions(
        policy=policy,
        start=StartingPosition(default=start),
        stream=STREAM,
        handover=chance.random() < 0.85,
        handover_timeout_s=chance.choice((5.0, 15.0, 30.0)),
        leases_to_acquire=chance.choice((None, None, None, 2)),
        garbage_interval_s=chance.choice((40.0, 1800.0)),
        cold_start_jitter_s=chance.choice((1.0, 5.0)),
        stall_after_s=120.0,
        shutdown_timeout_s=chance.choice((5.0, 30.0)),
    )
    count = chance.choice((1, 2, 2, 3, 3, 3, 4))
    if seed % 5 == 2:
        # So small a budget that each of these few workers watches a part of the table.
        options = replace(options, scanned_rows_per_s_max=4.0, part_watchers_min=1)
    return Scenario(
        seed=seed,
        workers=tuple(f"{'ab'[index % 2]}/w{index}" for index in range(count)),
        shard_count=chance.choice((1, 2, 3, 4, 4, 6, 8)),
        options=options,
        faults=faults,
        safety_s=chance.choice((60.0, 100.0, 150.0)),
        quiet_rounds=20 if seed % 8 == 0 else 4,
        records_per_s=chance.choice((1.0, 3.0, 6.0)),
        start_spread_s=chance.choice((0.0, 0.0, 15.0, 40.0)),
    )


def draw_query_scenario(seed: int) -> Scenario:
    """Draw a seed's fleet of Spark queries and plain consumers; everything else as for consumers alone."""
    drawn = _draw_fleet(seed)
    chance = random.Random(f"queries {seed}")
    queries = chance.choice((1, 1, 2))
    plain = chance.choice((0, 1, 1, 2))
    names = tuple(
        f"{'ab'[index % 2]}/{'q' if index < queries else 'w'}{index}" for index in range(queries + plain)
    )
    # A hand-over waits for the batch, which takes a while when its tasks fail.
    options = replace(drawn.options, leases_to_acquire=None)
    has_robbers = plain > 0 and chance.random() < 0.6
    foreign = frozenset(names[queries : queries + 1]) if has_robbers else frozenset()
    if has_robbers:
        options = replace(options, policy=BalancePolicy.KCL2)

    def some(high: float) -> float:
        return chance.uniform(0.0, high) if chance.random() < 0.4 else 0.0

    # Mistakes of the service that a task of a batch must not take for a shard's end, or for a loss.
    faults = replace(drawn.faults, unknown_shard=some(0.1), lost_iterator=some(0.1), early_tip=some(0.2))
    plan = draw_query_plan(chance, has_robbers=has_robbers)
    moving = random.Random(f"moves {seed}")
    # Newcomers have no checkpoint location that would move with them, and restored or copied locations have histories of their own.
    newcomers = plain or plan.strangers_per_min or plan.twins_per_min or plan.namesakes_per_min
    if not (newcomers or plan.restores_per_min or plan.copies_per_min) and moving.random() < 0.7:
        plan = replace(plan, moves_per_min=moving.uniform(0.3, 1.5))
    scenario = replace(
        drawn,
        workers=names,
        queries=frozenset(names[:queries]),
        quiet_rounds=min(drawn.quiet_rounds, 6),
        query_plan=plan,
        options=options,
        faults=faults,
        foreign=foreign,
    )
    return _with_retention(scenario, chance)


def _with_retention(drawn: Scenario, chance: random.Random) -> Scenario:
    """Make some of the streams of queries hold aggregates, and some lose their oldest records."""
    retention_s = chance.choice((None, None, None, 25.0, 40.0, 60.0))
    fails = chance.choice(("true", "false"))
    takes_apart = "deaggregate" not in drawn.query_plan.options
    aggregate = chance.uniform(0.1, 0.6) if chance.random() < 0.5 else 0.0
    limits = {"maxRecordsPerTrigger", "maxRecordsPerShard"} & drawn.query_plan.options.keys()
    if limits:  # a query that reads a few records at once must be able to finish
        aggregate *= 0.0 if drawn.query_plan.options.get("maxRecordsPerTrigger") == "2" else 0.2
    faults = replace(
        drawn.faults,
        # A worker may stop inside an aggregate, which a query that does not deaggregate emits whole again.
        aggregate=aggregate if takes_apart or len(drawn.workers) == len(drawn.queries) else 0.0,
        malformed_aggregate=chance.uniform(0.0, 0.1) if chance.random() < 0.2 else 0.0,
    )
    if retention_s is None:
        return replace(drawn, faults=faults)
    faults = replace(
        faults,
        quiet_streams_per_min=chance.uniform(0.5, 2.0) if chance.random() < 0.7 else 0.0,
        # Minutes of this retention are hours of a real one: a clock that is an hour off, or a wrong answer, may lose records there.
        wall_jumps=False,
        unknown_shard=0.0,
        lost_iterator=0.0,
        early_tip=0.0,
    )
    options = {**drawn.query_plan.options, "failOnDataLoss": fails}
    return replace(
        drawn,
        faults=faults,
        query_plan=replace(drawn.query_plan, options=options),
        retention_s=retention_s,
    )
