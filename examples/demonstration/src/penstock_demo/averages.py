"""Follow the stream of averages with a plain Python consumer, in this process."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from penstock_demo.verify import AVERAGE_FIELDS

if TYPE_CHECKING:
    import pandas as pd

    from penstock import Batch, Consumer

_COLUMNS: Final = ("origin", "hour", *AVERAGE_FIELDS)


class AverageFollower:
    """Reads every average as it arrives; the last one of an origin and hour counts.

    Args:
        stream: Name of the stream.
        service: Arguments of `Consumer` that say how to reach the service.
    """

    def __init__(self, stream: str, service: Mapping[str, Any]) -> None:
        self._stream = stream
        self._service = service
        self._consumer: Consumer | None = None
        self._lock = threading.Lock()
        self._rows: list[tuple[Any, ...]] = []
        self._flights: dict[tuple[str, str], int] = {}
        self._flight_count = 0

    def start(self) -> None:
        """Begin to read on threads of its own."""
        from penstock import Consumer, ConsumerOptions

        options = ConsumerOptions(
            worker_id="follower",
            starting_position="TRIM_HORIZON",
            lease_duration_s=60.0,
            round_interval_s=1.0,
            cold_start_jitter_s=0.0,
            idle_time_between_reads_s=0.5,
        )
        self._consumer = Consumer(self._stream, "follower", self._take, options=options, **self._service)
        self._consumer.start()

    def stop(self) -> None:
        """Stop reading.

        Raises:
            PenstockError: Reading had failed before.
        """
        if self._consumer is not None:
            self._consumer.stop()
            self._consumer = None

    @property
    def flight_count(self) -> int:
        """Flights that the newest averages are made of."""
        with self._lock:
            return self._flight_count

    @property
    def record_count(self) -> int:
        """Averages read so far, replaced ones included."""
        with self._lock:
            return len(self._rows)

    def rows(self) -> pd.DataFrame:
        """Return everything read so far: `origin`, `hour`, and the fields of an average, in the order of reading."""
        import pandas as pd

        with self._lock:
            return pd.DataFrame(self._rows, columns=list(_COLUMNS))

    def _take(self, batch: Batch) -> None:
        import msgspec

        decode = msgspec.json.Decoder(dict[str, Any]).decode
        documents = [decode(record.data) for record in batch]
        with self._lock:
            for document in documents:
                # Spark leaves null fields out: a group without a departure has no mean.
                self._rows.append(tuple(document.get(name) for name in _COLUMNS))
                group = (document["origin"], document["hour"])
                self._flight_count += document["flights"] - self._flights.get(group, 0)
                self._flights[group] = document["flights"]
