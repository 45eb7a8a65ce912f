"""The ports of a queue's consumer."""

from __future__ import annotations

from msgspec import Struct

from penstock.ports.clock import Chance, Clock
from penstock.ports.kinesis import Kinesis
from penstock.ports.queues import Queues


class QueueConsumerPorts(Struct, frozen=True):
    """The ports through which a queue's consumer makes its calls.

    Args:
        queues: The service.
        kinesis: Finds the ARN of the stream that `create` names. Not needed if `create` has an ARN.
        clock: The clock; None for the machine's.
        chance: The source of jitter; None for the machine's.
    """

    queues: Queues
    kinesis: Kinesis | None = None
    clock: Clock | None = None
    chance: Chance | None = None
