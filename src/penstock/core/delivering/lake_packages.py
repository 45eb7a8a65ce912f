"""The packages of Delta Lake and Apache Iceberg for each Spark, as docs/lakehouse.md has them."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Final

from penstock.errors import OptionError

PACKAGES: Final[Mapping[str, Mapping[str, str]]] = {
    "delta": {
        "4.0": "io.delta:delta-spark_4.0_2.13:4.4.0",
        "4.1": "io.delta:delta-spark_4.1_2.13:4.4.0",
        "4.2": "io.delta:delta-spark_4.2_2.13:4.4.0",
    },
    "iceberg": {
        "4.0": "org.apache.iceberg:iceberg-spark-runtime-4.0_2.13:1.11.0",
        "4.1": "org.apache.iceberg:iceberg-spark-runtime-4.1_2.13:1.12.0",
    },
}
"""Packages by format and line of Spark. A test in tests/core/delivering compares them with the page."""
_NAMES: Final = {"delta": "Delta Lake", "iceberg": "Apache Iceberg"}
_EXTENSIONS: Final = {
    "delta": "io.delta.sql.DeltaSparkSessionExtension",
    "iceberg": "org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions",
}
_JARS: Final = {"delta": "delta-spark", "iceberg": "iceberg-spark-runtime"}


def spark_line(version: str) -> str:
    """Return the line of a version of Spark: `4.1` for `4.1.4`."""
    return ".".join(version.split(".")[:2])


def lake_settings(
    formats: Collection[str], line: str | None, user_settings: Mapping[str, str]
) -> dict[str, str]:
    """Return the Spark settings that the deliveries' formats need; they include the user's packages and extensions.

    Args:
        line: Line of Spark; None if Spark has its packages already.
        user_settings: By name.

    Raises:
        OptionError: A format has no package for this Spark, and the user names none.
    """
    lakes = [each for each in PACKAGES if each in formats]
    settings: dict[str, str] = {}
    packages = _split_list(user_settings.get("spark.jars.packages"))
    extensions = _split_list(user_settings.get("spark.sql.extensions"))
    for lake in lakes:
        shown = (*packages, user_settings.get("spark.jars", ""))
        if line is not None and not any(_JARS[lake] in each for each in shown):
            packages.append(_find_package(lake, line))
        if _EXTENSIONS[lake] not in extensions:
            extensions.append(_EXTENSIONS[lake])
    if lakes:
        if packages and line is not None:
            settings["spark.jars.packages"] = ",".join(packages)
        settings["spark.sql.extensions"] = ",".join(extensions)
    if "delta" in lakes and "spark.sql.catalog.spark_catalog" not in user_settings:
        settings["spark.sql.catalog.spark_catalog"] = "org.apache.spark.sql.delta.catalog.DeltaCatalog"
    return settings


def has_packages(formats: Collection[str], line: str) -> bool:
    """Return whether a line of Spark has packages for all formats."""
    return all(line in PACKAGES[each] for each in formats if each in PACKAGES)


def newest_line(formats: Collection[str]) -> str:
    """Return the newest line of Spark that has packages for all formats; empty if they need none."""
    lines = [set(PACKAGES[each]) for each in formats if each in PACKAGES]
    return max(set.intersection(*lines)) if lines else ""


def _find_package(lake: str, line: str) -> str:
    package = PACKAGES[lake].get(line)
    if package is None:
        newest = max(PACKAGES[lake])
        raise OptionError(
            f"format={lake}: Penstock knows no release of {_NAMES[lake]} for Spark {line}: install `pyspark=={newest}.*`, or name one "
            f"with --conf spark.jars.packages=GROUP:{_JARS[lake]}-…:VERSION"
        )
    return package


def _split_list(text: str | None) -> list[str]:
    return [each.strip() for each in (text or "").split(",") if each.strip()]
