"""Kill processes of deliveries in the transactions of their tables; print where each died and a verdict.

`python tools/soak_transactions.py [--format delta iceberg parquet] [--minutes 25] [--seed 0] [--zombies 0]` runs deliveries of the
embedded Kinesis, one at a time, each in a process with a Spark of its own. It waits until the delivery writes a manifest, a data file,
a commit of the table or the end of a batch, or begins its repair of the last batch, and sends SIGKILL to Python and Java, or to one of
them, at once or within two seconds. Then `deltalake`, `pyiceberg`, or DuckDB and pyarrow must find no row twice. After `--lives`
kills, a delivery runs to its end, and all readers and Spark must find each record once.

With `--images` no process is killed, which saves the starts of Python and Java: all processes are stopped for a moment by SIGSTOP, and
table, state and leases are copied. The copies are as SIGKILL would leave the files. When the delivery has ended, and the process of its
source after it, the copy takes their place, and the same Spark, without its caches, runs the next delivery from there.

A zombie is stopped by SIGSTOP in its transaction, another delivery of the same state runs to its end, and the first one goes on. On
one machine the second one is refused; `--zombies N` has every other pair without the lock, as on two machines.
At the first difference the run ends with 1, and the folder of its tables stays.
"""

from __future__ import annotations

import argparse
import functools
import itertools
import json
import os
import queue
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final

from penstock_local import LocalKinesisProcess

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))
from loaded_python import LoadedPython

from killed_deliveries import (
    CATALOG,
    LAKES,
    SETTINGS,
    TOO_BUSY,
    KilledTable,
    open_killed_session,
    read_delta,
    read_files,
    read_iceberg,
)
from lake_jars import JARS

FORMATS: Final = ("delta", "iceberg", "parquet")
EVENTS: Final = ("repair", "manifest", "data", "data", "commit", "commit", "done")
KILLED: Final = ("Python and Java", "Python and Java", "Python", "Java")
REFUSED: Final = "runs already on this machine"
_LIFE_S_MAX: Final = 600.0
_WAKE_S_MAX: Final = 90.0
_PUT_S: Final = 0.7
_POLL_S: Final = 0.002


def _say(**words: Any) -> None:
    print(json.dumps(words), flush=True)


def _child(document: str) -> int:
    """Run a delivery until it is killed, or to its end; print the ids that Spark then finds. With `serves`, run those of standard input."""
    from penstock.delivery import opening
    from penstock.delivery.run_lock import RunLock

    given = json.loads(document)
    if given["unlocked"]:
        opening.try_lock = lambda *_: RunLock(None)
    if set(given["formats"]) & set(LAKES):
        # An earlier session has fetched the jars: to look for them again takes seconds.
        SETTINGS["spark.jars"] = ",".join(map(str, (JARS / "jars").glob("*.jar")))
        SETTINGS[f"spark.sql.catalog.{CATALOG}.cache-enabled"] = "false"
    spark = open_killed_session(given["folder"], given["formats"])
    _say(java=spark.sparkContext._gateway.proc.pid)  # noqa: SLF001 - Java's process has no public name
    if given["serves"]:
        _serve(spark)
    else:
        _deliver(spark, given["definition"], lambda _run: None, once=given["once"])
    spark.stop()
    return 0


def _deliver(spark: Any, definition: dict[str, Any], on_open: Callable[[Any], None], *, once: bool) -> None:
    from msgspec import structs

    from penstock.core.delivering.definition import parse_delivery
    from penstock.delivery.running import DeliveryRun, check_deliveries

    ((delivery, options),) = check_deliveries([parse_delivery(definition)])
    checked = [(structs.replace(delivery, freshness_s=0.5), options)]
    run = DeliveryRun(spark, checked, lambda report: _say(batch=report.batch))
    on_open(run)
    run.run(once=once)
    if once:
        name = f"delta.`file://{delivery.to}`" if delivery.format == "delta" else delivery.to
        source = (
            spark.table(name) if delivery.format in LAKES else spark.read.parquet(f"file://{delivery.to}")
        )
        _say(ids=[row.id for row in source.select("id").collect()])


def _serve(spark: Any) -> None:
    """Run one delivery after another: a line of standard input describes it, and the next line ends it."""

    def deliver(given: dict[str, Any], opened: queue.SimpleQueue[Any]) -> None:
        try:
            _deliver(spark, given["definition"], opened.put, once=given["once"])
            _say(ended="")
        except Exception as error:  # noqa: BLE001 - the process that asked gets it
            _say(ended=f"{type(error).__name__}: {error}")
        opened.put(None)

    for line in sys.stdin:
        given = json.loads(line)
        if given["definition"]["format"] == "delta":
            spark._jvm.org.apache.spark.sql.delta.DeltaLog.clearCache()  # noqa: SLF001 - Delta has no other way
        opened: queue.SimpleQueue[Any] = queue.SimpleQueue()
        thread = threading.Thread(target=deliver, args=(given, opened))
        thread.start()
        sys.stdin.readline()
        if (run := opened.get()) is not None:
            run.stop()
        thread.join()


class Life:
    """A process of a delivery, and its Java."""

    def __init__(self, document: dict[str, Any], environment: dict[str, str], log: Path) -> None:
        self.words: list[dict[str, Any]] = []
        self._log = log
        with log.open("w") as errors:
            self.process = subprocess.Popen(
                [sys.executable, __file__, "--child", json.dumps(document)],
                env=environment,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                start_new_session=True,
            )
        threading.Thread(target=self._listen, daemon=True).start()

    def _listen(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if line.startswith("{"):
                self.words.append(json.loads(line))

    @property
    def java(self) -> int | None:
        return next((each["java"] for each in self.words if "java" in each), None)

    @property
    def ids(self) -> list[int] | None:
        return next((each["ids"] for each in self.words if "ids" in each), None)

    def has_ended(self) -> bool:
        return self.process.poll() is not None

    def errors(self) -> str:
        lines = self._log.read_text().splitlines(keepends=True)
        return "".join(line for line in lines if not line.startswith("\tat "))[-3000:]

    def signal(self, which: str, number: int) -> None:
        """Send a signal to `Python`, `Java` or both."""
        if "Python" in which:
            with suppress(ProcessLookupError):
                os.killpg(self.process.pid, number)
        if "Java" in which and self.java is not None:
            with suppress(ProcessLookupError):
                os.killpg(self.java, number)

    def wait(self, seconds: float) -> int | None:
        with suppress(subprocess.TimeoutExpired):
            return self.process.wait(seconds)
        return None

    def end(self, *, leaves_java: bool = False) -> None:
        """Wait a moment for the half that was not killed, then kill it."""
        self.wait(20)
        if leaves_java:
            return
        end_s = time.monotonic() + 20
        while self.java is not None and _lives(self.java) and time.monotonic() < end_s:
            time.sleep(0.1)
        self.signal("Python and Java", signal.SIGKILL)
        self.wait(60)


class ServingLife(Life):
    """A process whose Spark runs one delivery after another."""

    def begin(self, definition: dict[str, Any], *, once: bool = False) -> None:
        self.words = [each for each in self.words if "java" in each]
        self._write(json.dumps({"definition": definition, "once": once}))

    def finish(self) -> str:
        """End a delivery; return its error, or an empty text."""
        self._write("end")
        return self._ended()

    def await_end(self) -> str:
        """Wait for the end of a delivery that runs once."""
        error = self._ended()
        self._write("end")
        return error

    def has_ended(self) -> bool:
        return super().has_ended() or any("ended" in each for each in self.words)

    def _ended(self) -> str:
        end_s = time.monotonic() + _LIFE_S_MAX
        while not self.has_ended() and time.monotonic() < end_s:
            time.sleep(0.02)
        return next((each["ended"] for each in self.words if "ended" in each), "it has not ended")

    def _write(self, line: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(f"{line}\n")
        self.process.stdin.flush()


@contextmanager
def _all_stopped() -> Iterator[None]:
    """Stop all processes below this one, and let them go on afterwards."""
    stopped: set[int] = set()
    try:
        while new := _below(os.getpid()) - stopped:
            stopped |= new
            for pid in new:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGSTOP)
        yield
    finally:
        for pid in stopped:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)


def _below(root: int) -> set[int]:
    """Return the processes that descend from one."""
    parents: dict[int, int] = {}
    for each in Path("/proc").iterdir():
        if each.name.isdecimal():
            with suppress(FileNotFoundError, ProcessLookupError):
                parents[int(each.name)] = int((each / "stat").read_text().rpartition(")")[2].split()[1])
    found, last = set[int](), {root}
    while last:
        last = {pid for pid, parent in parents.items() if parent in last}
        found |= last
    return found


def _lives(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False
    return state != "Z"


class WatchedTable(KilledTable):
    """A table whose folders show how far a batch has come."""

    def __init__(self, server: LocalKinesisProcess, folder: Path, number: int, table_format: str) -> None:
        super().__init__(None, server, folder, number, table_format)
        self.server, self.root, self.format = server, folder, table_format
        self.table, self.state = Path(self._folder), Path(self._state, self.stream)

    def names(self, event: str) -> set[str]:
        """Return the names of all files of a kind."""
        batches = self.state / "batches"
        match event:
            case "manifest":
                return {each for each in _list(batches) if each.endswith(".json")}
            case "done":
                return {each for each in _list(batches) if each.endswith(".done")}
            case "commit" if self.format == "delta":
                return {each for each in _list(self.table / "_delta_log") if each.endswith(".json")}
            case "commit" if self.format == "iceberg":
                return {each for each in _list(self.table / "metadata") if each.endswith(".metadata.json")}
        top = self.table / "data" if self.format == "iceberg" else self.table
        return {
            f"{at}/{name}" for at, _, names in os.walk(top) for name in names if name.endswith(".parquet")
        }

    def place(self) -> str:
        """Return how far the last batch has come."""
        last = max(self.names("manifest"), default=None)
        staged = {each for each in _list(self.state / "staging") if last is None or f"{each}.json" > last}
        if staged or last is None:
            return "staged, no manifest" if staged else "before the first batch"
        label = last.removesuffix(".json")
        manifest = json.loads((self.state / "batches" / last).read_text())
        at_s = (self.state / "batches" / last).stat().st_mtime
        if f"{label}.done" in self.names("done"):
            is_committed = label.isdecimal() and str(int(label)) in _list(self.state / "checkpoint/commits")
            return "between batches" if is_committed else "done, not committed by Spark"
        if self.format in LAKES:
            if manifest["rows"] is not None and self._has(label):
                return "committed by the table, not done"
            has_begun = any(Path(each).stat().st_mtime >= at_s for each in self.names("data"))
            return "data files, no commit of the table" if has_begun else "manifest, no data file"
        moved = {Path(each["target"]).exists() for each in manifest["moves"]}
        return "some moved" if len(moved) > 1 else f"{'all' if True in moved else 'none'} moved, not done"

    def _has(self, label: str) -> bool:
        if self.format == "delta":
            log = self.table / "_delta_log"
            words = [path.read_text() for path in log.glob("*.json")]
            return any(f'"version":{int(label)},' in each and '"txn":' in each for each in words) and any(
                each.get("txn", {}).get("version") == int(label)
                for text in words
                for each in map(json.loads, text.splitlines())
            )
        found = max((self.table / "metadata").glob("v*.metadata.json"), key=_version, default=None)
        snapshots = [] if found is None else json.loads(found.read_text())["snapshots"]
        return any(each["summary"].get("penstock.batch") == label for each in snapshots)

    def read_outside(self) -> dict[str, list[int]]:
        """Return the ids that the readers without Spark find."""
        if self.format == "delta":
            return read_delta(str(self.table))
        if self.format == "iceberg":
            return read_iceberg(str(self.table))
        return read_files(str(self.table), "parquet")

    def differences(self, more: dict[str, list[int]] | None = None) -> Counter[str]:
        """Return how many rows are doubled, unknown and, if `more` has Spark's, lost."""
        found: Counter[str] = Counter()
        for reader, ids in (self.read_outside() | (more or {})).items():
            found[f"{reader}: doubled"] += len(ids) - len(set(ids))
            found[f"{reader}: unknown"] += len(set(ids) - set(self.put_ids))
            if more is not None:
                found[f"{reader}: lost"] += len(set(self.put_ids) - set(ids))
        letters = self.letters()
        found["letters doubled"] += len(letters) - len(set(letters))
        if more is not None:
            found["letters lost"] += len(set(self.bad) - set(letters))
        return +found

    def live(self, *, once: bool = False, unlocked: bool = False) -> Life:
        return _live(
            Life,
            self.server,
            self.root,
            definition=self.definition,
            formats=[self.format],
            once=once,
            unlocked=unlocked,
            serves=False,
        )

    def use_lease_folder(self) -> None:
        """Keep the leases in a folder, so that an image has them."""
        self._leases = Path(f"{self._state}-leases")
        self.definition["options"] = {**self.definition["options"], "leaseTable": f"file://{self._leases}"}

    def copy(self, image: Path) -> None:
        """Copy table, state and leases."""
        for at, place in enumerate(self._places()):
            if place.exists():
                shutil.copytree(place, image / str(at))

    def restore(self, image: Path) -> None:
        """Put a copy in the place of table, state and leases."""
        for at, place in enumerate(self._places()):
            shutil.rmtree(place, ignore_errors=True)
            if (image / str(at)).exists():
                (image / str(at)).rename(place)
        shutil.rmtree(image, ignore_errors=True)

    def _places(self) -> tuple[Path, ...]:
        return (self.table, Path(self._state), self._leases)

    @contextmanager
    def putting(self) -> Iterator[None]:
        """Put records, and reshard now and then, on another thread."""
        stop = threading.Event()

        def put() -> None:
            count = 0
            while not stop.wait(_PUT_S):
                self.put()
                count += 1
                if count % 15 == 0:
                    self.reshard()

        thread = threading.Thread(target=put)
        thread.start()
        try:
            yield
        finally:
            stop.set()
            thread.join()

    def finish(self) -> Counter[str]:
        """Deliver to the end; return the differences."""
        life = self.live(once=True)
        code = life.wait(_LIFE_S_MAX)
        life.end()
        if code != 0 or life.ids is None:
            raise SystemExit(f"{self.stream}: {life.errors()}")
        return self.differences({"Spark": life.ids})


def _live(kind: type[Life], server: LocalKinesisProcess, folder: Path, **document: Any) -> Any:
    environment = {**os.environ, **server.environ()}
    return kind({**document, "folder": str(folder)}, environment, folder / f"log-{time.time_ns()}")


def _list(folder: Path) -> list[str]:
    with suppress(FileNotFoundError), os.scandir(folder) as found:
        return [each.name for each in found]
    return []


def _version(path: Path) -> int:
    return int(path.name.split(".")[0].removeprefix("v"))


class Soak:
    """Tables, one after the other, and what was found."""

    def __init__(self, server: LocalKinesisProcess, folder: Path, seed: int, python: LoadedPython) -> None:
        self._server, self._folder, self._python = server, folder, python
        self._chance = random.Random(seed)
        self._numbers = iter(range(1, 10**6))
        self.kills: Counter[str] = Counter()
        self.zombies: Counter[str] = Counter()
        self.differences: Counter[str] = Counter()
        self.row_count = self.letter_count = self.table_count = 0

    def new_table(self, table_format: str) -> WatchedTable:
        table = WatchedTable(self._server, self._folder, next(self._numbers), table_format)
        table.put()
        return table

    @contextmanager
    def filling(self, formats: Sequence[str], *, images: bool) -> Iterator[Callable[[str, int, float], None]]:
        """Yield the function that fills a table."""
        if not images:
            yield self.fill
            return
        serving = _live(
            ServingLife, self._server, self._folder, formats=formats, once=False, unlocked=False, serves=True
        )
        try:
            yield functools.partial(self.fill_by_images, serving=serving)
        finally:
            serving.signal("Python and Java", signal.SIGKILL)
            serving.end()

    def fill(self, table_format: str, lives: int, end_s: float) -> None:
        """Fill a table whose deliveries are killed."""
        table = self.new_table(table_format)
        for _ in range(lives):
            if time.monotonic() > end_s:
                break
            self._kill(table)
        self._close(table, table.finish())

    def _close(self, table: WatchedTable, found: Counter[str]) -> None:
        for what, count in found.items():
            self.differences[f"{table.format}: {what}"] += count
        self.row_count += len(table.put_ids)
        self.letter_count += len(table.bad)
        self.table_count += 1
        counts = f"{len(table.put_ids):,} rows and {len(table.bad):,} dead letters"
        print(
            f"     {table.format:8} {table.stream} is read: {counts}; different: {dict(found) or 'none'}",
            flush=True,
        )
        if found:
            raise SystemExit(f"{table.stream} differs")

    def _await(self, table: WatchedTable, life: Life, event: str, skips: int) -> bool:
        """Wait for an event of a life; return False if the life ended before."""
        end_s = time.monotonic() + _LIFE_S_MAX
        is_there: Callable[[], bool]
        if event == "repair":
            is_there = lambda: life.java is not None  # noqa: E731
        else:
            seen = table.names(event)
            is_there = lambda: len(table.names(event) - seen) > skips  # noqa: E731
        while not is_there():
            if life.has_ended() or time.monotonic() > end_s:
                return False
            time.sleep(_POLL_S)
        return True

    def _kill(self, table: WatchedTable) -> None:
        event, which, delay_s = self._choose()
        with table.putting():
            life = table.live()
            try:
                is_there = self._await(table, life, event, self._chance.randrange(3))
                if is_there:
                    time.sleep(delay_s)
                was_dead = life.process.poll() is not None
                life.signal(which, signal.SIGKILL)
                place = table.place()
            finally:
                # The next driver may begin while this one's Java is still ending.
                life.end(leaves_java=which == "Python" and self._chance.random() < 0.5)
        if was_dead or not is_there:
            raise SystemExit(f"{table.stream} ended, or hung, before {event}: {life.errors()}")
        self._count(table, event, place, which, table.differences())

    def _choose(self) -> tuple[str, str, float]:
        event, which = self._chance.choice(EVENTS), self._chance.choice(KILLED)
        delay_s = self._chance.choice((0.0, self._chance.uniform(0, 0.1), self._chance.uniform(0, 2)))
        return event, which, self._chance.uniform(0, 6) if event == "repair" else delay_s

    def _count(self, table: WatchedTable, event: str, place: str, which: str, found: Counter[str]) -> None:
        self.kills[f"{table.format:8} {place:38} {which}"] += 1
        print(
            f"{self.kills.total():4} {table.format:8} after {event:9} {which:16} {place} {dict(found) or ''}",
            flush=True,
        )
        if found:
            raise SystemExit(f"{table.stream}: {dict(found)}")

    def fill_by_images(self, table_format: str, lives: int, end_s: float, serving: ServingLife) -> None:
        """Fill a table whose deliveries go on from images of the ones before."""
        table = self.new_table(table_format)
        table.use_lease_folder()
        image = self._folder / "image"
        for _ in range(lives):
            if time.monotonic() > end_s:
                break
            event, _, delay_s = self._choose()
            with table.putting():
                serving.begin(table.definition)
                is_there = self._await(table, serving, event, self._chance.randrange(2))
                if is_there:
                    time.sleep(delay_s)
                    with _all_stopped():
                        place, found = table.place(), table.differences()
                        table.copy(image)
            error = serving.finish()
            if error and TOO_BUSY not in error:
                raise SystemExit(f"{table.stream}: {error}\n{serving.errors()}")
            if is_there:
                self._await_sources()
                table.restore(image)
                self._count(table, event, place, "image", found)
        serving.begin(table.definition, once=True)
        error = serving.await_end()
        if error or serving.ids is None:
            raise SystemExit(f"{table.stream}: {error}\n{serving.errors()}")
        self._close(table, table.differences({"Spark": serving.ids}))

    def _await_sources(self) -> None:
        """Wait until no process of a source is left.

        Spark's stop of a query returns while that process still releases its leases. Such a write on restored leases would move their
        checkpoints past records that are not in the restored table.
        """
        end_s = time.monotonic() + _LIFE_S_MAX
        while _below(self._python.pid):
            if time.monotonic() > end_s:
                raise SystemExit("the process of a source does not end")
            time.sleep(0.02)

    def zombie(self, table_format: str, *, unlocked: bool) -> None:
        """Stop a delivery in its transaction, run another one, let the first go on."""
        table = self.new_table(table_format)
        first = second = table.live(unlocked=unlocked)
        event = self._chance.choice(("manifest", "data", "data", "commit"))
        try:
            with table.putting():
                if not self._await(table, first, event, self._chance.randrange(1, 3)):
                    raise SystemExit(f"{table.stream} ended before {event}: {first.errors()}")
                first.signal("Python and Java", signal.SIGSTOP)
                place = table.place()
            second = table.live(once=True, unlocked=unlocked)
            code = second.wait(_LIFE_S_MAX)
            what = "is refused" if REFUSED in second.errors() else f"ends with {code}"
            first.signal("Python and Java", signal.SIGCONT)
            ended = first.wait(_WAKE_S_MAX)
        finally:
            for each in (first, second):
                each.signal("Python and Java", signal.SIGKILL)
                each.end()
        kind = f"{table.format:8} {'two machines' if unlocked else 'one machine'}, {place}: the second {what}"
        self.zombies[kind] += 1
        found = table.differences({"Spark": second.ids or []} if code == 0 else None)
        reasons = [line for line in first.errors().splitlines() if line.startswith("penstock.errors")]
        print(
            f"     {kind}; the first ended with {ended}: {''.join(reasons[-1:])} {dict(found) or ''}",
            flush=True,
        )
        if code != 0 and what != "is refused":  # None: it has not ended in time, which is no loss
            print(second.errors(), flush=True)
        self._close(table, found)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument(
        "--format", choices=FORMATS, nargs="*", default=FORMATS, help="of the tables, in turn"
    )
    parser.add_argument("--minutes", type=float, default=25.0, help="begin no life after so long")
    parser.add_argument("--lives", type=int, default=8, help="kills of one table")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--zombies", type=int, default=0, help="of each format, in turn without and with the lock, first"
    )
    parser.add_argument(
        "--images", action="store_true", help="copy the files of a stopped delivery, in place of kills"
    )
    parser.add_argument("--child")
    args = parser.parse_args()
    if args.child:
        return _child(args.child)
    began_s = time.monotonic()
    folder = tempfile.mkdtemp()
    with LocalKinesisProcess(limits=False) as server, LoadedPython(Path(folder)) as python:
        os.environ |= {"PYSPARK_PYTHON": sys.executable, "PYSPARK_DRIVER_PYTHON": str(python.path)}
        soak = Soak(server, Path(folder), args.seed, python)
        end_s = began_s + 60 * args.minutes
        try:
            for number in range(args.zombies):
                for table_format in args.format:
                    soak.zombie(table_format, unlocked=number % 2 == 0)
            with soak.filling(args.format, images=args.images) as fill:
                for table_format in itertools.cycle(args.format):
                    if time.monotonic() > end_s:
                        break
                    fill(table_format, args.lives, end_s)
        finally:
            for what, count in sorted((soak.kills + soak.zombies).items()):
                print(f"{count:5} {what}")
            print(
                f"{soak.kills.total()} kills, {soak.zombies.total()} zombies, {soak.table_count} tables, {soak.row_count:,} rows and "
                f"{soak.letter_count:,} dead letters; different: {dict(soak.differences) or 'none'}; {time.monotonic() - began_s:.0f} s",
                flush=True,
            )
    shutil.rmtree(folder, ignore_errors=True)
    return 0 if soak.kills or soak.zombies else 1


if __name__ == "__main__":
    sys.exit(main())
