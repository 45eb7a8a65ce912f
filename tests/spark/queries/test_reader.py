"""The streaming reader without Spark: each of Spark's calls, in the orders in which Spark makes them.

This is quicker than a query, so every order of deaths and repeats can be tried.
"""

from __future__ import annotations

import json
import logging
import random
import threading
import time

import pytest
from msgspec.structs import replace

from penstock.core.batches.offsets import Share
from penstock.core.leases.lease_writes import Delete
from penstock.errors import ClaimConflict, Unavailable
from penstock.runtime.system_clock import SystemClock
from penstock.spark.stream_reader import ShardPartition
from reader_query import Query
from spark_support import numbered, put
from stream_reshards import reshard
from waiting import wait_until

SPLIT_AT = str(2**126)


def test_the_initial_offset_is_the_same_however_often_it_is_asked(query):
    reader = query().reader
    assert reader.initialOffset() == reader.initialOffset() == {"batch": 0, "shards": {}, "v": 1}


def test_a_range_of_nothing_is_no_work(query, client):
    q = query()
    put(client, q.stream, numbered(0, 5))
    end = q.next_plan()
    assert q.reader.partitions(end, end) == []


def test_the_same_partitions_are_given_however_often_they_are_asked(query, client):
    q = query()
    put(client, q.stream, numbered(0, 5))
    end = q.next_plan()
    first = [task for part in q.reader.partitions({}, end) for task in part.parts]
    second = [task for part in q.reader.partitions({}, end) for task in part.parts]
    assert first == second


def test_a_query_without_news_gives_its_start_back_unchanged(query, client):
    q = query()
    put(client, q.stream, numbered(0, 5))
    q.drain()
    assert q.plan() is None
    assert json.dumps(q.reader.latestOffset(q.done, None)) == json.dumps(q.done)


def test_a_stopped_idle_query_gives_its_leases_back(query, client):
    q = query()
    put(client, q.stream, numbered(0, 10))
    q.drain()
    assert {lease.owner for lease in q.table.scan().leases} == {q.done["worker"]}
    q.reader.stop()
    assert {lease.owner for lease in q.table.scan().leases} == {None}


def test_a_batch_that_is_replayed_by_a_new_process_holds_the_same_rows(query, client):
    q = query()
    put(client, q.stream, numbered(0, 50))
    end = q.next_plan()
    first = q.execute(end)
    put(client, q.stream, numbered(50, 90))
    q.die()
    second = q.execute(end)
    assert second == first
    q.commit(end, second)
    q.drain()
    assert q.numbers() == list(range(90))


def test_a_replay_holds_the_same_rows_although_options_changed(query, client):
    q = query(maxRecordsPerTrigger="10")
    put(client, q.stream, numbered(0, 50))
    end = q.next_plan()
    first = q.execute(end)
    q.given["maxRecordsPerTrigger"] = "1000"
    q.die()
    assert q.execute(end) == first
    assert len(first) <= 10


def test_a_replay_of_a_batch_whose_tasks_never_ran_reads_it_now(query, client):
    q = query()
    put(client, q.stream, numbered(0, 50))
    end = q.next_plan()
    q.die()
    q.commit(end, q.execute(end))
    q.drain()
    assert q.numbers() == list(range(50))


def test_a_replay_after_some_tasks_claimed_is_whole_and_repeats_the_claimed_part(query, client):
    q = query()
    put(client, q.stream, numbered(0, 60))
    end = q.next_plan()
    parts = q.reader.partitions({}, end)
    claimed = q.read(parts[0])
    put(client, q.stream, numbered(60, 80))
    q.die()
    again = q.reader.partitions({}, end)
    assert q.read(again[0]) == claimed
    q.commit(end, claimed + q.read(again[1]))
    q.drain()
    assert q.numbers() == list(range(80))


def test_a_batch_that_was_planned_and_not_logged_is_planned_again(query, client):
    q = query()
    put(client, q.stream, numbered(0, 30))
    q.drain()
    put(client, q.stream, numbered(30, 60))
    assert q.next_plan()
    q.die()
    q.drain()
    assert q.numbers() == list(range(60))


def test_of_two_executions_that_race_the_first_claim_stands(query, client):
    q = query()
    put(client, q.stream, numbered(0, 40))
    end = q.next_plan()
    part = q.reader.partitions({}, end)[0]
    slow = q.fresh().read(part)
    seen = [row for batch in [next(slow)] for row in batch.to_pylist()]
    winner = q.read(part)
    # The slow one had read the same pages; its claim is refused and agrees with the claim on the lease.
    seen += [row for batch in slow for row in batch.to_pylist()]
    assert [int(row["data"]) for row in seen] == [row[3] for row in winner]


def test_an_execution_that_read_past_the_claim_that_stands_is_repeated(query, client):
    q = query(shards=1)
    put(client, q.stream, numbered(0, 10))
    end = q.next_plan()
    part = q.reader.partitions({}, end)[0]
    short = q.fresh().read(part)
    put(client, q.stream, numbered(10, 20))
    long = q.fresh().read(part)
    assert sum(batch.num_rows for batch in [next(long)]) == 20
    first = q.read(ShardPartition([replace(part.parts[0], share=Share(10))]))
    assert len(first) == 10
    with pytest.raises(ClaimConflict, match="another execution of the batch claimed its end"):
        list(long)
    assert [row[3] for row in q.read(part)] == [row[3] for row in first]
    assert sum(batch.num_rows for batch in short) == 10


def test_an_execution_that_read_less_than_the_claim_that_stands_reads_on(query, client):
    q = query(shards=1)
    put(client, q.stream, numbered(0, 30))
    end = q.next_plan()
    part = q.reader.partitions({}, end)[0]
    behind = q.fresh().read(ShardPartition([replace(part.parts[0], share=Share(5))]))
    seen = [row for batch in [next(behind)] for row in batch.to_pylist()]
    assert len(seen) == 5
    whole = q.read(part)
    seen += [row for batch in behind for row in batch.to_pylist()]
    assert [int(row["data"]) for row in seen] == [row[3] for row in whole] == list(range(30))


def leave_unread(q, end):
    """Run a batch whose action looks at its first rows only."""
    unread = q.fresh().read(q.reader.partitions({} if q.done is None else q.done, end)[0])
    next(unread)
    unread.close()
    q.done = end


def test_a_query_goes_on_behind_rows_that_its_actions_left_unread(query, client):
    q = query(shards=1, maxRecordsPerTrigger="10")
    put(client, q.stream, numbered(0, 30))
    leave_unread(q, q.next_plan())
    assert [row[3] for row in q.next_batch()] == list(range(10, 20))


def test_a_query_goes_on_behind_what_had_arrived_when_an_unread_batch_was_planned(query, client):
    q = query(shards=1, fetchInterval="0ms", maxRecordsPerFetch="10")
    put(client, q.stream, numbered(0, 30))
    leave_unread(q, q.next_plan())
    put(client, q.stream, numbered(30, 60))
    q.drain()
    assert q.numbers()[-1] == 59
    assert q.numbers()[0] >= 30


def test_records_after_an_unread_batch_are_in_the_next_despite_a_clock_ahead(query, client, monkeypatch):
    q = query(shards=1, maxRecordsPerTrigger="10")
    put(client, q.stream, numbered(0, 30))
    assert len(q.next_batch()) == 10
    # A shard that is known to have more is not probed before the next batch, so the driver does not have the service's time.
    q.die()
    del q.given["maxRecordsPerTrigger"]
    q.reader = q.fresh()
    right_ms = SystemClock.wall_ms
    monkeypatch.setattr(SystemClock, "wall_ms", lambda self: right_ms(self) + 3_600_000)
    leave_unread(q, q.next_plan())
    put(client, q.stream, numbered(30, 60))
    q.drain()
    # The service's time is in whole seconds, so records from just before the plan may be read again.
    assert q.numbers()[-30:] == list(range(30, 60))


def test_what_arrives_after_an_unread_batch_is_in_the_next_one(query, client):
    q = query(shards=1)
    put(client, q.stream, numbered(0, 10))
    leave_unread(q, q.next_plan())
    put(client, q.stream, numbered(10, 20))
    q.drain()
    assert q.numbers() == list(range(10, 20))


def test_a_batch_that_no_action_read_is_offered_again_when_its_driver_died(query, client):
    q = query(shards=1)
    put(client, q.stream, numbered(0, 10))
    leave_unread(q, q.next_plan())
    q.die()
    q.drain()
    assert q.numbers() == list(range(10))


def test_an_older_checkpoint_location_rewinds_the_leases_and_loses_nothing(query, client):
    q = query()
    put(client, q.stream, numbered(0, 20))
    q.drain()
    old = q.done
    put(client, q.stream, numbered(20, 40))
    q.drain()
    put(client, q.stream, numbered(40, 60))
    q.drain()
    q.die()
    q.done, before = old, list(q.rows)
    q.rows = []
    q.drain()
    assert q.numbers() == list(range(20, 60))
    assert len(before) == 60
    put(client, q.stream, numbered(60, 70))
    q.drain()
    assert set(range(60, 70)) <= set(q.numbers())


def test_a_new_location_under_an_earlier_worker_id_goes_on_at_the_checkpoints(query, client):
    q = query(workerId="nightly")
    put(client, q.stream, numbered(0, 20))
    q.drain()
    q.reader.stop()
    q.reader, q.done, q.rows = q.fresh(), None, []
    put(client, q.stream, numbered(20, 40))
    q.drain()
    assert q.numbers() == list(range(20, 40))


def test_a_lease_taken_by_force_ends_its_part_of_the_batch_without_loss(query, client):
    q = query(
        leaseDuration="60s", shardsPerTask="1"
    )  # else the thief, which never renews, would lose it again
    put(client, q.stream, numbered(0, 40))
    q.drain()
    put(client, q.stream, numbered(40, 80))
    end = q.next_plan()
    parts = q.reader.partitions(q.done, end)
    stolen = parts[0].parts[0].shard_id
    q.steal(stolen)
    assert q.read(parts[0]) == []
    q.commit(end, q.read(parts[1]))
    # The thief reads on from the checkpoint, which is the start of the batch that was stolen.
    assert q.table.fetch(stolen).owner == "thief"
    left = {row[3] for row in q.rows if row[0] == stolen}
    assert len(left) + len(q.rows) > 40


def test_a_deleted_lease_row_is_made_again_where_the_last_batch_began(query, client):
    q = query()
    put(client, q.stream, numbered(0, 40))
    q.drain()
    while (row := q.table.fetch("shardId-000000000000")) is not None:
        q.table.write(Delete(row.key, row.counter, row.checkpoint))  # refused after a renewal in between
    put(client, q.stream, numbered(40, 60))
    q.die()
    q.drain()
    assert set(q.numbers()) == set(range(60))


def test_available_now_goes_on_with_leases_that_it_renews_late(server, query, client):
    q = query(leaseDuration="1s", maxRecordsPerTrigger="10")
    put(client, q.stream, numbered(0, 40))
    q.reader.prepareForTriggerAvailableNow()
    assert q.next_batch()
    held = coordinator(q).lease_phases().keys()
    renewed_s = min(lease.renewed_s for lease in coordinator(q).held_leases)
    server.faults.throttle("dynamodb.UpdateItem", count=None)
    wait_until(lambda: time.monotonic() > renewed_s + 3, "the leases to be late")
    assert coordinator(q).lease_phases().keys() == held
    server.faults.clear()
    list(iter(q.batch, None))
    assert q.numbers() == list(range(40))


def test_available_now_at_a_new_location_reads_what_the_application_has_not(query, client):
    q = query()
    put(client, q.stream, numbered(0, 20))
    q.drain()
    q.reader.stop()
    put(client, q.stream, numbered(20, 40))
    q.done, q.reader = None, q.fresh()
    q.reader.prepareForTriggerAvailableNow()
    while q.batch() is not None:
        pass
    assert q.numbers() == list(range(40))


def test_the_report_of_an_available_now_run_has_the_age_of_its_end(query, client):
    q = query()
    put(client, q.stream, numbered(0, 10))
    q.reader.prepareForTriggerAvailableNow()
    assert q.plan() is not None
    report = q.reader.reportLatestOffset()
    assert report["readsToTip"]
    assert 0 <= report["tipAgeMillis"] < 600_000
    limited = query(maxRecordsPerTrigger="5")
    put(client, limited.stream, numbered(0, 10))
    limited.reader.prepareForTriggerAvailableNow()
    assert limited.plan() is not None
    assert not limited.reader.reportLatestOffset()["readsToTip"]


def test_available_now_does_not_end_while_a_shard_gives_no_answer(server, query, client):
    q = query()
    put(client, q.stream, numbered(0, 20))
    q.reader.prepareForTriggerAvailableNow()
    server.faults.throttle("GetRecords", count=None, stream=q.stream)
    answers_again = threading.Timer(2.0, server.faults.clear)
    answers_again.start()
    list(iter(q.batch, None))
    answers_again.join()
    assert q.numbers() == list(range(20))


def test_available_now_says_which_shard_it_could_not_read(server, query, client, monkeypatch):
    monkeypatch.setattr("penstock.spark.driver.planner._PATIENT_WAIT_S_MIN", 0.5)
    q = query(leaseDuration="1s")
    put(client, q.stream, numbered(0, 20))
    q.reader.prepareForTriggerAvailableNow()
    server.faults.throttle("GetRecords", count=None, shard="shardId-000000000001", stream=q.stream)
    try:
        with pytest.raises(Unavailable, match=rf"stream {q.stream}: .*no answer from shardId-000000000001"):
            list(iter(q.batch, None))
    finally:
        server.faults.clear()
    assert len(q.numbers()) < 20


def coordinator(q):
    return q.reader._planner._joined.query_worker._loop._coordinator


def test_children_come_in_a_batch_after_their_parents_last_records(query, client):
    q = query()
    put(client, q.stream, numbered(0, 40))
    q.next_batch()
    client.split_shard(StreamName=q.stream, ShardToSplit="shardId-000000000000", NewStartingHashKey=SPLIT_AT)
    put(client, q.stream, numbered(40, 80))
    client.merge_shards(
        StreamName=q.stream, ShardToMerge="shardId-000000000003", AdjacentShardToMerge="shardId-000000000001"
    )
    put(client, q.stream, numbered(80, 120))
    q.drain()
    assert q.numbers() == list(range(120))
    keys = {}
    for _, _, _, number in q.rows:
        keys.setdefault(number % 20, []).append(number)
    assert all(numbers == sorted(numbers) for numbers in keys.values())


def read_the_same(q, part, end, held):
    """Read a task; in each shard it holds what every execution of the batch has held before."""
    rows = q.read(part)
    for task in part.parts:
        found = [row for row in rows if row[0] == task.shard_id]
        assert held.setdefault((end["batch"], task.shard_id), found) == found
    return rows


@pytest.mark.parametrize("seed", range(6))
def test_any_order_of_deaths_repeats_and_reshards_gives_each_record_in_order(query, client, seed):
    chance = random.Random(seed)
    limit, shards = chance.choice([7, 25, 1000]), chance.choice([1, 2])
    q = query(maxRecordsPerTrigger=str(limit), shardsPerTask=str(shards), leaseDuration="30s")
    sent = 0
    held = {}  # every accepted execution of a batch held these rows
    for _ in range(14):
        count = chance.randrange(0, 25)
        put(client, q.stream, numbered(sent, sent + count))
        sent += count
        if chance.random() < 0.25:
            reshard(client, q.stream, chance)
        end = q.plan()
        if chance.random() < 0.2:
            q.die()
        if end is None:
            continue
        for _ in range(chance.randrange(0, 3)):
            parts = q.reader.partitions(q.done or {}, end)
            chance.shuffle(parts)
            for part in parts[: chance.randrange(0, len(parts) + 1)]:
                read_the_same(q, part, end, held)
            q.die()
        rows = []
        for part in q.reader.partitions(q.done or {}, end):
            rows += read_the_same(q, part, end, held)
        q.commit(end, rows)
    q.drain(200)
    assert q.numbers() == list(range(sent))
    keys = {}
    for _, _, _, number in q.rows:
        keys.setdefault(number % 20, []).append(number)
    assert all(numbers == sorted(numbers) for numbers in keys.values())


@pytest.mark.parametrize("is_given", [True, False])
def test_a_starting_position_that_existing_leases_override_is_warned_of_once(
    server, client, caplog, is_given
):
    caplog.set_level(logging.WARNING, "penstock.spark")
    first = Query(server, client)
    put(client, first.stream, numbered(0, 20))
    first.drain()
    first.reader.stop()
    assert overruled(caplog) == []
    given = {**first.given, "startingPosition": "TRIM_HORIZON"}
    if not is_given:
        del given["startingPosition"]
    second = Query(server, client, stream=first.stream)
    second.given = given
    second.reader = second.fresh()
    put(client, first.stream, numbered(20, 30))
    second.drain()
    assert second.numbers() == list(range(20, 30))
    assert len(overruled(caplog)) == is_given
    second.stop()


def overruled(caplog):
    return [
        record
        for record in caplog.records
        if "startingPosition counts for the other shards" in record.message
    ]
