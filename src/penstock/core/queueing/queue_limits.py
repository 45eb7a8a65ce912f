"""Limits of the service's queues.

Source:
    The Kinesis service model of botocore 1.44.8. `IN_FLIGHT_COUNT_MAX` is from the service's documentation, not from the model.
"""

from __future__ import annotations

from typing import Final

RECORDS_PER_CALL_MAX: Final = 10
"""Records of a receive, and entries of every call that takes receipt handles."""
WAIT_S_MIN: Final = 1
WAIT_S_MAX: Final = 20
VISIBILITY_S_MAX: Final = 43_200
VISIBILITY_S_DEFAULT: Final = 30
RECEIVE_COUNT_LIMIT_MAX: Final = 1_000
RECEIVE_COUNT_LIMIT_DEFAULT: Final = 6
IN_FLIGHT_COUNT_MAX: Final = 120_000
