"""Generate streams with a history, for properties that hold in any history."""

from __future__ import annotations

from itertools import pairwise

from msgspec.structs import replace

from penstock.core.hash_key import HASH_KEY_MAX, HashRange
from penstock.core.shard import Shard


def live_stream(chance, steps):
    """Split and merge at random; give every shard that ever was, oldest first."""
    sequence = 1
    shards = {}

    def begin(span, parents=()):
        nonlocal sequence
        sequence += chance.randint(1, 9)
        shard_id = f"shard-{len(shards)}"
        shards[shard_id] = Shard(shard_id, span, parents, str(sequence))
        return shard_id

    def end(shard_id):
        nonlocal sequence
        sequence += 1
        shards[shard_id] = replace(shards[shard_id], ending_sequence_number=str(sequence))

    count = chance.randint(1, 4)
    cuts = [0, *sorted({chance.randint(1, HASH_KEY_MAX) for _ in range(count - 1)}), HASH_KEY_MAX + 1]
    in_order = [begin(HashRange(low, high - 1)) for low, high in pairwise(cuts)]
    for _ in range(steps):
        place = chance.randrange(len(in_order))
        span = shards[in_order[place]].hash_range
        if len(in_order) > 1 and place + 1 < len(in_order) and chance.random() < 0.5:
            pair = in_order[place : place + 2]
            for parent in pair:
                end(parent)
            whole = HashRange(span.start, shards[pair[1]].hash_range.end)
            in_order[place : place + 2] = [begin(whole, tuple(chance.sample(pair, 2)))]
        elif span.start < span.end:
            end(in_order[place])
            middle = chance.randint(span.start, span.end - 1)
            parent = (in_order[place],)
            halves = (HashRange(span.start, middle), HashRange(middle + 1, span.end))
            in_order[place : place + 1] = [begin(half, parent) for half in halves]
    return list(shards.values())
