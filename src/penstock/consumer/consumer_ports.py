"""The ports of a consumer: the service, its leases, time and chance; and the pools on which its worker runs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from msgspec import Struct

from penstock.consumer.pending_checkpoint import PendingCheckpoint
from penstock.consumer.processor import DeadLetterHandler, StreamProcessorFactory
from penstock.ports.clock import Chance, Clock
from penstock.ports.fan_out import FanOut
from penstock.ports.kcl3_tables import Kcl3Tables
from penstock.ports.kinesis import Kinesis
from penstock.ports.lease_table import LeaseTable
from penstock.ports.metrics import Metrics
from penstock.runtime.loop import Pool

if TYPE_CHECKING:
    from penstock.consumer.worker import Worker


class WorkerPorts(Struct, frozen=True):
    """The ports of a worker."""

    kinesis: Kinesis
    table: LeaseTable
    clock: Clock
    chance: Chance
    metrics: Metrics
    kcl3: Kcl3Tables | None = None


class Pools(Struct, frozen=True):
    """The pools for work that may wait: calls to services, and user code."""

    renewal: Pool
    call: Pool
    read: Pool
    handler: Pool

    def close(self) -> None:
        """Take nothing new."""
        for pool in (self.renewal, self.call, self.read, self.handler):
            pool.close()


class WorkerDriver(Protocol):
    """Runs a worker's loops and the work that they give to pools: threads in production, virtual time in `penstock.testing`."""

    @property
    def pools(self) -> Pools:
        """Where work is done."""

    def watch(
        self, factory: StreamProcessorFactory, dead_letter: DeadLetterHandler | None
    ) -> tuple[StreamProcessorFactory, DeadLetterHandler | None]:
        """Return the user code that the worker calls."""

    def start(self, worker: Worker) -> None:
        """Begin to drive a worker, and return."""

    def on_checkpoint_begun(self, pending: PendingCheckpoint) -> None:
        """User code is about to wait for a checkpoint, which is under way."""


@dataclass(frozen=True, slots=True)
class ConsumerPorts:
    """The ports of a consumer. Pass them to test without the service, or to share connections.

    Args:
        kinesis: The stream service.
        lease_table: The application's leases.
        clock: Time; None: the system's.
        chance: Jitter; None: the system's.
        kcl3: The rows of KCL 3 workers beside the leases; None: there are none.
        fan_out: Registered consumers and subscriptions, for `retrieval="fan-out"` and `"auto"`.
        driver: Runs the worker; None: threads. `penstock.testing` has one in virtual time.
    """

    kinesis: Kinesis
    lease_table: LeaseTable
    clock: Clock | None = None
    chance: Chance | None = None
    kcl3: Kcl3Tables | None = None
    fan_out: FanOut | None = None
    driver: WorkerDriver | None = None
