"""Types of the keywords that `Producer` takes as options, for type checkers."""

from __future__ import annotations

from typing import Literal, TypedDict


class ProducerKeywords(TypedDict, total=False):
    """Options of a producer by keyword, as `ProducerOptions` describes them."""

    aggregation: bool
    force_aggregation: bool
    ordering: Literal["key", "none"]
    rate_limit_percent: int | None
    linger_s: float
    buffer_bytes_max: int
    put_timeout_s: float
    no_progress_deadline_s: float
    record_ttl_s: float | None
    request_count_max: int
    request_record_count_max: int
    aggregate_bytes_max: int
    aggregate_count_max: int
    map_age_max_s: float
