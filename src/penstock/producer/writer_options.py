"""The checks that the options of a task writer and of a producer have in common."""

from __future__ import annotations

from typing import Any, Final

from penstock.core.keyword_options import check_choice, check_range
from penstock.core.limits import PUT_RECORDS_BYTES_MAX, PUT_RECORDS_COUNT_MAX, RECORD_BYTES_MAX
from penstock.core.writing.batcher_steps import BatcherSettings
from penstock.errors import OptionError

ORDERINGS: Final = ("key", "none")
_AGGREGATE_BYTES_MIN: Final = 64
AGGREGATE_BYTES_DEFAULT: Final = 51_200
AGGREGATE_COUNT_DEFAULT: Final = 2**32 - 1


def check_shared_options(options: Any) -> None:
    """Check the fields that `ProducerOptions` and `TaskWriterOptions` share.

    Raises:
        OptionError: A value is out of its range; the message has the name and the range.
    """
    check_choice(options, "ordering", *ORDERINGS)
    check_range(options, 1, PUT_RECORDS_COUNT_MAX, "request_record_count_max")
    check_range(options, _AGGREGATE_BYTES_MIN, RECORD_BYTES_MAX - 1, "aggregate_bytes_max")
    check_range(options, 1, AGGREGATE_COUNT_DEFAULT, "aggregate_count_max")
    check_range(options, 1, None, "rate_limit_percent")
    for name in ("buffer_bytes_max", "no_progress_deadline_s"):
        value = getattr(options, name)
        if not 0 < value < float("inf"):
            raise OptionError(f"{name}={value}: expected more than 0, and finite")


def batcher_settings_of(
    options: Any,
    *,
    aggregates: bool,
    linger_s: float,
    map_age_max_s: float = 300.0,
    gather_s: float = 0.0,
    is_brief: bool = False,
) -> BatcherSettings:
    """Return the batcher's settings for checked options. The other arguments are fields of the settings."""
    percent = options.rate_limit_percent
    return BatcherSettings(
        aggregates=aggregates,
        keeps_key_order=options.ordering == "key",
        rate_max=None if percent is None else percent / 100,
        request_record_count_max=options.request_record_count_max,
        request_bytes_max=PUT_RECORDS_BYTES_MAX,
        aggregate_bytes_max=options.aggregate_bytes_max,
        aggregate_count_max=options.aggregate_count_max,
        linger_s=linger_s,
        gather_s=gather_s,
        is_brief=is_brief,
        map_age_max_s=map_age_max_s,
        no_progress_deadline_s=options.no_progress_deadline_s,
    )
