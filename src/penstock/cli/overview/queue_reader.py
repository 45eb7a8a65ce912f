"""Read the queues of a region and their figures for views that stay open: on a thread, at most once a minute."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any, Final

from penstock.cli.overview.overview_cache import OverviewCache
from penstock.cli.overview.queue_rows import (
    FIGURE_MINUTES,
    LEVEL_METRICS,
    RATE_METRICS,
    QueueOverview,
    QueueRow,
    figures_of,
    sorted_queues,
)
from penstock.core.safe_text import describe_error, error_and_remedy
from penstock.errors import ServiceError, UsageError
from penstock.runtime.loop import ThreadPool

if TYPE_CHECKING:
    from penstock.aws.cloudwatch_queries import CloudWatchQueries
    from penstock.ports.clock import Clock
    from penstock.ports.queues import Queues

QUEUES_MAX: Final = 200
_log: Final = logging.getLogger("penstock.overview")


class QueueReader:
    """Reads the queues while a view shows them. Thread-safe.

    Args:
        clock: The clock for pauses, and for the minutes of the figures.
    """

    def __init__(self, queues: Queues, cloudwatch: CloudWatchQueries, clock: Clock) -> None:
        self._queues = queues
        self._cloudwatch = cloudwatch
        self._clock = clock
        self._cache: OverviewCache[QueueOverview] = OverviewCache(ThreadPool("penstock-queues", 1), clock)

    def take_snapshot(self, wait_s: float = 0.0) -> QueueOverview:
        """Return the newest overview, and start the next one if it is older than a minute.

        Args:
            wait_s: Wait at most this long for an overview that is being taken. After that, return the previous one, or an empty one.
        """
        return self._cache.take(self._read, wait_s) or QueueOverview()

    def _read(self, before: QueueOverview | None) -> QueueOverview:
        try:
            overview = fetch_queues(self._queues, self._cloudwatch, self._clock.wall_ms())
        except Exception as error:  # noqa: BLE001 - the view shows it, and the next read may succeed
            _log.exception("the snapshot of the queues failed")
            overview = QueueOverview(problems=(describe_error(error),))
        if overview.problems and not overview.rows and before is not None:
            return QueueOverview(before.rows, overview.problems)
        return overview


def fetch_queues(queues: Queues, cloudwatch: CloudWatchQueries, now_ms: int) -> QueueOverview:
    """Take an overview: ListQueues, and GetMetricData for six metrics of each queue. Failed calls are listed in its problems."""
    try:
        found = sorted(queues.list_queues(), key=lambda each: each.name)
    except UsageError:
        return QueueOverview()  # the installed SDK has no queues, so its user has none
    except ServiceError as error:
        return QueueOverview(
            problems=(f"queues are not shown{error_and_remedy(error, 'kinesis:ListQueues')}",)
        )
    if not found:
        return QueueOverview()
    problems: list[str] = []
    shown = found[:QUEUES_MAX]
    if len(found) > len(shown):
        problems.append(f"there are {len(found)} queues, and the first {QUEUES_MAX} are shown")
    metrics = [(name, "Maximum") for name in LEVEL_METRICS] + [(name, "Sum") for name in RATE_METRICS]
    try:
        answer = cloudwatch.fetch_of_queues(
            [(each.name, each.arn.rpartition("/")[2]) for each in shown],
            metrics,
            now_ms - FIGURE_MINUTES * 60_000,
            now_ms,
        )
    except ServiceError as error:
        problems.append(
            f"CloudWatch returned no figures of queues{error_and_remedy(error, 'cloudwatch:GetMetricData')}"
        )
        figures: list[dict[str, Any]] = [{} for _ in shown]
    else:
        problems += answer.problems
        values = iter(answer.sums)
        figures = [figures_of({name: next(values) for name, _ in metrics}) for _ in shown]
    rows = [
        QueueRow(each.name, each.arn, each.stream_arn, each.status, **known)
        for each, known in zip(shown, figures, strict=True)
    ]
    return QueueOverview(sorted_queues(rows), tuple(problems))
