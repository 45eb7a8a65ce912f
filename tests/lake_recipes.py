"""The recipes of docs/lakehouse.md: which blocks make each of them a program, and what is put for the names of AWS."""

from __future__ import annotations

import re
from pathlib import Path

from docs_blocks import ROOT, run_blocks

PAGE = "docs/lakehouse.md"
LAKES = {"delta": "io.delta", "iceberg": "org.apache.iceberg"}
"""Each lake with the group of its jars."""
READING, DELTA, DELTA_SINK, DELTA_FOREACH, ICEBERG, ICEBERG_SINK, ICEBERG_FOREACH, MERGE = range(8)
RECIPES = {
    "delta": {
        "sink": (READING, DELTA, DELTA_SINK),
        "each": (READING, DELTA, DELTA_FOREACH),
        "merge": (READING, DELTA, MERGE),
    },
    "iceberg": {
        "sink": (READING, ICEBERG, ICEBERG_SINK),
        "each": (READING, ICEBERG, ICEBERG_FOREACH),
        "merge": (READING, ICEBERG, MERGE),
    },
}
"""By lake and way: places of its blocks among those of the page that are run."""
_ROW = re.compile(r"^\| (\d\.\d) \| (.+?) \| (.+?) \|$", re.MULTILINE)


def packages(spark_line: str) -> dict[str, str]:
    """Return the jars' coordinates by lake, as the page's table has them for a line of Spark; none where it has none."""
    for line, *cells in _ROW.findall((ROOT / PAGE).read_text(encoding="utf-8")):
        if line == spark_line:
            return {
                lake: cell.strip("`")
                for lake, cell in zip(LAKES, cells, strict=True)
                if cell.startswith(f"`{LAKES[lake]}:")
            }
    return {}


def program(lake: str, way: str, spark_line: str, folder: Path, turn: str = "") -> list[str]:
    """Return the blocks of a recipe, to be executed one after the other.

    They are those of the page, except for what is not on this machine (a folder stands for the bucket, a catalog of files for AWS
    Glue, and the jars are those of the running Spark), and for the names: each way has an application, a checkpoint location and
    a table of its own, so that one program can run them side by side. Another `turn` has a new application and a new checkpoint
    location, and the same table.
    """
    texts = run_blocks(PAGE)
    replaced = {
        "orders-to-lake": f"orders-{way}{turn}",
        "s3://bucket/checkpoints/orders": f"{folder}/checkpoints/{way}{turn}",
        "s3://bucket/lake/orders": f"{folder}/lake/{way}/orders",
        "s3://bucket/lake": f"{folder}/lake",
        "lake.sales": f"lake.{way}",
        '"spark.sql.catalog.lake.type", "glue"': '"spark.sql.catalog.lake.type", "hadoop"',
        r",org.apache.iceberg:iceberg-aws-bundle:[\d.]+": "",
        re.escape(packages("4.1")[lake]): packages(spark_line)[lake],
    }
    blocks = []
    for place in RECIPES[lake][way]:
        text = texts[place]
        for pattern, other in replaced.items():
            text = re.sub(pattern, other, text)
        blocks.append(text)
    return blocks
