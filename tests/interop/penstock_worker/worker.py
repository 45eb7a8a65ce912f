"""A worker of Penstock that takes the arguments of the KCL's and prints the same lines; it stops in order when its input ends.

`python worker.py STREAM APPLICATION WORKER [STOP_AFTER]` prints a line when a shard begins (the position that it was told)
and one for each record, before the checkpoint behind it. With STOP_AFTER it checkpoints at the record of that number in its
shard and is gone, as if killed.
"""

import logging
import os
import sys
import threading

from penstock import Consumer

PRINTING = threading.Lock()
LEASE_DURATION_S = 5.0
"""The KCL's failover time in the other program."""


def print_lines(lines):
    with PRINTING:
        sys.stdout.write("".join(f"{line}\n" for line in lines))
        sys.stdout.flush()


class Printer:
    """Prints what it is given."""

    def __init__(self, stop_after):
        self.shard = None
        self.count = 0
        self.stop_after = stop_after

    def on_start(self, shard_id, position):
        self.shard = shard_id
        place = position.sequence_number or position.sentinel.value
        print_lines([f"begin {shard_id} {place} {position.sub_sequence_number}"])

    def on_batch(self, batch):
        lines = []
        for record in batch:
            place = f"{record.sequence_number} {record.sub_sequence_number}"
            lines.append(f"record {self.shard} {place} {record.partition_key} {record.data.decode()}")
            self.count += 1
            if self.count == self.stop_after:
                print_lines(lines)
                batch.checkpoint(record)
                os._exit(0)
        print_lines(lines)
        if self.stop_after is not None:
            batch.checkpoint()

    def on_end(self, shard):
        if self.stop_after is not None:
            shard.acknowledge_through(shard.last_delivered)

    def on_stop(self, shard):
        """The consumer checkpoints by itself."""

    def on_lost(self):
        """The one who has it now goes on from the last checkpoint."""


def main():
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s %(message)s")
    logging.getLogger("botocore").setLevel(logging.WARNING)
    stream, application, worker, *more = sys.argv[1:]
    stop_after = int(more[0]) if more else None
    consumer = Consumer(
        stream,
        application,
        processor_factory=lambda: Printer(stop_after),
        worker_id=worker,
        starting_position="TRIM_HORIZON",
        checkpointing="auto" if stop_after is None else "manual",
        checkpoint_interval_s=0.5,
        lease_duration_s=LEASE_DURATION_S,
        idle_time_between_reads_s=0.5,
        cold_start_jitter_s=0.5,
    )

    def wait_for_the_end():
        sys.stdin.read()
        consumer.stop()

    threading.Thread(target=wait_for_the_end, daemon=True).start()
    consumer.run()
    print_lines(["stopped"])


if __name__ == "__main__":
    main()
