"""The base of all events of a simulated world, and of the objects that subscribe to them."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Mapping
from typing import Any, ClassVar, Final, NamedTuple, Protocol, get_args, get_type_hints

from msgspec import Struct

from penstock.core.leases.lease import Lease
from penstock_sim.plan import Scenario

_SHARD: Final = re.compile(r"(?:\d+:[a-z]+:\d+:)?shardId-\d+")


class Event(Struct, frozen=True):
    """One event of a history. The values of its fields are immutable."""

    meets: ClassVar[str] = ""
    """The fault or the situation that each of these events shows, under the name by which it is counted."""

    def situation(self) -> str:
        """Return the fault or the situation that this event shows; an empty text for none."""
        return self.meets

    def values(self) -> tuple[Any, ...]:
        return tuple(getattr(self, name) for name in self.__struct_fields__)

    def __str__(self) -> str:
        return "|".join(map(str, (type(self).__name__, *self.values())))


class ProcessEvent(Event, frozen=True):
    """An event of one process."""

    who: str  # its worker id and the number of its life, as in "worker#2"


def shards_in(text: str) -> set[str]:
    """Return the shards that a text names."""
    return set(_SHARD.findall(text))


def name_of(who: str) -> str:
    """Return the worker id of a process, which is named by its worker id and the number of its life."""
    return who.partition("#")[0]


def life_of(who: str) -> int:
    """Return how many processes its worker id has had so far, with this one."""
    return int(who.partition("#")[2])


class HistoryEntry(NamedTuple):
    """An event and the seconds since the beginning of its world."""

    at_s: float
    event: Event

    def __str__(self) -> str:
        return f"{self.at_s}|{self.event}"


# --- subscribers ------------------------------------------------------------------------------------------------


class Subscriber:
    """Handles the events for whose types it has methods: each takes one parameter, `event`, with the types as annotation."""

    def handle(self, event: Event) -> None:
        """Handle an event, if there is a method for its type."""
        method = methods_of(type(self)).get(type(event))
        if method is not None:
            getattr(self, method)(event)


_METHODS: Final[dict[type[Subscriber], Mapping[type[Event], str]]] = {}


def methods_of(subscriber: type[Subscriber]) -> Mapping[type[Event], str]:
    """Return the names of a class's methods that handle events, by the type of the event."""
    if subscriber in _METHODS:
        return _METHODS[subscriber]
    found: dict[type[Event], str] = {}
    for name in dir(subscriber):
        if not name.startswith(("on_", "_on_")):
            continue
        hint = get_type_hints(getattr(subscriber, name)).get("event")
        for kind in get_args(hint) or (hint,):
            if isinstance(kind, type) and issubclass(kind, Event):
                assert kind not in found, (
                    f"{found[kind]} and {name} of {subscriber.__name__} both handle {kind.__name__}"
                )
                found[kind] = name
    _METHODS[subscriber] = found
    return found


class _Stream(Protocol):
    name: str
    is_deleted: bool


class _History(Protocol):
    """The part of `History` that finders read."""

    now: float
    rows: dict[str, Lease]
    alive: set[str]

    @property
    def readers(self) -> Collection[tuple[str, str, int]]: ...
    @property
    def streams(self) -> Mapping[str, _Stream]: ...


class SituationFinder(Subscriber):
    """Finds situations that take several events. It gets each event before `History` applies it."""

    def __init__(self, scenario: Scenario, history: _History, met: Counter[str]) -> None:
        self.scenario = scenario
        self.history = history
        self.met = met
        self._begin()

    def _begin(self) -> None:
        """Set the state from which the finder begins."""
