"""Kill deliveries at every step and count the rows of their tables; print a verdict.

`python tools/soak_delivery.py [--deliveries 1000] [--minutes 600] [--sigkill 20] [--seed 0]` runs deliveries of the embedded Kinesis
into tables of Parquet and of JSON lines, or of Delta Lake and Iceberg with `--format delta iceberg`. Each run is killed by an
exception before, in or after the write, in a lake's transaction, or before or after each call of the commit. One in
`--sigkill` is killed by SIGKILL, in a process of its own. Between the runs records are put and shards are split and merged.
After eight kills a table is delivered to its end, and its readers must find each record once: DuckDB and pyarrow, or Spark
and `deltalake` or `pyiceberg`, which `pip install deltalake pyiceberg` adds. The exit code is 1 at the first difference,
or if no run was killed.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from pathlib import Path
from typing import Any, Final

from penstock_local import LocalKinesisProcess

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))
from loaded_python import LoadedPython

from killed_deliveries import KILLS, LAKE_KILLS, LAKES, KilledTable, open_killed_session, places

PER_TABLE: Final = 8
FORMATS: Final = ("parquet", "json", *LAKES)


class Soak:
    """The tables of one run, and the places that are left.

    Args:
        spark: The session.
        server: The embedded Kinesis.
        folder: Of the tables.
        formats: Of the tables, in turn.
        kills: Places, in the order in which they come.
        sigkill_every: One in so many kills is a SIGKILL.
        end_s: No table is begun after this moment.
    """

    def __init__(
        self,
        spark: Any,
        server: LocalKinesisProcess,
        folder: Path,
        formats: Sequence[str],
        kills: Iterator[tuple[int, str]],
        *,
        sigkill_every: int,
        end_s: float,
    ) -> None:
        self._spark, self._server, self._folder, self._formats = spark, server, folder, formats
        self._kills, self._sigkill_every, self._end_s = kills, sigkill_every, end_s
        self._lock = threading.Lock()
        self.killed: Counter[str] = Counter()
        self.formats: Counter[str] = Counter()
        self.missed_count = self.table_count = self.row_count = self.letter_count = self.reshard_count = 0

    def run(self) -> None:
        """Fill tables until there are no more kills, or no more time, or one has failed."""
        while time.monotonic() < self._end_s:
            with self._lock:
                number = self.table_count
                kills = [*islice(self._kills, PER_TABLE)]
                if not kills:
                    return
                self.table_count += 1
            try:
                self._fill(number, kills)
            except BaseException:
                self._end_s = 0.0
                raise

    def _fill(self, number: int, kills: list[tuple[int, str]]) -> None:
        table_format = self._formats[number % len(self._formats)]
        table = KilledTable(self._spark, self._server, self._folder, number, table_format)
        for at, place in kills:
            table.put()
            if at % 2:
                table.reshard()
            is_hard = bool(self._sigkill_every) and at % self._sigkill_every == self._sigkill_every - 1
            table.kill(place, is_hard=is_hard)
        table.finish()
        with self._lock:
            self.killed += table.killed
            self.formats[table_format] += table.killed.total()
            self.missed_count += table.missed
            self.row_count += len(table.put_ids)
            self.letter_count += len(table.bad)
            self.reshard_count += sum(at % 2 for at, _ in kills)
            print(f"{self.killed.total()} killed, {self.table_count} tables", flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--deliveries", type=int, default=1000, help="runs to kill (default: 1000)")
    parser.add_argument("--minutes", type=float, default=600.0, help="begin no table after so long")
    parser.add_argument("--sigkill", type=int, default=20, help="one in so many kills is a SIGKILL; 0: none")
    parser.add_argument("--seed", type=int, default=0, help="of the order of the kills")
    parser.add_argument("--parallel", type=int, default=2, help="tables at once")
    parser.add_argument(
        "--format", choices=FORMATS, nargs="*", default=FORMATS[:2], help="of the tables, in turn"
    )
    args = parser.parse_args()
    print(f"{os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}", flush=True)
    began_s = time.monotonic()
    with (
        tempfile.TemporaryDirectory() as folder,
        LocalKinesisProcess(limits=False) as server,
        LoadedPython(Path(folder)) as python,
    ):
        os.environ |= {
            **server.environ(),
            "PYSPARK_PYTHON": sys.executable,
            "PYSPARK_DRIVER_PYTHON": str(python.path),
        }
        spark = open_killed_session(folder, args.format)
        kinds = LAKE_KILLS if set(args.format) <= set(LAKES) else KILLS
        kills = iter(enumerate(places(args.deliveries, args.seed, kinds)))
        soak = Soak(
            spark,
            server,
            Path(folder),
            args.format,
            kills,
            sigkill_every=args.sigkill,
            end_s=began_s + 60 * args.minutes,
        )
        with ThreadPoolExecutor(args.parallel) as threads:
            for each in [threads.submit(soak.run) for _ in range(args.parallel)]:
                each.result()
        spark.stop()
    for place, count in sorted(soak.killed.items()):
        print(f"{count:6} {place}")
    for table_format, count in sorted(soak.formats.items()):
        print(f"{count:6} {table_format}")
    print(
        f"{soak.killed.total()} deliveries killed, {soak.missed_count} over before their kill, {soak.table_count} tables, "
        f"{soak.reshard_count} reshards, {soak.row_count:,} rows and {soak.letter_count:,} dead letters, each once for all readers, "
        f"in {time.monotonic() - began_s:.0f} s"
    )
    return 0 if soak.killed else 1


if __name__ == "__main__":
    sys.exit(main())
