"""Unit tests of handlers and processors: records made by hand, a run over them, and values to assert on.

::

    from penstock import testing

    def test_orders_are_stored():
        run = testing.run(handle, testing.records({"amount": 3}, {"amount": 4}))
        assert run.checkpoint == run.records[-1]
        assert run.dead_letters == []

No service, no threads, no waiting: the consumer's own code runs in virtual time.
"""

from penstock.testing.made_batches import MadeAsyncBatch, MadeBatch, async_batch, batch
from penstock.testing.made_records import Records, aggregate, records
from penstock.testing.recorder import Call
from penstock.testing.replays import Replay, Verdict, replay
from penstock.testing.runs import Run, run, run_async, run_kclpy, run_processor
from penstock.testing.stream_source import (
    PromiseBroken,
    SourceUnderTest,
    StreamSourceChecks,
    StreamSourceSessionChecks,
    Verdicts,
    check_stream_source,
)
from penstock.testing.virtual_worker import Faults

__all__ = [
    "Call",
    "Faults",
    "MadeAsyncBatch",
    "MadeBatch",
    "PromiseBroken",
    "Records",
    "Replay",
    "Run",
    "SourceUnderTest",
    "StreamSourceChecks",
    "StreamSourceSessionChecks",
    "Verdict",
    "Verdicts",
    "aggregate",
    "async_batch",
    "batch",
    "check_stream_source",
    "records",
    "replay",
    "run",
    "run_async",
    "run_kclpy",
    "run_processor",
]


def __dir__() -> list[str]:
    """Show the public names."""
    return sorted(__all__)
