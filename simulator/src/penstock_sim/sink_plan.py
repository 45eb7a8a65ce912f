"""The Spark queries of one seed that write to its stream: their options, rows and faults."""

from __future__ import annotations

import random

from msgspec import field

from penstock_sim.producer_plan import PutFaults


class SinkPlan(PutFaults, frozen=True):
    """Likelihoods in [0, 1], or rates per minute if the name says so.

    Args:
        workers: The workers that are queries with a sink. Any others are consumers of their rows.
        options: Options of the sink, as Spark gives them.
        in_foreach_batch: The program writes each batch with `df.write` instead of a streaming sink.
        key_count: Partition keys of one query.
        keys_stay: All rows of a key of a batch are in one partition.
        routes: A column routes each row, some keys to a second stream.
        hash_keys: Rows have explicit hash keys.
        task_count_max: Partitions of a batch.
        row_count_max: Rows of a partition.
        padding_bytes: Bytes of a row beside its name.
        record_bytes_max: The largest record that the streams accept.
        large_row: A row is larger than most streams take, but not too large for this one.
        bad_row: The service can never accept a row.
        executor_count: Processes that run the tasks of every query.
        executor_pause_max_s: The longest pause of an executor.
        second_attempt: A task is run twice at the same time.
        slow_put: A call takes many seconds.
        slow_input: Rows reach the task slowly.
        second_drivers_per_min: Another driver is started from the same checkpoint location.
        driver_dies_before_commit: The driver is killed when the tasks of a batch are done, before the sink commits.
        driver_dies_after_commit: The driver is killed when the sink has committed, before Spark notes it.
        outages_per_min: A shard refuses all records, for a while that may be longer than the sink's deadline.
        deletions_per_min: A stream is deleted, and created again after a while.
        listing_denied: The policy does not permit ListShards.
        folder_failure: A file of the checkpoint location, or of dead letters, cannot be written.
    """

    workers: frozenset[str] = frozenset()
    options: dict[str, str] = field(default_factory=dict)
    in_foreach_batch: bool = False
    key_count: int = 5
    keys_stay: bool = True
    routes: bool = False
    hash_keys: bool = False
    task_count_max: int = 3
    row_count_max: int = 20
    padding_bytes: int = 0
    record_bytes_max: int = 2**20
    large_row: float = 0.0
    bad_row: float = 0.0
    executor_count: int = 2
    executor_kills_per_min: float = 0.0
    executor_pauses_per_min: float = 0.0
    executor_pause_max_s: float = 20.0
    second_attempt: float = 0.0
    slow_put: float = 0.0
    slow_input: float = 0.0
    second_drivers_per_min: float = 0.0
    driver_dies_before_commit: float = 0.0
    driver_dies_after_commit: float = 0.0
    outages_per_min: float = 0.0
    deletions_per_min: float = 0.0
    listing_denied: bool = False
    folder_failure: float = 0.0


def draw_sink_plan(chance: random.Random) -> SinkPlan:
    """Draw one seed's sinks; every fault has its own rate, and many are off."""

    def some(likelihood: float, low: float, high: float) -> float:
        return chance.uniform(low, high) if chance.random() < likelihood else 0.0

    options = {
        "aggregation": chance.choice(("true", "true", "false")),
        "ordering": chance.choice(("key", "key", "key", "none")),
        "maxRecordsPerBatch": chance.choice(("2", "10", "500")),
        "writeDeadline": chance.choice(("10s", "10s", "30s", "600s")),
        "bufferBytes": chance.choice(("2000", "20000", "1m")),
    }
    if chance.random() < 0.2:
        options["rateLimit"] = chance.choice(("10", "100"))
    bad_row = some(0.4, 0.002, 0.02)
    if bad_row:
        kept = chance.choice(({}, {"deadLetterPath": "letters"}, {"deadLetterStream": "letters"}))
        options |= {"onError": "deadLetter", **kept} if kept else {}
    large_row = some(0.1, 0.002, 0.01)
    chance.random()  # not used: without it each seed would mean another plan than the one that it is kept for
    return SinkPlan(
        options=options,
        in_foreach_batch=chance.random() < 0.3,
        key_count=chance.choice((1, 3, 20)),
        keys_stay=chance.random() < 0.7,
        routes=chance.random() < 0.3,
        hash_keys=chance.random() < 0.2,
        task_count_max=chance.choice((1, 3, 6)),
        row_count_max=chance.choice((3, 20, 60)),
        padding_bytes=chance.choice((0, 0, 100, 6_000)),
        record_bytes_max=3 * 2**20 if large_row else 2**20,
        large_row=large_row,
        bad_row=bad_row,
        executor_count=chance.choice((1, 2, 3)),
        executor_kills_per_min=some(0.5, 0.5, 5.0),
        executor_pauses_per_min=some(0.4, 0.3, 3.0),
        executor_pause_max_s=chance.choice((5.0, 20.0, 60.0)),
        second_attempt=some(0.5, 0.05, 0.5),
        slow_put=some(0.3, 0.0, 0.1),
        slow_input=some(0.3, 0.0, 0.3),
        second_drivers_per_min=some(0.2, 0.3, 1.0),
        driver_dies_before_commit=some(0.4, 0.02, 0.2),
        driver_dies_after_commit=some(0.4, 0.02, 0.2),
        outages_per_min=some(0.4, 0.5, 3.0),
        deletions_per_min=some(0.2, 0.3, 1.0),
        listing_denied=chance.random() < 0.1,
        folder_failure=some(0.35, 0.05, 0.4),
        put_throttled=some(0.5, 0.0, 0.2),
        put_unavailable=some(0.4, 0.0, 0.1),
        put_lost=some(0.4, 0.0, 0.1),
        put_late=some(0.3, 0.0, 0.1),
        put_unanswered=some(0.5, 0.0, 0.1),
        entry_throttled=some(0.6, 0.0, 0.4),
        entry_failed=some(0.4, 0.0, 0.2),
        entry_unanswered=some(0.2, 0.0, 0.1),
    )
