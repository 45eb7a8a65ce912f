"""Planted bugs of the sink."""

from __future__ import annotations

import dataclasses
from contextlib import suppress

from msgspec.structs import replace

from penstock.core.writing.batcher import Batcher
from penstock.core.writing.packing import PendingRecord
from penstock.core.writing.shard_queue import ShardQueue
from penstock.errors import DeliveryFailed, RecordError
from penstock.producer import task_writer
from penstock.producer.task_writer import TaskWriter
from penstock.spark.sink import report as sink_metrics
from penstock.spark.sink.dead_letters import DeadLetters
from penstock.spark.sink.task import SinkTask
from sim.mutants import Mutants
from sim.producer_mutants import (
    forgets_refused_ones,
    lies_anywhere,
    puts_refused_ones_behind,
    takes_no_answer_for_success,
)

SINK_MUTANTS = Mutants()
planted = SINK_MUTANTS.planted

WRITE = SinkTask._write
SEND = SinkTask._write_row
ADD = sink_metrics._add_totals
WRITE_FILE = DeadLetters._write_file
ON_FAILED_CALL = Batcher.on_failed_call
ON_ANSWERS = Batcher.on_answers
NOTE_TAKEN = ShardQueue.on_taken
SETTINGS_OF = task_writer.batcher_settings_of


@planted(
    "a task does not wait for its last rows", "sinks that flush at their leisure", 1, TaskWriter, "finish"
)
def waits_for_nothing(self):
    return self.report


@planted("a task swallows a failure to write", "sinks that log and go on", 10, SinkTask, "_write")
def swallows_failures(self, rows, memory, dead):
    try:
        return WRITE(self, rows, memory, dead)
    except DeliveryFailed:
        return WRITE(self, iter(()), memory, dead)


@planted(
    "a repeated commit counts twice", "metrics that know no batch numbers", 0, sink_metrics, "_add_totals"
)
def counts_every_commit(before, batch):
    added = ADD(before, dataclasses.replace(batch, batch=before.batch + 1))
    return dataclasses.replace(added, batch=batch.batch)


@planted("a bad row is dropped", "sinks that skip what they cannot write", 1, DeadLetters, "add")
def drops_bad_rows(self, stream, row_number, row, reason):
    self.count += 1


@planted(
    "dead letters are lost with their folder",
    "dead letters as an afterthought",
    86,
    DeadLetters,
    "_write_file",
)
def forgets_letters(self, lines):
    with suppress(Exception):
        WRITE_FILE(self, lines)


@planted("copies are not told", "writers that count what they sent once", 1, Batcher, "on_failed_call")
def hides_copies(self, request, failure, why, now_s, u):
    result = ON_FAILED_CALL(self, request, failure, why, now_s, u)
    result.possible_duplicate_count = 0
    return result


@planted("a sink repeats a whole request", "writers that retry by the call", 1, Batcher, "on_answers")
def sends_all_again(self, request, answers, now_s, u):
    if any(answer.error_code for answer in answers):
        answers = [type(answers[0])(error_code="InternalFailure", error_message="") for _ in answers]
    return ON_ANSWERS(self, request, answers, now_s, u)


@planted("the deadline runs before the first try", "Penstock before 0.2", 3, ShardQueue, "on_taken")
def counts_from_its_coming(self, now_s):
    """The deadline runs while a record waits for others, before anything was sent."""
    if self.tried_s is None:
        self.tried_s = now_s - 20.0
    NOTE_TAKEN(self, now_s)


@planted(
    "a silent shard holds a task for ever",
    "writers whose retries have no end",
    559,
    task_writer,
    "batcher_settings_of",
)
def never_gives_up(options, **more):
    return replace(SETTINGS_OF(options, **more), no_progress_deadline_s=1e9)


@planted(
    "no row is looked at before it is sent",
    "writers that leave the limits to the service",
    1,
    task_writer,
    "check_record",
)
def checks_nothing(*_args):
    """Whatever the rows hold is sent."""


@planted("an error names no row", "several: the row that nobody finds", 1, SinkTask, "_write_row")
@staticmethod
def names_no_row(writer, stream, row_number, row):
    try:
        SEND(writer, stream, row_number, row)
    except RecordError as error:
        raise RecordError("a row is too large, or has a bad key") from error


planted("a sink takes a partial failure for a success", "Hazelcast 24774", 0, Batcher, "_put_back")(
    forgets_refused_ones
)
planted(
    "a sink takes no answer for a success",
    "several: two outcomes instead of three",
    1,
    Batcher,
    "on_failed_call",
)(takes_no_answer_for_success)
planted("a sink puts refused rows behind later ones", "KPL 23, Benthos 1641", 1, ShardQueue, "put_back")(
    puts_refused_ones_behind
)
planted(
    "a sink's aggregate may lie anywhere",
    "producers that keep an old shard map",
    195,
    PendingRecord,
    "lies_in",
)(lies_anywhere)
