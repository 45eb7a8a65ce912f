"""A handler run over a recording, shard by shard, with a verdict for each record."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Literal, TypeAlias, Unpack

from penstock.consumer.consumer import Consumer
from penstock.consumer.consumer_options import ConsumerOptions
from penstock.consumer.processor import DeadLetterHandler, Handler
from penstock.core.keyword_options import merge_options
from penstock.core.reading.record import Record
from penstock.errors import OptionError
from penstock.testing.memory_stream import MemoryStream, StoredRecord
from penstock.testing.runs import Run, run_stream

if TYPE_CHECKING:
    from penstock.consumer.keywords import ConsumerKeywords
    from penstock.recording import Recording

Outcome: TypeAlias = Literal["done", "dead_letter", "failed", "not_reached"]


@dataclass(frozen=True, slots=True)
class Verdict:
    """The outcome of one record.

    Attributes:
        record: The record.
        outcome: `done`: a checkpoint covers it; `dead_letter`: it went to the dead-letter handler; `failed`: it is in the
            batch that stopped its shard; `not_reached`: it follows that batch, or is in a child of that shard.
        error: The last error of the handler on a batch with this record; None if it raised none.
    """

    record: Record
    outcome: Outcome
    error: BaseException | None = None


@dataclass(frozen=True, slots=True)
class Replay:
    """The result of a replay.

    Attributes:
        runs: The run of each shard that was read, by shard id; parents before their children.
        verdicts: One for each record, shard by shard.
    """

    runs: dict[str, Run]
    verdicts: list[Verdict]

    @property
    def failed(self) -> list[Verdict]:
        """The verdicts of records whose batch stopped its shard."""
        return self._with_outcome("failed")

    @property
    def dead_letters(self) -> list[Verdict]:
        """The verdicts of records that went to the dead-letter handler."""
        return self._with_outcome("dead_letter")

    @property
    def not_reached(self) -> list[Verdict]:
        """The verdicts of records after a failure."""
        return self._with_outcome("not_reached")

    @property
    def is_green(self) -> bool:
        """Whether every record is done."""
        return all(verdict.outcome == "done" for verdict in self.verdicts)

    def _with_outcome(self, outcome: Outcome) -> list[Verdict]:
        return [verdict for verdict in self.verdicts if verdict.outcome == outcome]


def replay(
    handler: Handler,
    recording: str | Path,
    *,
    shards: Collection[str] | None = None,
    arrived_from: datetime | str | int | None = None,
    arrived_until: datetime | str | int | None = None,
    dead_letter: DeadLetterHandler | None = None,
    may_fail: bool = False,
    options: ConsumerOptions | None = None,
    **single_options: Unpack[ConsumerKeywords],
) -> Replay:
    """Run a handler of `Consumer` over a recording of `penstock record`, without service, threads or waiting.

    Each shard is read by the consumer's own code, as by `run`: the same batches, retries, dead letters and checkpoints as in
    production. A child is read after its parents, and not at all if one of them stopped. The records of one shard are in
    memory at a time.

    Args:
        handler: As for `Consumer`.
        recording: The file.
        shards: Only these shards; None: all.
        arrived_from: Only records that arrived at this moment or later: a datetime or a text with its time zone, or milliseconds since
            the epoch.
        arrived_until: Only records that arrived before this moment.
        dead_letter: As for `run`.
        may_fail: Return the replay when the handler has failed for good, instead of raising `HandlerFailed`.
        options: As for `run`.
        single_options: Single options by name. With `max_records=1` a verdict is about one record, not about a batch.

    Raises:
        HandlerFailed: The handler failed for good, and `may_fail` is not set.
        DamagedRecording: The file is damaged; the message has the place.
        OptionError, PositionError: The recording has no such shard, no record was chosen, or a moment has no time zone.
        UsageError: As for `run`.
    """
    from penstock.recording import open_recording

    merged = merge_options(options or ConsumerOptions(), single_options)
    runs: dict[str, Run] = {}
    verdicts: list[Verdict] = []
    stopped_shards: set[str] = set()
    with open_recording(recording) as opened:
        # Checks the arguments, and reads nothing.
        opened.batches(arrived_from=arrived_from, arrived_until=arrived_until, shards=shards)
        for shard in opened.metadata.shards:
            if shards is not None and shard.id in shards and not shard.is_recorded:
                raise OptionError(f"shard {shard.id}: the records of this shard were not recorded")
        until_ms = opened.metadata.recorded.until_ms
        for shard in opened.metadata.shards:
            if not shard.is_recorded or (shards is not None and shard.id not in shards):
                continue
            read = _reader(opened, shard.id, arrived_from, arrived_until)
            records = [record for rows in read(True) for record in rows]
            if not stopped_shards.isdisjoint(shard.parents):
                stopped_shards.add(shard.id)
                verdicts += [Verdict(record, "not_reached") for record in records]
                continue
            stored = [
                StoredRecord(
                    row.sequence_number,
                    row.data,
                    row.partition_key,
                    row.approximate_arrival_timestamp.timestamp(),
                )
                for rows in read(False)
                for row in rows
            ]
            is_closed = arrived_until is None and shard.closed_ms is not None and shard.closed_ms < until_ms
            stream = MemoryStream(records, is_closed=is_closed, stored=stored)
            run = run_stream(
                partial(Consumer, handler=handler),
                stream,
                records,
                options=merged,
                dead_letter=dead_letter,
                may_fail=may_fail,
            )
            runs[shard.id] = run
            verdicts += _verdicts(run)
            if run.failure is not None:
                stopped_shards.add(shard.id)
    if not verdicts:
        raise OptionError(
            f"{recording}: no record was chosen, so the replay would test nothing: choose other shards or a longer range"
        )
    return Replay(runs, verdicts)


def _reader(
    recording: Recording,
    shard_id: str,
    arrived_from: datetime | str | int | None,
    arrived_until: datetime | str | int | None,
) -> Callable[[bool], Iterable[list[Record]]]:
    """Return a function that yields a shard's records batch by batch, with aggregates taken apart or not."""

    def read(deaggregate: bool) -> Iterable[list[Record]]:
        found = recording.batches(
            arrived_from=arrived_from, arrived_until=arrived_until, shards=[shard_id], deaggregate=deaggregate
        )
        for batch in found:
            columns = batch.to_pydict()
            yield [
                Record(data, key, number, sub_number, hash_key, arrival, shard_id, stream)
                for data, key, number, sub_number, hash_key, arrival, stream in zip(
                    columns["data"],
                    columns["partitionKey"],
                    columns["sequenceNumber"],
                    columns["subSequenceNumber"],
                    columns["explicitHashKey"],
                    columns["approximateArrivalTimestamp"],
                    columns["streamName"],
                    strict=True,
                )
            ]

    return read


def _verdicts(run: Run) -> list[Verdict]:
    errors: dict[tuple[str, int], BaseException] = {}
    for call in run.calls:
        for record in call.records if call.error is not None else ():
            errors[_place(record)] = call.error  # type: ignore[assignment]  # it is not None here
    dead_places = set(map(_place, run.dead_letters))
    left_places = set(map(_place, run.left))
    failing = run.calls[-1].records if run.failure is not None and run.calls else ()
    failed_places = set(map(_place, failing)) & left_places
    verdicts: list[Verdict] = []
    for record in run.records:
        place = _place(record)
        outcome: Outcome = "done"
        if place in dead_places:
            outcome = "dead_letter"
        elif place in failed_places:
            outcome = "failed"
        elif place in left_places:
            outcome = "not_reached"
        verdicts.append(Verdict(record, outcome, errors.get(place)))
    return verdicts


def _place(record: Record) -> tuple[str, int]:
    return record.sequence_number, record.sub_sequence_number
