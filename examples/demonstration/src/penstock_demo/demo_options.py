"""The options of the demonstration."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from penstock.errors import OptionError
from penstock_demo.dataset import FLIGHT_COUNT

SHARD_COUNT: Final = 4
_FLIGHTS_PER_AGGREGATE: Final = 180  # 51,200 bytes by some 280


@dataclass(frozen=True, slots=True)
class DemoOptions:
    """Options of the demonstration.

    Args:
        record_count: Flights, the first of the year.
        kill_count: How often the query is killed.
        seed: When and what, beyond the first kill.
    """

    record_count: int = FLIGHT_COUNT
    kill_count: int = 1
    seed: int = 0

    def __post_init__(self) -> None:
        if not 100 <= self.record_count <= FLIGHT_COUNT:
            raise OptionError(f"--records {self.record_count}: choose 100 to {FLIGHT_COUNT}")
        if self.kill_count < 0:
            raise OptionError(f"--kills {self.kill_count}: expected at least 0")

    @property
    def batch_records_max(self) -> int:
        """Flights in one batch of a query: a dozen batches or more in all, and a few between two kills."""
        return max(25, min(12_000, self.record_count // max(12, 2 * (self.kill_count + 1))))

    @property
    def fetch_records_max(self) -> int:
        """Kinesis records in one answer: about one shard's part of a batch, since the rest would be read again."""
        return 1 + self.batch_records_max // SHARD_COUNT // _FLIGHTS_PER_AGGREGATE
