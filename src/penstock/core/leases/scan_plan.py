"""The scan plan: which part of the lease table a worker scans, and how often, within a read budget of the fleet.

In a fleet of ordinary size every worker scans the whole table in every round, which costs workers x leases. In a larger one
each worker watches a part of the table: it scans that part in every round, as several other workers do, and the whole table
from time to time. So the fleet's reads grow with the leases only:

| scan | how often | for |
|---|---|---|
| of the part | every round, and when a lease in it expires | unread leases |
| of the whole table | one worker after the other, as the budget allows | the balance, holes, finished leases |

Workers choose their parts by their places on a ring, so that all parts have equally many watchers. The workers of each zone
are spaced evenly on the ring: if a zone is lost, no part loses all of its watchers.
"""

from __future__ import annotations

from collections.abc import Collection
from collections.abc import Set as AbstractSet
from typing import Final

from msgspec import Struct

from penstock.core.leases.coordinator_options import BalancePolicy, CoordinatorOptions
from penstock.core.leases.fleet_view import tie_break, zone_of
from penstock.core.leases.table_part import TablePart

_EVERY_ROUND_SHARE: Final = 1 / 8  # of the budget, for strongly consistent scans of all rows in every round
_PART_SHARE: Final = 2 / 3
_WHOLE_SHARE: Final = 1 / 3
_PART_ROUNDS: Final = 0.75  # a part is scanned more often: fewer workers watch each lease
_WATCHERS_MIN: Final = 2  # of a part, however many leases there are
_WHOLE_ROUNDS_MIN: Final = 4  # between two whole scans of a worker that watches a part
_MOVING_SHARE: Final = 1 / 2  # of that time, while leases are moving
_SETTLING_SHARE: Final = 1 / 6  # of that time, until a new worker requests its share
_LEASES_PER_WORKER: Final = 10  # assumed until the fleet was seen
_RING: Final = 1 << 64


class ScanPlan(Struct, frozen=True):
    """The scans of one worker.

    Args:
        part: The part that it watches in every round; None for the whole table.
        round_s: Mean seconds between two scans.
        whole_s: Mean seconds between two scans of the whole table.
        moving_s: The same while leases are moving.
        settling_s: How long a new worker waits for others before it scans again and requests its share.
        whole_s_per_worker: The seconds that each worker of the fleet adds to `whole_s`.
        watchers: Number of workers that watch the part.
        share: Number of leases per worker.
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
    """Plan the scans of a worker that has seen the fleet.

    Args:
        options: As for the coordinator.
        me: This worker.
        row_count: Rows of the lease table.
        workers: Live workers, this one included.
    """
    ring = _ring_of(workers)
    return _plan(options, row_count, len(workers), (ring.index(me) + 0.5) / len(ring))


def _ring_of(workers: Collection[str]) -> list[str]:
    """Return the workers in an order that spaces those of each zone evenly."""
    zones: dict[str, list[str]] = {}
    for worker in sorted(workers, key=tie_break):
        zones.setdefault(zone_of(worker), []).append(worker)
    places = [
        ((rank + 0.5) / len(members), tie_break(zone), worker)
        for zone, members in zones.items()
        for rank, worker in enumerate(members)
    ]
    return [worker for _, _, worker in sorted(places)]


def plan_first_scans(options: CoordinatorOptions, me: str, row_count: int) -> ScanPlan:
    """Plan the scans of a worker that has only the table's row count: others may be starting too.

    If a whole fleet can scan the table within one round, the worker scans it at once.
    """
    worker_count = max(1, row_count // _LEASES_PER_WORKER)
    if _whole_s(options, row_count) * worker_count <= options.interval_s:
        return _plan(options, 0, 1, 0.0)
    return _plan(options, row_count, worker_count, tie_break(me) / _RING)


def _whole_s(options: CoordinatorOptions, row_count: int) -> float:
    return row_count / (options.scanned_rows_per_s_max * _WHOLE_SHARE)


def _plan(options: CoordinatorOptions, row_count: int, worker_count: int, place: float) -> ScanPlan:
    interval_s, budget = options.interval_s, options.scanned_rows_per_s_max
    read = row_count * worker_count
    part_s = _PART_ROUNDS * interval_s
    # The number of parts is doubled as long as each part keeps `part_watchers_min` watchers, or only `_WATCHERS_MIN` if more
    # would exceed the budget for scans of parts. With one part every worker scans the whole table in every round.
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
    """Estimate the number of other workers in a fleet from the owners of the leases in two parts of its table.

    In a balanced fleet the owners of any two parts are drawn from the same workers: the more owners they have in common, the
    fewer workers there are. Workers that have just started own leases only in the parts that they watch. Then two parts have
    no common owners, and every part has about equally many.

    Args:
        here: Owners in one part.
        there: Owners in another one.
        part_count: Number of parts of the table.
    """
    if not here & there:
        return float(part_count * max(len(here), len(there)))
    return len(here) * len(there) / len(here & there)
