"""Draw what fleets cost: read units per second in each scenario, as one SVG.

    penstock simulate --fleet 100 --leases 1000 --json > fleet.jsonl
    penstock simulate --fleet 100 --leases 1000 --policy kcl2 --json >> fleet.jsonl
    python bench/fleet.py fleet.jsonl docs/fleet-reads.svg

One row of charts for each fleet of the file, one chart for each of its scenarios.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

WIDTH, HEIGHT, GAP, LEFT, TOP = 170, 90, 26, 16, 46
SECONDS = 5  # of one point


def points(per_s: Sequence[float]) -> list[float]:
    """Return the means of steps of a few seconds."""
    return [
        sum(per_s[at : at + SECONDS]) / len(per_s[at : at + SECONDS]) for at in range(0, len(per_s), SECONDS)
    ]


def chart(document: dict[str, Any], x: int, y: int, top: float) -> str:
    """Return one scenario's chart."""
    values = points(document["reads"])
    step = WIDTH / max(1, len(values) - 1)
    line = " ".join(
        f"{x + place * step:.1f},{y + HEIGHT - HEIGHT * min(value, top) / top:.1f}"
        for place, value in enumerate(values)
    )
    figures = (
        f"{document['reads_per_s']:.0f}/s, worst 10 s {document['reads_peak_per_s']:.0f}; "
        f"unread {document['unread_max_s']:.0f} s"
    )
    return (
        f'<rect x="{x}" y="{y}" width="{WIDTH}" height="{HEIGHT}" fill="none" stroke="#bbb"/>'
        f'<polyline points="{line}" fill="none" stroke="#1f6feb" stroke-width="1.5"/>'
        f'<text x="{x}" y="{y - 5}" font-weight="bold">{document["scenario"]}</text>'
        f'<text x="{x}" y="{y + HEIGHT + 12}" fill="#555">{figures}</text>'
    )


def draw(documents: Sequence[dict[str, Any]]) -> str:
    """Return the whole picture."""
    fleets: dict[str, list[dict[str, Any]]] = {}
    for document in documents:
        name = f"{document['worker_count']} workers, {document['lease_count']} leases, policy {document['policy']}"
        fleets.setdefault(name, []).append(document)
    columns = max(len(found) for found in fleets.values())
    row_height = HEIGHT + TOP + 22
    parts = []
    for row, (name, found) in enumerate(fleets.items()):
        y = TOP + row * row_height
        top = max(max(points(document["reads"])) for document in found)
        parts.append(
            f'<text x="{LEFT}" y="{y - 24}" font-size="13">{name}: read units per second, to {top:.0f}</text>'
        )
        parts += [
            chart(document, LEFT + column * (WIDTH + GAP), y, top) for column, document in enumerate(found)
        ]
    size = (LEFT * 2 + columns * (WIDTH + GAP), len(fleets) * row_height + 10)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {size[0]} {size[1]}" font-family="sans-serif" '
        f'font-size="9"><rect width="{size[0]}" height="{size[1]}" fill="#fff"/>{"".join(parts)}</svg>\n'
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("figures", type=Path, help="what `penstock simulate --fleet N --json` printed")
    parser.add_argument("picture", type=Path, help="the SVG file to write")
    args = parser.parse_args()
    documents = [json.loads(line) for line in args.figures.read_text().splitlines()]
    args.picture.write_text(draw(documents))
    return 0


if __name__ == "__main__":
    sys.exit(main())
