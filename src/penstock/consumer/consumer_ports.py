"""The ports of a consumer: the service, its leases, time and chance."""

from __future__ import annotations

from dataclasses import dataclass

from penstock.consumer.worker import WorkerDriver
from penstock.ports.clock import Chance, Clock
from penstock.ports.fan_out import FanOut
from penstock.ports.kcl3_tables import Kcl3Tables
from penstock.ports.kinesis import Kinesis
from penstock.ports.lease_table import LeaseTable


@dataclass(frozen=True, slots=True)
class ConsumerPorts:
    """The ports of a consumer. Pass them to test without the service, or to share connections.

    Args:
        kinesis: The stream service.
        lease_table: The application's leases.
        clock: The clock; None: the system's.
        chance: Random numbers for jitter; None: the system's.
        kcl3: The tables of KCL 3 workers beside the leases; None: there are none.
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
