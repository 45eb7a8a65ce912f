"""One stream: its shards and their lineage, its states, and every change of its topology.

Changes take effect when they are due (`settle`), at the moment they were due, so that the order of
events does not depend on when a caller reads the stream.
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass, field, fields, replace
from itertools import pairwise
from typing import Any

from penstock_local.service_errors import invalid_argument, not_found
from penstock_local.shard import Shard

CREATING, ACTIVE, DELETING = "CREATING", "ACTIVE", "DELETING"
SavedStream = tuple[dict[str, Any], list[tuple[Shard, int | None, tuple[str, ...]]]]
"""A stream's fields, and the changing fields of each of its shards; see `Stream.saved_state`."""

HASH_KEY_MAX = (1 << 128) - 1
HOUR_MS = 3_600_000


@dataclass(slots=True)
class Change:
    """A change of a stream that is not carried out yet.

    Attributes:
        due_ms: When it takes effect.
        kind: `create`, `split`, `merge`, `scale`, `mode`, `setting` or `delete`.
        args: Numbers that the kind needs (shard indexes, hash key, target count).
    """

    due_ms: int
    kind: str
    args: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class StreamSettings:
    """Settings that a stream stores and shows, with little or no further effect; replaced as a whole.

    Attributes:
        key_id: KMS key of its encryption; None while it is not encrypted.
        encrypted_ms: When encryption was started or changed, on the last day.
        decrypted_ms: When encryption was stopped, on the last day.
        shard_metrics: Metrics of enhanced monitoring.
        policy: Its resource policy, as JSON.
        warm_mibps: Requested warm throughput; None if none was ever requested.
        warm_before_mibps: Warm throughput that it had before.
        is_auto: Whether records are distributed over the shards in turn, whatever their keys.
    """

    key_id: str | None = None
    encrypted_ms: tuple[int, ...] = ()
    decrypted_ms: tuple[int, ...] = ()
    shard_metrics: tuple[str, ...] = ()
    policy: str | None = None
    warm_mibps: int | None = None
    warm_before_mibps: int = 0
    is_auto: bool = False


@dataclass(frozen=True, slots=True)
class Consumer:
    """A consumer that is registered for enhanced fan-out; replaced as a whole.

    Attributes:
        name: Its name, unique among the consumers of the stream.
        created_s: Second in its ARN, which no earlier consumer of its name has had.
        status: `CREATING`, `ACTIVE` or `DELETING`.
        due_ms: When it leaves CREATING or DELETING.
        policy: Its resource policy, as JSON.
    """

    name: str
    created_s: int
    status: str
    due_ms: int
    tags: dict[str, str] = field(default_factory=dict)
    policy: str | None = None

    def arn(self, stream_arn: str) -> str:
        """Return its ARN, made from the ARN of its stream."""
        return f"{stream_arn}/consumer/{self.name}:{self.created_s}"


@dataclass(slots=True)
class Stream:
    """A stream and all its shards; not thread-safe, owned by the server's loop.

    Attributes:
        region: Its region; the same name is another stream in every region.
        uid: Distinguishes streams that have the same name one after the other.
        stamp_s: Second that the first shards' sequence numbers carry.
        tag: Number that all its sequence numbers carry; 0 in one that was made before there were tags.
        shards: By id, in the order they were made; shards past the retention are dropped.
        open_shards: The open ones, by hash range.
        consumers: The registered consumers by name; replaced as a whole.
        auto_turn: Counter by which an `is_auto` stream chooses the shard of a record.
        consumers_gone: By name, `created_s` of the last consumer that was deregistered.
    """

    name: str
    arn: str
    account: str
    region: str
    uid: int
    created_ms: int
    stamp_s: int
    tag: int = 0
    mode: str = "PROVISIONED"
    status: str = "CREATING"
    retention_h: int = 24
    record_kib_max: int = 1024
    tags: dict[str, str] = field(default_factory=dict)
    settings: StreamSettings = field(default_factory=StreamSettings)
    shards: dict[str, Shard] = field(default_factory=dict)
    open_shards: list[Shard] = field(default_factory=list)
    change: Change | None = None
    next_index: int = 0
    rescaled_ms: list[int] = field(default_factory=list)
    mode_switched_ms: list[int] = field(default_factory=list)
    consumers: dict[str, Consumer] = field(default_factory=dict)
    consumers_gone: dict[str, int] = field(default_factory=dict)
    auto_turn: int = 0
    _hash_starts: list[int] = field(default_factory=list)
    _earlier_topology: tuple[int, frozenset[int]] = (0, frozenset())

    @property
    def retention_ms(self) -> int:
        """Return for how many milliseconds a record is kept."""
        return self.retention_h * HOUR_MS

    def is_named_by(self, stream_filter: dict[str, Any]) -> bool:
        """Return whether a filter of ListQueues or ListChannels is for this stream."""
        created_ms = stream_filter.get("StreamCreationTimestamp")
        # clients may send whole seconds
        return stream_filter["StreamARN"] == self.arn and (
            created_ms is None or created_ms // 1000 == self.created_ms // 1000
        )

    def shard_for(self, hash_key: int) -> Shard:
        """Return the open shard that owns a hash key (0 to 2^128 - 1)."""
        return self.open_shards[bisect_right(self._hash_starts, hash_key) - 1]

    def shard_in_turn(self) -> Shard:
        """Return the open shard that takes the next record, whatever its keys."""
        self.auto_turn += 1
        return self.open_shards[self.auto_turn % len(self.open_shards)]

    def shard(self, shard_id: str) -> Shard:
        """Return a shard by id.

        Raises:
            RequestRefused: There is no such shard, or no longer.
        """
        found = self.shards.get(shard_id)
        if found is None:
            raise not_found(
                f"Shard {shard_id} in stream {self.name} under account {self.account} does not exist"
            )
        return found

    # -- states ---------------------------------------------------------------------------------------------

    def settle(self, now_ms: int) -> bool:
        """Carry out the changes that are due.

        Returns:
            Whether anything changed. The caller forgets a stream whose `status` is then `DELETED`.
        """
        is_consumer_changed = self._settle_consumers(now_ms)
        change = self.change
        if change is None or now_ms < change.due_ms:
            return is_consumer_changed
        self.change = None
        self.status = "ACTIVE"
        match change.kind:
            case "create":
                self._create_shards(change.args[0], change.due_ms)
            case "split":
                self._split(self._open_by_index(change.args[0]), change.args[1], change.due_ms)
            case "merge":
                self._merge(
                    self._open_by_index(change.args[0]), self._open_by_index(change.args[1]), change.due_ms
                )
            case "scale":
                self._scale(change.args[0], change.due_ms)
            case "mode" | "setting":
                pass  # the mode or setting itself is set when the change begins
            case "delete":
                self.status = "DELETED"
            case kind:
                raise AssertionError(f"unknown change {kind}")
        return True

    def _settle_consumers(self, now_ms: int) -> bool:
        due = [each for each in self.consumers.values() if each.status != ACTIVE and each.due_ms <= now_ms]
        if not due:
            return False
        consumers = dict(self.consumers)
        # only this second's names matter: a consumer that is created again later has another second in its ARN
        gone = {name: at_s for name, at_s in self.consumers_gone.items() if at_s >= now_ms // 1000}
        for consumer in due:
            if consumer.status == CREATING:
                consumers[consumer.name] = replace(consumer, status=ACTIVE)
            else:
                del consumers[consumer.name]
                gone[consumer.name] = consumer.created_s
        self.consumers, self.consumers_gone = consumers, gone
        return True

    def begin_change(self, change: Change, status: str) -> None:
        """Start a change: the stream shows `status` until it is due."""
        self.change = change
        self.status = status

    def saved_state(self) -> SavedStream:
        """Return the state with which `restore_saved` undoes every later change, except changes of records."""
        found = {each.name: getattr(self, each.name) for each in fields(self)}
        found["shards"] = dict(self.shards)
        found["change"] = None if self.change is None else replace(self.change)
        return found, [(shard, shard.closed_ms, shard.children) for shard in self.shards.values()]

    def restore_saved(self, saved: SavedStream) -> None:
        """Undo every change since `saved_state` was called, except records that were added or trimmed."""
        found, shards = saved
        for name, value in found.items():
            setattr(self, name, value)
        self.shards = dict(self.shards)
        for shard, closed_ms, children in shards:
            shard.closed_ms, shard.children = closed_ms, children

    def forget_expired(self, now_ms: int) -> list[Shard]:
        """Drop closed shards whose last record is past the retention; returns them."""
        horizon_ms = now_ms - self.retention_ms
        gone = [s for s in self.shards.values() if s.closed_ms is not None and s.closed_ms < horizon_ms]
        for shard in gone:
            del self.shards[shard.id]
        return gone

    # -- topology -------------------------------------------------------------------------------------------

    def check_split(self, shard_id: str, hash_key: int) -> Shard:
        """Return the shard to split, or refuse: it must be open and the key strictly inside its range."""
        shard = self._require_open(shard_id)
        if not shard.hash_start + 1 < hash_key < shard.hash_end:
            raise invalid_argument(
                f"NewStartingHashKey {hash_key} used in SplitShard() on shard {shard_id} in stream {self.name} "
                f"under account {self.account} is not both greater than one plus the shard's StartingHashKey "
                f"{shard.hash_start} and less than the shard's EndingHashKey {shard.hash_end}."
            )
        return shard

    def check_merge(self, shard_id: str, adjacent_id: str) -> tuple[Shard, Shard]:
        """Return the two shards to merge, or refuse: both must be open and adjacent."""
        one = self._require_open(shard_id)
        other = self._require_open(adjacent_id)
        if one.hash_end + 1 != other.hash_start and other.hash_end + 1 != one.hash_start:
            raise invalid_argument(
                f"Shards {shard_id} and {adjacent_id} in stream {self.name} under account {self.account} "
                "are not an adjacent pair of shards eligible for merging"
            )
        return one, other

    def _require_open(self, shard_id: str) -> Shard:
        shard = self.shards.get(shard_id)
        if shard is None:
            raise not_found(
                f"Could not find shard {shard_id} in stream {self.name} under account {self.account}."
            )
        if shard.closed_ms is not None:
            raise invalid_argument(
                f"Shard {shard_id} in stream {self.name} under account {self.account} has already been merged "
                "or split, and thus is not eligible for merging or splitting."
            )
        return shard

    def _open_by_index(self, index: int) -> Shard:
        return next(shard for shard in self.open_shards if shard.index == index)

    def _create_shards(self, count: int, at_ms: int) -> None:
        bounds = uniform_bounds(count)
        for start, end in pairwise(bounds):
            self._add_shard(start, end - 1, (), at_ms, self.stamp_s)
        self._reindex()
        self._earlier_topology = (self.next_index, frozenset(s.index for s in self.open_shards))

    def _split(self, shard: Shard, hash_key: int, at_ms: int) -> None:
        self._remember_topology()
        self._split_one(shard, hash_key, at_ms)
        self._reindex()

    def _merge(self, one: Shard, other: Shard, at_ms: int) -> None:
        self._remember_topology()
        self._merge_two(one, other, at_ms)
        self._reindex()

    def _scale(self, count: int, at_ms: int) -> None:
        """Split shards at every new bound, then merge those between two bounds pair by pair: all data keeps its lineage."""
        self._remember_topology()
        bounds = uniform_bounds(count)
        pieces: list[Shard] = []
        for shard in self.open_shards:
            rest = shard
            first = bisect_right(bounds, shard.hash_start)
            for bound in bounds[first : bisect_right(bounds, shard.hash_end)]:
                left, rest = self._split_one(rest, bound, at_ms)
                pieces.append(left)
            pieces.append(rest)
        merged: Shard | None = None
        for piece in pieces:
            if merged is None or bounds[bisect_right(bounds, piece.hash_start) - 1] == piece.hash_start:
                merged = piece
            else:
                merged = self._merge_two(merged, piece, at_ms)
        self._reindex()

    def _split_one(self, shard: Shard, hash_key: int, at_ms: int) -> tuple[Shard, Shard]:
        opened_ms = self._close_shards((shard,), at_ms) + 1
        stamp_s = max(at_ms // 1000, shard.created_s + 1)
        left = self._add_shard(shard.hash_start, hash_key - 1, (shard.id,), opened_ms, stamp_s)
        right = self._add_shard(hash_key, shard.hash_end, (shard.id,), opened_ms, stamp_s)
        shard.children = (left.id, right.id)
        return left, right

    def _merge_two(self, one: Shard, other: Shard, at_ms: int) -> Shard:
        opened_ms = self._close_shards((one, other), at_ms) + 1
        stamp_s = max(at_ms // 1000, one.created_s + 1, other.created_s + 1)
        start, end = min(one.hash_start, other.hash_start), max(one.hash_end, other.hash_end)
        child = self._add_shard(start, end, (one.id, other.id), opened_ms, stamp_s)
        one.children = other.children = (child.id,)
        return child

    def _close_shards(self, shards: tuple[Shard, ...], at_ms: int) -> int:
        """Close shards together; returns the last millisecond of all of them.

        The child opens in the next millisecond, so at any time each hash key has exactly one shard. This holds also when
        a rescale makes a shard and closes it in one step.
        """
        closed_ms = max(at_ms, *(shard.opened_ms for shard in shards))
        for shard in shards:
            shard.closed_ms = closed_ms
        return closed_ms

    def _add_shard(
        self, start: int, end: int, parents: tuple[str, ...], opened_ms: int, stamp_s: int
    ) -> Shard:
        shard = Shard(
            self.next_index,
            start,
            end,
            created_s=stamp_s,
            opened_ms=opened_ms,
            parents=parents,
            stream_tag=self.tag,
        )
        self.next_index += 1
        self.shards[shard.id] = shard
        return shard

    def _reindex(self) -> None:
        still_open = (shard for shard in self.shards.values() if shard.closed_ms is None)
        self.open_shards = sorted(still_open, key=lambda shard: shard.hash_start)
        self._hash_starts = [shard.hash_start for shard in self.open_shards]

    def restore(self, shards: list[Shard], next_index: int) -> None:
        """Replace the stream's shards by those that were loaded from a state folder."""
        self.shards = {shard.id: shard for shard in shards}
        self.next_index = next_index
        self._reindex()
        self._remember_topology()

    def _remember_topology(self) -> None:
        self._earlier_topology = (self.next_index, frozenset(shard.index for shard in self.open_shards))

    # -- listing --------------------------------------------------------------------------------------------

    def describe_shard(self, shard: Shard, *, as_open: bool = False) -> dict[str, Any]:
        """Return the service's description of a shard (`Shard` of the API)."""
        numbers = {"StartingSequenceNumber": str(shard.starting_number)}
        if shard.closed_ms is not None and not as_open:
            numbers["EndingSequenceNumber"] = str(shard.ending_number)
        description: dict[str, Any] = {"ShardId": shard.id}
        if shard.parents:
            description["ParentShardId"] = shard.parents[0]
        if len(shard.parents) > 1:
            description["AdjacentParentShardId"] = shard.parents[1]
        description["HashKeyRange"] = {
            "StartingHashKey": str(shard.hash_start),
            "EndingHashKey": str(shard.hash_end),
        }
        description["SequenceNumberRange"] = numbers
        return description

    def describe_children(self, shard: Shard) -> list[dict[str, Any]]:
        """Return the service's `ChildShards` of a shard."""
        return [
            {
                "ShardId": child.id,
                "ParentShards": list(child.parents),
                "HashKeyRange": {
                    "StartingHashKey": str(child.hash_start),
                    "EndingHashKey": str(child.hash_end),
                },
            }
            for child in (self.shards[i] for i in shard.children if i in self.shards)
        ]

    def earlier_view(self) -> list[dict[str, Any]]:
        """Describe the shards as they were before the last change of topology (for a stale answer)."""
        count, open_then = self._earlier_topology
        return [
            self.describe_shard(shard, as_open=shard.index in open_then)
            for shard in self.shards.values()
            if shard.index < count
        ]


def uniform_bounds(count: int) -> list[int]:
    """Cut the hash-key space evenly: `count + 1` bounds, the last one exclusive (2^128)."""
    width = (HASH_KEY_MAX + 1) // count
    return [width * i for i in range(count)] + [HASH_KEY_MAX + 1]
