"""Planted bugs of a producer."""

from __future__ import annotations

from penstock.consumer import raw_records
from penstock.core.aggregation import MisplacedRule
from penstock.core.hash_key import HashRange
from penstock.core.writing.batcher import Batcher
from penstock.core.writing.batcher_steps import PutResult, RequestFailure
from penstock.core.writing.packing import PendingRecord
from penstock.core.writing.shard_queue import ShardQueue
from sim.mutants import Mutants

PRODUCER_MUTANTS = Mutants()
planted = PRODUCER_MUTANTS.planted

READY_ENTRIES = ShardQueue._ready_entries
ON_FAILED_CALL = Batcher.on_failed_call
USER_RECORDS = raw_records.user_records


@planted("refused records come last", "KPL 23, Benthos 1641", 0, ShardQueue, "put_back")
def puts_refused_ones_behind(self, entries):
    for record in [record for entry in entries for record in entry.records]:
        self.add(record)


@planted("a partial failure is a success", "Hazelcast 24774", 0, Batcher, "_put_back")
def forgets_refused_ones(self, queue, entries):
    for entry in entries:
        self._uncount(entry.records)


@planted("no answer is a success", "several: two outcomes instead of three", 0, Batcher, "on_failed_call")
def takes_no_answer_for_success(self, request, failure, why, now_s, u):
    if failure is not RequestFailure.UNKNOWN:
        return ON_FAILED_CALL(self, request, failure, why, now_s, u)
    self._end_request(request)
    for entry in request.entries:
        self._uncount(entry.records)
    for queue in {entry.shard_id or "": None for entry in request.entries}:
        self._end_queue_request(queue)
    return PutResult()


@planted("several records of a key in a request", "KPL 135, Maxwell 817", 0, ShardQueue, "_ready_entries")
def takes_several_of_a_key(self, taken_keys):
    while self._ready:
        yield from READY_ENTRIES(self, set())


@planted("an aggregate may lie anywhere", "producers that keep an old shard map", 1, PendingRecord, "lies_in")
def lies_anywhere(self, hash_range: HashRange):
    """An aggregate that another shard took is delivered, whatever its readers make of it."""
    return True


@planted(
    "what is sent again to another shard is delivered here too",
    "readers that know no hash ranges",
    19,
    MisplacedRule,
    "drops",
)
def drops_no_aggregate(self, aggregate):
    return False


@planted(
    "every aggregate is taken for a misrouted one",
    "KCL 343, kinesis-aggregation 11: aggregates that are dropped",
    7,
    MisplacedRule,
    "drops",
)
def drops_every_misrouted(self, aggregate):
    return True


@planted(
    "records of an aggregate lose their keys",
    "readers that take an aggregate for one record",
    7,
    raw_records,
    "user_records",
)
def names_the_key_of_the_aggregate(data, partition_key, counts, rule):
    found = USER_RECORDS(data, partition_key, counts, rule)
    return [(partition_key, hash_key, payload, sub) for _, hash_key, payload, sub in found]
