"""Types of the keywords that consumers take, for type checkers: the fields of `ConsumerOptions`, and all arguments."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, TypedDict

if TYPE_CHECKING:
    from opentelemetry.trace import TracerProvider

    from penstock.consumer.consumer_options import ConsumerOptions
    from penstock.consumer.consumer_ports import ConsumerPorts
    from penstock.consumer.processor import DeadLetterHandler
    from penstock.consumer.stream_argument import Start
    from penstock.core.reading.delivery_calls import FailurePolicy
    from penstock.ports.metrics import Metrics


class AsyncConsumerKeywords(TypedDict, total=False):
    """Options of an `AsyncConsumer` by keyword, as `ConsumerOptions` describes them."""

    worker_id: str | None
    starting_position: Start
    max_records: int
    retrieval: Literal["polling", "fan-out", "auto"]
    consumer_name: str | None
    fan_out_after_s: float
    polling_after_s: float
    idle_time_between_reads_s: float
    prefetch_bytes_max: int
    buffer_bytes_max: int
    on_data_loss: Literal["fail", "warn"]
    drop_misplaced_aggregates: bool
    concurrency: int
    checkpointing: Literal["auto", "manual"]
    checkpoint_interval_s: float
    handler_retries_max: int
    handler_backoff_min_s: float
    handler_backoff_max_s: float
    on_failure: FailurePolicy
    on_all_stopped: Literal["stop_worker", "stay"]
    read_threads: int
    lease_duration_s: float
    round_interval_s: float | None
    policy: Literal["even", "by_throughput", "by_zone", "kcl2"]
    max_leases: int | None
    leases_to_acquire: int | None
    handover: bool
    handover_timeout_s: float
    cold_start_jitter_s: float
    shutdown_timeout_s: float
    stall_after_s: float
    metrics_interval_s: float


class ConsumerKeywords(AsyncConsumerKeywords, total=False):
    """Options of a `Consumer` by keyword, as `ConsumerOptions` describes them."""

    handler_threads: int


class ConsumerArguments(ConsumerKeywords, total=False):
    """Keyword arguments of `Consumer` beside its stream, its application and its user code."""

    dead_letter: DeadLetterHandler | None
    options: ConsumerOptions | None
    region: str | None
    endpoint_url: str | None
    connection: dict[str, Any] | None
    metrics: Metrics | None
    tracer_provider: TracerProvider | None
    ports: ConsumerPorts | None
