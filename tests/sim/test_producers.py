"""Producers in the simulator: their records are stored, in order, and rarely twice, whatever the service answers."""

import pytest

from penstock_sim.events.processes import CallMade, MessageLogged, ProcessExited
from penstock_sim.events.producers import (
    RecordAdded,
    RecordsAcknowledged,
    RecordsGivenUp,
    RecordsMisrouted,
    RecordsStored,
    RecordsUnanswered,
)
from penstock_sim.events.reading import DeliveredTexts
from penstock_sim.events.streams import ShardCreated
from penstock_sim.producer_checkers import AcknowledgedIsThere, ArrivesInOrder, KeysInOrder, RarelyTwice
from sim.judging import judge, verdict

# --- the checkers -----------------------------------------------------------------------------------------------

ADDED = [RecordAdded("p#1:1", "k"), RecordAdded("p#1:2", "k")]


def stored(number, *texts, is_read=True):
    return RecordsStored("s", number, texts, is_read)


def acknowledged(number, *texts):
    return RecordsAcknowledged("p#1", "s", number, texts)


def handed(*texts, key="k"):
    return DeliveredTexts("w#1", "s", 1, tuple((text, key) for text in texts))


ONE_STORED, TWO_STORED = stored(5, "p#1:1"), stored(6, "p#1:2")
BOTH = [ONE_STORED, TWO_STORED, acknowledged(5, "p#1:1"), acknowledged(6, "p#1:2")]


@pytest.mark.parametrize(
    ("kind", "lines", "is_broken"),
    [
        (AcknowledgedIsThere, BOTH, False),
        (AcknowledgedIsThere, BOTH[:3], True),
        (AcknowledgedIsThere, [*BOTH[:3], ProcessExited("p#1", "crashed")], False),
        (AcknowledgedIsThere, [*BOTH[:3], ProcessExited("p#1", "stopped")], True),
        (AcknowledgedIsThere, [*BOTH, ProcessExited("p#1", "stopped")], False),
        (AcknowledgedIsThere, [acknowledged(5, "p#1:1")], True),
        (AcknowledgedIsThere, [stored(5, "p#1:1", is_read=False), acknowledged(5, "p#1:1")], True),
        (AcknowledgedIsThere, [ONE_STORED, acknowledged(5, "p#1:2")], True),
        (AcknowledgedIsThere, [*BOTH, acknowledged(6, "p#1:2")], True),
        (AcknowledgedIsThere, [*BOTH, RecordsGivenUp("p#1", ("p#1:2",), "refused")], True),
        (AcknowledgedIsThere, [*BOTH, MessageLogged("p#1", "CRITICAL", "crashed", "KeyError()")], True),
        (KeysInOrder, [ONE_STORED, TWO_STORED], False),
        (KeysInOrder, [stored(5, "p#1:1", "p#1:2")], False),
        (KeysInOrder, [TWO_STORED], True),
        (KeysInOrder, [stored(4, "p#1:1", is_read=False), TWO_STORED], True),
        (KeysInOrder, [ONE_STORED, TWO_STORED, stored(7, "p#1:1")], False),
        (RarelyTwice, [ONE_STORED, TWO_STORED], False),
        (RarelyTwice, [ONE_STORED, stored(7, "p#1:1")], True),
        (RarelyTwice, [stored(5, "p#1:1", "p#1:2", "p#1:1")], True),
        (RarelyTwice, [RecordsUnanswered(("p#1:1",)), ONE_STORED, stored(7, "p#1:1")], False),
        (
            RarelyTwice,
            [RecordsUnanswered(("p#1:1",)), ONE_STORED, stored(7, "p#1:1"), stored(8, "p#1:1")],
            True,
        ),
        (RarelyTwice, [RecordsMisrouted(("p#1:1",), True), ONE_STORED, stored(7, "p#1:1")], False),
        (RarelyTwice, [stored(5, "p#1:1", is_read=False), stored(7, "p#1:1")], False),
        (ArrivesInOrder, [ONE_STORED, TWO_STORED, handed("p#1:1"), handed("p#1:2")], False),
        (ArrivesInOrder, [ONE_STORED, handed("p#1:1"), handed("p#1:1")], False),
        (ArrivesInOrder, [ONE_STORED, TWO_STORED, handed("p#1:1", "p#1:2")], False),
        (ArrivesInOrder, [ONE_STORED, TWO_STORED, handed("p#1:2")], True),
        (ArrivesInOrder, [ONE_STORED, TWO_STORED, handed("p#1:1")], True),
        (ArrivesInOrder, [stored(5, "p#1:1", is_read=False)], False),
        (ArrivesInOrder, [stored(5, "p#1:1", is_read=False), handed("p#1:1")], True),
        (ArrivesInOrder, [ONE_STORED, handed("p#1:1", key="another")], True),
        (ArrivesInOrder, [ONE_STORED, handed("p#1:1"), handed("p#1:3")], True),
    ],
)
def test_a_checker_finds_what_it_is_for(kind, lines, is_broken):
    assert (verdict(kind, [*ADDED, *lines]) is not None) is is_broken


SPLIT = [1, ShardCreated("s", ()), 1, ShardCreated("left", ("s",)), 1, ShardCreated("right", ("s",))]
SIX_MERGES = [1, *(ShardCreated(f"s{number}", (f"s{number - 1}",) if number else ()) for number in range(7))]


@pytest.mark.parametrize(
    ("lines", "producer", "expected"),
    [
        ([*SPLIT, *[CallMade("p#1", "list shards", "")] * 15], "p", None),
        ([*SPLIT, *[CallMade("p#1", "list shards", "")] * 16], "p", "L5"),
        ([CallMade("p#1", "list shards", "")] * 15, "p", "L5"),
        ([*SPLIT, *[CallMade("p#1", "list shards", "")] * 15], "another", "L5"),
        ([*SIX_MERGES, *[CallMade("p#1", "list shards", "")] * 15], "another", None),
        ([*SIX_MERGES, *[CallMade("p#1", "list shards", "")] * 16], "another", "L5"),
    ],
)
def test_a_producer_may_list_once_more_for_each_reshard_and_others_beyond_five(lines, producer, expected):
    assert judge(lines, producers=frozenset({producer})) == expected
