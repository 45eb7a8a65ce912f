"""Workers of a queue in the simulator: every record ends, handles end, and nothing is delivered again without a cause."""

from collections import Counter

import pytest

from penstock.queues.queue_options import QueueConsumerOptions
from penstock_sim.events.processes import MessageLogged, ProcessExited, ProcessPaused, ProcessStopping
from penstock_sim.events.queues import (
    AcknowledgementForgotten,
    HandleDisturbed,
    QueueAnswerArrived,
    QueueCallAnswered,
    QueueCallSent,
    QueueHandlerBegan,
    QueueHandlerEnded,
    QueueRecordAcknowledged,
    QueueRecordDied,
    QueueRecordExpired,
    QueueRecordPut,
    QueueRecordReceived,
    VisibilitySet,
)
from penstock_sim.plan import QueuePlan
from penstock_sim.queue_checkers import (
    DeliveredOnce,
    EachRecordEnds,
    HandlesEnd,
    OneHandlerAtATime,
    RedeliveriesHaveCauses,
)
from penstock_sim.queue_presets import draw_queue_scenario
from penstock_sim.run import run_scenario
from sim.judging import verdict


def test_a_world_without_faults_delivers_each_record_once():
    scenario = draw_queue_scenario(4)
    assert scenario.queues.is_calm
    assert not scenario.faults.crashes_per_min
    result = run_scenario(scenario)
    counts = Counter(type(entry.event) for entry in result.history)
    assert counts[QueueRecordAcknowledged] == counts[QueueRecordPut] > 20


# --- the checkers -----------------------------------------------------------------------------------------------

PUT, TWO_PARTS = QueueRecordPut("r1", 1), QueueRecordPut("r1", 2)
RECEIVED, AGAIN = QueueRecordReceived("q#1", "r1", "h1", 1), QueueRecordReceived("p#1", "r1", "h2", 2)
ARRIVED = QueueAnswerArrived(("h1",))
BEGAN = QueueHandlerBegan("q#1", (("r1", 0),))
DONE, FAILED = (QueueHandlerEnded("q#1", done=(("r1", 0),)), QueueHandlerEnded("q#1", failed=(("r1", 0),)))
ACKNOWLEDGED = QueueRecordAcknowledged("q#1", "r1", "h1")
STOPPING, STOPPED = ProcessStopping("q#1"), ProcessExited("q#1", "stopped")


def sent(number, *seconds):
    return QueueCallSent("q#1", number, ("h1",), seconds)


def answered(number, outcome):
    return QueueCallAnswered("q#1", number, (outcome,))


@pytest.mark.parametrize(
    ("kind", "lines", "is_broken"),
    [
        (EachRecordEnds, [PUT, DONE, ACKNOWLEDGED], False),
        (EachRecordEnds, [PUT, DONE], True),
        (EachRecordEnds, [PUT, QueueRecordDied("r1")], False),
        (EachRecordEnds, [PUT, QueueRecordExpired("r1")], False),
        (EachRecordEnds, [PUT, ACKNOWLEDGED], True),
        (EachRecordEnds, [PUT, FAILED, ACKNOWLEDGED], True),
        (EachRecordEnds, [TWO_PARTS, DONE, ACKNOWLEDGED], True),
        (EachRecordEnds, [PUT, DONE, ACKNOWLEDGED, ACKNOWLEDGED], True),
        (EachRecordEnds, [PUT, DONE, ACKNOWLEDGED, AcknowledgementForgotten("r1")], True),
        (EachRecordEnds, [PUT, DONE, ACKNOWLEDGED, AcknowledgementForgotten("r1"), ACKNOWLEDGED], False),
        (EachRecordEnds, [MessageLogged("q#1", "CRITICAL", "crashed", "KeyError()")], True),
        (HandlesEnd, [RECEIVED, ARRIVED, sent(1), answered(1, "applied")], False),
        (HandlesEnd, [RECEIVED, sent(1)], True),
        (HandlesEnd, [RECEIVED, ARRIVED, sent(1), sent(2)], True),
        (HandlesEnd, [RECEIVED, ARRIVED, sent(1), answered(1, "refused"), sent(2)], False),
        (HandlesEnd, [RECEIVED, ARRIVED, sent(1), answered(1, "unknown"), sent(2)], False),
        (HandlesEnd, [RECEIVED, ARRIVED, sent(1), answered(1, "applied"), sent(2)], True),
        (HandlesEnd, [RECEIVED, ARRIVED, sent(1, 30), answered(1, "applied"), sent(2)], False),
        (HandlesEnd, [RECEIVED, ARRIVED, sent(1, 0), answered(1, "applied"), sent(2)], True),
        (HandlesEnd, [RECEIVED, ARRIVED, sent(1, 30), answered(1, "void"), sent(2)], True),
        (HandlesEnd, [RECEIVED, ARRIVED, QueueCallSent("p#1", 1, ("h1",), ())], True),
        (HandlesEnd, [QueueCallSent("q#1", 1, ("h1",) * 11, ())], True),
        (RedeliveriesHaveCauses, [RECEIVED, ARRIVED, AGAIN], True),
        (RedeliveriesHaveCauses, [RECEIVED, FAILED, AGAIN], False),
        (RedeliveriesHaveCauses, [RECEIVED, ACKNOWLEDGED, AGAIN], False),
        (RedeliveriesHaveCauses, [RECEIVED, STOPPING, AGAIN], False),
        (RedeliveriesHaveCauses, [RECEIVED, ProcessExited("q#1", "crashed"), AGAIN], False),
        (RedeliveriesHaveCauses, [RECEIVED, ProcessPaused("q#1", 40.0), AGAIN], False),
        (RedeliveriesHaveCauses, [RECEIVED, HandleDisturbed("h1", "surfaced", True), AGAIN], False),
        (RedeliveriesHaveCauses, [RECEIVED, HandleDisturbed("h1", "refused"), AGAIN], True),
        (RedeliveriesHaveCauses, [RECEIVED, BEGAN, 4_000, AGAIN], False),
        (RedeliveriesHaveCauses, [RECEIVED, 15, HandleDisturbed("h1", "refused"), AGAIN], True),
        (RedeliveriesHaveCauses, [RECEIVED, 25, HandleDisturbed("h1", "refused"), 6, AGAIN], False),
        (RedeliveriesHaveCauses, [RECEIVED, ARRIVED, STOPPING, STOPPED], True),
        (RedeliveriesHaveCauses, [RECEIVED, STOPPING, STOPPED], False),
        (RedeliveriesHaveCauses, [RECEIVED, ARRIVED, STOPPING, ACKNOWLEDGED, STOPPED], False),
        (RedeliveriesHaveCauses, [RECEIVED, ARRIVED, STOPPING, VisibilitySet("h1", 0), STOPPED], False),
        (RedeliveriesHaveCauses, [RECEIVED, ARRIVED, STOPPING, QueueRecordExpired("r1"), STOPPED], False),
        (RedeliveriesHaveCauses, [STOPPING, 60, STOPPED], True),
        (OneHandlerAtATime, [BEGAN, DONE, BEGAN], False),
        (OneHandlerAtATime, [BEGAN, BEGAN], True),
        (DeliveredOnce, [PUT, RECEIVED, BEGAN], False),
        (DeliveredOnce, [PUT, RECEIVED, AGAIN], True),
        (DeliveredOnce, [PUT, RECEIVED, STOPPING, AGAIN], False),
        (DeliveredOnce, [PUT, RECEIVED, STOPPING, BEGAN, BEGAN], True),
    ],
)
def test_a_checker_finds_what_it_is_for(kind, lines, is_broken):
    assert (verdict(kind, lines, queues=QueuePlan(options=QueueConsumerOptions())) is not None) is is_broken


def test_a_remembered_record_is_not_handled_again():
    plan = QueuePlan(options=QueueConsumerOptions(remember=10))
    assert verdict(OneHandlerAtATime, [BEGAN, DONE, BEGAN], queues=plan) == "U4"
