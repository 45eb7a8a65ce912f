"""The next split or merge of a stream, by the measured load of its hash keys. Pure.

A shard is bounded by two hash keys. A split adds a boundary, a merge removes one. Every decision keeps to one rule that
prevents flapping: **no boundary that is younger than an hour is removed**, so no split is undone within an hour.

One more shard is gained from a window of k neighbours, whose boundaries move so that k + 1 shards share their load. A
split in halves would leave both at half of their load; four neighbours at 90 % become five at 72 %. One shard less is
made in the same way. A goal takes several splits and merges, in an order that overloads no shard in between.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Sequence
from operator import itemgetter
from typing import Final, TypeAlias

from msgspec import Struct

from penstock.core.hash_key import HASH_KEYS, HashRange
from penstock.core.shard import Shard
from penstock.core.sizing.load_history import PeakLoad
from penstock.core.sizing.load_map import LoadMap
from penstock.errors import OptionError

_WINDOW_MAX: Final = 8
"""Most neighbouring shards among which one goal redistributes the load."""
_URGENT: Final = 0.97
"""A shard that uses more of its quota is split in halves at once: one action instead of several."""
_GAIN_MIN: Final = 0.9
"""If one half keeps more than this part of the shard's load, a split does not help: the shard has a hot key."""
_ACTIONS_MAX: Final = 2000
_FILL_MIN: Final = 0.7
"""A wider window is tried while the shards of the best one so far would use less than this after the change."""


class SizeLimits(Struct, frozen=True):
    """The bounds of a stream's size.

    Args:
        shards_min: Never fewer shards.
        shards_max: Never more shards, also between two steps of one goal.
        target: Grow if the mean use of the shards' write quota is above it, 0.3 to 0.95.
        high: Split a shard that uses more of its quota.
        low: Shrink if the use with one shard less would be this much at most.
        boundary_age_s: A younger boundary between two shards is not removed.

    Raises:
        OptionError: The bounds contradict each other.
    """

    shards_min: int = 1
    shards_max: int = 100
    target: float = 0.82
    high: float = 0.9
    low: float = 0.79
    boundary_age_s: float = 3600.0

    def __post_init__(self) -> None:
        if not 1 <= self.shards_min <= self.shards_max:
            raise OptionError(
                f"shards_min={self.shards_min} and shards_max={self.shards_max}: expected 1 <= shards_min <= shards_max"
            )
        if not 0 < self.low < self.target < self.high <= 1:
            raise OptionError(
                f"low={self.low:g}, target={self.target:g}, high={self.high:g}: expected 0 < low < target < high <= 1"
            )


def limits_for(shards_min: int, shards_max: int, target: float) -> SizeLimits:
    """Return the limits for a target use of the shards' write quota.

    Raises:
        OptionError: The target is outside 0.3 to 0.9, or the counts contradict each other.
    """
    if not 0.3 <= target <= 0.9:
        raise OptionError(f"target={target:g}: expected 0.3 to 0.9")
    return SizeLimits(shards_min, shards_max, target, high=min(1.0, target * 1.1), low=target * 0.96)


class Split(Struct, frozen=True):
    """Split a shard.

    Args:
        at: The first hash key of the second child.
    """

    shard_id: str
    at: int
    reason: str


class Merge(Struct, frozen=True):
    """Merge a shard with the neighbour above it."""

    shard_id: str
    adjacent_id: str
    reason: str


class Hold(Struct, frozen=True):
    """Change nothing."""

    reason: str


Decision: TypeAlias = Split | Merge | Hold


class HotKey(Struct, frozen=True):
    """A shard that splitting cannot relieve.

    Args:
        hash_key: The hash of the hot partition key.
        use: Which part of a shard's write quota the key alone uses.
        shard_use: Which part the whole shard uses.
    """

    shard_id: str
    hash_key: int
    use: float
    shard_use: float

    def __str__(self) -> str:
        return (
            f"{self.shard_id} uses {self.shard_use:.0%} of its quota, {self.use:.0%} for one partition key (hash key "
            f"{self.hash_key}): splitting cannot help, spread the key"
        )


RangeLoad: TypeAlias = LoadMap | PeakLoad


class StreamView(Struct, frozen=True):
    """The measurements of a decision.

    Args:
        shards: The open ones, in any order.
        peak: The highest load of the last hour, the present one included; None while it is unknown: then no shards are merged.
        young_boundaries: The boundaries (first hash keys of shards) that are younger than `boundary_age_s`.
    """

    shards: Sequence[Shard]
    load: LoadMap
    peak: RangeLoad | None
    young_boundaries: Collection[int] = frozenset()


class _Goal(Struct, frozen=True):
    """The planned boundaries of the shards in a part of the hash keys.

    Args:
        starts: The first hash keys of the planned shards, ascending; the first one is the start of the part.
    """

    hash_range: HashRange
    starts: tuple[int, ...]
    reason: str


class _ShardUses(Struct, frozen=True):
    """The use of a stream's shards.

    Args:
        places: Indexes of the shards that have no hot key.
        total: The use of these.
        mean: The mean use of these.
        summary: A sentence about it.
        hint: A sentence for each hot key, after a semicolon.
    """

    uses: Sequence[float]
    places: Collection[int]
    total: float
    mean: float
    summary: str
    hint: str


def _uses_of_shards(view: StreamView, high: float) -> _ShardUses:
    """Return the use of each shard, and the mean use of those without a hot key."""
    uses = [view.load.use(each.hash_range) for each in view.shards]
    hot_keys = {each.shard_id: each for each in hot_keys_of(view, high)}
    places = frozenset(place for place, each in enumerate(view.shards) if each.shard_id not in hot_keys)
    total = sum(uses[place] for place in places)
    mean = total / len(places) if places else 0.0
    count = len(view.shards)
    summary = f"{count} {'shard uses' if count == 1 else 'shards use'} {mean:.0%} of the write quota"
    return _ShardUses(uses, places, total, mean, summary, "".join(f"; {each}" for each in hot_keys.values()))


class Resharder:
    """Decides the next action; keeps a goal of several actions until it is reached."""

    def __init__(self, limits: SizeLimits) -> None:
        self._limits = limits
        self._goal: _Goal | None = None

    def decide(self, view: StreamView) -> Decision:
        """Return the next action, or why there is none."""
        shards = sorted(view.shards, key=lambda shard: shard.hash_range)
        if not shards:
            return Hold("the stream has no open shard")
        view = StreamView(shards, view.load, view.peak, view.young_boundaries)
        if self._goal is not None:
            step = self._step(view, self._goal)
            if step is not None:
                return step
            self._goal = None
        goal = self._new_goal(view)
        if isinstance(goal, Hold):
            return goal
        step = self._step(view, goal)
        if step is None:
            return Hold("no shard can be split or merged")
        self._goal = goal
        return step

    def forget_goal(self) -> None:
        """Drop the goal under way. Called when others have changed the stream, or an action was refused."""
        self._goal = None

    # -- the steps of a goal --------------------------------------------------------------------------------

    def _step(self, view: StreamView, goal: _Goal) -> Split | Merge | None:
        """Return the next step of a goal, from the lowest hash key on.

        None if the goal is reached, or if its next merge would overload a shard or remove a young boundary.
        """
        inside = [each for each in view.shards if each.hash_range.overlaps(goal.hash_range)]
        starts = {each.hash_range.start for each in inside}
        for number, start in enumerate(goal.starts):
            end = goal.starts[number + 1] if number + 1 < len(goal.starts) else goal.hash_range.end + 1
            if end <= goal.hash_range.end and end not in starts:
                around = next(each for each in inside if end in each.hash_range)
                return Split(around.shard_id, end, goal.reason)
            parts = [each for each in inside if start <= each.hash_range.start < end]
            if len(parts) > 1:
                joined = HashRange(parts[0].hash_range.start, parts[1].hash_range.end)
                if (
                    view.load.use(joined) > self._limits.high
                    or parts[1].hash_range.start in view.young_boundaries
                ):
                    return None
                return Merge(parts[0].shard_id, parts[1].shard_id, goal.reason)
        return None

    # -- goals ------------------------------------------------------------------------------------------------

    def _new_goal(self, view: StreamView) -> _Goal | Hold:
        """Plan for too few shards, else for a hot shard or a high mean, else for too many shards."""
        limits, usage, count = self._limits, _uses_of_shards(view, self._limits.high), len(view.shards)
        if count < limits.shards_min:
            place = max(range(count), key=lambda each: (usage.uses[each], view.shards[each].hash_range.size))
            return self._plan_halves(
                view, place, f"{count} {_shards_word(count)}, at least {limits.shards_min} are required"
            )
        hottest = max(usage.places, key=lambda place: usage.uses[place], default=None)
        if hottest is not None and (usage.uses[hottest] > limits.high or usage.mean > limits.target):
            return self._plan_relief(view, usage, hottest)
        return self._plan_fewer_shards(view, usage)

    def _plan_relief(self, view: StreamView, usage: _ShardUses, hottest: int) -> _Goal | Hold:
        """Plan to lower the use of the hottest shard, or return why that is not possible."""
        limits, count, use = self._limits, len(view.shards), usage.uses[hottest]
        why = f"{view.shards[hottest].shard_id} uses {use:.0%} of its write quota, and {usage.summary}"
        # Neighbours share by a split and a merge, in this order: there is one shard more in between.
        if use <= _URGENT and usage.mean <= limits.target and count < limits.shards_max:
            goal = self._share_with_neighbours(view, hottest, usage, f"{why}: a neighbour has room")
            if goal is not None:
                return goal
        if count >= limits.shards_max:
            return Hold(f"{why}: no more than {limits.shards_max} shards are allowed{usage.hint}")
        if use > _URGENT:
            return self._plan_halves(view, hottest, why)
        return self._spread_over_more(view, hottest, usage, why)

    def _plan_fewer_shards(self, view: StreamView, usage: _ShardUses) -> _Goal | Hold:
        """Plan one shard less: if there are more than allowed, or if the others have room for its load, now and at its peak."""
        limits, count, peak = self._limits, len(view.shards), view.peak
        has_too_many = count > limits.shards_max
        hold = Hold(f"{usage.summary}: its size fits{usage.hint}")
        if not has_too_many and (count <= limits.shards_min or not self._has_room(usage.total, usage.places)):
            return hold
        if peak is None:
            return Hold(f"{usage.summary}; nothing is merged before enough of its load is known{usage.hint}")
        peaks = [peak.use(each.hash_range) for each in view.shards]
        if has_too_many:  # full shards are allowed then, and those with a hot key are merged, too
            why = f"{count} shards, at most {limits.shards_max} are allowed"
            goal = self._spread_over_fewer(view, peak, peaks, places=range(count), fill_max=1.0, why=why)
        else:
            peak_total = sum(peaks[place] for place in usage.places)
            if not self._has_room(peak_total, usage.places):
                return hold
            why = f"{usage.summary}, at most {peak_total / len(usage.places):.0%} of late"
            goal = self._spread_over_fewer(
                view, peak, peaks, places=usage.places, fill_max=limits.low, why=why
            )
        return goal or Hold(
            f"{why}; no two shards have room in one whose boundary is older than {limits.boundary_age_s / 60:.0f} min{usage.hint}"
        )

    def _has_room(self, use: float, places: Collection[int]) -> bool:
        """Return whether these shards without one of them have room for `use`."""
        return len(places) > 1 and use / (len(places) - 1) <= self._limits.low

    def _plan_halves(self, view: StreamView, place: int, why: str) -> _Goal | Hold:
        shard = view.shards[place]
        cut = view.load.cut(shard.hash_range)
        if cut is None:
            return Hold(f"{why}; {shard.shard_id} has one hash key and cannot be split")
        return _Goal(shard.hash_range, (shard.hash_range.start, cut.at), why)

    def _share_with_neighbours(
        self, view: StreamView, hottest: int, usage: _ShardUses, why: str
    ) -> _Goal | None:
        """Plan to share the load of the hottest shard with one or two neighbours, without a further shard."""
        for width in (2, 3):
            windows = _windows(view, usage.uses, width, usage.places, hottest)
            use, window = min(windows, key=itemgetter(0), default=(math.inf, range(0)))
            if use / width <= self._limits.low:
                return self._goal_of_equal_loads(view, window, width, view.load, why)
        return None

    def _spread_over_more(self, view: StreamView, hottest: int, usage: _ShardUses, why: str) -> _Goal | Hold:
        """Plan to distribute the load of the hottest shard and some neighbours over one shard more."""
        best_fill, best = 0.0, None
        for width in range(1, _WINDOW_MAX + 1):
            if width > 1 and len(view.shards) + 2 > self._limits.shards_max:
                break  # between two steps there are two shards more
            for use, window in _windows(view, usage.uses, width, usage.places, hottest):
                fill = use / (width + 1)
                if fill <= self._limits.target and (best is None or fill > best_fill):
                    best_fill, best = fill, window
            if best_fill >= _FILL_MIN:
                break
        goal = None if best is None else self._goal_of_equal_loads(view, best, len(best) + 1, view.load, why)
        return goal or self._plan_halves(view, hottest, why)

    def _spread_over_fewer(
        self,
        view: StreamView,
        peak: RangeLoad,
        peaks: Sequence[float],
        *,
        places: Collection[int],
        fill_max: float,
        why: str,
    ) -> _Goal | None:
        """Plan to distribute the load of neighbouring shards over one shard less; None if no window of neighbours has room.

        The narrowest possible window is chosen, and of these the one with the least load.
        """
        for width in range(2, _WINDOW_MAX + 2):
            if width > 2 and len(view.shards) == self._limits.shards_max:
                return None  # between two steps there is one shard more
            windows = _windows(view, peaks, width, places)
            use, window = min(windows, key=itemgetter(0), default=(math.inf, range(0)))
            if use / (width - 1) <= fill_max:
                goal = self._goal_of_equal_loads(view, window, width - 1, peak, why)
                if goal is not None:
                    return goal
        return None

    @staticmethod
    def _goal_of_equal_loads(
        view: StreamView, window: Sequence[int], count: int, load: RangeLoad, why: str
    ) -> _Goal | None:
        """Return the goal of equal loads in a window; None if its load cannot be divided equally, for instance because of a hot key."""
        whole = HashRange(view.shards[window[0]].hash_range.start, view.shards[window[-1]].hash_range.end)
        starts = [whole.start]
        for number in range(1, count):
            cut = load.cut(whole, number / count)
            if cut is None or not starts[-1] < cut.at:
                return None
            starts.append(cut.at)
        return _Goal(whole, tuple(starts), why)


def _windows(
    view: StreamView, uses: Sequence[float], width: int, places: Collection[int], around: int | None = None
) -> Iterator[tuple[float, range]]:
    """Yield each window of neighbours without a hot key or a young boundary: the sum of their uses, and their places.

    Args:
        around: Only windows that contain this place.
    """
    last = len(uses) - width
    firsts = range(last + 1) if around is None else range(max(0, around - width + 1), min(around, last) + 1)
    for first in firsts:
        window = range(first, first + width)
        is_young = any(view.shards[place].hash_range.start in view.young_boundaries for place in window[1:])
        if not is_young and all(place in places for place in window):
            yield sum(uses[place] for place in window), window


def hot_keys_of(view: StreamView, high: float) -> list[HotKey]:
    """Return the shards that use more than `high` of their quota and that a split cannot relieve."""
    found = []
    for shard in view.shards:
        use = view.load.use(shard.hash_range)
        if use <= high:
            continue
        cut, hottest = view.load.cut(shard.hash_range), view.load.hottest_key(shard.hash_range)
        is_relieved_by_split = cut is not None and cut.larger_use < _GAIN_MIN * use
        if hottest is not None and hottest[1] >= 0.5 * use and not is_relieved_by_split:
            found.append(HotKey(shard.shard_id, hottest[0], hottest[1], use))
    return found


def plan_actions(view: StreamView, limits: SizeLimits) -> tuple[list[Split | Merge], list[Shard], Hold]:
    """Plan every action until the size fits, as if the load stayed as it is. Boundaries that it makes do not count as young.

    Returns:
        The actions in order; the shards after them, whose ids begin with `new-` if an action makes them; the last decision.
    """
    resharder, shards = Resharder(limits), list(view.shards)
    actions: list[Split | Merge] = []
    while len(actions) < _ACTIONS_MAX:
        decision = resharder.decide(StreamView(shards, view.load, view.peak, view.young_boundaries))
        if isinstance(decision, Hold):
            return actions, shards, decision
        actions.append(decision)
        shards, _ = apply_action(shards, decision, len(actions))
    return actions, shards, Hold(f"more than {_ACTIONS_MAX} actions: plan again after these")


def apply_action(shards: Sequence[Shard], action: Split | Merge, number: int) -> tuple[list[Shard], set[int]]:
    """Return the open shards after an action, with made-up ids, and the new boundaries."""
    by_id = {each.shard_id: each for each in shards}
    gone = {action.shard_id} | ({action.adjacent_id} if isinstance(action, Merge) else set())
    left = [each for each in shards if each.shard_id not in gone]
    span = by_id[action.shard_id].hash_range
    if isinstance(action, Split):
        children = [HashRange(span.start, action.at - 1), HashRange(action.at, span.end)]
        new_boundaries = {action.at}
    else:
        children = [HashRange(span.start, by_id[action.adjacent_id].hash_range.end)]
        new_boundaries = set()
    left += [
        Shard(f"new-{number}{'ab'[place] if len(children) > 1 else ''}", child, tuple(sorted(gone)))
        for place, child in enumerate(children)
    ]
    return sorted(left, key=lambda shard: shard.hash_range), new_boundaries


def _shards_word(count: int) -> str:
    return "shard" if count == 1 else "shards"


def place_of(hash_key: int) -> str:
    """Return where a hash key lies, in percent of all."""
    return f"{hash_key / HASH_KEYS:.2%}"
