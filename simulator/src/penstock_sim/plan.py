"""The plan of one seed's world: which actors it has, and which faults with which rates.

Every fault has its own rate, and many are off (a swarm). `reading_presets` and `writing_presets` draw plans from seeds.

Source:
    The names F1 to F14 are those of the project's reliability scorecard: F1 crash, F2 pause, F3 clocks, F4
    throttled table, F5 spurious refusal, F6 lost answer, F7 table errors and stale scans, F8 throttled stream, F9
    expired iterator, F10 broken connection, F11 PutRecords, F12 stale or incomplete listing, F13 resharding, F14 deleted
    rows and table, F19 killed driver, executor or task, F20 repeated tasks, F21 restored and copied checkpoint
    locations, F22 two drivers on one location.
"""

from __future__ import annotations

import random
from typing import Final, Literal

from msgspec import Struct, field

from penstock.core.leases.coordinator_options import CoordinatorOptions
from penstock.core.position import TRIM_HORIZON, Position
from penstock.core.reading.delivery_calls import DeliveryOptions
from penstock.core.stream_identity import StreamIdentity
from penstock.core.writing.batcher_steps import BatcherSettings
from penstock.queues.queue_options import QueueConsumerOptions

EPOCH_MS = 1_700_000_000_000
"""The service's clock at the beginning of every simulation."""
STREAM = StreamIdentity("arn", 1)
"""The stream of every simulation with one stream."""
STREAM_NAME: Final = "stream"


SETTLE_MAX_S: Final = 240.0
"""Some generations of shards one after the other, a failover (lease duration plus a round, twice), and the filling of holes."""
DELIVERY = DeliveryOptions(batch_records_max=5, checkpoint_interval_s=0.0, backoff_max_s=4.0)
"""How a handler is called if the seed does not decide it: few records at once, a checkpoint after each call."""
ACCOUNT: Final = "123456789012"
NATIVE: Final = "CLIENT_VERSION_3X"
"""The state of a fleet whose leader assigns every lease."""
UPGRADING: Final = "CLIENT_VERSION_UPGRADE_FROM_2X"
"""KCL 3 workers that take their shares as KCL 2.x does, and report, until every owner of a lease does."""
NATIVE_FOR_NOW: Final = "CLIENT_VERSION_3X_WITH_ROLLBACK"
"""As native, and the way back is open."""
ROLLED_BACK: Final = "CLIENT_VERSION_2X"
"""KCL 3 workers that behave as KCL 2.x workers, and report nothing."""
WITH_LEADER: Final = frozenset({NATIVE, NATIVE_FOR_NOW})
WITH_REPORTS: Final = WITH_LEADER | {UPGRADING}


class Chance(random.Random):
    """The generator of one part of a seed's plan."""

    def some(self, likelihood: float, low: float, high: float) -> float:
        """Draw a rate that is 0 in the other seeds: a swarm."""
        return self.uniform(low, high) if self.random() < likelihood else 0.0


class FaultPlan(Struct, frozen=True, repr_omit_defaults=True):
    """Rates: likelihoods in [0, 1] per call, or per minute if the name says so."""

    crashes_per_min: float = 0.0
    stops_per_min: float = 0.0
    pauses_per_min: float = 0.0
    pause_max_s: float = 20.0
    clock_rate_spread: float = 0.0
    wall_jumps: bool = False
    throttle_bursts_per_min: float = 0.0
    spurious_refusal: float = 0.0
    unknown_applied: float = 0.0
    unknown_lost: float = 0.0
    unknown_late: float = 0.0
    answer_replaced: float = 0.0
    table_error: float = 0.0
    stale_scan: float = 0.0
    stream_throttle: float = 0.0
    expired_iterator: float = 0.0
    broken_connection: float = 0.0
    empty_page: float = 0.0
    small_page: float = 0.0  # a page has few records although more follow
    unknown_shard: float = 0.0
    lost_iterator: float = 0.0
    early_tip: float = 0.0
    bad_listing: float = 0.0
    reshards_per_min: float = 0.0
    row_deletions_per_min: float = 0.0
    table_drops_per_min: float = 0.0
    foreign_rows: bool = False
    latency_max_s: float = 0.1
    slow_handler: float = 0.0
    handler_failure: float = 0.0
    poison_record: float = 0.0
    aggregate: float = 0.0
    malformed_aggregate: float = 0.0
    quiet_streams_per_min: float = 0.0
    denials_per_min: float = 0.0
    rows_of_others: float = 0.0
    second_processes_per_min: float = 0.0
    executor_kills_per_min: float = 0.0
    executor_pauses_per_min: float = 0.0
    executor_pause_max_s: float = 40.0  # the longest pause of an executor
    slow_task: float = 0.0  # a task emits its rows slowly
    second_attempt: float = 0.0  # a task is run twice at the same time
    unread_batch: float = 0.0  # the action reads no row of the batch, or only a few
    repeated_batch: float = 0.0  # the action reads the batch twice
    empty_first_batch: float = 0.0  # Spark runs batch 0 although there is nothing to read
    available_now: float = 0.0  # a life of the driver that reads the available records and ends
    second_drivers_per_min: float = 0.0  # another driver is started from the same checkpoint location
    lost_drivers_per_min: float = 0.0  # a driver is paused for long, and a successor takes its place
    robberies_per_min: float = 0.0  # a worker takes a query's lease during its batch, as KCL 2.x may
    brief_robbery: float = 0.0  # a worker takes a lease of a batch before its tasks, and releases it unread
    restores_per_min: float = 0.0  # the checkpoint location is set back to an earlier state
    copies_per_min: float = 0.0  # another driver is started from a copy of the checkpoint location
    strangers_per_min: float = 0.0  # a query of another stream is started under the same application name
    twins_per_min: float = 0.0  # a query is started that loads the stream twice under one application name
    namesakes_per_min: float = 0.0  # a query starts under the default name, under which others read
    moves_per_min: float = 0.0  # all queries end, and go on under another application name
    leader_deaths_per_min: float = 0.0  # the leader of a KCL 3 fleet crashes
    leader_moves_per_min: float = 0.0  # the leader releases its lock, and goes on as a follower
    refusals_per_min: float = 0.0  # one of several streams refuses its listing for a while, or every call
    put_throttled: float = 0.0  # a whole call of PutRecords is refused for its rate
    put_unavailable: float = 0.0  # the whole call is not taken
    put_lost: float = 0.0  # the call does not arrive, and there is no answer
    put_late: float = 0.0  # the call arrives seconds later, and there is no answer
    put_unanswered: float = 0.0  # the call is done, and its answer is lost
    entry_throttled: float = 0.0  # an entry is refused for the shard's rate
    entry_failed: float = 0.0  # the entry is refused by an internal failure
    entry_unanswered: float = 0.0  # the entry is stored, and the answer does not name it
    slow_put: float = 0.0  # a call of a sink takes many seconds
    slow_input: float = 0.0  # rows reach the task of a sink slowly
    driver_dies_before_commit: float = 0.0  # it is killed when the tasks are done, before the sink commits
    driver_dies_after_commit: float = 0.0  # it is killed when the sink has committed, before Spark logs it
    outages_per_min: float = 0.0  # a shard refuses all records, perhaps for longer than the sink's deadline
    deletions_per_min: float = 0.0  # a stream is deleted, and created again after a while
    listing_denied: bool = False  # the policy does not permit ListShards
    folder_failure: float = 0.0  # a file of the checkpoint location, or of dead letters, cannot be written
    hung_handler: float = 0.0  # the handler never returns
    rejected_record: float = 0.0  # the handler rejects a record
    early_redeliveries_per_min: float = 0.0  # a record of a queue is visible before its time
    forgotten_acknowledgement: float = 0.0  # an acknowledged record of a queue is delivered once more


class QueryPlan(Struct, frozen=True, repr_omit_defaults=True):
    """The queries that read."""

    options: dict[str, str] = field(default_factory=dict)  # options of the source, as Spark gives them
    executor_count: int = 2  # processes that run the tasks of every query
    commit_s: tuple[float, ...] = (0.01, 0.5)  # from the end of a batch's tasks to its commit, drawn
    trigger_s: float = 0.0  # `processingTime`; 0 begins each batch when the last is done


class ProducerPlan(Struct, frozen=True, repr_omit_defaults=True):
    """The producers, and their records."""

    workers: frozenset[str] = frozenset()  # the producers; any others are consumers of their records
    settings: BatcherSettings = field(default_factory=BatcherSettings)  # how the producers' batchers work
    sender_count: int = 2  # requests of one producer that may be in flight at once
    key_count: int = 5  # partition keys of one producer
    records_per_s: float = 3.0  # records per second that one producer gets to put


class SinkPlan(Struct, frozen=True, repr_omit_defaults=True):
    """The queries that write, and their rows."""

    workers: frozenset[str] = frozenset()  # the queries; any others are consumers of their rows
    options: dict[str, str] = field(default_factory=dict)  # options of the sink, as Spark gives them
    in_foreach_batch: bool = False  # the program writes each batch with `df.write`, not a streaming sink
    key_count: int = 5  # partition keys of one query
    keys_stay: bool = True  # all rows of a key of a batch are in one partition
    routes: bool = False  # a column routes each row, some keys to a second stream
    hash_keys: bool = False  # rows have explicit hash keys
    task_count_max: int = 3  # partitions of a batch
    row_count_max: int = 20  # rows of a partition
    padding_bytes: int = 0  # bytes of a row beside its name
    record_bytes_max: int = 2**20  # the largest record that the streams accept
    large_row: float = 0.0  # a row is larger than most streams take, but not too large for this one
    bad_row: float = 0.0  # the service can never accept a row
    executor_count: int = 2  # processes that run the tasks of every query


class QueuePlan(Struct, frozen=True, repr_omit_defaults=True):
    """A queue and its workers."""

    workers: frozenset[str] = frozenset()  # all workers of the world
    options: QueueConsumerOptions = QueueConsumerOptions()  # how each of them consumes
    visibility_s: int = 30  # the queue's visibility timeout
    receive_count_max: int | None = 6  # receives before a record is a dead letter; None if it never is
    records_per_s: float = 3.0  # Kinesis records put a second
    retention_s: float | None = None  # how long the stream keeps a record; None is for ever
    # A handle is void when its visibility ends, and not only when the record is received again.
    ends_handles: bool = False
    is_calm: bool = False  # no other faults happen than graceful stops, so no record is handled twice


class Kcl3Plan(Struct, frozen=True):
    """One seed's native KCL 3 fleet."""

    workers: frozenset[str]  # the workers that are the KCL's
    lock_s: float = 30.0  # the lease of the leader's lock
    begins: str = NATIVE  # the first state of the row `Migration3.0`
    changes: tuple[tuple[float, str], ...] = ()  # its next states, each with its earliest moment

    @property
    def migrates(self) -> bool:
        """Whether the fleet is not native all the time."""
        return self.begins != NATIVE or bool(self.changes)


class PlannedStream(Struct, frozen=True):
    """One stream."""

    name: str
    shard_count: int  # shards that it begins with
    start: Position = TRIM_HORIZON  # where the application starts to read it
    retention_s: float | None = None  # how long it keeps a record; None is for ever
    # How much of all records it gets, beside the others' shares; 0 for a stream that is quiet.
    record_share: float = 1.0
    reshard_share: float = 1.0  # the same of reshards
    # The one that Java workers give it in lease keys; None for the moment of its creation.
    epoch: int | None = None

    @property
    def listed_as(self) -> str:
        """How the workers' lists name it."""
        return self.name if self.epoch is None else f"{ACCOUNT}:{self.name}:{self.epoch}"


class Rollout(Struct, frozen=True):
    """A list that reaches the workers one after the other."""

    begins_s: float  # when the first of them gets it
    apart_s: float  # time between two workers
    names: tuple[str, ...]  # the streams in it


class Deletion(Struct, frozen=True):
    """A stream that is deleted."""

    at_s: float  # when
    name: str  # which one
    recreated_after_s: float | None = None  # when it is created again under its name; None if never


class StreamsPlan(Struct, frozen=True, repr_omit_defaults=True):
    """The streams, and their events."""

    streams: tuple[PlannedStream, ...] = ()  # all that there are, in some list or not
    listed: tuple[str, ...] = ()  # those in the lists that workers begin with
    rollouts: tuple[Rollout, ...] = ()  # lists that follow, in the order of their moments
    deletions: tuple[Deletion, ...] = ()  # at most one of each stream
    # How long a worker waits at most if a stream has no lease; None for production's 10 ms a shard.
    cold_start_s: float | None = None
    added_refused_s: float = 0.0  # how long the added stream refuses its listing once it is in the lists
    stops_at_standstill: bool = True  # a worker ends when every shard that it holds has stopped for a failure
    is_calm: bool = False  # no other faults happen, so streams without faults must be read all the time

    @property
    def last_listed(self) -> tuple[str, ...]:
        """The streams that are read in the end."""
        names = self.rollouts[-1].names if self.rollouts else self.listed
        return tuple(name for name in names if name not in self.gone)

    @property
    def gone(self) -> frozenset[str]:
        """The streams that are deleted finally."""
        return frozenset(each.name for each in self.deletions if each.recreated_after_s is None)


class Scenario(Struct, frozen=True):
    """Everything that one seed decides before anything happens."""

    seed: int
    workers: tuple[str, ...]
    shard_count: int
    options: CoordinatorOptions
    faults: FaultPlan
    safety_s: float = 120.0
    quiet_rounds: int = 5
    records_per_s: float = 3.0
    start_spread_s: float = 15.0
    with_readers: bool = True
    queries: frozenset[str] = frozenset()  # the workers that are Spark queries
    query_plan: QueryPlan = QueryPlan()  # options of the queries
    # The workers that read and write only the KCL's attributes of a lease and use its balance policy. Unless all workers use that
    # policy, they neither request hand-overs nor answer requests.
    foreign: frozenset[str] = frozenset()
    limits: tuple[tuple[str, int], ...] = ()  # the workers that hold at most so many leases
    # The workers that leave for ever, without a release and if possible while a foreign worker owes them an answer.
    leavers: frozenset[str] = frozenset()
    delivery: DeliveryOptions = DELIVERY  # how handlers are called, and what follows their failures
    on_data_loss: Literal["fail", "warn"] = "warn"  # the consumers' policy for records that are gone
    retention_s: float | None = None  # how long the stream keeps a record; None is for ever
    kcl3: Kcl3Plan | None = None  # the KCL 3 workers of the fleet, or None
    producers: ProducerPlan | None = None  # the producers and their records; None if there are none
    sinks: SinkPlan | None = None  # the queries that write and their rows; None if there are none
    streams: StreamsPlan | None = None  # the streams that share the lease table; None if the table has one
    queues: QueuePlan | None = None  # a queue and its workers, which are all workers; None if there is none
    # So long after the faults' end everything must be read and balanced; twice as long while records are handled.
    settle_max_s: float = SETTLE_MAX_S
