"""Options of a queue's consumer, and of a queue that it creates: frozen values that check themselves."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Final

from penstock.core.backoff import Backoff
from penstock.core.keyword_options import (
    check_above_zero,
    check_backoff,
    check_range,
    check_types,
    check_unicode,
)
from penstock.core.limits import MIB
from penstock.core.moments import parse_moment
from penstock.core.queueing.queue_limits import (
    IN_FLIGHT_COUNT_MAX,
    RECEIVE_COUNT_LIMIT_DEFAULT,
    RECEIVE_COUNT_LIMIT_MAX,
    VISIBILITY_S_DEFAULT,
    VISIBILITY_S_MAX,
    WAIT_S_MAX,
    WAIT_S_MIN,
)
from penstock.core.queueing.queueing_options import QueueingOptions
from penstock.errors import OptionError
from penstock.ports.queues import DeadLetterRule, QueueDescription, QueueStart

_AT: Final = "AT_TIMESTAMP"


@dataclass(frozen=True, slots=True)
class QueueConsumerOptions:
    """How a queue's consumer receives, handles and acknowledges.

    Args:
        worker_id: Names this worker in logs, metrics and health. None: host name, process and a random part.
        concurrency: Calls of the handler at once.
        batch_records_max: None: the handler is called with one record. A number: it is called with a batch of at most
            this many records, and does not wait for more.
        visibility_timeout_s: A record that is in hand is invisible to other consumers for this long, and is renewed when half of it
            has passed; 1 to 43,200. None: the queue's own.
        wait_time_s: A receive waits for records for this long; 1 to 20. Longer waits cost fewer calls on an idle queue, and a stop waits for
            the open one.
        receives_max: Receives open at once while their answers are full. An idle consumer has one.
        records_in_hand_max: Kinesis records that are received and not ended yet; at most 120,000.
        bytes_in_hand_max: The same in bytes of data and keys. No receive begins above it; one answer may exceed it.
        acknowledge_after_s: An acknowledgement waits this long for nine others, and is sent with them.
        backoff_min_s: Upper bound of the time for which a record stays invisible after its handler failed first; it doubles with
            each receive.
        backoff_max_s: Largest upper bound.
        handling_time_max_s: A visibility is renewed for at most this long. Then other workers get the record, although the handler
            still has it.
        remember: The consumer remembers this many finished records, until its process ends. If one is delivered again, it is
            acknowledged without a call of the handler; of an aggregate, only the unfinished user records are handled. 0: none.
        shutdown_timeout_s: Bound of a graceful stop. A handler that runs longer is abandoned, and its records are returned.
        metrics_interval_s: Time between two reports of the gauges.

    Raises:
        OptionError: A value is out of its range; the message names it.
    """

    worker_id: str | None = None
    concurrency: int = 10
    batch_records_max: int | None = None
    visibility_timeout_s: int | None = None
    wait_time_s: int = 10
    receives_max: int = 8
    records_in_hand_max: int = 1_000
    bytes_in_hand_max: int = 64 * MIB
    acknowledge_after_s: float = 0.02
    backoff_min_s: float = 2.0
    backoff_max_s: float = 300.0
    handling_time_max_s: float = 3_600.0
    remember: int = 0
    shutdown_timeout_s: float = 30.0
    metrics_interval_s: float = 10.0

    def __post_init__(self) -> None:
        check_types(self)
        check_unicode("worker_id", self.worker_id or "")
        if self.worker_id is not None and not self.worker_id.strip():
            raise OptionError("worker_id is empty: give a name, or None for a random one")
        check_range(self, 1, IN_FLIGHT_COUNT_MAX, "concurrency")
        check_range(self, 1, 10_000, "batch_records_max")
        check_range(self, 1, VISIBILITY_S_MAX, "visibility_timeout_s")
        check_range(self, WAIT_S_MIN, WAIT_S_MAX, "wait_time_s")
        check_range(self, 1, 256, "receives_max")
        check_range(self, 1, IN_FLIGHT_COUNT_MAX, "records_in_hand_max")
        check_range(self, 1, None, "bytes_in_hand_max")
        check_range(self, 0, 10, "acknowledge_after_s")
        check_range(self, 1, VISIBILITY_S_MAX, "backoff_max_s")
        check_range(self, 0, None, "remember")
        check_range(self, 0, None, "shutdown_timeout_s")
        check_above_zero(self, "metrics_interval_s", "handling_time_max_s")
        check_backoff(self)

    def queueing_options(self, queue: QueueDescription) -> QueueingOptions:
        """Return the machine's options for a queue."""
        own_s = queue.visibility_s or VISIBILITY_S_DEFAULT  # with 0 records would never be invisible
        return QueueingOptions(
            visibility_s=own_s if self.visibility_timeout_s is None else self.visibility_timeout_s,
            concurrency=self.concurrency,
            batch_records_max=self.batch_records_max or 1,
            records_max=max(self.records_in_hand_max, self.concurrency),
            bytes_max=self.bytes_in_hand_max,
            linger_s=self.acknowledge_after_s,
            handling_s_max=self.handling_time_max_s,
            receive_count_max=queue.dead_letters.receive_count_max,
            return_backoff=Backoff(self.backoff_min_s, self.backoff_max_s),
            remember_max=self.remember,
        )


@dataclass(frozen=True, slots=True)
class QueueCreation:
    """A queue that is created if there is none of the name.

    Args:
        stream: Name or ARN of an on-demand stream.
        starting_position: `LATEST`, `TRIM_HORIZON`, `AT_TIMESTAMP <ISO 8601 with its time zone>` or an aware `datetime`. It cannot be
            changed later.
        visibility_timeout_s: The queue's own; 0 to 43,200.
        max_receive_count: A record becomes a dead letter after this many receives; 1 to 1,000. None: it is delivered until retention
            ends.
        tags: Tags that the created queue gets, for instance {"team": "billing"}. None: no tags.

    Raises:
        OptionError: A value is out of its range.
    """

    stream: str
    starting_position: str | datetime = "LATEST"
    visibility_timeout_s: int = VISIBILITY_S_DEFAULT
    max_receive_count: int | None = RECEIVE_COUNT_LIMIT_DEFAULT
    tags: Mapping[str, str] | None = field(default_factory=dict)

    def __post_init__(self) -> None:
        check_types(self)
        if not self.stream:
            raise OptionError("stream is empty: name the stream of the queue")
        tags = {} if self.tags is None else self.tags
        if not isinstance(tags, Mapping) or not all(
            isinstance(each, str) for pair in tags.items() for each in pair
        ):
            raise OptionError(f"tags={tags!r}: expected texts by name")
        check_range(self, 0, VISIBILITY_S_MAX, "visibility_timeout_s")
        check_range(self, 1, RECEIVE_COUNT_LIMIT_MAX, "max_receive_count")
        self.start  # noqa: B018 - the property checks the position

    @property
    def start(self) -> QueueStart:
        """The starting position as a value."""
        given = self.starting_position
        if isinstance(given, datetime):
            if given.tzinfo is None:
                raise OptionError(f"starting_position={given!r} has no time zone: give one")
            return QueueStart("AT_TIMESTAMP", round(given.timestamp() * 1000))
        if not isinstance(given, str):
            raise OptionError(f"starting_position={given!r}: expected a text or a datetime")
        word, _, moment = given.strip().partition(" ")
        if word == "LATEST" and not moment:
            return QueueStart("LATEST")
        if word == "TRIM_HORIZON" and not moment:
            return QueueStart("TRIM_HORIZON")
        if word == _AT and moment.strip():
            return QueueStart("AT_TIMESTAMP", parse_moment(moment.strip(), "starting_position"))
        raise OptionError(
            f"starting_position={given!r}: expected LATEST, TRIM_HORIZON or AT_TIMESTAMP <ISO 8601 with its time zone>"
        )

    @property
    def dead_letters(self) -> DeadLetterRule:
        """The dead-letter handling as a value."""
        return DeadLetterRule(self.max_receive_count)
