"""Publish the flights, aggregated and in order per aircraft, on a thread of its own, with stops on the way.

The shards are changed at such stops. An aggregate that is under way while its shard is split may land on a child that
owns only some of its keys; the producer then sends all of it again, since readers by the KCL's rule drop it whole, and
readers that keep it would see flights twice. Producing is at-least-once, and this demonstration counts each flight; so
all records are acknowledged before a shard is changed, and later ones are packed by the new map. Reading goes on meanwhile.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, Final, Protocol

from penstock.metrics import NoMetrics
from penstock_demo.dataset import Event

_BUFFER_BYTES: Final = 8 * 2**20
_NO_PROGRESS_S: Final = 60.0


class Writer(Protocol):
    """Writes to one stream."""

    def write(self, event: Event) -> None:
        """Take one event; may wait for the service."""

    def finish(self) -> None:
        """Return when every event taken is acknowledged."""

    @property
    def acknowledged(self) -> Acknowledged:
        """Figures so far."""


@dataclass(frozen=True, slots=True)
class Acknowledged:
    """Figures of acknowledged events.

    Args:
        event_count: Events.
        record_count: Kinesis records that hold them.
        data_bytes: Their bytes.
        resent_count: Records that were refused and sent again.
        possible_duplicate_count: Events that were sent again although the first time may have counted.
    """

    event_count: int = 0
    record_count: int = 0
    data_bytes: int = 0
    resent_count: int = 0
    possible_duplicate_count: int = 0

    def __add__(self, other: Acknowledged) -> Acknowledged:
        """Add up."""
        return Acknowledged(
            self.event_count + other.event_count,
            self.record_count + other.record_count,
            self.data_bytes + other.data_bytes,
            self.resent_count + other.resent_count,
            self.possible_duplicate_count + other.possible_duplicate_count,
        )


@dataclass(frozen=True, slots=True)
class Stop:
    """What happens on the way.

    Args:
        after_count: When this many events are acknowledged and no other was sent.
        act: Called then, on the publisher's thread.
    """

    after_count: int
    act: Callable[[], None]


class Publisher:
    """Publishes in the background.

    Args:
        events: What to publish, in order.
        open_writer: Gives a writer that knows the stream's shards as they are now.
        stops: In the order of `after_count`.
    """

    def __init__(
        self, events: Iterator[Event], open_writer: Callable[[], Writer], stops: Sequence[Stop]
    ) -> None:
        self._events = events
        self._open_writer = open_writer
        self._stops = stops
        self._before = Acknowledged()
        self._writer: Writer | None = None
        self._failure: BaseException | None = None
        self._duration_s = 0.0
        self._thread = threading.Thread(target=self._run, name="publisher", daemon=True)

    def start(self) -> None:
        """Begin; returns at once."""
        self._thread.start()

    @property
    def is_done(self) -> bool:
        """Whether everything is acknowledged.

        Raises:
            Exception: Whatever ended publishing early.
        """
        if self._failure is not None:
            raise self._failure
        return self._thread.ident is not None and not self._thread.is_alive()

    @property
    def acknowledged(self) -> Acknowledged:
        """Figures so far."""
        writer = self._writer
        return self._before if writer is None else self._before + writer.acknowledged

    @property
    def duration_s(self) -> float:
        """Time spent publishing, stops left out."""
        return self._duration_s

    def _run(self) -> None:
        try:
            sent = 0
            for stop in self._stops:
                sent += self._publish(stop.after_count - sent)
                stop.act()
            self._publish(None)
        except BaseException as error:  # noqa: BLE001 - raised where it is asked whether all is done
            self._failure = error

    def _publish(self, count: int | None) -> int:
        began_s = time.monotonic()
        self._writer = writer = self._open_writer()
        sent = 0
        for event in islice(self._events, count):
            writer.write(event)
            sent += 1
        writer.finish()
        self._duration_s += time.monotonic() - began_s
        acknowledged, self._writer = writer.acknowledged, None
        self._before += acknowledged
        if acknowledged.event_count != sent:
            raise AssertionError(f"{sent} events were sent and {acknowledged.event_count} acknowledged")
        return sent


class ProducerWriter:
    """Hands events to a `Producer`, which packs them into aggregates and keeps the order of each aircraft's.

    Args:
        stream: Name.
        service: Arguments of `Producer` that say how to reach the service.
    """

    def __init__(self, stream: str, service: Mapping[str, Any]) -> None:
        from penstock import Producer

        self._tally = ProducerTally()
        self._producer = Producer(
            stream,
            metrics=self._tally,
            aggregation=True,
            ordering="key",
            buffer_bytes_max=_BUFFER_BYTES,
            no_progress_deadline_s=_NO_PROGRESS_S,
            **service,
        )

    def write(self, event: Event) -> None:
        """Take one event; waits for room when events arrive faster than the service takes them."""
        # Its future is not kept: closing raises when any record failed.
        self._producer.put(event.data, event.partition_key)

    def finish(self) -> None:
        """Return when every event taken is acknowledged.

        Raises:
            DeliveryFailed: One of them never will be.
        """
        self._producer.close()

    @property
    def acknowledged(self) -> Acknowledged:
        """Figures so far."""
        return self._tally.acknowledged()


class ProducerTally(NoMetrics):
    """Adds up the counts of a producer."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._sums: dict[str, int] = {}

    def count(self, name: str, value: float = 1, labels: Mapping[str, str] | None = None) -> None:  # noqa: ARG002 - the port's
        """Add to a counter."""
        with self._lock:
            self._sums[name] = self._sums.get(name, 0) + round(value)

    def acknowledged(self) -> Acknowledged:
        """Return the sums."""
        with self._lock:
            sums = dict(self._sums)
        return Acknowledged(
            event_count=sums.get("user_records_put", 0),
            record_count=sums.get("kinesis_records_put", 0),
            data_bytes=sums.get("bytes_put", 0),
            resent_count=sums.get("put_retries", 0),
            possible_duplicate_count=sums.get("possible_duplicates", 0),
        )
