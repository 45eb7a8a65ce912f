"""A model of a stream's load, of the service's answers and of an autoscaler on it, in virtual minutes. Pure.

A shard accepts its quota a second and refuses the rest. CloudWatch and records show the accepted part alone, so the
autoscaler does not see how far a full shard is over its quota. A split or merge takes time, one after the other.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final

from penstock.core.hash_key import FULL_RANGE, HASH_KEYS, HashRange
from penstock.core.limits import SHARD_WRITE_BYTES_PER_S_MAX
from penstock.core.shard import Shard
from penstock.core.sizing.load_history import LoadHistory
from penstock.core.sizing.load_map import KeyLoad, LoadMap
from penstock.core.sizing.resharding import (
    Hold,
    Resharder,
    SizeLimits,
    StreamView,
    apply_action,
    hot_keys_of,
)

BUCKETS: Final = 256
"""Hash keys that carry the load: one in the middle of each 256th of all."""
ACTION_S: Final = 40
"""Time of a split or merge."""
_STEP_S: Final = 20
ROUND_S: Final = 60
"""From one measurement to the next."""
_HOUR_S: Final = 3600
WARM_UP_S: Final = _HOUR_S
"""Not judged: the size is found."""
HOURS: Final = 24

Weights = tuple[float, ...]
EVEN: Final[Weights] = (1.0 / BUCKETS,) * BUCKETS


@dataclass(frozen=True)
class LoadShape:
    """A load over time.

    Args:
        name: In a few words.
        total: The load at a second, in write quotas of one shard.
        weights: How it is spread over the hash keys at a second; the same tuple as long as it does not change.
        noise: Standard deviation of a shard's load within a minute, as a part of it.
        hours: How long it is tried.
        shards: At the start.
    """

    name: str
    total: Callable[[float], float]
    weights: Callable[[float], Weights] = lambda _: EVEN
    noise: float = 0.02
    hours: int = HOURS
    shards: int = 24


@dataclass
class SizingResult:
    """The figures of a run.

    Args:
        offered: Load, in quotas times seconds.
        refused: The part that was refused.
        refused_of_hot_keys: The part of it in shards that splitting cannot relieve.
        capacity: Quotas times seconds.
        boundary_lives_s: Seconds between each split and the merge that removed its boundary.
        shard_counts: By the round.
        reasons: Of all actions, in order.
    """

    offered: float = 0.0
    refused: float = 0.0
    refused_of_hot_keys: float = 0.0
    capacity: float = 0.0
    boundary_lives_s: list[float] = field(default_factory=list)
    shard_counts: list[int] = field(default_factory=list)
    reasons: list[str] = field(default_factory=list)

    @property
    def refused_share(self) -> float:
        """Which part of the writes was refused."""
        return self.refused / self.offered

    @property
    def mean_use(self) -> float:
        """Which part of the capacity was used."""
        return (self.offered - self.refused) / self.capacity


class SizingModel:
    """Runs a load against an autoscaler.

    Args:
        shape: The load.
        limits: The bounds of the size.
        seed: Of the noise.
        round_s: From one measurement to the next; each is known one round late.
    """

    def __init__(
        self, shape: LoadShape, limits: SizeLimits, seed: int = 1, *, round_s: int = ROUND_S
    ) -> None:
        self._shape = shape
        self._round_s = round_s
        self._limits = limits
        self._chance = random.Random(seed)
        self._shards = [Shard(f"first-{place}", _part(place, shape.shards)) for place in range(shape.shards)]
        self._born: dict[int, float] = {}
        self._actions = 0
        self.result = SizingResult()

    def run(self) -> SizingResult:
        """Run all hours and return their figures."""
        resharder, history = Resharder(self._limits), LoadHistory()
        busy_until = 0.0
        newest = seen = self._map_at(0.0)
        for now in range(0, self._shape.hours * _HOUR_S, _STEP_S):
            self._write(now)
            if now % self._round_s == 0:
                self.result.shard_counts.append(len(self._shards))
                newest = seen
                history.add(now, newest)
                seen = self._map_at(now)  # is known a round later
            if now < busy_until:
                continue
            young = {at for at, born in self._born.items() if now - born < self._limits.boundary_age_s}
            peak = history.peak if history.is_whole(now) else None
            decision = resharder.decide(StreamView(self._shards, newest, peak, young))
            if isinstance(decision, Hold):
                busy_until = now - now % self._round_s + self._round_s
                continue
            self._actions += 1
            before = {each.hash_range.start for each in self._shards}
            self._shards, made = apply_action(self._shards, decision, self._actions)
            for gone in before - {each.hash_range.start for each in self._shards}:
                if gone in self._born:
                    self.result.boundary_lives_s.append(now - self._born.pop(gone))
            self._born |= dict.fromkeys(made, float(now))
            self.result.reasons.append(decision.reason)
            busy_until = now + ACTION_S
        return self.result

    def _loads(self, now: float) -> list[float]:
        total, sums = self._shape.total(now), _sums(self._shape.weights(now))
        return [total * _share(sums, each.hash_range) for each in self._shards]

    def _write(self, now: float) -> None:
        if now < WARM_UP_S:
            return
        result, hot = self.result, self._hot_shards(now)
        for shard, load in zip(self._shards, self._loads(now), strict=True):
            load = max(0.0, load * (1 + self._chance.gauss(0, self._shape.noise)))  # noqa: PLW2901
            refused = max(0.0, load - 1)
            result.offered += load * _STEP_S
            result.refused += refused * _STEP_S
            result.capacity += _STEP_S
            if refused and shard.shard_id in hot:
                result.refused_of_hot_keys += refused * _STEP_S

    def _hot_shards(self, now: float) -> set[str]:
        if max(self._shape.weights(now)) * self._shape.total(now) < self._limits.high / 2:
            return set()
        true = self._map_at(now, is_accepted=False)
        view = StreamView(self._shards, true, None)
        return {each.shard_id for each in hot_keys_of(view, self._limits.high)}

    def _map_at(self, now: float, *, is_accepted: bool = True) -> LoadMap:
        """Return the load by hash key; of a full shard only as much as it accepts."""
        total, weights = self._shape.total(now), self._shape.weights(now)
        loads = []
        for shard, use in zip(self._shards, self._loads(now), strict=True):
            factor = min(1.0, 1 / use) if use and is_accepted else 1.0
            factor *= max(0.0, 1 + self._chance.gauss(0, self._shape.noise / 4)) if is_accepted else 1.0
            for bucket in _buckets(shard.hash_range):
                load = total * weights[bucket] * factor * SHARD_WRITE_BYTES_PER_S_MAX
                loads.append(KeyLoad(_key(bucket), load, 0.0))
        return LoadMap(loads)


# --- shapes ------------------------------------------------------------------------------------------------


def bump(centre: float, width: float, share: float) -> Weights:
    """Return weights with a share of the load in a part of the hash keys, the rest everywhere."""
    inside = [abs((bucket + 0.5) / BUCKETS - centre) <= width / 2 for bucket in range(BUCKETS)]
    each = share / sum(inside)
    return tuple((1 - share) / BUCKETS + (each if is_in else 0.0) for is_in in inside)


def hot_key(share: float) -> Weights:
    """Return weights with a share of the load on one key."""
    return tuple(
        (1 - share) / BUCKETS + (share if bucket == BUCKETS // 3 else 0.0) for bucket in range(BUCKETS)
    )


_TWO: Final = tuple((a + b) / 2 for a, b in zip(bump(0.2, 0.2, 0.6), bump(0.7, 0.1, 0.5), strict=True))
_MOVING: Final = tuple(bump(centre, 0.3, 0.45) for centre in (0.2, 0.35, 0.5, 0.65))
_HOT: Final = hot_key(0.05)


def day(now: float) -> float:
    """Return a day's curve: 10 at night, 30 at noon."""
    return 20 - 10 * math.cos(2 * math.pi * now / (24 * _HOUR_S))


def _weekend(now: float) -> float:
    is_weekend = 24 * _HOUR_S <= now < 72 * _HOUR_S
    return day(now) * (0.5 if is_weekend else 1.0)


def _ramp(now: float, began_h: float, ended_h: float, low: float, high: float) -> float:
    part = min(1.0, max(0.0, (now / _HOUR_S - began_h) / (ended_h - began_h)))
    return low + (high - low) * part


SHAPES: Final[Sequence[LoadShape]] = (
    LoadShape("day curve", day, shards=14),
    LoadShape("weekend", _weekend, hours=96, shards=14),
    LoadShape("slow growth", lambda now: 15 * 1.05 ** (now / _HOUR_S), shards=20),
    LoadShape("noise", lambda _: 20.0, noise=0.06),
    LoadShape("flapping around a threshold", lambda now: 20 + 2 * math.sin(now / 600)),
    LoadShape("two hot ranges", lambda now: 20 + 4 * math.sin(now / (2 * _HOUR_S)), lambda _: _TWO),
    LoadShape("drop to zero", lambda now: 20.0 if now < 16 * _HOUR_S else 0.0),
    LoadShape("ramp within two hours", lambda now: _ramp(now, 4, 6, 15, 30), shards=19),
    LoadShape("a hot range that moves", lambda _: 20.0, lambda now: _MOVING[int(now // (6 * _HOUR_S)) % 4]),
    LoadShape(
        "two rushes a day",
        lambda now: 15 + 10 * max(0.0, math.sin(2 * math.pi * now / (12 * _HOUR_S))),
        shards=19,
    ),
    LoadShape("hot key", lambda _: 24.0, lambda _: _HOT, shards=30),
    LoadShape("step up without a warning", lambda now: 15.0 if now < 8 * _HOUR_S else 25.0, shards=19),
    LoadShape("spikes without a warning", lambda now: 40.0 if now % (6 * _HOUR_S) < 180 else 20.0),
)


# --- hash keys ---------------------------------------------------------------------------------------------


def _part(place: int, count: int) -> HashRange:
    return HashRange(place * HASH_KEYS // count, (place + 1) * HASH_KEYS // count - 1)


def _key(bucket: int) -> int:
    return (2 * bucket + 1) * HASH_KEYS // (2 * BUCKETS)


def _buckets(hash_range: HashRange) -> range:
    """Return the buckets whose keys lie in a range."""
    half = HASH_KEYS // (2 * BUCKETS)
    first = -(-(hash_range.start - half) // (2 * half))
    last = (hash_range.end - half) // (2 * half)
    return range(max(0, first), min(BUCKETS, last + 1))


_kept: dict[int, tuple[Weights, list[float]]] = {}


def _sums(weights: Weights) -> list[float]:
    found = _kept.get(id(weights))
    if found is None or found[0] is not weights:
        sums = [0.0]
        for each in weights:
            sums.append(sums[-1] + each)
        found = _kept[id(weights)] = (weights, sums)
    return found[1]


def _share(sums: Sequence[float], hash_range: HashRange) -> float:
    buckets = _buckets(hash_range)
    return sums[buckets.stop] - sums[buckets.start] if len(buckets) else 0.0


assert sum(len(_buckets(each)) for each in (FULL_RANGE,)) == BUCKETS
