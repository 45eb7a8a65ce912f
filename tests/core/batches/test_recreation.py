"""Leases that are made again from an offset: which, where, and what of the last batch is known of them."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from penstock.core.batches.claims import Execution, ReadTo, plan_read, resolve_start
from penstock.core.batches.offsets import SharedLimits, StreamOffset
from penstock.core.batches.query_shards import ENDED_MAX, list_ended_shards
from penstock.core.batches.recreation import is_table_complete, plan_lost_leases, plan_recreation
from penstock.core.hash_key import FULL_RANGE, HASH_KEY_MAX, HashRange
from penstock.core.leases.lease import BatchClaim, Lease, PastClaim, TipMark
from penstock.core.leases.lease_rules import apply_write
from penstock.core.leases.lease_writes import Create, Reset
from penstock.core.position import SHARD_END, TRIM_HORIZON, at_record
from penstock.core.shard import Shard
from penstock.core.stream_identity import StreamIdentity

ME, OTHER = "me", "other"
STREAM = StreamIdentity("arn", 77)
AT5, AT7, AT9, AT12 = (at_record(number) for number in ("5", "7", "9", "12"))
MIDDLE = HASH_KEY_MAX // 2
LEFT, RIGHT = HashRange(0, MIDDLE), HashRange(MIDDLE + 1, HASH_KEY_MAX)
QUARTER = MIDDLE // 2
RIGHT_1, RIGHT_2 = HashRange(MIDDLE + 1, MIDDLE + QUARTER), HashRange(MIDDLE + QUARTER + 1, HASH_KEY_MAX)
SHARDS = {
    shard.shard_id: shard
    for shard in (
        Shard("a", LEFT, (), "1"),
        Shard("p", RIGHT, (), "1", "50"),
        Shard("c1", RIGHT_1, ("p",), "51"),
        Shard("c2", RIGHT_2, ("p",), "51"),
    )
}
"""Shard p was split into c1 and c2."""
MERGED = {
    shard.shard_id: shard
    for shard in (
        Shard("a", LEFT, (), "1", "50"),
        Shard("p", RIGHT, (), "1", "50"),
        Shard("m", FULL_RANGE, ("a", "p"), "51"),
    )
}
MERGED_TWICE = {
    **{key: MERGED[key] for key in ("a", "m")},
    "g1": Shard("g1", RIGHT_1, (), "1", "40"),
    "g2": Shard("g2", RIGHT_2, (), "1", "40"),
    "p": Shard("p", RIGHT, ("g1", "g2"), "41", "50"),
}
"""Shards g1 and g2 were merged into p, and p with a."""


def offset(batch=3, *, read=("a",), **shards):
    return StreamOffset(
        batch=batch, worker=ME, shards=shards, limit=SharedLimits(None, None, tuple(read)), runs=((1, "r"),)
    )


def row(key, checkpoint=AT5, shards=SHARDS, **more):
    shard = shards[key]
    return Lease(
        key,
        checkpoint=checkpoint,
        parents=frozenset(shard.parents),
        hash_range=shard.hash_range,
        stream=STREAM,
        **more,
    )


def rows(*leases):
    return {lease.key: lease for lease in leases}


def claim(start=AT5, end=AT9, batch=3, by="r", worker=ME):
    return BatchClaim(worker, batch, "life", start, end, b"note", 7, planned_by=by)


def after(table, plan):
    """The table as the plan leaves it, in its order; no write may be refused."""
    found = dict(table)
    for write in plan.writes:
        found[write.key] = apply_write(found.get(write.key), write).lease
    return found


def places(table, known, shards=SHARDS, before=None):
    plan = plan_recreation(table, known, shards, STREAM, before)
    return {key: lease.checkpoint for key, lease in after(table, plan).items()}


ENDED = {"a": AT5, "p": SHARD_END}
WHOLE = {"a": AT5, "c1": TRIM_HORIZON, "c2": TRIM_HORIZON, "p": SHARD_END}


@pytest.mark.parametrize(
    ("says", "table", "known", "expected"),
    [
        ("nothing is left", [], ENDED, WHOLE),
        ("the children are in the offset", [], {"a": AT5, "c1": AT7, "c2": TRIM_HORIZON}, WHOLE | {"c1": AT7}),
        ("both children have begun", [], {"a": AT5, "c1": AT7, "c2": AT9}, {"a": AT5, "c1": AT7, "c2": AT9}),
        ("a child is another worker's", [], {"a": AT5, "c1": AT7}, WHOLE | {"c1": AT7}),
        ("the children's leases are gone", [row("a"), row("p", SHARD_END)], ENDED, WHOLE),
        ("their parent's was cleared away", [row("a")], ENDED, WHOLE),
        ("one child's lease is gone", [row("a"), row("c1", AT7)], ENDED, WHOLE | {"c1": AT7}),
        ("the parent is under way", [], {"a": AT5, "p": AT7}, {"a": AT5, "p": AT7}),
        ("the parent is not known", [], {"a": AT5}, {"a": AT5}),
        ("the table is older", [row("a"), row("p", AT7)], ENDED, WHOLE),
        ("the table is older than the split", [row("a"), row("p", AT7)], {"a": AT9, "c1": AT7, "c2": AT9},
         {"a": AT5, "p": SHARD_END, "c1": AT7, "c2": AT9}),
    ],
)  # fmt: skip
def test_leases_are_made_again_where_the_offset_and_the_lineage_say(says, table, known, expected):
    del says
    assert places(rows(*table), offset(**known)) == expected


def test_a_table_that_is_whole_is_left_alone():
    known = offset(**ENDED)
    table = rows(row("a"), row("c1"), row("c2", TRIM_HORIZON))
    assert is_table_complete(table, known)
    assert plan_recreation(table, known, SHARDS, STREAM).writes == ()
    assert not is_table_complete(rows(row("a")), known)
    assert not is_table_complete(rows(row("a"), row("p", AT7)), known)
    assert not is_table_complete({}, known)


def test_an_ended_parent_gets_its_lease_again_when_its_child_waits_for_it():
    known = offset(a=SHARD_END, p=SHARD_END)
    table = rows(row("p", SHARD_END, MERGED), row("m", TRIM_HORIZON, MERGED))
    expected = {"a": SHARD_END, "p": SHARD_END, "m": TRIM_HORIZON}
    assert not is_table_complete(table, known)
    assert places(table, known, MERGED) == expected
    running = plan_lost_leases(table, known, MERGED, STREAM)
    assert {key: lease.checkpoint for key, lease in after(table, running).items()} == expected


def test_a_parent_without_a_lease_is_not_ended_unless_the_offset_knows_its_end():
    known = offset(p=SHARD_END)
    table = rows(row("p", SHARD_END, MERGED), row("m", TRIM_HORIZON, MERGED))
    assert plan_recreation(table, known, MERGED, STREAM).writes == ()
    under_way = rows(row("p", SHARD_END, MERGED), row("m", AT9, MERGED))
    assert is_table_complete(under_way, offset(a=SHARD_END, p=SHARD_END))


def test_a_lease_that_another_worker_has_is_not_ended_by_an_offset():
    table = rows(row("a"), row("p", AT7, owner=OTHER))
    assert is_table_complete(table, offset(**ENDED))
    assert places(table, offset(**ENDED)) == {"a": AT5, "p": AT7}


def test_a_lease_of_an_ended_shard_stays_while_a_listing_lacks_a_child():
    lagging = {key: shard for key, shard in SHARDS.items() if key != "c2"}
    expected = {"a": AT5, "p": AT7, "c1": TRIM_HORIZON}
    assert places(rows(row("a"), row("p", AT7)), offset(**ENDED), lagging) == expected


def test_a_parent_that_has_left_the_stream_counts_as_read_to_its_end():
    listed = {key: shard for key, shard in SHARDS.items() if key != "p"}
    assert places({}, offset(**ENDED), listed) == WHOLE


def test_a_merged_shard_gets_its_lease_when_one_of_its_parents_is_read():
    known = offset(a=SHARD_END, p=AT7, read=("p",))
    assert places({}, known, MERGED) == {"a": SHARD_END, "p": AT7, "m": TRIM_HORIZON}
    both = offset(a=SHARD_END, p=SHARD_END, read=("p",))
    assert places({}, both, MERGED) == {"a": SHARD_END, "p": SHARD_END, "m": TRIM_HORIZON}


def test_a_merged_shard_gets_no_lease_while_nothing_is_known_of_its_other_parent():
    """The lease of the merged shard would count as proof that everything before it is read."""
    expected = {"a": SHARD_END}
    assert places({}, offset(a=SHARD_END, read=("a",)), MERGED) == expected
    listed = {key: shard for key, shard in MERGED.items() if key != "p"}
    assert places({}, offset(a=SHARD_END, read=("a",)), listed) == expected | {"m": TRIM_HORIZON}


def test_the_older_shards_of_another_query_come_back_after_the_end_of_a_shard_that_they_merge_with():
    """Both queries lose their leases: one has read shard a to its end, the other one is in the middle of g1 and g2."""
    first = plan_recreation({}, offset(a=SHARD_END, read=("a",)), MERGED_TWICE, STREAM)
    theirs = replace(offset(g1=AT7, g2=AT5, read=("g1",)), worker=OTHER)
    table = after({}, first)
    table = after(table, plan_lost_leases(table, theirs, MERGED_TWICE, STREAM))
    assert {key: lease.checkpoint for key, lease in table.items()} == {"a": SHARD_END, "g1": AT7, "g2": AT5}


def test_an_older_lease_of_an_ended_shard_stays_while_nothing_is_known_of_the_other_parent():
    """The query ends it by its offset, as soon as the merged shard can have a lease."""
    assert places(rows(row("a", AT7, MERGED)), offset(a=SHARD_END, read=("a",)), MERGED) == {"a": AT7}


def test_while_the_query_runs_only_what_the_offset_knows_comes_back():
    plan = plan_lost_leases({}, offset(**ENDED), SHARDS, STREAM)
    assert [write.key for write in plan.writes] == ["a"]
    plan = plan_lost_leases({}, offset(a=AT5, p=AT7), {key: SHARDS[key] for key in ("a", "c1", "c2")}, STREAM)
    assert [write.key for write in plan.writes] == ["a", "c1", "c2"]
    assert plan.vanished_shards == {"p": AT7}


def test_when_nothing_was_left_to_read_is_noted_on_leases_that_are_made_again():
    known = replace(offset(a=AT5, p=AT7), tips={"a": 900})
    made = after({}, plan_recreation({}, known, SHARDS, STREAM))
    assert {key: lease.mark for key, lease in made.items()} == {"a": TipMark(AT5, 900), "p": None}
    made = after({}, plan_lost_leases({}, known, SHARDS, STREAM, {"p": TipMark(AT7)}))
    assert made["p"].mark == TipMark(AT7, None)


def test_parents_are_made_before_their_children_and_set_to_their_end_behind_them():
    plan = plan_recreation({}, offset(**ENDED), SHARDS, STREAM)
    assert [write.key for write in plan.writes] == ["a", "p", "c1", "c2"]
    plan = plan_recreation(rows(row("a"), row("p", AT7)), offset(**ENDED), SHARDS, STREAM)
    assert [write.key for write in plan.writes] == ["c1", "c2", "p"]


def test_a_batch_whose_end_is_lost_holds_nothing_and_the_next_one_begins_where_it_did():
    known = offset(a=AT5, c1=AT7, c2=TRIM_HORIZON)
    plan = plan_recreation({}, known, SHARDS, STREAM, now_ms=900)
    table = after({}, plan)
    assert dict(plan.repeated_shards) == {"a": AT5}
    assert [key for key, lease in table.items() if lease.claims] == ["a"]
    assert table["a"].claims[0].made_ms == 900
    taken = replace(table["a"], owner=ME, counter=1)
    assert plan_read(taken, Execution(ME, 3, "life", AT5, planned_by="r")) == ReadTo(AT5)
    assert resolve_start(taken, ME, known.known_batches, AT5).position == AT5


# --- the table before -------------------------------------------------------------------------------------------------


def test_the_end_of_the_last_batch_is_carried_over_with_its_note():
    theirs = claim(worker=OTHER)
    mark = TipMark(AT5, 900)
    before = rows(row("a", counter=9, owner=ME, claims=(claim(), theirs), mark=mark), row("p", SHARD_END))
    plan = plan_recreation({}, offset(**ENDED), SHARDS, STREAM, before)
    assert after({}, plan)["a"] == row("a", counter=9, claims=(claim(), theirs), mark=mark)
    assert (plan.continued_shards, dict(plan.repeated_shards)) == (("a",), {})


def test_an_end_that_a_later_claim_of_a_copy_still_knows_is_carried_over():
    later = replace(claim(AT9, AT12, batch=4, by="x"), earlier=(PastClaim(3, AT5, AT9, "r"),))
    plan = plan_recreation({}, offset(**ENDED), SHARDS, STREAM, rows(row("a", claims=(later,))))
    assert after({}, plan)["a"].claims == (replace(claim(), run="life", note=b""),)


FORKED = claim(AT9, AT12, batch=4, by="x")
"""Of a query that has gone on from a copy of the checkpoint location, or that this one is a copy of."""


@pytest.mark.parametrize(
    "before",
    [
        rows(row("a", AT12, claims=(FORKED,)), row("p", SHARD_END), row("c1", AT7)),
        rows(replace(row("a", claims=(claim(),)), stream=StreamIdentity("arn", 1))),
        {},
    ],
    ids=["of a fork", "of another stream", "nothing"],
)
def test_a_table_that_others_have_gone_on_with_moves_no_shard_of_the_query(before):
    plan = plan_recreation({}, offset(**ENDED), SHARDS, STREAM, before)
    assert {key: lease.checkpoint for key, lease in after({}, plan).items()} == WHOLE
    assert (plan.continued_shards, plan.repeated_shards) == ((), {"a": AT5})


def test_what_another_worker_has_read_on_under_the_earlier_name_stays_done():
    plan = plan_recreation({}, offset(a=AT5), SHARDS, STREAM, rows(row("a", AT12, owner=OTHER)))
    assert after({}, plan)["a"] == row("a", AT12, owner=OTHER)
    assert (plan.continued_shards, plan.repeated_shards) == (("a",), {})


def test_a_shard_that_the_last_batch_did_not_read_is_not_repeated():
    plan = plan_recreation({}, offset(read=("a",), a=AT5, p=AT7), SHARDS, STREAM, {})
    assert plan.repeated_shards == {"a": AT5}
    assert plan_recreation({}, offset(read=("p",), a=AT5, p=AT7), SHARDS, STREAM).repeated_shards == {
        "p": AT7
    }


def test_a_lease_that_the_query_had_earlier_gets_the_end_of_the_last_batch():
    table = rows(row("a", at_record("2"), counter=4, claims=(claim(at_record("1"), at_record("2"), 1),)))
    plan = plan_recreation(table, offset(a=AT5), SHARDS, STREAM, rows(row("a", claims=(claim(),))))
    assert plan.writes == (Reset("a", 4, AT5, claim_worker=ME, claim=claim()),)
    assert plan.continued_shards == ("a",)


@pytest.mark.parametrize(
    "table",
    [row("a", AT12), row("a", owner=OTHER), row("a", SHARD_END), row("a", claims=(claim(),))],
    ids=["further on", "another worker's", "ended", "known already"],
)
def test_no_other_lease_is_changed_by_the_table_before(table):
    before = rows(row("a", claims=(claim(),)))
    assert plan_recreation(rows(table), offset(a=AT5), SHARDS, STREAM, before).writes == ()


def test_the_leases_of_all_who_shared_the_stream_are_taken_over():
    theirs = [
        row("p", SHARD_END, children=frozenset({"c1", "c2"})),
        row("c1", AT7, owner=OTHER, counter=8, claims=(claim(worker=OTHER),)),
        row("c2", AT9, counter=2),
    ]
    before = rows(row("a", claims=(claim(),)), *theirs)
    for known in (offset(a=AT5), offset(**ENDED), offset(a=AT5, p=AT7)):
        assert after({}, plan_recreation({}, known, SHARDS, STREAM, before)) == before
    table = rows(row("a"), row("p", AT7))
    assert places(table, offset(**ENDED), before=before) == WHOLE | {"c1": AT7, "c2": AT9}


def test_what_comes_before_a_lease_of_the_new_table_is_not_taken_over():
    table = rows(row("a"), row("c1", AT7), row("c2", AT9))
    assert plan_recreation(table, offset(a=AT5), SHARDS, STREAM, rows(row("p", AT5))).writes == ()


# --- ended shards in the offset ---------------------------------------------------------------------------------------


def test_an_ended_shard_is_in_the_offset_until_one_of_its_children_is():
    ended = {"p": frozenset[str]()}
    assert list_ended_shards({}, ended, {"a": frozenset()}) == {"p": SHARD_END}
    assert list_ended_shards({"p": SHARD_END}, {}, {"a": frozenset()}) == {"p": SHARD_END}
    assert list_ended_shards({"p": SHARD_END}, {}, {"c1": frozenset({"p"})}) == {}


def test_an_ended_shard_stays_in_the_offset_over_a_restart():
    assert list_ended_shards({"a": AT5, "p": SHARD_END}, {}, {"a": frozenset()}) == {"p": SHARD_END}
    assert list_ended_shards({"p": SHARD_END}, {}, {"c2": frozenset({"p"})}) == {}


def test_an_ended_child_stands_for_its_parent():
    assert list_ended_shards({}, {"p": frozenset(), "c1": frozenset({"p"})}, {}) == {"c1": SHARD_END}
    assert list_ended_shards({"p": SHARD_END}, {"c1": frozenset({"p"})}, {}) == {"c1": SHARD_END}


def test_a_shard_that_is_read_again_is_not_ended():
    assert list_ended_shards({"p": SHARD_END}, {}, {"p": frozenset()}) == {}


def test_an_offset_keeps_a_bounded_number_of_ended_shards():
    ended = {f"s{number:06d}": frozenset[str]() for number in range(ENDED_MAX + 5)}
    kept = list_ended_shards({}, ended, {})
    assert (len(kept), min(kept)) == (ENDED_MAX, "s000005")


def test_nothing_is_written_twice():
    known = offset(**ENDED)
    table = after({}, plan_recreation({}, known, SHARDS, STREAM))
    assert all(isinstance(write, Create) for write in plan_recreation({}, known, SHARDS, STREAM).writes)
    assert plan_recreation(table, known, SHARDS, STREAM).writes == ()
