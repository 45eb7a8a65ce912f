"""The ports of a queue's consumer."""

from __future__ import annotations

from msgspec import Struct

from penstock.ports.clock import Chance, Clock
from penstock.ports.kinesis import Kinesis
from penstock.ports.queues import Queues


class QueueConsumerPorts(Struct, frozen=True):
    """Where a queue's consumer does its calls.

    Args:
        queues: The queues.
        kinesis: Finds the ARN of a stream that `create` names; None if it is given as an ARN.
        clock: None: the machine's.
        chance: None: the machine's.
    """

    queues: Queues
    kinesis: Kinesis | None = None
    clock: Clock | None = None
    chance: Chance | None = None
