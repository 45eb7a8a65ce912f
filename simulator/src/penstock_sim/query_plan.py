"""One seed's Spark queries: their options, and their faults.

Source:
    The reliability scorecard's F19 (killed driver, executor or task), F20 (repeated tasks), F21 (restored and copied checkpoint
    locations) and F22 (two drivers on one location), and what actions of users do.
"""

from __future__ import annotations

import random

from msgspec import Struct, field


class QueryPlan(Struct, frozen=True):
    """Rates: likelihoods in [0, 1], or per minute if the name says so.

    Args:
        options: Options of the source, as Spark gives them.
        executor_count: Processes that run the tasks of every query.
        executor_pause_max_s: The longest pause of an executor.
        slow_task: A task gives its rows out slowly.
        second_attempt: A task is run twice at the same time.
        unread_batch: The action reads no row of the batch, or only a few.
        repeated_batch: The action reads the batch twice.
        empty_first_batch: Spark runs batch 0 although there is nothing to read.
        available_now: A life of the driver that reads the available records and ends.
        second_drivers_per_min: Another driver is started from the same checkpoint location.
        lost_drivers_per_min: A driver is paused for long, and a successor takes its place.
        robberies_per_min: A worker takes a lease from a query in the middle of its batch, as a Java KCL 2.x worker may.
        brief_robbery: A worker takes a lease of a batch before its tasks begin, and gives it back without having read.
        restores_per_min: The checkpoint location is set back to an earlier state.
        copies_per_min: Another driver is started from a copy of the checkpoint location.
        strangers_per_min: A query of another stream is started under the same application name.
        twins_per_min: A query is started that loads the stream twice under one application name.
        namesakes_per_min: A query is started that names no application, while others read under the default name.
        moves_per_min: All queries end, and go on under another application name.
    """

    options: dict[str, str] = field(default_factory=dict)
    executor_count: int = 2
    executor_kills_per_min: float = 0.0
    executor_pauses_per_min: float = 0.0
    executor_pause_max_s: float = 40.0
    slow_task: float = 0.0
    second_attempt: float = 0.0
    unread_batch: float = 0.0
    repeated_batch: float = 0.0
    empty_first_batch: float = 0.0
    available_now: float = 0.0
    second_drivers_per_min: float = 0.0
    lost_drivers_per_min: float = 0.0
    robberies_per_min: float = 0.0
    brief_robbery: float = 0.0
    restores_per_min: float = 0.0
    copies_per_min: float = 0.0
    strangers_per_min: float = 0.0
    twins_per_min: float = 0.0
    namesakes_per_min: float = 0.0
    moves_per_min: float = 0.0


CALM = QueryPlan()


def draw_query_plan(chance: random.Random, *, has_robbers: bool) -> QueryPlan:
    """Draw one seed's queries; every fault has its own rate, and many are off.

    Args:
        chance: The seed's.
        has_robbers: Whether workers of the fleet take leases without a hand-over request.
    """

    def some(likelihood: float, low: float, high: float) -> float:
        return chance.uniform(low, high) if chance.random() < likelihood else 0.0

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
    return QueryPlan(
        options=options,
        executor_count=chance.choice((1, 2, 3)),
        executor_kills_per_min=some(0.4, 0.3, 3.0),
        executor_pauses_per_min=some(0.4, 0.3, 3.0),
        executor_pause_max_s=chance.choice((5.0, 20.0, 60.0)),
        slow_task=some(0.5, 0.0, 0.2),
        second_attempt=some(0.5, 0.0, 0.3),
        unread_batch=some(0.3, 0.0, 0.3),
        repeated_batch=some(0.3, 0.0, 0.2),
        empty_first_batch=some(0.3, 0.2, 1.0),
        available_now=some(0.2, 0.0, 0.5),
        second_drivers_per_min=some(0.2, 0.3, 1.0),
        lost_drivers_per_min=some(0.25, 0.3, 1.0),
        robberies_per_min=some(0.7, 1.0, 8.0) if has_robbers else 0.0,
        restores_per_min=some(0.15, 0.3, 1.0),
        copies_per_min=some(0.1, 0.3, 1.0),
        strangers_per_min=some(0.15, 0.3, 1.0),
        twins_per_min=some(0.12, 0.3, 1.0),
        namesakes_per_min=some(0.12, 0.3, 1.0),
        brief_robbery=some(0.5, 0.02, 0.2) if has_robbers else 0.0,
    )
