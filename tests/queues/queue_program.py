"""Run one consumer of a queue as a separate process, for tests.

Usage: queue_program.py ENDPOINT NAME WORKER FOLDER [OPTION=NUMBER ...]

`FOLDER/<worker>.done` gets one line per record that the handler has done. One system call writes it before the record counts as done,
so that it survives SIGKILL. The stream and the queue have one name.
"""

import logging
import os
import sys
import time
from pathlib import Path

from penstock import QueueConsumer


def main(endpoint: str, name: str, worker: str, folder: str, *given: str) -> None:
    logging.basicConfig(level=logging.INFO)
    options = {
        key: float(value) if "." in value else int(value)
        for key, _, value in (each.partition("=") for each in given)
    }
    pause_s = options.pop("pause_s", 0.0)
    file = os.open(Path(folder) / f"{worker}.done", os.O_CREAT | os.O_APPEND | os.O_WRONLY)

    def handle(record) -> None:
        time.sleep(pause_s)
        os.write(file, record.data + b"\n")

    QueueConsumer(
        name,
        handle,
        create={"stream": name, "starting_position": "TRIM_HORIZON", "max_receive_count": 100},
        endpoint_url=endpoint,
        region="us-east-1",
        connection={"access_key_id": "x", "secret_access_key": "x"},
        worker_id=worker,
        **options,
    ).run()


main(*sys.argv[1:])
