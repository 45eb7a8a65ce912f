"""A simulated producer: the production's batcher and sender, and PutRecords as the service may answer it.

A producer is a process with a few senders. It can crash, be paused and be asked to stop. The service takes the entries of one
call in any order, refuses some of them, and its answer may be lost.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from typing import Any, Final

from penstock.core.aggregation import deaggregate
from penstock.core.hash_key import effective_hash_key
from penstock.core.leases.coordinator_events import UNKNOWN
from penstock.core.put_entry import EntryAnswer, PutEntry
from penstock.core.writing.batcher import Batcher
from penstock.core.writing.batcher_steps import FetchShards, NoProgress, PutRequest, PutResult, WaitUntil
from penstock.core.writing.packing import PackedEntry, PendingRecord
from penstock.errors import PenstockError, Throttled, Unavailable
from penstock.ports.metrics import NoMetrics
from penstock.producer.placement import PLACED_BY_KEY
from penstock.producer.sender import Sender, SenderPorts
from penstock_sim.actors import Actors
from penstock_sim.blocking_ports import SimClock, SimKinesis
from penstock_sim.environment import Environment
from penstock_sim.events import processes, producers, streams
from penstock_sim.plan import STREAM_NAME, ProducerPlan
from penstock_sim.process import SimProcess
from penstock_sim.stream import SimShard, SimStream
from penstock_sim.world import World

LATE_MAX_S: Final = 6.0
"""A call without an answer has arrived by then, if it arrives."""
_CHECK_MAX_S: Final = 0.25
"""An idle sender checks at least so often: a new record does not wake it."""


class SimPuts:
    """The service's side of PutRecords.

    Args:
        stream: The stream to put into; None for the world's.
        attempt: Who puts, in the history.
    """

    def __init__(
        self, world: Environment, stream: SimStream | None = None, attempt: str = "a producer"
    ) -> None:
        self._world = world
        self._stream = world.stream if stream is None else stream
        self.attempt = attempt

    def serve(self, entries: Sequence[PutEntry]) -> Any:
        world = self._world
        if world.luck("put_throttled"):
            return Throttled("throttled", code="ProvisionedThroughputExceededException")
        if world.luck("put_unavailable"):
            return Unavailable("internal failure")
        if world.luck("put_lost"):
            self._leave_unanswered(entries)
            return UNKNOWN
        if world.luck("put_late"):
            self._leave_unanswered(entries)
            world.schedule(world.now + world.chance.uniform(0.1, LATE_MAX_S), self._take, entries)
            return UNKNOWN
        answers = self._take(entries)
        if world.luck("put_unanswered"):
            self._leave_unanswered(entries)
            return UNKNOWN
        return answers

    def _leave_unanswered(self, entries: Sequence[PutEntry]) -> None:
        for entry in entries:
            texts = tuple(self.text_of(data) for _, _, data in _records_of(entry))
            self._world.record(producers.RecordsUnanswered(texts, self.attempt))

    # --- the history --------------------------------------------------------------------------------------

    def text_of(self, data: bytes) -> str:
        return data.decode()

    def record_stored(self, shard_id: str, numbers: list[int], texts: tuple[str, ...], is_read: bool) -> None:
        """Record that a shard has taken an entry, and whether readers see its records."""
        world = self._world
        world.record(producers.RecordsStored(shard_id, numbers[0], texts, is_read, self.attempt))
        for number in numbers if is_read else ():
            world.record(streams.RecordPut(shard_id, number, world.now_ms()))

    # --- entries ------------------------------------------------------------------------------------------

    def _take(self, entries: Sequence[PutEntry]) -> list[EntryAnswer]:
        answers = [EntryAnswer()] * len(entries)
        places = list(range(len(entries)))
        self._world.chance.shuffle(places)
        for place in places:
            answers[place] = self.take_one(entries[place])
        return answers

    def shard_of(self, entry: PutEntry) -> SimShard:
        hash_key = effective_hash_key(entry.partition_key, entry.explicit_hash_key)
        return next(shard for shard in self._stream.open_shards() if hash_key in shard.hash_range)

    def take_one(self, entry: PutEntry) -> EntryAnswer:
        if self._world.luck("entry_throttled"):
            return EntryAnswer(error_code="ProvisionedThroughputExceededException", error_message="slow down")
        if self._world.luck("entry_failed"):
            return EntryAnswer(error_code="InternalFailure", error_message="sorry")
        world, stream, shard = self._world, self._stream, self.shard_of(entry)
        found = _records_of(entry)
        numbers = stream.put_blob(shard, entry.data, entry.partition_key, len(found), world.now_ms())
        # The KCL drops a whole aggregate if one of its records belongs to another shard.
        is_read = all(effective_hash_key(key, explicit) in shard.hash_range for key, explicit, _ in found)
        texts = tuple(self.text_of(data) for _, _, data in found)
        self.record_stored(shard.shard_id, numbers, texts, is_read)
        if len(found) > 1 and isinstance(entry, PackedEntry) and entry.shard_id != shard.shard_id:
            world.record(producers.RecordsMisrouted(texts, is_read, self.attempt))
        if self._world.luck("entry_unanswered"):
            self._leave_unanswered([entry])
            return EntryAnswer()
        return EntryAnswer(sequence_number=str(numbers[0]), shard_id=shard.shard_id)


def _records_of(entry: PutEntry) -> list[tuple[str, str | None, bytes]]:
    """Return key, explicit hash key and data of each user record."""
    inner = deaggregate(entry.data)
    if inner is None:
        return [(entry.partition_key, entry.explicit_hash_key, entry.data)]
    return [(each.partition_key or "", each.explicit_hash_key, each.data) for each in inner]


class SimProducer(SimProcess):
    """One process that puts records."""

    def __init__(self, world: Environment, name: str, plan: ProducerPlan, puts: SimPuts) -> None:
        super().__init__(world, name)
        self._plan = plan
        self._clock = SimClock(self)
        self._is_closing = False
        self._added = 0
        self._senders = plan.sender_count
        self.batcher = Batcher(plan.settings)
        kinesis = SimKinesis(self, "", world.stream, put=puts.serve)
        ports = SenderPorts(kinesis, self._clock, world.chance, NoMetrics())
        # Only one fiber runs at a time, and none waits while the batcher handles an outcome: no lock is needed.
        self._sender = Sender(
            STREAM_NAME, self.batcher, ports, fetch_placement=lambda: PLACED_BY_KEY, lock=nullcontext()
        )

    def start(self) -> None:
        for _ in range(self._plan.sender_count):
            self.spawn(self._send)
        self._add_later()

    def request_stop(self) -> None:
        """Take no record any more, and end when all are acknowledged."""
        self._is_closing = True

    @property
    def is_done(self) -> bool:
        """Whether every record that was passed to it is settled."""
        return not self.batcher.waiting_count

    # --- records ------------------------------------------------------------------------------------------

    def _add_later(self) -> None:
        self.later(self.world.chance.expovariate(self._plan.records_per_s / 3), self._add)

    def _add(self) -> None:
        if self._is_closing or self.world.is_healed:
            return
        chance = self.world.chance
        for _ in range(chance.randint(1, 5)):
            self._added += 1
            text, key = f"{self.who}:{self._added}", f"{self.who}/{chance.randrange(self._plan.key_count)}"
            self.world.record(producers.RecordAdded(text, key))
            self.batcher.add(text.encode(), key, None, self._clock.monotonic_s())
        self._add_later()

    # --- senders ------------------------------------------------------------------------------------------

    def _send(self) -> None:
        try:
            while not (self._is_closing and self.is_done):
                self._do(self.batcher.plan_step(self._clock.monotonic_s(), flushes=self._is_closing))
        except Exception as error:  # noqa: BLE001 - a defect, which the checkers report
            self.world.record(
                processes.MessageLogged(self.who, "CRITICAL", "the producer crashed", repr(error))
            )
        self._senders -= 1
        if self._senders == 0:
            self.on_gone(self, "stopped")

    def _do(self, step: PutRequest | FetchShards | WaitUntil | NoProgress) -> None:
        match step:
            case PutRequest():
                self._put(step)
            case FetchShards():
                self._settle(self._sender.fetch_shards(step))
            case NoProgress(why):
                self._give_up(self.batcher.drop_all(), why)
            case WaitUntil(until_s):
                now_s = self._clock.monotonic_s()
                wait_s = _CHECK_MAX_S if until_s is None else min(_CHECK_MAX_S, until_s - now_s)
                self._clock.sleep(max(1e-3, wait_s))

    def _put(self, request: PutRequest) -> None:
        texts = tuple(record.data.decode() for entry in request.entries for record in entry.records)
        self.world.record(producers.RecordsSent(self.who, texts))
        try:
            result = self._sender.send(request)
        except PenstockError as error:
            self._give_up(self.batcher.drop_request(request), str(error))
        else:
            self._settle(result)

    def _settle(self, result: PutResult) -> None:
        for entry, shard_id, number in result.delivered_entries:
            texts = tuple(record.data.decode() for record in entry.records)
            self.world.record(producers.RecordsAcknowledged(self.who, shard_id, int(number), texts))
        for reason, count in result.retry_counts.items():
            self.world.met[f"sent again: {reason}"] += count
        for refused in result.refused_entries:
            self._give_up(refused.entry.records, refused.why)

    def _give_up(self, records: Sequence[PendingRecord], why: str) -> None:
        self.world.record(
            producers.RecordsGivenUp(self.who, tuple(record.data.decode() for record in records), why)
        )


class ProducerActors(Actors):
    """The producers of a world."""

    def __init__(self, world: World, plan: ProducerPlan) -> None:
        super().__init__(world)
        self._plan = plan
        self._puts = SimPuts(world)

    def make(self, name: str) -> SimProducer | None:
        is_producer = name in self._plan.workers
        return SimProducer(self.world, name, self._plan, self._puts) if is_producer else None

    def is_done(self) -> bool:
        workers = self.world.workers.values()
        return all(worker.is_done for worker in workers if isinstance(worker, SimProducer))
