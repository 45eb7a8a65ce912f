"""Draws the phases of a held lease from its table of transitions: docs/held-lease.svg."""

from __future__ import annotations

from collections import defaultdict
from typing import Final

from penstock.core.leases.held_lease_phases import TRANSITIONS, LeasePhase, Trigger

_WIDTH: Final = 120
_HEIGHT: Final = 40
_PLACES: Final = {
    LeasePhase.WAITING: (20, 150),
    LeasePhase.READING: (250, 150),
    LeasePhase.STOPPING: (490, 150),
    LeasePhase.PARKED: (650, 280),
    LeasePhase.DRAINED: (490, 390),
    LeasePhase.STOPPED: (820, 150),
    LeasePhase.GONE: (1000, 390),
}
"""The upper left corner of each phase's box."""
_AROUND: Final = {
    (LeasePhase.WAITING, LeasePhase.STOPPED): 160,
    (LeasePhase.READING, LeasePhase.STOPPED): 90,
}
"""Arrows that bend over the boxes between, and how far."""
_COLUMN: Final = 16
_HALO: Final = 'fill="#222" stroke="#fff" stroke-width="4" paint-order="stroke"'
_MARKER: Final = (
    '<defs><marker id="end" viewBox="0 0 10 10" refX="10" refY="5" markerWidth="7" markerHeight="7" orient="auto">'
    '<path d="M0 0L10 5L0 10z"/></marker></defs>'
)


def draw_held_lease() -> str:
    """Return the drawing as SVG. Every phase also leads to GONE when the lease is lost; those arrows are left out."""
    triggers: dict[tuple[LeasePhase, LeasePhase], list[Trigger]] = defaultdict(list)
    for before, following in TRANSITIONS.items():
        for trigger, after in following.items():
            if trigger is not Trigger.LOST and before is not after:
                triggers[before, after].append(trigger)
    parts = [
        '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 1140 450" font-family="sans-serif" font-size="12">',
        '<rect width="1140" height="450" fill="#fff"/>',
        _MARKER,
    ]
    for (before, after), named in triggers.items():
        parts += _arrow(before, after, [each.name.lower().replace("_", " ") for each in named])
    for phase, (x, y) in _PLACES.items():
        parts.append(
            f'<rect x="{x}" y="{y}" width="{_WIDTH}" height="{_HEIGHT}" rx="8" fill="#eef4fe" stroke="#1f6feb"/>'
        )
        parts.append(
            f'<text x="{x + _WIDTH // 2}" y="{y + 25}" text-anchor="middle" font-weight="bold">{phase.name}</text>'
        )
    parts.append('<text x="20" y="430" fill="#555">lost: from every phase to GONE</text>')
    return "\n".join([*parts, "</svg>", ""])


def _arrow(before: LeasePhase, after: LeasePhase, labels: list[str]) -> list[str]:
    (x1, y1), (x2, y2) = _PLACES[before], _PLACES[after]
    if (before, after) in _AROUND:
        bend = -_AROUND[before, after]
        start, end = (x1 + 60, y1), (x2 + 60, y2)
        path = f"M{start[0]} {start[1]}C{start[0]} {y1 + bend} {end[0]} {y1 + bend} {end[0]} {end[1]}"
        middle = ((start[0] + end[0]) // 2, y1 + bend * 3 // 4 + 14)
    elif x1 == x2:
        start, end = (x1 + _WIDTH // 2, y1 + _HEIGHT), (x2 + _WIDTH // 2, y2)
        path = f"M{start[0]} {start[1]}L{end[0]} {end[1]}"
        middle = (start[0] + 6, (start[1] + end[1]) // 2)
    else:
        start, end = (x1 + _WIDTH, y1 + _HEIGHT // 2), (x2, y2 + _HEIGHT // 2)
        path = f"M{start[0]} {start[1]}L{end[0]} {end[1]}"
        middle = ((start[0] + end[0]) // 2, (start[1] + end[1]) // 2 + (_COLUMN if len(labels) > 1 else -6))
    anchor = "start" if x1 == x2 else "middle"
    return [
        f'<path d="{path}" fill="none" stroke="#444" marker-end="url(#end)"/>',
        *(
            f'<text x="{middle[0]}" y="{middle[1] + _COLUMN * place}" text-anchor="{anchor}" {_HALO}>{label}</text>'
            for place, label in enumerate(labels)
        ),
    ]
