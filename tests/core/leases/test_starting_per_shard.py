"""Starting positions shard by shard: in any history nothing is left out, and nothing that is done is read again."""

import random

from hypothesis import given
from hypothesis import strategies as st

from penstock.core.leases.required_leases import plan_named_leases
from penstock.core.position import LATEST, SHARD_END, TRIM_HORIZON, at_record
from penstock.core.shard_graph import ShardGraph
from penstock.core.starting import StartingPosition
from stream_history import live_stream


def starts(seed, steps):
    """A stream with a past, and a saved position that names some of its shards."""
    chance = random.Random(seed)
    graph = ShardGraph(live_stream(chance, steps))
    named = {}
    for shard in graph:
        if chance.random() < 0.2:
            is_ended = not shard.is_open and chance.random() < 0.3
            named[shard.shard_id] = SHARD_END if is_ended else at_record(shard.starting_sequence_number)
    return graph, named


STARTS = st.builds(starts, st.integers(0), st.integers(0, 25))


def done_by(graph, named):
    """Return the ancestors of named shards, without named ones and descendants of a named shard that is not at its end."""
    before = graph.ancestors(named)
    after = graph.descendants(key for key, place in named.items() if place != SHARD_END)
    return before - named.keys() - after


def read_in_the_end(graph, named, leases):
    """Return every shard that has a lease, or gets one as a child at a parent's end."""
    found = {lease.key for lease in leases}
    done = done_by(graph, named)
    for shard in graph:  # parents before their children
        if shard.shard_id not in done and found & set(shard.parents):
            found.add(shard.shard_id)
    return found


@given(STARTS)
def test_from_trim_horizon_only_ancestors_of_named_shards_are_left_out(start):
    graph, named = start
    leases = plan_named_leases(graph, StartingPosition(TRIM_HORIZON, named), 5)
    found = read_in_the_end(graph, named, leases)
    assert {shard.shard_id for shard in graph} - found == done_by(graph, named)


@given(STARTS)
def test_from_the_tip_on_every_open_shard_is_read_and_waits_for_nobody_who_is_not(start):
    graph, named = start
    leases = plan_named_leases(graph, StartingPosition(LATEST, named), 5)
    found = read_in_the_end(graph, named, leases)
    assert {shard.shard_id for shard in graph.open_shards} <= found
    # No merged shard waits for an unread parent.
    begun = {lease.key for lease in leases}
    waited_for = {parent.shard_id for key in found - begun for parent in graph.parents(key)}
    assert waited_for <= found | done_by(graph, named)


@given(STARTS)
def test_each_named_shard_has_a_lease_and_the_others_start_at_the_default(start):
    graph, named = start
    leases = {
        lease.key: lease for lease in plan_named_leases(graph, StartingPosition(TRIM_HORIZON, named), 5)
    }
    assert {key: leases[key].checkpoint for key in named} == named
    others = leases.keys() - named.keys()
    assert {leases[key].checkpoint for key in others} <= {TRIM_HORIZON}
    done = done_by(graph, named)
    for key in others:  # no parent's end would have created them
        parents = {parent.shard_id for parent in graph.parents(key)} - done
        assert not parents & leases.keys() or {named.get(parent) for parent in parents} == {SHARD_END}
