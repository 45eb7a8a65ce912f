"""Ports of a sink's task: the service, a folder for dead letters, time and jitter."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from msgspec import Struct

from penstock.ports.clock import Chance, Clock
from penstock.producer.placement import PLACEMENTS, PlacementCache
from penstock.producer.task_writer import TaskMemory, TaskWriter, TaskWriterOptions
from penstock.spark.sink.folder import FileFolder

if TYPE_CHECKING:
    from penstock.aws.aws_options import AwsOptions
    from penstock.ports.kinesis import Kinesis


class SinkPorts(Struct, frozen=True):
    """Ports of one task.

    Args:
        open_folder: Opens a folder by its path or URI.
        name_letters: Returns the name of the task's file of dead letters: the same for each attempt of a task, and of no
            other task. Called when there are letters to write.
        placements: The process's cache of shard ranges by stream.
    """

    open_kinesis: Callable[[AwsOptions], Kinesis]
    open_folder: Callable[[str], FileFolder]
    name_letters: Callable[[], str]
    clock: Clock | None = None
    chance: Chance | None = None
    placements: PlacementCache = PLACEMENTS

    def open_writer(
        self, connection: AwsOptions, stream: str, options: TaskWriterOptions, memory: TaskMemory
    ) -> TaskWriter:
        """Open a writer to one stream, given as name or ARN, which shares the task's memory."""
        kinesis, clock, chance = self.open_kinesis(connection), self.clock, self.chance
        placements = self.placements
        return TaskWriter(
            kinesis, stream, options, clock=clock, chance=chance, memory=memory, placements=placements
        )
