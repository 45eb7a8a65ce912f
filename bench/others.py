"""Measure more libraries of others beside Penstock: aiokpl, native-aws-kcl-py, and MiniStack, a server for tests.

    python bench/others.py [--turns 3] [--records 40000] [--json]

The rows are made as those of `make bench`: each contender runs in a process of its own, in turn, and the median counts. aiokpl has an
environment of its own; its limits by shard are lifted, and it waits for each acknowledgement. What has arrived is counted.
native-aws-kcl-py, a consumer with leases like the KCL's, reads again after 0.1 s where its default is 1 s, and checkpoints each batch.
"""

from __future__ import annotations

from typing import Any

from harness import RowRun
from row_printing import parser_of, print_rows
from table import Contender, Row, Streams


def rows(record_count: int) -> list[Row]:
    """Return the rows."""
    return [
        Row(
            key="producer-others",
            title=f"producer, aggregated: {record_count:,} records of 100 B to 4 shards",
            figure="cpu_s_per_million",
            contenders=(
                Contender("Penstock, aggregated", ("producer", "penstock-aggregated")),
                Contender("aiokpl", ("producer", "aiokpl"), environment="aiokpl", packages=("aiokpl",)),
            ),
            options={"record_count": record_count},
            streams=Streams(4, is_fresh=True),
        ),
        Row(
            key="consumer-others",
            title=f"consumer: {record_count:,} records of 200 B from 8 shards",
            figure="cpu_s_per_million",
            contenders=(
                Contender("Penstock", ("consumer", "penstock")),
                Contender(
                    "native-aws-kcl-py",
                    ("consumer", "native-aws-kcl-py"),
                    environment="native-aws-kcl-py",
                    packages=("native-aws-kcl-py",),
                ),
            ),
            options={"record_count": record_count},
            streams=Streams(8, record_count, 200),
        ),
        Row(
            key="server-others",
            title="server, records of 1 KiB",
            figure="get_records_mb_per_s",
            contenders=(
                Contender("Penstock", ("server", "penstock")),
                Contender("MiniStack 1.5.33", ("server", "ministack"), packages=()),
            ),
            options={"seconds": 1.0},
            takes_turn=False,
        ),
    ]


def main() -> None:
    """Run the rows and print their figures."""
    parser = parser_of(__doc__)
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--records", type=int, default=40_000)
    args = parser.parse_args()
    for row in rows(args.records):
        print(f"  {row.title}", flush=True)
        turns = RowRun(row, args.turns, budget_s=600, patience=1)
        turns.run()
        found: list[dict[str, Any]] = [
            {
                "name": f"{each['name']} ({each['versions']})" if each.get("versions") else each["name"],
                **({"problem": each["problem"]} if "problem" in each else medians(each["figures"])),
            }
            for each in turns.results()["contenders"]
        ]
        print_rows(found, as_json=args.json)


def medians(figures: dict[str, dict[str, float]]) -> dict[str, float]:
    """Return the median of each figure."""
    return {name: each["median"] for name, each in figures.items()}


if __name__ == "__main__":
    main()
