"""Archive the classes that a Spark session loads, for the JVMs of the tests: a short session takes a third less CPU time.

`.venv/bin/python tools/spark_classes.py` writes `spark-home/classes.jsa` into the environment of that Python, where the tests
find it. It does nothing where the file is there already. A JVM does without an archive of another Java or another Spark; delete it
after such a change. Where it cannot be written, this says so and the tests do without.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

from spark_jvm import ARCHIVE, OPTIONS, jvm_environ

SESSION_S_MAX = 240

SESSION = """
import sys
from pyspark.sql import SparkSession
from pyspark.sql.functions import col, count, lit, to_timestamp, udf, window
spark = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false").getOrCreate()
twice = udf(lambda value: value * 2, "long")
rows = spark.createDataFrame([(1, "a"), (2, "b")], "id long, name string").withColumn("twice", twice("id"))
rows.groupBy("name").agg(count("*").alias("n")).write.parquet(sys.argv[1] + "/table")
spark.read.parquet(sys.argv[1] + "/table").createOrReplaceTempView("names")
spark.sql("SELECT n.*, length(name) AS size FROM names n ORDER BY name").collect()
names = spark.readStream.schema("name string, n long").parquet(sys.argv[1] + "/table")
days = names.withColumn("day", to_timestamp(lit("2026-01-01"))).withWatermark("day", "1 minute")
counts = days.groupBy(window("day", "1 day")).agg(count("*").alias("n")).where(col("n") > 0)
query = counts.writeStream.format("memory").queryName("counts").trigger(availableNow=True).start()
query.awaitTermination()
spark.stop()
"""


def main() -> int:
    if ARCHIVE.exists():
        return 0
    try:
        spark = jvm_environ()
        with tempfile.TemporaryDirectory(dir=ARCHIVE.parent) as folder:
            written = Path(folder) / ARCHIVE.name
            options = f"{OPTIONS} -XX:ArchiveClassesAtExit={written}"
            subprocess.run(
                [sys.executable, "-c", SESSION, folder],
                cwd=folder,
                env={
                    **os.environ,
                    **spark,
                    "PYSPARK_PYTHON": sys.executable,
                    "SPARK_LOCAL_IP": "127.0.0.1",
                    "SPARK_SUBMIT_OPTS": options,
                },
                capture_output=True,
                text=True,
                check=True,
                timeout=SESSION_S_MAX,
            )
            written.rename(ARCHIVE)
    except subprocess.CalledProcessError as error:
        print(f"no archive of Spark's classes; tests start as usual: {error.stderr[-2000:]}")
    except subprocess.TimeoutExpired:
        print(
            f"no archive of Spark's classes; tests start as usual: the session took longer than {SESSION_S_MAX} s"
        )
    except OSError as error:
        print(f"no archive of Spark's classes; tests start as usual: {error}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
