"""Draw how far four applications are behind on a stream that is written at its full rate, as one SVG.

    python bench/shared_stream.py docs/shared-stream.svg

It runs the workers of `tests/consumer/shared_stream.py` in virtual time, under the quotas of the embedded server: four shards get
1 MiB a second each. So the picture does not depend on the machine.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "consumer"))

from shared_stream import APPLICATIONS, SHARD_COUNT, Fleet

WIDTH, HEIGHT, GAP, LEFT, TOP = 230, 140, 34, 40, 44
WRITTEN_S = 120
BEHIND_S_MAX = 120.0
COLOURS = ("#1f6feb", "#bf3989", "#1a7f37", "#bc4c00")
WAYS = {
    'retrieval="polling"': {},
    'retrieval="fan-out"': {"retrieval": "fan-out"},
    'retrieval="auto"': {"retrieval": "auto"},
}


def measure(options: dict[str, object]) -> tuple[list[dict[str, float]], int]:
    """Return how far each application is behind, second by second, and how many subscriptions there are at the end."""
    fleet = Fleet(**options)
    behind = []
    for _ in range(WRITTEN_S):
        fleet.write(1)
        behind.append(fleet.behind_s())
    return behind, fleet.pushed_count()


def chart(title: str, behind: Sequence[dict[str, float]], pushed_count: int, x: int) -> str:
    """Return one way's chart."""
    parts = [f'<rect x="{x}" y="{TOP}" width="{WIDTH}" height="{HEIGHT}" fill="none" stroke="#bbb"/>']
    for application, colour in zip(APPLICATIONS, COLOURS, strict=True):
        line = " ".join(
            f"{x + (place + 1) * WIDTH / WRITTEN_S:.1f},{TOP + HEIGHT - HEIGHT * at[application] / BEHIND_S_MAX:.1f}"
            for place, at in enumerate(behind)
        )
        parts.append(f'<polyline points="{line}" fill="none" stroke="{colour}" stroke-width="1.5"/>')
    worst_s = max(behind[-1].values())
    figures = (
        f"at the end: {worst_s:.0f} s behind, {pushed_count} of {SHARD_COUNT * len(APPLICATIONS)} pushed"
    )
    parts += [
        f'<text x="{x}" y="{TOP - 6}" font-weight="bold">{title.replace(chr(34), "&quot;")}</text>',
        f'<text x="{x}" y="{TOP + HEIGHT + 14}" fill="#555">{figures}</text>',
        f'<text x="{x - 4}" y="{TOP + 8}" text-anchor="end" fill="#555">{BEHIND_S_MAX:.0f} s</text>',
        f'<text x="{x - 4}" y="{TOP + HEIGHT}" text-anchor="end" fill="#555">0 s</text>',
    ]
    return "".join(parts)


def main() -> int:
    """Write the picture."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("picture", type=Path, help="the SVG file to write")
    args = parser.parse_args()
    charts = [
        chart(title, *measure(options), LEFT + place * (WIDTH + GAP))
        for place, (title, options) in enumerate(WAYS.items())
    ]
    head = (
        f"Seconds behind of four applications, while {SHARD_COUNT} shards get 1 MiB/s each for {WRITTEN_S} s"
    )
    size = (LEFT * 2 + len(WAYS) * (WIDTH + GAP) - GAP, TOP + HEIGHT + 26)
    args.picture.write_text(
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {size[0]} {size[1]}" font-family="sans-serif" font-size="10">'
        f'<rect width="{size[0]}" height="{size[1]}" fill="#fff"/><text x="{LEFT}" y="18" font-size="13">{head}</text>'
        f"{''.join(charts)}</svg>\n"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
