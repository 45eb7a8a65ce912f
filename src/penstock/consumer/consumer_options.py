"""The consumer's options: one frozen value that checks itself, and the options of the machines that follow from it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Final, Literal

from penstock.consumer.stream_argument import Start, parse_start
from penstock.core.keyword_options import (
    check_above_zero,
    check_choice,
    check_range,
    check_types,
    check_unicode,
)
from penstock.core.leases.coordinator_options import BalancePolicy, CoordinatorOptions
from penstock.core.limits import GET_RECORDS_COUNT_MAX, MIB, SUBSCRIPTIONS_APART_S
from penstock.core.reading.delivery_calls import DeliveryOptions, FailurePolicy
from penstock.core.reading.reader_options import ErrorAdvice, ReaderOptions
from penstock.core.reading.retrieval_choice import AutoRetrieval
from penstock.core.starting import StartingPosition
from penstock.core.stream_consumer import check_consumer_name
from penstock.errors import OptionError

_EMPTY_EVENTS_APART_S: Final = 6.0  # an idle shard sends one every few seconds, and its lag stays the same
_FAN_OUT_AFTER_S: Final = 30.0
_POLLING_AFTER_S: Final = 900.0


@dataclass(frozen=True, slots=True)
class ConsumerOptions:
    """How a consumer reads, delivers, checkpoints and shares.

    Args:
        worker_id: Names this worker in the lease table; `zone/name` with `policy="by_zone"`. Give a stable one
            when a restarted process shall pick up its own leases at once; no two living processes may have the same. None: host name and a random part.
        starting_position: Where shards start when the application starts for the first time: `LATEST`,
            `TRIM_HORIZON`, `AT_TIMESTAMP <ISO 8601>` or a `datetime`, each with its time zone, JSON that names a position for
            each shard (`{"shardId-...": "<sequence number>", "*": "TRIM_HORIZON"}`), or a `StartingPosition`.
        max_records: Records per read, and per call of the handler; 1 to 10,000.
        retrieval: How shards are read: `polling` (GetRecords; its quota is shared by all readers of a shard), `fan-out`
            (SubscribeToShard: records are pushed, 2 MiB/s for each shard and consumer; costs money), or `auto` (polling; fan-out
            for shards whose reads are refused because others read them too, as long as that lasts).
        consumer_name: Name of the registered consumer by which `fan-out` and `auto` read; each application has its own. A missing
            one is registered, with `auto` when it is first needed. None: the application's name.
        fan_out_after_s: With `auto`: a shard changes to fan-out when its reads are refused for this long.
        polling_after_s: With `auto`: it tries polling again after this long.
        idle_time_between_reads_s: Pause between reads of a quiet shard.
        prefetch_bytes_max: Memory for the fetched records of one shard that are not done: payloads, keys and about 400 bytes
            for each record. One page, or one aggregate taken apart, may exceed it.
        buffer_bytes_max: The same for all shards of the process together.
        on_data_loss: `fail` stops a shard whose checkpoint is older than the records that the stream still has, `warn`
            reports it and goes on.
        drop_misplaced_aggregates: Drop every KPL aggregate that holds a record outside the hash range of the shard it
            is read from, as the KCL does. Otherwise only those of Penstock's own producer are dropped, which it
            sends again; those of others are delivered, so a reshard may repeat records but loses none.
        concurrency: Calls of the handler at once for one shard; more than 1 keeps order per partition key only.
        checkpointing: `auto` after the handler returned, or `manual`.
        checkpoint_interval_s: Smallest time between two automatic checkpoints of a shard.
        handler_retries_max: Repetitions of a failing call before `on_failure` decides.
        handler_backoff_min_s: Upper bound of the first pause before a repetition; it doubles.
        handler_backoff_max_s: Largest upper bound.
        on_failure: `stop_shard` (keeps the lease, so that a poisonous record does not travel through the fleet,
            and repeats the report), `stop_worker`, or `dead_letter` (needs a dead-letter handler).
        on_all_stopped: If every shard that a worker holds has stopped: `stop_worker` ends it with
            `ShardsStopped`, so that its supervisor sees it; `stay` keeps it, and the leases, as they are.
        read_threads: Threads that read, for all shards together.
        handler_threads: Threads that call the handler, for all shards together.
        lease_duration_s: After this long without renewal a lease is free. The same for the whole application.
        round_interval_s: Mean time between two scans of the whole lease table; None: 0.8 of the lease duration.
        policy: `even`, `by_throughput`, `by_zone` or `kcl2`.
        max_leases: This worker holds at most this many leases; None: no limit.
        leases_to_acquire: At most this many new leases per round; None: the whole share at once.
        handover: Ask live owners to finish before their leases move.
        handover_timeout_s: How long that may last.
        cold_start_jitter_s: On an empty table each worker waits for a random time before it lists the shards: for 10 ms a
            shard at the longest, and for no longer than this.
        shutdown_timeout_s: Bound of a graceful stop; a handler that runs longer is abandoned, its records are
            delivered again elsewhere.
        stall_after_s: A shard that is behind without progress for this long is reported.
        metrics_interval_s: Time between two reports of the gauges.

    Raises:
        OptionError: A value is out of its range; the message names it.
    """

    _error_advice: ClassVar[ErrorAdvice] = ErrorAdvice()  # of its readers' errors

    worker_id: str | None = None
    starting_position: Start = "LATEST"
    max_records: int = 10_000
    retrieval: Literal["polling", "fan-out", "auto"] = "polling"
    consumer_name: str | None = None
    fan_out_after_s: float = _FAN_OUT_AFTER_S
    polling_after_s: float = _POLLING_AFTER_S
    idle_time_between_reads_s: float = 1.0
    prefetch_bytes_max: int = 8 * MIB
    buffer_bytes_max: int = 256 * MIB
    on_data_loss: Literal["fail", "warn"] = "fail"
    drop_misplaced_aggregates: bool = False
    concurrency: int = 1
    checkpointing: Literal["auto", "manual"] = "auto"
    checkpoint_interval_s: float = 5.0
    handler_retries_max: int = 5
    handler_backoff_min_s: float = 0.2
    handler_backoff_max_s: float = 30.0
    on_failure: FailurePolicy = "stop_shard"
    on_all_stopped: Literal["stop_worker", "stay"] = "stop_worker"
    read_threads: int = 10
    handler_threads: int = 8
    lease_duration_s: float = 10.0
    round_interval_s: float | None = None
    policy: Literal["even", "by_throughput", "by_zone", "kcl2"] = "even"
    max_leases: int | None = None
    leases_to_acquire: int | None = None
    handover: bool = True
    handover_timeout_s: float = 30.0
    cold_start_jitter_s: float = 5.0
    shutdown_timeout_s: float = 30.0
    stall_after_s: float = 300.0
    metrics_interval_s: float = 10.0

    def __post_init__(self) -> None:
        check_types(self)
        check_unicode("worker_id", self.worker_id or "")
        if self.worker_id is not None and not self.worker_id.strip():
            raise OptionError(
                "worker_id is empty: give a name that no other worker has, or None for a random one"
            )
        check_range(self, 1, None, "read_threads", "handler_threads", "buffer_bytes_max")
        # The reader and the delivery check these too, but under other names.
        check_range(self, 1, GET_RECORDS_COUNT_MAX, "max_records")
        check_range(self, 0, None, "handler_retries_max")
        check_above_zero(self, "metrics_interval_s", "fan_out_after_s", "polling_after_s")
        check_choice(self, "policy", *(policy.value for policy in BalancePolicy))
        self._check_retrieval()
        check_choice(self, "on_all_stopped", "stop_worker", "stay")
        if self.concurrency > self.handler_threads:
            raise OptionError(
                f"concurrency={self.concurrency} needs as many handler threads: set handler_threads="
                f"{self.concurrency} or more (it is {self.handler_threads})"
            )
        # Each of these values checks its own fields.
        self.reader_options(None)
        self.delivery_options(is_lifecycle_called=False)
        self.coordinator_options()

    def _check_retrieval(self) -> None:
        check_choice(self, "retrieval", "polling", "fan-out", "auto")
        if self.consumer_name is not None:
            if self.retrieval == "polling":
                raise OptionError(
                    f"consumer_name={self.consumer_name!r} has no effect with retrieval={self.retrieval!r}: set "
                    "retrieval='fan-out' or 'auto'"
                )
            check_consumer_name(self.consumer_name, "consumer_name")
        for name, default_s in (
            ("fan_out_after_s", _FAN_OUT_AFTER_S),
            ("polling_after_s", _POLLING_AFTER_S),
        ):
            if self.retrieval != "auto" and getattr(self, name) != default_s:
                raise OptionError(
                    f"{name}={getattr(self, name)} has no effect with retrieval={self.retrieval!r}: set retrieval='auto', or "
                    "leave it out"
                )

    @property
    def start(self) -> StartingPosition:
        """The starting position as a value."""
        return parse_start(self.starting_position, "starting_position")

    @property
    def takeover_pause_s(self) -> float:
        """Seconds before another try to subscribe after another subscriber took over."""
        return max(SUBSCRIPTIONS_APART_S, 1.25 * self.coordinator_options().renew_interval_s)

    def reader_options(self, retention_s: float | None) -> ReaderOptions:
        """Return the options with which the reader of a shard begins."""
        return self._reader_options(retention_s, is_pushed=self.retrieval == "fan-out")

    def auto_retrieval(self, retention_s: float | None) -> AutoRetrieval | None:
        """Return when the reader of a shard changes to fan-out and back; None if `retrieval` is not `auto`."""
        if self.retrieval != "auto":
            return None
        return AutoRetrieval(
            polling=self._reader_options(retention_s, is_pushed=False),
            fan_out=self._reader_options(retention_s, is_pushed=True),
            contended_s=self.fan_out_after_s,
            hold_s=self.polling_after_s,
        )

    def _reader_options(self, retention_s: float | None, *, is_pushed: bool) -> ReaderOptions:
        pace: dict[str, Any] = {"idle_time_between_reads_s": self.idle_time_between_reads_s}
        if is_pushed:  # the service sets the pace
            pace = {
                "idle_time_between_reads_s": _EMPTY_EVENTS_APART_S,
                "spacing_s": 0.0,
                "read_bytes_per_s_max": None,
            }
        return ReaderOptions(
            **pace,
            record_count_max=self.max_records,
            prefetch_bytes_max=self.prefetch_bytes_max,
            on_data_loss=self.on_data_loss,
            retention_s=retention_s,
            error_advice=self._error_advice,
        )

    def delivery_options(self, is_lifecycle_called: bool) -> DeliveryOptions:
        """Return the options of each shard's delivery."""
        return DeliveryOptions(
            concurrency=self.concurrency,
            batch_records_max=self.max_records,
            retries_max=self.handler_retries_max,
            backoff_min_s=self.handler_backoff_min_s,
            backoff_max_s=self.handler_backoff_max_s,
            on_failure=self.on_failure,
            checkpointing=self.checkpointing,
            checkpoint_interval_s=self.checkpoint_interval_s,
            is_lifecycle_called=is_lifecycle_called,
        )

    def coordinator_options(self) -> CoordinatorOptions:
        """Return the options of the lease coordinator."""
        return CoordinatorOptions(
            lease_duration_s=self.lease_duration_s,
            round_interval_s=self.round_interval_s,
            policy=BalancePolicy(self.policy),
            max_leases=self.max_leases,
            leases_to_acquire=self.leases_to_acquire,
            handover=self.handover,
            handover_timeout_s=self.handover_timeout_s,
            start=self.start,
            cold_start_jitter_s=self.cold_start_jitter_s,
            shutdown_timeout_s=self.shutdown_timeout_s,
            stall_after_s=self.stall_after_s,
        )
