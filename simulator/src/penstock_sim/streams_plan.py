"""Plans of the streams of one application that reads several, and of its workers' lists."""

from __future__ import annotations

import random
from typing import Final

from msgspec import Struct

from penstock.core.position import LATEST, TRIM_HORIZON, Position, at_timestamp

_NAMES: Final = ("orders", "returns", "payments", "visits")
ACCOUNT: Final = "123456789012"


class PlannedStream(Struct, frozen=True):
    """One stream.

    Args:
        name: Its name.
        shard_count: Shards that it begins with.
        start: Where the application starts to read it.
        retention_s: How long it keeps a record; None is for ever.
        record_share: How much of all records it gets, beside the others' shares; 0 for a stream that is quiet.
        reshard_share: The same of reshards.
        epoch: The one that Java workers give it in lease keys; None for the moment of its creation.
    """

    name: str
    shard_count: int
    start: Position = TRIM_HORIZON
    retention_s: float | None = None
    record_share: float = 1.0
    reshard_share: float = 1.0
    epoch: int | None = None

    @property
    def listed_as(self) -> str:
        """How the workers' lists name it."""
        return self.name if self.epoch is None else f"{ACCOUNT}:{self.name}:{self.epoch}"


class Rollout(Struct, frozen=True):
    """A list that reaches the workers one after the other.

    Args:
        begins_s: When the first of them gets it.
        apart_s: Time between two workers.
        names: The streams in it.
    """

    begins_s: float
    apart_s: float
    names: tuple[str, ...]


class Deletion(Struct, frozen=True):
    """A stream that is deleted.

    Args:
        at_s: When.
        name: Which one.
        anew_after_s: It is created again so much later, under the same name; None: it never is.
    """

    at_s: float
    name: str
    anew_after_s: float | None = None


class StreamsPlan(Struct, frozen=True):
    """The streams, and their events.

    Args:
        streams: All that there are, in some list or not.
        listed: Those in the lists that workers begin with.
        rollouts: Lists that follow, in the order of their moments.
        deletions: At most one of each stream.
        refusals_per_min: How often one stream refuses its listing for a while, or every call.
        cold_start_s: How long a worker waits at most if a stream has no lease; None for production's 10 ms a shard.
        shy_s: So long the added stream refuses its listing when it enters the lists.
        stops_at_standstill: A worker ends when every shard that it holds has stopped for a failure.
        is_calm: Nothing else goes wrong, so that streams without trouble must be read all the time.
    """

    streams: tuple[PlannedStream, ...] = ()
    listed: tuple[str, ...] = ()
    rollouts: tuple[Rollout, ...] = ()
    deletions: tuple[Deletion, ...] = ()
    refusals_per_min: float = 0.0
    cold_start_s: float | None = None
    shy_s: float = 0.0
    stops_at_standstill: bool = True
    is_calm: bool = False

    @property
    def last_listed(self) -> tuple[str, ...]:
        """The streams that are read in the end."""
        names = self.rollouts[-1].names if self.rollouts else self.listed
        return tuple(name for name in names if name not in self.gone)

    @property
    def gone(self) -> frozenset[str]:
        """The streams that are deleted finally."""
        return frozenset(each.name for each in self.deletions if each.anew_after_s is None)


def draw_streams_plan(chance: random.Random, safety_s: float, began_ms: int, *, is_calm: bool) -> StreamsPlan:
    """Draw two to four streams, and their events within the safety phase.

    Args:
        chance: The seed's generator for these worlds.
        safety_s: How long the safety phase lasts.
        began_ms: The service's clock at the beginning.
        is_calm: Whether there are no other faults.
    """
    streams = tuple(_draw_stream(name, chance, began_ms) for name in _NAMES[: chance.choice((2, 2, 3, 3, 4))])
    names = [stream.name for stream in streams]
    listed, rollouts, deletions = list(names), list[Rollout](), list[Deletion]()
    # The first stream has no events: whatever happens to the others, it must be read.
    if chance.random() < 0.45:
        listed.remove(names[-1])
        rollouts.append(_rollout(chance, chance.uniform(0.15, 0.5) * safety_s, names))
    deletable = [stream.name for stream in streams[1:] if stream.epoch is None]
    if deletable and chance.random() < 0.5:
        deletions.append(_draw_deletion(chance, chance.choice(deletable), safety_s))
        follows_s = deletions[0].at_s + (deletions[0].anew_after_s or 0.0) + chance.uniform(3.0, 40.0)
        left = names if deletions[0].anew_after_s is not None else _without(names, deletions[0].name)
        rollouts = [each for each in rollouts if each.begins_s < deletions[0].at_s]
        rollouts.append(_rollout(chance, follows_s, left))
    elif chance.random() < 0.5:
        dropped = chance.choice(names[1:])
        at_s = max((each.begins_s for each in rollouts), default=0.0) + chance.uniform(20.0, 40.0)
        rollouts.append(_rollout(chance, at_s, _without(names, dropped)))
        if chance.random() < 0.6:
            rollouts.append(_rollout(chance, at_s + chance.uniform(20.0, 60.0), names))
    return StreamsPlan(
        streams=streams,
        listed=tuple(listed),
        rollouts=tuple(rollouts),
        deletions=tuple(deletions),
        refusals_per_min=chance.uniform(0.4, 2.0) if chance.random() < 0.5 else 0.0,
        cold_start_s=chance.choice((None, None, 1.0, 5.0)),
        shy_s=chance.choice((0.0, 0.0, 20.0, 100.0)),
        stops_at_standstill=chance.random() < 0.7,
        is_calm=is_calm,
    )


def _draw_stream(name: str, chance: random.Random, began_ms: int) -> PlannedStream:
    return PlannedStream(
        name=name,
        shard_count=chance.choice((1, 1, 2, 3, 4)),
        start=chance.choice((TRIM_HORIZON, TRIM_HORIZON, LATEST, at_timestamp(began_ms + 3_000))),
        retention_s=chance.choice((None, None, None, 40.0, 60.0)),
        record_share=chance.choice((0.0, 1.0, 1.0, 3.0) if name != _NAMES[0] else (1.0, 3.0)),
        reshard_share=chance.choice((0.0, 1.0, 1.0, 3.0)),
        epoch=chance.choice((None, None, None, 1, 7)),
    )


def _draw_deletion(chance: random.Random, name: str, safety_s: float) -> Deletion:
    at_s = chance.uniform(0.25, 0.6) * safety_s
    return Deletion(at_s, name, chance.choice((None, chance.uniform(12.0, 40.0))))


def _rollout(chance: random.Random, begins_s: float, names: list[str]) -> Rollout:
    return Rollout(begins_s, chance.choice((0.0, 3.0, 12.0)), tuple(names))


def _without(names: list[str], name: str) -> list[str]:
    return [each for each in names if each != name]
