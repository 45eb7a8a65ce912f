"""A row of the table: its contenders, streams and aims; and its measurements, as in the JSON."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from environments import PROJECT

Results = dict[str, Any]


@dataclass(frozen=True)
class Contender:
    """A contender of a row.

    Args:
        name: How the table calls it; the first contender of a row is Penstock's.
        program: The file in `contenders`, and the name of the program in it.
        options: Given to the program beside those of the row.
        environment: Whose packages it runs with.
        packages: Packages whose versions are shown.
        is_bound: It does less than the row asks for: a physical limit, or what Spark costs alone.
        needs: An environment variable without which it cannot run; the program has it as the option of the second name.
    """

    name: str
    program: tuple[str, str]
    options: dict[str, Any] = field(default_factory=dict)
    environment: str = PROJECT
    packages: tuple[str, ...] = ("penstock",)
    is_bound: bool = False
    needs: tuple[str, str] | None = None


@dataclass(frozen=True)
class Streams:
    """The streams of the embedded server before a row runs.

    Args:
        shards: Of each stream.
        record_count: User records in it, spread evenly over the shards; none for writers.
        data_bytes: Of each user record.
        per_aggregate: User records in a Kinesis record; 0 for plain ones.
        has_limits: The service's quotas are on while contenders run.
        is_fresh: Every run has a stream of its own.
        distance_s: How much later each answer of the server arrives, as from a service at a distance.
    """

    shards: int
    record_count: int = 0
    data_bytes: int = 1024
    per_aggregate: int = 0
    has_limits: bool = False
    is_fresh: bool = False
    distance_s: float = 0.0


@dataclass(frozen=True)
class Aim:
    """A target for one figure of Penstock.

    Args:
        figure: Its name.
        limit: At most this, or at least this if `is_floor`.
        against: The contender by whose figure it is divided; None for the figure itself.
        inverse: Divide the other way round: how many times less Penstock needs.
        contender: Whose figure; None: the first contender's.
    """

    figure: str
    limit: float
    against: str | None = None
    is_floor: bool = False
    inverse: bool = False
    contender: str | None = None

    def value(self, medians: dict[str, dict[str, float]]) -> float | None:
        """Return the measured value; None if the contenders did not run."""
        names = list(medians)
        ours = medians.get(self.contender or names[0], {}).get(self.figure) if names else None
        if ours is None or self.against is None:
            return ours
        theirs = medians.get(self.against, {}).get(self.figure)
        if theirs is None:
            return None
        return theirs / ours if self.inverse else ours / theirs

    def is_met(self, value: float) -> bool:
        """Compare a value with the limit."""
        return value >= self.limit if self.is_floor else value <= self.limit


@dataclass(frozen=True)
class Row:
    """One row of the table.

    Args:
        key: Its name on the command line, and in the JSON.
        title: Its name for people.
        figure: The figure that is shown first and drawn.
        contenders: In the order of their turns.
        aims: What Penstock should reach.
        options: Given to every program.
        streams: The server's streams; None if the row needs no server.
        turns: How often each contender runs, as far as the time allows.
        budget_s: Its share of the time, if there is less than all rows need; no further turn begins that would probably end later.
        is_quick: It is a row of `make bench-quick`, with one turn.
        has_input: The programs read an answer from a file that the harness writes.
        takes_turn: The programs want to know which turn it is.
        text: Where the time goes, what bounds it, and what would be next.
    """

    key: str
    title: str
    figure: str
    contenders: tuple[Contender, ...]
    aims: tuple[Aim, ...] = ()
    options: dict[str, Any] = field(default_factory=dict)
    streams: Streams | None = None
    turns: int = 3
    budget_s: float = 40.0
    is_quick: bool = False
    has_input: bool = False
    takes_turn: bool = True
    text: str = ""

    @property
    def starts_spark(self) -> bool:
        """Whether its turns start Spark, and last as long as that does."""
        return any("pyspark" in contender.packages for contender in self.contenders)


UNITS: dict[str, tuple[str, Callable[[float], str]]] = {}
"""How figures are called and written."""


def _unit(name: str, text: str, digits: int = 2) -> None:
    UNITS[name] = (text, lambda value: f"{value:,.{digits}f}")


_unit("wall_s", "s")
_unit("requests", "requests", 0)
_unit("slowest_by_fastest", "slowest / fastest")
_unit("tasks_s", "s, slowest task")
_unit("put_calls", "calls of PutRecords", 0)
_unit("cpu_s", "CPU s")
_unit("peak_mb", "MB at the peak", 0)
_unit("cpu_s_per_gb", "CPU s per GB", 1)
_unit("cpu_s_per_million", "CPU s per million records", 1)
_unit("mb_per_s", "MB/s", 1)
_unit("mb_per_cpu_s", "MB per CPU s", 0)
_unit("quota_percent", "% of the quota", 0)
_unit("batches_quota_percent", "% of the quota, from the first batch's start to the last one's end", 0)
_unit("records_per_s", "records/s", 0)
_unit("median_s", "s, median", 3)
_unit("p99_s", "s, 99th percentile", 3)
_unit("after_idling_s", "s after idling", 3)
_unit("longest_s", "s, longest")
_unit("first_s", "s for the very first record")
_unit("plan_s", "s per plan", 3)
_unit("plan_cpu_s", "CPU s per plan", 3)
_unit("first_plan_s", "s for the first plan", 1)
_unit("look_s", "s for a look alone", 3)
_unit("first_record_s", "s to the first record")
_unit("again_wall_s", "s, again in the session")
_unit("again_cpu_s", "CPU s, again in the session")
_unit("again_cpu_s_per_gb", "CPU s per GB, again in the session", 1)
_unit("again_quota_percent", "% of the quota, again in the session", 0)
_unit("again_slowest_by_fastest", "slowest / fastest, again in the session")
_unit("again_tasks_s", "s, slowest task, again in the session")
_unit("again_first_record_s", "s to the first record, again in the session")
_unit("get_records_mb_per_s", "MB/s of GetRecords", 0)
_unit("put_records_mb_per_s", "MB/s of PutRecords", 0)
_unit("put_record_per_s", "PutRecord calls/s", 0)
_unit("moves", "moves", 0)
_unit("needed_moves", "moves needed", 0)
_unit("rounds", "rounds", 1)
_unit("read_units_per_hour", "read units per hour", 0)
_unit("write_units_per_hour", "write units per hour", 0)
_unit("units_per_hour", "units per hour", 0)
_unit("unread_max_s", "s unread at most", 1)
_unit("even_ms", "CPU ms, even", 1)
_unit("by_throughput_ms", "CPU ms, by throughput", 1)
_unit("by_zone_ms", "CPU ms, by zone", 1)
_unit("kcl2_ms", "CPU ms, KCL 2.x", 1)
_unit("month_usd", "US dollars a month")
_unit("lease_writes_per_s", "lease writes/s", 1)
_unit("reads_per_shard_and_s", "GetRecords per shard and s", 1)
_unit("kinesis_calls", "calls to Kinesis", 0)
_unit("dynamodb_calls", "calls to DynamoDB", 0)
