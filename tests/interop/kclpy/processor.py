"""A processor of amazon_kclpy. Started as a program it serves the daemon; Penstock runs the same class."""

from __future__ import annotations

import os

from amazon_kclpy import kcl
from amazon_kclpy.v3 import processor


class Processor(processor.RecordProcessorBase):
    """Appends a line for each record to the file that OUTPUT names, and checkpoints behind each batch."""

    def initialize(self, initialize_input):
        self.shard = initialize_input.shard_id

    def process_records(self, process_records_input):
        lines = [
            f"{self.shard} {record.sequence_number} {record.partition_key} {record.binary_data.decode()}\n"
            for record in process_records_input.records
        ]
        with open(os.environ["OUTPUT"], "a", encoding="utf-8") as file:  # noqa: PTH123 - as its users write
            file.write("".join(lines))
        process_records_input.checkpointer.checkpoint()

    def lease_lost(self, lease_lost_input):
        pass

    def shard_ended(self, shard_ended_input):
        shard_ended_input.checkpointer.checkpoint()

    def shutdown_requested(self, shutdown_requested_input):
        shutdown_requested_input.checkpointer.checkpoint()


if __name__ == "__main__":
    kcl.KCLProcess(Processor()).run()
