"""The next steps of a shard's run: a call to the service, calls of user code, events for the coordinator."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

from msgspec import Struct

from penstock.consumer.records import Record
from penstock.core.leases.coordinator_events import Event
from penstock.core.reading.delivery_calls import Call
from penstock.core.reading.reader_steps import FetchIterator, FetchListing, FetchPage


class Deaggregate(Struct, frozen=True):
    """Take the fetched records apart, as far as there is room."""


Fetch: TypeAlias = FetchIterator | FetchPage | FetchListing | Deaggregate


class Plan(Struct, frozen=True):
    """The steps that a run plans now.

    Args:
        fetch: A call to the service, or None.
        events: For the coordinator.
        is_starved: Whether the run would read if the process held less.
        is_over: Whether the run has ended and can be forgotten.
    """

    fetch: Fetch | None = None
    calls: Sequence[Call[Record]] = ()
    events: Sequence[Event] = ()
    is_starved: bool = False
    is_over: bool = False
