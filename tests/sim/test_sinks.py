"""Sinks in the simulator: a batch's rows are written, in order, and twice only with a cause, through all kills."""

import pytest
from msgspec.structs import replace

from penstock_sim.events.processes import CallMade, FaultsEnded, MessageLogged
from penstock_sim.events.producers import RecordAdded, RecordsStored, RecordsUnanswered
from penstock_sim.events.sinks import (
    BadRowAdded,
    FileWritten,
    RequestTooLarge,
    RowsRefused,
    WriteLogged,
    WritePlanned,
    WriteTaskDone,
    WriteTaskFailed,
    WriteTaskStarted,
)
from penstock_sim.sink_checkers import (
    EndsInTime,
    ErrorsName,
    LettersOnce,
    NothingLostInSilence,
    OrderOfEachAttempt,
    ReportAddsUp,
    TwiceWithCause,
)
from sim.judging import verdict

# --- the checkers -----------------------------------------------------------------------------------------------

NAME, AGAIN = "s0#1 0.0 attempt 1", "s0#2 0.0 attempt 1"
REPORT = '{"batch": 0, "dead_letters_total": %d, "total": {"stream": {"user_record_count": %d}}}'
FILE = "dead-letters-s0-batch-0-part-00000.jsonl"


def begun(name=NAME, *, keeps=False, rows=("a", "b"), deadline_s=10.0):
    texts = tuple(f"s0:0.0.{place}" for place, _ in enumerate(rows))
    return WriteTaskStarted("s0#1", "executor0#1", name, keeps, texts, deadline_s)


ROWS = ("s0:0.0.0", "s0:0.0.1")
PLANNED = [RecordAdded(ROWS[0], "key"), RecordAdded(ROWS[1], "key"), WritePlanned("s0", 0, (ROWS,)), begun()]
WITH_A_BAD_ROW = [
    RecordAdded(ROWS[0], "key"),
    BadRowAdded(ROWS[1], "too large"),
    WritePlanned("s0", 0, (ROWS,)),
    begun(keeps=True),
]


def stored(*places, name=NAME, is_read=True):
    return RecordsStored("shardId-0", 7, tuple(ROWS[place] for place in places), is_read, name)


def done(count=2, twice=0, letters=0):
    return WriteTaskDone(NAME, (("stream", count),), twice, letters)


def failed(kind, text):
    return WriteTaskFailed(NAME, kind, text)


LOGGED = WriteLogged("s0", 0, (NAME,))
UNANSWERED = RecordsUnanswered(ROWS[:1], NAME)
FILED = FileWritten("executor0#1", "letters", FILE, '{"row": 1}\n')
SILENT = "stream stream: nothing was acknowledged by shard shardId-0 for %d s; last: x. Acknowledged so far: 0 records; not acknowledged: 2"
NO_LETTERS = "option deadLetterStream=letters: the dead letters cannot be written"
CALL = CallMade("executor0#1", "sink put", NAME)


@pytest.mark.parametrize(
    ("kind", "lines", "is_broken"),
    [
        (NothingLostInSilence, [*PLANNED, stored(0, 1), done(), LOGGED], False),
        (NothingLostInSilence, [*PLANNED, stored(0), done()], True),
        (NothingLostInSilence, [*PLANNED, stored(0), stored(1, is_read=False), done()], True),
        (NothingLostInSilence, [*PLANNED, begun(AGAIN), stored(0), stored(1, name=AGAIN), done()], True),
        (NothingLostInSilence, [*PLANNED, stored(0, 1), LOGGED], True),
        (NothingLostInSilence, [*PLANNED, stored(0, 1), done()], True),
        (NothingLostInSilence, [*WITH_A_BAD_ROW, stored(0), FILED, done(), LOGGED], False),
        (NothingLostInSilence, [*WITH_A_BAD_ROW, stored(0), done(), LOGGED], True),
        (NothingLostInSilence, [*WITH_A_BAD_ROW[:3], begun(), stored(0), FILED, done()], True),
        (NothingLostInSilence, [MessageLogged("s0#1", "CRITICAL", "the driver crashed", "KeyError()")], True),
        (NothingLostInSilence, [RequestTooLarge(NAME, 501, 10)], True),
        (OrderOfEachAttempt, [*PLANNED, stored(0), stored(1), stored(0)], False),
        (OrderOfEachAttempt, [*PLANNED, stored(1)], True),
        (OrderOfEachAttempt, [*PLANNED, stored(0, is_read=False), stored(1)], True),
        (OrderOfEachAttempt, [*PLANNED, begun(AGAIN), stored(0), stored(1, name=AGAIN)], True),
        (TwiceWithCause, [*PLANNED, stored(0, 1), done()], False),
        (TwiceWithCause, [*PLANNED, stored(0), stored(0)], True),
        (TwiceWithCause, [*PLANNED, UNANSWERED, stored(0), stored(0, 1), done(twice=1)], False),
        (TwiceWithCause, [*PLANNED, UNANSWERED, stored(0), stored(0, 1), done(twice=0)], True),
        (TwiceWithCause, [*PLANNED, begun(AGAIN), stored(0), stored(0, name=AGAIN)], False),
        (TwiceWithCause, [*PLANNED, stored(0, 1), done(count=3)], True),
        (TwiceWithCause, [*WITH_A_BAD_ROW, stored(0), done(count=1, letters=1)], False),
        (TwiceWithCause, [*WITH_A_BAD_ROW, stored(0), done(count=1)], True),
        (TwiceWithCause, [*WITH_A_BAD_ROW, stored(1)], True),
        (ErrorsName, [*PLANNED, failed("NotFound", "stream stream does not exist")], False),
        (ErrorsName, [*PLANNED, failed("NotFound", "it does not exist")], True),
        (ErrorsName, [*PLANNED, failed("ServiceError", "stream stream: something is wrong")], True),
        (ErrorsName, [*PLANNED, failed("DeliveryFailed", "stream stream: throttled")], True),
        (ErrorsName, [*WITH_A_BAD_ROW, failed("DeliveryFailed", f"{NO_LETTERS}: stream letters does not exist")], False),
        (ErrorsName, [*WITH_A_BAD_ROW, failed("DeliveryFailed", f"{NO_LETTERS}: something is wrong")], True),
        (ErrorsName, [FaultsEnded(), *PLANNED, failed("NotFound", "stream stream does not exist")], False),
        (ErrorsName, [*PLANNED, failed("DeliveryFailed", SILENT % 10)], True),
        (ErrorsName, [*PLANNED, RowsRefused(NAME, "stream"), failed("DeliveryFailed", SILENT % 0)], False),
        (ErrorsName, [*PLANNED, failed("RecordError", "stream stream, row 1 of the task: it is too large")], True),
        (ErrorsName, [*WITH_A_BAD_ROW, failed("RecordError", "stream stream, row 1 of the task: x")], True),
        (ErrorsName, [*WITH_A_BAD_ROW[:3], begun(), failed("RecordError", "stream s, row 1 of the task: x")], False),
        (ErrorsName, [*WITH_A_BAD_ROW[:3], begun(), failed("RecordError", "a row is too large")], True),
        (ReportAddsUp, [*PLANNED, FileWritten("s0#1", "checkpoint of s0", "penstock-sink.json", REPORT % (0, 2))], False),
        (ReportAddsUp, [*PLANNED, FileWritten("s0#1", "checkpoint of s0", "penstock-sink.json", REPORT % (0, 4))], True),
        (LettersOnce, [*WITH_A_BAD_ROW, FILED], False),
        (LettersOnce, [*WITH_A_BAD_ROW, replace(FILED, content='{"row": 0}\n{"row": 1}\n')], True),
        (EndsInTime, [*PLANNED, *[CALL] * 12], False),
        (EndsInTime, [*PLANNED, *[CALL] * 13], True),
        (EndsInTime, [*PLANNED, *[CALL] * 12, stored(0), *[CALL] * 12], False),
        (EndsInTime, [*PLANNED, CALL, (50.0, CALL), (60.0, CALL)], True),
        (EndsInTime, [*PLANNED, CALL, (20.0, CALL), (30.0, CALL)], False),
    ],
)  # fmt: skip
def test_a_checker_finds_what_it_is_for(kind, lines, is_broken):
    assert (verdict(kind, lines) is not None) is is_broken
