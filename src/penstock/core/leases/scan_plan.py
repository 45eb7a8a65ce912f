"""How much of the lease table one worker looks at, and how often: the fleet's reads stay within a budget.

A fleet of ordinary size looks at the whole table in every round. That costs workers x leases. In a larger one each worker
watches a part of the table in every round, which several others watch too, and looks at the whole table from time to
time. So the fleet's reads grow with the leases, and no more with workers x leases:

| look | how often | for |
|---|---|---|
| at the part | every round, and when a lease in it expires | leases that nobody reads |
| at the whole table | one after the other, as the budget allows | the balance, holes, finished leases |

Workers choose their parts by their places on a ring, so that each part has as many watchers as any other. On the ring the
workers of each zone that the ids name stand evenly apart: when a zone is lost, no part loses all of its watchers.
"""

from __future__ import annotations

from collections.abc import Collection
from collections.abc import Set as AbstractSet
from typing import Final

from msgspec import Struct

from penstock.core.leases.coordinator_options import BalancePolicy, CoordinatorOptions
from penstock.core.leases.fleet_view import tie, zone_of
from penstock.core.leases.table_part import TablePart

_EVERY_ROUND_SHARE: Final = (
    1 / 8
)  # of the budget: what whole looks in every round may cost; they are strongly consistent
_PART_SHARE: Final = 2 / 3
_WHOLE_SHARE: Final = 1 / 3
_PART_ROUNDS: Final = (
    0.75  # a part is looked at more often than a whole table: fewer workers watch each lease
)
_WATCHERS_MIN: Final = 2  # of a part, however many leases there are
_WHOLE_ROUNDS_MIN: Final = 4  # between two whole looks of a worker that watches a part
_MOVING_SHARE: Final = 1 / 2  # of that time, while there is something to move
_SETTLING_SHARE: Final = 1 / 6  # of that time, until a new worker asks for its share
_LEASES_PER_WORKER: Final = 10  # in a fleet that nobody has seen yet
_RING: Final = 1 << 64


class ScanPlan(Struct, frozen=True):
    """What one worker looks at.

    Args:
        part: What it watches in every round; None for the whole table.
        round_s: Mean seconds between two looks.
        whole_s: Mean seconds between two looks at the whole table.
        moving_s: The same while there is something to move.
        settling_s: How long a worker that is new waits for others before it asks for its share, and looks again.
        whole_s_per_worker: What each worker of the fleet adds to `whole_s`.
        watchers: How many workers watch the part.
        share: How many leases each worker has.
    """

    part: TablePart | None
    round_s: float
    whole_s: float
    moving_s: float
    settling_s: float
    whole_s_per_worker: float = 0.0
    watchers: float = 1.0
    share: float = 0.0


def plan_scans(options: CoordinatorOptions, me: str, row_count: int, workers: Collection[str]) -> ScanPlan:
    """Plan the looks of a worker that has seen the fleet.

    Args:
        options: As for the coordinator.
        me: This worker.
        row_count: Rows of the lease table.
        workers: Live workers, this one included.
    """
    ring = _ring_of(workers)
    return _plan(options, row_count, len(workers), (ring.index(me) + 0.5) / len(ring))


def _ring_of(workers: Collection[str]) -> list[str]:
    """Return the workers in an order in which those of each zone stand evenly apart."""
    zones: dict[str, list[str]] = {}
    for worker in sorted(workers, key=tie):
        zones.setdefault(zone_of(worker), []).append(worker)
    places = [
        ((rank + 0.5) / len(members), tie(zone), worker)
        for zone, members in zones.items()
        for rank, worker in enumerate(members)
    ]
    return [worker for _, _, worker in sorted(places)]


def plan_first_scans(options: CoordinatorOptions, me: str, row_count: int) -> ScanPlan:
    """Plan the looks of a worker that has only been told how large the table is: others may be starting too.

    A table that a whole fleet can look at within one round is looked at at once.
    """
    worker_count = max(1, row_count // _LEASES_PER_WORKER)
    if _whole_s(options, row_count) * worker_count <= options.interval_s:
        return _plan(options, 0, 1, 0.0)
    return _plan(options, row_count, worker_count, tie(me) / _RING)


def _whole_s(options: CoordinatorOptions, row_count: int) -> float:
    return row_count / (options.scanned_rows_per_s_max * _WHOLE_SHARE)


def _plan(options: CoordinatorOptions, row_count: int, worker_count: int, place: float) -> ScanPlan:
    interval_s, budget = options.interval_s, options.scanned_rows_per_s_max
    read = row_count * worker_count
    part_s = _PART_ROUNDS * interval_s
    part_count = 1
    if options.policy is not BalancePolicy.KCL2 and read > budget * _EVERY_ROUND_SHARE * interval_s:
        affordable = budget * _PART_SHARE * part_s / row_count
        while worker_count / (2 * part_count) >= options.part_watchers_min or (
            worker_count / part_count > affordable and worker_count / (2 * part_count) >= _WATCHERS_MIN
        ):
            part_count *= 2
    if part_count == 1:
        round_s = max(interval_s, read / budget)
        return ScanPlan(None, round_s, round_s, round_s, round_s)
    per_worker_s = _whole_s(options, row_count)
    whole_s = max(_WHOLE_ROUNDS_MIN * interval_s, per_worker_s * worker_count)
    part = TablePart(min(int(place * part_count), part_count - 1), part_count)
    return ScanPlan(
        part,
        part_s,
        whole_s,
        max(interval_s, whole_s * _MOVING_SHARE),
        max(interval_s, whole_s * _SETTLING_SHARE),
        per_worker_s,
        worker_count / part_count,
        row_count / worker_count,
    )


def estimate_workers(here: AbstractSet[str], there: AbstractSet[str], part_count: int) -> float:
    """Estimate how many other workers a fleet has from the owners of the leases in two parts of its table.

    In a fleet at rest the owners of any two parts are drawn from the same workers: the more they have in common, the
    fewer there are. Workers that have just started own leases in the parts that they watch, so two parts have nothing in
    common, and each part has about as many.

    Args:
        here: Owners in one part.
        there: Owners in another one.
        part_count: Into how many parts the table is divided.
    """
    if not here & there:
        return float(part_count * max(len(here), len(there)))
    return len(here) * len(there) / len(here & there)
