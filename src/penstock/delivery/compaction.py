"""Compaction of a lake table between two batches of its delivery, at a rate that the user gives."""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable
from typing import Final

from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException

from penstock.core.delivering.definition import Delivery
from penstock.core.safe_text import describe_error
from penstock.delivery.files import Files

_log: Final = logging.getLogger("penstock.delivery")


class Compaction:
    """Runs the table's compaction when it is due. The time of the last compaction is saved in the state folder.

    Args:
        delivery: The definition.
        files: The file system of the delivery's state.
        compact: Merges the small files of the table.
        wall_ms: The clock.
    """

    def __init__(
        self,
        delivery: Delivery,
        files: Files,
        compact: Callable[[], None],
        wall_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000,
    ) -> None:
        self._delivery = delivery
        self._files = files
        self._compact = compact
        self._wall_ms = wall_ms
        self._place = f"{delivery.state}/compaction.json"
        self._last_ms: int | None = None  # the time in the file; None until the file was read or written
        self.failure_count = 0
        """Compactions that failed in this program."""

    def run_if_due(self) -> bool:
        """Compact the table if that is due; return whether a compaction was tried. Call it while no batch is open.

        A failed compaction is logged; the next one merges the same files too. The first call of a delivery only saves the time.
        """
        if self._delivery.compact_s is None:
            return False
        last_ms, now_ms = self._read_last_ms(), self._wall_ms()
        if last_ms is not None and 0 <= now_ms - last_ms < self._delivery.compact_s * 1000:
            return False
        if last_ms is not None:
            try:
                self._compact()
            except (PySparkException, Py4JJavaError) as error:
                self.failure_count += 1
                _log.warning(
                    "%s: compaction of %s failed, for the %d. time in this program: %s",
                    self._delivery.name,
                    self._delivery.to,
                    self.failure_count,
                    describe_error(error).splitlines()[0],
                )
        ended_ms = self._wall_ms()
        self._files.replace(self._place, json.dumps({"at_ms": ended_ms}).encode())
        self._last_ms = ended_ms
        return last_ms is not None

    def _read_last_ms(self) -> int | None:
        if self._last_ms is None:
            text = self._files.read(self._place)
            self._last_ms = None if text is None else int(json.loads(text)["at_ms"])
        return self._last_ms
