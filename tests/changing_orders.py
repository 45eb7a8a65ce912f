"""Orders whose schema changes ten times, one in a hundred of which does not fit: what a delivery must make of them."""

from __future__ import annotations

import json

CHANGES, PER_VERSION = 10, 100
PER_BATCH = 250
KINDS = ("BIGINT", "STRING", "DOUBLE", "BOOLEAN")
VALUES = {"BIGINT": 2, "STRING": "new", "DOUBLE": 0.5, "BOOLEAN": True}
NARROW, MENDED = "id INT, price DOUBLE", "id BIGINT, price DOUBLE"
FIRST_TOO_LARGE = 3_000_000_000
KILLS = ("write", "commit", "end")
"""Steps at which the first runs are killed."""


def orders():
    """Return all lines: a new field comes with each version, and the last id of each hundred is larger than an INT."""
    return [
        json.dumps({"id": number, **fields}).encode() for number, fields in zip(ids(), _fields(), strict=True)
    ]


def ids():
    """Return the ids of all orders."""
    count = (CHANGES + 1) * PER_VERSION
    return [
        number + (FIRST_TOO_LARGE if number % PER_VERSION == PER_VERSION - 1 else 0)
        for number in range(count)
    ]


def small_ids():
    """Return the ids that fit the narrow schema."""
    return [number for number in ids() if number < FIRST_TOO_LARGE]


def rows_by_field(numbers):
    """Return how many of the orders with these ids have each of the fields that are added."""
    versions = [number % FIRST_TOO_LARGE // PER_VERSION for number in numbers]
    return {f"field_{at}": sum(version >= at for version in versions) for at in range(1, CHANGES + 1)}


def _fields():
    for number in range((CHANGES + 1) * PER_VERSION):
        version = number // PER_VERSION
        added = {f"field_{at}": VALUES[KINDS[at % len(KINDS)]] for at in range(1, version + 1)}
        yield {"price": number / 2, **added}
