"""Deliveries in the order in which their visibility began."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator

from penstock.core.queueing.held_record import HeldDelivery


class VisibilityOrder:
    """The deliveries whose handles are valid, the oldest visibility first.

    A renewed visibility counts from the request, not from its answer. Deliveries that arrived in between have begun later, so the
    renewed one is put before them.
    """

    def __init__(self) -> None:
        self._held: OrderedDict[int, HeldDelivery] = OrderedDict()

    def __iter__(self) -> Iterator[HeldDelivery]:
        return iter(self._held.values())

    @property
    def oldest(self) -> HeldDelivery | None:
        """The delivery whose visibility began first, or None."""
        return next(iter(self), None)

    def add(self, delivery: HeldDelivery) -> None:
        """Add a delivery that has just arrived."""
        self._held[delivery.number] = delivery

    def discard(self, delivery: HeldDelivery) -> None:
        """Remove a delivery, if it is there."""
        self._held.pop(delivery.number, None)

    def on_renewed(self, renewed: HeldDelivery) -> None:
        """Move a renewed delivery to its new place: before those whose visibility timeout began after its renewal was sent."""
        self._held.move_to_end(renewed.number)
        later: list[int] = []
        for delivery in reversed(self._held.values()):
            if delivery is not renewed:
                if delivery.timeout_began_s <= renewed.timeout_began_s:
                    break
                later.append(delivery.number)
        for number in reversed(later):
            self._held.move_to_end(number)
