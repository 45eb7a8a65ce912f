"""Presets of worlds whose workers read: fleets of consumers, with Spark queries, KCL 3 workers, or several streams."""

from __future__ import annotations

from typing import Any, Final, Literal

from msgspec.structs import replace

from penstock.core.leases.coordinator_options import BalancePolicy, CoordinatorOptions
from penstock.core.position import LATEST, TRIM_HORIZON, at_timestamp
from penstock.core.reading.delivery_calls import DeliveryOptions
from penstock.core.starting import StartingPosition
from penstock_sim.plan import (
    DELIVERY,
    EPOCH_MS,
    NATIVE,
    NATIVE_FOR_NOW,
    ROLLED_BACK,
    SETTLE_MAX_S,
    STREAM,
    UPGRADING,
    Chance,
    Deletion,
    FaultPlan,
    Kcl3Plan,
    PlannedStream,
    QueryPlan,
    Rollout,
    Scenario,
    StreamsPlan,
)

_MIGRATING_SEEDS: Final = 2
"""Of three seeds of KCL 3 fleets this one migrates."""
_QUERY_SEEDS: Final = frozenset({4, 5})
"""Of six seeds of KCL 3 fleets these have a query, in a native fleet and in one that migrates."""
_FAULTLESS_SEEDS: Final = 3
"""Index, of four seeds with several streams, of the one whose only faults are those of streams."""
_WATCHING_SEEDS: Final = frozenset({5, 7})
"""Of eight seeds of fleets these watch the table between two rounds, as production does."""
_FAULTS_OF_NAMES: Final = (
    "second_drivers_per_min",
    "robberies_per_min",
    "brief_robbery",
    "restores_per_min",
    "copies_per_min",
    "strangers_per_min",
    "twins_per_min",
    "namesakes_per_min",
    "moves_per_min",
)
"""Faults by which another worker uses a query's leases, name or checkpoint location."""
_NAMES: Final = ("orders", "returns", "payments", "visits")


def draw_scenario(seed: int) -> Scenario:
    """Draw one seed's fleet of consumers, its options and fault rates."""
    drawn = _draw_fleet(seed)
    chance = Chance(f"consumers {seed}")

    some = chance.some
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
        second_processes_per_min=Chance(f"second processes {seed}").some(0.15, 0.3, 2.0),
        small_page=Chance(f"small pages {seed}").some(0.15, 0.3, 1.0),
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
        leavers = frozenset(drawn.workers[2:3])  # not the last one that supports hand-overs
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


def _draw_fleet(seed: int) -> Scenario:
    chance = Chance(seed)

    some = chance.some
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
    if seed % 8 in _WATCHING_SEEDS:
        options = replace(options, scans_for_free_leases=True)
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


def faults_of_processes(fleet: FaultPlan) -> dict[str, Any]:
    """Return those faults of a fleet that other processes can meet, and twice as many reshards."""
    names = ("crashes_per_min", "stops_per_min", "pauses_per_min", "pause_max_s", "clock_rate_spread")
    return {**{name: getattr(fleet, name) for name in names}, "reshards_per_min": 2 * fleet.reshards_per_min}


def without_readers(
    drawn: Scenario, names: tuple[str, ...], faults: FaultPlan, safety_s: float, **plan: Any
) -> Scenario:
    """Return a scenario of workers that read no shards, in the stream that was drawn for a fleet."""
    return Scenario(
        seed=drawn.seed,
        workers=names,
        shard_count=drawn.shard_count,
        options=drawn.options,
        faults=faults,
        safety_s=safety_s,
        records_per_s=0.0,
        with_readers=False,
        **plan,
    )


def draw_query_scenario(seed: int) -> Scenario:
    """Draw a seed's fleet of Spark queries and plain consumers; everything else as for consumers alone."""
    drawn = _draw_fleet(seed)
    chance = Chance(f"queries {seed}")
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
    # Mistakes of the service that a task of a batch must not take for a shard's end, or for a loss.
    faults = replace(
        drawn.faults,
        unknown_shard=chance.some(0.4, 0.0, 0.1),
        lost_iterator=chance.some(0.4, 0.0, 0.1),
        early_tip=chance.some(0.4, 0.0, 0.2),
    )
    plan, rates = _draw_query_plan(chance, has_robbers=has_robbers)
    faults = replace(faults, **rates)
    moving = Chance(f"moves {seed}")
    # Newcomers have no checkpoint location that would move with them, and restored or copied locations have histories of their own.
    newcomers = plain or faults.strangers_per_min or faults.twins_per_min or faults.namesakes_per_min
    if not (newcomers or faults.restores_per_min or faults.copies_per_min) and moving.random() < 0.7:
        faults = replace(faults, moves_per_min=moving.uniform(0.3, 1.5))
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


def _with_retention(drawn: Scenario, chance: Chance) -> Scenario:
    """Make some of the streams of queries hold aggregates, and some lose their oldest records."""
    retention_s = chance.choice((None, None, None, 25.0, 40.0, 60.0))
    fails = chance.choice(("true", "false"))
    takes_apart = "deaggregate" not in drawn.query_plan.options
    aggregate = chance.some(0.5, 0.1, 0.6)
    limits = {"maxRecordsPerTrigger", "maxRecordsPerShard"} & drawn.query_plan.options.keys()
    if limits:  # a query that reads a few records at once must be able to finish
        aggregate *= 0.0 if drawn.query_plan.options.get("maxRecordsPerTrigger") == "2" else 0.2
    faults = replace(
        drawn.faults,
        # A worker may stop inside an aggregate, which a query that does not deaggregate emits whole again.
        aggregate=aggregate if takes_apart or len(drawn.workers) == len(drawn.queries) else 0.0,
        malformed_aggregate=chance.some(0.2, 0.0, 0.1),
    )
    if retention_s is None:
        return replace(drawn, faults=faults)
    faults = replace(
        faults,
        quiet_streams_per_min=chance.some(0.7, 0.5, 2.0),
        # Minutes of this retention are hours of a real one: a clock that is an hour off, or a wrong answer, may lose records there.
        wall_jumps=False,
        unknown_shard=0.0,
        lost_iterator=0.0,
        early_tip=0.0,
    )
    options = {**drawn.query_plan.options, "failOnDataLoss": fails}
    return replace(
        drawn, faults=faults, query_plan=replace(drawn.query_plan, options=options), retention_s=retention_s
    )


def _draw_query_plan(chance: Chance, *, has_robbers: bool) -> tuple[QueryPlan, dict[str, float]]:
    """Draw one seed's queries, and the rates of their faults.

    Args:
        has_robbers: Whether workers of the fleet take leases without a hand-over request.
    """
    some = chance.some
    options = {
        "fetchInterval": chance.choice(("0s", "200ms")),
        "recordsPerFetch": chance.choice(("3", "10")),
        "probeInterval": chance.choice(("200ms", "1s", "1s", "2s")),
        "retryDeadline": "20s",
        "retryInterval": "100ms",
        "maxRetryInterval": "2s",
    }
    for name, likelihood, values in (
        ("maxRecordsPerTrigger", 0.5, ("2", "5", "20")),
        ("maxRecordsPerShard", 0.2, ("3",)),
        ("maxBytesPerTrigger", 0.2, ("2097152",)),
        ("maxBatchDuration", 0.2, ("2s",)),
        ("shardsPerTask", 0.3, ("2", "3")),
        ("deaggregate", 0.2, ("false",)),
    ):
        if chance.random() < likelihood:
            options[name] = chance.choice(values)
    executor_count = chance.choice((1, 2, 3))
    rates = {
        "executor_kills_per_min": some(0.4, 0.3, 3.0),
        "executor_pauses_per_min": some(0.4, 0.3, 3.0),
        "executor_pause_max_s": chance.choice((5.0, 20.0, 60.0)),
        "slow_task": some(0.5, 0.0, 0.2),
        "second_attempt": some(0.5, 0.0, 0.3),
        "unread_batch": some(0.3, 0.0, 0.3),
        "repeated_batch": some(0.3, 0.0, 0.2),
        "empty_first_batch": some(0.3, 0.2, 1.0),
        "available_now": some(0.2, 0.0, 0.5),
        "second_drivers_per_min": some(0.2, 0.3, 1.0),
        "lost_drivers_per_min": some(0.25, 0.3, 1.0),
        "robberies_per_min": some(0.7, 1.0, 8.0) if has_robbers else 0.0,
        "restores_per_min": some(0.15, 0.3, 1.0),
        "copies_per_min": some(0.1, 0.3, 1.0),
        "strangers_per_min": some(0.15, 0.3, 1.0),
        "twins_per_min": some(0.12, 0.3, 1.0),
        "namesakes_per_min": some(0.12, 0.3, 1.0),
        "brief_robbery": some(0.5, 0.02, 0.2) if has_robbers else 0.0,
    }
    return QueryPlan(options, executor_count), rates


def draw_kcl3_scenario(seed: int) -> Scenario:
    """Draw a seed's KCL 3 fleet with workers of Penstock's in it; everything else as for consumers alone.

    Two of three fleets are native, the others migrate. In one of three there is a query.
    """
    has_query = seed % 6 in _QUERY_SEEDS
    drawn = _draw_beside_query(seed) if has_query else draw_scenario(seed)
    chance = Chance(f"kcl3 {seed}")
    java, own = chance.choice(((1, 1), (1, 2), (2, 1), (2, 2), (3, 1)))
    names = tuple(f"{'ab'[index % 2]}/{'j' if index < java else 'w'}{index}" for index in range(java + own))
    queries = frozenset(names[java : java + 1]) if has_query else frozenset[str]()
    lock_s = chance.choice((20.0, 40.0, 120.0))
    plan = Kcl3Plan(workers=frozenset(names[:java]), lock_s=lock_s)
    leader_faults = {
        "leader_deaths_per_min": chance.some(0.5, 0.3, 2.0),
        "leader_moves_per_min": chance.some(0.4, 0.3, 2.0),
    }
    # In some seeds the KCL's workers are retired, and the others must notice that there is no leader any more.
    leavers = plan.workers if chance.random() < 0.25 else frozenset[str]()
    safety_s = chance.choice((100.0, 150.0, 200.0))
    if seed % 3 == _MIGRATING_SEEDS:
        plan = _draw_migration(plan, chance)
        leavers = frozenset()
        safety_s = 200.0
    options = replace(
        drawn.options,
        policy=BalancePolicy.EVEN,
        kcl3=True,
        handover=True,
        leases_to_acquire=None,
        handover_timeout_s=30.0,
    )
    return replace(
        drawn,
        workers=names,
        queries=queries,
        options=options,
        # The KCL keeps its rows in the lease table: without it no worker of its fleet goes on.
        faults=replace(drawn.faults, table_drops_per_min=0.0, rows_of_others=0.0, **leader_faults),
        foreign=frozenset(),
        limits=(),
        leavers=leavers,
        safety_s=safety_s,
        quiet_rounds=min(drawn.quiet_rounds, 8),
        kcl3=plan,
        settle_max_s=2 * SETTLE_MAX_S + lock_s,
    )


def _draw_beside_query(seed: int) -> Scenario:
    """Draw the faults of a query of a KCL 3 fleet: no other worker uses its names."""
    drawn = draw_query_scenario(seed)
    takes_apart = "deaggregate" not in drawn.query_plan.options
    aggregate = drawn.faults.aggregate if takes_apart else 0.0
    faults = replace(drawn.faults, aggregate=aggregate, **dict.fromkeys(_FAULTS_OF_NAMES, 0.0))
    return replace(drawn, faults=faults)


def _draw_migration(plan: Kcl3Plan, chance: Chance) -> Kcl3Plan:
    """Plan the fleet's migration from the KCL's 2.x mode to a leader, perhaps back, and perhaps forward again."""
    begins, *later = chance.choice(
        (
            (UPGRADING,),
            (UPGRADING, NATIVE_FOR_NOW),
            (UPGRADING, NATIVE_FOR_NOW, NATIVE),
            (UPGRADING, NATIVE_FOR_NOW, ROLLED_BACK),
            (ROLLED_BACK, UPGRADING, NATIVE_FOR_NOW),
            (NATIVE_FOR_NOW, ROLLED_BACK, UPGRADING, NATIVE_FOR_NOW),
        )
    )
    at_s = 0.0
    changes = []
    for version in later:
        at_s += chance.uniform(30.0, 60.0)
        changes.append((at_s, version))
    return replace(plan, begins=begins, changes=tuple(changes))


def draw_streams_scenario(seed: int) -> Scenario:
    """Draw a seed's fleet of consumers that reads several streams; in a quarter of the seeds only streams have faults."""
    drawn = draw_scenario(seed)
    chance = Chance(f"streams {seed}")
    safety_s = chance.choice((100.0, 150.0, 200.0))
    is_calm = seed % 4 == _FAULTLESS_SEEDS
    plan, refusals_per_min = _draw_streams_plan(chance, safety_s, is_calm=is_calm)
    faults = drawn.faults
    keeps_all = all(stream.retention_s is None for stream in plan.streams)
    starts_late = any(stream.start == LATEST for stream in plan.streams)
    faults = replace(
        faults,
        refusals_per_min=refusals_per_min,
        quiet_streams_per_min=0.0 if keeps_all else chance.choice((0.0, chance.uniform(0.5, 2.0))),
        table_drops_per_min=0.0 if starts_late else faults.table_drops_per_min,
    )
    drawn = replace(
        drawn,
        options=replace(drawn.options, stream=None, start=StartingPosition(default=TRIM_HORIZON)),
        faults=faults,
        safety_s=safety_s,
        quiet_rounds=min(drawn.quiet_rounds, 8),
        records_per_s=chance.choice((3.0, 6.0)),
        retention_s=None,
        streams=plan,
        settle_max_s=2 * SETTLE_MAX_S,
    )
    if not is_calm:
        return drawn
    return replace(
        drawn,
        faults=FaultPlan(
            latency_max_s=0.1, reshards_per_min=chance.choice((0.0, 2.0)), refusals_per_min=refusals_per_min
        ),
        delivery=DELIVERY,
        foreign=frozenset(),
        leavers=frozenset(),
        limits=(),
        start_spread_s=0.0,
        options=replace(drawn.options, policy=BalancePolicy.EVEN),
    )


def _draw_streams_plan(chance: Chance, safety_s: float, *, is_calm: bool) -> tuple[StreamsPlan, float]:
    """Draw two to four streams and their events within the safety phase; and how often a minute one refuses calls."""
    streams = tuple(_draw_stream(name, chance) for name in _NAMES[: chance.choice((2, 2, 3, 3, 4))])
    names = [stream.name for stream in streams]
    listed, rollouts, deletions = list(names), list[Rollout](), list[Deletion]()
    # The first stream has no events: whatever happens to the others, it must be read.
    if chance.random() < 0.45:
        listed.remove(names[-1])
        rollouts.append(_rollout(chance, chance.uniform(0.15, 0.5) * safety_s, names))
    deletable = [stream.name for stream in streams[1:] if stream.epoch is None]
    if deletable and chance.random() < 0.5:
        deletions.append(_draw_deletion(chance, chance.choice(deletable), safety_s))
        follows_s = deletions[0].at_s + (deletions[0].recreated_after_s or 0.0) + chance.uniform(3.0, 40.0)
        left = names if deletions[0].recreated_after_s is not None else _without(names, deletions[0].name)
        rollouts = [each for each in rollouts if each.begins_s < deletions[0].at_s]
        rollouts.append(_rollout(chance, follows_s, left))
    elif chance.random() < 0.5:
        dropped = chance.choice(names[1:])
        at_s = max((each.begins_s for each in rollouts), default=0.0) + chance.uniform(20.0, 40.0)
        rollouts.append(_rollout(chance, at_s, _without(names, dropped)))
        if chance.random() < 0.6:
            rollouts.append(_rollout(chance, at_s + chance.uniform(20.0, 60.0), names))
    refusals_per_min = chance.some(0.5, 0.4, 2.0)
    plan = StreamsPlan(
        streams=streams,
        listed=tuple(listed),
        rollouts=tuple(rollouts),
        deletions=tuple(deletions),
        cold_start_s=chance.choice((None, None, 1.0, 5.0)),
        added_refused_s=chance.choice((0.0, 0.0, 20.0, 100.0)),
        stops_at_standstill=chance.random() < 0.7,
        is_calm=is_calm,
    )
    return plan, refusals_per_min


def _draw_stream(name: str, chance: Chance) -> PlannedStream:
    return PlannedStream(
        name=name,
        shard_count=chance.choice((1, 1, 2, 3, 4)),
        start=chance.choice((TRIM_HORIZON, TRIM_HORIZON, LATEST, at_timestamp(EPOCH_MS + 3_000))),
        retention_s=chance.choice((None, None, None, 40.0, 60.0)),
        record_share=chance.choice((0.0, 1.0, 1.0, 3.0) if name != _NAMES[0] else (1.0, 3.0)),
        reshard_share=chance.choice((0.0, 1.0, 1.0, 3.0)),
        epoch=chance.choice((None, None, None, 1, 7)),
    )


def _draw_deletion(chance: Chance, name: str, safety_s: float) -> Deletion:
    at_s = chance.uniform(0.25, 0.6) * safety_s
    return Deletion(at_s, name, chance.choice((None, chance.uniform(12.0, 40.0))))


def _rollout(chance: Chance, begins_s: float, names: list[str]) -> Rollout:
    return Rollout(begins_s, chance.choice((0.0, 3.0, 12.0)), tuple(names))


def _without(names: list[str], name: str) -> list[str]:
    return [each for each in names if each != name]
