"""Publish the flights, aggregated and in order per tail number, from a thread beside the story."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable

from penstock.cli.flights.dataset import Event
from penstock.ports.kinesis import Kinesis
from penstock.producer.task_writer import TaskWriter, TaskWriterOptions, WriteReport


class Publisher:
    """Publishes in the background; ask `done_count` for how far it is.

    Args:
        kinesis: The service.
        stream: Name.
        events: What to publish, in order.
        count: How many they are.
        deadline_s: Time for all of them.
    """

    def __init__(
        self, kinesis: Kinesis, stream: str, events: Iterable[Event], count: int, deadline_s: float
    ) -> None:
        self.count = count
        self.done_count = 0
        self.bytes_count = 0
        self.duration_s = 0.0
        self.report: WriteReport | None = None
        self.failure: BaseException | None = None
        self._events = events
        self._deadline_s = deadline_s
        self._writer = TaskWriter(
            kinesis, stream, TaskWriterOptions(aggregation=True, no_progress_deadline_s=60)
        )
        self._thread = threading.Thread(target=self._publish, name="demo-publisher", daemon=True)

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    @property
    def is_done(self) -> bool:
        """Whether everything is acknowledged."""
        return self.report is not None

    def _publish(self) -> None:
        began_s = time.monotonic()
        try:
            for event in self._events:
                self._writer.write(event.data, event.key)
                self.done_count += 1
                self.bytes_count += len(event.data)
                self._check_deadline(began_s)
            self.report = self._writer.finish()
        except BaseException as error:  # noqa: BLE001 - handed to the thread that tells the story
            self.failure = error
        finally:
            self.duration_s = time.monotonic() - began_s

    def _check_deadline(self, began_s: float) -> None:
        if self.done_count % 1000 == 0 and time.monotonic() - began_s > self._deadline_s:
            raise TimeoutError(f"publishing {self.count} events took longer than {self._deadline_s:g} s")
