"""How often each fault, decision and situation happened: many clean seeds prove something only if they met all of them.

The environment and the ports count faults, refusals and decisions as they happen. Events declare the situations that each of
them shows (`Event.situation`); situations that take several events are found by the finders of `penstock_sim.events`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from functools import cache
from typing import Final

from penstock.core.batches.claims import ClaimRefusal, NothingReason, StartReason
from penstock.core.leases.kcl3_fleet import FleetMode
from penstock.core.leases.lease_writes import Refusal
from penstock_sim.events import kcl3, leases, producers, queries, sinks, streams
from penstock_sim.events.base import SituationFinder
from penstock_sim.history import History
from penstock_sim.kinds import SITUATIONS, SeedKind
from penstock_sim.plan import FaultPlan, Scenario
from penstock_sim.seed_kinds import DRAW

_NOT_COUNTED: Final = frozenset(
    {
        "pause_max_s",
        "executor_pause_max_s",
        "clock_rate_spread",
        "wall_jumps",
        "latency_max_s",
        "available_now",
    }
)
_DRAWN_SEEDS: Final = 100
_FAULTS_OF_WRITERS: Final = (
    "crashes_per_min",
    "stops_per_min",
    "pauses_per_min",
    "reshards_per_min",
    "stream_throttle",
    "bad_listing",
    "denials_per_min",
)
_SENT_AGAIN: Final = (
    "throttled",
    "unavailable",
    "unknown",
    "ProvisionedThroughputExceededException",
    "InternalFailure",
    "NoAnswer",
    "misplaced",
)
_REFUSALS: Final = (Refusal.EXISTS, Refusal.MISSING, Refusal.COUNTER, Refusal.HANDOVER, Refusal.BACKWARDS)
_REFUSALS_OF_QUERIES: Final = (
    *_REFUSALS,
    Refusal.OWNER,
    Refusal.CHECKPOINT,
    Refusal.CLAIMED,
    Refusal.CLAIM_GONE,
)
# A lease has to be deleted, created again and taken between the plan of a batch and the read of its row.
_RARE: Final = frozenset({NothingReason.ROW_RECREATED})
# A lease that is gone is created again before its batch is settled.
_SETTLED: Final = (StartReason.CLAIMED, StartReason.CHECKPOINT, StartReason.NOT_READ)


def expected(kind: SeedKind) -> tuple[str, ...]:
    """Return the faults, decisions and situations that a run of many seeds of a kind must meet."""
    declared = [name for name, kinds in SITUATIONS.items() if kind in kinds]
    return (*(f"fault: {name}" for name in _faults_of(kind)), *_decisions_of(kind), *declared)


def _faults_of(kind: SeedKind) -> list[str]:
    """Return the faults that seeds of a kind draw.

    For kinds with producers or sinks: their own faults, and those of all workers that writers can meet.
    """
    drawn = _drawn_faults(kind)
    if kind in {SeedKind.PRODUCERS, SeedKind.SINKS}:
        own = drawn - _drawn_faults(SeedKind.CONSUMERS)
        drawn = own.union(_FAULTS_OF_WRITERS)
    return [name for name in FaultPlan.__struct_fields__ if name in drawn]


@cache
def _drawn_faults(kind: SeedKind) -> frozenset[str]:
    off, plans = FaultPlan(), [DRAW[kind](seed).faults for seed in range(_DRAWN_SEEDS)]
    names = [name for name in FaultPlan.__struct_fields__ if name not in _NOT_COUNTED]
    return frozenset(
        name for name in names if any(getattr(plan, name) != getattr(off, name) for plan in plans)
    )


def _decisions_of(kind: SeedKind) -> list[str]:
    if kind in {SeedKind.PRODUCERS, SeedKind.SINKS}:
        return [f"sent again: {reason}" for reason in _SENT_AGAIN]
    if kind is SeedKind.QUEUES:
        return []
    if kind is SeedKind.KCL3:
        return [f"fleet: {mode.name}" for mode in FleetMode]
    if kind is not SeedKind.QUERIES:
        return [f"refusal: {reason.name}" for reason in _REFUSALS]
    return [
        *(f"refusal: {reason.name}" for reason in _REFUSALS_OF_QUERIES),
        *(f"settled: {reason.name}" for reason in _SETTLED),
        "settled: END FIXED BY THE DRIVER",
        *(f"task: {name}" for name in ("ReadFreely", "ReadTo", "ReadUnclaimed", "ClaimedElsewhere")),
        *(f"task: ReadNothing {reason.name}" for reason in NothingReason if reason not in _RARE),
        *(f"refused claim: {meaning.name}" for meaning in ClaimRefusal),
    ]


def never_met(met: Iterable[str], kind: SeedKind) -> list[str]:
    """Return the expected situations that did not happen."""
    found = list(met)
    return [each for each in expected(kind) if not any(key.startswith(each) for key in found)]


def finders_of(scenario: Scenario, history: History, met: Counter[str]) -> list[SituationFinder]:
    """Return the finders of one seed's situations, which count them in `met`."""
    kinds: list[type[SituationFinder]] = [
        leases.LeaseSituations,
        kcl3.Kcl3Situations,
        queries.QuerySituations,
        producers.ProducerSituations,
    ]
    if scenario.sinks is not None:
        kinds.append(sinks.SinkSituations)
    if scenario.streams is not None:
        kinds.append(streams.StreamsSituations)
    return [kind(scenario, history, met) for kind in kinds]
