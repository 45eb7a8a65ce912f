"""Compare the output with the input: pure functions over data frames.

Two proofs: the Parquet rows against the flights (each once, unchanged, in order per aircraft across the reshard), and the
averages read from the second stream against the same averages by pandas. The first difference found is named.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    import pandas as pd

POSITION: Final = ("batch", "shard_id", "sequence_number", "sub_sequence_number")
"""Where a row was read: columns of the Parquet rows beside those of the flights."""
AVERAGE_FIELDS: Final = ("flights", "departed", "delay_mean")
_GROUP: Final = ["origin", "hour"]
_DIGITS: Final = 129  # more than any sequence number has


@dataclass(frozen=True, slots=True)
class Verdict:
    """The result of the comparison.

    Args:
        flight_count: Published flights.
        lost_count: Published flights without a row.
        duplicated_count: Rows beyond the first of their flight.
        difference: The first difference, in a sentence; None when there is none.
    """

    flight_count: int
    lost_count: int
    duplicated_count: int
    difference: str | None = None

    @property
    def is_good(self) -> bool:
        """Whether the output is right."""
        return self.difference is None

    def __str__(self) -> str:
        """Return the line that ends the demonstration."""
        counts = f"{self.lost_count} lost, {self.duplicated_count} duplicated"
        if self.difference is None:
            return f"verified: {self.flight_count} flights, {counts}"
        return f"failed: {self.difference} ({self.flight_count} flights, {counts})"


def verify(flights: pd.DataFrame, rows: pd.DataFrame, averages: pd.DataFrame) -> Verdict:
    """Compare everything.

    Args:
        flights: The published flights: `id`, `partition_key`, `event_time`, `origin`, `dep_delay` and more, one row per flight.
        rows: The query's rows: the columns of `flights` and `POSITION`.
        averages: The records of the second stream: `origin`, `hour` and `AVERAGE_FIELDS`, in the order of each group's
            records; the last one of a group counts.
    """
    seen = rows["id"].value_counts()
    lost_count = int((~flights["id"].isin(seen.index)).sum())
    duplicated_count = int(len(rows) - len(seen))
    difference = (
        _find_duplicate(rows)
        or _find_lost(flights, rows)
        or _find_unknown(flights, rows)
        or _find_changed(flights, rows)
        or _find_disorder(rows)
        or _find_wrong_average(flights, averages)
    )
    return Verdict(len(flights), lost_count, duplicated_count, difference)


def averages_of(flights: pd.DataFrame) -> pd.DataFrame:
    """Return the averages as pandas computes them, indexed by origin and hour (ISO 8601, UTC)."""
    keyed = flights.assign(hour=flights["event_time"].dt.strftime("%Y-%m-%dT%H:00:00Z"))
    delays = keyed.assign(dep_delay=keyed["dep_delay"].astype("float64")).groupby(_GROUP)["dep_delay"]
    averages: pd.DataFrame = delays.agg(["size", "count", "mean"])
    return averages.set_axis(AVERAGE_FIELDS, axis="columns")


def _find_duplicate(rows: pd.DataFrame) -> str | None:
    again = rows[rows["id"].duplicated()]
    if again.empty:
        return None
    number = again["id"].min()
    places = "; ".join(_place(row) for _, row in rows[rows["id"] == number].iterrows())
    return f"flight {number} came out {(rows['id'] == number).sum()} times: {places}"


def _find_lost(flights: pd.DataFrame, rows: pd.DataFrame) -> str | None:
    lost = flights[~flights["id"].isin(rows["id"])]
    if lost.empty:
        return None
    first = lost.iloc[0]
    return f"flight {first['id']} (aircraft {first['partition_key']}, {first['event_time']}) did not come out"


def _find_unknown(flights: pd.DataFrame, rows: pd.DataFrame) -> str | None:
    unknown = rows[~rows["id"].isin(flights["id"])]
    if unknown.empty:
        return None
    return f"a row with id {unknown.iloc[0]['id']} came out that never went in: {_place(unknown.iloc[0])}"


def _find_changed(flights: pd.DataFrame, rows: pd.DataFrame) -> str | None:
    wanted = flights.set_index("id")
    # Both have the same ids here, but Parquet's whole numbers are of another type than the data set's.
    found = rows.set_index("id").loc[wanted.index].set_axis(wanted.index)
    changed: list[tuple[int, str]] = []
    for name in wanted.columns:
        differs = ~((wanted[name] == found[name]).fillna(False) | (wanted[name].isna() & found[name].isna()))
        if differs.any():
            changed.append((int(differs.index[differs.to_numpy(dtype=bool)][0]), name))
    if not changed:
        return None
    number, name = min(changed)
    came, went = (_shown(frame[name][number]) for frame in (found, wanted))
    return f"flight {number} came out with {name} {came}, it went in with {went}"


def _find_disorder(rows: pd.DataFrame) -> str | None:
    """Per aircraft: one shard in one batch, and ids that rise in the order of reading."""
    shards = rows.groupby(["partition_key", "batch"])["shard_id"].nunique()
    if (shards > 1).any():
        key, batch = shards.index[(shards > 1).to_numpy()][0]
        own = rows[(rows["partition_key"] == key) & (rows["batch"] == batch)]
        return f"aircraft {key} was in {len(set(own['shard_id']))} shards in batch {batch}: {', '.join(sorted(set(own['shard_id'])))}"
    # Numbers of up to 129 digits: filled up with zeros, texts are in the order of the numbers.
    read = rows.assign(place=rows["sequence_number"].str.zfill(_DIGITS)).sort_values(
        ["partition_key", "batch", "place", "sub_sequence_number"], kind="stable"
    )
    before = read.groupby("partition_key")["id"].shift()
    wrong = read[(before > read["id"]).fillna(False)]
    if wrong.empty:
        return None
    first = wrong.iloc[0]
    return (
        f"aircraft {first['partition_key']}: flight {first['id']} came after flight {int(before[wrong.index[0]])}: "
        f"{_place(first)}"
    )


def _find_wrong_average(flights: pd.DataFrame, averages: pd.DataFrame) -> str | None:
    wanted = averages_of(flights)
    found = averages.drop_duplicates(_GROUP, keep="last").set_index(_GROUP)
    missing = wanted.index.difference(found.index)
    if len(missing):
        return f"no average came out for {_group(missing[0])}"
    unknown = found.index.difference(wanted.index)
    if len(unknown):
        return f"an average came out for {_group(unknown[0])}, where no flight was"
    found = found.loc[wanted.index]
    for name in AVERAGE_FIELDS:
        # Sums of whole minutes are exact in both, so the quotients are the same number, not nearly the same.
        differs = (wanted[name] != found[name]) & ~(wanted[name].isna() & found[name].isna())
        if differs.any():
            group = wanted.index[differs.to_numpy(dtype=bool)][0]
            return f"{name} of {_group(group)} came out as {_shown(found[name][group])}, pandas says {_shown(wanted[name][group])}"
    return None


def _shown(value: object) -> str:
    # None, NaN and pandas's NA are all null in JSON and in Parquet.
    return "null" if str(value) in ("None", "nan", "<NA>") else str(value)


def _group(group: tuple[str, str]) -> str:
    return f"{group[0]} at {group[1]}"


def _place(row: pd.Series[Any]) -> str:
    return f"batch {row['batch']}, {row['shard_id']}, sequence number {row['sequence_number']}.{row['sub_sequence_number']}"
