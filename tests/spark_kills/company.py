"""A run in company: two queries and a KCL 2.x worker in one application on one stream. All of them are killed."""

from __future__ import annotations

import itertools
import json
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar

from checks import History
from company_checks import CompanyHistory, Processed, Taken, nowhere
from harness import KEYS, KINDS, Run

from lease_logs import create_table, lease_log

WORKER = Path(__file__).with_name("kcl2_worker.py")
TABLE = "shared"
FAILOVER_S = 3.0
"""Of the worker; the queries' `leaseDuration` is the same."""


@dataclass
class CompanyRun(Run):
    """A run whose queries share their application with a KCL 2.x worker; a killed worker comes back under another name."""

    history: CompanyHistory = field(default_factory=CompanyHistory)
    worker: subprocess.Popen | None = None
    names: itertools.count = field(default_factory=itertools.count)
    kinds: ClassVar = (*KINDS, "kcl2")
    waiting_kinds: ClassVar = kinds
    """Without waiting, the queries would be killed before they had read anything, and the worker would do it all."""
    batch_wait_s: ClassVar = 15

    def prepare(self, server):
        create_table(server, TABLE)
        self.start_worker()

    def start_worker(self):
        name = f"kcl2-{next(self.names)}"
        with (self.folder / "worker.log").open("a") as log:
            self.worker = subprocess.Popen(
                [
                    *(sys.executable, str(WORKER), self.server.endpoint_url, "numbers", TABLE, name),
                    *(str(self.folder), str(FAILOVER_S)),
                ],
                stderr=log,
            )

    def dismiss(self):
        if self.worker is not None:
            self.worker.kill()
            self.worker.wait()

    def kill_worker(self):
        self.dismiss()

    def check_worker(self):
        assert self.worker.poll() is None, (self.folder / "worker.log").read_text()[-4000:]

    def kill(self, kind, chance):
        if kind != "kcl2":
            return super().kill(kind, chance)
        self.check_worker()
        self.kill_worker()
        self.killed[kind] += 1
        return self.start_worker()

    def disturb(self, client, chance, server):
        """Put, reshard and kill; then put more until each query has read some, however often it was killed before."""
        super().disturb(client, chance, server)
        end_s = time.monotonic() + self.plan.finish_s
        while waiting := [name for name in self.plan.queries if not self.has_rows(name)]:
            assert time.monotonic() < end_s, f"{waiting} read nothing:\n{self.log()}"
            count = len(self.history.put)
            self.put(client, count, count + KEYS)
            self.restart_if_dead(server)
            time.sleep(1)

    def has_rows(self, name):
        """Whether a batch of a query had rows when its first action ended; its repeats have the same ones."""
        file = self.folder / f"{name}.jsonl"
        lines = file.read_text().splitlines() if file.exists() else []
        return any(line.endswith("}") and json.loads(line)["count"] for line in lines)

    def finish(self, server):
        """Let the queries read to the end, and then the worker what they have left."""
        super().finish(server)
        self.gather_queries()
        end_s = time.monotonic() + self.plan.finish_s
        while time.monotonic() < end_s:
            self.gather_workers()
            if not nowhere(self.history):
                break
            self.check_worker()
            time.sleep(1)

    # --- what came of it -----------------------------------------------------------------------------------------

    def gather_queries(self):
        for name in self.plan.queries:
            self.history.queries[name] = History()
            self.gather_query(name, self.history.queries[name])

    def gather_workers(self):
        self.history.workers = {}
        for path in sorted(self.folder.glob("kcl2-*.jsonl")):
            did = self.history.workers[path.stem] = []
            for line in path.read_text().splitlines():
                with suppress(ValueError):  # cut off by a kill
                    did += events(json.loads(line))

    def gather(self, client):
        self.gather_workers()
        self.history.log = lease_log(self.server, TABLE)


def events(told):
    if told["event"] == "take":
        return [Taken(told["shard"], told["owner"], told["counter"])]
    if told["event"] == "records":
        return [Processed(told["shard"], *record) for record in told["records"]]
    return []
