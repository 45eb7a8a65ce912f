"""Types of the keywords that the embedded Kinesis and its faults take, for type checkers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, TypedDict

if TYPE_CHECKING:
    import os
    from pathlib import Path


class LocalKeywords(TypedDict, total=False):
    """Options of the embedded Kinesis by keyword, as `LocalOptions` describes them."""

    port: int
    limits: bool
    time_factor: float
    state_dir: str | os.PathLike[str] | None
    settle_s: float
    memory_bytes_max: int
    region: str
    allow_hosts: tuple[str, ...]
    tls: bool
    cert: str | Path | None
    key: str | Path | None
    replay: tuple[str | Path, ...]
    replay_from: Literal["start", "end"]
    on_demand_growth: bool


class AnyShardKeywords(TypedDict, total=False):
    """Attributes of a fault by keyword, without its shard, as `Fault` describes them."""

    count: int | None
    skip: int
    rate: float
    seed: int
    stream: str | None
    queue: str | None
    table: str | None
    code: str | None
    status: int
    message: str | None
    fraction: float
    applied: bool


class FaultKeywords(AnyShardKeywords, total=False):
    """Attributes of a fault by keyword, as `Fault` describes them."""

    shard: str | None
