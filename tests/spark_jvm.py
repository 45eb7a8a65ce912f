"""The environment of the JVMs that tests start.

Most of them live for seconds: without the optimizing compiler each takes a third less CPU, and a third of the rest is saved by an
archive of Spark's classes, where `tools/spark_classes.py` has written one. Their Python processes take Spark's modules from the
installed package: in Spark's own home an archive without bytecode is first on their path, and each of them would compile it.
Such a JVM has room for 48 MB of code unless it is given more; a session of an hour fills them, and then sweeps all the time.
"""

from __future__ import annotations

import sys
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path

HOME = Path(sys.prefix) / "spark-home"
ARCHIVE = HOME / "classes.jsa"
OPTIONS = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -XX:ReservedCodeCacheSize=240m -Dspark.ui.enabled=false"
"""An archive serves only JVMs with the garbage collector that it was written with."""


def jvm_environ() -> dict[str, str]:
    """Return the variables; without an installed Spark, or where its home cannot be written, fewer of them."""
    # Of an archive of another Java or another Spark a JVM would warn in its stdout, which tests read.
    archive = f" -XX:SharedArchiveFile={ARCHIVE} -Xlog:disable" if ARCHIVE.exists() else ""
    options = {"SPARK_SUBMIT_OPTS": OPTIONS + archive}
    found = find_spec("pyspark")
    if found is None or found.origin is None:
        return options
    with suppress(OSError):
        HOME.mkdir(exist_ok=True)
        # The package itself: a working tree whose link to the environment leads here may be deleted.
        package = Path(found.origin).parent.resolve()
        for name in ("bin", "jars", "sbin"):
            link = HOME / name
            if not link.exists():
                link.unlink(missing_ok=True)
                with suppress(FileExistsError):
                    link.symlink_to(package / name)
        return {**options, "SPARK_HOME": str(HOME)}
    return options
