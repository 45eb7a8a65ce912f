"""The options of the JVMs that tests start.

Most of them live for seconds: without the optimizing compiler each takes a third less CPU, and a third of the rest is saved by an
archive of Spark's classes, where `tools/spark_classes.py` has written one.
"""

from __future__ import annotations

import sys
from pathlib import Path

ARCHIVE = Path(sys.prefix) / "spark-classes.jsa"
OPTIONS = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
"""An archive serves only JVMs with the garbage collector that it was written with."""


def jvm_options() -> str:
    """Return the value of `SPARK_SUBMIT_OPTS`."""
    if not ARCHIVE.exists():
        return OPTIONS
    # Of an archive of another Java or another Spark a JVM would warn in its stdout, which tests read.
    return f"{OPTIONS} -XX:SharedArchiveFile={ARCHIVE} -Xlog:disable"
