"""Run every bench in turn: `make bench`. Each prints its rows beside a peer measured in the same run."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

BENCHES = {
    "decode.py": "reading: response bytes to Arrow columns",
    "fan_out.py": "reading: enhanced fan-out",
    "pushing.py": "enhanced fan-out end to end: from put to handler, and the server",
    "consumer_memory.py": "memory of the plain consumer: aggregates of empty records",
    "server.py": "the embedded Kinesis, one process",
    "producer.py": "writing: the producer",
    "flow.py": "writing: flow control under quotas",
    "balance.py": "balance: one round of a worker",
    "simulator.py": "seeds of the simulator on one processor",
    "planning.py": "planning a batch over many shards",
    "latency.py": "from PutRecord to foreachBatch",
    "idle_shards.py": "one record on a stream of idle shards",
}


def main() -> int:
    """Run all that exist; exit code 1 when one fails."""
    folder = Path(__file__).parent
    failed = []
    for name, what in BENCHES.items():
        if not (folder / name).exists():
            continue
        print(f"\n{what}  (bench/{name})", flush=True)
        if subprocess.run([sys.executable, str(folder / name)], check=False).returncode != 0:
            failed.append(name)
    if failed:
        print(f"failed: {', '.join(failed)}", file=sys.stderr)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
