"""A stream in memory that refuses, loses answers and reshards at random, and readers that follow the KCL's rules."""

from __future__ import annotations

import random
from collections import defaultdict
from dataclasses import dataclass, field

from penstock.core.aggregation import deaggregate
from penstock.core.hash_key import FULL_RANGE, HashRange, effective_hash_key
from penstock.core.put_entry import EntryAnswer
from penstock.core.shard import Shard
from penstock.core.writing.batcher import Batcher
from penstock.core.writing.batcher_steps import (
    FetchShards,
    NoProgress,
    PutRequest,
    PutResult,
    RequestFailure,
    WaitUntil,
)


@dataclass
class Troubles:
    """Probabilities, each per request or entry."""

    throttle: float = 0.0
    internal: float = 0.0
    lost_answer: float = 0.0
    unavailable: float = 0.0
    call_throttled: float = 0.0
    reshard: float = 0.0
    listing_fails: float = 0.0
    listing_lags: float = 0.0


@dataclass
class World:
    """One stream."""

    chance: random.Random
    troubles: Troubles
    shard_count: int = 3
    shards: dict[str, Shard] = field(default_factory=dict)
    records: dict[str, list] = field(default_factory=lambda: defaultdict(list))
    sequence: int = 0
    lagging: tuple[Shard, ...] = ()
    log: list[tuple[str, str]] = field(default_factory=list)
    """Shard and data of every user record that a KCL reader sees, in the order of acceptance."""

    def __post_init__(self) -> None:
        size = (FULL_RANGE.end + 1) // self.shard_count
        for number in range(self.shard_count):
            end = FULL_RANGE.end if number == self.shard_count - 1 else (number + 1) * size - 1
            self._open(HashRange(number * size, end), ())
        self.lagging = tuple(self.shards.values())

    def _open(self, span: HashRange, parents: tuple[str, ...]) -> None:
        name = f"shardId-{len(self.shards):012d}"
        self.shards[name] = Shard(name, span, parents, str(self.sequence))

    def _close(self, shard: Shard) -> None:
        self.shards[shard.shard_id] = Shard(
            shard.shard_id, shard.hash_range, shard.parents, shard.starting_sequence_number, "1"
        )

    def reshard(self) -> None:
        """Split a shard, or merge two neighbours."""
        self.lagging = tuple(self.shards.values())
        live = sorted(
            (shard for shard in self.shards.values() if shard.is_open),
            key=lambda shard: shard.hash_range.start,
        )
        if len(live) > 1 and self.chance.random() < 0.5:
            place = self.chance.randrange(len(live) - 1)
            left, right = live[place : place + 2]
            self._close(left)
            self._close(right)
            self._open(
                HashRange(left.hash_range.start, right.hash_range.end), (left.shard_id, right.shard_id)
            )
            return
        shard = self.chance.choice(live)
        middle = (shard.hash_range.start + shard.hash_range.end) // 2
        self._close(shard)
        self._open(HashRange(shard.hash_range.start, middle), (shard.shard_id,))
        self._open(HashRange(middle + 1, shard.hash_range.end), (shard.shard_id,))

    def listing(self, wish: FetchShards) -> tuple[Shard, ...]:
        """List shards, perhaps as they were before the last reshard."""
        shards = (
            self.lagging if self.chance.random() < self.troubles.listing_lags else tuple(self.shards.values())
        )
        return shards if wish.with_closed else tuple(shard for shard in shards if shard.is_open)

    def _owner(self, hash_key: int) -> Shard:
        return next(shard for shard in self.shards.values() if shard.is_open and hash_key in shard.hash_range)

    def accept(self, entry) -> EntryAnswer:
        """Store a record; what a KCL reader would see of it goes to the log."""
        shard = self._owner(effective_hash_key(entry.partition_key, entry.explicit_hash_key))
        self.sequence += 1
        inner = deaggregate(entry.data)
        if inner is None:
            self.log.append((entry.partition_key, entry.data))
        elif all(
            effective_hash_key(each.partition_key, each.explicit_hash_key) in shard.hash_range
            for each in inner
        ):
            self.log += [(each.partition_key, each.data) for each in inner]
        return EntryAnswer(str(self.sequence), shard.shard_id)

    def put(self, request: PutRequest) -> list[EntryAnswer] | RequestFailure:
        """Answer one request; the entries are taken in random order, as PutRecords may."""
        troubles, draw = self.troubles, self.chance.random
        if draw() < troubles.reshard:
            self.reshard()
        if draw() < troubles.unavailable:
            return RequestFailure.UNAVAILABLE
        if draw() < troubles.call_throttled:
            return RequestFailure.THROTTLED
        answers: list[EntryAnswer | None] = [None] * len(request.entries)
        order = list(range(len(answers)))
        self.chance.shuffle(order)
        for place in order:
            lot = draw()
            if lot < troubles.throttle:
                answers[place] = EntryAnswer(
                    error_code="ProvisionedThroughputExceededException", error_message="slow"
                )
            elif lot < troubles.throttle + troubles.internal:
                answers[place] = EntryAnswer(error_code="InternalFailure", error_message="oops")
            else:
                answers[place] = self.accept(request.entries[place])
        return RequestFailure.UNKNOWN if draw() < troubles.lost_answer else answers


@dataclass
class Driver:
    """Runs a batcher against a world: several requests may be under way, answered in any order."""

    batcher: Batcher
    world: World
    senders: int = 3
    now_s: float = 0.0
    underway: list[tuple[PutRequest, list[EntryAnswer] | RequestFailure]] = field(default_factory=list)
    delivered: list = field(default_factory=list)
    refused: list = field(default_factory=list)
    duplicates: int = 0
    requests: int = 0
    watch: object = None

    def note(self, result: PutResult) -> None:
        """Add up what answers meant."""
        for each in result.delivered_entries:
            self.delivered += [(record.partition_key, record.data) for record in each.entry.records]
        self.refused += result.refused_entries
        self.duplicates += result.possible_duplicate_count

    def step(self, *, flushes: bool) -> bool:
        """Do one thing; False when there is nothing to do before the end."""
        batcher, chance = self.batcher, self.world.chance
        step: object = WaitUntil(None, "all senders are busy")
        if len(self.underway) < self.senders:
            step = batcher.plan_step(self.now_s, flushes=flushes)
        assert not isinstance(step, NoProgress), step.why
        if isinstance(step, PutRequest):
            self.requests += 1
            self.check(step)
            self.underway.append((step, self.world.put(step)))
            return True
        if isinstance(step, FetchShards):
            if chance.random() < self.world.troubles.listing_fails:
                batcher.on_listing_failed("no listing", self.now_s, chance.random())
            else:
                self.note(batcher.on_shards(self.world.listing(step), self.now_s))
            return True
        if self.underway:
            self.now_s += 0.01
            request, answers = self.underway.pop(chance.randrange(len(self.underway)))
            if isinstance(answers, RequestFailure):
                self.note(
                    batcher.on_failed_call(request, answers, answers.value, self.now_s, chance.random())
                )
            else:
                self.note(batcher.on_answers(request, answers, self.now_s, chance.random()))
            return True
        if step.until_s is None:
            return False
        assert step.until_s > self.now_s, "a wait that is over already"
        self.now_s = step.until_s
        return True

    def check(self, request: PutRequest) -> None:
        """Hold a request to every limit of the service, and to the rules of order."""
        settings = self.batcher.settings
        assert 1 <= len(request.entries) <= settings.request_record_count_max
        assert (
            sum(len(entry.data) + len(entry.partition_key.encode()) for entry in request.entries)
            <= settings.request_bytes_max
        )
        for entry in request.entries:
            assert len(entry.records) <= settings.aggregate_count_max
            if entry.is_aggregate:
                assert len(entry.data) <= settings.aggregate_bytes_max
        if settings.keeps_key_order:
            keys = [key for entry in request.entries for key in {r.partition_key for r in entry.records}]
            assert len(keys) == len(set(keys)), "a key is in one request twice"
            for other, _ in self.underway:
                shards = {entry.shard_id for entry in other.entries}
                assert shards.isdisjoint(entry.shard_id for entry in request.entries)

    def finish(self) -> None:
        """Go on until nothing waits."""
        steps = 0
        while self.batcher.waiting_count:
            assert self.step(flushes=True), "records wait for nothing"
            steps += 1
            assert steps < 100_000, "no end in sight"
