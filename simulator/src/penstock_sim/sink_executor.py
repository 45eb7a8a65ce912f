"""A simulated executor that runs tasks of sinks by the production's code, and does not end with their drivers."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import TypeVar

from msgspec import Struct

from penstock.errors import PenstockError
from penstock.producer.placement import PlacementCache
from penstock.spark.options.spark_options import SinkOptions
from penstock.spark.sink.dead_letters import letters_file_name
from penstock.spark.sink.ports import SinkPorts
from penstock.spark.sink.task import SinkTask
from penstock.spark.sink.task_report import TaskReport
from penstock_sim.blocking_ports import SimClock
from penstock_sim.environment import Environment
from penstock_sim.events import sinks
from penstock_sim.sink_rows import COLUMNS, SinkRow, in_batches
from penstock_sim.sink_service import AttemptPlace, SinkFolder, SinkKinesis, SinkService
from penstock_sim.spark_processes import SparkExecutor, TaskAttempt

_Item = TypeVar("_Item")


class WrittenTask(Struct, frozen=True):
    """A finished attempt's report to the driver, and which attempt it was."""

    attempt: str
    report: TaskReport


class WriteAttempt(TaskAttempt, eq=False, kw_only=True):
    """One attempt of one task of a batch."""

    place: AttemptPlace
    options: SinkOptions
    rows: list[SinkRow]
    write_id: str | None  # of the batch write; None in a streaming query's sink


class SinkExecutor(SparkExecutor[WriteAttempt]):
    """One process that runs tasks."""

    def __init__(self, world: Environment, name: str, service: SinkService) -> None:
        super().__init__(world, name)
        self._service = service
        self._placements = PlacementCache()

    def execute(self, attempt: WriteAttempt) -> WrittenTask:
        world, name = self.world, attempt.place.name
        texts = tuple(row.text for row in attempt.rows)
        options = attempt.options
        world.record(
            sinks.WriteTaskStarted(
                attempt.driver.who,
                self.who,
                name,
                options.keeps_dead_letters,
                texts,
                options.write_deadline_s,
            )
        )
        report = self._write(attempt)
        counts = tuple((stream, each.user_record_count) for stream, each in report.reports.items())
        twice = sum(each.possible_duplicate_count for each in report.reports.values())
        world.record(sinks.WriteTaskDone(name, counts, twice, report.dead_letter_count))
        for each in report.reports.values():
            for reason, count in each.refused_by_reason.items():
                world.met[f"sent again: {reason}"] += count
        return WrittenTask(name, report)

    def record_failed(self, attempt: WriteAttempt, error: PenstockError) -> None:
        self.world.record(sinks.WriteTaskFailed(attempt.place.name, type(error).__name__, str(error)))

    def _write(self, attempt: WriteAttempt) -> TaskReport:
        place, service = attempt.place, self._service
        kinesis = SinkKinesis(self, service, place)
        ports = SinkPorts(
            open_kinesis=lambda _connection: kinesis,
            open_folder=lambda location: SinkFolder(self, location, service.files),
            name_letters=partial(
                letters_file_name, place.query, str(place.batch), attempt.write_id, place.part
            ),
            clock=SimClock(self),
            chance=self.world.chance,
            placements=self._placements,
        )
        task = SinkTask(attempt.options, COLUMNS, ports)
        return task.write(self._given(in_batches(attempt.rows)))

    def _given(self, items: list[_Item]) -> Iterator[_Item]:
        """Yield a task's input as Spark gives it: now and then it takes a while."""
        world = self.world
        for item in items:
            if world.has_fault("slow_input"):
                SimClock(self).sleep(world.chance.choice((0.5, 4.0, 15.0)))
            yield item
