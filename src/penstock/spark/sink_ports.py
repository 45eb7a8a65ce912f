"""What a task of the sink reaches outside itself: the service, a folder for dead letters, time and jitter."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import IO, TYPE_CHECKING, Protocol

from penstock.ports.clock import Chance, Clock

if TYPE_CHECKING:
    from penstock.aws.aws_options import AwsOptions
    from penstock.ports.kinesis import Kinesis


class FileFolder(Protocol):
    """Implemented by `penstock.spark.folder.Folder` and by the simulator."""

    def read(self, name: str) -> bytes:
        """Return a file's content; raises FileNotFoundError where there is none, other OSErrors where it cannot be read."""

    def replace(self, name: str, content: IO[bytes]) -> None:
        """Write a file as a whole; raises OSError when it cannot be written, and the old one is unchanged then."""


@dataclass(frozen=True, slots=True)
class SinkPorts:
    """The outside world of one task.

    Args:
        open_kinesis: Opens the service.
        open_folder: Opens a folder by its path or URI.
        name_letters: Returns the name of the task's file of dead letters: the same for each attempt of a task, and of no other
            task. Called when there are letters to write.
        clock: Time; None for the system's.
        chance: Jitter; None for the system's.
    """

    open_kinesis: Callable[[AwsOptions], Kinesis]
    open_folder: Callable[[str], FileFolder]
    name_letters: Callable[[], str]
    clock: Clock | None = None
    chance: Chance | None = None
