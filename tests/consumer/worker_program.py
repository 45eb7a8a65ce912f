"""Run one worker as a separate process, for tests; it records its deliveries and its writes to the lease table.

Usage: worker_program.py ENDPOINT STREAM APPLICATION WORKER FOLDER [OPTION=JSON ...]

`FOLDER/<worker>.records` gets one line per delivered record. One system call writes it before the batch counts as done, so
that it survives SIGKILL. `FOLDER/<worker>.writes` gets one line per lease write that was applied.
"""

import json
import logging
import os
import sys
import threading
from pathlib import Path

from penstock import wiring
from penstock.consumer import Consumer, ConsumerPorts
from penstock.core.leases.lease_writes import Applied


class NotedTable:
    """A lease table whose applied writes are noted."""

    def __init__(self, table, folder, name):
        self._table = table
        self._writes = open_notes(folder / f"{name}.writes")
        self._lock = threading.Lock()
        self.name = table.name
        self.ensure_exists = table.ensure_exists
        self.scan = table.scan
        self.fetch = table.fetch

    @property
    def row_count(self):
        return self._table.row_count

    def write(self, write):
        outcome = self._table.write(write)
        if isinstance(outcome, Applied) and outcome.lease is not None:
            row = outcome.lease
            values = (row.key, row.counter, str(row.checkpoint), type(write).__name__, row.owner)
            with self._lock:
                os.write(self._writes, f"{json.dumps(values)}\n".encode())
        return outcome


def open_notes(path):
    return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)


def main() -> None:
    endpoint, stream, application, name, folder, *settings = sys.argv[1:]
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s %(message)s")
    logging.getLogger("botocore").setLevel(logging.WARNING)
    options = {key: json.loads(value) for key, _, value in (setting.partition("=") for setting in settings)}
    records = open_notes(Path(folder) / f"{name}.records")

    def handle(batch):
        lines = [
            f"{r.data.decode().partition(' ')[0]} {batch.shard_id} {r.sequence_number}.{r.sub_sequence_number}"
            for r in batch
        ]
        os.write(records, ("\n".join(lines) + "\n").encode())

    aws = wiring.AwsOptions(
        endpoint_url=endpoint,
        region="us-east-1",
        access_key_id="local",
        secret_access_key="local",
        deadline_s=3.0,
        read_timeout_s=2.0,
    )
    ports = ConsumerPorts(
        kinesis=wiring.open_kinesis(aws),
        lease_table=NotedTable(wiring.open_lease_table(application, aws), Path(folder), name),
        fan_out=wiring.open_fan_out(aws),
    )
    Consumer(stream, application, handle, ports=ports, worker_id=name, **options).run()


if __name__ == "__main__":
    main()
