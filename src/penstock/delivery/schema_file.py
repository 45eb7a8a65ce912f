"""The file that a delivery's schema names: on the machine where the delivery is written, and on the cluster where it runs."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

from penstock.core.delivering.definition import RAW, SAMPLE

_PATH_LENGTH_MAX: Final = 255
"""A text of this length or more is taken for a schema, not for the name of a file."""


def is_submitted() -> bool:
    """Return whether spark-submit has started this program. It sets PYSPARK_GATEWAY_PORT for Python programs."""
    return "PYSPARK_GATEWAY_PORT" in os.environ


def schema_file(schema: str) -> Path | None:
    """Return the file that a schema names; None if it names none.

    spark-submit copies each file of `--files` into the working directory. There the file is found by its base name.
    """
    if schema in (RAW, SAMPLE) or len(schema) >= _PATH_LENGTH_MAX:
        return None
    path = Path(schema)
    places = (path, Path(path.name)) if is_submitted() else (path,)
    return next((each for each in places if each.is_file()), None)
