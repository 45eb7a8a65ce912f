"""Options of reading one shard: pace, retries, and the reaction to lost records."""

from __future__ import annotations

from typing import Final, Literal

from msgspec import Struct

from penstock.core.backoff import Backoff
from penstock.core.keyword_options import check_above_zero, check_backoff, check_choice, check_range
from penstock.core.limits import (
    GET_RECORDS_COUNT_MAX,
    GET_RECORDS_PER_S_MAX,
    ITERATOR_LIFE_S,
    SHARD_READ_BYTES_PER_S_MAX,
)
from penstock.errors import OptionError

PAGE_BYTES: Final = SHARD_READ_BYTES_PER_S_MAX
"""One page of this size per second uses the whole read quota of a shard; larger pages only take more memory."""
_SPACING_SLACK: Final = 1.05  # the service counts the calls timed here: stay below five per second


class ErrorAdvice(Struct, frozen=True):
    """The advice at the end of a reader's errors, which depends on the kind of reader.

    Args:
        of_loss: How to go on when records are gone.
        of_new_stream: Advice if the stream was deleted and created again.
    """

    of_loss: str = "Set on_data_loss='warn' to go on"
    of_new_stream: str = (
        "reset the application's checkpoints: penstock leases APPLICATION --reset-to TRIM_HORIZON"
    )


class ReaderOptions(Struct, frozen=True):
    """How one shard is read.

    Args:
        record_count_max: Records per call, 1 to 10,000.
        page_bytes_aim: Wanted bytes of a page: the number of records to request follows from the mean size of the last
            page's records. None: up to the service's 10 MiB.
        spacing_s: Smallest time between the starts of two reads; the service allows 5 a second and shard for all
            consumers together.
        read_bytes_per_s_max: Bytes per second and shard; the service allows 2 MiB. None reads as fast as the service answers.
        idle_time_between_reads_s: Longest pause after an empty page at the tip; the pauses double up to it from the
            smallest spacing.
        backoff_min_s: Upper bound of the first pause after a refusal; the bound doubles with each further one.
        backoff_max_s: Largest such bound.
        deadline_s: The reader fails if its calls have failed for this long, with no page between; None for no limit.
        refusals_max: Refusals that waiting seldom cures (policy, wrong request) before the reader fails.
        prefetch_bytes_max: No read is planned while this much waits undelivered; one page may exceed it.
        on_data_loss: The reaction when unread records have left the stream: `fail` or `warn`.
        retention_s: How long the stream keeps records, or None when unknown. With it a record that left a quiet
            stream is not mistaken for a loss.

    Raises:
        OptionError: A value is out of its range; the message names it.
    """

    record_count_max: int = GET_RECORDS_COUNT_MAX
    page_bytes_aim: int | None = None
    spacing_s: float = _SPACING_SLACK / GET_RECORDS_PER_S_MAX
    read_bytes_per_s_max: int | None = SHARD_READ_BYTES_PER_S_MAX
    idle_time_between_reads_s: float = 1.0
    backoff_min_s: float = 0.5
    backoff_max_s: float = 20.0
    deadline_s: float | None = None
    refusals_max: int = 10
    prefetch_bytes_max: int = 8 * 1024 * 1024
    on_data_loss: Literal["fail", "warn"] = "fail"
    retention_s: float | None = None
    error_advice: ErrorAdvice = ErrorAdvice()

    def __post_init__(self) -> None:
        check_range(self, 1, GET_RECORDS_COUNT_MAX, "record_count_max")
        check_range(self, 0, None, "spacing_s")
        if self.read_bytes_per_s_max is not None and not (
            0 < self.read_bytes_per_s_max <= SHARD_READ_BYTES_PER_S_MAX
        ):
            raise OptionError(
                f"read_bytes_per_s_max={self.read_bytes_per_s_max}: expected 1 to {SHARD_READ_BYTES_PER_S_MAX}, "
                "the service's quota per shard"
            )
        if not 0 <= self.idle_time_between_reads_s <= 0.8 * ITERATOR_LIFE_S:
            raise OptionError(
                f"idle_time_between_reads_s={self.idle_time_between_reads_s}: expected 0 to {0.8 * ITERATOR_LIFE_S:g}, "
                f"since an iterator lives for {ITERATOR_LIFE_S:g} s"
            )
        check_backoff(self)
        check_above_zero(self, "deadline_s")
        check_range(self, 1, None, "page_bytes_aim", "refusals_max", "prefetch_bytes_max")
        check_choice(self, "on_data_loss", "fail", "warn")

    @property
    def backoff(self) -> Backoff:
        """The pauses after refusals."""
        return Backoff(self.backoff_min_s, self.backoff_max_s)
