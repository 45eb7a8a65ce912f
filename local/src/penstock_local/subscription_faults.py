"""Scripted faults in the event stream of a subscription."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing

from penstock_local.faults import Fault
from penstock_local.http import BreakOff
from penstock_local.subscriptions import Subscription


async def with_faults(subscription: Subscription, faults: Sequence[Fault]) -> AsyncGenerator[bytes, None]:
    """Send the frames of a subscription with the faults that hit it."""
    count = 0
    async with aclosing(subscription.events()) as frames:
        while True:
            due_faults = {fault.kind: fault for fault in faults if fault.after_events == count}
            await _stop_if_due(due_faults)
            if "end" in due_faults:
                return
            if "exception" in due_faults:
                fault = due_faults["exception"]
                code = fault.code or "InternalFailureException"
                yield subscription.exception(code, fault.message or "scripted fault")
                return
            frame = await anext(frames, None)
            if frame is None:
                return
            if "cut" in due_faults:
                yield frame[: len(frame) // 2]
                return
            if "repeat" in due_faults:
                yield frame
            yield _with_wrong_checksum(frame) if "corrupt" in due_faults else frame
            count += 1


async def _stop_if_due(due_faults: dict[str, Fault]) -> None:
    """Carry out the faults after which nothing more is sent.

    Raises:
        BreakOff: The answer is cut off here.
    """
    if "reset" in due_faults or "goaway" in due_faults:
        raise BreakOff(in_order="reset" not in due_faults)
    if "silence" in due_faults:
        # wait until the connection ends
        await asyncio.get_running_loop().create_future()


def _with_wrong_checksum(frame: bytes) -> bytes:
    return frame[:-1] + bytes((frame[-1] ^ 1,))
