"""Deliveries in the order in which their visibility began."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator

from penstock.core.queueing.held_record import HeldDelivery


class VisibilityOrder:
    """The deliveries whose handles are valid, the oldest visibility first.

    A renewed visibility counts from the renewal's request. So deliveries that arrive before the renewal's answer began later, and stay after it.
    """

    def __init__(self) -> None:
        self._held: OrderedDict[int, HeldDelivery] = OrderedDict()

    def __iter__(self) -> Iterator[HeldDelivery]:
        return iter(self._held.values())

    @property
    def oldest(self) -> HeldDelivery | None:
        """The delivery whose visibility began first, or None."""
        return next(iter(self), None)

    def add(self, held: HeldDelivery) -> None:
        """Add a delivery that has just arrived."""
        self._held[held.number] = held

    def discard(self, held: HeldDelivery) -> None:
        """Remove a delivery, if it is there."""
        self._held.pop(held.number, None)

    def on_renewed(self, renewed: HeldDelivery) -> None:
        """Move a renewed delivery to its new place: before those whose visibility timeout began after its renewal was sent."""
        self._held.move_to_end(renewed.number)
        later: list[int] = []
        for held in reversed(self._held.values()):
            if held is not renewed:
                if held.timeout_began_s <= renewed.timeout_began_s:
                    break
                later.append(held.number)
        for number in reversed(later):
            self._held.move_to_end(number)
