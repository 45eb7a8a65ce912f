"""`spark.python.daemon.module=penstock.spark.daemon`: Spark's daemon of Python workers, with Penstock loaded before the fork.

Spark starts Python processes by forking a daemon, and each one imports its modules. This daemon imports them before it
forks, and exempts all objects from garbage collection. So a new process starts at once, and the collection that Spark runs
after each task has few objects to visit. The processes run Spark's own code.
"""

from __future__ import annotations

import contextlib
import gc
import sys


def main() -> None:
    """Load modules and run Spark's daemon; Spark names the module of the workers in the first argument."""
    load(sys.argv[1] if len(sys.argv) > 1 else "pyspark.worker")
    from pyspark.daemon import manager

    manager()


def load(worker_module: str) -> None:
    """Import the modules that one kind of worker needs.

    Nothing here may start a thread of Python, since the process forks. The threads that pyarrow and numpy start in their
    libraries are prepared for a fork.
    """
    with contextlib.suppress(ImportError):  # the worker that needs it reports the missing module
        if worker_module == "pyspark.worker":
            _load_for_tasks()
        else:
            import penstock.spark.source  # noqa: F401 - loaded, and not used here
    gc.collect()
    gc.freeze()


def _load_for_tasks() -> None:
    import pyarrow.compute  # noqa: F401 - all of these are loaded, and none is used here
    import pyspark.worker  # noqa: F401

    import penstock.aws.data_plane_client
    import penstock.aws.kinesis
    import penstock.aws.lease_table
    import penstock.aws.service_descriptions
    import penstock.spark.batch_planning
    import penstock.spark.sink.row_writer
    import penstock.spark.sink.writers
    import penstock.spark.stream_reader  # noqa: F401


if __name__ == "__main__":
    main()
