"""A Kinesis record as a page of GetRecords holds it, for tests."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Raw:
    """Implements `penstock.ports.kinesis.RawRecord`."""

    sequence_number: str
    data: bytes = b"x"
    partition_key: str = "k"
    arrival_s: float = 0.0
