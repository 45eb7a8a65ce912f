"""Scenarios for `penstock_sim.fleet`, each with its figures."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from enum import Enum
from typing import Final, TypeAlias

from msgspec import Struct

from penstock.core.hash_key import HASH_KEY_MAX, HASH_KEYS, HashRange
from penstock.core.leases.coordinator_options import BalancePolicy, CoordinatorOptions
from penstock.core.leases.lease import Lease
from penstock.core.position import TRIM_HORIZON
from penstock.core.shard import ChildShard, Shard
from penstock.core.starting import StartingPosition
from penstock_sim.fleet import Fleet

Progress: TypeAlias = Callable[[str, float], None]
"""Called with the name of the scenario that runs, and the seconds of it that have passed since the last call."""

_START_S: Final = 5.0  # workers that start together do so within so long
_WARM_S: Final = 20.0
_STEP_S: Final = 5.0
_ROLLING_STEPS: Final = 100
_ROLLING_STEP_S: Final = 3.0
_BACK_AFTER_S: Final = 120.0
_BACK_WITHIN_S: Final = 30.0
_REFUSED_S: Final = 60.0
_SPLITTING_S: Final = 60.0
_PEAK_S: Final = 10


class FleetScenario(Enum):
    """The kinds of events."""

    START = "start"
    CALM = "calm"
    THROTTLED = "throttled"
    ZONE = "zone"
    ROLLING = "rolling"
    DOUBLED = "doubled"

    @property
    def description(self) -> str:
        return _TABLE[self][0]

    @property
    def length_s(self) -> float:
        return _TABLE[self][1]


_TABLE: Final = {
    FleetScenario.START: ("all workers start within 5 s on a table of free leases", 120.0),
    FleetScenario.CALM: ("nothing happens", 60.0),
    FleetScenario.THROTTLED: ("DynamoDB refuses half of all calls for a minute", 120.0),
    FleetScenario.ZONE: ("one zone of three is lost, and is back after two minutes", 300.0),
    FleetScenario.ROLLING: ("a rolling deployment: 1 % of the workers is replaced every 3 s", 420.0),
    FleetScenario.DOUBLED: ("every shard of half as many is split within a minute", 120.0),
}
"""What happens, and for how long it is watched."""


class FleetFigures(Struct, frozen=True):
    """The figures of one scenario."""

    scenario: FleetScenario
    worker_count: int
    lease_count: int
    policy: BalancePolicy
    reads_per_s: float  # read units per second, on average
    reads_peak_per_s: float  # the same in the worst ten seconds
    writes_per_s: float  # write units per second, on average
    writes_peak_per_s: float  # the same in the worst ten seconds
    moves: int  # how often a shard went from one worker to another
    unread_max_s: float  # the longest time that a shard had no reader
    # When every shard without a reader at the beginning had one; None while some have none.
    all_read_s: float | None
    load_min: int  # the fewest shards that a worker reads at the end
    load_max: int  # the most
    reads: tuple[float, ...]  # read units of each second
    unread: tuple[int, ...]  # shards without a reader, every five seconds


def _ignore(_name: str, _step_s: float) -> None:
    pass


def length_s(scenarios: Iterable[FleetScenario]) -> float:
    """Return how many seconds `run_fleet` lets pass in all."""
    wanted = set(scenarios)
    settled = wanted - {FleetScenario.START}
    fleets = (FleetScenario.DOUBLED in settled) + bool(settled - {FleetScenario.DOUBLED})
    return sum(scenario.length_s for scenario in wanted) + fleets * _WARM_S


def run_fleet(
    worker_count: int,
    lease_count: int,
    *,
    policy: BalancePolicy = BalancePolicy.EVEN,
    scenarios: Iterable[FleetScenario] = FleetScenario,
    progress: Progress = _ignore,
) -> Iterator[FleetFigures]:
    """Run scenarios and yield the figures of each; those that need a settled fleet follow each other in one fleet.

    The workers are in three zones.
    """
    wanted = [scenario for scenario in FleetScenario if scenario in set(scenarios)]
    settled: WatchedFleet | None = None
    for scenario in wanted:
        if scenario is FleetScenario.START:
            watched = WatchedFleet(free_fleet(lease_count, policy), worker_count, lease_count, progress)
        elif scenario is FleetScenario.DOUBLED:
            settled = None  # frees its memory before the next one is made
            watched = settle(worker_count, lease_count // 2, policy, progress)
        else:
            settled = watched = settled or settle(worker_count, lease_count, policy, progress)
        yield watched.watch(scenario)


# --- fleets ---------------------------------------------------------------------------------------------


def _options(policy: BalancePolicy) -> CoordinatorOptions:
    start = StartingPosition(default=TRIM_HORIZON)
    if policy is BalancePolicy.KCL2:  # it scans every two lease durations, and requests no leases
        return CoordinatorOptions(start=start, policy=policy, round_interval_s=20.05, handover=False)
    return CoordinatorOptions(start=start, policy=policy, scans_for_free_leases=True)


def _names(worker_count: int) -> list[str]:
    return [f"{'abc'[number % 3]}/w{number:04}" for number in range(worker_count)]


def free_fleet(lease_count: int, policy: BalancePolicy, owners: Sequence[str] = ()) -> Fleet:
    """Return a fleet without workers; its leases are held by these owners in turn, or by none."""
    fleet = Fleet(_options(policy))
    width = HASH_KEYS // lease_count
    for number in range(lease_count):
        is_last = number == lease_count - 1
        hash_range = HashRange(number * width, HASH_KEY_MAX if is_last else (number + 1) * width - 1)
        key = f"shardId-{number:012}"
        owner = owners[number % len(owners)] if owners else None
        fleet.put(Lease(key, counter=1, owner=owner, hash_range=hash_range))
        fleet.shards[key] = Shard(key, hash_range)
    fleet.row_count_hint = lease_count
    return fleet


def settle(
    worker_count: int, lease_count: int, policy: BalancePolicy, progress: Progress = _ignore
) -> WatchedFleet:
    """Return a fleet in which every worker has its share and has seen the others."""
    names = _names(worker_count)
    fleet = free_fleet(lease_count, policy, names)
    fleet.row_count_hint = 0  # each worker scans the whole table once, which is not counted
    for name in names:
        fleet.at(fleet.chance.uniform(0.0, _START_S), fleet.start, name)
    watched = WatchedFleet(fleet, worker_count, lease_count, progress)
    watched.let_pass("settling", _WARM_S)
    fleet.row_count_hint = lease_count
    return watched


class WatchedFleet:
    """A fleet that scenarios happen to, one after the other."""

    def __init__(
        self, fleet: Fleet, worker_count: int, lease_count: int, progress: Progress = _ignore
    ) -> None:
        self.fleet = fleet
        self.worker_count = worker_count
        self.lease_count = lease_count
        self.progress = progress
        self._next_number = worker_count

    def let_pass(self, name: str, length_s: float) -> list[int]:
        """Advance time; return how many shards were unread, every few seconds."""
        unread = []
        until_s = self.fleet.now + length_s
        while self.fleet.now < until_s:
            self.fleet.run_until(min(until_s, self.fleet.now + _STEP_S))
            self.progress(name, _STEP_S)
            unread.append(self.fleet.unread)
        return unread

    def watch(self, scenario: FleetScenario, length_s: float | None = None) -> FleetFigures:
        """Run a scenario for `length_s`, by default its own length, and return its figures."""
        fleet, costs = self.fleet, self.fleet.costs
        costs.moves.clear()
        costs.gaps.clear()
        began_s = fleet.now
        self._plan(scenario)
        unread = self.let_pass(scenario.value, scenario.length_s if length_s is None else length_s)
        seconds = range(int(began_s), int(fleet.now))
        reads = [costs.reads.get(second, 0.0) for second in seconds]
        writes = [costs.writes.get(second, 0.0) for second in seconds]
        waited = [gap_s for since_s, gap_s, _ in costs.gaps if since_s <= began_s]
        loads = fleet.counts()
        return FleetFigures(
            scenario=scenario,
            worker_count=self.worker_count,
            lease_count=self.lease_count,
            policy=fleet.options.policy,
            reads_per_s=sum(reads) / len(reads),
            reads_peak_per_s=_peak(reads),
            writes_per_s=sum(writes) / len(writes),
            writes_peak_per_s=_peak(writes),
            moves=len(costs.moves),
            unread_max_s=max([gap_s for _, gap_s, _ in costs.gaps] + [fleet.oldest_unread_s()]),
            all_read_s=None if fleet.is_unread_since(began_s) else max(waited, default=0.0),
            load_min=loads[-1],
            load_max=loads[0],
            reads=tuple(reads),
            unread=tuple(unread),
        )

    # --- events -----------------------------------------------------------------------------------------

    def _plan(self, scenario: FleetScenario) -> None:
        match scenario:
            case FleetScenario.START:
                for name in _names(self.worker_count):
                    self._start_within(_START_S, name)
            case FleetScenario.CALM:
                pass
            case FleetScenario.THROTTLED:
                self.fleet.refused_share = 0.5
                self.fleet.at(self.fleet.now + _REFUSED_S, setattr, self.fleet, "refused_share", 0.0)
            case FleetScenario.ZONE:
                lost = sorted(name for name in self.fleet.workers if name.startswith("a/"))
                for name in lost:
                    self.fleet.kill(name)
                self.fleet.at(
                    self.fleet.now + _BACK_AFTER_S, self._start_more, "a", len(lost), _BACK_WITHIN_S
                )
            case FleetScenario.ROLLING:
                self._roll()
            case FleetScenario.DOUBLED:
                for key in list(self.fleet.shards):
                    at_s = self.fleet.now + self.fleet.chance.uniform(0.0, _SPLITTING_S)
                    self.fleet.at(at_s, self._split, key)

    def _start_within(self, length_s: float, name: str) -> None:
        fleet = self.fleet
        fleet.at(fleet.now + fleet.chance.uniform(0.0, length_s), fleet.start, name)

    def _start_more(self, zone: str, count: int, within_s: float) -> None:
        for _ in range(count):
            self._start_within(within_s, f"{zone}/w{self._next_number:04}")
            self._next_number += 1

    def _roll(self) -> None:
        names = sorted(self.fleet.workers)
        size = max(1, -(-len(names) // _ROLLING_STEPS))
        for step, at in enumerate(range(0, len(names), size)):
            self.fleet.at(self.fleet.now + step * _ROLLING_STEP_S, self._replace, names[at : at + size])

    def _replace(self, names: Sequence[str]) -> None:
        for name in names:
            self.fleet.stop(name)
            self._start_more(name.partition("/")[0], 1, _ROLLING_STEP_S)

    def _split(self, key: str) -> None:
        whole = self.fleet.shards[key].hash_range
        middle = (whole.start + whole.end) // 2
        halves = (HashRange(whole.start, middle), HashRange(middle + 1, whole.end))
        children = [ChildShard(f"{key}-{'ab'[place]}", (key,), half) for place, half in enumerate(halves)]
        self.fleet.split(key, children)


def _peak(per_s: Sequence[float]) -> float:
    window = min(_PEAK_S, len(per_s))
    return max(sum(per_s[at : at + window]) for at in range(len(per_s) - window + 1)) / window
