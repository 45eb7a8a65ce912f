"""Ports of a query's driver: the services, time, chance and threads."""

from __future__ import annotations

from collections.abc import Callable

from msgspec import Struct

from penstock.core.stream_identity import StreamIdentity
from penstock.ports.clock import Chance, Clock
from penstock.ports.fan_out import FanOut
from penstock.ports.kcl3_tables import Kcl3Tables
from penstock.ports.kinesis import Kinesis
from penstock.ports.lease_table import LeaseTable
from penstock.ports.metrics import ClosableMetrics
from penstock.runtime.stream_name_check import StreamNameCheck
from penstock.runtime.threads import Threads
from penstock.spark.options.spark_options import SourceOptions


class DriverPorts(Struct, frozen=True):
    """Ports of a query's driver.

    Args:
        chance: Jitter and unique names.
        open_metrics: Opens the metrics backend; called with the worker id.
        open_earlier_table: Opens the lease table that the query's offset names, if that is not `table`.
        kcl3: Tables of KCL 3 workers beside the leases; None if there are none.
        fan_out: Registers the query's consumer; None if it polls.
        name_check_of: Returns the check that the name of a stream still refers to it; None: no check.
        lease_loop_table: The same lease table with a short deadline, since the lease loop repeats failed calls; None: `table`.
    """

    kinesis: Kinesis
    table: LeaseTable
    clock: Clock
    chance: Chance
    threads: Threads
    open_metrics: Callable[[SourceOptions, str], ClosableMetrics]
    open_earlier_table: Callable[[str], LeaseTable]
    kcl3: Kcl3Tables | None = None
    fan_out: FanOut | None = None
    name_check_of: Callable[[StreamIdentity], StreamNameCheck] | None = None
    lease_loop_table: LeaseTable | None = None
