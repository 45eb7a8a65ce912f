"""Is every flight there, once, unchanged and in order? Pure functions over data frames; each can say no.

A finding is a sentence that names the first difference; no finding means verified.
"""

from __future__ import annotations

from dataclasses import dataclass

import pandas as pd


@dataclass(frozen=True, slots=True)
class Verdict:
    """What the comparison found.

    Args:
        lost_count: Flights of the data set that are not in the output.
        duplicate_count: Rows of the output beyond the first of their flight.
        findings: Sentences, the most telling first; empty when everything is right.
    """

    lost_count: int
    duplicate_count: int
    findings: tuple[str, ...]


def verify_events(expected: pd.DataFrame, got: pd.DataFrame) -> Verdict:
    """Compare the Parquet rows with the data set.

    Args:
        expected: Columns as `dataset.load_flights` gives them.
        got: The same columns, and `batch`, `shardId`, `sequenceNumber`, `subSequenceNumber`.
    """
    duplicates = got[got.duplicated("id")]
    lost = sorted(set(expected["id"]) - set(got["id"]))
    strange = sorted(set(got["id"]) - set(expected["id"]))
    findings = []
    if lost:
        findings.append(f"{len(lost)} flights lost, the first is id {lost[0]}")
    if len(duplicates):
        first = duplicates.iloc[0]
        findings.append(
            f"{len(duplicates)} rows twice, the first is id {first['id']} in batch {first['batch']}"
        )
    if strange:
        findings.append(f"{len(strange)} rows are no flight of the data set, the first has id {strange[0]}")
    findings += _changed(expected, got.drop_duplicates("id"))
    findings += _disordered(got)
    return Verdict(len(lost), len(duplicates), tuple(findings))


def _changed(expected: pd.DataFrame, got: pd.DataFrame) -> list[str]:
    both = expected.merge(got, on="id", suffixes=("", "_got"))
    found = []
    for column in expected.columns:
        if column == "id":
            continue
        want, have = both[column], both[f"{column}_got"]
        if column == "time_hour":
            want, have = pd.to_datetime(want, utc=True), pd.to_datetime(have, utc=True)
        differs = ~((want == have) | (want.isna() & have.isna()))
        if differs.any():
            row = both[differs].iloc[0]
            found.append(
                f"{int(differs.sum())} flights changed in {column}, the first is id {row['id']}: {row[column]!r} became "
                f"{row[f'{column}_got']!r}"
            )
    return found


def _disordered(got: pd.DataFrame) -> list[str]:
    """Per key, by batch and by place in the shard, the ids must rise; a key lies in one shard per batch."""
    if got.empty:
        return []
    shards = got.groupby(["batch", "tailnum"])["shardId"].nunique()
    if (shards > 1).any():
        batch, key = shards[shards > 1].index[0]
        return [
            f"key {key} comes from several shards in batch {batch}: a child was read before its parents were done"
        ]
    placed = got.assign(
        _length=got["sequenceNumber"].str.len(),
    ).sort_values(["batch", "_length", "sequenceNumber", "subSequenceNumber"], kind="stable")
    before = placed.groupby("tailnum")["id"].shift()
    late = placed[before.notna() & (placed["id"] < before)]
    if late.empty:
        return []
    row = late.iloc[0]
    return [
        f"{len(late)} rows out of order, the first is id {row['id']} of key {row['tailnum']} in batch {row['batch']}"
    ]


def expected_delays(flights: pd.DataFrame) -> pd.DataFrame:
    """Compute the averages from the data set: index origin and hour (epoch seconds)."""
    hours = pd.to_datetime(flights["time_hour"], utc=True)
    frame = flights.assign(hour=(hours - pd.Timestamp(0, tz="UTC")) // pd.Timedelta(seconds=1))
    grouped = frame.groupby(["origin", "hour"])["dep_delay"]
    return pd.DataFrame({"departures": grouped.count(), "delay": grouped.mean()})


def verify_delays(expected: pd.DataFrame, got: pd.DataFrame) -> tuple[str, ...]:
    """Compare the averages that arrived last with those of the data set.

    Args:
        expected: As `expected_delays` gives them.
        got: The same shape: the last value that arrived for each origin and hour.
    """
    missing = expected.index.difference(got.index)
    extra = got.index.difference(expected.index)
    findings = []
    if len(missing):
        findings.append(f"{len(missing)} averages missing, the first is {missing[0]}")
    if len(extra):
        findings.append(f"{len(extra)} averages too many, the first is {extra[0]}")
    both = expected.join(got, how="inner", rsuffix="_got")
    wrong_count = both["departures"] != both["departures_got"]
    wrong_delay = ~(
        ((both["delay"] - both["delay_got"]).abs() < 1e-6) | (both["delay"].isna() & both["delay_got"].isna())
    )
    wrong = both[wrong_count | wrong_delay]
    if len(wrong):
        row = wrong.iloc[0]
        findings.append(
            f"{len(wrong)} averages wrong, the first is {wrong.index[0]}: {row['delay_got']} over {row['departures_got']:.0f} "
            f"departures, {row['delay']} over {row['departures']} expected"
        )
    return tuple(findings)
