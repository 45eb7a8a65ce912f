"""Draw the table: one small chart for each row, a bar for each contender with its spread. Needs matplotlib.

python bench/plots.py performance.json performance.png
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import matplotlib as mpl

mpl.use("Agg")
import matplotlib.pyplot as plt
from rows import ROWS
from table import UNITS

COLUMNS = 3
OURS, PEER, BOUND = "#1f6feb", "#8a8f98", "#d0d3d8"


def main() -> int:
    results = json.loads(Path(sys.argv[1]).read_text())
    by_key = {result["key"]: result for result in results["rows"]}
    rows = [row for row in ROWS if row.key in by_key]
    lines = -(-len(rows) // COLUMNS)
    figure, charts = plt.subplots(lines, COLUMNS, figsize=(15, 1.9 * lines), squeeze=False)
    for chart in charts.flat[len(rows) :]:
        chart.axis("off")
    for row, chart in zip(rows, charts.flat, strict=False):
        shown = [each for each in by_key[row.key]["contenders"] if row.figure in each.get("figures", {})]
        for place, each in enumerate(shown):
            found = each["figures"][row.figure]
            colour = BOUND if each["is_bound"] else OURS if each["name"].startswith("Penstock") else PEER
            spread = [[found["median"] - found["least"]], [found["most"] - found["median"]]]
            chart.barh(place, found["median"], color=colour, xerr=spread, ecolor="#333", capsize=2)
        for aim in row.aims:
            if aim.figure == row.figure and aim.against is None:
                chart.axvline(aim.limit, color="#c2412d", linestyle="--", linewidth=1)
        chart.set_yticks(range(len(shown)), [each["name"] for each in shown], fontsize=7)
        chart.invert_yaxis()
        chart.tick_params(axis="x", labelsize=7)
        chart.set_title(f"{row.title.replace('`', '')}\n{UNITS[row.figure][0]}", fontsize=8)
        chart.spines[["top", "right"]].set_visible(False)
    figure.tight_layout()
    figure.savefig(sys.argv[2], dpi=70)
    return 0


if __name__ == "__main__":
    sys.exit(main())
